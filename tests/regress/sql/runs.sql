-- Runs: begun, touched, ended, silent and begun again, whose they are; and run_is_alive, where an orchestrator's own tables decide.
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
CREATE PROCEDURE test.age_run(of_run text, by interval) LANGUAGE sql AS $$
    UPDATE idempotency.run_sign SET seen_at = seen_at - by WHERE digest = (SELECT digest FROM idempotency.run WHERE run = of_run AND scope_id IS NULL);
    UPDATE idempotency.run SET begun_at = begun_at - by, seen_at = seen_at - by, ended_at = ended_at - by WHERE run = of_run $$;
\set run 'run, label, state, longest_pause, ended_at IS NOT NULL AS ended, over_at > clock_timestamp() AS goes_on FROM idempotency.runs ORDER BY run'

-- Begun, touched, ended. Again is the same as once.
BEGIN;
SELECT idem_run_begin('r', '16 days', 'weekly') - clock_timestamp() BETWEEN '16 days 23 hours' AND '17 days' AS with_the_slack_of_its_signs;
SELECT :run;
SELECT idem_run_begin('r', '32 days') - clock_timestamp() > '33 days' AS longer;
SELECT :run;
CALL test.age_run('r', '10 days');
SELECT idem_run_touch('r') - clock_timestamp() > '33 days' AS touched;
SELECT idem_run_end('r'), idem_run_end('r');
SELECT :run;
SELECT test.try($$ SELECT idem_run_touch('r') $$);
-- It lives again.
SELECT idem_run_begin('r', '1 day', 'again') > clock_timestamp() AS alive;
SELECT :run;
ROLLBACK;

-- Nobody ends it: over a pause after its last sign of life, before a sweep has seen it and after; an event says so once.
BEGIN;
SELECT idem_run_begin('quiet', '16 hours') > clock_timestamp() AS alive;
CALL test.age_run('quiet', '16 hours 59 minutes');
SELECT state FROM idempotency.runs;
CALL test.age_run('quiet', '1 minute');
SELECT state FROM idempotency.runs;
SELECT test.try($$ SELECT idem_run_touch('quiet') $$);
CALL test.sweep();
CALL test.sweep();
SELECT :run;
SELECT kind, scope, key, run, from_state, to_state, reason, role = current_user::regrole AS whose FROM idempotency.events;
SELECT idem_run_end('quiet');
SELECT state FROM idempotency.runs;
ROLLBACK;

-- What happens to its keys is a sign of life: claimed (whatever is answered), finished, renewed, enqueued. Recorded when a sixteenth of the pause is over.
SELECT idem_scope_set('l', effect_kind => 'local');
BEGIN;
SELECT idem_run_begin('busy', '16 hours') > clock_timestamp() AS alive;
CREATE FUNCTION test.seen(OUT seen bool) LANGUAGE plpgsql AS $$
BEGIN
    seen := clock_timestamp() - (SELECT last_seen_at FROM idempotency.runs WHERE run = 'busy') < '1 minute';
    CALL test.age_run('busy', '2 hours');
END $$;
CALL test.age_run('busy', '2 hours');
SELECT decision FROM idem_claim('a', run => 'busy'); SELECT test.seen();
SELECT idem_complete('a'); SELECT test.seen();
SELECT decision FROM idem_claim('a', run => 'busy'); SELECT test.seen();
SELECT fence FROM idem_claim('b', scope => 'l', lease => '1 minute', run => 'busy') \gset
SELECT test.seen();
SELECT decision FROM idem_claim('b', scope => 'l', run => 'busy'); SELECT test.seen();
SELECT idem_renew('b', '2 minutes', 'l', :fence) IS NOT NULL AS renewed; SELECT test.seen();
SELECT idem_fail('b', 'rejected', scope => 'l', fence => :fence); SELECT test.seen();
SELECT decision FROM idem_claim_many('{c,d}', scope => 'l', lease => '1 minute', run => 'busy'); SELECT test.seen();
SELECT decision FROM idem_enqueue('e', 'mail', '1', run => 'busy'); SELECT test.seen();
SELECT idem_once('f', 'SELECT to_jsonb(1)', run => 'busy'); SELECT test.seen();
-- Not without run =>, and not more often than needed.
SELECT decision FROM idem_claim('f'); SELECT test.seen();
SELECT idem_run_touch('busy') IS NOT NULL AS touched; CALL test.age_run('busy', '59 minutes');
SELECT decision FROM idem_claim('f', run => 'busy'); SELECT test.seen();
-- What is over does not live again by itself.
SELECT idem_run_end('busy');
SELECT decision FROM idem_claim('f', run => 'busy');
SELECT state FROM idempotency.runs;
ROLLBACK;

-- Bad values.
SELECT test.try(statement) FROM unnest(ARRAY['SELECT idem_run_begin(NULL, ''1 day'')', 'SELECT idem_run_begin(''r'', NULL)', 'SELECT idem_run_begin('''', ''1 day'')', 'SELECT idem_run_begin(repeat(''r'', 1025), ''1 day'')',
    'SELECT idem_run_begin(''r'', ''0'')', 'SELECT idem_run_begin(''r'', ''-1 day'')', 'SELECT idem_run_begin(''r'', ''101 years'')', 'SELECT idem_run_begin(''r'', ''1 day'', repeat(''l'', 1025))', 'SELECT idem_run_touch(''none'')',
    'SELECT idem_run_end(''none'')', 'SELECT idem_run_touch(NULL)']) AS statement;
BEGIN READ ONLY;
SELECT idem_run_begin('r', '1 day');
ROLLBACK;

-- Whose it is.
CREATE ROLE regress_run_a; CREATE ROLE regress_run_b; CREATE ROLE regress_run_none; CREATE ROLE regress_run_member IN ROLE regress_run_a;
SELECT idem_scope_grant('l', 'regress_run_a'), idem_scope_grant('l', 'regress_run_b');
GRANT USAGE ON SCHEMA test TO PUBLIC;
SET ROLE regress_run_none;
SELECT test.try($$ SELECT idem_run_begin('a', '1 day') $$);
SET ROLE regress_run_a;
SELECT idem_run_begin('of a', '1 day') IS NOT NULL AS begun;
SET ROLE regress_run_b;
SELECT test.try($$ SELECT idem_run_begin('of a', '1 day') $$);
SELECT test.try($$ SELECT idem_run_touch('of a') $$);
SELECT test.try($$ SELECT idem_run_end('of a') $$);
SELECT count(*) AS seen FROM idempotency.runs;
-- Anybody's key is a sign of life, and nothing more.
SELECT decision, idem_release('by b', 'l') FROM idem_claim('by b', scope => 'l', run => 'of a');
SET ROLE regress_run_member;
SELECT run, owner FROM idempotency.runs;
SELECT idem_run_touch('of a') IS NOT NULL AS touched, idem_run_end('of a');
RESET ROLE;
SELECT run, state, owner FROM idempotency.runs;
UPDATE idempotency.run SET ended_at = NULL, seen_at = seen_at - interval '3 days';
DELETE FROM idempotency.run_sign;
CALL idempotency.sweep();
SET ROLE regress_run_a;
SELECT kind, run, role FROM idempotency.events;
SET ROLE regress_run_b;
SELECT count(*) AS seen FROM idempotency.events;
RESET ROLE;

-- A run is removed a day after its end, unless an outcome names it: whatever windows become, its end counts.
BEGIN;
SELECT idem_run_begin('old', '1 day') IS NOT NULL AS begun, idem_run_begin('alive', '400 days') IS NOT NULL AS begun_too;
SELECT idem_once('of old', 'SELECT to_jsonb(1)', run => 'old') IS NOT NULL AS done;
SELECT idem_run_end('old');
CALL test.age_run('old', '400 days'); CALL test.age_run('alive', '300 days');
CALL test.sweep();
SELECT run FROM idempotency.run WHERE run IN ('old', 'alive') ORDER BY run;
SELECT idem_forget('of old');
CALL test.sweep();
SELECT run FROM idempotency.run WHERE run IN ('old', 'alive') ORDER BY run;
ROLLBACK;

-- A scope's own predicate decides instead: asked by sweeps alone, as the scope's owner.
CREATE SCHEMA regress_orchestrator;
CREATE TABLE regress_orchestrator.job (id text, state text);
CREATE FUNCTION regress_orchestrator.is_alive(run text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE found text := (SELECT j.state FROM regress_orchestrator.job AS j WHERE j.id = run);
BEGIN
    IF found = 'broken' THEN RAISE 'broken'; END IF;
    RETURN CASE found WHEN 'waiting' THEN true WHEN 'done' THEN false END;
END $$;
SELECT idem_scope_set('p', dedup_window => '1 day', run_is_alive => 'regress_orchestrator.is_alive');
SELECT run_is_alive FROM idempotency.scopes WHERE scope = 'p';
BEGIN;
INSERT INTO regress_orchestrator.job VALUES ('waiting', 'waiting'), ('done', 'done'), ('broken', 'broken');
-- idem_run_* says nothing here.
SELECT idem_run_begin('done', '100 days') IS NOT NULL AS begun;
-- One that raises holds up no others behind it.
SELECT idem_once(run, 'SELECT to_jsonb(1)', scope => 'p', run => run) FROM unnest('{broken,waiting,done,unknown}'::text[]) AS run;
SELECT idem_once('none', 'SELECT to_jsonb(1)', scope => 'p');
DO $$ BEGIN CALL test.age('waiting', '2 days', 'p'); CALL test.age('done', '2 days', 'p'); CALL test.age('broken', '2 days', 'p'); CALL test.age('unknown', '2 days', 'p'); CALL test.age('none', '2 days', 'p'); END $$;
-- Until a sweep has asked, all that have a run are kept.
SELECT key, state, window_ends_at = 'infinity' AS kept FROM idempotency.records WHERE scope = 'p' ORDER BY key;
SELECT decision FROM idem_claim('done', scope => 'p', run => 'done');
SET LOCAL client_min_messages = error;
CALL test.sweep();
SET LOCAL client_min_messages = warning;
-- From when a sweep first saw that it is over, the window counts again.
SELECT key, state, window_ends_at = 'infinity' AS kept, window_ends_at > clock_timestamp() + interval '23 hours' AS from_now FROM idempotency.records WHERE scope = 'p' ORDER BY key;
SELECT run FROM idempotency.run WHERE scope_id IS NOT NULL;
SELECT count(*) AS shown FROM idempotency.runs WHERE state = 'ended';
UPDATE idempotency.run SET ended_at = ended_at - interval '25 hours' WHERE scope_id IS NOT NULL;
SELECT decision, idem_release('done', 'p') FROM idem_claim('done', scope => 'p', run => 'done');
SET LOCAL client_min_messages = error;
CALL test.sweep();
SET LOCAL client_min_messages = warning;
SELECT key FROM idempotency.records WHERE scope = 'p' ORDER BY key;
-- One that lives again keeps its keys again.
UPDATE regress_orchestrator.job SET state = 'done' WHERE id = 'waiting';
DELETE FROM regress_orchestrator.job WHERE id = 'broken';
CALL test.sweep();
SELECT key, window_ends_at = 'infinity' AS kept FROM idempotency.records WHERE scope = 'p' ORDER BY key;
UPDATE regress_orchestrator.job SET state = 'waiting' WHERE id = 'waiting';
CALL test.sweep();
SELECT key, window_ends_at = 'infinity' AS kept FROM idempotency.records WHERE scope = 'p' ORDER BY key;
ROLLBACK;
-- What was said of a run before a key was finished says nothing of that key.
BEGIN;
INSERT INTO regress_orchestrator.job VALUES ('again', 'done');
SELECT idem_once('before', 'SELECT to_jsonb(1)', scope => 'p', run => 'again');
DO $$ BEGIN CALL test.age('before', '2 days', 'p'); END $$;
CALL test.sweep();
SELECT count(*) AS over FROM idempotency.run WHERE run = 'again';
UPDATE idempotency.run SET ended_at = ended_at - interval '3 days' WHERE run = 'again';
UPDATE regress_orchestrator.job SET state = 'waiting' WHERE id = 'again';
SELECT idem_once('after', 'SELECT to_jsonb(1)', scope => 'p', run => 'again');
DO $$ BEGIN CALL test.age('after', '2 days', 'p'); END $$;
SELECT decision FROM idem_claim('after', scope => 'p', run => 'again');
-- Seen over again: from now on.
UPDATE regress_orchestrator.job SET state = 'done' WHERE id = 'again';
CALL test.sweep();
SELECT key, window_ends_at > clock_timestamp() + interval '23 hours' AS from_now FROM idempotency.records WHERE key IN ('before', 'after') ORDER BY key;
-- Another function, or none: what this one said is forgotten.
SELECT idem_scope_set('p', run_is_alive => 'regress_orchestrator.is_alive');
SELECT count(*) AS over FROM idempotency.run WHERE run = 'again';
ROLLBACK;
-- A hard limit holds here, too, with its alert.
BEGIN;
SELECT idem_scope_set('p', hard_limit => '3 days');
INSERT INTO regress_orchestrator.job VALUES ('long', 'waiting');
SELECT idem_once('within', 'SELECT to_jsonb(1)', scope => 'p', run => 'long');
SELECT idem_once('beyond', 'SELECT to_jsonb(1)', scope => 'p', run => 'long');
DO $$ BEGIN CALL test.age('within', '2 days', 'p'); CALL test.age('beyond', '4 days', 'p'); END $$;
CALL test.sweep();
SELECT key FROM idempotency.records WHERE scope = 'p';
SELECT kind, key, run FROM idempotency.events;
ROLLBACK;

-- A key in doubt that becomes a message stays with its run.
BEGIN;
SELECT idem_run_begin('doubtful', '10 days') IS NOT NULL AS begun;
SELECT decision FROM idem_claim('in doubt', '1', lease => '1 minute', run => 'doubtful');
CALL test.age('in doubt', '1 hour');
SELECT decision, enqueued FROM idem_enqueue('in doubt', 'mail', '1');
SELECT r.run, o.run AS of_message FROM idempotency.records AS r JOIN idempotency.outbox AS o USING (key);
ROLLBACK;

-- A predicate that is slow, gone, or somebody else's by now; one that claims, sweeps or sets: the keys stay, and nothing is left behind.
CREATE FUNCTION regress_orchestrator.hostile(run text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF run = 'slow' THEN PERFORM pg_sleep(60);
    ELSIF run = 'claims' THEN PERFORM public.idem_claim('from the predicate', scope => 'p');
    ELSIF run = 'sweeps' THEN PERFORM public.idem_sweep();
    ELSIF run = 'sets' THEN SET search_path = evil; SET work_mem = '1GB';
    ELSIF run = 'writes' THEN INSERT INTO regress_orchestrator.job VALUES ('written', 'waiting');
    END IF;
    RETURN run = 'sets';
END $$;
SELECT idem_scope_set('p', run_is_alive => 'regress_orchestrator.hostile');
CREATE PROCEDURE test.hostile(of_run text, OUT message text) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM idem_once(of_run, 'SELECT to_jsonb(1)', scope => 'p', run => of_run);
    CALL test.age(of_run, '2 days', 'p');
    SET LOCAL client_min_messages = error;
    CALL test.sweep();
    message := (SELECT format('%s, %s predicate rows', state, (SELECT count(*) FROM idempotency.run WHERE scope_id IS NOT NULL)) FROM idem_peek(of_run, 'p'));
END $$;
SET idempotency.reconcile_timeout = '50ms';
BEGIN; CALL test.hostile('slow', NULL); ROLLBACK;
BEGIN; CALL test.hostile('claims', NULL); SELECT state FROM idem_peek('from the predicate', 'p'); ROLLBACK;
BEGIN; CALL test.hostile('sweeps', NULL); ROLLBACK;
BEGIN; CALL test.hostile('sets', NULL); SHOW search_path; SHOW work_mem; ROLLBACK;
BEGIN; CALL test.hostile('writes', NULL); SELECT count(*) AS left_behind FROM regress_orchestrator.job WHERE id = 'written'; ROLLBACK;
RESET idempotency.reconcile_timeout;
BEGIN;
DROP FUNCTION regress_orchestrator.hostile;
CALL test.hostile('gone', NULL);
ROLLBACK;
-- The WARNING of a sweep says why.
BEGIN;
DROP FUNCTION regress_orchestrator.hostile;
SELECT idem_once('gone', 'SELECT to_jsonb(1)', scope => 'p', run => 'gone');
CALL test.age('gone', '2 days', 'p');
CALL test.sweep();
ROLLBACK;
-- Owned by a role without the rights of the scope's owner: not run with them.
BEGIN;
GRANT CREATE ON SCHEMA regress_orchestrator TO regress_run_b;
DROP FUNCTION regress_orchestrator.hostile;
SET LOCAL ROLE regress_run_b;
CREATE FUNCTION regress_orchestrator.hostile(run text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN ALTER ROLE regress_run_b SUPERUSER; RETURN false; END $$;
RESET ROLE;
CALL test.hostile('planted', NULL);
SELECT rolsuper FROM pg_roles WHERE rolname = 'regress_run_b';
ROLLBACK;
SELECT idem_scope_reset('p', 'run_is_alive');

DROP SCHEMA regress_orchestrator CASCADE;
SELECT idem_scope_revoke('l', 'regress_run_a'), idem_scope_revoke('l', 'regress_run_b');
TRUNCATE idempotency.run, idempotency.run_sign, idempotency.event;
DROP ROLE regress_run_member, regress_run_a, regress_run_b, regress_run_none;

-- The ends of time: what is infinite stays so, and what no timestamp can say is infinite.
SELECT seen_at, idempotency.run_over_at(seen_at, '1 day') AS over_at FROM unnest('{-infinity,infinity,294276-12-31 12:00+00}'::timestamptz[]) AS seen_at;
