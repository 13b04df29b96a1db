-- The outbox: what idem_enqueue says in every state, what idem_dispatch takes, how a message ends, and the views.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
TRUNCATE idempotency.message, idempotency.event;
\set enqueue 'decision, enqueued, result, reason, enqueued_at IS NOT NULL AS has_enqueued_at, finished_at IS NOT NULL AS finished FROM idem_enqueue'
\set dispatch 'key, scope, attempt, decision, payload, reason, fence IS NOT NULL AS fenced, lease_expires_at > clock_timestamp() AS leased, enqueued_at <= clock_timestamp() AS was_enqueued FROM idem_dispatch'
\set ECHO all

SELECT idem_scope_set('s', backoff => '1 hour', max_backoff => '1 day', max_attempts => 3);
SELECT idem_scope_set('local', effect_kind => 'local', backoff => '1 hour');
SELECT idem_scope_set('keyed', effect_kind => 'keyed', backoff => '1 hour');

-- Beside the business write, in its transaction: both or neither.
CREATE TABLE test.payment (id int, amount int);
BEGIN;
INSERT INTO test.payment VALUES (1, 100);
SELECT :enqueue('pay-1', 'bank', '{"id": 1, "amount": 100}');
COMMIT;
BEGIN;
INSERT INTO test.payment VALUES (2, 200);
SELECT :enqueue('pay-2', 'bank', '{"id": 2, "amount": 200}');
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT decision FROM idem_enqueue('pay-3', 'bank', '3');
ROLLBACK TO a;
COMMIT;
SELECT p.id, o.key, o.destination, o.payload FROM test.payment AS p FULL JOIN idempotency.outbox AS o ON o.payload -> 'id' = to_jsonb(p.id);
-- It is an open key like any other.
SELECT :peek('pay-1');
BEGIN; SELECT :claim('pay-1', '{"id": 1, "amount": 100}', wait => '0'); SELECT :claim('pay-1', '{"id": 1, "amount": 100.0}', lease => '1 hour'); COMMIT;
SELECT test.try($$ SELECT * FROM idem_claim('pay-1', '{"id": 1}') $$);
SELECT claimed_at = (SELECT enqueued_at FROM idempotency.outbox WHERE key = 'pay-1') AS claimed_when_enqueued FROM idem_claim('pay-1', '{"id": 1, "amount": 100}');
SELECT ord, key, decision FROM idem_claim_many(ARRAY['pay-1', 'pay-1'], ARRAY['{"id": 1, "amount": 100}', '2']::jsonb[]);
-- Only idem_dispatch hands it out.
SELECT test.try($$ SELECT idem_complete('pay-1', '1') $$);
SELECT test.try($$ SELECT idem_fail('pay-1', 'rejected') $$);
SELECT test.try($$ SELECT idem_release('pay-1') $$);
-- A dispatcher takes it, under a lease, with a fence.
SELECT :dispatch('bank', 10, '1 hour');
SELECT count(*) FROM idem_dispatch('bank', 10, '1 hour');
SELECT :claim('pay-1', '{"id": 1, "amount": 100}');
SELECT :enqueue('pay-1', 'bank', '{"id": 1, "amount": 100}');
SELECT state, tries, attempt, reconciles, lease_expires_at IS NOT NULL AS leased, claimed_by = current_user::regrole AS mine FROM idempotency.outbox;
SELECT idem_complete('pay-1', '{"receipt": 9}', fence => (SELECT fence FROM idem_peek('pay-1')));
SELECT :claim('pay-1', '{"id": 1, "amount": 100}');
SELECT :enqueue('pay-1', 'bank', '{"id": 1, "amount": 100}');
SELECT count(*) FROM idempotency.outbox;
SELECT count(*) FROM idempotency.message;

-- A duplicate, in every state: what a claim is told. Made in earlier transactions.
CREATE TABLE test.key AS
    SELECT k.kind, s.place, s.state, k.kind || ', ' || s.state AS key, NULL::bigint AS fence
      FROM unnest(ARRAY['claim', 'message']) AS k (kind), unnest(ARRAY['absent', 'waiting', 'in flight', 'lease over', 'unknown', 'escalated', 'completed', 'rejected', 'not_applied']) WITH ORDINALITY AS s (state, place);
CREATE PROCEDURE test.make() LANGUAGE plpgsql AS $$
DECLARE k record; BEGIN
    UPDATE test.key SET fence = (idem_claim(key, '{"n": 1}', 's', '1 hour')).fence WHERE kind = 'claim' AND state NOT IN ('absent', 'waiting');
    PERFORM idem_enqueue(key, 'd', '{"n": 1}', scope => 's') FROM test.key WHERE kind = 'message' AND state NOT IN ('absent');
    COMMIT;
    UPDATE test.key AS t SET fence = d.fence FROM idem_dispatch('d', 100, '1 hour') AS d WHERE t.key = d.key;
    COMMIT;
    FOR k IN SELECT * FROM test.key LOOP
        CASE
            WHEN k.fence IS NULL OR k.state = 'in flight' THEN
            WHEN k.state = 'waiting' THEN PERFORM idem_release(k.key, 's', k.fence);
            WHEN k.state = 'lease over' THEN CALL test.age(k.key, '2 hours', 's');
            WHEN k.state = 'escalated' THEN PERFORM idem_escalate(k.key, 'before', scope => 's', fence => k.fence);
            WHEN k.state = 'completed' THEN PERFORM idem_complete(k.key, '"before"', 's', k.fence);
            ELSE PERFORM idem_fail(k.key, k.state, 'before', scope => 's', fence => k.fence);
        END CASE;
    END LOOP;
END
$$;
CALL test.make();
-- Other arguments first: nothing changes.
SELECT k.kind, k.state, regexp_replace(split_part(test.try(format('SELECT * FROM idem_enqueue(%L, %L, %L, scope => %L)', k.key, 'd', '{"n": 2}', 's')), E'\n', 1), '".*"', '...') AS other_arguments
  FROM test.key AS k WHERE k.state <> 'absent' AND (k.kind = 'message' OR k.state <> 'waiting') ORDER BY k.kind, k.place;
-- (A background worker may have swept the lease that is over.)
CREATE TABLE test.answer AS SELECT k.key, e.* FROM test.key AS k, idem_enqueue(k.key, 'd2', '{"n": 1.0}', scope => 's', run => 'run 2') AS e ORDER BY k.kind, k.place;
SELECT k.kind, k.state, a.decision, a.enqueued, a.result, a.reason, a.enqueued_at IS NOT NULL AS has_enqueued_at, a.finished_at IS NOT NULL AS finished,
       CASE WHEN k.key <> 'message, lease over' THEN o.state END AS is, o.destination, o.run
  FROM test.key AS k JOIN test.answer AS a USING (key) LEFT JOIN idempotency.outbox AS o USING (key) ORDER BY k.kind, k.place;
-- A key that a claim left unknown has become a message, whose dispatcher is told to read first.
SELECT :dispatch('d2', 100, '1 hour') ORDER BY key;
-- ... at once where it is due.
UPDATE idempotency.message SET due_at = clock_timestamp() - interval '1 ms' WHERE destination = 'd2' AND due_at < 'infinity';
UPDATE idempotency.claim SET retry_at = NULL WHERE state = 'u';
SELECT :dispatch('d2', 100, '1 hour') ORDER BY key;

-- args of their own, where the payload holds what may change between retries.
SELECT :enqueue('args', 'd', '{"n": 1, "sent_at": 1}', '{"n": 1}');
SELECT :enqueue('args', 'd', '{"n": 1, "sent_at": 2}', '{"n": 1}');
SELECT test.try($$ SELECT * FROM idem_enqueue('args', 'd', '{"n": 1, "sent_at": 1}') $$);
SELECT key, payload FROM idempotency.outbox WHERE key = 'args';
-- Twice in one transaction.
BEGIN;
SELECT :enqueue('twice', 'd', '1');
SELECT :enqueue('twice', 'd', '1');
COMMIT;
-- In the transaction that claims the key.
BEGIN;
SELECT decision FROM idem_claim('mine', '1');
SELECT :enqueue('mine', 'd', '1');
SELECT idem_release('mine');
SELECT :enqueue('mine', 'd', '1');
COMMIT;
-- What jsonb has.
SELECT payload, e.decision FROM unnest(ARRAY['null', 'false', '0', '""', '[]', '{}']::jsonb[]) AS payload, idem_enqueue('payload ' || payload::text, 'odd', payload) AS e;
SELECT key, payload FROM idem_dispatch('odd', 100, '1 hour') ORDER BY key;

-- Dispatch: max_rows at most, by destination alone, those that are due first; what this transaction enqueued it cannot take.
TRUNCATE idempotency.claim, idempotency.outcome, idempotency.message;
SELECT count(idem_enqueue('n' || n, CASE WHEN n % 2 = 0 THEN 'even' ELSE 'odd' END, to_jsonb(n), scope => 's')) FROM generate_series(1, 9) AS n;
SELECT count(*) FROM idem_dispatch('even', 3, '1 hour');
SELECT count(*) FROM idem_dispatch('even', 3, '1 hour');
SELECT count(*) FROM idem_dispatch('even', 3, '1 hour');
SELECT count(*) FROM idem_dispatch('absent', 3, '1 hour');
SELECT count(*) FROM idem_dispatch('ODD', 3, '1 hour');
SELECT count(*) FROM idem_dispatch('odd', 1000, '1 hour');
BEGIN;
SELECT decision FROM idem_enqueue('own', 'own', '1', scope => 's');
SELECT count(*) FROM idem_dispatch('own', 10, '1 hour');
COMMIT;
SELECT count(*) FROM idem_dispatch('own', 10, '1 hour');
-- The oldest first.
SELECT decision FROM idem_enqueue('first', 'fifo', '1'), pg_sleep(0.001);
SELECT decision FROM idem_enqueue('second', 'fifo', '1'), pg_sleep(0.001);
SELECT decision FROM idem_enqueue('third', 'fifo', '1'), pg_sleep(0.001);
SELECT key FROM idem_dispatch('fifo', 1, '1 hour');
SELECT key FROM idem_dispatch('fifo', 1, '1 hour');
SELECT key FROM idem_dispatch('fifo', 1, '1 hour');
-- A delivery that is rolled back was none.
SELECT decision FROM idem_enqueue('rb', 'rb', '1', scope => 's');
BEGIN;
SELECT :dispatch('rb', 1, '1 hour');
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT count(*) FROM idem_dispatch('rb', 1, '1 hour');
ROLLBACK TO a;
SELECT :dispatch('rb', 1, '1 hour');
COMMIT;
-- COMMIT before sending: in external and keyed scopes a delivery cannot be finished in its own transaction.
SELECT count(idem_enqueue('soon', scope, '1', scope => scope)) FROM unnest(ARRAY['s', 'keyed', 'local']) AS scope;
BEGIN;
SELECT s, test.try(format('SELECT idem_complete(%L, scope => %L, fence => %s)', d.key, d.scope, d.fence)) FROM unnest(ARRAY['s', 'keyed', 'local']) AS s, idem_dispatch(s, 1, '1 hour') AS d;
COMMIT;
SELECT scope, state FROM idempotency.records WHERE key = 'soon' ORDER BY 1;

-- delay: not before; wait: until something is due.
SELECT decision, enqueued FROM idem_enqueue('later', 'later', '1', delay => '1 hour');
SELECT due_at - enqueued_at BETWEEN interval '59 minutes 59 seconds' AND interval '1 hour 1 second' AS in_an_hour FROM idempotency.outbox WHERE key = 'later';
SELECT count(*) FROM idem_dispatch('later', 1, '1 hour');
SELECT decision, enqueued FROM idem_enqueue('soon', 'later', '1', delay => '30 ms');
SELECT key FROM idem_dispatch('later', 2, '1 hour', wait => '30 s');
SELECT clock_timestamp() AS begun \gset
SELECT count(*) FROM idem_dispatch('later', 2, '1 hour', wait => '30 ms');
SELECT clock_timestamp() - :'begun' BETWEEN interval '30 ms' AND interval '20 s' AS waited;
SELECT count(*) FROM idem_dispatch('later', 2, '1 hour', wait => '0');

-- How it ends.
SELECT idem_scope_set('kept', keep_payload => true, backoff => '1 hour');
SELECT count(idem_enqueue(s.scope || ', ' || e.ending, 'end', '{"secret": 1}', scope => s.scope, run => 'run 1'))
  FROM unnest(ARRAY['s', 'kept']) AS s (scope), unnest(ARRAY['complete', 'rejected', 'not_applied', 'unknown', 'release', 'escalate', 'applied', 'lease over']) AS e (ending);
CREATE TABLE test.sent AS SELECT d.*, split_part(d.key, ', ', 2) AS ending FROM idem_dispatch('end', 100, '1 hour') AS d;
SELECT ending, scope, CASE ending
    WHEN 'complete' THEN idem_complete(key, '"done"', scope, fence)::text
    WHEN 'release' THEN idem_release(key, scope, fence)::text
    WHEN 'escalate' THEN idem_escalate(key, 'why', scope => scope, fence => fence)::text
    WHEN 'applied' THEN idem_resolve(key, 'applied', '"done"', 'seen'::text, scope, fence)
    ELSE idem_fail(key, ending, 'why', scope => scope, fence => fence)::text END AS answer
  FROM test.sent WHERE ending <> 'lease over' ORDER BY ending, scope;
DO $$ BEGIN CALL test.age('s, lease over', '61 minutes', 's'); CALL test.age('kept, lease over', '61 minutes', 'kept'); END $$;
CALL idempotency.sweep();
SELECT ending, r.scope, r.state, r.attempt, r.reason, r.result, r.payload AS kept, r.run, o.state AS message, o.tries,
       CASE WHEN o.key IS NULL THEN NULL WHEN o.due_at IS NULL THEN 'never' WHEN o.due_at <= clock_timestamp() THEN 'now' ELSE 'later' END AS due
  FROM test.sent JOIN idempotency.records AS r USING (key) LEFT JOIN idempotency.outbox AS o USING (key) ORDER BY 1, 2;
-- The same ending again, by a dispatcher whose acknowledgement was lost.
SELECT ending, idem_complete(key, '"again"', scope, fence) FROM test.sent WHERE ending IN ('complete', 'applied') ORDER BY 1, scope;
-- What is due now goes out now; what was given back is no try.
SELECT key, attempt, decision, reason FROM idem_dispatch('end', 100, '1 hour') ORDER BY key;
SELECT key, tries FROM idempotency.outbox WHERE destination = 'end' AND key ~ 'release' ORDER BY key;
-- A late success of a dispatcher whose lease is over counts, as long as nobody has taken the message since.
SELECT idem_complete(key, '"late"', scope, fence), (SELECT state FROM idem_peek(key, scope)) AS before FROM test.sent WHERE key = 's, lease over';
SELECT :claim('s, lease over', '{"secret": 1}', 's');

-- Unfinished messages are never pruned, however old; finished keys are.
SELECT idem_scope_set('s', dedup_window => '1 hour');
UPDATE idempotency.message SET enqueued_at = enqueued_at - interval '10 years', due_at = CASE WHEN due_at = 'infinity' THEN due_at ELSE due_at - interval '10 years' END;
DO $$ DECLARE k record; BEGIN
    FOR k IN SELECT scope, key FROM idempotency.records WHERE scope = 's' LOOP CALL test.age(k.key, '10 years', k.scope); END LOOP;
END $$;
SELECT count(*) AS messages FROM idempotency.message WHERE scope = 's' \gset
CALL idempotency.sweep();
SELECT count(*) FILTER (WHERE finished_at IS NOT NULL) AS finished, count(*) FILTER (WHERE state IN ('queued', 'unknown', 'escalated')) = :messages AS all_messages FROM idempotency.records WHERE scope = 's';
SELECT count(*) = :messages AS all_messages FROM idempotency.message WHERE scope = 's';
-- A scope with a message cannot be dropped.
SELECT test.try($$ SELECT idem_scope_drop('kept') $$);

-- The views. Debezium's names: id is the key's digest, the same at every retry.
TRUNCATE idempotency.claim, idempotency.outcome, idempotency.message;
SELECT count(idem_enqueue(key, 'bank', to_jsonb(key), scope => 's', run => 'run 7', ordering_key => o)) FROM (VALUES ('a', 'account 1'), ('b', NULL)) AS m (key, o);
SELECT scope, key, destination, ordering_key, state, enqueued_at IS NOT NULL AS was_enqueued, enqueued_by = current_user::regrole AS mine, due_at <= clock_timestamp() AS due, tries, attempt, reconciles, claimed_by, lease_expires_at, reason, run, payload FROM idempotency.outbox ORDER BY key \gx
SELECT aggregatetype, aggregateid, type, payload, key, pg_typeof(id) AS id_type, id = (SELECT digest FROM idempotency.claim AS c WHERE c.key = d.key) AS id_is_the_digest FROM idempotency.debezium_outbox AS d ORDER BY key;
SELECT queued_messages, open_keys FROM idem_status();

-- Roles: a dispatcher needs a grant on the scope, and takes of no other scope.
CREATE ROLE regress_dispatcher;
CREATE ROLE regress_stranger;
SELECT idem_scope_grant('s', 'regress_dispatcher');
SELECT decision FROM idem_enqueue('hidden', 'bank', '1', scope => 'keyed');
SET ROLE regress_stranger;
SELECT count(*) FROM idem_dispatch('bank', 10, '1 hour');
SET ROLE regress_dispatcher;
SELECT key, scope, fence IS NOT NULL AS fenced FROM idem_dispatch('bank', 10, '1 hour') ORDER BY key;
SELECT idem_complete('a', '1', 's', (SELECT fence FROM idempotency.outbox WHERE key = 'a'));
SELECT key, state, enqueued_by = current_user::regrole AS mine, claimed_by FROM idempotency.outbox ORDER BY key;
RESET ROLE;
SELECT key, state FROM idempotency.outbox ORDER BY key;
-- Each enqueues as itself.
SET ROLE regress_dispatcher;
SELECT decision FROM idem_enqueue('own', 'bank', '1', scope => 's');
SELECT enqueued_by FROM idempotency.outbox WHERE key = 'own';
RESET ROLE;
TRUNCATE idempotency.claim, idempotency.outcome, idempotency.scope, idempotency.scope_grant, idempotency.message, idempotency.event;
DROP ROLE regress_dispatcher, regress_stranger;
