-- Claims and transactions: COMMIT with a claim left open, savepoints, exception blocks, procedures, cursors.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- A transactional claim must be finished before COMMIT, autocommit included; the refused transaction leaves nothing.
CREATE TABLE test.effect (key text);
SELECT idem_claim('auto');
\echo :SQLSTATE
BEGIN;
INSERT INTO test.effect VALUES ('forgotten');
SELECT decision FROM idem_claim('forgotten');
COMMIT;
\echo :SQLSTATE
BEGIN;
SELECT decision FROM idem_claim('chained');
COMMIT AND CHAIN;
\echo :SQLSTATE
SELECT count(*) FROM test.effect;
BEGIN;
SELECT decision FROM idem_claim('released');
SELECT idem_release('released');
SELECT decision FROM idem_claim('failed');
SELECT idem_fail('failed', 'not_applied');
SELECT decision FROM idem_claim('completed');
SELECT idem_complete('completed', '1');
SELECT decision FROM idem_claim('leased', lease => '1 hour');
COMMIT;
SELECT k, state FROM unnest(ARRAY['auto', 'forgotten', 'chained', 'released', 'failed', 'completed', 'leased']) AS k, idem_peek(k);
-- Nothing is remembered from one transaction to the next.
BEGIN;
SELECT :claim('forgotten');
SELECT idem_complete('forgotten', '1');
COMMIT;
SELECT test.try($$ SELECT idem_complete('auto') $$);
-- A deferred trigger is still in time.
CREATE FUNCTION test.finish() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM idem_complete(NEW.key, '"deferred"'); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER finish AFTER INSERT ON test.effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION test.finish();
BEGIN;
SELECT decision FROM idem_claim('deferred');
INSERT INTO test.effect VALUES ('deferred');
COMMIT;
SELECT result FROM idem_claim('deferred');
DROP TRIGGER finish ON test.effect;
-- What is claimed while COMMIT runs is seen too.
BEGIN;
DECLARE held CURSOR WITH HOLD FOR SELECT decision FROM idem_claim('by a cursor');
COMMIT;
\echo :SQLSTATE

-- Savepoints. What was made inside goes with it.
BEGIN;
SAVEPOINT a;
SELECT decision FROM idem_claim('made inside');
SELECT decision FROM idem_claim('made inside, leased', lease => '1 hour');
INSERT INTO test.effect VALUES ('made inside');
ROLLBACK TO a;
SELECT :claim('made inside');
SELECT :claim('made inside, leased', lease => '1 hour');
SELECT idem_complete('made inside', '1');
COMMIT;
SELECT k, state FROM unnest(ARRAY['made inside', 'made inside, leased']) AS k, idem_peek(k);
-- What was finished inside is open again.
BEGIN;
SELECT decision, fence FROM idem_claim('finished inside', '7') \gset
SAVEPOINT a;
SELECT idem_complete('finished inside', '"inside"');
SELECT decision, result FROM idem_claim('finished inside', '7');
ROLLBACK TO a;
SELECT :claim('finished inside', '7');
SELECT left(test.try($$ SELECT idem_claim('finished inside', '8') $$), 5) AS sqlstate;
SAVEPOINT b;
SELECT idem_release('finished inside');
ROLLBACK TO b;
SELECT idem_fail('finished inside', 'unknown');
ROLLBACK TO b;
SELECT idem_complete('finished inside', '"outside"', fence => :fence);
COMMIT;
SELECT result FROM idem_claim('finished inside', '7');
-- Open again at COMMIT is left open.
BEGIN;
SELECT decision FROM idem_claim('reopened');
SAVEPOINT a;
SELECT idem_complete('reopened');
ROLLBACK TO a;
COMMIT;
\echo :SQLSTATE
-- What was released inside a savepoint that stays is released.
BEGIN;
SAVEPOINT a;
SELECT decision FROM idem_claim('nested');
SAVEPOINT b;
SELECT idem_complete('nested', '1');
RELEASE b;
SELECT decision FROM idem_claim('nested 2');
RELEASE a;
SELECT decision FROM idem_claim('nested');
SELECT idem_complete('nested 2', '2');
COMMIT;
SELECT k, result FROM unnest(ARRAY['nested', 'nested 2']) AS k, idem_claim(k);
-- Claimed in a savepoint that stays, finished in one that does not.
BEGIN;
SAVEPOINT a;
SELECT decision FROM idem_claim('deeper');
RELEASE a;
SAVEPOINT b;
SAVEPOINT c;
SELECT idem_complete('deeper', '"gone"');
RELEASE c;
ROLLBACK TO b;
SELECT decision, reason FROM idem_claim('deeper');
SELECT idem_complete('deeper', '"stays"');
COMMIT;
SELECT result FROM idem_claim('deeper');
-- Claimed in a savepoint that stays, inside one that does not.
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SELECT decision FROM idem_claim('stays inside');
RELEASE b;
ROLLBACK TO a;
SELECT decision FROM idem_claim('stays inside');
ROLLBACK TO a;
COMMIT;
SELECT state FROM idem_peek('stays inside');
-- Failed and claimed anew inside: what is undone leaves the claim before it.
BEGIN;
SELECT decision FROM idem_claim('claimed anew');
SAVEPOINT a;
SELECT idem_fail('claimed anew', 'not_applied');
SELECT decision FROM idem_claim('claimed anew');
ROLLBACK TO a;
SELECT idem_complete('claimed anew', '"the first"');
COMMIT;
SELECT result FROM idem_claim('claimed anew');
-- A leased claim, committed, finished in a savepoint that is rolled back: its owner still can.
SELECT fence FROM idem_claim('leased 2', lease => '1 hour') \gset
BEGIN;
SAVEPOINT a;
SELECT idem_complete('leased 2', '1', fence => :fence);
ROLLBACK TO a;
SELECT decision FROM idem_claim('leased 2');
SELECT idem_renew('leased 2', '1 hour', fence => :fence) > clock_timestamp() AS renewed;
ROLLBACK;
SELECT idem_complete('leased 2', '2', fence => :fence);
-- A leased claim of this transaction, rolled back with its savepoint, was not made in this transaction.
SELECT idem_scope_set('external');
BEGIN;
SAVEPOINT a;
SELECT decision FROM idem_claim('l', scope => 'external', lease => '1 hour');
ROLLBACK TO a;
SELECT decision FROM idem_claim('l', scope => 'external');
SELECT idem_complete('l', '1', 'external');
COMMIT;
-- Renewed or changed in a savepoint that was rolled back, it still was.
BEGIN;
SELECT fence FROM idem_claim('m', scope => 'external', lease => '1 hour') \gset
SAVEPOINT a;
SELECT idem_release('m', 'external', :fence);
ROLLBACK TO a;
SELECT left(test.try(format($$ SELECT idem_complete('m', '1', 'external', %s) $$, :fence)), 5) AS sqlstate;
ROLLBACK;

-- A lost fence takes the effect with it.
SELECT fence FROM idem_claim('lost', lease => '1 minute') \gset
CALL test.age('lost', '1 hour');
SELECT decision FROM idem_claim('lost', lease => '1 minute');
BEGIN;
INSERT INTO test.effect VALUES ('lost');
SELECT idem_complete('lost', fence => :fence);
\echo :SQLSTATE
COMMIT;
SELECT count(*) FROM test.effect WHERE key = 'lost';
-- Unless somebody catches the error, and commits: the effect stays, the record is the newer owner's.
BEGIN;
INSERT INTO test.effect VALUES ('lost');
SAVEPOINT a;
SELECT idem_complete('lost', '"late"', fence => :fence);
\echo :SQLSTATE
ROLLBACK TO a;
COMMIT;
SELECT count(*), state, result FROM test.effect, idem_peek('lost') WHERE test.effect.key = 'lost' GROUP BY state, result;

-- Exception blocks are savepoints.
DO $$
DECLARE c record;
BEGIN
    SELECT * INTO c FROM idem_claim('do');
    ASSERT c.decision = 'execute';
    BEGIN
        INSERT INTO test.effect VALUES ('do');
        PERFORM idem_complete('do', '1');
        RAISE division_by_zero;
    EXCEPTION WHEN division_by_zero THEN
        PERFORM idem_fail('do', 'not_applied', SQLERRM);
    END;
    BEGIN
        SELECT * INTO c FROM idem_claim('do');
        ASSERT c.decision = 'execute' AND c.attempt = 2, c.decision;
        RAISE division_by_zero;
    EXCEPTION WHEN division_by_zero THEN
        SELECT * INTO c FROM idem_claim('do');
        ASSERT c.decision = 'execute' AND c.attempt = 2, c.decision;
        PERFORM idem_complete('do', '2');
    END;
    BEGIN
        PERFORM idem_complete('absent');
    EXCEPTION WHEN SQLSTATE 'ID004' THEN
        NULL;
    END;
    BEGIN
        PERFORM idem_claim('do', '"other"');
    EXCEPTION WHEN SQLSTATE 'ID001' THEN
        NULL;
    END;
END
$$;
SELECT count(*) FROM test.effect WHERE key = 'do';
SELECT result FROM idem_claim('do');

-- Procedures commit on their own; each of their transactions stands for itself.
CREATE PROCEDURE test.work(keys text[], forget bool) LANGUAGE plpgsql AS $$
DECLARE k text; c record;
BEGIN
    FOREACH k IN ARRAY keys LOOP
        SELECT * INTO c FROM idem_claim(k);
        IF c.decision = 'execute' AND NOT forget THEN
            INSERT INTO test.effect VALUES (k);
            PERFORM idem_complete(k);
        END IF;
        COMMIT;
    END LOOP;
END
$$;
CALL test.work(ARRAY['p1', 'p2', 'p1'], false);
CALL test.work(ARRAY['p2', 'p3', 'p4'], true);
SELECT key, count(*) FROM test.effect WHERE key LIKE 'p_' GROUP BY key ORDER BY key;
SELECT k, state FROM unnest(ARRAY['p1', 'p2', 'p3', 'p4']) AS k, idem_peek(k);

-- A cursor that claims, read in part, in a savepoint that is rolled back.
BEGIN;
SAVEPOINT a;
DECLARE c CURSOR FOR SELECT k, decision FROM unnest(ARRAY['c1', 'c2', 'c3']) AS k, LATERAL idem_claim(k);
FETCH 2 FROM c;
ROLLBACK TO a;
SELECT count(*) AS locks_kept FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SELECT decision FROM idem_claim('c1');
ROLLBACK;

-- Locks: kept to the end of the transaction by who owns, given back by who was only answered.
BEGIN;
SELECT decision FROM idem_claim('completed');
SELECT decision FROM idem_claim('leased');
SELECT left(test.try($$ SELECT idem_claim('completed', '"other"') $$), 5) AS sqlstate;
SELECT count(*) AS locks_kept FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SELECT decision FROM idem_claim('owned');
SELECT decision FROM idem_claim('owned');
SELECT count(*) AS locks_kept FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SELECT idem_release('owned');
SELECT count(*) AS locks_kept FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
COMMIT;
SELECT count(*) AS locks_kept FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();

-- How many keys one transaction may hold.
BEGIN;
SET LOCAL idempotency.max_claims_per_transaction = 3;
SELECT count(idem_claim(k)) FROM unnest(ARRAY['x1', 'x2', 'x3']) AS k;
SELECT test.try($$ SELECT idem_claim('x4') $$);
SELECT test.try($$ SELECT idem_claim_many(ARRAY['x4']) $$);
SELECT left(test.try(format($$ SELECT idem_fail('lost', 'unknown', fence => %s) $$, (SELECT fence FROM idem_peek('lost')))), 5) AS sqlstate;
-- Answers, and ending what is held, need no more room.
SELECT decision FROM idem_claim('completed');
SELECT decision FROM idem_claim('x1');
SELECT count(idem_complete(k, '1')) FROM unnest(ARRAY['x1', 'x2', 'x3']) AS k;
COMMIT;
BEGIN;
SET LOCAL idempotency.max_claims_per_transaction = 3;
SELECT test.try($$ SELECT idem_claim_many(ARRAY['y1', 'y2', 'y3', 'y4']) $$);
SELECT count(*) FROM idem_claim_many(ARRAY['y1', 'y2', 'y3']);
ROLLBACK;
-- The same key again and again is one key.
BEGIN;
SET LOCAL idempotency.max_claims_per_transaction = 2;
DO $$
DECLARE c record;
BEGIN
    FOR i IN 1 .. 5 LOOP
        SELECT * INTO c FROM idem_claim('again');
        ASSERT c.decision = 'execute', c.decision;
        PERFORM idem_release('again');
    END LOOP;
END
$$;
COMMIT;

-- Other isolation levels, alone.
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT decision FROM idem_claim('serializable');
SELECT idem_complete('serializable', '1');
SELECT decision FROM idem_claim('serializable');
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT decision, result FROM idem_claim('serializable');
SAVEPOINT a;
SELECT fence FROM idem_claim('repeatable', lease => '1 minute') \gset
RELEASE a;
SELECT decision FROM idem_claim('repeatable');
SELECT idem_release('repeatable', fence => :fence);
SELECT decision FROM idem_claim('repeatable');
SELECT idem_complete('repeatable');
COMMIT;
