-- Contender 3: keys with recovery points, as in Brandur Leach's article "Implementing Stripe-like Idempotency Keys in
-- Postgres" (brandur.org/idempotency-keys), written anew for one step. Each phase is a transaction of its own at
-- SERIALIZABLE: take the key and lock it; the effect with its recovery point; the answer, and the key unlocked.
-- That the effect is in this same database would allow for one transaction; the pattern is made for steps that are not,
-- and it is the counterpart of a leased claim. A second caller is told 409 while the key is locked.

CREATE TABLE recovery_keys (
    id              bigserial PRIMARY KEY,
    created_at      timestamptz NOT NULL DEFAULT now(),
    idempotency_key text NOT NULL CHECK (char_length(idempotency_key) <= 100),
    last_run_at     timestamptz NOT NULL DEFAULT now(),
    locked_at       timestamptz DEFAULT now(),
    request_method  text NOT NULL,
    request_params  jsonb NOT NULL,
    request_path    text NOT NULL,
    response_code   int,
    response_body   jsonb,
    recovery_point  text NOT NULL CHECK (char_length(recovery_point) <= 50),
    user_id         bigint NOT NULL
);
CREATE UNIQUE INDEX ON recovery_keys (user_id, idempotency_key);
INSERT INTO recovery_keys (idempotency_key, locked_at, request_method, request_params, request_path, response_code, response_body, recovery_point, user_id)
SELECT 'old-' || n, NULL, 'POST', jsonb_build_object('order', n), '/credits', 201, jsonb_build_object('credit', n), 'finished', 7
FROM generate_series(1, :old_keys) AS n;
INSERT INTO recovery_keys (idempotency_key, locked_at, request_method, request_params, request_path, recovery_point, user_id)
SELECT 'busy-' || n, now(), 'POST', jsonb_build_object('order', n), '/credits', 'started', 7 FROM generate_series(1, 1000) AS n;
