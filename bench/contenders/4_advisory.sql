-- Contender 4: an advisory lock on the hash of the key, and a table of finished requests. Written as in many answers on
-- how to serialise work by a name in PostgreSQL. The lock lasts to the end of the transaction; the key is written once,
-- with its result. Arguments are not compared, and all users of advisory locks in the database share one space of numbers.

CREATE TABLE advisory_keys (
    key        text PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    result     jsonb
);
CREATE INDEX ON advisory_keys (created_at);
INSERT INTO advisory_keys SELECT 'old-' || n, now(), jsonb_build_object('credit', n) FROM generate_series(1, :old_keys) AS n;

CREATE FUNCTION advisory_credit(request text, order_no bigint, amount numeric, pause_s float8 DEFAULT 0) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    answer jsonb;
    credit bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(request, 0));
    SELECT result INTO answer FROM advisory_keys WHERE key = request;
    IF FOUND THEN
        RETURN answer;
    END IF;
    INSERT INTO credits (order_no, amount) VALUES (advisory_credit.order_no, advisory_credit.amount) RETURNING id INTO credit;
    IF pause_s > 0 THEN
        PERFORM pg_sleep(pause_s);
    END IF;
    answer := jsonb_build_object('credit', credit);
    INSERT INTO advisory_keys (key, result) VALUES (request, answer);
    RETURN answer;
END $$;

-- The same for callers who do not wait.
CREATE FUNCTION advisory_try(request text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended(request, 0)) THEN
        RETURN 'in progress';
    END IF;
    RETURN 'free';
END $$;
