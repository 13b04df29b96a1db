-- A reconciler gains nothing, leaves nothing behind and outlives no time limit.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

CREATE ROLE regress_hostile;
GRANT CREATE ON SCHEMA idempotency, test TO regress_hostile;
\set out 'OUT verdict text, OUT result jsonb, OUT evidence jsonb'
CREATE PROCEDURE test.doubt(of_key text, of_scope text) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM idem_fail(of_key, 'unknown', scope => of_scope) FROM idem_claim(of_key, scope => of_scope);
END $$;

-- It runs with the rights of the scope's owner, so whoever owns it must have them: another's function under the same
-- name gains nothing. Goes red where the function is found by its name alone.
CREATE FUNCTION test.reader(key text, args jsonb, first_claimed_at timestamptz, :out) LANGUAGE sql AS $$ SELECT 'applied', '1'::jsonb, NULL::jsonb $$;
SELECT idem_scope_set('trusting', reconciler => 'test.reader', backoff => '1 hour');
DROP FUNCTION test.reader(text, jsonb, timestamptz);
SET ROLE regress_hostile;
CREATE FUNCTION test.reader(key text, args jsonb, first_claimed_at timestamptz, :out) LANGUAGE plpgsql AS $$
BEGIN EXECUTE 'ALTER ROLE regress_hostile SUPERUSER'; verdict := 'applied'; END $$;
RESET ROLE;
CALL test.doubt('k', 'trusting');
SELECT * FROM idem_reconcile('k', scope => 'trusting');
SELECT rolsuper FROM pg_roles WHERE rolname = 'regress_hostile';
SELECT evidence FROM idempotency.unresolved WHERE key = 'k';
SELECT test.try($$ SELECT idem_scope_set('trusting', reconciler => 'test.reader') $$);
DROP FUNCTION test.reader(text, jsonb, timestamptz);
SELECT verdict, state FROM idem_reconcile('k', scope => 'trusting');

-- It is a read: its claims, settings, locks and writes are undone, and its caller's transaction goes on.
SET ROLE regress_hostile;
CREATE FUNCTION test.litters(key text, args jsonb, first_claimed_at timestamptz, :out) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM public.idem_claim('left open', scope => 'hostile');
    PERFORM pg_advisory_xact_lock(424242);
    SET CONSTRAINTS ALL IMMEDIATE;
    verdict := 'applied';
    result := '{"seen": true}';
END $$;
SELECT idem_scope_set('hostile', reconciler => 'test.litters', backoff => '1 hour');
RESET ROLE;
CREATE TABLE test.fired (role text);
GRANT INSERT ON test.fired TO PUBLIC;
CREATE TABLE test.watched (n int);
CREATE FUNCTION test.fires() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO test.fired VALUES (CASE WHEN current_user = session_user THEN 'caller' ELSE current_user END); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER fires AFTER INSERT ON test.watched DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION test.fires();
CALL test.doubt('l', 'hostile');
BEGIN;
INSERT INTO test.watched VALUES (1);
SELECT * FROM idem_reconcile('l', scope => 'hostile');
SELECT count(*) AS fired FROM test.fired;
SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory' AND objid = 424242;
COMMIT;
-- Deferred, and as the caller.
SELECT role FROM test.fired;
SELECT state FROM idem_peek('left open', 'hostile');

-- It has no other key reconciled: that would take its time limit away. Goes red without the refusal, after 20 s.
SET ROLE regress_hostile;
CREATE FUNCTION test.quick(key text, args jsonb, first_claimed_at timestamptz, :out) LANGUAGE sql AS $$ SELECT 'applied', '1'::jsonb, NULL::jsonb $$;
CREATE FUNCTION test.nests(key text, args jsonb, first_claimed_at timestamptz, :out) LANGUAGE plpgsql AS $$
BEGIN
    BEGIN
        PERFORM public.idem_reconcile('inner', scope => 'inner');
    EXCEPTION WHEN OTHERS THEN
        evidence := to_jsonb(SQLSTATE || ' ' || SQLERRM);
        verdict := 'unknown';
        RETURN;
    END;
    PERFORM pg_sleep(20);
    verdict := 'applied';
END $$;
SELECT idem_scope_set('inner', reconciler => 'test.quick', backoff => '1 hour');
SELECT idem_scope_set('hostile', reconciler => 'test.nests');
RESET ROLE;
SET idempotency.reconcile_timeout = '200ms';
CALL test.doubt('inner', 'inner');
CALL test.doubt('n', 'hostile');
SELECT * FROM idem_reconcile('n', scope => 'hostile');
SELECT evidence FROM idempotency.unresolved WHERE key = 'n';
-- The refusal ends with it.
SELECT * FROM idem_reconcile('inner', scope => 'inner');

-- A time limit that comes in code without interrupt checks cancels nothing that comes after.
SET ROLE regress_hostile;
CREATE FUNCTION test.deaf(key text, args jsonb, first_claimed_at timestamptz, :out) LANGUAGE plpgsql AS $$
BEGIN PERFORM (repeat('[1],', 10000000) || 'x')::json; verdict := 'applied'; END $$;
SELECT idem_scope_set('hostile', reconciler => 'test.deaf');
RESET ROLE;
SET idempotency.reconcile_timeout = '1ms';
CALL test.doubt('d', 'hostile');
SELECT verdict, state FROM idem_reconcile('d', scope => 'hostile');
RESET idempotency.reconcile_timeout;

DELETE FROM idempotency.claim; DELETE FROM idempotency.outcome;
SELECT idem_scope_drop(s) FROM unnest(ARRAY['trusting', 'hostile', 'inner']) AS s;
REVOKE CREATE ON SCHEMA idempotency FROM regress_hostile;
DROP SCHEMA test CASCADE;
DROP ROLE regress_hostile;
