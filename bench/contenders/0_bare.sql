-- Contender 0: the bare effect. One credit is written, in one call, and nothing guards it: a retry credits again.
-- The effect of all others is the same INSERT. What they cost beside it is what this one is measured for.
-- Also here, since no contender owns them: results of a size, and one row read by its primary key through a function,
-- the least that an answer to a repeated request can cost.

CREATE TABLE credits (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_no   bigint NOT NULL,
    amount     numeric NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE FUNCTION bare_credit(order_no bigint, amount numeric) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    credit bigint;
BEGIN
    INSERT INTO credits (order_no, amount) VALUES (bare_credit.order_no, bare_credit.amount) RETURNING id INTO credit;
    RETURN jsonb_build_object('credit', credit);
END $$;

-- Text that compresses as little as a real answer with ids in it.
CREATE TABLE bodies (bytes int PRIMARY KEY, body jsonb NOT NULL);
INSERT INTO bodies
SELECT bytes, (SELECT jsonb_build_object('body', string_agg(encode(sha256(n::text::bytea), 'base64'), '')) FROM generate_series(1, bytes / 44) AS n)
FROM unnest('{1000, 100000}'::int[]) AS bytes;

CREATE FUNCTION bare_credit_body(order_no bigint, bytes int) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    answer jsonb;
BEGIN
    INSERT INTO credits (order_no, amount) VALUES (bare_credit_body.order_no, 5);
    SELECT body INTO answer FROM bodies AS b WHERE b.bytes = bare_credit_body.bytes;
    RETURN answer;
END $$;

-- The row of a finished request, as a table of one's own would hold it, with all that idem_claim answers.
CREATE TABLE bare_answers (
    key         text COLLATE "C" PRIMARY KEY,
    decision    text NOT NULL,
    fence       bigint NOT NULL,
    attempt     int NOT NULL,
    result      jsonb,
    finished_at timestamptz NOT NULL
);
INSERT INTO bare_answers SELECT 'old-' || n, 'replay', n, 1, jsonb_build_object('credit', n), now() FROM generate_series(1, :old_keys) AS n;

CREATE FUNCTION bare_answer(key text, OUT decision text, OUT fence bigint, OUT attempt int, OUT result jsonb, OUT finished_at timestamptz)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT a.decision, a.fence, a.attempt, a.result, a.finished_at INTO decision, fence, attempt, result, finished_at
    FROM bare_answers AS a WHERE a.key = bare_answer.key;
END $$;
