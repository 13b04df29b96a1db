-- Looking: idem_peek, idem_find, the view records, idem_status.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

SELECT idem_scope_set('local', effect_kind => 'local', keep_forever => true);
SELECT idem_scope_set('other', dedup_window => '1 hour');
SET application_name = 'look 1';
-- One key in each state.
SELECT decision FROM idem_claim('in flight', '1', lease => '30 minutes', run => 'run/1');
SELECT fence FROM idem_claim('unknown', lease => '1 minute', run => 'run/1') \gset
SELECT idem_fail('unknown', 'unknown', 'timeout', fence => :fence);
SELECT decision FROM idem_claim('lease over', scope => 'local', lease => '1 minute');
SELECT fence FROM idem_claim('completed', lease => '1 minute', run => 'run/1') \gset
SELECT idem_complete('completed', '{"id": 1}', fence => :fence);
SELECT fence FROM idem_claim('rejected', scope => 'other', lease => '1 minute') \gset
SELECT idem_fail('rejected', 'rejected', 'declined', '51', 'other', :fence);
SELECT fence FROM idem_claim('not applied', scope => 'local', lease => '1 minute') \gset
SELECT idem_fail('not applied', 'not_applied', 'refused', scope => 'local', fence => :fence);
SELECT result FROM idem_once('once', 'SELECT $1', '1', run => 'run/2');
RESET application_name;
CALL test.age('lease over', '1 hour', 'local');
CALL idempotency.sweep();

SELECT k.scope, k.key, p.state, p.attempt, p.fence IS NOT NULL AS fenced, p.result, p.reason, p.run, p.claimed_by = current_user::regrole AS by_me, p.application_name,
       p.claimed_at IS NOT NULL AS claimed, p.lease_expires_at - p.claimed_at AS lease, p.finished_at >= p.claimed_at AS finished, p.window_ends_at - p.finished_at AS window
  FROM (VALUES ('default', 'in flight'), ('default', 'unknown'), ('default', 'completed'), ('other', 'rejected'), ('default', 'once'), ('default', 'absent'), ('other', 'completed')) AS k (scope, key),
       idem_peek(k.key, k.scope) AS p;
SELECT state, reason, finished_at - claimed_at < interval '1 hour' AS when_its_lease_ended, window_ends_at FROM idem_peek('lease over', 'local');
SELECT state, reason, window_ends_at FROM idem_peek('not applied', 'local');

-- The view shows the same of all of them.
SELECT r.scope, r.key, r.state, (p.state, p.attempt, p.fence, p.result, p.reason, p.run, p.claimed_by, p.application_name, p.claimed_at, p.lease_expires_at, p.finished_at, p.window_ends_at)
       IS NOT DISTINCT FROM (r.state, r.attempt, r.fence, r.result, r.reason, r.run, r.claimed_by, r.application_name, r.claimed_at, r.lease_expires_at, r.finished_at, r.window_ends_at) AS as_peeked
  FROM idempotency.records AS r, idem_peek(r.key, r.scope) AS p ORDER BY r.scope, r.key;
SELECT scope, key, state FROM idempotency.records WHERE run = 'run/1' ORDER BY key;

-- idem_find: what happened to this key, anywhere; who holds it, and since when.
SELECT fence FROM idem_claim('everywhere', lease => '1 minute') \gset
SELECT idem_complete('everywhere', '1', fence => :fence);
SELECT decision FROM idem_claim('everywhere', scope => 'other', lease => '30 minutes', run => 'run/3');
SELECT scope, state, held_by = current_user::regrole AS by_me, pid = pg_backend_pid() AS this_session, since = coalesce(finished_at, lease_expires_at - interval '30 minutes') AS since, attempt, run, result
  FROM idem_find('everywhere') ORDER BY scope;
SELECT scope, state, held_by = current_user::regrole AS by_me, application_name, pid = pg_backend_pid() AS this_session FROM idem_find('in flight');
SELECT count(*) FROM idem_find('absent');
-- A transactional claim is nowhere but in the lock table until it is finished; idem_find looks there too.
SET application_name = 'look 2';
BEGIN;
SELECT decision FROM idem_claim('now', scope => 'local');
SELECT scope, state, held_by = current_user::regrole AS by_me, application_name, pid = pg_backend_pid() AS this_session, since = now() AS since_begin FROM idem_find('now');
SELECT :peek('now', 'local');
SELECT idem_complete('now', '7', 'local');
SELECT state, result FROM idem_peek('now', 'local');
SELECT state, result, pid = pg_backend_pid() AS this_session FROM idem_find('now');
ROLLBACK;
SELECT count(*) FROM idem_find('now');
-- A transaction that is finishing a leased claim says more than the lease.
BEGIN;
SELECT idem_renew('in flight', '10 minutes', fence => fence) IS NOT NULL AS renewed FROM idem_peek('in flight');
SELECT scope, state, application_name, pid = pg_backend_pid() AS this_session, since = now() AS since_begin FROM idem_find('in flight');
ROLLBACK;
RESET application_name;

-- Looking writes nothing and locks no key; a replay writes nothing either.
BEGIN;
SELECT count(*) > 0 AS seen FROM idempotency.records;
SELECT count(*) FROM idem_find('completed');
SELECT state FROM idem_peek('completed');
SELECT decision FROM idem_claim('completed');
SELECT decision FROM idem_claim('in flight', '1');
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid, (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS key_locks;
COMMIT;

-- One snapshot: what a repeatable read transaction saw it goes on seeing.
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SELECT state FROM idem_peek('completed');
COMMIT;

-- A parallel plan sees the same.
BEGIN;
INSERT INTO idempotency.outcome (digest, finished_at, fence, scope_id, attempt, args_rule, state, key)
    SELECT md5(g::text)::uuid, clock_timestamp(), g, 0, 1, 0, 'c', 'many ' || g FROM generate_series(1, 20000) AS g;
SET LOCAL parallel_setup_cost = 0;
SET LOCAL parallel_tuple_cost = 0;
SET LOCAL min_parallel_table_scan_size = 0;
CREATE FUNCTION test.is_parallel(query text) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE line text;
BEGIN
    FOR line IN EXECUTE 'EXPLAIN ' || query LOOP
        IF line ~ 'Gather' THEN RETURN true; END IF;
    END LOOP;
    RETURN false;
END
$$;
SELECT test.is_parallel('SELECT count(*) FROM idempotency.records WHERE key LIKE ''many %''');
SELECT count(*), count(window_ends_at) FROM idempotency.records WHERE key LIKE 'many %';
CREATE ROLE regress_idem_look;
SET LOCAL ROLE regress_idem_look;
SELECT test.is_parallel('SELECT count(*) FROM idempotency.records WHERE key LIKE ''many %''');
SELECT count(*) FROM idempotency.records WHERE key LIKE 'many %';
RESET ROLE;
ROLLBACK;

-- idem_status: what is open, and whether anything sweeps here. A visit of the worker that met the TRUNCATE at the head of this file gave up
-- its wait for the lock, and says so.
BEGIN;
SELECT decision FROM idem_claim('overdue', lease => '1 minute');
CALL test.age('overdue', '1 hour');
SELECT open_keys, leases_overdue, unknown_keys FROM idem_status();
SELECT version = (SELECT extversion FROM pg_extension WHERE extname = 'idempotency') AS version,
       preloaded = (current_setting('shared_preload_libraries') ~ 'idempotency') AS preloaded,
       preloaded OR (worker ~ '^no worker: ' AND launcher_pid IS NULL AND last_sweep_at IS NULL AND last_leases_ended IS NULL AND last_outcomes_pruned IS NULL) AS says_that_none_sweeps,
       NOT preloaded OR launcher_pid IS NOT NULL AS has_a_launcher, last_error IS NULL OR preloaded AND last_error = 'canceling statement due to lock timeout' AS no_other_error
  FROM idem_status();
ROLLBACK;
