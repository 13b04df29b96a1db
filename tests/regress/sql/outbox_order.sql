-- ordering_key: messages of one scope, destination and ordering key go out one after the other, in the order of their
-- commits, and only they wait for each other.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
TRUNCATE idempotency.message, idempotency.event;
CREATE PROCEDURE test.due(of_key text) LANGUAGE sql AS $$
    UPDATE idempotency.message SET due_at = clock_timestamp() - interval '1 ms' WHERE key = of_key;
    UPDATE idempotency.claim SET retry_at = clock_timestamp() - interval '1 ms' WHERE key = of_key;
    -- Of a lease that is over, the back-off counts from its end.
    UPDATE idempotency.claim SET lease_expires_at = lease_expires_at - interval '1 day'
     WHERE key = of_key AND state = 'f' AND lease_expires_at <= clock_timestamp();
$$;
-- What a dispatcher gets next; the fences stay in test.sent.
CREATE TABLE test.sent (key text, scope text, fence bigint, attempt int, decision text);
CREATE FUNCTION test.next(destination text, max_rows int DEFAULT 100) RETURNS text LANGUAGE sql AS $$
    WITH d AS (INSERT INTO test.sent SELECT d.key, d.scope, d.fence, d.attempt, d.decision FROM idem_dispatch(destination, max_rows, '1 hour') AS d RETURNING sent.*)
    SELECT string_agg(concat_ws(' ', d.scope, d.key, d.decision), ', ' ORDER BY d.scope, d.key) FROM d
$$;
CREATE FUNCTION test.fence(of_key text, of_scope text DEFAULT 's') RETURNS bigint LANGUAGE sql AS $$ SELECT max(fence) FROM test.sent WHERE key = of_key AND scope = of_scope $$;
\set ECHO all

SELECT idem_scope_set('s', backoff => '1 hour', max_backoff => '1 day', max_attempts => 2);
SELECT idem_scope_set('other', backoff => '1 hour');
SELECT count(idem_enqueue(key, d, '1', scope => s, ordering_key => o)) FROM (VALUES
    ('a1', 's', 'd', 'a'), ('a2', 's', 'd', 'a'), ('a3', 's', 'd', 'a'), ('b1', 's', 'd', 'b'), ('b2', 's', 'd', 'b'), ('free1', 's', 'd', NULL), ('free2', 's', 'd', NULL),
    ('a1', 'other', 'd', 'a'), ('a1, elsewhere', 's', 'd2', 'a')) AS m (key, s, d, o);
-- The first of each ordering key, whatever is asked for; unordered ones and those of other scopes and destinations pass.
SELECT test.next('d');
SELECT test.next('d');
SELECT test.next('d2');
-- The second waits for the first's finish: while it is in flight, after it is given back, while it backs off, is unknown, escalated.
SELECT idem_release('a1', 's', test.fence('a1'));
SELECT test.next('d');
SELECT idem_fail('a1', 'not_applied', 'no', scope => 's', fence => test.fence('a1'));
SELECT test.next('d');
CALL test.due('a1');
SELECT test.next('d');
SELECT idem_fail('a1', 'unknown', 'reset', scope => 's', fence => test.fence('a1'));
SELECT test.next('d');
SELECT idem_escalate('a1', 'odd', scope => 's');
SELECT test.next('d');
-- Others of other keys go on meanwhile.
SELECT idem_complete('b1', '1', 's', test.fence('b1'));
SELECT test.next('d');
-- Requeued, it is the first again; then the next, in order.
SELECT idem_resolve('a1', 'not_applied', scope => 's');
SELECT test.next('d');
SELECT idem_complete('a1', '1', 's', test.fence('a1'));
SELECT test.next('d');
SELECT idem_fail('a2', 'rejected', 'final', scope => 's', fence => test.fence('a2'));
SELECT test.next('d');
-- A lease that is over is not finished, and backs off, too.
CALL test.age('a3', '61 minutes', 's');
SELECT decision FROM idem_enqueue('a4', 'd', '1', scope => 's', ordering_key => 'a');
SELECT test.next('d');
CALL test.due('a3');
SELECT test.next('d');
SELECT idem_resolve('a3', 'applied', '1', scope => 's', fence => test.fence('a3'));
SELECT test.next('d');
-- An operator's decision lets the next pass, too.
SELECT decision FROM idem_enqueue('a5', 'd', '1', scope => 's', ordering_key => 'a');
SELECT idem_escalate('a4', 'odd', scope => 's', fence => test.fence('a4'));
SELECT test.next('d');
SELECT idem_resolve('a4', 'rejected', evidence => 'never mind'::text, scope => 's');
SELECT test.next('d');

-- A delay of the first delays the rest.
SELECT count(idem_enqueue(key, 'late', '1', scope => 's', ordering_key => 'o', delay => delay)) FROM (VALUES ('l1', interval '1 hour'), ('l2', NULL)) AS m (key, delay);
SELECT decision FROM idem_enqueue('l, free', 'late', '1', scope => 's');
SELECT test.next('late');
CALL test.due('l1');
SELECT test.next('late');
SELECT idem_complete('l1', '1', 's', test.fence('l1'));
SELECT test.next('late');

-- The order within a transaction, and of many: each is sent only after the one before was finished.
BEGIN;
SELECT idem_enqueue('z', 'many', '1', scope => 's', ordering_key => 'o') IS NOT NULL AS z;
SELECT idem_enqueue('y', 'many', '1', scope => 's', ordering_key => 'o') IS NOT NULL AS y;
SELECT idem_enqueue('x', 'many', '1', scope => 's', ordering_key => 'o') IS NOT NULL AS x;
COMMIT;
SELECT decision FROM idem_enqueue('w', 'many', '1', scope => 's', ordering_key => 'o');
-- A duplicate does not move to the end.
SELECT decision, enqueued FROM idem_enqueue('z', 'many', '1', scope => 's', ordering_key => 'o');
SELECT key, row_number() OVER (ORDER BY position) FROM idempotency.message WHERE destination = 'many' ORDER BY 2;
CREATE PROCEDURE test.drain() LANGUAGE plpgsql AS $$
DECLARE d record; BEGIN
    LOOP
        SELECT * INTO d FROM idem_dispatch('many', 10, '1 hour');
        COMMIT;
        EXIT WHEN d.key IS NULL;
        INSERT INTO test.order_sent (key) VALUES (d.key);
        PERFORM idem_complete(d.key, '1', d.scope, d.fence);
        COMMIT;
    END LOOP;
END
$$;
CREATE TABLE test.order_sent (n serial, key text);
CALL test.drain();
SELECT string_agg(key, ' ' ORDER BY n) AS sent FROM test.order_sent;
-- Ordering keys are compared byte for byte.
SELECT count(idem_enqueue('case ' || o, 'case', '1', scope => 's', ordering_key => o)) FROM unnest(ARRAY['o', 'O', 'o ', 'ö']) AS o;
SELECT test.next('case');
-- A blocked ordering key does not use up the rows that a dispatcher asks for.
SELECT count(idem_enqueue('blocked ' || n, 'block', '1', scope => 's', ordering_key => 'o')) FROM generate_series(1, 50) AS n;
SELECT count(idem_enqueue('unblocked ' || n, 'block', '1', scope => 's', ordering_key => CASE WHEN n = 1 THEN 'p' END)) FROM generate_series(1, 2) AS n;
SELECT test.next('block', 3);
SELECT test.next('block', 3);
-- A session that dispatches again looks at all ordering keys, also those before the one that it took last.
SELECT count(idem_enqueue('turn ' || n, 'turns', '1', scope => 's', ordering_key => CASE WHEN n % 2 = 0 THEN 'a' ELSE 'b' END)) FROM generate_series(1, 6) AS n;
TRUNCATE test.order_sent;
CREATE PROCEDURE test.turns() LANGUAGE plpgsql AS $$
DECLARE d record; BEGIN
    FOR n IN 1..7 LOOP
        SELECT * INTO d FROM idem_dispatch('turns', 1, '1 hour');
        COMMIT;
        INSERT INTO test.order_sent (key) VALUES (coalesce(d.key, 'nothing'));
        EXIT WHEN d.key IS NULL;
        PERFORM idem_complete(d.key, '1', d.scope, d.fence);
        COMMIT;
    END LOOP;
END
$$;
CALL test.turns();
SELECT string_agg(key, ', ' ORDER BY n) AS taken FROM test.order_sent;
