-- Contender 6: this extension, in each of the ways that README.md shows. Arguments are compared, as in the README;
-- `plain` is the same without arguments, which is what contenders 1, 2 and 4 do.
-- The old keys are written straight into idempotency.outcome, as a completion leaves them.

CREATE EXTENSION idempotency;

CREATE FUNCTION ours_digest(key text) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT encode(substr(sha256(int8send(7) || 'default'::bytea || int8send(octet_length(key)) || convert_to(key, 'UTF8')), 1, 16), 'hex')::uuid
$$;

INSERT INTO idempotency.outcome (digest, finished_at, fence, scope_id, attempt, args_rule, state, key, result)
SELECT ours_digest('old-' || n), now() - (:old_keys - n) * interval '1 millisecond', n, 0, 1, 0, 'c', 'old-' || n, jsonb_build_object('credit', n)
FROM generate_series(1, :old_keys) AS n;

-- As many whose arguments are on record, where it is not about the number of keys.
INSERT INTO idempotency.outcome (digest, finished_at, fence, scope_id, attempt, args_rule, state, key, args_hash, result)
SELECT ours_digest('args-' || n), now() - (:old_keys - n) * interval '1 millisecond', n, 0, 1, 0, 'c', 'args-' || n,
       idem_hash(jsonb_build_object('order', n, 'amount', 5)), jsonb_build_object('credit', n)
FROM generate_series(1, :old_keys) AS n WHERE :old_keys <= 100000;

-- As in README.md, "From a stored procedure".
CREATE FUNCTION ours_credit(request text, order_no bigint, amount numeric, pause_s float8 DEFAULT 0) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    c record;
    credit bigint;
BEGIN
    c := idem_claim(request, jsonb_build_object('order', order_no, 'amount', amount));
    IF c.decision = 'execute' THEN
        INSERT INTO credits (order_no, amount) VALUES (ours_credit.order_no, ours_credit.amount) RETURNING id INTO credit;
        IF pause_s > 0 THEN
            PERFORM pg_sleep(pause_s);
        END IF;
        RETURN idem_complete(request, jsonb_build_object('credit', credit));
    ELSIF c.decision = 'replay' THEN
        RETURN c.result;
    END IF;
    RAISE EXCEPTION 'request % is %', request, c.decision;
END $$;

CREATE FUNCTION ours_credit_plain(request text, order_no bigint, amount numeric) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    c record;
    credit bigint;
BEGIN
    c := idem_claim(request);
    IF c.decision = 'execute' THEN
        INSERT INTO credits (order_no, amount) VALUES (ours_credit_plain.order_no, ours_credit_plain.amount) RETURNING id INTO credit;
        RETURN idem_complete(request, jsonb_build_object('credit', credit));
    ELSIF c.decision = 'replay' THEN
        RETURN c.result;
    END IF;
    RAISE EXCEPTION 'request % is %', request, c.decision;
END $$;

CREATE FUNCTION ours_credit_body(request text, order_no bigint, bytes int) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    c record;
BEGIN
    c := idem_claim(request);
    IF c.decision = 'execute' THEN
        RETURN idem_complete(request, bare_credit_body(order_no, bytes));
    ELSIF c.decision = 'replay' THEN
        RETURN c.result;
    END IF;
    RAISE EXCEPTION 'request % is %', request, c.decision;
END $$;

-- The effect of idem_call.
CREATE FUNCTION ours_effect(args jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    credit bigint;
BEGIN
    INSERT INTO credits (order_no, amount) VALUES ((args ->> 'order')::bigint, (args ->> 'amount')::numeric) RETURNING id INTO credit;
    RETURN jsonb_build_object('credit', credit);
END $$;

-- A batch: claimed, carried out and completed as sets, in one transaction.
CREATE FUNCTION ours_credit_many(request text, order_no bigint, quantity int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    requests text[];
    bodies jsonb[];
    finished bigint;
BEGIN
    SELECT array_agg(request || n), array_agg(jsonb_build_object('order', order_no + n, 'amount', 5))
    INTO requests, bodies FROM generate_series(1, quantity) AS n;
    SELECT array_agg(key ORDER BY ord) INTO requests FROM idem_claim_many(requests, bodies) WHERE decision = 'execute';
    WITH credited AS (
        INSERT INTO credits (order_no, amount) SELECT ours_credit_many.order_no, 5 FROM unnest(requests) RETURNING id
    )
    SELECT array_agg(jsonb_build_object('credit', id)) INTO bodies FROM credited;
    SELECT count(*) INTO finished FROM idem_complete_many(requests, bodies);
    RETURN finished;
END $$;

CREATE FUNCTION ours_enqueue_credit(request text, order_no bigint, amount numeric) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    credit bigint;
BEGIN
    INSERT INTO credits (order_no, amount) VALUES (ours_enqueue_credit.order_no, ours_enqueue_credit.amount) RETURNING id INTO credit;
    PERFORM decision FROM idem_enqueue(request, 'mail', jsonb_build_object('to', 'a@example.org', 'credit', credit));
    RETURN jsonb_build_object('credit', credit);
END $$;

-- A claim and its completion around nothing: what the record alone costs.
CREATE FUNCTION ours_record(request text, result jsonb, args jsonb DEFAULT NULL) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    PERFORM decision FROM idem_claim(request, args);
    RETURN idem_complete(request, result);
END $$;
