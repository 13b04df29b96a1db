-- What the background worker does, for those who run it themselves, and what it says of itself.

CREATE FUNCTION @extschema@.idem_sweep(
    OUT leases_ended pg_catalog.int4,
    OUT outcomes_pruned pg_catalog.int4,
    OUT more pg_catalog.bool
) LANGUAGE c AS 'MODULE_PATHNAME', 'idem_sweep';
COMMENT ON FUNCTION @extschema@.idem_sweep() IS
    'one bounded batch of what the background worker does: ends expired leases, prunes outcomes past their window; more says whether to call again';
REVOKE ALL ON FUNCTION @extschema@.idem_sweep() FROM PUBLIC;

CREATE FUNCTION idempotency.sweep_restart()
    RETURNS pg_catalog.void LANGUAGE c AS 'MODULE_PATHNAME', 'idem_sweep_restart';
COMMENT ON FUNCTION idempotency.sweep_restart() IS
    'the next idem_sweep() of this session begins at the first key again';
REVOKE ALL ON FUNCTION idempotency.sweep_restart() FROM PUBLIC;

CREATE PROCEDURE idempotency.sweep() LANGUAGE plpgsql AS $procedure$
DECLARE
    more pg_catalog.bool := true;
BEGIN
    PERFORM idempotency.sweep_restart();
    WHILE more LOOP
        SELECT s.more INTO more FROM @extschema@.idem_sweep() AS s;
        COMMIT;
    END LOOP;
END
$procedure$;
COMMENT ON PROCEDURE idempotency.sweep() IS
    'calls idem_sweep until nothing is due and commits after each batch: CALL idempotency.sweep() from pg_cron or by hand';
REVOKE ALL ON PROCEDURE idempotency.sweep() FROM PUBLIC;

CREATE FUNCTION @extschema@.idem_status(
    OUT version pg_catalog.text,
    OUT preloaded pg_catalog.bool,
    OUT worker pg_catalog.text,
    OUT launcher_pid pg_catalog.int4,
    OUT last_sweep_at pg_catalog.timestamptz,
    OUT last_duration pg_catalog.interval,
    OUT last_leases_ended pg_catalog.int8,
    OUT last_outcomes_pruned pg_catalog.int8,
    OUT last_error pg_catalog.text,
    OUT open_keys pg_catalog.int8,
    OUT leases_overdue pg_catalog.int8,
    OUT unknown_keys pg_catalog.int8,
    OUT escalated_keys pg_catalog.int8,
    OUT queued_messages pg_catalog.int8
) LANGUAGE c AS 'MODULE_PATHNAME', 'idem_status';
COMMENT ON FUNCTION @extschema@.idem_status() IS
    'one row: version, whether the library is preloaded, what the worker does, its last sweep of this database, and what is open; for members of pg_monitor';
REVOKE ALL ON FUNCTION @extschema@.idem_status() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.idem_status() TO pg_monitor;

CREATE FUNCTION idempotency.last_sweeps(
    OUT database pg_catalog.oid,
    OUT last_sweep_at pg_catalog.timestamptz,
    OUT duration pg_catalog.interval,
    OUT leases_ended pg_catalog.int8,
    OUT outcomes_pruned pg_catalog.int8,
    OUT error pg_catalog.text
) RETURNS SETOF pg_catalog.record LANGUAGE c AS 'MODULE_PATHNAME', 'idem_sweeps';
COMMENT ON FUNCTION idempotency.last_sweeps() IS 'what view idempotency.sweeps shows, by the number of the database';
REVOKE ALL ON FUNCTION idempotency.last_sweeps() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION idempotency.last_sweeps() TO pg_monitor;

CREATE VIEW idempotency.sweeps AS
    SELECT d.datname AS database, s.last_sweep_at, s.duration, s.leases_ended, s.outcomes_pruned, s.error
      FROM idempotency.last_sweeps() AS s
      JOIN pg_catalog.pg_database AS d ON d.oid OPERATOR(pg_catalog.=) s.database;
COMMENT ON VIEW idempotency.sweeps IS 'the background worker''s last visit to each database: when it ended, how long it took, what it did, its first error; for members of pg_monitor';
GRANT SELECT ON idempotency.sweeps TO pg_monitor;
