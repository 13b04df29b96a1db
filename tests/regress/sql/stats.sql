-- idempotency.stats: what is counted and what is measured of each scope, and who may see it. Counters are NULL where the library is not preloaded; what is said here of them holds in both cases.
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
-- Counters that differ from these; all others must be 0. None where nothing is counted.
CREATE FUNCTION test.differs(of_scope text, expected jsonb, OUT counter text, OUT counted bigint, OUT wanted bigint) RETURNS SETOF record LANGUAGE sql AS $$
    SELECT e.key, e.value::text::bigint, coalesce((expected -> e.key)::text::bigint, 0)
      FROM idempotency.stats AS s, jsonb_each(to_jsonb(s)) AS e
     WHERE s.scope = of_scope AND s.counters_note IS NULL
       AND e.key = ANY ('{claims,executes,reconciles,replays,rejections,in_progress,mismatches,takeovers,fences_lost,completed,failed_not_applied,failed_unknown,failed_rejected,released,unknown,escalated,leases_expired,late_finishes,enqueued,dispatched,pruned,pruned_alive,late_retries}'::text[])
       AND e.value::text::bigint IS DISTINCT FROM coalesce((expected -> e.key)::text::bigint, 0) $$;
SELECT idem_scope_set('s', dedup_window => '1 day', effect_kind => 'local'), idem_scope_set('q', dedup_window => '1 day'), idem_scope_set('other');
SELECT idem_stats_reset();

-- Counted, or said why not; never some of them.
SELECT scope, (counters_note IS NULL) = (counted_since IS NOT NULL) AS since, num_nulls(claims, executes, reconciles, replays, rejections, in_progress, mismatches, takeovers, fences_lost, completed, failed_not_applied, failed_unknown, failed_rejected, released, unknown, escalated, leases_expired, late_finishes, enqueued, dispatched, pruned, pruned_alive, late_retries)
     = CASE WHEN counters_note IS NULL THEN 0 ELSE 23 END AS all_or_none, coalesce(counters_note = 'idempotency is not in shared_preload_libraries', true) AS says_why FROM idempotency.stats ORDER BY scope;
SELECT * FROM test.differs('s', '{}');

-- Each step, and what it adds.
SELECT idem_once('k1', 'SELECT to_jsonb(1)', '1', 's');
SELECT * FROM test.differs('s', '{"claims": 1, "executes": 1, "completed": 1}');
SELECT idem_once('k1', 'SELECT to_jsonb(1)', '1', 's');
SELECT idem_claim('k1', '2', 's');
SELECT * FROM test.differs('s', '{"claims": 2, "executes": 1, "completed": 1, "replays": 1, "mismatches": 1}');
BEGIN; SELECT decision, idem_release('k2', 's') FROM idem_claim('k2', scope => 's'); COMMIT;
SELECT * FROM test.differs('s', '{"claims": 3, "executes": 2, "completed": 1, "replays": 1, "mismatches": 1, "released": 1}');
SELECT idem_stats_reset('s');
SELECT * FROM test.differs('s', '{}');
SELECT decision, fence FROM idem_claim('k3', scope => 's', lease => '1 hour') \gset
SELECT decision FROM idem_claim('k3', scope => 's', wait => '0');
SELECT idem_fail('k3', 'not_applied', scope => 's', fence => :fence);
SELECT idem_fail('k3', 'not_applied', scope => 's', fence => :fence - 1);
SELECT * FROM test.differs('s', '{"claims": 2, "executes": 1, "in_progress": 1, "failed_not_applied": 1, "fences_lost": 1}');
SELECT idem_stats_reset('s');
SELECT decision, fence FROM idem_claim('k4', scope => 's', lease => '1 hour') \gset
SELECT idem_fail('k4', 'rejected', scope => 's', fence => :fence);
SELECT decision FROM idem_claim('k4', scope => 's');
SELECT * FROM test.differs('s', '{"claims": 2, "executes": 1, "failed_rejected": 1, "rejections": 1}');
SELECT idem_stats_reset('s');
SELECT decision, fence FROM idem_claim('k5', scope => 's', lease => '1 hour') \gset
SELECT idem_fail('k5', 'unknown', scope => 's', fence => :fence);
SELECT decision, fence FROM idem_claim('k5', scope => 's', lease => '1 hour') \gset
SELECT :'decision' AS decision, idem_escalate('k5', scope => 's', fence => :fence);
SELECT decision FROM idem_claim('k5', scope => 's');
SELECT * FROM test.differs('s', '{"claims": 3, "executes": 1, "failed_unknown": 1, "unknown": 1, "reconciles": 1, "escalated": 1}');
SELECT idem_stats_reset('s');
-- A takeover, and a late finish. In one transaction each, as no sweep may come between.
BEGIN;
SELECT fence FROM idem_claim('k6', scope => 's', lease => '1 minute') \gset
CALL test.age('k6', '2 minutes', 's');
SELECT decision, attempt FROM idem_claim('k6', scope => 's', lease => '1 hour');
COMMIT;
SELECT * FROM test.differs('s', '{"claims": 2, "executes": 2, "takeovers": 1, "leases_expired": 1}');
SELECT idem_stats_reset('s');
BEGIN;
SELECT fence FROM idem_claim('k7', scope => 's', lease => '1 minute') \gset
CALL test.age('k7', '2 minutes', 's');
SELECT idem_complete('k7', '1', 's', :fence);
COMMIT;
SELECT * FROM test.differs('s', '{"claims": 1, "executes": 1, "completed": 1, "late_finishes": 1}');
SELECT idem_stats_reset('s');
-- The outbox.
SELECT decision FROM idem_enqueue('m', 'mail', '1', scope => 'q');
SELECT decision, fence FROM idem_dispatch('mail', 1, '1 hour', scopes => '{q}') \gset
SELECT idem_complete('m', '1', 'q', :fence);
SELECT counter FROM test.differs('q', '{}') EXCEPT VALUES ('enqueued'), ('dispatched'), ('completed'), ('claims'), ('executes');
SELECT count(*) IN (0, 3) AS counted FROM test.differs('q', '{}') WHERE counter IN ('enqueued', 'dispatched', 'completed') AND counted = 1;
-- Pruned; pruned while its run lives; late. Some to execute, some to be told so.
BEGIN;
SELECT idem_once('k8', 'SELECT to_jsonb(1)', scope => 's');
CALL test.age('k8', '25 hours', 's');
CALL test.sweep();
COMMIT;
SELECT * FROM test.differs('s', '{"claims": 1, "executes": 1, "completed": 1, "pruned": 1}');
SELECT idem_stats_reset('s');
BEGIN;
SELECT idem_scope_set('s', hard_limit => '2 days');
SELECT idem_run_begin('agent', '9 days') IS NOT NULL AS begun;
SELECT idem_once('k9', 'SELECT to_jsonb(1)', scope => 's', run => 'agent');
CALL test.age('k9', '3 days', 's');
SET LOCAL client_min_messages = error;
CALL test.sweep();
COMMIT;
SELECT * FROM test.differs('s', '{"claims": 1, "executes": 1, "completed": 1, "pruned": 1, "pruned_alive": 1}');
-- By its events: a restart forgets counters.
SELECT count(*) AS the_doctor_says_so FROM idem_doctor() WHERE finding = 'expired_alive';
SELECT idem_stats_reset('s'), idem_scope_reset('s', 'hard_limit'), idem_run_end('agent');
SELECT count(*) AS the_doctor_says_so FROM idem_doctor() WHERE finding = 'expired_alive';
BEGIN;
SELECT idem_once('k10', 'SELECT to_jsonb(1)', scope => 's');
CALL test.age('k10', '25 hours', 's');
SELECT replayed FROM idem_once('k10', 'SELECT to_jsonb(2)', scope => 's');
SELECT idem_scope_set('s', guard => '1 day');
CALL test.age('k10', '25 hours', 's');
SELECT decision FROM idem_claim('k10', scope => 's');
-- Or a worker would prune it when the guard is gone.
SELECT idem_forget('k10', 's');
COMMIT;
SELECT * FROM test.differs('s', '{"claims": 3, "executes": 2, "completed": 2, "late_retries": 2}');
SELECT coalesce(longest_late BETWEEN '25 hours' AND '26 hours', counters_note IS NOT NULL) AS how_late FROM idempotency.stats WHERE scope = 's';
SELECT idem_scope_reset('s', 'guard'), idem_stats_reset('s');

-- What was rolled back did not happen: a transaction, a savepoint, a caught error. Refusals did.
-- Goes red without: counting at commit (src/stats.rs).
BEGIN; SELECT idem_once('r1', 'SELECT to_jsonb(1)', scope => 's'); ROLLBACK;
BEGIN; SAVEPOINT a; SELECT idem_once('r2', 'SELECT to_jsonb(1)', scope => 's'); SAVEPOINT b; SELECT idem_once('r3', 'SELECT to_jsonb(1)', scope => 's'); RELEASE b; ROLLBACK TO a; COMMIT;
DO $$ BEGIN PERFORM idem_once('r4', 'SELECT 1/0', scope => 's'); EXCEPTION WHEN division_by_zero THEN NULL; END $$;
SELECT idem_once('r5', 'SELECT 1/0', scope => 's');
BEGIN; SELECT idem_once('r6', 'SELECT to_jsonb(1)', scope => 's'); PREPARE TRANSACTION 'regress_stats';
SELECT * FROM test.differs('s', '{}');
ROLLBACK PREPARED 'regress_stats';
SELECT * FROM test.differs('s', '{}');
BEGIN; SAVEPOINT a; SELECT idem_once('r7', 'SELECT to_jsonb(1)', scope => 's'); RELEASE a; COMMIT;
BEGIN; SELECT test.try($$ SELECT idem_claim('k1', '2', 's') $$) LIKE 'ID001%' AS refused; ROLLBACK;
SELECT * FROM test.differs('s', '{"claims": 1, "executes": 1, "completed": 1, "mismatches": 1}');
-- Nothing is counted of another scope.
SELECT * FROM test.differs('other', '{}');

-- Gauges: of a scope with a key in each state, and of an empty one. In one transaction: a background worker sees nothing of it.
BEGIN;
TRUNCATE idempotency.claim, idempotency.outcome, idempotency.message, idempotency.prune_progress;
SELECT decision FROM idem_claim('in flight', scope => 's', lease => '1 hour'); CALL test.age('in flight', '2 hours', 's');
SELECT fence FROM idem_claim('unknown', scope => 's', lease => '1 hour') \gset
SELECT idem_fail('unknown', 'unknown', scope => 's', fence => :fence);
SELECT fence FROM idem_claim('escalated', scope => 's', lease => '1 hour') \gset
SELECT idem_escalate('escalated', scope => 's', fence => :fence);
UPDATE idempotency.claim SET in_doubt_since = in_doubt_since - interval '3 hours' WHERE key = 'escalated';
SELECT decision FROM idem_enqueue('queued', 'mail', '1', scope => 'q');
SELECT idem_once(key, 'SELECT to_jsonb(1)', scope => 's') FROM unnest('{a,b,c}'::text[]) AS key;
CALL test.age('a', '20 hours', 's'); CALL test.age('b', '10 hours', 's');
SELECT scope, open_keys, in_flight, queued, unknown_keys, escalated_keys, clock_timestamp() - oldest_open_at >= '2 hours' AS oldest_open, clock_timestamp() - oldest_unknown_at BETWEEN '3 hours' AND '3 hours 5 minutes' AS oldest_unknown,
       outcomes, bytes > 0 AS bytes, next_expiry_at - clock_timestamp() BETWEEN '3 hours 55 minutes' AND '4 hours' AS next_expiry, prune_lag FROM idempotency.stats ORDER BY scope;
-- Behind: from when the first of them was due. A changed window counts at once; one that never ends has no next.
CALL test.age('a', '9 hours', 's');
SELECT prune_lag BETWEEN '5 hours' AND '5 hours 5 minutes' AS behind FROM idempotency.stats WHERE scope = 's';
CALL test.sweep();
SELECT outcomes, prune_lag, next_expiry_at - clock_timestamp() BETWEEN '13 hours 55 minutes' AND '14 hours' AS next_expiry FROM idempotency.stats WHERE scope = 's';
SELECT idem_scope_set('s', dedup_window => '30 hours');
SELECT next_expiry_at - clock_timestamp() BETWEEN '19 hours 55 minutes' AND '20 hours' AS next_expiry FROM idempotency.stats WHERE scope = 's';
SELECT idem_scope_set('s', keep_forever => true);
SELECT next_expiry_at, prune_lag FROM idempotency.stats WHERE scope = 's';
-- Not behind, for rows that a live run keeps: pruning has been there.
SELECT idem_scope_set('s', keep_forever => false, dedup_window => '1 day');
SELECT idem_run_begin('agent', '9 days') IS NOT NULL AS begun;
SELECT idem_once('held', 'SELECT to_jsonb(1)', scope => 's', run => 'agent');
CALL test.age('held', '5 days', 's');
CALL test.sweep();
SELECT prune_lag FROM idempotency.stats WHERE scope = 's';
ROLLBACK;

-- Who sees what: a scope's users their own, members of pg_monitor all of them, and never a key.
CREATE ROLE regress_stats_a; CREATE ROLE regress_stats_b; CREATE ROLE regress_stats_none; CREATE ROLE regress_stats_monitor IN ROLE pg_monitor;
SELECT idem_scope_grant('s', 'regress_stats_a'), idem_scope_grant('q', 'regress_stats_b');
SELECT idem_run_begin('of the superuser', '40 days') IS NOT NULL AS begun;
SET ROLE regress_stats_a;
SELECT scope, outcomes > 0 AS outcomes FROM idempotency.stats;
SELECT scope FROM idempotency.advice; SELECT scope FROM idempotency.window_evidence;
SELECT scope FROM idempotency.hourly_activity UNION SELECT scope FROM idempotency.repeats UNION SELECT scope FROM idempotency.expiries EXCEPT VALUES ('s');
SELECT count(DISTINCT scope_id) <= 1 AS only_its_own FROM idempotency.counters();
SELECT idem_stats_reset('s');
SET ROLE regress_stats_b;
SELECT scope, outcomes > 0 AS outcomes FROM idempotency.stats;
SELECT DISTINCT scope FROM idempotency.records;
SET ROLE regress_stats_none;
SELECT scope FROM idempotency.stats;
SELECT scope FROM idempotency.advice;
SELECT count(*) FROM idempotency.sampled_outcomes;
SELECT count(*) FROM idempotency.observed;
SET ROLE regress_stats_monitor;
SELECT scope, outcomes > 0 AS outcomes FROM idempotency.stats ORDER BY scope;
SELECT count(*) AS keys FROM idempotency.records;
SELECT count(*) AS runs FROM idempotency.runs;
SELECT count(*) AS events FROM idempotency.events;
SELECT verdict FROM idem_window_advice('s');
SELECT idem_window_advice('no such scope');
SELECT idem_stats_reset('s');
RESET ROLE;
SELECT idem_scope_revoke('s', 'regress_stats_a'), idem_scope_revoke('q', 'regress_stats_b');
TRUNCATE idempotency.run, idempotency.run_sign, idempotency.event;
DROP ROLE regress_stats_a, regress_stats_b, regress_stats_none, regress_stats_monitor;
