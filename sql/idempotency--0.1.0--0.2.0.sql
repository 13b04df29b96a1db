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
