-- idem_doctor: each finding that can be made by hand, the statement that mends it, and who may ask. Also the advice on windows.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- What tests before this one have counted.
SELECT idem_stats_reset();
-- Without what the test cluster itself is (fsync off, preloaded or not).
CREATE VIEW test.doctor AS SELECT * FROM idem_doctor() WHERE finding NOT IN ('fsync_off', 'not_preloaded', 'sweep_stalled', 'sweep_failing', 'worker_not_running', 'ok');
-- Runs the statement of a finding, without what stands behind it as advice.
CREATE PROCEDURE test.mend(of_finding text) LANGUAGE plpgsql AS $$
DECLARE statement text := (SELECT mend FROM test.doctor WHERE finding = of_finding LIMIT 1);
BEGIN
    EXECUTE statement;
    RAISE WARNING 'mended: %', NOT EXISTS (SELECT FROM test.doctor WHERE finding = of_finding);
END $$;
\set doctor 'severity, finding, what, why, mend FROM test.doctor'

SELECT :doctor;

-- Scopes.
SELECT idem_scope_set('ever', keep_forever => true), idem_scope_grant('default', '-');
SELECT :doctor;
CALL test.mend('public_grant');
CALL test.mend('no_window');
-- Our tables.
GRANT SELECT ON idempotency.outcome TO PUBLIC;
ALTER TABLE idempotency.claim SET UNLOGGED;
SELECT :doctor;
CALL test.mend('public_table');
CALL test.mend('unlogged_table');
-- Settings.
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = false', current_database()); END $$;
CREATE ROLE regress_doctor_app; ALTER ROLE regress_doctor_app SET synchronous_commit = off;
SELECT severity, finding, replace(what, current_database(), 'database'), replace(mend, quote_ident(current_database()), 'database') AS mend FROM test.doctor;
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET synchronous_commit', current_database()); END $$;
CALL test.mend('synchronous_commit_off_for_some');
-- The statement for a server that preloads something else already names each library by itself.
DO $$
DECLARE source text := (SELECT prosrc FROM pg_proc WHERE proname = 'idem_doctor');
BEGIN
    ASSERT source LIKE '%pg_catalog.quote_literal(l.library)%', 'each library is a literal of its own';
END $$;

-- Windows: what was seen comes near, or reaches, the window.
SELECT idem_scope_set('w', dedup_window => '10 days');
INSERT INTO idempotency.observed (scope_id, since, repeats, longest_repeat) SELECT id, clock_timestamp(), '{}', '2 days' FROM idempotency.scope WHERE name = 'w';
CREATE VIEW test.advice AS SELECT dedup_window, recommended, verdict, array_remove(reasons, 'repeats are not counted: idempotency is not in shared_preload_libraries') AS reasons, warning FROM idem_window_advice('w');
SELECT * FROM test.advice;
UPDATE idempotency.observed SET longest_repeat = '7 days';
SELECT * FROM test.advice;
SELECT severity, finding, what, mend FROM test.doctor;
CALL test.mend('window_near');
UPDATE idempotency.observed SET longest_repeat = '14 days';
SELECT severity, finding, what, mend FROM test.doctor;
CALL test.mend('window_too_short');
SELECT * FROM test.advice;
UPDATE idempotency.observed SET longest_repeat = '1 hour', longest_unknown = '20 minutes', longest_late = '3 hours';
SELECT * FROM test.advice;
UPDATE idempotency.observed SET longest_repeat = '5 seconds', longest_unknown = NULL, longest_late = NULL;
SELECT * FROM test.advice;
SELECT idem_stats_reset('w');
SELECT * FROM test.advice;
SELECT test.try($$ SELECT idem_window_advice('no such scope') $$);
-- A run that may pause for longer than the window, and its keys are claimed without run =>. In one transaction: a worker sees nothing.
BEGIN;
SELECT idem_scope_set('w', dedup_window => '1 day');
SELECT idem_run_begin('agent', '4 days') IS NOT NULL AS begun;
SELECT idem_once('other/step', 'SELECT to_jsonb(1)', scope => 'w');
SELECT idem_once('agent/held', 'SELECT to_jsonb(1)', scope => 'w', run => 'agent');
SELECT verdict FROM test.advice;
SELECT idem_once('agent/step', 'SELECT to_jsonb(1)', scope => 'w');
SELECT verdict, recommended, reasons FROM test.advice;
SELECT severity, finding, what FROM test.doctor;
SELECT idem_run_end('agent');
SELECT verdict FROM test.advice;
ROLLBACK;
-- A hard limit that is shorter than the pause of a run that it would cut.
BEGIN;
SELECT idem_scope_set('w', hard_limit => '2 days');
SELECT idem_run_begin('agent', '4 days') IS NOT NULL AS begun;
SELECT idem_once('agent/held', 'SELECT to_jsonb(1)', scope => 'w', run => 'agent');
SELECT severity, finding, what, mend FROM test.doctor;
CALL test.mend('hard_limit_short');
ROLLBACK;

-- Doubts and leases.
BEGIN;
SELECT decision, idem_fail('lost', 'unknown', 'timeout', scope => 'w') FROM idem_claim('lost', scope => 'w');
UPDATE idempotency.claim SET in_doubt_since = in_doubt_since - interval '2 hours';
SELECT severity, finding, mend FROM test.doctor;
SELECT idem_resolve('lost', 'not_applied', scope => 'w');
SELECT severity, finding, mend FROM test.doctor;
SELECT decision FROM idem_claim('overdue', scope => 'w', lease => '1 minute');
CALL test.age('overdue', '10 minutes', 'w');
SELECT severity, finding, mend FROM test.doctor;
ROLLBACK;
-- A clock that went back; infinite times in the tables break nothing.
BEGIN;
SELECT idem_once('ahead', 'SELECT to_jsonb(1)', scope => 'w');
UPDATE idempotency.outcome SET finished_at = clock_timestamp() + interval '1 hour' WHERE key = 'ahead';
SELECT severity, finding, mend FROM test.doctor;
UPDATE idempotency.outcome SET finished_at = 'infinity' WHERE key = 'ahead';
SELECT idem_once('long ago', 'SELECT to_jsonb(1)', scope => 'w');
UPDATE idempotency.outcome SET finished_at = '-infinity' WHERE key = 'long ago';
SELECT idem_run_begin('r', '1 day') IS NOT NULL AS begun;
UPDATE idempotency.run SET begun_at = '-infinity', seen_at = '-infinity', ended_at = 'infinity';
SELECT decision FROM idem_claim('open', scope => 'w', lease => '1 minute');
UPDATE idempotency.claim SET claimed_at = 'infinity', first_claimed_at = '-infinity', lease_expires_at = 'infinity', in_doubt_since = '-infinity', state = 'u';
SELECT count(*) FROM test.doctor;
SELECT count(*) FROM idempotency.stats;
SELECT idem_report('w') LIKE '<!DOCTYPE html>%' AS rendered;
ROLLBACK;

-- Whatever a scope is called: a statement is one statement, and nothing of it stands behind the advice.
BEGIN;
SELECT idem_scope_set(name, keep_forever => true, hard_limit => '1 day'), idem_scope_grant(name, '-')
  FROM unnest(ARRAY[E'm\n; CREATE TABLE test.planted(); --', '%s%L', '"; --', 'it''s', E'\\']) AS name;
DO $$
DECLARE statement text; place int;
BEGIN
    FOR statement IN SELECT mend FROM test.doctor LOOP
        EXECUTE statement;
        place := strpos(statement, '; --');
        ASSERT place = 0 OR statement ~ '^[^\n]*$' OR substr(statement, place) !~ '\n' OR statement LIKE '%''%\n%''%', statement;
    END LOOP;
END $$;
SELECT to_regclass('test.planted') AS planted, count(*) AS findings FROM test.doctor;
ROLLBACK;
-- The one of expired keys can only be made by counters: its text has the scope before the advice, and none behind it.
SELECT prosrc LIKE '%''SELECT public.idem_stats_reset(\%L); -- after%' AS data_before_advice FROM pg_proc WHERE proname = 'idem_doctor';

-- Who may ask.
CREATE ROLE regress_doctor_monitor IN ROLE pg_monitor; CREATE ROLE regress_doctor_none;
SET ROLE regress_doctor_monitor;
SELECT count(*) >= 0 AS asked FROM public.idem_doctor();
SELECT count(*) AS scopes FROM idempotency.stats;
SELECT count(*) AS records FROM idempotency.records;
SELECT count(*) >= 0 AS asked FROM idempotency.sweeps;
SELECT position('not shown' IN public.idem_report()) AS no_scope_of_its_own;
SET ROLE regress_doctor_none;
SELECT count(*) FROM public.idem_doctor();
SELECT count(*) FROM idempotency.sweeps;
SELECT count(*) AS scopes FROM idempotency.stats;
SELECT public.idem_window_advice('w');
SELECT public.idem_report('w');
SELECT public.idem_report() LIKE '%shown to members of pg_monitor%' AS says_who;
SELECT public.idem_stats_reset('w');
SELECT public.idem_stats_reset();
RESET ROLE;
DROP ROLE regress_doctor_app, regress_doctor_monitor, regress_doctor_none;
