-- Results that look like nothing are replayed as what they were.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

CREATE TABLE test.result AS
    SELECT * FROM (VALUES ('JSON null', 'null'::jsonb), ('false', 'false'), ('zero', '0'), ('empty string', '""'), ('empty object', '{}'),
                          ('empty array', '[]'), ('None', '"None"'), ('SQL NULL', NULL), ('NaN as text', '"NaN"'),
                          ('minus zero', '-0'), ('[null]', '[null]'), ('blank', '" "'),
                          ('60 kB', (SELECT jsonb_agg(md5(g::text)) FROM generate_series(1, 1600) AS g))) AS v (name, result);

-- Transactional, leased, and as a final failure.
\pset null (null)
BEGIN;
SELECT r.name, left(c.decision, 20) AS decision, left(idem_complete('t ' || r.name, r.result)::text, 20) AS stored
  FROM test.result AS r, idem_claim('t ' || r.name) AS c;
COMMIT;
SELECT r.name, c.decision, left(c.result::text, 20) AS result, c.result IS NOT DISTINCT FROM r.result AS same,
       jsonb_typeof(c.result) IS NOT DISTINCT FROM jsonb_typeof(r.result) AS same_type, length(c.result::text) AS length
  FROM test.result AS r, idem_claim('t ' || r.name) AS c;
CREATE TABLE test.fence AS SELECT r.name, c.fence FROM test.result AS r, idem_claim('l ' || r.name, lease => '1 minute') AS c;
SELECT r.name, idem_complete('l ' || r.name, r.result, fence => f.fence) IS NOT DISTINCT FROM r.result AS stored
  FROM test.result AS r JOIN test.fence AS f USING (name);
SELECT r.name, c.decision, c.result IS NOT DISTINCT FROM r.result AS same
  FROM test.result AS r, idem_claim('l ' || r.name) AS c;
BEGIN;
SELECT count(idem_fail('f ' || r.name, 'rejected', result => r.result)) AS failed
  FROM test.result AS r, idem_claim('f ' || r.name) AS c WHERE c.decision = 'execute';
COMMIT;
SELECT r.name, c.decision, c.result IS NOT DISTINCT FROM r.result AS same
  FROM test.result AS r, idem_claim('f ' || r.name) AS c;
-- The same through idem_once, idem_claim_many, idem_peek and the view.
SELECT r.name, o.replayed, o.result IS NOT DISTINCT FROM r.result AS same, a.replayed, a.result IS NOT DISTINCT FROM r.result AS same
  FROM test.result AS r, idem_once('o ' || r.name, 'SELECT $1', r.result) AS o, idem_once('o ' || r.name, 'SELECT $1', r.result) AS a;
SELECT bool_and(m.decision = 'replay') AS replays, bool_and(m.result IS NOT DISTINCT FROM r.result) AS same
  FROM (SELECT array_agg('t ' || name ORDER BY name) AS keys, array_agg(name ORDER BY name) AS names FROM test.result) AS k,
       idem_claim_many(k.keys) AS m, test.result AS r WHERE r.name = k.names[m.ord];
SELECT bool_and(p.state = 'completed') AS completed, bool_and(p.result IS NOT DISTINCT FROM r.result) AS same,
       bool_and(v.result IS NOT DISTINCT FROM r.result) AS same_in_view
  FROM test.result AS r, idem_peek('t ' || r.name) AS p, idempotency.records AS v WHERE v.key = 't ' || r.name;

-- Reasons too: an empty one is not a missing one.
BEGIN;
SELECT idem_fail(c.key, 'rejected', r.reason)
  FROM (VALUES ('empty reason', ''), ('no reason', NULL)) AS r (key, reason), LATERAL (SELECT r.key FROM idem_claim(r.key)) AS c;
COMMIT;
SELECT decision, reason FROM idem_claim('empty reason');
SELECT decision, reason FROM idem_claim('no reason');

-- A result that is deep is replayed as it was.
SELECT d, o.result = r.r AS stored, a.replayed, a.result = r.r AS same
  FROM unnest(ARRAY[100, 1000, 5000]) AS d, LATERAL (SELECT (repeat('[', d) || repeat(']', d))::jsonb AS r) AS r,
       idem_once('deep ' || d, 'SELECT (repeat($x$[$x$, $1::int) || repeat($x$]$x$, $1::int))::jsonb', to_jsonb(d)) AS o,
       idem_once('deep ' || d, 'SELECT 1/0', to_jsonb(d)) AS a;

-- A large one, and one effect for each of them, however often it is asked for.
SELECT idem_scope_set('large', max_result_bytes => 2000000);
CREATE TABLE test.effect (name text);
CREATE TABLE test.large AS SELECT * FROM test.result UNION ALL SELECT '1 MB', (SELECT jsonb_agg(md5(g::text)) FROM generate_series(1, 28000) AS g);
CREATE FUNCTION test.effect(args jsonb) RETURNS jsonb LANGUAGE sql AS $$
    INSERT INTO test.effect VALUES (args ->> 'name');
    SELECT r.result FROM test.large AS r WHERE r.name = args ->> 'name'
$$;
SELECT bool_and(o.replayed) AS replayed, bool_and(o.result IS NOT DISTINCT FROM r.result) AS same FROM test.large AS r, idem_call(r.name, 'test.effect', jsonb_build_object('name', r.name), 'large') AS o;
SELECT bool_and(o.replayed) AS replayed, bool_and(o.result IS NOT DISTINCT FROM r.result) AS same FROM test.large AS r, idem_call(r.name, 'test.effect', jsonb_build_object('name', r.name), 'large') AS o;
SELECT bool_and(o.replayed) AS replayed, bool_and(o.result IS NOT DISTINCT FROM r.result) AS same FROM test.large AS r, idem_call(r.name, 'test.effect', jsonb_build_object('name', r.name), 'large') AS o;
SELECT count(*) AS effects, count(DISTINCT name) AS keys, (SELECT max(octet_length(result::text)) > 1000000 FROM test.large) AS megabyte FROM test.effect;
