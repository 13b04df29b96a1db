-- Contender 2: the textbook pattern as one PL/pgSQL function, so that it costs one round trip. Written as those do who
-- move the pattern of contender 1 into the database. Arguments are not compared.

CREATE TABLE function_keys (
    key        text PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    result     jsonb
);
CREATE INDEX ON function_keys (created_at);
INSERT INTO function_keys SELECT 'old-' || n, now(), jsonb_build_object('credit', n) FROM generate_series(1, :old_keys) AS n;

CREATE FUNCTION function_credit(request text, order_no bigint, amount numeric, pause_s float8 DEFAULT 0) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    answer jsonb;
    credit bigint;
BEGIN
    INSERT INTO function_keys (key) VALUES (request) ON CONFLICT (key) DO NOTHING;
    IF NOT FOUND THEN
        SELECT result INTO answer FROM function_keys WHERE key = request;
        RETURN answer;
    END IF;
    INSERT INTO credits (order_no, amount) VALUES (function_credit.order_no, function_credit.amount) RETURNING id INTO credit;
    IF pause_s > 0 THEN
        PERFORM pg_sleep(pause_s);
    END IF;
    answer := jsonb_build_object('credit', credit);
    UPDATE function_keys SET result = answer WHERE key = request;
    RETURN answer;
END $$;

CREATE FUNCTION function_credit_body(request text, order_no bigint, bytes int) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    answer jsonb;
BEGIN
    INSERT INTO function_keys (key) VALUES (request) ON CONFLICT (key) DO NOTHING;
    IF NOT FOUND THEN
        SELECT result INTO answer FROM function_keys WHERE key = request;
        RETURN answer;
    END IF;
    answer := bare_credit_body(order_no, bytes);
    UPDATE function_keys SET result = answer WHERE key = request;
    RETURN answer;
END $$;
