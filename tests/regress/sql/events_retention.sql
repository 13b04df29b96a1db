-- Events: every kind is kept for idempotency.event_retention and no longer, in batches, and keys, runs and outcomes are not touched by it. What each tenant sees of them.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

CREATE PROCEDURE test.sweep() LANGUAGE plpgsql AS $$
BEGIN
    PERFORM idempotency.sweep_restart();
    WHILE (SELECT more FROM idem_sweep()) LOOP END LOOP;
END $$;
CREATE PROCEDURE test.event(of_kind text, ago interval, of_scope text DEFAULT NULL, of_key text DEFAULT NULL, of_run text DEFAULT NULL, whose regrole DEFAULT current_user::regrole) LANGUAGE sql AS $$
    INSERT INTO idempotency.event (happened_at, kind, scope_id, key, run, from_state, to_state, role, pid)
    VALUES (clock_timestamp() - ago, of_kind, CASE of_scope WHEN 'default' THEN 0 ELSE (SELECT id FROM idempotency.scope WHERE name = of_scope) END, of_key, of_run, '-', '-', whose, 0) $$;
SELECT idem_scope_set('s', dedup_window => '1 day'), idem_scope_set('t');
SHOW idempotency.event_retention;
SELECT context, min_val, unit FROM pg_settings WHERE name = 'idempotency.event_retention';
SET idempotency.event_retention = '1s';

-- Each kind, a little younger and a little older. In one transaction: a background worker sees nothing of it.
BEGIN;
DO $$ DECLARE k text; BEGIN FOREACH k IN ARRAY '{doubt,expired_alive,late_retry,run_silent,forgotten}'::text[] LOOP
    CALL test.event(k, '2159 hours', 's', 'young', 'r'); CALL test.event(k, '2161 hours', 's', 'old', 'r'); CALL test.event(k, '10 years', 's', 'very old');
END LOOP; END $$;
SELECT idem_once('k', 'SELECT to_jsonb(1)', scope => 's');
SELECT outcomes_pruned FROM (SELECT idempotency.sweep_restart()) AS r, idem_sweep();
CALL test.sweep();
SELECT kind, key FROM idempotency.events ORDER BY kind, key;
SELECT state FROM idem_peek('k', 's');
ROLLBACK;
-- An event to come (a clock that went back), and the ends of time, stay or go and break nothing.
BEGIN;
CALL test.event('doubt', '-1 day', 's', 'to come');
UPDATE idempotency.event SET happened_at = 'infinity' WHERE key = 'to come'; CALL test.event('doubt', '-1 day', 's', 'tomorrow');
CALL test.event('doubt', '1 day', 's', 'before everything'); UPDATE idempotency.event SET happened_at = '-infinity' WHERE key = 'before everything';
CALL test.sweep();
SELECT key FROM idempotency.events ORDER BY key;
ROLLBACK;
-- More than a batch, call by call: more says that it goes on, and a young one behind them stays.
BEGIN;
SET LOCAL idempotency.sweep_batch = 10;
DO $$ BEGIN FOR i IN 1..35 LOOP CALL test.event('doubt', '100 days', 's', 'k' || i); END LOOP; CALL test.event('doubt', '1 day', 's', 'young'); END $$;
CREATE TEMPORARY TABLE batch (place int GENERATED ALWAYS AS IDENTITY, more bool, left_over bigint);
DO $$
DECLARE more bool := true;
BEGIN
    PERFORM idempotency.sweep_restart();
    WHILE more LOOP
        SELECT s.more INTO more FROM idem_sweep() AS s;
        INSERT INTO batch (more, left_over) SELECT more, count(*) FROM idempotency.event;
    END LOOP;
END $$;
SELECT DISTINCT left_over FROM batch ORDER BY 1 DESC;
SELECT count(*) AS last_says_so FROM batch WHERE NOT more;
ROLLBACK;
-- A DELETE that is rolled back is no loss.
BEGIN; CALL test.event('doubt', '1 day', 's', 'kept'); SAVEPOINT a; UPDATE idempotency.event SET happened_at = happened_at - interval '100 days'; CALL test.sweep(); SELECT count(*) FROM idempotency.event; ROLLBACK TO a; SELECT count(*) FROM idempotency.event; ROLLBACK;

-- Two tenants, and nobody: of keys their scopes' users see events, of runs their owners (and members); nothing of the others'.
CREATE ROLE regress_event_s; CREATE ROLE regress_event_t; CREATE ROLE regress_event_none; CREATE ROLE regress_event_member IN ROLE regress_event_s; CREATE ROLE regress_event_monitor IN ROLE pg_monitor;
SELECT idem_scope_grant('s', 'regress_event_s'), idem_scope_grant('t', 'regress_event_t');
BEGIN;
CALL test.event('doubt', '1 minute', 's', 'key of s', whose => 'regress_event_t');
CALL test.event('late_retry', '2 minutes', 's', 'key of s', 'run of t', whose => 'regress_event_t');
CALL test.event('forgotten', '3 minutes', 't', 'key of t', whose => 'regress_event_s');
CALL test.event('run_silent', '4 minutes', of_run => 'run of s', whose => 'regress_event_s');
CALL test.event('run_silent', '5 minutes', of_run => 'run of t', whose => 'regress_event_t');
CALL test.event('expired_alive', '6 minutes', 'default', 'key of default');
SET LOCAL ROLE regress_event_s; SELECT kind, scope, key, run FROM idempotency.events ORDER BY happened_at DESC;
SET LOCAL ROLE regress_event_member; SELECT kind, scope, key, run FROM idempotency.events ORDER BY happened_at DESC;
SET LOCAL ROLE regress_event_t; SELECT kind, scope, key, run FROM idempotency.events ORDER BY happened_at DESC;
SET LOCAL ROLE regress_event_none; SELECT kind, scope, key, run FROM idempotency.events;
SET LOCAL ROLE regress_event_monitor; SELECT kind, scope, key, run FROM idempotency.events;
RESET ROLE;
SELECT kind, scope, key, run FROM idempotency.events ORDER BY happened_at DESC;
-- Not past the view by a function of one's own: it is a barrier.
GRANT CREATE ON SCHEMA test TO regress_event_t;
SET LOCAL ROLE regress_event_t;
CREATE FUNCTION test.leak(text) RETURNS bool LANGUAGE plpgsql COST 0.0000001 AS $$ BEGIN RAISE WARNING 'seen: %', $1; RETURN true; END $$;
SELECT count(*) FROM idempotency.events WHERE test.leak(key);
SELECT count(*) FROM idempotency.runs WHERE test.leak(run);
ROLLBACK;
-- A scope that was dropped takes the view of its events along.
BEGIN;
CALL test.event('doubt', '1 minute', 't', 'key of t');
SELECT idem_scope_drop('t');
SELECT count(*) AS shown FROM idempotency.events;
ROLLBACK;
SET ROLE regress_event_s;
SELECT count(*) FROM idempotency.event;
DELETE FROM idempotency.events;
RESET ROLE;
SELECT idem_scope_revoke('s', 'regress_event_s'), idem_scope_revoke('t', 'regress_event_t');
DROP ROLE regress_event_member, regress_event_s, regress_event_t, regress_event_none, regress_event_monitor;
