-- Windows: when a key becomes repeatable, what a run adds, what a guard remembers, what is issued too long ago. Pruning never changes an answer.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- Sweeps to the end of a pass, within the caller's transaction: a background worker sees nothing of these tests.
CREATE PROCEDURE test.sweep() LANGUAGE plpgsql AS $$
BEGIN
    PERFORM idempotency.sweep_restart();
    WHILE (SELECT more FROM idem_sweep()) LOOP END LOOP;
END $$;
-- One of each ending, claimed with a run or without, so long ago.
CREATE PROCEDURE test.endings(of_scope text, ago interval, of_run text DEFAULT NULL) LANGUAGE plpgsql AS $$
DECLARE c record;
BEGIN
    PERFORM idem_once('completed', 'SELECT $1', '{"amount": 5}', of_scope, run => of_run);
    SELECT * INTO c FROM idem_claim('rejected', '1', of_scope, run => of_run);
    PERFORM idem_fail('rejected', 'rejected', 'declined', '"no"', of_scope, c.fence);
    SELECT * INTO c FROM idem_claim('not applied', '1', of_scope, run => of_run);
    PERFORM idem_fail('not applied', 'not_applied', 'refused', scope => of_scope, fence => c.fence);
    CALL test.age('completed', ago, of_scope);
    CALL test.age('rejected', ago, of_scope);
    CALL test.age('not applied', ago, of_scope);
END $$;
-- What a claim would be told, and when peek says that it can be executed again: against the finish, in whole hours.
CREATE FUNCTION test.told(of_scope text, of_run text DEFAULT NULL, OUT key text, OUT decision text, OUT attempt int, OUT reason text, OUT state text, OUT repeatable text)
    RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE c record; p record;
BEGIN
    FOR key IN VALUES ('completed'), ('rejected'), ('not applied') LOOP
        SELECT * INTO p FROM idem_peek(key, of_scope);
        state := p.state;
        repeatable := CASE WHEN p.repeatable_at IS NULL THEN NULL WHEN p.repeatable_at = 'infinity' THEN 'never' WHEN p.repeatable_at <= clock_timestamp() THEN 'now' ELSE 'later' END;
        BEGIN
            SELECT * INTO c FROM idem_claim(key, CASE key WHEN 'completed' THEN '{"amount": 5}' ELSE '1' END::jsonb, of_scope, run => of_run);
            decision := c.decision; attempt := c.attempt; reason := c.reason;
            -- As if it had not been asked.
            RAISE EXCEPTION USING ERRCODE = 'T0000';
        EXCEPTION WHEN SQLSTATE 'T0000' THEN
        END;
        RETURN NEXT;
    END LOOP;
END $$;

-- Policies: kept, shown, set back, refused.
SELECT idem_scope_set('w', dedup_window => '1 day', hard_limit => '10 days', guard => '2 days', late => 'execute', issued_at_from => 'ulid');
SELECT dedup_window, hard_limit, guard, late, issued_at_from, run_is_alive FROM idempotency.scopes WHERE scope = 'w';
SELECT idem_guarantee('w');
SELECT idem_scope_reset('w', p) FROM unnest('{hard_limit,guard,late,issued_at_from,run_is_alive}'::text[]) AS p;
SELECT dedup_window, hard_limit, guard, late, issued_at_from, run_is_alive FROM idempotency.scopes WHERE scope = 'w';
SELECT test.try(format('SELECT idem_scope_set(%L, %s)', 'w', p)) FROM unnest(ARRAY[$$late => 'never'$$, $$issued_at_from => 'uuid'$$, $$guard => '0'$$, $$hard_limit => '-1 day'$$, $$guard => '200 years'$$, $$run_is_alive => ''$$, $$run_is_alive => 'no_such'$$, $$run_is_alive => 'now'$$]) AS p;

-- Within the window and past it, before a sweep and after it: the same.
BEGIN;
CALL test.endings('w', '23 hours');
SELECT * FROM test.told('w');
ROLLBACK;
BEGIN;
CALL test.endings('w', '25 hours');
SELECT * FROM test.told('w');
CALL test.sweep();
SELECT * FROM test.told('w');
ROLLBACK;
-- A changed window applies to what is there, in both directions, and so does keep_forever.
BEGIN;
CALL test.endings('w', '25 hours');
SELECT idem_scope_set('w', dedup_window => '26 hours');
SELECT key, decision, state, repeatable FROM test.told('w');
SELECT idem_scope_set('w', dedup_window => '1 hour');
SELECT key, decision, state, repeatable FROM test.told('w');
SELECT idem_scope_set('w', keep_forever => true);
SELECT key, decision, state, repeatable FROM test.told('w');
ROLLBACK;
-- Replaying moves nothing: the window counts from the finish.
BEGIN;
CALL test.endings('w', '23 hours');
SELECT window_ends_at AS before FROM idem_peek('completed', 'w') \gset
SELECT decision FROM idem_claim('completed', '{"amount": 5}', 'w');
SELECT window_ends_at = :'before' AS unmoved FROM idem_peek('completed', 'w');
ROLLBACK;

-- Friday to Monday. Without a run the key is free on Monday; with one it is not, and it goes a window after the run's end.
BEGIN;
SELECT idem_run_begin('agent', '4 days') IS NOT NULL AS begun;
CALL test.endings('w', '3 days', 'agent');
SELECT * FROM test.told('w', 'agent');
CALL test.sweep();
SELECT * FROM test.told('w', 'agent');
SELECT bool_and(window_ends_at = 'infinity') AS kept FROM idempotency.records;
SELECT idem_run_end('agent');
SELECT key, decision, state, repeatable FROM test.told('w');
UPDATE idempotency.run SET ended_at = ended_at - interval '25 hours';
SELECT key, decision, state, repeatable FROM test.told('w');
CALL test.sweep();
SELECT key, decision, state, repeatable FROM test.told('w');
ROLLBACK;
-- The run of a key is the one that it was claimed with, not one that is named later.
BEGIN;
SELECT idem_run_begin('agent', '4 days') IS NOT NULL AS begun;
CALL test.endings('w', '3 days');
SELECT key, decision, state FROM test.told('w', 'agent');
ROLLBACK;
-- A run that is begun after its keys keeps what is still there.
BEGIN;
CALL test.endings('w', '3 days', 'later');
SELECT idem_run_begin('later', '4 days') IS NOT NULL AS begun;
SELECT key, decision, state FROM test.told('w', 'later');
ROLLBACK;

-- A hard limit takes a live run's key all the same, and says so; never before the window.
SELECT idem_scope_set('w', hard_limit => '2 days');
BEGIN;
SELECT idem_run_begin('agent', '9 days') IS NOT NULL AS begun;
CALL test.endings('w', '47 hours', 'agent');
SELECT key, decision, state, repeatable FROM test.told('w', 'agent');
CALL test.age('completed', '1 hour', 'w');
SELECT key, decision, state, repeatable FROM test.told('w', 'agent');
SET LOCAL client_min_messages = warning;
CALL test.sweep();
SELECT kind, scope, key, run, from_state, to_state, reason FROM idempotency.events;
SELECT key, decision, state FROM test.told('w', 'agent');
ROLLBACK;
BEGIN;
SELECT idem_run_begin('agent', '9 days') IS NOT NULL AS begun;
SELECT idem_scope_set('w', hard_limit => '1 hour');
CALL test.endings('w', '23 hours', 'agent');
SELECT key, decision, state FROM test.told('w', 'agent');
ROLLBACK;
-- Claimed anew before a sweep saw it: the trail says that, too.
BEGIN;
SELECT idem_run_begin('agent', '9 days') IS NOT NULL AS begun;
CALL test.endings('w', '3 days', 'agent');
SELECT decision, idem_complete('completed', '2', 'w') FROM idem_claim('completed', '{"amount": 5}', 'w', run => 'agent');
SELECT kind, key, run, from_state, to_state, reason FROM idempotency.events ORDER BY kind;
ROLLBACK;
SELECT idem_scope_reset('w', 'hard_limit');

-- A guard remembers what was done, after pruning as before it.
SELECT idem_scope_set('w', guard => '2 days');
BEGIN;
CALL test.endings('w', '25 hours');
SELECT * FROM test.told('w');
CALL test.sweep();
SELECT count(*) AS outcomes FROM idempotency.outcome;
SELECT count(*) AS tombstones FROM idempotency.tombstone;
SELECT * FROM test.told('w');
SELECT test.try($$ SELECT idem_once('completed', 'SELECT $1', '{"amount": 5}', 'w') $$);
SELECT decision, enqueued FROM idem_enqueue('completed', 'mail', '{"amount": 5}', scope => 'w');
SELECT decision, reason FROM idem_claim_many(ARRAY['completed', 'new'], scope => 'w');
SELECT count(*) AS events FROM idempotency.events;
-- The guard is over.
UPDATE idempotency.tombstone SET expired_at = expired_at - interval '2 days';
SELECT key, decision, state FROM test.told('w');
CALL test.sweep();
SELECT count(*) AS tombstones FROM idempotency.tombstone;
ROLLBACK;
BEGIN;
CALL test.endings('w', '73 hours');
SELECT key, decision, state, repeatable FROM test.told('w');
CALL test.sweep();
SELECT count(*) AS tombstones FROM idempotency.tombstone;
ROLLBACK;
-- late => execute: it executes, and an event says so, before pruning and after it. The next record is one like any other.
BEGIN;
SELECT idem_scope_set('w', late => 'execute');
CALL test.endings('w', '25 hours');
SELECT key, decision, attempt, state, repeatable FROM test.told('w');
SELECT decision, idem_complete('rejected', '"yes"', 'w') FROM idem_claim('rejected', '1', 'w');
CALL test.sweep();
SELECT decision, attempt, idem_complete('completed', '2', 'w') FROM idem_claim('completed', '{"amount": 6}', 'w');
SELECT kind, key, from_state, to_state, reason FROM idempotency.events ORDER BY happened_at;
SELECT state, result FROM idem_peek('completed', 'w');
CALL test.age('completed', '25 hours', 'w');
CALL test.sweep();
SELECT count(*) AS tombstones FROM idempotency.tombstone;
SELECT idem_scope_reset('w', 'guard');
CALL test.sweep();
SELECT count(*) AS tombstones FROM idempotency.tombstone;
ROLLBACK;
-- Without a guard a late claim that finds its record still tells of it.
SELECT idem_scope_reset('w', 'guard');
BEGIN;
CALL test.endings('w', '25 hours');
SELECT decision, idem_release('completed', 'w') FROM idem_claim('completed', '{"amount": 5}', 'w');
SELECT decision, idem_release('not applied', 'w') FROM idem_claim('not applied', '1', 'w');
SELECT kind, key, from_state, to_state FROM idempotency.events;
ROLLBACK;

-- Issued too long ago: without a record there may have been one. A live run that was begun before keeps what was done in it.
BEGIN;
SELECT idem_run_begin('agent', '4 days') IS NOT NULL AS begun;
UPDATE idempotency.run SET begun_at = begun_at - interval '3 days';
SELECT decision, reason FROM idem_claim('a', scope => 'w', issued_at => clock_timestamp() - interval '25 hours');
SELECT decision, reason FROM idem_claim('a', scope => 'w', issued_at => clock_timestamp() - interval '23 hours');
SELECT decision, reason FROM idem_claim('b', scope => 'w', run => 'agent', issued_at => clock_timestamp() - interval '2 days');
SELECT decision, reason FROM idem_claim('c', scope => 'w', run => 'agent', issued_at => clock_timestamp() - interval '4 days');
SELECT decision, reason FROM idem_claim('d', scope => 'w', run => 'another', issued_at => clock_timestamp() - interval '2 days');
ROLLBACK;
-- A clock that is ahead.
SELECT test.try($$ SELECT idem_claim('ahead', scope => 'w', issued_at => clock_timestamp() + interval '61 seconds') $$);
BEGIN;
SELECT decision FROM idem_claim('ahead', scope => 'w', issued_at => clock_timestamp() + interval '50 seconds');
ROLLBACK;
-- The time of the key itself.
SELECT idem_scope_set('w', issued_at_from => 'uuidv7');
BEGIN;
CREATE FUNCTION test.uuidv7(ago interval) RETURNS text LANGUAGE sql AS $$
    SELECT overlay(overlay(gen_random_uuid()::text PLACING left(hex, 8) || '-' || right(hex, 4) FROM 1 FOR 13) PLACING '7' FROM 15 FOR 1)
      FROM (SELECT lpad(to_hex((extract(epoch FROM clock_timestamp() - ago) * 1000)::bigint), 12, '0') AS hex) AS h $$;
SELECT decision, reason FROM idem_claim(test.uuidv7('25 hours'), scope => 'w');
SELECT decision, reason FROM idem_claim(test.uuidv7('23 hours'), scope => 'w');
SELECT decision, reason FROM idem_claim(upper(test.uuidv7('25 hours')), scope => 'w');
-- What the caller says comes first.
SELECT decision FROM idem_claim(test.uuidv7('25 hours'), scope => 'w', issued_at => clock_timestamp());
SELECT ord, decision, reason FROM idem_claim_many(ARRAY[test.uuidv7('1 hour'), test.uuidv7('2 days')], scope => 'w');
SELECT decision FROM idem_enqueue(test.uuidv7('2 days'), 'mail', '1', scope => 'w');
SELECT left(test.try(format('SELECT idem_once(%L, %L, scope => %L)', test.uuidv7('2 days'), 'SELECT to_jsonb(1)', 'w')), 9);
ROLLBACK;
SELECT test.try($$ SELECT idem_claim('order-17', scope => 'w') $$);
SELECT test.try($$ SELECT idem_claim_many('{order-17}', scope => 'w') $$);
-- A record answers for itself, whatever its key looks like.
BEGIN;
SELECT idem_scope_reset('w', 'issued_at_from');
SELECT idem_once('order-17', 'SELECT to_jsonb(17)', scope => 'w');
SELECT idem_scope_set('w', issued_at_from => 'uuidv7');
SELECT decision, result FROM idem_claim('order-17', scope => 'w');
CALL test.age('order-17', '25 hours', 'w');
SELECT test.try($$ SELECT idem_claim('order-17', scope => 'w') $$);
ROLLBACK;
SELECT idem_scope_set('w', issued_at_from => 'ulid');
SELECT decision, reason FROM idem_claim('01ARZ3NDEKTSV4RRFFQ69G5FAV', scope => 'w');
SELECT test.try($$ SELECT idem_claim('81ARZ3NDEKTSV4RRFFQ69G5FAV', scope => 'w') $$);

-- A lease that ends in a local scope is answered alike before and after a sweep, run or not, window or not.
SELECT idem_scope_set('l', effect_kind => 'local', dedup_window => '1 day');
BEGIN;
SELECT idem_run_begin('agent', '9 days') IS NOT NULL AS begun;
SELECT decision FROM idem_claim('over', scope => 'l', lease => '1 minute', run => 'agent');
CALL test.age('over', '3 days', 'l');
SAVEPOINT before;
SELECT decision, attempt, reason FROM idem_claim('over', scope => 'l', run => 'agent');
ROLLBACK TO before;
CALL test.sweep();
SELECT decision, attempt, reason FROM idem_claim('over', scope => 'l', run => 'agent');
ROLLBACK;

-- Events are kept for idempotency.event_retention.
BEGIN;
INSERT INTO idempotency.event (happened_at, kind, from_state, to_state, role, pid) SELECT clock_timestamp() - g * interval '30 days', 'doubt', '-', '-', 'pg_monitor'::regrole, 0 FROM generate_series(0, 5) AS g;
CALL test.sweep();
SELECT count(*) AS kept, max(clock_timestamp() - happened_at) < interval '91 days' AS as_long_as_set FROM idempotency.event;
ROLLBACK;
