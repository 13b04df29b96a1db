-- The trail of exceptions and what waits: each step into doubt, through it and out of it leaves one event, an ordinary
-- completion none; idempotency.unresolved lists what nobody knows the outcome of, oldest first.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
TRUNCATE idempotency.message, idempotency.event;
\set ECHO all

SELECT idem_scope_set('s', backoff => '1 hour', max_backoff => '1 day', max_reconciles => 2, max_attempts => 2);
SELECT idem_scope_set('local', effect_kind => 'local');
-- The events of a key in the order of their steps. Several may share one clock reading.
CREATE FUNCTION test.trail(of_key text, OUT from_state text, OUT to_state text, OUT attempt int, OUT reason text, OUT evidence jsonb) RETURNS SETOF record LANGUAGE sql AS $$
    SELECT e.from_state, e.to_state, e.attempt, e.reason, e.evidence FROM idempotency.events AS e WHERE e.key = of_key ORDER BY e.happened_at;
$$;

-- Nothing of what ends as it should.
BEGIN;
SELECT decision, idem_complete('once', '1', 's') FROM idem_claim('once', scope => 's');
SELECT decision, idem_fail('rejected', 'rejected', 'no funds', scope => 's') FROM idem_claim('rejected', scope => 's');
SELECT decision, idem_fail('not_applied', 'not_applied', 'refused', scope => 's') FROM idem_claim('not_applied', scope => 's');
SELECT decision, idem_release('released', 's') FROM idem_claim('released', scope => 's');
COMMIT;
SELECT fence FROM idem_claim('leased', scope => 's', lease => '1 hour') \gset
SELECT idem_complete('leased', '1', 's', :fence);
SELECT decision FROM idem_enqueue('sent', 'd', '1', scope => 's');
SELECT fence FROM idem_dispatch('d', 1, '1 hour') \gset
SELECT idem_complete('sent', '1', 's', :fence);
SELECT decision FROM idem_enqueue('refused', 'd', '1', scope => 's');
SELECT fence FROM idem_dispatch('d', 1, '1 hour') \gset
SELECT idem_fail('refused', 'not_applied', 'connection refused', scope => 's', fence => :fence);
SELECT decision FROM idem_claim('local', scope => 'local', lease => '1 minute');
CALL test.age('local', '1 hour', 'local');
CALL idempotency.sweep();
SELECT key, from_state, to_state FROM idempotency.events;

-- Unknown, read in vain, read again, applied.
SELECT fence FROM idem_claim('k', scope => 's', lease => '1 hour') \gset
SELECT idem_fail('k', 'unknown', 'timeout', scope => 's', fence => :fence);
SELECT decision, fence FROM idem_claim('k', scope => 's', lease => '1 hour') \gset
SELECT idem_resolve('k', 'unknown', evidence => 'no answer'::text, scope => 's', fence => :fence);
SELECT decision, fence FROM idem_claim('k', scope => 's', lease => '1 hour') \gset
SELECT idem_resolve('k', 'applied', '{"id": 1}', '{"found": 1}'::jsonb, 's', :fence);
SELECT * FROM test.trail('k');
SELECT scope, role = current_user::regrole AS mine, pid = pg_backend_pid() AS this, application_name = current_setting('application_name') AS app,
       happened_at BETWEEN now() - interval '1 minute' AND now() AS just_now, count(*), count(DISTINCT fence) AS fences FROM idempotency.events WHERE key = 'k' GROUP BY 1, 2, 3, 4, 5;
-- Two reads in vain: escalated by itself. An operator gives it back to be tried again.
SELECT fence FROM idem_claim('e', scope => 's', lease => '1 hour') \gset
SELECT idem_fail('e', 'unknown', 'timeout', scope => 's', fence => :fence);
SELECT decision, fence FROM idem_claim('e', scope => 's', lease => '1 hour') \gset
SELECT idem_resolve('e', 'unknown', evidence => 'read 1'::text, scope => 's', fence => :fence);
SELECT decision, fence FROM idem_claim('e', scope => 's', lease => '1 hour') \gset
SELECT idem_resolve('e', 'unknown', evidence => 'read 2'::text, scope => 's', fence => :fence);
SELECT idem_resolve('e', 'unknown', evidence => 'asked, no answer yet'::text, scope => 's');
SELECT idem_resolve('e', 'not_applied', evidence => 'they have nothing'::text, scope => 's');
SELECT * FROM test.trail('e');
-- Escalated by hand, completed late by the last owner.
SELECT fence FROM idem_claim('late', scope => 's', lease => '1 hour') \gset
SELECT idem_escalate('late', 'two answers', '{"answers": [1, 2]}'::jsonb, 's', :fence);
SELECT idem_complete('late', '1', 's', :fence);
SELECT * FROM test.trail('late');
-- Unknown, then a late success; unknown, then given back as it was found; unknown, then a late rejection.
SELECT fence FROM idem_claim('success', scope => 's', lease => '1 hour') \gset
SELECT idem_fail('success', 'unknown', 'timeout', scope => 's', fence => :fence);
SELECT idem_complete('success', '1', 's', :fence);
SELECT * FROM test.trail('success');
SELECT fence FROM idem_claim('back', scope => 's', lease => '1 hour') \gset
SELECT idem_fail('back', 'unknown', 'timeout', scope => 's', fence => :fence);
SELECT decision, fence FROM idem_claim('back', scope => 's', lease => '1 hour') \gset
SELECT idem_release('back', 's', :fence);
SELECT * FROM test.trail('back');
-- The end of a lease: by a sweep.
SELECT fence FROM idem_claim('swept', scope => 's', lease => '1 hour') \gset
CALL test.age('swept', '2 hours', 's');
CALL idempotency.sweep();
SELECT idem_complete('swept', '1', 's', :fence);
SELECT * FROM test.trail('swept');
-- A message whose last try is over, requeued, sent.
SELECT decision FROM idem_enqueue('m', 'd2', '1', scope => 's');
SELECT fence FROM idem_dispatch('d2', 1, '1 hour') \gset
SELECT idem_fail('m', 'not_applied', 'refused', scope => 's', fence => :fence);
UPDATE idempotency.message SET due_at = clock_timestamp() - interval '1 ms' WHERE key = 'm';
UPDATE idempotency.claim SET retry_at = clock_timestamp() - interval '1 ms' WHERE key = 'm';
SELECT attempt, decision, fence IS NOT NULL AS fenced, set_config('test.fence', fence::text, false) <> '' AS kept FROM idem_dispatch('d2', 1, '1 hour');
SELECT idem_fail('m', 'not_applied', 'refused again', scope => 's', fence => current_setting('test.fence')::bigint);
SELECT idem_resolve('m', 'not_applied', evidence => 'their gate is open now'::text, scope => 's');
SELECT fence FROM idem_dispatch('d2', 1, '1 hour') \gset
SELECT idem_complete('m', '1', 's', :fence);
SELECT * FROM test.trail('m');
-- Transactional.
BEGIN;
SELECT decision, idem_fail('t', 'unknown', 'odd', scope => 's') FROM idem_claim('t', scope => 's');
COMMIT;
BEGIN;
SELECT decision FROM idem_claim('t', scope => 's');
SELECT idem_resolve('t', 'rejected', '{"code": 1}', 'declined'::text, 's');
COMMIT;
SELECT * FROM test.trail('t');
-- What is rolled back was not.
BEGIN;
SELECT decision, idem_fail('rolled back', 'unknown', 'odd', scope => 's') FROM idem_claim('rolled back', scope => 's');
ROLLBACK;
SELECT count(*) FROM test.trail('rolled back');
-- Refused calls leave no event.
SELECT test.try($$ SELECT idem_resolve('k', 'not_applied', scope => 's') $$);
SELECT count(*) FROM test.trail('k');
-- Other states than these there are none.
SELECT array_agg(DISTINCT from_state ORDER BY from_state) AS from_states, array_agg(DISTINCT to_state ORDER BY to_state) AS to_states FROM idempotency.events;
-- A trail without a break: each step begins where the last one ended.
SELECT key, from_state, to_state, came_from FROM (SELECT key, from_state, to_state, lag(to_state) OVER (PARTITION BY key ORDER BY happened_at) AS came_from FROM idempotency.events) AS e
 WHERE came_from <> from_state AND NOT (key = 'm' AND came_from = 'queued' AND from_state = 'in_flight') ORDER BY 1;

-- unresolved: oldest first, with all that an on-call person needs.
TRUNCATE idempotency.claim, idempotency.outcome, idempotency.message, idempotency.event;
SET application_name = 'regress_trail';
BEGIN;
SELECT decision FROM idem_claim('in flight', scope => 's', lease => '1 hour');
SELECT decision FROM idem_enqueue('queued', 'd', '1', scope => 's');
SELECT decision, idem_fail('unknown', 'unknown', 'timeout', scope => 's') FROM idem_claim('unknown', scope => 's', run => 'run 1');
SELECT decision, idem_escalate('escalated', 'two answers', '[1, 2]'::jsonb, 's') FROM idem_claim('escalated', scope => 's');
COMMIT;
SELECT decision FROM idem_claim('lease over', scope => 's', lease => '1 minute');
CALL test.age('lease over', '3 days', 's');
SELECT decision FROM idem_claim('local', scope => 'local', lease => '1 minute');
CALL test.age('local', '3 days', 'local');
SELECT decision FROM idem_enqueue('message', 'bank', '{"amount": 1}', scope => 's');
SELECT fence FROM idem_dispatch('bank', 1, '1 hour') \gset
SELECT idem_fail('message', 'unknown', 'reset', scope => 's', fence => :fence);
SELECT scope, key, state, attempt, reconciles, CASE WHEN key <> 'lease over' THEN reason END AS reason, evidence, destination, run, claimed_by = current_user::regrole AS mine, application_name,
       since IS NOT NULL AS since, first_claimed_at <= claimed_at AS first, fence IS NOT NULL AS fenced FROM idempotency.unresolved \gx
SELECT key, since = lag(since, 1, '-infinity') OVER () OR since > lag(since, 1, '-infinity') OVER () AS after_the_one_before FROM idempotency.unresolved;
SELECT retry_at BETWEEN clock_timestamp() + interval '29 minutes' AND clock_timestamp() + interval '1 hour' AS backs_off FROM idempotency.unresolved WHERE key IN ('unknown', 'message');
-- since is when the doubt began: reading it in vain does not move it.
SELECT since, fence AS old_fence FROM idempotency.unresolved WHERE key = 'unknown' \gset
SELECT decision, fence FROM idem_claim('unknown', scope => 's', lease => '1 hour') \gset
SELECT count(*) FROM idempotency.unresolved WHERE key = 'unknown';
SELECT idem_resolve('unknown', 'unknown', evidence => 'no answer'::text, scope => 's', fence => :fence);
SELECT since = :'since' AS as_before, reconciles, reason, evidence, fence > :old_fence AS newer FROM idempotency.unresolved WHERE key = 'unknown';
SELECT idem_escalate('unknown', 'enough', scope => 's');
SELECT since = :'since' AS as_before, state, reconciles, reason, evidence FROM idempotency.unresolved WHERE key = 'unknown';
-- idem_status counts them.
DELETE FROM idempotency.claim WHERE key IN ('lease over', 'local');
SELECT open_keys, unknown_keys, escalated_keys, queued_messages FROM idem_status();
-- Other sights of them.
SELECT key, state, attempt, reason FROM idempotency.records WHERE scope = 's' AND key <> 'lease over' ORDER BY key;
SELECT scope, state, attempt, reason, held_by = current_user::regrole AS mine, since IS NOT NULL AS since FROM idem_find('escalated');
SELECT scope, state, attempt, reason FROM idem_find('queued');
RESET application_name;
