-- idem_window_advice: each kind of evidence, its limits, what it recommends, and that it takes nothing from other scopes.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

SELECT idem_scope_set('w', dedup_window => '10 days'), idem_scope_set('other', dedup_window => '1 hour');
SELECT idem_stats_reset();
CREATE VIEW test.advice AS SELECT dedup_window, recommended, verdict, array_remove(reasons, 'repeats are not counted: idempotency is not in shared_preload_libraries') AS reasons, warning FROM idem_window_advice('w');
CREATE PROCEDURE test.seen(repeat interval DEFAULT NULL, late interval DEFAULT NULL, unknown interval DEFAULT NULL, of_scope text DEFAULT 'w') LANGUAGE sql AS $$
    INSERT INTO idempotency.observed (scope_id, since, repeats, longest_repeat, longest_late, longest_unknown)
    SELECT id, clock_timestamp(), array_fill(0, ARRAY[32]), seen.repeat, seen.late, seen.unknown FROM idempotency.scope WHERE name = of_scope
    ON CONFLICT (scope_id) DO UPDATE SET longest_repeat = excluded.longest_repeat, longest_late = excluded.longest_late, longest_unknown = excluded.longest_unknown $$;

-- Verdicts: at a window, and at two thirds of one. Everything in one transaction: a background worker writes here as well.
BEGIN;
SELECT * FROM test.advice;
CALL test.seen(repeat => '6 days 15 hours'); SELECT verdict, recommended, warning FROM test.advice;
CALL test.seen(repeat => '6 days 16 hours'); SELECT verdict, recommended, warning FROM test.advice;
CALL test.seen(repeat => '6 days 16 hours 1 second'); SELECT verdict, recommended, warning FROM test.advice;
CALL test.seen(repeat => '9 days 23:59:59.999999'); SELECT verdict, recommended, warning FROM test.advice;
CALL test.seen(repeat => '10 days'); SELECT verdict, recommended, warning FROM test.advice;
-- The longest of all that was seen counts.
CALL test.seen('1 day', '3 days', '2 days'); SELECT verdict, recommended, reasons FROM test.advice;
CALL test.seen('1 day', '2 days', '7 days'); SELECT verdict, recommended, reasons FROM test.advice;
CALL test.seen('11 days', '2 days', '7 days'); SELECT verdict, recommended, reasons FROM test.advice;
-- Rounded up: to hours, and to days from two of them on.
CALL test.seen(repeat => '1 millisecond'); SELECT recommended FROM test.advice;
CALL test.seen(repeat => '29 minutes 59 seconds'); SELECT recommended FROM test.advice;
CALL test.seen(repeat => '31 minutes'); SELECT recommended FROM test.advice;
CALL test.seen(repeat => '24 hours'); SELECT recommended FROM test.advice;
CALL test.seen(repeat => '24 hours 1 minute'); SELECT recommended FROM test.advice;
CALL test.seen(repeat => '400 days'); SELECT verdict, recommended FROM test.advice;
-- What it recommends is enough: the verdict is ok from then on.
DO $$
DECLARE seen interval;
BEGIN
    FOREACH seen IN ARRAY '{1 second,40 minutes,23 hours 59 minutes,24 hours 1 second,5 days 1 hour,9 days,1000 days}'::interval[] LOOP
        CALL test.seen(repeat => seen);
        PERFORM idem_scope_set('w', dedup_window => (SELECT recommended FROM test.advice));
        ASSERT (SELECT verdict FROM test.advice) = 'ok', seen;
    END LOOP;
END $$;
-- For ever is long enough.
SELECT idem_scope_set('w', keep_forever => true); SELECT dedup_window, recommended, verdict, warning FROM test.advice;
ROLLBACK;
-- A changed window is judged at once, and the default where the scope sets none.
BEGIN;
CALL test.seen(repeat => '20 days');
SELECT idem_scope_set('w', dedup_window => '60 days'); SELECT dedup_window, verdict FROM test.advice;
SELECT idem_scope_reset('w', 'dedup_window'); SELECT dedup_window, verdict FROM test.advice;
ROLLBACK;
-- Another scope's evidence is not this one's; they are advised side by side.
BEGIN;
CALL test.seen(repeat => '2 hours', of_scope => 'other');
SELECT verdict FROM test.advice;
SELECT scope, verdict, recommended FROM idempotency.advice ORDER BY scope;
ROLLBACK;

-- A doubt that nobody has ended yet counts with its age, and no longer when it is ended.
BEGIN;
SELECT decision FROM idem_claim('lost', scope => 'w', lease => '1 hour');
SELECT idem_escalate('lost', scope => 'w', fence => fence) FROM idem_peek('lost', 'w');
UPDATE idempotency.claim SET in_doubt_since = clock_timestamp() - interval '192 hours' WHERE key = 'lost';
SELECT verdict, recommended, reasons FROM test.advice;
SELECT idem_resolve('lost', 'not_applied', scope => 'w');
SELECT verdict FROM test.advice WHERE verdict <> 'near';
ROLLBACK;

-- Runs that no key here is kept for: what they may pause for counts where keys have their name and not their run.
BEGIN;
SELECT idem_run_begin('agent', '30 days') IS NOT NULL AS begun, idem_run_begin('short', '9 days') IS NOT NULL AS begun_too, idem_run_begin('a_e%', '60 days') IS NOT NULL AS begun_three;
SELECT verdict FROM test.advice;
-- Names are names: a prefix that is none, wildcards that are none; another scope's key.
SELECT idem_once(key, 'SELECT to_jsonb(1)', scope => 'w') FROM unnest('{agents/1,agent,agent-1/x,/agent/x,aXeZZ/1,a_e/1}'::text[]) AS key;
SELECT idem_once('agent/1', 'SELECT to_jsonb(1)', scope => 'other');
SELECT verdict, reasons FROM test.advice;
-- A run whose pauses are shorter than the window is no evidence.
SELECT idem_once('short/1', 'SELECT to_jsonb(1)', scope => 'w');
SELECT verdict, reasons FROM test.advice;
SELECT idem_once('agent/kept', 'SELECT to_jsonb(1)', scope => 'w', run => 'agent');
SELECT verdict FROM test.advice;
SAVEPOINT s;
SELECT idem_once('agent/1', 'SELECT to_jsonb(1)', scope => 'w');
SELECT verdict, recommended, reasons FROM test.advice;
ROLLBACK TO s;
-- One that is still open, too.
SELECT decision FROM idem_claim('agent/1', scope => 'w', lease => '1 hour');
SELECT verdict, recommended FROM test.advice;
SAVEPOINT s;
-- Over: ended, or silent.
SELECT idem_run_end('agent');
SELECT verdict FROM test.advice;
ROLLBACK TO s;
UPDATE idempotency.run SET seen_at = seen_at - interval '40 days' WHERE run = 'agent';
DELETE FROM idempotency.run_sign;
SELECT verdict FROM test.advice;
ROLLBACK;
BEGIN;
SELECT idem_run_begin('a_e%', '60 days') IS NOT NULL AS begun;
SELECT idem_once('a_e%/1', 'SELECT to_jsonb(1)', scope => 'w');
SELECT verdict, recommended FROM test.advice;
-- The window from which it counts is the scope's own.
SELECT idem_scope_set('w', dedup_window => '60 days'); SELECT verdict FROM test.advice;
SELECT idem_scope_set('w', keep_forever => true); SELECT verdict FROM test.advice;
ROLLBACK;
-- How long runs with keys here lasted is told, and counts for nothing: their keys are kept.
BEGIN;
SELECT idem_run_begin('agent', '30 days') IS NOT NULL AS begun;
SELECT idem_once('agent/kept', 'SELECT to_jsonb(1)', scope => 'w', run => 'agent');
UPDATE idempotency.run SET begun_at = begun_at - interval '480 hours';
SELECT verdict, reasons FROM test.advice;
SELECT idem_run_end('agent');
SELECT verdict, reasons FROM test.advice;
ROLLBACK;

-- Who may ask: whoever may use the scope. No such scope and none for you read alike.
CREATE ROLE regress_advice_a; CREATE ROLE regress_advice_b;
SELECT idem_scope_grant('w', 'regress_advice_a'), idem_scope_grant('other', 'regress_advice_b');
SET ROLE regress_advice_a;
SELECT verdict FROM idem_window_advice('w');
SELECT test.try($$ SELECT idem_window_advice('other') $$);
SELECT test.try($$ SELECT idem_window_advice('no such scope') $$);
SELECT test.try($$ SELECT idem_window_advice(NULL) $$);
SELECT test.try($$ SELECT idem_window_advice() $$);
SELECT scope FROM idempotency.advice;
-- A search_path of theirs changes nothing.
SET search_path = pg_temp, public;
CREATE TEMPORARY TABLE advice (scope text, dedup_window interval, recommended interval, verdict text, reasons text[], warning text);
INSERT INTO advice VALUES ('w', NULL, NULL, 'planted', NULL, NULL);
SELECT verdict FROM idem_window_advice('w');
RESET ROLE;
RESET search_path;
SELECT idem_scope_revoke('w', 'regress_advice_a'), idem_scope_revoke('other', 'regress_advice_b');
DROP TABLE pg_temp.advice;
DROP ROLE regress_advice_a, regress_advice_b;
