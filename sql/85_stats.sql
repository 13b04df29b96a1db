-- What is counted and measured of each scope. Counters live in shared memory, gauges are read from the tables.

CREATE FUNCTION idempotency.scope_countable(scope_id pg_catalog.int4)
    RETURNS pg_catalog.bool LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'idem_scope_countable';
COMMENT ON FUNCTION idempotency.scope_countable(pg_catalog.int4) IS
    'may the current user see what is counted of the scope with this id: its users, and members of pg_monitor';

CREATE FUNCTION idempotency.window_of(scope_id pg_catalog.int4)
    RETURNS pg_catalog.interval LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'idem_window_of';
COMMENT ON FUNCTION idempotency.window_of(pg_catalog.int4) IS
    'the window of the scope with this id, its own or the default; NULL where it never ends';

CREATE FUNCTION idempotency.counting()
    RETURNS pg_catalog.bool LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'idem_counting';
COMMENT ON FUNCTION idempotency.counting() IS 'whether anything is counted: the library was preloaded';

CREATE FUNCTION idempotency.counters(
    OUT scope_id pg_catalog.int4,
    OUT counted_since pg_catalog.timestamptz,
    OUT claims pg_catalog.int8,
    OUT executes pg_catalog.int8,
    OUT reconciles pg_catalog.int8,
    OUT replays pg_catalog.int8,
    OUT rejections pg_catalog.int8,
    OUT in_progress pg_catalog.int8,
    OUT mismatches pg_catalog.int8,
    OUT takeovers pg_catalog.int8,
    OUT fences_lost pg_catalog.int8,
    OUT completed pg_catalog.int8,
    OUT failed_not_applied pg_catalog.int8,
    OUT failed_unknown pg_catalog.int8,
    OUT failed_rejected pg_catalog.int8,
    OUT released pg_catalog.int8,
    OUT unknown pg_catalog.int8,
    OUT escalated pg_catalog.int8,
    OUT leases_expired pg_catalog.int8,
    OUT late_finishes pg_catalog.int8,
    OUT enqueued pg_catalog.int8,
    OUT dispatched pg_catalog.int8,
    OUT pruned pg_catalog.int8,
    OUT pruned_alive pg_catalog.int8,
    OUT late_retries pg_catalog.int8,
    OUT longest_repeat pg_catalog.interval,
    OUT longest_late pg_catalog.interval,
    OUT longest_unknown pg_catalog.interval,
    OUT slowest_call pg_catalog.interval,
    OUT longest_lease pg_catalog.interval,
    OUT repeats pg_catalog.int8[]
) RETURNS SETOF pg_catalog.record LANGUAGE c STABLE AS 'MODULE_PATHNAME', 'idem_counters';
COMMENT ON FUNCTION idempotency.counters() IS
    'the counters of the scopes that you may see, as they stand in shared memory; none where the library is not preloaded. Read them through idempotency.stats';

-- Exact up to 4 MB; from there on a sample of 512 pages, so that a scrape stays cheap.
CREATE VIEW idempotency.sampled_outcomes WITH (security_barrier) AS
    SELECT o.scope_id, o.finished_at, f.factor
      FROM (SELECT GREATEST(1.0::pg_catalog.float8,
                            pg_catalog.pg_relation_size('idempotency.outcome') OPERATOR(pg_catalog./) (512.0 OPERATOR(pg_catalog.*) 8192.0)::pg_catalog.float8) AS factor) AS f
     CROSS JOIN LATERAL (
            SELECT t.scope_id, t.finished_at
              FROM idempotency.outcome AS t
              TABLESAMPLE system ((SELECT 100.0 OPERATOR(pg_catalog./) GREATEST(1.0,
                    pg_catalog.pg_relation_size('idempotency.outcome')::pg_catalog.numeric OPERATOR(pg_catalog./) (512 OPERATOR(pg_catalog.*) 8192)::pg_catalog.numeric))::pg_catalog.float4)) AS o;
COMMENT ON VIEW idempotency.sampled_outcomes IS 'a bounded sample of all outcomes, without keys: how many each row stands for';

CREATE VIEW idempotency.stats WITH (security_barrier) AS
    WITH scopes AS (
        SELECT s.id, s.name FROM idempotency.scope AS s
        UNION ALL
        SELECT 0, 'default' WHERE NOT EXISTS (SELECT FROM idempotency.scope AS s WHERE s.id OPERATOR(pg_catalog.=) 0)
    ), open AS (
        SELECT c.scope_id, pg_catalog.count(*) AS open_keys,
               pg_catalog.count(*) FILTER (WHERE c.state OPERATOR(pg_catalog.=) 'f') AS in_flight,
               pg_catalog.count(*) FILTER (WHERE c.state OPERATOR(pg_catalog.=) 'q') AS queued,
               pg_catalog.count(*) FILTER (WHERE c.state OPERATOR(pg_catalog.=) 'u') AS unknown_keys,
               pg_catalog.count(*) FILTER (WHERE c.state OPERATOR(pg_catalog.=) 'e') AS escalated_keys,
               pg_catalog.min(c.first_claimed_at) FILTER (WHERE pg_catalog.isfinite(c.first_claimed_at)) AS oldest_open_at,
               pg_catalog.min(COALESCE(c.in_doubt_since, c.lease_expires_at, c.claimed_at))
                   FILTER (WHERE pg_catalog.isfinite(COALESCE(c.in_doubt_since, c.lease_expires_at, c.claimed_at)) AND c.state OPERATOR(pg_catalog.=) ANY (ARRAY['u', 'e']::pg_catalog."char"[])) AS oldest_unknown_at
          FROM idempotency.claim AS c GROUP BY c.scope_id
    ), finished AS (
        SELECT o.scope_id, pg_catalog.round(pg_catalog.sum(o.factor))::pg_catalog.int8 AS outcomes,
               pg_catalog.sum(o.factor) OPERATOR(pg_catalog./) pg_catalog.sum(pg_catalog.sum(o.factor)) OVER () AS share
          FROM idempotency.sampled_outcomes AS o GROUP BY o.scope_id
    )
    SELECT s.name AS scope,
           CASE WHEN idempotency.counting() THEN COALESCE(c.counted_since, pg_catalog.pg_postmaster_start_time()) END AS counted_since,
           CASE WHEN NOT idempotency.counting() THEN 'idempotency is not in shared_preload_libraries'
                WHEN c.scope_id IS NULL THEN 'no room: 1,024 scopes are counted already' END AS counters_note,
           c.claims, c.executes, c.reconciles, c.replays, c.rejections, c.in_progress, c.mismatches, c.takeovers,
           c.fences_lost, c.completed, c.failed_not_applied, c.failed_unknown, c.failed_rejected, c.released,
           c.unknown, c.escalated, c.leases_expired, c.late_finishes, c.enqueued, c.dispatched,
           c.pruned, c.pruned_alive, c.late_retries,
           COALESCE(o.open_keys, 0) AS open_keys, COALESCE(o.in_flight, 0) AS in_flight, COALESCE(o.queued, 0) AS queued,
           COALESCE(o.unknown_keys, 0) AS unknown_keys, COALESCE(o.escalated_keys, 0) AS escalated_keys,
           o.oldest_open_at, o.oldest_unknown_at,
           COALESCE(f.outcomes, 0) AS outcomes,
           COALESCE(pg_catalog.round(f.share OPERATOR(pg_catalog.*) pg_catalog.pg_total_relation_size('idempotency.outcome')), 0)::pg_catalog.int8 AS bytes,
           n.next_expiry_at,
           GREATEST(pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) n.next_expiry_at, '0'::pg_catalog.interval) AS prune_lag,
           GREATEST(b.longest_repeat, c.longest_repeat) AS longest_repeat,
           GREATEST(b.longest_late, c.longest_late) AS longest_late,
           GREATEST(b.longest_unknown, c.longest_unknown) AS longest_unknown,
           GREATEST(b.slowest_call, c.slowest_call) AS slowest_call,
           GREATEST(b.longest_lease, c.longest_lease) AS longest_lease
      FROM scopes AS s
      LEFT JOIN idempotency.counters() AS c ON c.scope_id OPERATOR(pg_catalog.=) s.id
      LEFT JOIN open AS o ON o.scope_id OPERATOR(pg_catalog.=) s.id
      LEFT JOIN finished AS f ON f.scope_id OPERATOR(pg_catalog.=) s.id
      LEFT JOIN idempotency.observed AS b ON b.scope_id OPERATOR(pg_catalog.=) s.id
      LEFT JOIN LATERAL (
            SELECT t.finished_at OPERATOR(pg_catalog.+) idempotency.window_of(s.id) AS next_expiry_at
              FROM idempotency.outcome AS t
             WHERE t.scope_id OPERATOR(pg_catalog.=) s.id AND pg_catalog.isfinite(t.finished_at)
               AND t.finished_at OPERATOR(pg_catalog.>) COALESCE(
                       (SELECT LEAST(p.frontier, p.skipped_from OPERATOR(pg_catalog.-) '1 microsecond'::pg_catalog.interval) FROM idempotency.prune_progress AS p WHERE p.scope_id OPERATOR(pg_catalog.=) s.id), '-infinity')
             ORDER BY t.finished_at LIMIT 1) AS n ON true
     WHERE idempotency.scope_countable(s.id);
COMMENT ON VIEW idempotency.stats IS 'what is counted and measured of each scope that you use, and of all of them for members of pg_monitor; never a key';
GRANT SELECT ON idempotency.stats TO PUBLIC;

CREATE FUNCTION @extschema@.idem_stats_reset(scope pg_catalog.text DEFAULT NULL)
    RETURNS pg_catalog.void LANGUAGE c AS 'MODULE_PATHNAME', 'idem_stats_reset';
COMMENT ON FUNCTION @extschema@.idem_stats_reset(pg_catalog.text) IS
    'sets the counters of a scope, and what was observed of it, back to nothing: for its operators; NULL: of all scopes, for the owner of the extension';

-- What windows are judged by. A run is unguarded in a scope whose keys name it ('<run>/...', as idem_key makes them) but
-- were claimed without run =>: nothing keeps them while the run lives.
CREATE VIEW idempotency.window_evidence WITH (security_barrier) AS
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
COMMENT ON VIEW idempotency.window_evidence IS 'what was seen of each scope that its window has to exceed; for idem_window_advice and idem_doctor';
GRANT SELECT ON idempotency.window_evidence TO PUBLIC;

CREATE VIEW idempotency.advice WITH (security_barrier) AS
    SELECT l.scope, l.dedup_window, l.recommended, l.verdict, l.reasons,
           CASE
               WHEN l.verdict OPERATOR(pg_catalog.=) 'too_short' THEN 'the window of ' OPERATOR(pg_catalog.||) l.dedup_window::pg_catalog.text OPERATOR(pg_catalog.||) ' is not longer than what was seen (' OPERATOR(pg_catalog.||) pg_catalog.date_trunc('second', l.longest)::pg_catalog.text OPERATOR(pg_catalog.||) '): an operation can be tried again after its key has gone'
               WHEN l.verdict OPERATOR(pg_catalog.=) 'near' THEN 'the window of ' OPERATOR(pg_catalog.||) l.dedup_window::pg_catalog.text OPERATOR(pg_catalog.||) ' is less than one and a half times what was seen (' OPERATOR(pg_catalog.||) pg_catalog.date_trunc('second', l.longest)::pg_catalog.text OPERATOR(pg_catalog.||) ')'
           END AS warning
      FROM (SELECT e.scope, e.dedup_window, e.longest, e.reasons,
                   CASE WHEN e.longest IS NULL THEN NULL
                        WHEN e.longest OPERATOR(pg_catalog.*) 2 OPERATOR(pg_catalog.<=) '48 hours'
                        THEN pg_catalog.make_interval(hours => GREATEST(1, pg_catalog.ceil(pg_catalog.date_part('epoch', e.longest) OPERATOR(pg_catalog.*) 2 OPERATOR(pg_catalog./) 3600 OPERATOR(pg_catalog.-) 0.01))::pg_catalog.int4)
                        ELSE pg_catalog.make_interval(days => pg_catalog.ceil(pg_catalog.date_part('epoch', e.longest) OPERATOR(pg_catalog.*) 2 OPERATOR(pg_catalog./) 86400 OPERATOR(pg_catalog.-) 0.01)::pg_catalog.int4)
                   END AS recommended,
                   CASE WHEN e.dedup_window IS NULL THEN 'ok'
                        WHEN e.longest IS NULL THEN 'no_evidence'
                        WHEN e.longest OPERATOR(pg_catalog.>=) e.dedup_window THEN 'too_short'
                        WHEN e.longest OPERATOR(pg_catalog.*) 1.5 OPERATOR(pg_catalog.>) e.dedup_window THEN 'near'
                        ELSE 'ok' END AS verdict
              FROM (SELECT w.scope, w.dedup_window,
                           GREATEST(w.longest_repeat, w.longest_unknown, w.unguarded_pause, w.longest_late) AS longest,
                           pg_catalog.array_remove(ARRAY[
                               'a key was repeated ' OPERATOR(pg_catalog.||) pg_catalog.date_trunc('second', w.longest_repeat)::pg_catalog.text OPERATOR(pg_catalog.||) ' after its claim',
                               'an outcome was unknown for ' OPERATOR(pg_catalog.||) pg_catalog.date_trunc('second', w.longest_unknown)::pg_catalog.text,
                               'a live run may pause for ' OPERATOR(pg_catalog.||) w.unguarded_pause::pg_catalog.text OPERATOR(pg_catalog.||) ', and its keys here are claimed without run =>',
                               'a claim came ' OPERATOR(pg_catalog.||) pg_catalog.date_trunc('second', w.longest_late)::pg_catalog.text OPERATOR(pg_catalog.||) ' after its key was finished, past the window',
                               CASE WHEN w.longest_run IS NOT NULL THEN 'runs with keys here last up to ' OPERATOR(pg_catalog.||) pg_catalog.date_trunc('second', w.longest_run)::pg_catalog.text OPERATOR(pg_catalog.||) '; these keys are kept while their run lives' END,
                               CASE WHEN NOT idempotency.counting() THEN 'repeats are not counted: idempotency is not in shared_preload_libraries' END
                           ], NULL) AS reasons
                      FROM idempotency.window_evidence AS w) AS e) AS l;
COMMENT ON VIEW idempotency.advice IS 'idem_window_advice of every scope that you may see';
GRANT SELECT ON idempotency.advice TO PUBLIC;

CREATE FUNCTION @extschema@.idem_window_advice(
    scope pg_catalog.text DEFAULT 'default',
    OUT dedup_window pg_catalog.interval,
    OUT recommended pg_catalog.interval,
    OUT verdict pg_catalog.text,
    OUT reasons pg_catalog.text[],
    OUT warning pg_catalog.text
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $function$
BEGIN
    SELECT a.dedup_window, a.recommended, a.verdict, a.reasons, a.warning
      INTO dedup_window, recommended, verdict, reasons, warning
      FROM idempotency.advice AS a
     WHERE a.scope OPERATOR(pg_catalog.=) idem_window_advice.scope;
    IF NOT FOUND THEN
        -- Raises: the scope is not there, or not for the caller.
        PERFORM @extschema@.idem_guarantee(idem_window_advice.scope);
    END IF;
END
$function$;
COMMENT ON FUNCTION @extschema@.idem_window_advice(pg_catalog.text) IS
    'how long the window of this scope should be, by what was seen: the longest time to a repeat, the longest unknown outcome, pauses of runs, late claims. verdict is ok, near, too_short or no_evidence';
