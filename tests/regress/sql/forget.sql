-- idem_forget: every state, by operators alone, with its event; and late owners after it.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

SELECT idem_scope_set('f', dedup_window => '1 day', guard => '10 days');
-- Finished keys.
BEGIN;
SELECT idem_once('completed', 'SELECT to_jsonb(1)', scope => 'f');
SELECT decision, idem_fail('rejected', 'rejected', 'declined', scope => 'f') FROM idem_claim('rejected', scope => 'f');
SELECT decision, idem_fail('not applied', 'not_applied', scope => 'f') FROM idem_claim('not applied', scope => 'f');
SELECT key, idem_forget(key, 'f') FROM unnest('{completed,rejected,not applied,never seen}'::text[]) AS key;
SELECT count(*) AS records FROM idempotency.records;
SELECT key, from_state, to_state, kind, role = current_user::regrole AS who FROM idempotency.events ORDER BY happened_at;
SELECT decision, attempt FROM idem_claim('completed', scope => 'f');
ROLLBACK;
-- What is but remembered.
BEGIN;
SELECT idem_once('old', 'SELECT to_jsonb(1)', scope => 'f');
CALL test.age('old', '2 days', 'f');
DO $$ BEGIN PERFORM idempotency.sweep_restart(); WHILE (SELECT more FROM idem_sweep()) LOOP END LOOP; END $$;
SELECT state FROM idem_peek('old', 'f');
SELECT idem_forget('old', 'f');
SELECT state FROM idem_peek('old', 'f');
SELECT decision FROM idem_claim('old', scope => 'f');
ROLLBACK;
-- Open keys: only with force.
SELECT fence FROM idem_claim('leased', scope => 'f', lease => '1 hour') \gset
SELECT test.try($$ SELECT idem_forget('leased', 'f') $$);
SELECT idem_forget('leased', 'f', force => true);
SELECT test.try(format('SELECT idem_complete(%L, scope => %L, fence => %s)', 'leased', 'f', :fence));
SELECT decision, attempt FROM idem_claim('leased', scope => 'f', lease => '1 hour');
SELECT test.try(format('SELECT idem_complete(%L, scope => %L, fence => %s)', 'leased', 'f', :fence));
BEGIN;
SELECT decision, enqueued FROM idem_enqueue('message', 'mail', '1', scope => 'f');
SELECT idem_forget('message', 'f', force => true);
SELECT count(*) AS messages FROM idempotency.message;
ROLLBACK;
BEGIN;
SELECT decision FROM idem_claim('here', scope => 'f');
SELECT test.try($$ SELECT idem_forget('here', 'f', force => true) $$);
ROLLBACK;
-- Operators alone.
CREATE ROLE regress_forget;
SELECT idem_scope_grant('f', 'regress_forget');
SET ROLE regress_forget;
SELECT test.try($$ SELECT idem_forget('leased', 'f', force => true) $$);
SELECT test.try($$ SELECT idem_forget('leased', 'not a scope') $$);
RESET ROLE;
SELECT test.try($$ SELECT idem_forget(NULL, 'f') $$);
BEGIN READ ONLY;
SELECT test.try($$ SELECT idem_forget('leased', 'f') $$);
ROLLBACK;
SELECT idem_scope_revoke('f', 'regress_forget');
DROP ROLE regress_forget;
