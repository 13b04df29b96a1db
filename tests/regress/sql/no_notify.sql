-- No claim, completion, failure, message or delivery notifies anybody: a NOTIFY takes a lock at COMMIT that is one for the whole
-- server, and makes all commits wait for each other.
--
-- A transaction that has notified cannot be prepared: that is how it would show. Goes red with a NOTIFY in any of these.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

LISTEN everything;
-- What a NOTIFY does to PREPARE.
BEGIN;
NOTIFY everything;
PREPARE TRANSACTION 'regress_idem_notify';
ROLLBACK;
CREATE TABLE test.payment (n int);
CREATE FUNCTION test.pay(jsonb) RETURNS jsonb LANGUAGE sql AS 'INSERT INTO test.payment VALUES (1) RETURNING to_jsonb(n)';
SELECT idem_scope_set('s', backoff => '1 ms', max_backoff => '1 ms', dedup_window => '1 ms');
SELECT count(idem_once('old ' || n, 'SELECT $1', scope => 's')), idem_run_begin('run', '1 hour') IS NOT NULL FROM generate_series(1, 3) AS n;
SELECT fence FROM idem_claim('leased', lease => '1 hour') \gset
SELECT decision FROM idem_claim('over', lease => '1 minute');
CALL test.age('over', '1 hour');
SELECT decision FROM idem_enqueue('m0', 'bank', '1');
BEGIN;
SELECT decision FROM idem_claim('k'), idem_complete('k', '1');
SELECT result FROM idem_once('once', 'SELECT $1', '1');
SELECT result FROM idem_call('call', 'test.pay', '1', run => 'run');
SELECT idem_renew('leased', '30 minutes', fence => :fence) IS NOT NULL AS renewed;
SELECT idem_complete('leased', '1', fence => :fence);
SELECT decision FROM idem_claim('new lease', lease => '1 hour');
SELECT idem_fail('f', 'unknown', 'why') FROM idem_claim('f');
SELECT idem_fail('r', 'rejected', 'why') FROM idem_claim('r');
SELECT idem_release('g') FROM idem_claim('g');
SELECT count(*) FROM idem_claim_many(ARRAY['a', 'b'], lease => '1 hour');
SELECT decision FROM idem_enqueue('m1', 'bank', '1', ordering_key => 'o');
SELECT key FROM idem_dispatch('bank', 10, '1 hour') ORDER BY key;
SELECT idem_escalate('f', 'why');
SELECT idem_resolve('f', 'applied', '1');
SELECT idem_run_end('run');
SELECT bool_and(leases_ended + outcomes_pruned >= 0) AS swept FROM generate_series(1, 3), idem_sweep();
SELECT idem_forget('r');
SELECT idem_scope_set('s2'), idem_scope_grant('s2', 'pg_monitor');
PREPARE TRANSACTION 'regress_idem_notify';
COMMIT PREPARED 'regress_idem_notify';
SELECT pg_notification_queue_usage() AS used;
SELECT decision, result FROM idem_claim('k');
UNLISTEN *;
