-- Arguments: compared in every state before anything else is said, and what makes them equal.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- In every state: other arguments, none, and JSON null are refused and change nothing; the same ones get their answer.
SELECT idem_scope_set('local', effect_kind => 'local');
CREATE TABLE test.key AS
    SELECT state AS key, state, CASE WHEN state LIKE 'local%' THEN 'local' ELSE 'default' END AS scope, NULL::bigint AS fence
      FROM unnest(ARRAY['leased', 'lease over', 'lease over, swept', 'local, lease over', 'local, lease over, swept', 'declared unknown', 'reconciling',
                        'completed', 'rejected', 'not_applied', 'executing again']) AS state;
UPDATE test.key SET fence = (idem_claim(key, '{"amount": 1}', scope, '1 minute')).fence;
CREATE PROCEDURE test.age_states(pattern text) LANGUAGE plpgsql AS $$
DECLARE k record;
BEGIN
    FOR k IN SELECT * FROM test.key WHERE state ~ pattern LOOP
        CALL test.age(k.key, '1 hour', k.scope);
    END LOOP;
END
$$;
CALL test.age_states('swept');
CALL idempotency.sweep();
CALL test.age_states('lease over$');
SELECT count(idem_fail(key, 'unknown', fence => fence)) FROM test.key WHERE state IN ('declared unknown', 'reconciling');
SELECT count(idem_fail(key, 'not_applied', fence => fence)) FROM test.key WHERE state IN ('not_applied', 'executing again');
SELECT count(idem_fail(key, 'rejected', fence => fence)) FROM test.key WHERE state = 'rejected';
SELECT count(idem_complete(key, '1', fence => fence)) FROM test.key WHERE state = 'completed';
SELECT k.key, c.decision FROM test.key AS k, idem_claim(k.key, '{"amount": 1}', lease => '1 minute') AS c
 WHERE k.state IN ('reconciling', 'executing again') ORDER BY k.key;
CREATE TABLE test.before AS SELECT k.key, p.* FROM test.key AS k, idem_peek(k.key, k.scope) AS p;
SELECT count(DISTINCT k.state) AS states, count(*) AS refused, regexp_replace(answer, 'key ".*" in scope ".*" was', 'key ... was') AS answer
  FROM test.key AS k, unnest(ARRAY['''{"amount": 2}''', 'NULL', '''null''', '''{"amount": "1"}''']) AS v (args),
       test.try(format('SELECT idem_claim(%L, %s, %L)', k.key, v.args, k.scope)) AS answer GROUP BY 3 \gx
SELECT k.state, m.decision FROM test.key AS k, idem_claim_many(ARRAY[k.key], ARRAY['{"amount": 2}']::jsonb[], k.scope) AS m ORDER BY 1;
-- Not finished_at: a worker may have seen a lease end meanwhile.
SELECT count(*) AS keys, count(*) FILTER (WHERE (b.fence, b.attempt, b.claimed_at) IS NOT DISTINCT FROM
                                                (p.fence, p.attempt, p.claimed_at)) AS unchanged
  FROM test.before AS b JOIN test.key AS k USING (key), idem_peek(k.key, k.scope) AS p;
BEGIN;
SELECT k.state, c.decision, c.attempt FROM test.key AS k, idem_claim(k.key, '{"amount": 1.0}', k.scope) AS c ORDER BY 1;
-- Transactional claims of this transaction are compared too.
SELECT array_agg(k.state ORDER BY k.state) AS refused, split_part(answer, ' ', 1) AS sqlstate
  FROM test.key AS k, test.try(format('SELECT idem_claim(%L, %L, %L)', k.key, '{"amount": 2}', k.scope)) AS answer GROUP BY 2;
ROLLBACK;
-- So are those of idem_once and idem_call.
SELECT test.try($$ SELECT idem_once('completed', 'SELECT 1/0', '{"amount": 2}') $$);
SELECT test.try($$ SELECT idem_call('completed', 'test.same', '{"amount": 2}') $$);
-- What was given back or is past its window has no arguments any more.
SELECT fence FROM idem_claim('given back', '1', lease => '1 minute') \gset
SELECT idem_release('given back', fence => :fence);
CALL test.age('completed', '31 days');
CALL test.age('rejected', '31 days');
BEGIN;
SELECT :claim('given back', '2');
SELECT :claim('completed', '2');
SELECT :claim('rejected', '2');
ROLLBACK;

-- SQL NULL and JSON null are two values.
SELECT decision FROM idem_claim('sql null', lease => '1 minute');
SELECT decision FROM idem_claim('json null', 'null', lease => '1 minute');
SELECT decision FROM idem_claim('sql null', NULL);
SELECT decision FROM idem_claim('json null', 'null');
SELECT idem_claim('sql null', 'null');
SELECT idem_claim('json null');

-- Members that stand twice: the last one counts, nested and escaped likewise.
SELECT decision FROM idem_claim('twice', '{"amount": 1, "amount": 2}', lease => '1 minute');
SELECT decision FROM idem_claim('twice', '{"amount": 2}');
SELECT left(test.try($$ SELECT idem_claim('twice', '{"amount": 1}') $$), 5) AS sqlstate;
SELECT decision FROM idem_claim('twice, deeper', '[{"a": {"b": 1, "\u0062": 2}}]', lease => '1 minute');
SELECT decision FROM idem_claim('twice, deeper', '[{"\u0061": {"b": 2}}]');
SELECT left(test.try($$ SELECT idem_claim('twice, deeper', '[{"a": {"b": 1}}]') $$), 5) AS sqlstate;

-- What jsonb does not take is one clean error, and leaves nothing.
SELECT test.try($$ SELECT idem_claim('bad', '{"s": "a\u0000b"}', lease => '1 minute') $$);
SELECT left(test.try($$ SELECT idem_claim('bad', '{"s": "\ud800"}', lease => '1 minute') $$), 5) AS sqlstate;
SELECT left(test.try($$ SELECT idem_claim('bad', '{"s": ', lease => '1 minute') $$), 5) AS sqlstate;
SELECT left(test.try($$ SELECT idem_claim('bad', '[NaN]', lease => '1 minute') $$), 5) AS sqlstate;
SELECT left(test.try($$ SELECT idem_claim('bad', '1e200000', lease => '1 minute') $$), 5) AS sqlstate;
SELECT state FROM idem_peek('bad');
SELECT decision FROM idem_claim('emoji', '{"s": "\ud83d\ude00"}', lease => '1 minute');
SELECT decision FROM idem_claim('emoji', '{"s": "😀"}');

-- Numbers by their value, to the last digit.
SELECT decision FROM idem_claim('number', '{"amount": 1, "id": 9007199254740993, "rate": 0.1}', lease => '1 minute');
SELECT n, left(test.try(format('SELECT idem_claim(%L, %L)', 'number', n)), 5) AS answer FROM unnest(ARRAY[
    '{"amount": 1.00, "id": 9007199254740993, "rate": 0.10}', '{"amount": 10e-1, "id": 9007199254740993.0, "rate": 1e-1}',
    '{"amount": 1, "id": 9007199254740992, "rate": 0.1}', '{"amount": 1, "id": 9007199254740993, "rate": 0.1000000000000000055511151231257827}',
    '{"amount": 1.0000000000000000000000001, "id": 9007199254740993, "rate": 0.1}', '{"amount": "1", "id": 9007199254740993, "rate": 0.1}']) AS n;

-- As deep as jsonb goes.
CREATE FUNCTION test.nested(kind text, depth int, leaf text) RETURNS jsonb LANGUAGE sql AS $$
    SELECT CASE kind WHEN 'array' THEN repeat('[', depth) || leaf || repeat(']', depth)
                     ELSE repeat('{"a":', depth) || leaf || repeat('}', depth) END::jsonb
$$;
SELECT kind, depth, (idem_claim(kind || ' ' || depth, test.nested(kind, depth, '1'), lease => '1 minute')).decision,
       (idem_claim(kind || ' ' || depth, test.nested(kind, depth, '1.0'))).decision AS again,
       left(test.try(format('SELECT idem_claim(%L, test.nested(%L, %s, %L))', kind || ' ' || depth, kind, depth, '2')), 5) AS other_leaf,
       left(test.try(format('SELECT idem_claim(%L, test.nested(%L, %s, %L))', kind || ' ' || depth, kind, depth - 1, '1')), 5) AS other_depth
  FROM unnest(ARRAY['array', 'object']) AS kind, unnest(ARRAY[100, 127, 128, 129, 1000, 5000]) AS depth;
-- PostgreSQL itself refuses deeper ones, and the session goes on.
SELECT left(test.try($$ SELECT idem_claim('too deep', test.nested('array', 1000000, '1')) $$), 5) AS sqlstate;
SELECT decision FROM idem_claim('array 100', test.nested('array', 100, '1'));
-- Wide and large.
SELECT (idem_claim('wide', v, lease => '1 minute')).decision, (idem_claim('wide', v)).decision AS again, left(test.try(format('SELECT idem_claim(%L, %L)', 'wide', v - 'm777')), 5) AS one_less
  FROM (SELECT jsonb_object_agg('m' || g, repeat('é', g % 50)) AS v FROM generate_series(1, 20000) AS g) AS w;

-- ignore_args: what a scope leaves out of the comparison.
SELECT idem_scope_set('ignoring', ignore_args => ARRAY['/trace_id', '/items/*/at', '/meta/a~1b', '/meta/~0c', '/pair/1']);
SELECT decision FROM idem_claim('k', '{"trace_id": 1, "items": [{"n": 1, "at": 1}, {"n": 2, "at": 2}], "meta": {"a/b": 1, "~c": 2, "d": 3}, "pair": [1, 2]}', 'ignoring', '1 minute');
SELECT what, left(test.try(format('SELECT idem_claim(%L, %L, %L)', 'k', args, 'ignoring')), 5) AS answer FROM (VALUES
    ('all ignored differ', '{"trace_id": {"x": []}, "items": [{"n": 1, "at": 7}, {"at": null, "n": 2}], "meta": {"d": 3, "a/b": 7, "~c": 8}, "pair": [1, "x"]}'),
    ('ignored are missing', '{"items": [{"n": 1}, {"n": 2}], "meta": {"d": 3}, "pair": [1]}'),
    ('n differs', '{"items": [{"n": 1}, {"n": 3}], "meta": {"d": 3}, "pair": [1]}'),
    ('an item more', '{"items": [{"n": 1}, {"n": 2}, {}], "meta": {"d": 3}, "pair": [1]}'),
    ('meta.d differs', '{"items": [{"n": 1}, {"n": 2}], "meta": {"d": 4}, "pair": [1]}'),
    ('another place', '{"items": [{"n": 1}, {"n": 2, "trace_id": 1}], "meta": {"d": 3}, "pair": [1]}'),
    ('pair.0 differs', '{"items": [{"n": 1}, {"n": 2}], "meta": {"d": 3}, "pair": [2]}'),
    ('not an object', '[]')) AS v (what, args);
-- Changing the rule leaves old keys comparable by the rule that made them.
SELECT idem_scope_set('ignoring', ignore_args => ARRAY['/other']);
SELECT left(test.try($$ SELECT idem_claim('k', '{"trace_id": 9, "items": [{"n": 1}, {"n": 2}], "meta": {"d": 3}, "pair": [1]}', 'ignoring') $$), 5) AS old_key_old_rule;
SELECT decision FROM idem_claim('k2', '{"trace_id": 1, "other": 1}', 'ignoring', '1 minute');
SELECT left(test.try($$ SELECT idem_claim('k2', '{"trace_id": 1}', 'ignoring') $$), 5) AS new_rule,
       left(test.try($$ SELECT idem_claim('k2', '{"trace_id": 2}', 'ignoring') $$), 5) AS not_ignored_any_more;
SELECT idem_scope_reset('ignoring', 'ignore_args');
SELECT decision FROM idem_claim('k3', '{"other": 1}', 'ignoring', '1 minute');
SELECT left(test.try($$ SELECT idem_claim('k', '{"trace_id": 9, "items": [{"n": 1}, {"n": 2}], "meta": {"d": 3}, "pair": [1]}', 'ignoring') $$), 5) AS first_rule,
       left(test.try($$ SELECT idem_claim('k2', '{"trace_id": 1, "other": 7}', 'ignoring') $$), 5) AS second_rule,
       left(test.try($$ SELECT idem_claim('k3', '{"other": 2}', 'ignoring') $$), 5) AS no_rule;
SELECT idem_scope_set('ignoring', ignore_args => '{}');
SELECT ignore_args FROM idempotency.scopes WHERE scope = 'ignoring';
-- A key that is open keeps its rule when it is claimed again, and a takeover compares by it.
SELECT idem_scope_set('ignoring', ignore_args => ARRAY['/t']);
SELECT decision FROM idem_claim('open', '{"t": 1, "u": 1}', 'ignoring', '1 minute');
CALL test.age('open', '1 hour', 'ignoring');
SELECT idem_scope_set('ignoring', ignore_args => ARRAY['/u']);
SELECT decision FROM idem_claim('open', '{"t": 2, "u": 1}', 'ignoring', '1 minute');
SELECT left(test.try($$ SELECT idem_claim('open', '{"t": 3, "u": 1}', 'ignoring') $$), 5) AS by_the_old_rule,
       left(test.try($$ SELECT idem_claim('open', '{"t": 2, "u": 2}', 'ignoring') $$), 5) AS not_by_the_new_one;
-- Rules that cannot be.
SELECT pointers, test.try(format('SELECT idem_scope_set(%L, ignore_args => %L)', 'ignoring', pointers)) AS answer
  FROM unnest(ARRAY['{""}', '{trace_id}', '{/a~2}', '{/a~}', '{/ok,NULL}', '{{/a,/b}}', '{/a,$.b}']) AS pointers;
SELECT test.try($$ SELECT idem_scope_set('ignoring', ignore_args => ARRAY(SELECT '/' || g FROM generate_series(1, 65) AS g)) $$);
SELECT test.try($$ SELECT idem_scope_set('ignoring', ignore_args => ARRAY['/' || repeat('a', 1024)]) $$);
SELECT test.try($$ SELECT idem_scope_set('ignoring', ignore_args => ARRAY[repeat('/a', 33)]) $$);
SELECT ignore_args FROM idempotency.scopes WHERE scope = 'ignoring';
