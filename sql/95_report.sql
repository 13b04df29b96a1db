-- A picture for people: the data of idem_report(), of what its caller may see.

CREATE VIEW idempotency.expiries WITH (security_barrier) AS
    SELECT COALESCE(s.name, 'default') AS scope, e.day, e.outcomes
      FROM (SELECT o.scope_id,
                   pg_catalog.date_trunc('day', o.finished_at OPERATOR(pg_catalog.+) idempotency.window_of(o.scope_id), 'UTC') AS day,
                   pg_catalog.round(pg_catalog.sum(o.factor))::pg_catalog.int8 AS outcomes
              FROM idempotency.sampled_outcomes AS o
             WHERE pg_catalog.isfinite(o.finished_at)
             GROUP BY 1, 2) AS e
      LEFT JOIN idempotency.scope AS s ON s.id OPERATOR(pg_catalog.=) e.scope_id
     WHERE e.day IS NOT NULL AND idempotency.scope_countable(e.scope_id);
COMMENT ON VIEW idempotency.expiries IS 'on which day how many outcomes come to the end of their window, runs aside; an estimate on large tables';

CREATE VIEW idempotency.hourly_activity WITH (security_barrier) AS
    SELECT COALESCE(s.name, 'default') AS scope, a.hour, a.claims, a.executes, a.replays, a.pruned
      FROM idempotency.activity AS a
      LEFT JOIN idempotency.scope AS s ON s.id OPERATOR(pg_catalog.=) a.scope_id
     WHERE idempotency.scope_countable(a.scope_id);
COMMENT ON VIEW idempotency.hourly_activity IS 'what the worker saw in each hour: claims, those that were told to execute, repeats, pruned outcomes';

CREATE VIEW idempotency.repeats WITH (security_barrier) AS
    SELECT COALESCE(s.name, 'default') AS scope, pg_catalog.make_interval(secs => pg_catalog.power(2, h.place OPERATOR(pg_catalog.-) 1)) AS upto, h.repeats
      FROM idempotency.observed AS o
     CROSS JOIN LATERAL pg_catalog.unnest(o.repeats) WITH ORDINALITY AS h (repeats, place)
      LEFT JOIN idempotency.scope AS s ON s.id OPERATOR(pg_catalog.=) o.scope_id
     WHERE idempotency.scope_countable(o.scope_id);
COMMENT ON VIEW idempotency.repeats IS 'how long after a key''s claim its repeats came: how many in each bucket, up to this long';
GRANT SELECT ON idempotency.expiries, idempotency.hourly_activity, idempotency.repeats TO PUBLIC;

CREATE FUNCTION idempotency.report_data(scope pg_catalog.text DEFAULT NULL)
    RETURNS pg_catalog.jsonb LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $function$
DECLARE
    monitors pg_catalog.bool := pg_catalog.has_function_privilege('@extschema@.idem_doctor()', 'EXECUTE');
    status record;
    findings pg_catalog.jsonb;
    scopes pg_catalog.jsonb;
    runs pg_catalog.jsonb;
BEGIN
    IF report_data.scope IS NOT NULL THEN
        -- Raises where the scope is not there, or not for the caller.
        PERFORM @extschema@.idem_guarantee(report_data.scope);
    END IF;
    IF monitors THEN
        SELECT s.version, s.preloaded, s.worker INTO status FROM @extschema@.idem_status() AS s;
        SELECT pg_catalog.jsonb_agg(pg_catalog.to_jsonb(d)) INTO findings FROM @extschema@.idem_doctor() AS d;
    ELSE
        SELECT e.extversion AS version, idempotency.counting() AS preloaded, 'shown to members of pg_monitor' AS worker
          INTO status FROM pg_catalog.pg_extension AS e WHERE e.extname = 'idempotency';
        findings := '[{"severity": "notice", "finding": "not_shown", "what": "the doctor''s findings are shown to members of pg_monitor",
                       "why": "this page shows what its reader may see", "mend": null}]';
    END IF;
    SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object(
               'scope', v.scope, 'owner', p.owner::pg_catalog.text,
               'window_s', pg_catalog.date_part('epoch', a.dedup_window), 'guard_s', pg_catalog.date_part('epoch', p.guard),
               'effect_kind', COALESCE(p.effect_kind, 'external'),
               'advice', pg_catalog.jsonb_build_object('verdict', a.verdict, 'recommended_s', pg_catalog.date_part('epoch', a.recommended),
                                                       'reasons', a.reasons, 'warning', a.warning),
               'counters', CASE WHEN v.claims IS NOT NULL THEN pg_catalog.to_jsonb(v)
                   - ARRAY['scope', 'counted_since', 'counters_note', 'open_keys', 'in_flight', 'queued', 'unknown_keys', 'escalated_keys', 'oldest_open_at',
                           'oldest_unknown_at', 'outcomes', 'bytes', 'next_expiry_at', 'prune_lag', 'longest_repeat', 'longest_late',
                           'longest_unknown', 'slowest_call', 'longest_lease'] END,
               'counters_note', v.counters_note, 'counted_since', v.counted_since,
               'gauges', pg_catalog.jsonb_build_object('open_keys', v.open_keys, 'in_flight', v.in_flight, 'queued', v.queued,
                   'unknown_keys', v.unknown_keys, 'escalated_keys', v.escalated_keys, 'outcomes', v.outcomes, 'bytes', v.bytes,
                   'next_expiry_at', v.next_expiry_at, 'prune_lag_s', pg_catalog.date_part('epoch', v.prune_lag)),
               'longest_repeat_s', pg_catalog.date_part('epoch', v.longest_repeat),
               'activity', (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('at', h.hour, 'claims', h.claims, 'executes', h.executes,
                                                        'replays', h.replays, 'pruned', h.pruned) ORDER BY h.hour)
                              FROM idempotency.hourly_activity AS h
                             WHERE h.scope = v.scope AND h.hour > pg_catalog.clock_timestamp() - '7 days'::pg_catalog.interval),
               'expiries', (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('at', e.day, 'count', e.outcomes) ORDER BY e.day)
                              FROM (SELECT x.day, x.outcomes FROM idempotency.expiries AS x
                                     WHERE x.scope = v.scope AND x.day >= pg_catalog.date_trunc('day', pg_catalog.clock_timestamp(), 'UTC')
                                     ORDER BY x.day LIMIT 40) AS e),
               'repeats', (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('upto_s', pg_catalog.date_part('epoch', r.upto), 'count', r.repeats) ORDER BY r.upto)
                             FROM idempotency.repeats AS r WHERE r.scope = v.scope),
               'open', (SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('key', k.key, 'state', k.state,
                                   'age_s', CASE WHEN pg_catalog.isfinite(k.claimed_at) THEN pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - k.claimed_at) END, 'run', k.run,
                                   'holder', pg_catalog.concat_ws(' ', k.claimed_by::pg_catalog.text, k.application_name),
                                   'lease_ends_in_s', CASE WHEN pg_catalog.isfinite(k.lease_expires_at) THEN pg_catalog.date_part('epoch', k.lease_expires_at - pg_catalog.clock_timestamp()) END) ORDER BY k.claimed_at)
                          FROM (SELECT o.key, o.state, o.run, o.claimed_by, o.application_name, o.claimed_at, o.lease_expires_at
                                  FROM idempotency.records AS o
                                 WHERE o.scope = v.scope AND o.finished_at IS NULL
                                 ORDER BY o.claimed_at LIMIT 50) AS k))
               ORDER BY v.scope)
      INTO scopes
      FROM idempotency.stats AS v
      JOIN idempotency.scopes AS p ON p.scope = v.scope
      LEFT JOIN idempotency.advice AS a ON a.scope = v.scope
     WHERE report_data.scope IS NULL OR v.scope = report_data.scope;
    SELECT pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('run', r.run, 'label', r.label, 'state', r.state,
               'longest_pause_s', pg_catalog.date_part('epoch', r.longest_pause), 'last_seen_at', r.last_seen_at, 'over_at', r.over_at) ORDER BY r.last_seen_at DESC)
      INTO runs
      FROM (SELECT i.run, i.label, i.state, i.longest_pause, i.last_seen_at, i.over_at
              FROM idempotency.runs AS i ORDER BY i.last_seen_at DESC LIMIT 200) AS r;
    RETURN pg_catalog.jsonb_build_object(
        'generated_at', pg_catalog.clock_timestamp(), 'database', pg_catalog.current_database(),
        'version', status.version, 'preloaded', status.preloaded, 'worker', status.worker,
        'scopes', COALESCE(scopes, '[]'), 'runs', COALESCE(runs, '[]'), 'findings', COALESCE(findings, '[]'));
END
$function$;
COMMENT ON FUNCTION idempotency.report_data(pg_catalog.text) IS 'what idem_report shows, as one JSON document: of one scope, or of all that the caller may use';

CREATE FUNCTION @extschema@.idem_report(scope pg_catalog.text DEFAULT NULL)
    RETURNS pg_catalog.text LANGUAGE c STABLE AS 'MODULE_PATHNAME', 'idem_report';
COMMENT ON FUNCTION @extschema@.idem_report(pg_catalog.text) IS
    'one self-contained HTML page on a scope, or on all that you may use: windows against observed repeats, timeline, open keys, findings. psql -Atqc "SELECT idem_report()" > report.html';
