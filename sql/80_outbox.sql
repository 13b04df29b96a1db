-- The transactional outbox: messages to other systems, written with the business row, delivered under leases.

CREATE FUNCTION @extschema@.idem_enqueue(
    key pg_catalog.text,
    destination pg_catalog.text,
    payload pg_catalog.jsonb,
    args pg_catalog.jsonb DEFAULT NULL,
    scope pg_catalog.text DEFAULT 'default',
    run pg_catalog.text DEFAULT NULL,
    delay pg_catalog.interval DEFAULT NULL,
    ordering_key pg_catalog.text DEFAULT NULL,
    OUT decision pg_catalog.text,
    OUT enqueued pg_catalog.bool,
    OUT result pg_catalog.jsonb,
    OUT reason pg_catalog.text,
    OUT enqueued_at pg_catalog.timestamptz,
    OUT finished_at pg_catalog.timestamptz
) LANGUAGE c AS 'MODULE_PATHNAME', 'idem_enqueue';
COMMENT ON FUNCTION @extschema@.idem_enqueue(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.jsonb, pg_catalog.text, pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
    'writes a message to another system in the caller''s transaction; enqueued says whether this call did. decision is queued, or for a duplicate what a claim would be told: replay, in_progress, rejected, escalated';

CREATE FUNCTION @extschema@.idem_dispatch(
    destination pg_catalog.text,
    max_rows pg_catalog.int4,
    lease pg_catalog.interval,
    wait pg_catalog.interval DEFAULT NULL,
    scopes pg_catalog.text[] DEFAULT NULL,
    OUT key pg_catalog.text,
    OUT scope pg_catalog.text,
    OUT fence pg_catalog.int8,
    OUT attempt pg_catalog.int4,
    OUT decision pg_catalog.text,
    OUT payload pg_catalog.jsonb,
    OUT enqueued_at pg_catalog.timestamptz,
    OUT lease_expires_at pg_catalog.timestamptz,
    OUT reason pg_catalog.text
) RETURNS SETOF pg_catalog.record LANGUAGE c AS 'MODULE_PATHNAME', 'idem_dispatch';
COMMENT ON FUNCTION @extschema@.idem_dispatch(pg_catalog.text, pg_catalog.int4, pg_catalog.interval, pg_catalog.interval, pg_catalog.text[]) IS
    'takes messages that are due, each under a lease and a fence: decision execute (send it, with the key as its idempotency key) or reconcile (read the other system first). COMMIT before sending, then idem_complete, idem_fail or idem_resolve. wait waits that long for the first; scopes says whose messages, else those of every scope that you may use';

CREATE VIEW idempotency.outbox WITH (security_barrier) AS
    SELECT m.scope, m.key, m.destination, m.ordering_key,
           CASE WHEN c.state OPERATOR(pg_catalog.=) 'f' THEN 'in_flight'
                WHEN c.state OPERATOR(pg_catalog.=) 'q' THEN 'queued'
                WHEN c.state OPERATOR(pg_catalog.=) 'e' THEN 'escalated' ELSE 'unknown' END AS state,
           m.enqueued_at, m.enqueued_by, CASE WHEN m.due_at OPERATOR(pg_catalog.<>) 'infinity' THEN m.due_at END AS due_at, c.tries, c.attempt, c.reconciles,
           CASE WHEN c.tries OPERATOR(pg_catalog.>) 0 THEN c.claimed_by END AS claimed_by,
           CASE WHEN c.tries OPERATOR(pg_catalog.>) 0 THEN c.application_name END AS application_name,
           c.lease_expires_at, c.fence, c.reason, m.run, m.payload
      FROM idempotency.message AS m
      JOIN idempotency.claim AS c ON c.digest OPERATOR(pg_catalog.=) m.digest
     WHERE idempotency.scope_usable(m.scope_id);
COMMENT ON VIEW idempotency.outbox IS 'messages that are not finished: when they are due, how often tried, who holds them';

CREATE VIEW idempotency.debezium_outbox WITH (security_barrier) AS
    SELECT m.digest AS id, m.destination AS aggregatetype, COALESCE(m.ordering_key, m.key) AS aggregateid,
           m.scope AS type, m.payload, m.key, m.enqueued_at
      FROM idempotency.message AS m
     WHERE idempotency.scope_usable(m.scope_id);
COMMENT ON VIEW idempotency.debezium_outbox IS 'unfinished messages under the column names of Debezium''s outbox event router';

GRANT SELECT ON idempotency.outbox, idempotency.debezium_outbox TO PUBLIC;
