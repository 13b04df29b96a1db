-- Pruning looks at the state, not at the age alone: what is in flight, in doubt, with a human, or of a live run stays however old it
-- is, and only an operator ends doubt.
--
-- Goes red if pruning went by finished_at without the run (engine/prune.rs), or removed what a sweep finds open (engine/sweep.rs).
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

SELECT idem_scope_set('w', dedup_window => '1 day', max_lease => '60 days');
SELECT idem_run_begin('agent', '4 days') IS NOT NULL AS begun;
-- Ten windows old.
CREATE TABLE test.key (key text, run text, fence bigint);
INSERT INTO test.key SELECT unnest(ARRAY['completed', 'rejected', 'not applied', 'in flight', 'lease over', 'unknown', 'escalated', 'message']), NULL;
INSERT INTO test.key SELECT unnest(ARRAY['step 1', 'step 2', 'step 3, in flight']), 'agent';
UPDATE test.key SET fence = (idem_claim(key, '1', 'w', CASE key WHEN 'lease over' THEN '1 minute'::interval ELSE '60 days' END, run => run)).fence WHERE key <> 'message';
SELECT decision FROM idem_enqueue('message', 'nobody', '1', scope => 'w');
SELECT count(idem_complete(key, to_jsonb(key), 'w', fence)) FROM test.key WHERE key IN ('completed', 'step 1', 'step 2');
SELECT count(idem_fail(key, CASE key WHEN 'rejected' THEN 'rejected' WHEN 'unknown' THEN 'unknown' ELSE 'not_applied' END, 'why', scope => 'w', fence => fence)) FROM test.key WHERE key IN ('rejected', 'not applied', 'unknown');
SELECT idem_escalate(key, 'two answers', scope => 'w', fence => fence) FROM test.key WHERE key = 'escalated';
DO $$ DECLARE k record; BEGIN FOR k IN SELECT * FROM test.key LOOP CALL test.age(k.key, '10 days', 'w'); END LOOP; END $$;
-- Three passes.
CALL idempotency.sweep(); CALL idempotency.sweep(); CALL idempotency.sweep();
SELECT k.key, p.state FROM test.key AS k, idem_peek(k.key, 'w') AS p ORDER BY k.key;
-- A year later a lease is over, which is doubt, and doubt stays.
DO $$ DECLARE k record; BEGIN FOR k IN SELECT * FROM test.key WHERE key IN ('in flight', 'lease over', 'unknown', 'escalated', 'message') LOOP CALL test.age(k.key, '1 year', 'w'); END LOOP; END $$;
CALL idempotency.sweep();
SELECT k.key, p.state FROM test.key AS k, idem_peek(k.key, 'w') AS p WHERE k.run IS NULL ORDER BY k.key;
-- The run ends with its last step: its keys go a window after that, and no earlier.
SELECT idem_complete(key, '1', 'w', fence) FROM test.key WHERE key = 'step 3, in flight';
CALL idempotency.sweep();
SELECT k.key, p.state FROM test.key AS k, idem_peek(k.key, 'w') AS p WHERE k.run IS NOT NULL ORDER BY k.key;
SELECT idem_run_end('agent');
SELECT k.key, p.state, p.window_ends_at BETWEEN clock_timestamp() + interval '23 hours' AND clock_timestamp() + interval '1 day' AS in_a_day FROM test.key AS k, idem_peek(k.key, 'w') AS p WHERE k.run IS NOT NULL ORDER BY k.key;
UPDATE idempotency.run SET ended_at = ended_at - interval '25 hours' WHERE run = 'agent';
CALL idempotency.sweep();
SELECT k.key, p.state FROM test.key AS k, idem_peek(k.key, 'w') AS p WHERE k.run IS NOT NULL ORDER BY k.key;
-- Doubt leaves by a verdict, or by an operator who forgets it; then it is pruned like any other.
SELECT idem_resolve('unknown', 'applied', '"paid"', 'bank statement'::text, 'w'), idem_resolve('escalated', 'rejected', NULL, 'by hand'::text, 'w');
SELECT idem_forget('lease over', 'w', force => true);
SELECT key, state FROM unnest(ARRAY['unknown', 'escalated', 'lease over']) AS key, idem_peek(key, 'w');
DO $$ BEGIN CALL test.age('unknown', '2 days', 'w'); CALL test.age('escalated', '2 days', 'w'); END $$;
CALL idempotency.sweep();
SELECT key, state FROM unnest(ARRAY['unknown', 'escalated']) AS key, idem_peek(key, 'w');
