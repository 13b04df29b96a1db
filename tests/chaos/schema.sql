CREATE EXTENSION idempotency;

-- The effects inside the database, in the transaction of their completion. No constraint stops a second one.
CREATE TABLE ledger (
    id         bigint GENERATED ALWAYS AS IDENTITY,
    key        text NOT NULL,
    op         text NOT NULL,
    state      text NOT NULL,
    run        text,
    fence      bigint,
    -- When the claim was made, as it was told; and a moment before the completion.
    claimed_at timestamptz,
    at         timestamptz NOT NULL
);
CREATE INDEX ON ledger (key);

-- The business rows that messages tell of.
CREATE TABLE orders (key text NOT NULL, op text NOT NULL);

CREATE FUNCTION have_effect(args jsonb) RETURNS jsonb LANGUAGE sql AS $$
    INSERT INTO ledger (key, op, state, run, at)
    VALUES (args ->> 'key', args ->> 'op', 'completed', args ->> 'run', clock_timestamp())
    RETURNING jsonb_build_object('op', op)
$$;
