-- Every string of the big list of naughty strings (tests/data/blns), as key, scope, run, reason, argument, result and ordering key:
-- each is a name of its own, byte for byte, and comes back as it was.
--
-- Goes red with trimming, folding or normalising of names, or with a message that cannot carry one.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

\set path :abs_srcdir '/data/blns/blns.json'
\set naughty `cat :'path'`
CREATE TABLE test.naughty AS SELECT min(n) AS n, s COLLATE "C" AS s FROM jsonb_array_elements_text(:'naughty'::jsonb) WITH ORDINALITY AS e (s, n) GROUP BY s COLLATE "C";
SELECT count(*) > 500 AS read, count(*) FILTER (WHERE s = '') AS empty, max(octet_length(s)) FROM test.naughty;
SELECT left(test.try(format('SELECT idem_claim(%L)', s)), 5) AS sqlstate FROM test.naughty WHERE s = '';
DELETE FROM test.naughty WHERE s = '';
SELECT count(*) AS keys FROM test.naughty \gset

-- As key, argument, run and result.
SELECT c.decision, count(*) = :keys AS "all" FROM test.naughty, idem_claim(s, jsonb_build_object('s', s, 'n', n), lease => '1 hour', run => s) AS c GROUP BY 1;
SELECT count(DISTINCT r.key) = :keys AS "all", bool_and(r.key = s COLLATE "C" AND r.run = s) AS as_they_were FROM idempotency.records AS r JOIN test.naughty ON r.key = s COLLATE "C";
SELECT count(idem_complete(s, to_jsonb(s), fence => p.fence)) = :keys AS "all" FROM test.naughty, idem_peek(s) AS p;
SELECT c.decision, count(*) = :keys AS "all", bool_and(c.result = to_jsonb(s)) AS own_result FROM test.naughty, idem_claim(s, jsonb_build_object('n', n, 's', s)) AS c GROUP BY 1;
SELECT count(*) = :keys AS refused, bool_and(position(E'\n' IN split_part(answer, E'\nDETAIL', 1)) = 0) AS one_line
  FROM test.naughty, test.try(format('SELECT idem_claim(%L, %L)', s, jsonb_build_object('n', n, 's', s || '.'))) AS answer WHERE left(answer, 5) = 'ID001';
SELECT count(*) = :keys AS found FROM test.naughty, idem_find(s) AS f WHERE f.state = 'completed';
-- As reason and evidence.
BEGIN;
SELECT count(*) = :keys AS claimed FROM test.naughty, idem_claim('reason ' || n) AS c WHERE c.decision = 'execute';
SELECT count(idem_fail('reason ' || n, 'rejected', s, to_jsonb(s))) = :keys AS failed FROM test.naughty;
COMMIT;
SELECT c.decision, count(*) = :keys AS "all", bool_and(c.reason = s AND c.result = to_jsonb(s)) AS as_they_were FROM test.naughty, idem_claim('reason ' || n) AS c GROUP BY 1;
-- As scope, where it is no longer than a scope may be, and as a name in idem_key.
SELECT count(idem_scope_set(s)) = count(*) AS scopes FROM test.naughty WHERE octet_length(s) <= 255 AND s <> 'default';
SELECT c.decision, count(*) > 490 AS many FROM test.naughty, idem_claim('in a scope', to_jsonb(n), s, '1 hour') AS c WHERE octet_length(s) <= 255 GROUP BY 1;
SELECT string_agg(DISTINCT left(test.try(format('SELECT idem_scope_set(%L)', s)), 5), ' ') AS too_long FROM test.naughty WHERE octet_length(s) > 255;
SELECT count(DISTINCT scope) = (SELECT count(*) FROM test.naughty WHERE octet_length(s) <= 255) AS "all" FROM idempotency.records WHERE key = 'in a scope';
SELECT count(DISTINCT idem_key(s, 'operation', to_jsonb(s))) = count(*) AS keys FROM test.naughty WHERE octet_length(s) <= 900;
-- As a message: destination, ordering key, payload.
CREATE TABLE test.queue AS SELECT * FROM test.naughty WHERE octet_length(s) <= 255;
SELECT e.decision, count(*) = (SELECT count(*) FROM test.queue) AS "all" FROM test.queue, idem_enqueue('message ' || n, s, to_jsonb(s), ordering_key => s) AS e GROUP BY 1;
SELECT count(*) = (SELECT count(*) FROM test.queue) AS dispatched, bool_and(d.payload = to_jsonb(s) AND d.key = 'message ' || n) AS as_they_were FROM test.queue, idem_dispatch(s, 10, '1 hour') AS d;
SELECT string_agg(DISTINCT left(test.try(format('SELECT idem_enqueue(%L, %L, %L)', 'too long', s, 1)), 5), ' ') AS too_long FROM test.naughty WHERE octet_length(s) > 255;
-- As a kind of failure.
SELECT count(*) = :keys AS "all", string_agg(DISTINCT idem_failure_kind(s), ' ') AS verdicts FROM test.naughty;
