-- Runs: longer pieces of work that keep their keys as long as they live.

CREATE FUNCTION @extschema@.idem_run_begin(
    run pg_catalog.text,
    longest_pause pg_catalog.interval,
    label pg_catalog.text DEFAULT NULL
) RETURNS pg_catalog.timestamptz LANGUAGE c AS 'MODULE_PATHNAME', 'idem_run_begin';
COMMENT ON FUNCTION @extschema@.idem_run_begin(pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
    'begins a run, or says that it goes on: keys claimed with run => its name are kept as long as it lives. It is over with idem_run_end, or longest_pause after its last sign of life; returns when that will be';

CREATE FUNCTION @extschema@.idem_run_touch(run pg_catalog.text)
    RETURNS pg_catalog.timestamptz LANGUAGE c AS 'MODULE_PATHNAME', 'idem_run_touch';
COMMENT ON FUNCTION @extschema@.idem_run_touch(pg_catalog.text) IS
    'a sign of life of a run; returns when it will be over without another';

CREATE FUNCTION @extschema@.idem_run_end(run pg_catalog.text)
    RETURNS pg_catalog.void LANGUAGE c AS 'MODULE_PATHNAME', 'idem_run_end';
COMMENT ON FUNCTION @extschema@.idem_run_end(pg_catalog.text) IS
    'ends a run: its keys go one window after this';

CREATE FUNCTION idempotency.run_over_at(seen_at pg_catalog.timestamptz, longest_pause pg_catalog.interval)
    RETURNS pg_catalog.timestamptz LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'idem_run_over_at';
COMMENT ON FUNCTION idempotency.run_over_at(pg_catalog.timestamptz, pg_catalog.interval) IS
    'when a run is over that gave its last sign of life then: signs are recorded every sixteenth of the pause, so that much is added';

CREATE VIEW idempotency.runs WITH (security_barrier) AS
    SELECT r.run, r.label,
           CASE WHEN (r.ended_at IS NULL OR r.is_silent) AND r.over_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'alive'
                WHEN r.ended_at IS NULL OR r.is_silent THEN 'silent'
                ELSE 'ended' END AS state,
           r.owner, r.longest_pause, r.begun_at, r.seen_at AS last_seen_at,
           CASE WHEN r.ended_at IS NULL OR r.is_silent THEN r.over_at ELSE r.ended_at END AS over_at,
           CASE WHEN NOT (r.is_silent AND r.over_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()) THEN r.ended_at END AS ended_at
      FROM (SELECT i.run, i.label, i.ended_at, i.is_silent, i.owner, i.longest_pause, i.begun_at, s.seen_at,
                   idempotency.run_over_at(s.seen_at, i.longest_pause) AS over_at
              FROM idempotency.run AS i
             CROSS JOIN LATERAL (SELECT GREATEST(i.seen_at, pg_catalog.max(g.seen_at)) AS seen_at
                                   FROM idempotency.run_sign AS g WHERE g.digest OPERATOR(pg_catalog.=) i.digest) AS s
             WHERE i.scope_id IS NULL AND pg_catalog.pg_has_role(i.owner::pg_catalog.oid, 'USAGE')) AS r;
COMMENT ON VIEW idempotency.runs IS 'your runs: alive, ended, or silent (over without idem_run_end), and when each is or was over';
GRANT SELECT ON idempotency.runs TO PUBLIC;
