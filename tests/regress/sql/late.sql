-- Calls that come too late: what the guard remembers, what issued_at says of a key without a record, and that pruning changes neither.
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
-- What a call would be told, before a sweep and after it. Goes red where they differ: pruning would then change an answer.
CREATE FUNCTION test.asked(call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE said text;
BEGIN
    BEGIN
        EXECUTE format('SELECT concat_ws('' '', decision, reason) FROM %s', call) INTO said;
        RAISE EXCEPTION USING ERRCODE = 'T0000';
    EXCEPTION WHEN SQLSTATE 'T0000' THEN RETURN said;
    END;
END $$;
CREATE PROCEDURE test.both(call text, OUT before text, OUT after text, OUT same bool) LANGUAGE plpgsql AS $$
BEGIN
    before := test.asked(call);
    BEGIN
        CALL test.sweep();
        after := test.asked(call);
        RAISE EXCEPTION USING ERRCODE = 'T0000';
    EXCEPTION WHEN SQLSTATE 'T0000' THEN
    END;
    same := before = after;
END $$;
CREATE FUNCTION test.ulid(made_at timestamptz) RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', 1 + ((ms >> (5 * (9 - i))) & 31)::int, 1), '' ORDER BY i) || 'TSV4RRFFQ69G5FAV'
      FROM (SELECT floor(extract(epoch FROM made_at) * 1000)::bigint AS ms) AS t, generate_series(0, 9) AS i $$;
CREATE FUNCTION test.done(args jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT '"done"'::jsonb $$;
SELECT idem_scope_set('w', dedup_window => '1 day', effect_kind => 'local'), idem_scope_set('q', dedup_window => '1 day');

-- The guard: every way to claim. Other arguments are no mismatch any more: nothing of them is remembered after the prune.
BEGIN;
SELECT idem_scope_set('w', guard => '2 days');
SELECT idem_once('k', 'SELECT to_jsonb(1)', '1', 'w');
CALL test.age('k', '25 hours', 'w');
CALL test.both($$ idem_claim('k', '1', 'w') $$, NULL, NULL, NULL);
CALL test.both($$ idem_claim('k', '2', 'w') $$, NULL, NULL, NULL);
CALL test.both($$ idem_claim('k', '1', 'w', lease => '1 minute', wait => '1 second') $$, NULL, NULL, NULL);
CALL test.both($$ idem_claim('k', '1', 'w', run => 'some run') $$, NULL, NULL, NULL);
CALL test.both($$ idem_claim_many('{k}', scope => 'w') $$, NULL, NULL, NULL);
CALL test.both($$ idem_claim('k', '1', 'w', issued_at => clock_timestamp()) $$, NULL, NULL, NULL);
CALL test.sweep();
SELECT test.try($$ SELECT idem_once('k', 'SELECT to_jsonb(1)', '1', 'w') $$);
SELECT test.try($$ SELECT idem_call('k', 'test.done', '1', 'w') $$);
-- Nothing is finished or given back that has only been remembered.
SELECT left(test.try(format('SELECT %s', call)), 62) FROM unnest(ARRAY[$$idem_complete('k', '1', 'w')$$, $$idem_fail('k', 'not_applied', scope => 'w')$$, $$idem_release('k', 'w')$$, $$idem_resolve('k', 'applied', scope => 'w')$$]) AS call;
-- What is asked late and refused leaves nothing behind.
SELECT (SELECT count(*) FROM idempotency.event) AS events, (SELECT count(*) FROM idempotency.claim) AS claims, (SELECT count(*) FROM idempotency.tombstone) AS tombstones;
SELECT state, attempt, result, run, fence IS NULL AS no_fence, finished_at, clock_timestamp() - window_ends_at < '70 minutes' AS window_ended, repeatable_at - window_ends_at AS guarded FROM idem_peek('k', 'w');
SELECT scope, state, window_ends_at IS NOT NULL AS says_when FROM idem_find('k');
-- A changed policy applies at once to what is remembered.
SELECT idem_scope_set('w', guard => '30 minutes'); SELECT test.asked($$ idem_claim('k', '1', 'w') $$), state FROM idem_peek('k', 'w');
SELECT idem_scope_set('w', guard => '10 days'); SELECT test.asked($$ idem_claim('k', '1', 'w') $$), repeatable_at - window_ends_at AS guarded FROM idem_peek('k', 'w');
SELECT idem_scope_set('w', late => 'execute'); SELECT test.asked($$ idem_claim('k', '1', 'w') $$), repeatable_at - window_ends_at AS guarded FROM idem_peek('k', 'w');
SELECT idem_scope_reset('w', 'guard'); SELECT test.asked($$ idem_claim('k', '1', 'w') $$), state FROM idem_peek('k', 'w');
ROLLBACK;
-- A message that comes late is not sent again.
BEGIN;
SELECT idem_scope_set('q', guard => '2 days');
SELECT idem_once('mail', 'SELECT to_jsonb(1)', scope => 'q');
CALL test.age('mail', '25 hours', 'q');
SELECT decision, enqueued FROM idem_enqueue('mail', 'out', '1', scope => 'q');
CALL test.sweep();
SELECT decision, enqueued FROM idem_enqueue('mail', 'out', '1', scope => 'q');
SELECT count(*) AS messages FROM idempotency.message;
-- With late => execute it is, and the trail says so.
SELECT idem_scope_set('q', late => 'execute');
SELECT decision, enqueued FROM idem_enqueue('mail', 'out', '1', scope => 'q');
SELECT kind, key, from_state, to_state, reason FROM idempotency.events;
ROLLBACK;
-- Only what was done, or answered for good, is remembered.
BEGIN;
SELECT idem_scope_set('w', guard => '2 days');
SELECT fence FROM idem_claim('rejected', scope => 'w', lease => '1 minute') \gset
SELECT idem_fail('rejected', 'rejected', scope => 'w', fence => :fence);
SELECT fence FROM idem_claim('not applied', scope => 'w', lease => '1 minute') \gset
SELECT idem_fail('not applied', 'not_applied', scope => 'w', fence => :fence);
SELECT decision FROM idem_claim('over', scope => 'w', lease => '1 minute');
CALL test.age('rejected', '25 hours', 'w'); CALL test.age('not applied', '25 hours', 'w'); CALL test.age('over', '25 hours', 'w');
CALL test.both($$ idem_claim('rejected', scope => 'w') $$, NULL, NULL, NULL);
CALL test.both($$ idem_claim('not applied', scope => 'w') $$, NULL, NULL, NULL);
CALL test.both($$ idem_claim('over', scope => 'w') $$, NULL, NULL, NULL);
CALL test.sweep();
SELECT count(*) AS tombstones FROM idempotency.tombstone;
ROLLBACK;
-- With a run the guard counts from the end of what the run added.
BEGIN;
SELECT idem_scope_set('w', guard => '2 days');
SELECT idem_run_begin('agent', '9 days') IS NOT NULL AS begun;
SELECT idem_once('k', 'SELECT to_jsonb(1)', '1', 'w', run => 'agent');
CALL test.age('k', '7 days', 'w');
CALL test.both($$ idem_claim('k', '1', 'w') $$, NULL, NULL, NULL);
SELECT idem_run_end('agent');
UPDATE idempotency.run SET ended_at = ended_at - interval '25 hours';
CALL test.both($$ idem_claim('k', '1', 'w') $$, NULL, NULL, NULL);
UPDATE idempotency.run SET ended_at = ended_at - interval '46 hours';
CALL test.both($$ idem_claim('k', '1', 'w') $$, NULL, NULL, NULL);
UPDATE idempotency.run SET ended_at = ended_at - interval '2 hours';
CALL test.both($$ idem_claim('k', '1', 'w') $$, NULL, NULL, NULL);
ROLLBACK;
-- And with a hard limit from there.
BEGIN;
SELECT idem_scope_set('w', guard => '2 days', hard_limit => '3 days');
SELECT idem_run_begin('agent', '30 days') IS NOT NULL AS begun;
SELECT idem_once('k', 'SELECT to_jsonb(1)', '1', 'w', run => 'agent');
SET LOCAL client_min_messages = error;
CALL test.age('k', '71 hours', 'w'); CALL test.both($$ idem_claim('k', '1', 'w') $$, NULL, NULL, NULL);
CALL test.age('k', '2 hours', 'w'); CALL test.both($$ idem_claim('k', '1', 'w') $$, NULL, NULL, NULL);
CALL test.age('k', '48 hours', 'w'); CALL test.both($$ idem_claim('k', '1', 'w') $$, NULL, NULL, NULL);
ROLLBACK;

-- late => execute, with the guard: the event, once, with what is known of the first time. A claim that is rolled back or given back was none.
BEGIN;
SELECT idem_scope_set('w', guard => '2 days', late => 'execute');
SELECT idem_once('k', 'SELECT to_jsonb(1)', '1', 'w', run => 'first run');
CALL test.age('k', '25 hours', 'w');
SAVEPOINT s;
SELECT decision, attempt, idem_complete('k', '2', 'w') FROM idem_claim('k', '1', 'w', run => 'second run');
SELECT kind, scope, key, run, from_state, to_state, fence IS NOT NULL AS fenced, attempt, reason FROM idempotency.events;
SELECT decision, result FROM idem_claim('k', '1', 'w');
ROLLBACK TO s;
SELECT count(*) AS events FROM idempotency.events;
CALL test.sweep();
SELECT decision, attempt, idem_complete('k', '2', 'w') FROM idem_claim('k', '1', 'w', run => 'second run');
SELECT kind, scope, key, run, from_state, to_state, fence IS NOT NULL AS fenced, attempt, reason FROM idempotency.events;
SELECT decision, result FROM idem_claim('k', '1', 'w');
ROLLBACK;
-- A claim that is given back restores what it found: the key is still remembered.
BEGIN;
SELECT idem_scope_set('w', guard => '2 days', late => 'execute');
SELECT idem_once('k', 'SELECT to_jsonb(1)', '1', 'w');
CALL test.age('k', '25 hours', 'w');
CALL test.sweep();
SELECT decision, idem_release('k', 'w') FROM idem_claim('k', '1', 'w');
SELECT fence FROM idem_claim('k', '1', 'w', lease => '1 minute') \gset
SELECT idem_release('k', 'w', :fence);
SELECT idem_scope_set('w', late => 'expired');
SELECT test.asked($$ idem_claim('k', '1', 'w') $$);
ROLLBACK;
BEGIN;
SELECT idem_scope_set('w', guard => '2 days', late => 'execute');
SELECT idem_once('k', 'SELECT to_jsonb(1)', '1', 'w');
CALL test.age('k', '25 hours', 'w');
SELECT fence FROM idem_claim('k', '1', 'w', lease => '1 minute') \gset
SELECT idem_release('k', 'w', :fence);
SELECT idem_scope_set('w', late => 'expired');
SELECT test.asked($$ idem_claim('k', '1', 'w') $$);
ROLLBACK;
-- The second record's own window and guard count, not those of the first.
BEGIN;
SELECT idem_scope_set('w', guard => '2 days', late => 'execute');
SELECT idem_once('k', 'SELECT to_jsonb(1)', '1', 'w');
CALL test.age('k', '60 hours', 'w'); CALL test.sweep();
SELECT replayed FROM idem_once('k', 'SELECT to_jsonb(2)', '1', 'w');
UPDATE idempotency.tombstone SET expired_at = expired_at - interval '3 days'; CALL test.sweep();
SELECT result, replayed FROM idem_once('k', 'SELECT to_jsonb(3)', '1', 'w');
CALL test.age('k', '25 hours', 'w'); CALL test.sweep();
SELECT count(*) AS tombstones, bool_and(clock_timestamp() - expired_at < '2 hours') AS of_the_second FROM idempotency.tombstone;
SELECT idem_scope_set('w', late => 'expired');
SELECT test.asked($$ idem_claim('k', '1', 'w') $$);
ROLLBACK;

-- issued_at: without a record there may have been one. What is on record answers for itself, whatever was issued when.
BEGIN;
CREATE TEMPORARY TABLE old AS SELECT clock_timestamp() - interval '25 hours' AS at;
SELECT idem_once('done', 'SELECT to_jsonb(1)', scope => 'w');
SELECT fence FROM idem_claim('not applied', scope => 'w', lease => '1 minute') \gset
SELECT idem_fail('not applied', 'not_applied', scope => 'w', fence => :fence);
SELECT fence FROM idem_claim('unknown', scope => 'w', lease => '1 minute') \gset
SELECT idem_fail('unknown', 'unknown', scope => 'w', fence => :fence);
SELECT decision FROM idem_claim('in flight', scope => 'w', lease => '1 hour');
SELECT key, test.asked(format('idem_claim(%L, scope => %L, issued_at => %L)', key, 'w', at)) FROM old, unnest('{done,not applied,unknown,in flight,absent}'::text[]) AS key;
-- Past the window the record says nothing, before the prune as after it.
CALL test.age('done', '2 days', 'w'); CALL test.age('not applied', '2 days', 'w');
CALL test.both($$ idem_claim('done', scope => 'w', issued_at => clock_timestamp() - interval '25 hours') $$, NULL, NULL, NULL);
CALL test.both($$ idem_claim('done', scope => 'w', issued_at => clock_timestamp() - interval '23 hours') $$, NULL, NULL, NULL);
CALL test.both($$ idem_claim('not applied', scope => 'w', issued_at => clock_timestamp() - interval '25 hours') $$, NULL, NULL, NULL);
ROLLBACK;
-- The window is that of the scope as it is now; for ever is for ever; the ends of time.
BEGIN;
SELECT test.asked($$ idem_claim('k', scope => 'w', issued_at => clock_timestamp() - interval '25 hours') $$);
SELECT idem_scope_set('w', dedup_window => '26 hours');
SELECT test.asked($$ idem_claim('k', scope => 'w', issued_at => clock_timestamp() - interval '25 hours') $$);
SELECT test.try(format('SELECT idem_claim(%L, scope => %L, issued_at => %L)', 'k', 'w', at)) FROM unnest('{-infinity,infinity}'::timestamptz[]) AS at;
SELECT idem_scope_set('w', keep_forever => true);
SELECT test.asked($$ idem_claim('k', scope => 'w', issued_at => '2000-01-01') $$);
ROLLBACK;
-- A run that has lived since keeps what was done in it: alive, and a window after its end. Not one that was begun again since, and not past a hard limit.
BEGIN;
SELECT idem_run_begin('agent', '9 days') IS NOT NULL AS begun;
UPDATE idempotency.run SET begun_at = begun_at - interval '8 days', seen_at = seen_at - interval '1 day';
\set issued 'test.asked($$ idem_claim($k$k$k$, scope => $k$w$k$, run => $k$agent$k$, issued_at => clock_timestamp() - interval $k$7 days$k$) $$)'
SELECT :issued;
SELECT idem_scope_set('w', hard_limit => '6 days'); SELECT :issued; SELECT idem_scope_set('w', hard_limit => '8 days'); SELECT :issued; SELECT idem_scope_reset('w', 'hard_limit');
SELECT idem_run_end('agent'); SELECT :issued;
UPDATE idempotency.run SET ended_at = ended_at - interval '23 hours'; SELECT :issued;
UPDATE idempotency.run SET ended_at = ended_at - interval '2 hours'; SELECT :issued;
SELECT idem_run_begin('agent', '9 days') IS NOT NULL AS begun; SELECT :issued;
ROLLBACK;
-- A predicate of the scope says nothing about the past.
BEGIN;
CREATE FUNCTION test.alive(run text) RETURNS bool LANGUAGE sql AS $$ SELECT true $$;
SELECT idem_scope_set('w', run_is_alive => 'test.alive');
SELECT idem_run_begin('agent', '9 days') IS NOT NULL AS begun;
UPDATE idempotency.run SET begun_at = begun_at - interval '8 days';
SELECT :issued;
ROLLBACK;

-- The time of a ULID, in any case, through every way to claim.
BEGIN;
SELECT idem_scope_set('w', issued_at_from => 'ulid'), idem_scope_set('q', issued_at_from => 'ulid');
SELECT test.ulid('2016-07-30 23:54:10.259+00') AS the_example_of_the_specification;
SELECT test.ulid(clock_timestamp() - interval '25 hours') AS late, test.ulid(clock_timestamp() - interval '23 hours') AS in_time, test.ulid(clock_timestamp() + interval '2 minutes') AS ahead \gset
SELECT test.asked(format('idem_claim(%L, scope => %L)', key, 'w')) FROM unnest(ARRAY[:'late', lower(:'late'), :'in_time']) AS key;
SELECT ord, decision, reason FROM idem_claim_many(ARRAY[:'in_time', :'late'], scope => 'w');
SELECT idem_release(:'in_time', 'w');
SELECT decision, enqueued FROM idem_enqueue(:'late', 'out', '1', scope => 'q');
SELECT replace(test.try(format('SELECT idem_once(%L, %L, scope => %L)', :'late', 'SELECT to_jsonb(1)', 'w')), :'late', 'LATE');
SELECT replace(test.try(format('SELECT idem_call(%L, %L, scope => %L)', :'late', 'test.done', 'w')), :'late', 'LATE');
SELECT replace(test.try(format('SELECT idem_claim(%L, scope => %L)', :'ahead', 'w')), :'ahead', 'AHEAD');
-- The caller's own word counts before that of the key.
SELECT test.asked(format('idem_claim(%L, scope => %L, issued_at => clock_timestamp())', :'late', 'w')), test.asked(format('idem_claim(%L, scope => %L, issued_at => clock_timestamp() - interval %L)', :'in_time', 'w', '2 days'));
-- What is none is refused, by every one of them, and nothing is claimed.
SELECT test.try(call) FROM unnest(ARRAY[$$SELECT idem_claim('order-17', scope => 'w')$$, $$SELECT idem_enqueue('order-17', 'out', '1', scope => 'q')$$, $$SELECT idem_once('order-17', 'SELECT to_jsonb(1)', scope => 'w')$$, $$SELECT idem_call('order-17', 'test.done', scope => 'w')$$]) AS call;
SELECT split_part(test.try(format('SELECT idem_claim_many(ARRAY[%L, %L], scope => %L)', :'in_time', 'order-17', 'w')), E'\n', 1);
SELECT count(*) AS claimed FROM idempotency.records;
ROLLBACK;
-- A key that was open before the scope took times from keys is finished as ever.
BEGIN;
SELECT fence FROM idem_claim('order-17', scope => 'w', lease => '1 minute') \gset
SELECT idem_scope_set('w', issued_at_from => 'uuidv7');
SELECT idem_renew('order-17', '2 minutes', 'w', :fence) IS NOT NULL AS renewed, idem_complete('order-17', '1', 'w', :fence);
SELECT decision, result FROM idem_claim('order-17', scope => 'w');
ROLLBACK;
-- A window that becomes longer brings nothing back: what was pruned under the shorter one is not "never done". How far
-- that goes is part of dumps, and nothing that rolls back moves it.
BEGIN;
SELECT idem_scope_set('w', dedup_window => '1 hour');
SELECT id AS w FROM idempotency.scope WHERE name = 'w' \gset
SELECT idem_once(key, 'SELECT to_jsonb(1)', scope => 'w') FROM unnest('{gone,last}'::text[]) AS key;
UPDATE idempotency.outcome SET finished_at = finished_at - CASE key WHEN 'gone' THEN interval '3 hours' ELSE interval '2 hours' END;
SAVEPOINT pruned;
SELECT outcomes_pruned FROM idem_sweep();
ROLLBACK TO pruned;
SELECT count(*) AS horizons FROM idempotency.prune_horizon WHERE scope_id = :w;
SELECT outcomes_pruned FROM idem_sweep();
SELECT idem_scope_set('w', dedup_window => '30 days');
\set issued 'idem_claim($k$gone$k$, scope => $k$w$k$, issued_at => clock_timestamp() - interval $k$%s$k$)'
SELECT ago, test.asked(format(:'issued', ago)) FROM unnest('{3 hours,61 minutes,59 minutes}'::text[]) AS ago;
SELECT idem_scope_set('w', keep_forever => true);
SELECT ago, test.asked(format(:'issued', ago)) FROM unnest('{3 hours,61 minutes,59 minutes}'::text[]) AS ago;
-- What a clock that was ahead has pruned was finished by now: a sweep says so when the clock is right again.
SELECT idem_scope_reset('w', 'keep_forever'), idem_scope_set('w', dedup_window => '30 days');
UPDATE idempotency.prune_horizon SET finished_until = clock_timestamp() + interval '1 year';
SELECT test.asked(format(:'issued', '1 minute'));
SELECT leases_ended, outcomes_pruned FROM idem_sweep();
SELECT test.asked(format(:'issued', '1 minute')), test.asked(format(:'issued', '-1 second'));
-- The run has kept what was done in it.
SELECT idem_run_begin('agent', '9 days') IS NOT NULL AS begun;
UPDATE idempotency.run SET begun_at = begun_at - interval '8 days';
SELECT test.asked($$ idem_claim('k', scope => 'w', run => 'agent', issued_at => clock_timestamp() - interval '7 days') $$);
SELECT idem_scope_drop('w');
SELECT count(*) AS horizons FROM idempotency.prune_horizon WHERE scope_id = :w;
ROLLBACK;
