-- Keys and names: compared byte for byte, never trimmed, folded or normalised; limits; what messages look like.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- NULL, empty, too long: refused by every function that takes a key, and nothing is stored.
SELECT name, answer, count(*) AS functions, string_agg(split_part(call, '(', 1), ', ') AS of_these
  FROM unnest(ARRAY['idem_claim(%s)', 'idem_complete(%s)', 'idem_fail(%s, ''unknown'')', 'idem_release(%s)',
                    'idem_renew(%s, ''1 minute'')', 'idem_claim_many(ARRAY[%s])', 'idem_complete_many(ARRAY[%s])',
                    'idem_once(%s, ''SELECT $1'')', 'idem_call(%s, ''test.same'')', 'idem_peek(%s)', 'idem_find(%s)']) AS call,
       (VALUES (1, 'NULL'), (2, ''''''), (3, 'repeat(''k'', 1025)')) AS v (place, name),
       test.try('SELECT ' || format(call, name)) AS answer
 GROUP BY place, name, answer ORDER BY place, answer \gx
-- The scope likewise.
SELECT name, answer, count(*) AS functions, string_agg(split_part(call, '(', 1), ', ') AS of_these
  FROM unnest(ARRAY['idem_claim(''k'', scope => %s)', 'idem_complete(''k'', scope => %s)', 'idem_fail(''k'', ''unknown'', scope => %s)',
                    'idem_release(''k'', %s)', 'idem_renew(''k'', ''1 minute'', %s)', 'idem_claim_many(ARRAY[''k''], scope => %s)',
                    'idem_complete_many(ARRAY[''k''], scope => %s)', 'idem_once(''k'', ''SELECT $1'', scope => %s)',
                    'idem_call(''k'', ''test.same'', scope => %s)', 'idem_peek(''k'', %s)', 'idem_scope_set(%s)',
                    'idem_scope_reset(%s, ''wait'')', 'idem_scope_drop(%s)', 'idem_scope_grant(%s, ''pg_monitor'')',
                    'idem_scope_revoke(%s, ''pg_monitor'')', 'idem_guarantee(%s)']) AS call,
       (VALUES (1, 'NULL'), (2, ''''''), (3, 'repeat(''s'', 256)')) AS v (place, name),
       test.try('SELECT ' || format(call, name)) AS answer
 GROUP BY place, name, answer ORDER BY place, answer \gx
SELECT count(*) FROM idempotency.records;

-- Byte for byte: all of these are different keys.
CREATE TABLE test.key AS
    SELECT row_number() OVER () AS n, k FROM unnest(ARRAY[
        'a', 'A', 'a ', ' a', E'a\t', ' ', '  ', '0', '00', 'null', 'NULL', 'None', 'a/b', 'a//b', '/', '\', E'\n', E'a\nb', E'a\r\nb', '''', '"',
        'a%b', 'a_b', '1-1', '11', 'a b', 'ab', U&'\00E9', U&'e\0301', U&'\212B', U&'\00C5', U&'\FB01', 'fi', U&'\0001', U&'\007F', U&'a\00A0', U&'a\200B',
        U&'\+01F600', U&'\+01F601', U&'\FEFFa', U&'\202Ea', 'SELECT 1', '; DROP TABLE idempotency.outcome; --', '$1', '%s', '{"a": 1}',
        repeat('k', 1024), repeat('k', 1023) || 'l', repeat(U&'\00E9', 512), repeat('k', 1023)]) AS k;
SELECT count(*), count(DISTINCT k) FROM test.key;
BEGIN;
SELECT c.decision, count(*) FROM test.key AS k, idem_claim(k.k, to_jsonb(k.n)) AS c GROUP BY 1;
SELECT count(idem_complete(k, to_jsonb(n))) FROM test.key;
COMMIT;
SELECT c.decision, count(*), bool_and(c.result = to_jsonb(k.n)) AS own_result FROM test.key AS k, idem_claim(k.k, to_jsonb(k.n)) AS c GROUP BY 1;
SELECT count(*), bool_and(r.result = to_jsonb(k.n)) AS own_result FROM idempotency.records AS r JOIN test.key AS k ON r.key = k.k COLLATE "C";
SELECT octet_length(k) AS bytes, p.state FROM test.key, idem_peek(k) AS p WHERE octet_length(k) >= 1023 ORDER BY n;
-- 1,025 bytes in 513 characters.
SELECT test.try(format('SELECT idem_claim(%L)', repeat(U&'\00E9', 512) || 'k'));

-- Long ones that nothing compresses, as an index over the key itself could not hold them: up to the limit they work, also where they
-- differ in the last byte alone; beyond it the limit is named, whatever an index page holds.
CREATE FUNCTION test.noise(bytes int) RETURNS text LANGUAGE sql AS $$ SELECT left(string_agg(md5(g::text), '' ORDER BY g), bytes) FROM generate_series(1, bytes / 32 + 1) AS g $$;
SELECT bytes, test.try(format('SELECT idem_claim(%L, lease => %L)', test.noise(bytes), '1 hour')) AS answer FROM unnest(ARRAY[255, 1000, 1024, 1025, 2000, 2704, 2705, 8192, 100000]) AS bytes;
SELECT idem_complete(key, to_jsonb(octet_length(key)), fence => fence) FROM idempotency.records WHERE state = 'in_flight' ORDER BY octet_length(key);
SELECT bytes, c.decision, c.result FROM unnest(ARRAY[255, 1000, 1024]) AS bytes, idem_claim(test.noise(bytes)) AS c;
SELECT c.decision FROM idem_claim(test.noise(1023) || 'x', lease => '1 hour') AS c;
SELECT c.decision FROM idem_claim(test.noise(1023) || 'y', lease => '1 hour') AS c;
SELECT pg_column_size(key) > 1000 AS not_compressed FROM idempotency.records WHERE key = test.noise(1024);

-- Scope and key are two names, not one text.
SELECT idem_scope_set('x:y');
SELECT idem_scope_set('x');
SELECT idem_scope_set(repeat('s', 255));
SELECT left(s, 5) AS s, c.decision FROM (VALUES ('x:y', 'z'), ('x', 'y:z'), (repeat('s', 255), 'z')) AS v (s, k), idem_claim(v.k, to_jsonb(v.s), v.s, '1 minute') AS c;

-- Messages stay on one line whatever the names are, and cannot break out of their quotes into a second message.
SELECT idem_scope_set(E'strange\nscope "with'' all');
SELECT decision FROM idem_claim(E'line 1\nline 2\t"quoted" ''single'' \\ back', '1', E'strange\nscope "with'' all', '1 minute');
SELECT idem_claim(E'line 1\nline 2\t"quoted" ''single'' \\ back', '2', E'strange\nscope "with'' all');
\echo :SQLSTATE
SELECT test.try($$ SELECT idem_claim('k', scope => E'absent\nscope ''x') $$);
SELECT idem_scope_reset('x', E'no\nsuch');
SELECT idem_fail('k', E'no\nsuch', scope => 'x');
SELECT idem_scope_set('x', effect_kind => E'no\nsuch');
SELECT idem_scope_set('x', ignore_args => ARRAY[E'no\nsuch']);
SELECT idem_call('k', E'no\nsuch', scope => 'x');
SELECT idem_call('k', E'"no\nsuch"', scope => 'x');
SELECT idem_scope_drop(E'strange\nscope "with'' all');

-- idem_key.
SELECT idem_key('run', 'operation');
SELECT idem_key('run', 'operation', '{"b": 1, "a": 2.0}');
SELECT idem_key('run', 'operation', '{"a": 2, "b": 1}') = idem_key('run', 'operation', '{"b": 1, "a": 2.0}') AS same,
       idem_key('run', 'operation', '{"a": 2, "b": 1}') <> idem_key('run 2', 'operation', '{"a": 2, "b": 1}') AS run_counts,
       idem_key('run', 'operation', 'null') <> idem_key('run', 'operation') AS json_null_is_a_value;
-- A run may have slashes, an operation not: else two pairs could give one key.
SELECT idem_key('agent/7', 'pay');
SELECT count(DISTINCT idem_key(r, o, a)) AS keys, count(*) AS calls
  FROM (VALUES ('a', 'b', NULL::jsonb), ('a/b', 'c', NULL), ('a', 'b', '"c"'), ('a', 'b', '{}'), ('a/b', 'c', '{}'), ('A', 'b', NULL)) AS v (r, o, a);
SELECT call, test.try('SELECT ' || call) AS answer FROM unnest(ARRAY[
    $$idem_key('run', 'a/b')$$, $$idem_key('a', 'b/c')$$, $$idem_key('', 'o')$$, $$idem_key('run', '')$$, $$idem_key(NULL, 'o')$$, $$idem_key('run', NULL)$$,
    $$idem_key('run', repeat('0', 32))$$, $$idem_key('run', 'b60957fb179e56a95b9db68a6ede4527')$$, $$idem_key('run', repeat('0', 31))$$, $$idem_key('run', repeat('A', 32))$$,
    $$idem_key(repeat('r', 1022), 'o')$$, $$idem_key(repeat('r', 1023), 'o')$$, $$idem_key(repeat('r', 1025), 'o')$$,
    $$idem_key(repeat('r', 989), 'o', '1')$$, $$idem_key(repeat('r', 990), 'o', '1')$$]) AS call;
