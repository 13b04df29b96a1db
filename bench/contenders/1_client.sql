-- Contender 1: the textbook pattern, from the client, in five round trips: BEGIN; INSERT the key ON CONFLICT DO NOTHING;
-- the effect; UPDATE the key with its result; COMMIT. It is what most guides to idempotency keys in PostgreSQL show, and
-- what an application does without stored procedures. Arguments are not compared.
-- Right as it stands: a second caller waits in its INSERT for the first. What it lacks: a word for "in progress" and for
-- "unknown", and an end of its records.

CREATE TABLE client_keys (
    key        text PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    result     jsonb
);
CREATE INDEX ON client_keys (created_at);
INSERT INTO client_keys SELECT 'old-' || n, now(), jsonb_build_object('credit', n) FROM generate_series(1, :old_keys) AS n;
