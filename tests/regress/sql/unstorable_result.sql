-- A result that cannot be stored, after the effect has committed: the key stays claimed, the failure frees nothing, and the
-- same fence can still complete, with a result that can be stored.
--
-- Goes red if a failing completion gave the key back, or moved its fence on (engine/finish.rs), or left its row half done.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

CREATE TABLE test.effect (key text);
-- Tries to complete with each of these, in transactions of their own.
CREATE TABLE test.unstorable (name text, result text);
INSERT INTO test.unstorable VALUES ('NUL', $$'{"o": "\u0000"}'$$), ('half a pair', $$'{"o": "\ud83d"}'$$), ('no JSON', $$'{"o": '$$),
    ('too large', $$to_jsonb(repeat('x', 70000))$$), ('refused by the table', $$'"by law"'$$);
CREATE FUNCTION test.refuses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.result = '"by law"' THEN RAISE EXCEPTION 'not here' USING ERRCODE = '23514'; END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER refuses BEFORE INSERT ON idempotency.outcome FOR EACH ROW EXECUTE FUNCTION test.refuses();

-- Leased: claimed and committed, the effect committed, and then the completion fails.
SELECT decision, attempt, fence FROM idem_claim('paid', '{"amount": 5}', lease => '1 hour') \gset
\echo :decision :attempt
INSERT INTO test.effect VALUES ('paid');
SELECT name, left(test.try(format('SELECT idem_complete(%L, %s, fence => %s)', 'paid', result, :fence)), 5) AS sqlstate FROM test.unstorable;
SELECT state, attempt, fence = :fence AS same_fence FROM idem_peek('paid');
SELECT test.try(format('SELECT idem_complete(%L, %s, fence => %s)', 'paid', $$to_jsonb(repeat('x', 70000))$$, :fence));
-- As statements of their own, not in a block that catches.
SELECT idem_complete('paid', '{"o": "\u0000"}', fence => :fence);
\echo :SQLSTATE
SELECT idem_complete('paid', to_jsonb(repeat('x', 70000)), fence => :fence);
\echo :SQLSTATE
SELECT idem_complete('paid', '"by law"', fence => :fence);
\echo :SQLSTATE
SELECT state, attempt, fence = :fence AS same_fence FROM idem_peek('paid');
-- Nobody else is told to execute, now or after the lease.
SELECT :claim('paid', '{"amount": 5}', lease => '1 hour');
SELECT left(test.try($$ SELECT idem_once('paid', 'SELECT 1/0', '{"amount": 5}') $$), 5) AS once;
CALL test.age('paid', '2 hours');
BEGIN;
SELECT :claim('paid', '{"amount": 5}', lease => '1 hour');
ROLLBACK;
CALL idempotency.sweep();
SELECT state, attempt, fence = :fence AS same_fence FROM idem_peek('paid');
SELECT name, left(test.try(format('SELECT idem_complete(%L, %s, fence => %s)', 'paid', result, :fence)), 5) AS sqlstate FROM test.unstorable;
SELECT state FROM idem_peek('paid');
-- The same fence completes.
SELECT idem_complete('paid', '{"receipt": 1}', fence => :fence);
SELECT :claim('paid', '{"amount": 5}', lease => '1 hour');
SELECT count(*) FROM test.effect;

-- The same with a final failure, and with several keys: all or none.
SELECT fence FROM idem_claim('refused', lease => '1 hour') \gset
SELECT name, left(test.try(format('SELECT idem_fail(%L, %L, result => %s, fence => %s)', 'refused', 'rejected', result, :fence)), 5) AS sqlstate FROM test.unstorable;
SELECT state FROM idem_peek('refused');
SELECT idem_fail('refused', 'rejected', 'closed', '{"code": 1}', fence => :fence);
SELECT :claim('refused');
CREATE TABLE test.many AS SELECT ord, key, fence FROM idem_claim_many(ARRAY['m1', 'm2', 'm3'], lease => '1 hour');
SELECT left(test.try($$ SELECT idem_complete_many(array_agg(key ORDER BY ord), ARRAY['1', '"by law"', '3']::jsonb[], fences => array_agg(fence ORDER BY ord)) FROM test.many $$), 5) AS sqlstate;
SELECT key, state FROM unnest(ARRAY['m1', 'm2', 'm3']) AS key, idem_peek(key);
SELECT (idem_complete_many(array_agg(key ORDER BY ord), ARRAY['1', '2', '3']::jsonb[], fences => array_agg(fence ORDER BY ord))).* FROM test.many;

-- Transactional: the effect goes with the failure, and the next caller executes.
BEGIN;
SELECT decision FROM idem_claim('local');
INSERT INTO test.effect VALUES ('local');
SELECT idem_complete('local', to_jsonb(repeat('x', 70000)));
\echo :SQLSTATE
COMMIT;
SELECT test.try($$ SELECT idem_once('local', 'INSERT INTO test.effect VALUES (''local'') RETURNING to_jsonb(repeat(''x'', 70000))') $$);
SELECT state FROM idem_peek('local');
SELECT result, replayed FROM idem_once('local', 'INSERT INTO test.effect VALUES (''local'') RETURNING to_jsonb(key)');
-- In a savepoint: the claim is open as before, and can be finished with another result.
BEGIN;
SELECT decision FROM idem_claim('saved');
INSERT INTO test.effect VALUES ('saved');
SAVEPOINT a;
SELECT idem_complete('saved', '{"o": "\u0000"}');
ROLLBACK TO a;
SELECT idem_complete('saved', '"by law"');
ROLLBACK TO a;
SELECT idem_complete('saved', '"stored"');
COMMIT;
SELECT :claim('saved');
SELECT key, count(*) FROM test.effect GROUP BY key ORDER BY key;
DROP TRIGGER refuses ON idempotency.outcome;
