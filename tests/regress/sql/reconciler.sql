-- The paired read inside the database: idem_reconcile calls the scope's reconciler, as the scope's owner and as nobody
-- else, and resolves the key with its answer. Whatever the function does, the key is safe.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
TRUNCATE idempotency.message, idempotency.event;
\set ECHO all

CREATE ROLE regress_owner;
CREATE ROLE regress_worker;
CREATE ROLE regress_stranger;
GRANT CREATE ON SCHEMA idempotency TO regress_owner;
GRANT CREATE ON SCHEMA test TO regress_owner, regress_worker;
-- What the other system would answer: reconcilers read it.
CREATE TABLE test.bank (key text, verdict text, result jsonb, evidence jsonb);
GRANT SELECT ON test.bank TO regress_owner;
SET ROLE regress_owner;
CREATE FUNCTION test.read_bank(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE sql AS $$
    SELECT b.verdict, b.result, b.evidence FROM test.bank AS b WHERE b.key = $1
$$;
-- The backoff is long, so that no background worker reads by itself while this runs.
SELECT idem_scope_set('pay', backoff => '1 hour', max_backoff => '1 day', max_reconciles => 3, reconciler => 'test.read_bank');
SELECT idem_scope_grant('pay', 'regress_worker');
RESET ROLE;
SELECT reconciler FROM idempotency.scopes WHERE scope = 'pay';
-- A key whose outcome is unknown, in one transaction.
CREATE PROCEDURE test.doubt(of_key text, args jsonb DEFAULT NULL) LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM idempotency.claim WHERE key = of_key;
    DELETE FROM idempotency.outcome WHERE key = of_key;
    PERFORM idem_fail(of_key, 'unknown', 'timeout', scope => 'pay') FROM idem_claim(of_key, args, 'pay') AS c;
END
$$;

-- Every verdict.
INSERT INTO test.bank VALUES ('applied', 'applied', '{"id": 1}', '{"row": 1}'), ('rejected', 'rejected', '{"code": 5}', '{"row": 2}'), ('not_applied', 'not_applied', NULL, '{"row": 3}'),
    ('unknown', 'unknown', NULL, '{"row": 4}'), ('bare', 'applied', NULL, NULL);
CALL test.doubt('applied'); CALL test.doubt('rejected'); CALL test.doubt('not_applied'); CALL test.doubt('unknown'); CALL test.doubt('bare');
SELECT b.key, r.* FROM (SELECT key FROM test.bank ORDER BY key) AS b, idem_reconcile(b.key, scope => 'pay') AS r;
SELECT b.key, p.state, p.attempt, p.result, p.reason FROM test.bank AS b, idem_peek(b.key, 'pay') AS p ORDER BY b.key;
SELECT key, state, reconciles, reason, evidence FROM idempotency.unresolved;
SELECT key, to_state, evidence, role = current_user::regrole AS mine FROM idempotency.events WHERE from_state <> 'in_flight' OR to_state <> 'unknown' ORDER BY key, happened_at;
-- Once more: not in doubt any more, so nothing is asked; the unknown one is asked again, until a human is.
SELECT b.key, r.* FROM (SELECT key FROM test.bank ORDER BY key) AS b, idem_reconcile(b.key, scope => 'pay') AS r;
SELECT * FROM idem_reconcile('unknown', scope => 'pay');
SELECT state, reconciles, evidence FROM idempotency.unresolved WHERE key = 'unknown';
-- What is not in doubt: verdict NULL, and the state.
SELECT decision FROM idem_claim('live', scope => 'pay', lease => '1 hour');
SELECT decision FROM idem_enqueue('queued', 'd', '1', scope => 'pay');
SELECT key, r.* FROM unnest(ARRAY['absent', 'live', 'queued']) AS key, idem_reconcile(key, scope => 'pay') AS r;
-- A lease that is over.
INSERT INTO test.bank VALUES ('over', 'applied', '7', NULL);
SELECT fence FROM idem_claim('over', scope => 'pay', lease => '1 minute') \gset
CALL test.age('over', '1 hour', 'pay');
SELECT * FROM idem_reconcile('over', scope => 'pay');
SELECT test.try(format($$ SELECT idem_complete('over', '8', 'pay', %s) $$, :fence));

-- What it is told: the key, the arguments where the caller gives them, when it was first claimed. It says so in its evidence.
SET ROLE regress_owner;
CREATE FUNCTION test.told(k text, a jsonb, t timestamptz) RETURNS TABLE (verdict text, result jsonb, evidence jsonb) LANGUAGE sql AS $$
    SELECT 'unknown', NULL::jsonb, jsonb_build_object('key', k, 'args', a, 'lately', t > now() - interval '1 minute', 'current_user', current_user, 'session_user_is_owner', session_user = 'regress_owner',
                                          'search_path', current_setting('search_path'), 'read_only', current_setting('transaction_read_only'))
$$;
SELECT idem_scope_set('pay', reconciler => 'test.told', max_reconciles => 1000);
RESET ROLE;
CALL test.doubt('told', '{"amount": 1}');
SELECT * FROM idem_reconcile('told', scope => 'pay');
SELECT evidence FROM idempotency.unresolved WHERE key = 'told';
SELECT * FROM idem_reconcile('told', '{"amount": 1.0}', 'pay');
SELECT evidence FROM idempotency.unresolved WHERE key = 'told';
SELECT test.try($$ SELECT * FROM idem_reconcile('told', '{"amount": 2}', 'pay') $$);
SELECT reconciles FROM idempotency.unresolved WHERE key = 'told';
-- Of a message: its payload.
SELECT fence, key FROM idem_dispatch('d', 1, '1 hour') \gset
SELECT idem_fail('queued', 'unknown', 'reset', scope => 'pay', fence => :fence);
SELECT * FROM idem_reconcile('queued', scope => 'pay');
SELECT evidence -> 'args' AS args, state FROM idempotency.unresolved WHERE key = 'queued';
-- The caller's identity is back afterwards; a role with a grant may ask, a stranger may not.
SELECT current_user = session_user AS as_before, current_setting('search_path') AS search_path;
SET ROLE regress_worker;
SELECT * FROM idem_reconcile('told', scope => 'pay');
SELECT current_user, current_setting('search_path') AS search_path;
SELECT evidence ->> 'current_user' AS ran_as FROM idempotency.unresolved WHERE key = 'told';
SELECT role FROM idempotency.events WHERE key = 'told' ORDER BY happened_at DESC LIMIT 1;
SET ROLE regress_stranger;
SELECT test.try($$ SELECT * FROM idem_reconcile('told', scope => 'pay') $$);
RESET ROLE;

-- A caller with a hostile search_path: nothing of it is called, neither by name nor inside the function.
CREATE SCHEMA regress_hostile;
GRANT ALL ON SCHEMA regress_hostile TO regress_worker;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA test TO PUBLIC;
SET ROLE regress_worker;
CREATE TABLE regress_hostile.stolen (as_whom text);
GRANT INSERT ON regress_hostile.stolen TO PUBLIC;
CREATE FUNCTION regress_hostile.steal() RETURNS void LANGUAGE sql AS $$ INSERT INTO regress_hostile.stolen VALUES (current_user) $$;
-- Unqualified as the scope has it, and as the reconciler's body might say it; in a schema, and in pg_temp.
CREATE FUNCTION regress_hostile.read_bank(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE sql AS $$
    SELECT regress_hostile.steal(); SELECT 'applied'::text, '"stolen"'::jsonb, NULL::jsonb $$;
CREATE FUNCTION regress_hostile.upper(text) RETURNS text LANGUAGE sql AS $$ SELECT regress_hostile.steal(); SELECT 'x' $$;
CREATE FUNCTION pg_temp.read_bank(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE sql AS $$
    SELECT regress_hostile.steal(); SELECT 'applied'::text, '"stolen"'::jsonb, NULL::jsonb $$;
CREATE FUNCTION pg_temp.upper(text) RETURNS text LANGUAGE sql AS $$ SELECT regress_hostile.steal(); SELECT 'x' $$;
CREATE FUNCTION pg_temp.helper(text) RETURNS text LANGUAGE sql AS $$ SELECT regress_hostile.steal(); SELECT 'x' $$;
CREATE TEMP TABLE bank (key text, verdict text, result jsonb, evidence jsonb);
INSERT INTO bank VALUES ('hostile', 'applied', '"stolen"', NULL);
RESET ROLE;
SET ROLE regress_owner;
CREATE FUNCTION test.read_upper(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE plpgsql AS $$
BEGIN verdict := 'unknown'; evidence := to_jsonb(upper('read')); END $$;
SELECT idem_scope_set('pay', reconciler => 'test.read_upper');
RESET ROLE;
CALL test.doubt('hostile');
SET ROLE regress_worker;
SET search_path = regress_hostile, pg_temp, pg_catalog, public;
SELECT * FROM public.idem_reconcile('hostile', scope => 'pay');
SELECT evidence FROM idempotency.unresolved WHERE key = 'hostile';
RESET search_path;
RESET ROLE;
-- A name without a schema is looked for in pg_catalog and nowhere else.
SET ROLE regress_owner;
SELECT test.try($$ SELECT idem_scope_set('pay', reconciler => 'read_bank') $$);
SET ROLE regress_worker;
SET search_path = regress_hostile, pg_temp, pg_catalog, public;
SELECT * FROM public.idem_reconcile('hostile', scope => 'pay');
SELECT state, result FROM public.idem_peek('hostile', 'pay');
SELECT evidence FROM idempotency.unresolved WHERE key = 'hostile';
RESET search_path;
RESET ROLE;
SELECT * FROM regress_hostile.stolen;

-- In a security-restricted operation: the function of the scope's owner cannot change who the caller is, nor leave traps.
CREATE FUNCTION test.reset_role(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE plpgsql AS $$
BEGIN RESET ROLE; verdict := 'applied'; result := to_jsonb(current_user); END $$;
CREATE FUNCTION test.set_session(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE plpgsql AS $$
BEGIN EXECUTE 'SET SESSION AUTHORIZATION DEFAULT'; verdict := 'applied'; result := to_jsonb(current_user); END $$;
CREATE FUNCTION test.temp_table(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE plpgsql AS $$
BEGIN CREATE TEMP TABLE trap (a int); verdict := 'applied'; END $$;
CREATE FUNCTION test.declare_cursor(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE plpgsql AS $$
BEGIN EXECUTE 'DECLARE trap CURSOR WITH HOLD FOR SELECT 1'; verdict := 'applied'; END $$;
-- Failures of every sort: each counts as unknown, with the error as evidence.
CREATE FUNCTION test.raises(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'bank says no' USING ERRCODE = 'PT402', DETAIL = 'a detail', HINT = 'a hint'; END $$;
CREATE FUNCTION test.raises_ours(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'as if' USING ERRCODE = 'ID003'; END $$;
CREATE FUNCTION test.divides(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE sql AS $$ SELECT 'applied'::text, to_jsonb(1 / 0), NULL::jsonb $$;
CREATE FUNCTION test.no_row(key text, args jsonb, first_claimed_at timestamptz) RETURNS TABLE (verdict text, result jsonb, evidence jsonb) LANGUAGE sql AS $$ SELECT 'applied'::text, NULL::jsonb, NULL::jsonb WHERE false $$;
CREATE FUNCTION test.two_rows(key text, args jsonb, first_claimed_at timestamptz) RETURNS TABLE (verdict text, result jsonb, evidence jsonb) LANGUAGE sql AS $$ SELECT v, NULL::jsonb, NULL::jsonb FROM unnest(ARRAY['applied', 'not_applied']) AS v $$;
CREATE FUNCTION test.null_verdict(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE sql AS $$ SELECT NULL::text, '1'::jsonb, NULL::jsonb $$;
CREATE FUNCTION test.wrong_verdict(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE sql AS $$ SELECT 'completed'::text, '1'::jsonb, '"seen"'::jsonb $$;
CREATE FUNCTION test.result_of_nothing(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE sql AS $$ SELECT 'not_applied'::text, '1'::jsonb, NULL::jsonb $$;
CREATE FUNCTION test.large_result(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE sql AS $$ SELECT 'applied'::text, to_jsonb(repeat('x', 65536)), NULL::jsonb $$;
CREATE FUNCTION test.other_columns(key text, args jsonb, first_claimed_at timestamptz) RETURNS TABLE (a int, b int, c int) LANGUAGE sql AS $$ SELECT 1, 2, 3 $$;
CREATE FUNCTION test.two_columns(key text, args jsonb, first_claimed_at timestamptz) RETURNS TABLE (verdict text, result jsonb) LANGUAGE sql AS $$ SELECT 'applied'::text, '1'::jsonb $$;
CREATE FUNCTION test.scalar(key text, args jsonb, first_claimed_at timestamptz) RETURNS text LANGUAGE sql AS $$ SELECT 'applied'::text $$;
CREATE FUNCTION test.other_arguments(key text, args jsonb, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE sql AS $$ SELECT 'applied'::text, '1'::jsonb, NULL::jsonb $$;
CREATE FUNCTION test.secret(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE sql AS $$ SELECT 'applied'::text, '1'::jsonb, NULL::jsonb $$;
REVOKE ALL ON FUNCTION test.secret FROM PUBLIC;
CREATE FUNCTION test.forbidden(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE sql AS $$ SELECT 'applied'::text, to_jsonb(c.key), NULL::jsonb FROM idempotency.claim AS c LIMIT 1 $$;
CREATE FUNCTION test.commits(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE plpgsql AS $$ BEGIN COMMIT; verdict := 'applied'; END $$;
CREATE FUNCTION test.sleeps(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(50); verdict := 'applied'; END $$;
CREATE FUNCTION test.sleeps_on(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_sleep(50); EXCEPTION WHEN OTHERS THEN verdict := 'applied'; END $$;
-- Calls us again: with its own key it waits for nobody, and finishes nothing.
CREATE FUNCTION test.calls_us(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE plpgsql AS $$
BEGIN SELECT to_jsonb(c.decision) INTO evidence FROM public.idem_claim(key, scope => 'pay', wait => '0') AS c; verdict := 'unknown'; END $$;
-- Of a function that is a procedure, an aggregate, or dropped.
CREATE PROCEDURE test.procedure(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE plpgsql AS $$ BEGIN verdict := 'applied'; END $$;
CREATE TABLE test.case (place serial, name text, accepted text, verdict text, state text, result jsonb, sqlstate text, evidence jsonb, reconciles int);
INSERT INTO test.case (name) SELECT unnest(ARRAY['test.raises', 'test.raises_ours', 'test.divides', 'test.no_row', 'test.two_rows', 'test.null_verdict', 'test.wrong_verdict', 'test.result_of_nothing', 'test.large_result',
    'test.other_columns', 'test.two_columns', 'test.scalar', 'test.other_arguments', 'test.secret', 'test.forbidden', 'test.commits', 'test.sleeps', 'test.sleeps_on', 'test.reset_role', 'test.set_session',
    'test.temp_table', 'test.declare_cursor', 'test.procedure', 'test.absent', 'absent.absent', 'test', '', '"', 'test.read_bank(text)', 'test.read_bank; SELECT 1', '"test"."read_bank"']);
CREATE PROCEDURE test.run() LANGUAGE plpgsql AS $$
DECLARE c test.case; BEGIN
    FOR c IN SELECT * FROM test.case ORDER BY place LOOP
        CALL test.doubt('case');
        SET LOCAL ROLE regress_owner;
        c.accepted := split_part(test.try(format('SELECT idem_scope_set(%L, reconciler => %L)', 'pay', c.name)), E'\n', 1);
        SET LOCAL ROLE regress_worker;
        IF c.accepted = 'ok' THEN
            BEGIN
                SELECT r.verdict, r.state, r.result INTO c.verdict, c.state, c.result FROM idem_reconcile('case', scope => 'pay') AS r;
                c.sqlstate := '00000';
            EXCEPTION WHEN OTHERS THEN
                c.sqlstate := SQLSTATE || ' ' || SQLERRM;
            END;
        END IF;
        RESET ROLE;
        SELECT u.evidence, u.reconciles INTO c.evidence, c.reconciles FROM idempotency.unresolved AS u WHERE u.key = 'case';
        UPDATE test.case SET accepted = c.accepted, verdict = c.verdict, state = c.state, result = c.result, sqlstate = c.sqlstate, evidence = c.evidence, reconciles = c.reconciles WHERE place = c.place;
        COMMIT;
    END LOOP;
END
$$;
SET idempotency.reconcile_timeout = '100ms';
CALL test.run();
RESET idempotency.reconcile_timeout;
\pset format unaligned
SELECT name, accepted, verdict, state, result, sqlstate, reconciles, evidence FROM test.case ORDER BY place;
\pset format aligned
SELECT current_setting('search_path') AS search_path, current_setting('statement_timeout') AS statement_timeout, current_user = session_user AS as_before;
-- Nothing was completed by a function that failed.
SELECT DISTINCT name FROM test.case WHERE state = 'completed' ORDER BY 1;

-- The time limit is reconcile_timeout, not the function's good will; a cancelled statement of the caller stays cancelled.
SET ROLE regress_owner;
SELECT idem_scope_set('pay', reconciler => 'test.sleeps');
RESET ROLE;
CALL test.doubt('slow');
SET idempotency.reconcile_timeout = '50ms';
SELECT clock_timestamp() AS begun \gset
SELECT * FROM idem_reconcile('slow', scope => 'pay');
SELECT clock_timestamp() - :'begun' < interval '20 s' AS in_time;
SELECT evidence FROM idempotency.unresolved WHERE key = 'slow';
SET idempotency.reconcile_timeout = '50s';
\set SHOW_CONTEXT never
SET statement_timeout = '50ms';
SELECT * FROM idem_reconcile('slow', scope => 'pay');
\echo :SQLSTATE
SET statement_timeout = '60s';
SELECT reconciles FROM idempotency.unresolved WHERE key = 'slow';
BEGIN;
SET LOCAL statement_timeout = '50ms';
SAVEPOINT a;
SELECT * FROM idem_reconcile('slow', scope => 'pay');
ROLLBACK TO a;
SELECT state FROM idem_peek('slow', 'pay');
COMMIT;
RESET idempotency.reconcile_timeout;
-- It is a read: what it writes is undone, where it answers and where it fails.
CREATE TABLE test.log (note text);
GRANT INSERT ON test.log TO regress_owner;
SET ROLE regress_owner;
CREATE FUNCTION test.logs(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE plpgsql AS $$
BEGIN INSERT INTO test.log VALUES (key); IF key = 'log, fails' THEN RAISE 'no'; END IF; verdict := 'not_applied'; END $$;
SELECT idem_scope_set('pay', reconciler => 'test.logs');
RESET ROLE;
CALL test.doubt('log, fails'); CALL test.doubt('log');
SELECT k, r.* FROM unnest(ARRAY['log, fails', 'log']) AS k, idem_reconcile(k, scope => 'pay') AS r;
SELECT * FROM test.log;
-- Calls us again with its own key.
SET ROLE regress_owner;
SELECT idem_scope_set('pay', reconciler => 'test.calls_us');
RESET ROLE;
CALL test.doubt('again');
SELECT * FROM idem_reconcile('again', scope => 'pay');
SELECT state, evidence FROM idempotency.unresolved WHERE key = 'again';

-- What it sets is gone afterwards: it could make the caller's next statement call another function.
SET ROLE regress_owner;
CREATE FUNCTION test.sets(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE plpgsql AS $$
BEGIN PERFORM set_config('search_path', 'regress_trap', false), set_config('regress.trap', 'set', false); verdict := 'unknown'; END $$;
SELECT idem_scope_set('pay', reconciler => 'test.sets');
RESET ROLE;
SET regress.trap = 'unset';
SELECT * FROM idem_reconcile('again', scope => 'pay');
SELECT current_setting('search_path') AS search_path, current_setting('regress.trap') AS trap;
RESET search_path;
SELECT evidence FROM idempotency.unresolved WHERE key = 'again';

-- A scope without one.
SET ROLE regress_owner;
SELECT idem_scope_reset('pay', 'reconciler');
RESET ROLE;
SELECT test.try($$ SELECT * FROM idem_reconcile('again', scope => 'pay') $$);
SELECT reconciler FROM idempotency.scopes WHERE scope = 'pay';
-- And transactions that must not write.
BEGIN READ ONLY;
SELECT test.try($$ SELECT * FROM idem_reconcile('again', scope => 'pay') $$);
ROLLBACK;

DROP SCHEMA test CASCADE;
DROP SCHEMA regress_hostile CASCADE;
DROP OWNED BY regress_owner, regress_worker, regress_stranger;
TRUNCATE idempotency.claim, idempotency.outcome, idempotency.scope, idempotency.scope_grant, idempotency.message, idempotency.event;
DROP ROLE regress_owner, regress_worker, regress_stranger;
