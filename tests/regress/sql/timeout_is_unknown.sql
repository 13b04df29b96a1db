-- A charge was sent and no answer came: that is no failure. Nobody is told that it failed, nobody sends it again without
-- reading, and a late proof of success becomes the result.
--
-- Goes red if the end of a lease became a final state (engine/sweep.rs), or a duplicate became a second message (engine/enqueue.rs).
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

\set told 'decision, attempt, result, reason FROM idem_claim'
SELECT idem_scope_set('charges', effect_kind => 'external', backoff => '1 ms', max_backoff => '1 ms');
-- Twice: with a sweep after the end of the lease, and without one.
SELECT decision, enqueued FROM unnest(ARRAY['charge 1', 'charge 2']) AS key, idem_enqueue(key, 'bank', '{"amount": 25}', scope => 'charges');
CREATE TABLE test.sent AS SELECT key, decision, attempt, fence FROM idem_dispatch('bank', 10, '1 minute');
SELECT key, decision, attempt FROM test.sent ORDER BY key;
DO $$ BEGIN CALL test.age('charge 1', '2 minutes', 'charges'); END $$;
CALL idempotency.sweep();
DO $$ BEGIN CALL test.age('charge 2', '2 minutes', 'charges'); END $$;
SELECT key, state FROM idempotency.unresolved ORDER BY key;
-- Whoever asks is told to read, never to execute; asking again makes no second message.
BEGIN;
SELECT key, c.decision, c.result FROM unnest(ARRAY['charge 1', 'charge 2']) AS key, idem_claim(key, '{"amount": 25}', 'charges', '1 minute') AS c;
ROLLBACK;
SELECT key, e.decision, e.enqueued FROM unnest(ARRAY['charge 1', 'charge 2']) AS key, idem_enqueue(key, 'bank', '{"amount": 25.0}', scope => 'charges') AS e;
SELECT count(*) AS messages, count(DISTINCT key) AS keys FROM idempotency.outbox;
SELECT left(test.try($$ SELECT idem_once('charge 1', 'SELECT 1/0', '{"amount": 25}', 'charges') $$), 5) AS once;
-- The first dispatcher was alive after all: its late proof counts, for nobody has taken the message since.
SELECT idem_complete(key, '{"charge": "ch_1"}', 'charges', fence) FROM test.sent ORDER BY key;
SELECT key, c.decision, c.result FROM unnest(ARRAY['charge 1', 'charge 2']) AS key, idem_claim(key, '{"amount": 25}', 'charges') AS c;
SELECT count(*) AS messages FROM idempotency.outbox;
SELECT count(*) AS again FROM idem_dispatch('bank', 10, '1 minute');

-- Where another dispatcher took it, it is for reading, and what it read is the result.
SELECT decision FROM idem_enqueue('charge 3', 'bank', '{"amount": 7}', scope => 'charges');
SELECT key, fence AS first_fence FROM idem_dispatch('bank', 10, '1 minute') \gset
SELECT idem_fail('charge 3', idem_failure_kind('timeout'), 'timeout', scope => 'charges', fence => :first_fence);
SELECT state FROM idem_peek('charge 3', 'charges');
UPDATE idempotency.message SET due_at = clock_timestamp(); UPDATE idempotency.claim SET retry_at = clock_timestamp();
SELECT decision, attempt, reason, fence FROM idem_dispatch('bank', 10, '1 minute') \gset
\echo :decision :attempt :reason
SELECT test.try(format($$ SELECT idem_complete('charge 3', '"late"', 'charges', %s) $$, :first_fence)) LIKE 'ID003%' AS first_is_too_late;
SELECT idem_resolve('charge 3', 'applied', '{"charge": "ch_3"}', 'found at the bank'::text, 'charges', :fence);
SELECT :told('charge 3', '{"amount": 7}', 'charges');

-- The same for a leased claim without a message: reconcile, never execute.
SELECT fence FROM idem_claim('charge 4', '{"amount": 8}', 'charges', '1 minute') \gset
CALL test.age('charge 4', '2 minutes', 'charges');
CALL idempotency.sweep();
SELECT state FROM idem_peek('charge 4', 'charges');
BEGIN;
SELECT :told('charge 4', '{"amount": 8}', 'charges', '1 minute');
ROLLBACK;
SELECT idem_complete('charge 4', '{"charge": "ch_4"}', 'charges', :fence);
SELECT :told('charge 4', '{"amount": 8}', 'charges');
-- What was recorded as a final failure is final: a verdict on a finished key is refused, so a timeout must never be recorded as one.
SELECT fence FROM idem_claim('charge 5', '1', 'charges', '1 minute') \gset
SELECT idem_fail('charge 5', 'rejected', 'timeout, taken for a refusal', scope => 'charges', fence => :fence);
SELECT left(test.try($$ SELECT idem_resolve('charge 5', 'applied', '1', 'the notice came'::text, 'charges') $$), 5) AS refused;
SELECT :told('charge 5', '1', 'charges');
