-- From 0.1.0 to 0.2.0: up to when outcomes may have been pruned is written down, for claims with issued_at.
\echo Use "ALTER EXTENSION idempotency UPDATE TO '0.2.0'" to load this file. \quit

CREATE TABLE idempotency.prune_horizon (
    scope_id       pg_catalog.int4 NOT NULL,
    finished_until pg_catalog.timestamptz NOT NULL,
    CONSTRAINT prune_horizon_scope_id_pkey PRIMARY KEY (scope_id)
) WITH (fillfactor = 60);
COMMENT ON TABLE idempotency.prune_horizon IS 'up to when of its finishing an outcome of the scope may have been pruned, under whatever window: a call issued before then is told expired';
SELECT pg_catalog.pg_extension_config_dump('idempotency.prune_horizon', '');

-- What is known of what went before.
INSERT INTO idempotency.prune_horizon (scope_id, finished_until)
SELECT scope_id, frontier FROM idempotency.prune_progress WHERE frontier OPERATOR(pg_catalog.>) '-infinity'::pg_catalog.timestamptz;

-- One look at each table, and not one for each scope and run.
CREATE OR REPLACE VIEW idempotency.window_evidence WITH (security_barrier) AS
    WITH scopes AS (
        SELECT s.id, s.name, s.hard_limit, s.guard, s.run_is_alive FROM idempotency.scope AS s
        UNION ALL
        SELECT 0, 'default', NULL, NULL, NULL WHERE NOT EXISTS (SELECT FROM idempotency.scope AS s WHERE s.id OPERATOR(pg_catalog.=) 0)
    ), runs AS MATERIALIZED (
        -- Those that were seen last: enough to judge by.
        SELECT i.run, i.longest_pause, i.begun_at, CASE WHEN i.ended_at IS NULL OR i.is_silent THEN o.over_at ELSE i.ended_at END AS over_at
          FROM (SELECT l.* FROM idempotency.run AS l
                 WHERE l.scope_id IS NULL AND pg_catalog.isfinite(l.begun_at) AND pg_catalog.isfinite(l.seen_at)
                   AND pg_catalog.isfinite(COALESCE(l.ended_at, l.seen_at))
                 ORDER BY l.seen_at DESC LIMIT 200) AS i
         CROSS JOIN LATERAL (SELECT idempotency.run_over_at(GREATEST(i.seen_at, pg_catalog.max(g.seen_at)), i.longest_pause) AS over_at
                               FROM idempotency.run_sign AS g WHERE g.digest OPERATOR(pg_catalog.=) i.digest) AS o
    ), finished AS (
        -- Which scopes their keys are in: of a run with very many, the first will do.
        SELECT k.scope_id,
               pg_catalog.max(r.longest_pause) FILTER (WHERE r.over_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()) AS guarded_pause,
               pg_catalog.max(LEAST(r.over_at, pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.-) r.begun_at) AS longest_run
          FROM runs AS r
         CROSS JOIN LATERAL (SELECT DISTINCT o.scope_id
                               FROM (SELECT t.scope_id FROM idempotency.outcome AS t WHERE t.run OPERATOR(pg_catalog.=) r.run LIMIT 2000) AS o) AS k
         GROUP BY k.scope_id
    ), open AS (
        SELECT k.scope_id,
               pg_catalog.max(r.longest_pause) FILTER (WHERE r.over_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()) AS guarded_pause,
               pg_catalog.min(COALESCE(k.in_doubt_since, k.lease_expires_at, k.claimed_at))
                   FILTER (WHERE k.state OPERATOR(pg_catalog.=) ANY (ARRAY['u', 'e']::pg_catalog."char"[])
                             AND pg_catalog.isfinite(COALESCE(k.in_doubt_since, k.lease_expires_at, k.claimed_at))) AS in_doubt_since,
               pg_catalog.min(k.lease_expires_at)
                   FILTER (WHERE k.state OPERATOR(pg_catalog.=) 'f' AND k.lease_expires_at OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp()) AS overdue_since,
               pg_catalog.max(k.claimed_at) FILTER (WHERE pg_catalog.isfinite(k.claimed_at)) AS newest_at
          FROM idempotency.claim AS k LEFT JOIN runs AS r ON r.run OPERATOR(pg_catalog.=) k.run
         GROUP BY k.scope_id
    ), expired AS (
        SELECT e.scope_id, pg_catalog.count(*) AS expired_alive
          FROM idempotency.event AS e LEFT JOIN idempotency.observed AS b ON b.scope_id OPERATOR(pg_catalog.=) e.scope_id
         WHERE e.kind OPERATOR(pg_catalog.=) 'expired_alive'
           AND e.happened_at OPERATOR(pg_catalog.>) COALESCE(b.reset_at, '-infinity')
         GROUP BY e.scope_id
    )
    SELECT s.id AS scope_id, s.name AS scope, d.dedup_window,
           GREATEST(b.longest_repeat, c.longest_repeat) AS longest_repeat,
           GREATEST(b.longest_late, c.longest_late) AS longest_late,
           GREATEST(b.longest_unknown, c.longest_unknown, pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) o.in_doubt_since) AS longest_unknown,
           -- By each part of the key that ends before a slash: a run may have slashes, too.
           (SELECT pg_catalog.max(r.longest_pause)
              FROM ((SELECT k.key
                       FROM idempotency.outcome AS k
                      WHERE k.scope_id OPERATOR(pg_catalog.=) s.id AND k.run IS NULL
                        AND EXISTS (SELECT FROM runs AS r WHERE r.longest_pause OPERATOR(pg_catalog.>) d.dedup_window)
                      ORDER BY k.finished_at DESC LIMIT 2000)
                    UNION ALL
                    (SELECT k.key
                       FROM idempotency.claim AS k
                      WHERE k.scope_id OPERATOR(pg_catalog.=) s.id AND k.run IS NULL
                        AND EXISTS (SELECT FROM runs AS r WHERE r.longest_pause OPERATOR(pg_catalog.>) d.dedup_window)
                      LIMIT 2000)) AS k
             CROSS JOIN LATERAL pg_catalog.string_to_array(k.key, '/') AS p (parts)
             CROSS JOIN LATERAL pg_catalog.unnest(p.parts) WITH ORDINALITY AS g (part, n)
              JOIN runs AS r ON r.run OPERATOR(pg_catalog.=) pg_catalog.array_to_string(p.parts[1:g.n], '/')
             WHERE g.n OPERATOR(pg_catalog.<) pg_catalog.cardinality(p.parts) AND r.longest_pause OPERATOR(pg_catalog.>) d.dedup_window
               AND r.over_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()) AS unguarded_pause,
           GREATEST(f.guarded_pause, o.guarded_pause) AS guarded_pause,
           -- Only where runs are begun at all: else a run is but a label.
           (s.run_is_alive IS NULL AND EXISTS (SELECT FROM runs)
            AND EXISTS (SELECT FROM (SELECT k.run
                                       FROM idempotency.outcome AS k
                                      WHERE k.scope_id OPERATOR(pg_catalog.=) s.id AND k.run IS NOT NULL
                                        AND k.finished_at OPERATOR(pg_catalog.>) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '7 days'::pg_catalog.interval)
                                      ORDER BY k.finished_at DESC LIMIT 2000) AS k
                         WHERE NOT k.run OPERATOR(pg_catalog.=) ANY (SELECT r.run FROM idempotency.run AS r WHERE r.scope_id IS NULL))) AS names_unbegun_run,
           f.longest_run,
           s.hard_limit, s.guard,
           COALESCE(x.expired_alive, 0) AS expired_alive,
           o.overdue_since,
           GREATEST((SELECT k.finished_at FROM idempotency.outcome AS k
                      WHERE k.scope_id OPERATOR(pg_catalog.=) s.id AND pg_catalog.isfinite(k.finished_at)
                      ORDER BY k.finished_at DESC LIMIT 1), o.newest_at) AS newest_at,
           EXISTS (SELECT FROM idempotency.scope_grant AS g
                    WHERE g.scope_id OPERATOR(pg_catalog.=) s.id AND g.role::pg_catalog.oid OPERATOR(pg_catalog.=) 0::pg_catalog.oid) AS granted_to_public
      FROM scopes AS s
     CROSS JOIN LATERAL (SELECT idempotency.window_of(s.id) AS dedup_window) AS d
      LEFT JOIN idempotency.counters() AS c ON c.scope_id OPERATOR(pg_catalog.=) s.id
      LEFT JOIN idempotency.observed AS b ON b.scope_id OPERATOR(pg_catalog.=) s.id
      LEFT JOIN finished AS f ON f.scope_id OPERATOR(pg_catalog.=) s.id
      LEFT JOIN open AS o ON o.scope_id OPERATOR(pg_catalog.=) s.id
      LEFT JOIN expired AS x ON x.scope_id OPERATOR(pg_catalog.=) s.id
     WHERE idempotency.scope_countable(s.id);

-- Findings not_swept, sweeps_not_shown, not_counted.
CREATE OR REPLACE FUNCTION @extschema@.idem_doctor(
    OUT severity pg_catalog.text,
    OUT finding pg_catalog.text,
    OUT what pg_catalog.text,
    OUT why pg_catalog.text,
    OUT mend pg_catalog.text
) RETURNS SETOF pg_catalog.record LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $function$
DECLARE
    status record;
    installed pg_catalog.text := (SELECT e.extversion FROM pg_catalog.pg_extension AS e WHERE e.extname = 'idempotency');
    naptime pg_catalog.interval;
    found_any pg_catalog.bool := false;
BEGIN
    SELECT s.* INTO status FROM @extschema@.idem_status() AS s;
    naptime := pg_catalog.current_setting('idempotency.naptime')::pg_catalog.interval;
    FOR severity, finding, what, why, mend IN
        WITH evidence AS MATERIALIZED (SELECT v.* FROM idempotency.window_evidence AS v),
             stats AS MATERIALIZED (SELECT v.* FROM idempotency.stats AS v)
        -- What a crash can take.
        SELECT 'critical', 'fsync_off', 'fsync is off',
               'a crash of the machine can lose or corrupt records, and their operations happen twice',
               'ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf();'
         WHERE pg_catalog.current_setting('fsync') = 'off'
        UNION ALL
        SELECT 'critical', 'full_page_writes_off', 'full_page_writes is off',
               'a crash of the machine can leave torn pages, and records in them are lost',
               'ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf();'
         WHERE pg_catalog.current_setting('full_page_writes') = 'off'
        UNION ALL
        SELECT 'warning', 'synchronous_commit_off', 'synchronous_commit is off',
               'a crash forgets the last acknowledged transactions, effect and record together: callers were told a result that is gone (leased claims of external and keyed scopes are written through all the same)',
               'ALTER SYSTEM RESET synchronous_commit; SELECT pg_reload_conf();'
          FROM pg_catalog.pg_settings AS g
         WHERE g.name = 'synchronous_commit' AND g.reset_val = 'off'
        UNION ALL
        SELECT 'warning', 'synchronous_commit_off_for_some',
               pg_catalog.format('synchronous_commit is off by ALTER %s', CASE WHEN d.setrole = 0::pg_catalog.oid AND d.setdatabase = 0::pg_catalog.oid THEN 'ROLE ALL' WHEN d.setrole = 0::pg_catalog.oid THEN 'DATABASE' ELSE 'ROLE ' || pg_catalog.pg_get_userbyid(d.setrole)::pg_catalog.text END),
               'a crash forgets the last transactions that were acknowledged to them',
               CASE WHEN d.setrole = 0::pg_catalog.oid AND d.setdatabase = 0::pg_catalog.oid THEN 'ALTER ROLE ALL RESET synchronous_commit;'
                    WHEN d.setrole = 0::pg_catalog.oid
                    THEN pg_catalog.format('ALTER DATABASE %I RESET synchronous_commit;', pg_catalog.current_database())
                    WHEN d.setdatabase = 0::pg_catalog.oid
                    THEN pg_catalog.format('ALTER ROLE %I RESET synchronous_commit;', pg_catalog.pg_get_userbyid(d.setrole))
                    ELSE pg_catalog.format('ALTER ROLE %I IN DATABASE %I RESET synchronous_commit;', pg_catalog.pg_get_userbyid(d.setrole), pg_catalog.current_database()) END
          FROM pg_catalog.pg_db_role_setting AS d
         WHERE (d.setdatabase = 0::pg_catalog.oid
                OR d.setdatabase = (SELECT b.oid FROM pg_catalog.pg_database AS b WHERE b.datname = pg_catalog.current_database()))
           AND EXISTS (SELECT FROM pg_catalog.unnest(d.setconfig) AS c (setting)
                        WHERE pg_catalog.lower(c.setting) ~ '^synchronous_commit=(of|off|f|false|fal|n|no|0)$')
        UNION ALL
        SELECT 'warning', 'asynchronous_standby_only',
               pg_catalog.format('%s standby(s), none synchronous', r.standbys),
               'a failover can forget outcomes that were acknowledged, and their operations happen twice',
               'ALTER SYSTEM SET synchronous_standby_names = ''ANY 1 (*)''; SELECT pg_reload_conf();'
          FROM (SELECT pg_catalog.count(*) AS standbys,
                       pg_catalog.count(*) FILTER (WHERE s.sync_state = ANY (ARRAY['sync', 'quorum'])) AS synchronous
                  FROM pg_catalog.pg_stat_replication AS s
                 WHERE s.state = ANY (ARRAY['streaming', 'catchup'])) AS r
         WHERE r.standbys > 0 AND r.synchronous = 0
        UNION ALL
        SELECT 'critical', 'unlogged_table', pg_catalog.format('table idempotency.%I is not logged', c.relname),
               'a crash empties it, and every operation on record can happen again',
               pg_catalog.format('ALTER TABLE idempotency.%I SET LOGGED;', c.relname)
          FROM pg_catalog.pg_class AS c
         WHERE c.relnamespace = 'idempotency'::pg_catalog.regnamespace::pg_catalog.oid
           AND c.relkind = 'r' AND c.relpersistence <> 'p'
        UNION ALL
        SELECT 'critical', 'unregistered_table', pg_catalog.format('table idempotency.%I is not part of dumps', c.relname),
               'pg_dump leaves its rows out: a restored database forgets them',
               pg_catalog.format('SELECT pg_extension_config_dump(''idempotency.%s'', ''''); -- within an extension script, or reinstall', c.relname)
          FROM pg_catalog.pg_class AS c
         WHERE c.relnamespace = 'idempotency'::pg_catalog.regnamespace::pg_catalog.oid
           AND c.relkind = 'r' AND c.relname <> 'prune_progress' -- which needs no dump
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_extension AS e
                            WHERE e.extname = 'idempotency' AND c.oid = ANY (e.extconfig))
        -- The library and its worker.
        UNION ALL
        SELECT 'warning', 'version_mismatch',
               pg_catalog.format('the library is version %s, the SQL objects are version %s', status.version, installed),
               'functions and tables of two versions are used together',
               'ALTER EXTENSION idempotency UPDATE; -- and restart the server, if the library is the older one'
         WHERE status.version <> installed
        UNION ALL
        SELECT 'notice', 'not_preloaded', 'the library is not in shared_preload_libraries',
               'no worker ends leases and prunes, nothing is counted, and waiters poll',
               'ALTER SYSTEM SET shared_preload_libraries = ' ||
               (SELECT pg_catalog.string_agg(pg_catalog.quote_literal(l.library), ', ' ORDER BY l.place)
                  FROM (SELECT pg_catalog.btrim(p.library, ' "') AS library, p.place
                          FROM pg_catalog.regexp_split_to_table(pg_catalog.current_setting('shared_preload_libraries'), ',') WITH ORDINALITY AS p (library, place)
                        UNION ALL SELECT 'idempotency', 1000) AS l
                 WHERE l.library <> '') ||
               '; -- then restart; or CALL idempotency.sweep() regularly'
         WHERE NOT status.preloaded
        UNION ALL
        SELECT 'warning', 'worker_not_running', status.worker,
               'leases that end stay in flight for onlookers, outcomes are not pruned, and nobody asks reconcilers',
               CASE WHEN status.worker ~~ 'off%' THEN 'ALTER SYSTEM RESET idempotency.worker; ALTER SYSTEM RESET idempotency.databases; SELECT pg_reload_conf();'
                    ELSE 'ALTER SYSTEM SET max_worker_processes = ' || (pg_catalog.current_setting('max_worker_processes')::pg_catalog.int4 + 2)::pg_catalog.text || '; -- then restart' END
         WHERE status.preloaded AND status.worker <> 'running' AND NOT pg_catalog.pg_is_in_recovery()
        UNION ALL
        SELECT 'warning', 'sweep_failing', 'the last sweep met an error: ' || status.last_error,
               'what it could not change stays: leases in flight, outcomes past their window',
               'SELECT * FROM idempotency.sweeps; -- and the server''s log'
         WHERE status.last_error IS NOT NULL
        UNION ALL
        SELECT 'warning', 'sweep_stalled',
               'the last sweep ended at ' || pg_catalog.date_trunc('second', status.last_sweep_at)::pg_catalog.text,
               'leases that end and outcomes past their window pile up',
               'SELECT * FROM idempotency.sweeps; -- and pg_stat_activity: is a worker stuck?'
         WHERE status.preloaded AND status.worker = 'running'
           AND status.last_sweep_at < pg_catalog.clock_timestamp() - GREATEST(naptime * 10, '5 minutes'::pg_catalog.interval)
        UNION ALL
        SELECT 'warning', 'not_swept', pg_catalog.format('database %I is %s', d.datname, CASE WHEN d.datistemplate THEN 'a template' ELSE 'closed to connections' END),
               'the worker does not visit it: leases that end stay in flight for onlookers, and outcomes are not pruned',
               pg_catalog.format('ALTER DATABASE %I IS_TEMPLATE false ALLOW_CONNECTIONS true; -- or CALL idempotency.sweep() regularly', d.datname)
          FROM pg_catalog.pg_database AS d
         WHERE d.datname = pg_catalog.current_database() AND status.preloaded AND (d.datistemplate OR NOT d.datallowconn)
        UNION ALL
        SELECT 'notice', 'sweeps_not_shown', 'the worker''s visits to this database are not remembered: those to 64 others are',
               'nobody sees when it was swept last, or with which error',
               'raise an alert from idempotency.stats.prune_lag instead'
         WHERE status.preloaded AND status.worker = 'running' AND status.last_sweep_at IS NULL
           AND (SELECT pg_catalog.count(*) FROM idempotency.last_sweeps()) >= 64
        UNION ALL
        SELECT 'notice', 'not_counted', pg_catalog.format('%s scope(s) are not counted: 1,024 are', pg_catalog.count(*)),
               'idempotency.stats shows their gauges only, and advice on their windows lacks what was repeated',
               'use fewer scopes: one for each kind of operation, and the tenant in the key'
          FROM stats AS s
         WHERE s.counters_note ~~ 'no room%'
        HAVING pg_catalog.count(*) > 0
        -- Windows.
        UNION ALL
        SELECT CASE a.verdict WHEN 'too_short' THEN 'critical' ELSE 'warning' END,
               CASE a.verdict WHEN 'too_short' THEN 'window_too_short' ELSE 'window_near' END,
               pg_catalog.format('scope %I: %s', a.scope, a.warning),
               'after its window a key is free, and the operation happens again. Seen: ' || pg_catalog.array_to_string(a.reasons, '; '),
               pg_catalog.format('SELECT @extschema@.idem_scope_set(%L, dedup_window => %L); -- or claim with run => a run that was begun', a.scope, a.recommended::pg_catalog.text)
          FROM idempotency.advice AS a
         WHERE a.verdict = ANY (ARRAY['too_short', 'near'])
        UNION ALL
        SELECT 'warning', 'hard_limit_short',
               pg_catalog.format('scope %I: a run with keys here may pause for %s, and hard_limit is %s', w.scope, w.guarded_pause, w.hard_limit),
               'keys go while their run may still retry them',
               pg_catalog.format('SELECT @extschema@.idem_scope_reset(%L, ''hard_limit'');', w.scope)
          FROM evidence AS w
         WHERE w.hard_limit < w.guarded_pause
        UNION ALL
        SELECT 'notice', 'run_not_begun',
               pg_catalog.format('scope %I: keys of the last days name a run that nobody has begun', w.scope),
               'such a run keeps no keys: their window alone counts',
               'call idem_run_begin(run, longest_pause) when a run begins, and when it goes on'
          FROM evidence AS w
         WHERE w.names_unbegun_run
        UNION ALL
        SELECT 'notice', 'no_window', pg_catalog.format('scope %I keeps its outcomes for ever', w.scope),
               'its table only grows; that is right where a key may be tried again at any time',
               pg_catalog.format('SELECT @extschema@.idem_scope_set(%L, keep_forever => false, dedup_window => ''1 year'');', w.scope)
          FROM evidence AS w
         WHERE w.dedup_window IS NULL
        UNION ALL
        SELECT 'critical', 'expired_alive',
               pg_catalog.format('scope %I: %s key(s) expired while their run lives', w.scope, w.expired_alive),
               'these runs may retry what they have done already',
               pg_catalog.format('SELECT @extschema@.idem_stats_reset(%L); -- after you have raised hard_limit; idempotency.events of kind expired_alive says which keys', w.scope)
          FROM evidence AS w
         WHERE w.expired_alive > 0
        -- Leases and doubts.
        UNION ALL
        SELECT 'warning', 'lease_too_short',
               pg_catalog.format('scope %I: the slowest call took %s, the longest lease that was asked for is %s', s.scope, pg_catalog.date_trunc('milliseconds', s.slowest_call), s.longest_lease),
               'its lease ended while it was at work: others were told to execute or to reconcile',
               'ask for a longer lease, or renew it: SELECT @extschema@.idem_renew(key, lease, scope, fence);'
          FROM stats AS s
         WHERE s.slowest_call > s.longest_lease
        UNION ALL
        SELECT 'warning', 'leases_overdue',
               pg_catalog.format('scope %I: a lease ended at %s and no sweep has seen it', w.scope, pg_catalog.date_trunc('second', w.overdue_since)),
               'the key is shown as in flight although nobody owns it',
               'CALL idempotency.sweep();'
          FROM evidence AS w
         WHERE w.overdue_since < pg_catalog.clock_timestamp() - '5 minutes'::pg_catalog.interval
        UNION ALL
        SELECT 'warning', 'unresolved',
               pg_catalog.format('scope %I: %s unknown and %s escalated key(s), the oldest since %s', s.scope, s.unknown_keys, s.escalated_keys, pg_catalog.date_trunc('second', s.oldest_unknown_at)),
               'nobody knows whether these operations happened, and nobody will execute them',
               pg_catalog.format('SELECT * FROM idempotency.unresolved WHERE scope = %L; -- then @extschema@.idem_resolve(key, verdict, ...)', s.scope)
          FROM stats AS s
         WHERE s.oldest_unknown_at < pg_catalog.clock_timestamp() - '1 hour'::pg_catalog.interval
        UNION ALL
        SELECT 'warning', 'pruning_behind',
               pg_catalog.format('scope %I: pruning is %s behind', s.scope, pg_catalog.date_trunc('second', s.prune_lag)),
               'the table grows beyond its windows',
               'CALL idempotency.sweep(); -- or a shorter idempotency.naptime, and look for a snapshot that is held for long'
          FROM stats AS s
         WHERE s.prune_lag > '1 hour'::pg_catalog.interval
        -- The house.
        UNION ALL
        SELECT 'warning', 'public_grant', pg_catalog.format('scope %I is granted to PUBLIC', w.scope),
               'every role that can connect may claim its keys and read their results',
               pg_catalog.format('SELECT @extschema@.idem_scope_revoke(%L, ''-'');', w.scope)
          FROM evidence AS w
         WHERE w.granted_to_public
        UNION ALL
        SELECT 'critical', 'public_table', pg_catalog.format('PUBLIC has %s on table idempotency.%I', a.privilege_type, c.relname),
               'records can be read or changed beside the protocol',
               pg_catalog.format('REVOKE ALL ON TABLE idempotency.%I FROM PUBLIC;', c.relname)
          FROM pg_catalog.pg_class AS c
         CROSS JOIN LATERAL pg_catalog.aclexplode(c.relacl) AS a
         WHERE c.relnamespace = 'idempotency'::pg_catalog.regnamespace::pg_catalog.oid
           AND c.relkind = 'r' AND a.grantee = 0::pg_catalog.oid
        UNION ALL
        SELECT 'warning', 'bloat', pg_catalog.format('table idempotency.%I has %s dead and %s live rows', t.relname, t.n_dead_tup, t.n_live_tup),
               'scans and pruning read them all',
               pg_catalog.format('VACUUM (ANALYZE) idempotency.%I; -- and end what holds a snapshot for long: pg_stat_activity.backend_xmin', t.relname)
          FROM pg_catalog.pg_stat_all_tables AS t
         WHERE t.schemaname = 'idempotency'
           AND t.n_dead_tup > 100000 AND t.n_dead_tup > t.n_live_tup
        UNION ALL
        SELECT 'warning', 'transaction_id_age', pg_catalog.format('table idempotency.%I has transaction ids of age %s', c.relname, pg_catalog.age(c.relfrozenxid)),
               'autovacuum does not keep up; near two thousand million the server stops to write',
               pg_catalog.format('VACUUM (FREEZE) idempotency.%I;', c.relname)
          FROM pg_catalog.pg_class AS c
         WHERE c.relnamespace = 'idempotency'::pg_catalog.regnamespace::pg_catalog.oid
           AND c.relkind = 'r'
           AND pg_catalog.age(c.relfrozenxid) > pg_catalog.current_setting('autovacuum_freeze_max_age')::pg_catalog.int8 * 3 / 2
        UNION ALL
        SELECT 'warning', 'clock_went_back',
               pg_catalog.format('scope %I: a key was claimed or finished at %s, which is still to come', w.scope, w.newest_at),
               'the clock went backwards: leases and windows last longer by that much',
               'check the time service of this machine (chronyc tracking)'
          FROM evidence AS w
         WHERE w.newest_at > pg_catalog.clock_timestamp() + '10 seconds'::pg_catalog.interval
        UNION ALL
        SELECT 'warning', 'prepared_transaction', pg_catalog.format('transaction %L was prepared at %s and is still open', p.gid, pg_catalog.date_trunc('second', p.prepared)),
               'it may hold keys, and nobody can claim those until it ends',
               pg_catalog.format('COMMIT PREPARED %L; -- or ROLLBACK PREPARED', p.gid)
          FROM pg_catalog.pg_prepared_xacts AS p
         WHERE p.database = pg_catalog.current_database()
           AND p.prepared < pg_catalog.clock_timestamp() - '1 hour'::pg_catalog.interval
         ORDER BY 1, 2, 3
    LOOP
        found_any := true;
        RETURN NEXT;
    END LOOP;
    IF NOT found_any THEN
        severity := 'ok';
        finding := 'ok';
        what := 'nothing is wrong here';
        why := pg_catalog.format('checked %s scope(s) of database %I', (SELECT pg_catalog.count(*) FROM idempotency.stats), pg_catalog.current_database());
        mend := NULL;
        RETURN NEXT;
    END IF;
END
$function$;

-- An array of two dimensions is refused by name.
CREATE OR REPLACE FUNCTION @extschema@.idem_natural_key(
    "table" pg_catalog.regclass,
    columns pg_catalog.text[],
    OUT safe pg_catalog.bool,
    OUT index_name pg_catalog.text,
    OUT missing pg_catalog.text,
    OUT ddl pg_catalog.text
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $function$
DECLARE
    relation record;
    wanted pg_catalog.int2[];
    unknown_column pg_catalog.text;
    nullable pg_catalog.text[];
    listed pg_catalog.text;
    near_miss pg_catalog.text;
    only_nulls pg_catalog.bool;
BEGIN
    IF pg_catalog.array_ndims(columns) > 1 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'columns must be a list of names',
            HINT = 'Give an array of one dimension, such as {order_id,kind}.';
    END IF;
    IF "table" IS NULL OR columns IS NULL OR pg_catalog.cardinality(columns) = 0
       OR pg_catalog.array_position(columns, NULL) IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '22004', MESSAGE = 'table and columns must not be null or empty',
            HINT = 'Name the columns that make the operation one of its kind, such as idem_natural_key(''credits'', ''{order_id}'').';
    END IF;
    SELECT c.oid, c.relkind, c.relpersistence, pg_catalog.format('%I.%I', n.nspname, c.relname) AS name,
           EXISTS (SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhparent = c.oid) AS has_children,
           (SELECT pg_catalog.min(p.oid::pg_catalog.regclass::pg_catalog.text)
              FROM pg_catalog.pg_partition_tree(c.oid::pg_catalog.regclass) AS t
              JOIN pg_catalog.pg_class AS p ON p.oid = t.relid::pg_catalog.oid
             WHERE c.relkind = 'p' AND t.isleaf AND p.relpersistence <> 'p') AS unlogged_partition
      INTO relation
      FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
     WHERE c.oid = "table"::pg_catalog.oid;
    IF relation.oid IS NULL OR relation.relkind <> ALL (ARRAY['r', 'p']::pg_catalog."char"[]) THEN
        RAISE EXCEPTION USING ERRCODE = '42809', MESSAGE = pg_catalog.format('%s is not a table', "table"),
            HINT = 'A unique index needs a table or a partitioned table.';
    END IF;
    SELECT w.name INTO unknown_column FROM pg_catalog.unnest(columns) AS w (name)
     WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_attribute AS a
                        WHERE a.attrelid = relation.oid AND a.attname = w.name::pg_catalog.name
                          AND a.attnum > 0 AND NOT a.attisdropped)
     LIMIT 1;
    IF unknown_column IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = '42703', MESSAGE = pg_catalog.format('column %I of table %s does not exist', unknown_column, relation.name),
            HINT = 'Column names are given as they are stored, without quotes.';
    END IF;
    SELECT pg_catalog.array_agg(a.attnum ORDER BY w.place), pg_catalog.string_agg(pg_catalog.quote_ident(a.attname), ', ' ORDER BY w.place),
           pg_catalog.array_agg(a.attname::pg_catalog.text ORDER BY w.place) FILTER (WHERE NOT a.attnotnull)
      INTO wanted, listed, nullable
      FROM (SELECT d.name, pg_catalog.min(d.place) AS place
              FROM pg_catalog.unnest(columns) WITH ORDINALITY AS d (name, place) GROUP BY d.name) AS w
      JOIN pg_catalog.pg_attribute AS a
        ON a.attrelid = relation.oid AND a.attname = w.name::pg_catalog.name;

    -- A unique index on some of the columns is enough: whatever repeats them all repeats those.
    SELECT i.name INTO index_name
      FROM (SELECT pg_catalog.format('%I', c.relname) AS name, x.indnullsnotdistinct, x.indnkeyatts,
                   (x.indkey::pg_catalog.int2[])[0:x.indnkeyatts - 1] AS keys
              FROM pg_catalog.pg_index AS x JOIN pg_catalog.pg_class AS c ON c.oid = x.indexrelid
             WHERE x.indrelid = relation.oid
               AND x.indisunique AND x.indisvalid AND x.indisready AND x.indislive AND x.indimmediate
               AND x.indpred IS NULL AND x.indexprs IS NULL) AS i
     WHERE i.keys <@ wanted
       AND (i.indnullsnotdistinct OR NOT EXISTS (
            SELECT FROM pg_catalog.pg_attribute AS a
             WHERE a.attrelid = relation.oid AND a.attnum = ANY (i.keys) AND NOT a.attnotnull))
     ORDER BY i.indnkeyatts LIMIT 1;
    IF index_name IS NOT NULL AND relation.relpersistence = 'p' AND relation.unlogged_partition IS NULL
       AND NOT (relation.has_children AND relation.relkind = 'r') THEN
        safe := true;
        RETURN;
    END IF;

    safe := false;
    IF index_name IS NULL THEN
        SELECT pg_catalog.format('index %I is there, but %s', c.relname,
                   CASE WHEN NOT (x.indisvalid AND x.indisready AND x.indislive) THEN 'it is not valid'
                        WHEN NOT x.indisunique THEN 'it is not unique'
                        WHEN NOT x.indimmediate THEN 'its constraint is deferrable: a repeat is found at COMMIT, after its effect'
                        WHEN x.indpred IS NOT NULL THEN 'it is partial'
                        WHEN x.indexprs IS NOT NULL THEN 'it is on expressions'
                        ELSE pg_catalog.format('%s may be null, and nulls are never equal', pg_catalog.array_to_string(nullable, ', ')) END),
               x.indisvalid AND x.indisready AND x.indislive AND x.indisunique AND x.indimmediate AND x.indpred IS NULL AND x.indexprs IS NULL
          INTO near_miss, only_nulls
          FROM pg_catalog.pg_index AS x JOIN pg_catalog.pg_class AS c ON c.oid = x.indexrelid
         WHERE x.indrelid = relation.oid
           -- Of an expression, the columns that it reads.
           AND pg_catalog.array_remove((x.indkey::pg_catalog.int2[])[0:x.indnkeyatts - 1], 0::pg_catalog.int2) <@ wanted
           AND (x.indexprs IS NULL OR NOT EXISTS (
                SELECT FROM pg_catalog.pg_depend AS d
                 WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass::pg_catalog.oid AND d.objid = x.indexrelid
                   AND d.refobjid = relation.oid AND d.refobjsubid <> 0 AND d.refobjsubid <> ALL (wanted)))
         ORDER BY x.indisunique DESC, x.indexprs IS NOT NULL, x.indisvalid DESC, x.indimmediate DESC, x.indpred IS NOT NULL, c.relname
         LIMIT 1;
        missing := COALESCE(near_miss, pg_catalog.format('no unique index on (%s)', listed));
        ddl := pg_catalog.concat_ws(E'\n',
            (SELECT pg_catalog.string_agg(pg_catalog.format('ALTER TABLE %s ALTER COLUMN %I SET NOT NULL;', relation.name, n.name), E'\n')
               FROM pg_catalog.unnest(nullable) AS n (name)),
            CASE WHEN only_nulls THEN NULL
                 WHEN relation.relkind = 'p'
                 THEN pg_catalog.format('CREATE UNIQUE INDEX ON %s (%s); -- the partition key must be among the columns', relation.name, listed)
                 ELSE pg_catalog.format('CREATE UNIQUE INDEX CONCURRENTLY ON %s (%s);', relation.name, listed) END);
    ELSIF relation.relpersistence <> 'p' THEN
        missing := CASE relation.relpersistence WHEN 'u' THEN 'the table is unlogged: a crash empties it'
                                                ELSE 'the table is temporary' END;
        ddl := CASE relation.relpersistence WHEN 'u' THEN pg_catalog.format('ALTER TABLE %s SET LOGGED;', relation.name) END;
    ELSIF relation.unlogged_partition IS NOT NULL THEN
        missing := pg_catalog.format('partition %s is not logged: a crash empties it', relation.unlogged_partition);
        ddl := pg_catalog.format('ALTER TABLE %s SET LOGGED;', relation.unlogged_partition);
    ELSE
        missing := 'the table has children by inheritance, which its index does not cover';
    END IF;
END
$function$;

-- Of a text of hundreds of megabytes it says unknown.
CREATE OR REPLACE FUNCTION @extschema@.idem_failure_kind(kind pg_catalog.text) RETURNS pg_catalog.text
    LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
    AS $$
    WITH asked AS (
        SELECT pg_catalog.translate(pg_catalog.lower(
                   pg_catalog.btrim(idem_failure_kind.kind, E' \t\r\n') COLLATE pg_catalog."C"), ' -:', '___') AS kind
         -- Longer than any name: not for functions that make copies of it.
         WHERE pg_catalog.octet_length(idem_failure_kind.kind) OPERATOR(pg_catalog.<=) 10000
    ), looked_for AS (
        SELECT a.kind, 1 AS place FROM asked AS a
        UNION ALL
        SELECT pg_catalog.left(a.kind, 6) OPERATOR(pg_catalog.||) 'xx', 2 FROM asked AS a
         WHERE a.kind OPERATOR(pg_catalog.~) '^http_[0-9]{3}$'
        UNION ALL
        SELECT pg_catalog.left(a.kind, 11), 2 FROM asked AS a
         WHERE a.kind OPERATOR(pg_catalog.~) '^sqlstate_[0-9a-z]{5}$'
    )
    SELECT COALESCE((
        SELECT k.verdict
          FROM looked_for AS l
          JOIN idempotency.failure_kinds AS k
            ON pg_catalog.translate(pg_catalog.lower(pg_catalog.btrim(k.kind, E' \t\r\n')), ' -:', '___')
               OPERATOR(pg_catalog.=) l.kind
         ORDER BY l.place, k.verdict COLLATE pg_catalog."C" DESC
         LIMIT 1), 'unknown')
    $$;
