-- Contender 5: a queue in a table, in the shape of pgmq (github.com/pgmq/pgmq), written anew: a table for each queue, a
-- visibility timeout, SELECT ... FOR UPDATE SKIP LOCKED, and functions that build their statement from the queue's name.
-- Without the archive, without polling. A message that is sent twice is there twice, and one whose reader died is
-- delivered again as if nothing could have happened.

CREATE SCHEMA queue;
CREATE TABLE queue.q_mail (
    msg_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    read_ct     int NOT NULL DEFAULT 0,
    enqueued_at timestamptz NOT NULL DEFAULT now(),
    vt          timestamptz NOT NULL,
    message     jsonb
);
CREATE INDEX ON queue.q_mail (vt);

CREATE FUNCTION queue.send(queue_name text, message jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    sent bigint;
BEGIN
    EXECUTE format('INSERT INTO queue.%I (vt, message) VALUES (clock_timestamp(), $1) RETURNING msg_id', 'q_' || queue_name)
    INTO sent USING message;
    RETURN sent;
END $$;

CREATE FUNCTION queue.read(queue_name text, vt_seconds int, quantity int) RETURNS SETOF queue.q_mail LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY EXECUTE format(
        'WITH taken AS (
            SELECT msg_id FROM queue.%1$I WHERE vt <= clock_timestamp() ORDER BY msg_id LIMIT $1 FOR UPDATE SKIP LOCKED
        )
        UPDATE queue.%1$I AS m SET vt = clock_timestamp() + make_interval(secs => $2), read_ct = m.read_ct + 1
        FROM taken WHERE m.msg_id = taken.msg_id
        RETURNING m.msg_id, m.read_ct, m.enqueued_at, m.vt, m.message', 'q_' || queue_name)
    USING quantity, vt_seconds;
END $$;

CREATE FUNCTION queue.delete(queue_name text, msg_ids bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY EXECUTE format('DELETE FROM queue.%I WHERE msg_id = ANY ($1) RETURNING msg_id', 'q_' || queue_name) USING msg_ids;
END $$;

CREATE FUNCTION queue_credit(order_no bigint, amount numeric) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    credit bigint;
BEGIN
    INSERT INTO credits (order_no, amount) VALUES (queue_credit.order_no, queue_credit.amount) RETURNING id INTO credit;
    PERFORM queue.send('mail', jsonb_build_object('to', 'a@example.org', 'credit', credit));
    RETURN jsonb_build_object('credit', credit);
END $$;
