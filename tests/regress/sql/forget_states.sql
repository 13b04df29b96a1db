-- idem_forget: an operator removes the record of a key, in every state it can be in. An event says who did it; whoever still owned the key can finish nothing.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

CREATE PROCEDURE test.sweep() LANGUAGE plpgsql AS $$
BEGIN
    PERFORM idempotency.sweep_restart();
    WHILE (SELECT more FROM idem_sweep()) LOOP END LOOP;
END $$;
\set event 'kind, scope, key, from_state, to_state, role = current_user::regrole AS mine, reason FROM idempotency.events'
\set known 'from_state, run, fence IS NOT NULL AS fenced, attempt FROM idempotency.events WHERE kind = $$forgotten$$'
-- A key in each state, by name. In one transaction each: a background worker sees nothing of these tests.
SELECT idem_scope_set('f', dedup_window => '1 day', effect_kind => 'local'), idem_scope_set('q', dedup_window => '1 day');
CREATE PROCEDURE test.make(of_state text) LANGUAGE plpgsql AS $$
DECLARE c record;
BEGIN
    IF of_state = 'completed' THEN
        PERFORM idem_once(of_state, 'SELECT to_jsonb(1)', '1', 'f', run => 'agent');
    ELSIF of_state = 'queued' THEN
        PERFORM idem_enqueue(of_state, 'mail', '1', scope => 'q', run => 'agent');
    ELSIF of_state = 'expired' THEN
        PERFORM idem_scope_set('f', guard => '10 days');
        PERFORM idem_once(of_state, 'SELECT to_jsonb(1)', '1', 'f');
        CALL test.age(of_state, '2 days', 'f');
        CALL test.sweep();
    ELSIF of_state <> 'absent' THEN
        SELECT * INTO c FROM idem_claim(of_state, '1', 'f', lease => '1 minute', run => 'agent');
        IF of_state IN ('rejected', 'not_applied', 'unknown') THEN
            PERFORM idem_fail(of_state, of_state, 'because', scope => 'f', fence => c.fence);
        ELSIF of_state = 'escalated' THEN
            PERFORM idem_escalate(of_state, 'ask Bob', scope => 'f', fence => c.fence);
        END IF;
    END IF;
END $$;

-- Finished, or only remembered: forgotten as it is. The next claim knows nothing of it: no late_retry, attempt 1, any arguments.
BEGIN; CALL test.make('completed'); SELECT idem_forget('completed', 'f'); SELECT state FROM idem_peek('completed', 'f'); SELECT :event; SELECT :claim('completed', '2', 'f'); SELECT count(*) AS events FROM idempotency.events; SELECT idem_release('completed', 'f'); ROLLBACK;
BEGIN; CALL test.make('rejected'); SELECT idem_forget('rejected', 'f'); SELECT state FROM idem_peek('rejected', 'f'); SELECT :event; ROLLBACK;
BEGIN; CALL test.make('not_applied'); SELECT idem_forget('not_applied', 'f'); SELECT state FROM idem_peek('not_applied', 'f'); SELECT :event; ROLLBACK;
BEGIN; CALL test.make('expired'); SELECT state FROM idem_peek('expired', 'f'); SELECT idem_forget('expired', 'f'); SELECT state FROM idem_peek('expired', 'f'); SELECT :event; SELECT :claim('expired', '2', 'f'); SELECT count(*) AS tombstones FROM idempotency.tombstone; SELECT idem_release('expired', 'f'); ROLLBACK;
-- Past its window and not pruned; past its window with a guard.
BEGIN; CALL test.make('completed'); CALL test.age('completed', '2 days', 'f'); SELECT idem_forget('completed', 'f'); SELECT :event; SELECT :claim('completed', '2', 'f'); SELECT kind FROM idempotency.events; SELECT idem_release('completed', 'f'); ROLLBACK;
BEGIN; SELECT idem_scope_set('f', guard => '10 days'); CALL test.make('completed'); CALL test.age('completed', '2 days', 'f'); SELECT decision FROM idem_claim('completed', '1', 'f'); SELECT idem_forget('completed', 'f'); SELECT :claim('completed', '2', 'f'); SELECT idem_release('completed', 'f'); ROLLBACK;
-- A local lease that ended, before a sweep has seen it and after.
BEGIN; SELECT decision FROM idem_claim('over', '1', 'f', lease => '1 minute'); CALL test.age('over', '2 minutes', 'f'); SELECT test.try($$ SELECT idem_forget('over', 'f') $$); SELECT idem_forget('over', 'f', true); SELECT state FROM idem_peek('over', 'f'); ROLLBACK;
BEGIN; SELECT decision FROM idem_claim('over', '1', 'f', lease => '1 minute'); CALL test.age('over', '2 minutes', 'f'); CALL test.sweep(); SELECT idem_forget('over', 'f'); SELECT :event; ROLLBACK;
-- Nothing there: nothing done, and no event. Twice is the same as once.
BEGIN; SELECT idem_forget('absent', 'f'), idem_forget('absent', 'f', true); SELECT count(*) AS events FROM idempotency.events; CALL test.make('completed'); SELECT idem_forget('completed', 'f'), idem_forget('completed', 'f'); SELECT count(*) AS events FROM idempotency.events; ROLLBACK;

-- Open: refused unless forced, and then gone with its message.
BEGIN; CALL test.make('in_flight'); SELECT test.try($$ SELECT idem_forget('in_flight', 'f') $$); SELECT state FROM idem_peek('in_flight', 'f'); SELECT idem_forget('in_flight', 'f', true); SELECT state FROM idem_peek('in_flight', 'f'); SELECT :event; ROLLBACK;
BEGIN; CALL test.make('unknown'); SELECT test.try($$ SELECT idem_forget('unknown', 'f') $$); SELECT idem_forget('unknown', 'f', true); SELECT count(*) AS unresolved FROM idempotency.unresolved; SELECT :event WHERE kind = 'forgotten'; SELECT :claim('unknown', '2', 'f'); SELECT idem_release('unknown', 'f'); ROLLBACK;
BEGIN; CALL test.make('escalated'); SELECT test.try($$ SELECT idem_forget('escalated', 'f') $$); SELECT idem_forget('escalated', 'f', true); SELECT count(*) AS unresolved FROM idempotency.unresolved; SELECT :event WHERE kind = 'forgotten'; ROLLBACK;
BEGIN; CALL test.make('queued'); SELECT test.try($$ SELECT idem_forget('queued', 'q') $$); SELECT count(*) AS messages FROM idempotency.message; SELECT idem_forget('queued', 'q', force => true); SELECT count(*) AS messages FROM idempotency.message; SELECT :event; SELECT decision, enqueued FROM idem_enqueue('queued', 'mail', '2', scope => 'q'); ROLLBACK;
-- Claimed in this very transaction: finish it or release it, forced or not.
BEGIN; SELECT decision FROM idem_claim('mine', scope => 'f'); SELECT split_part(test.try($$ SELECT idem_forget('mine', 'f') $$), E'\n', 1); SELECT split_part(test.try($$ SELECT idem_forget('mine', 'f', true) $$), E'\n', 1); SELECT idem_complete('mine', '1', 'f'); SELECT idem_forget('mine', 'f'); SELECT state FROM idem_peek('mine', 'f'); ROLLBACK;
-- NULL is not force.
BEGIN; CALL test.make('in_flight'); SELECT split_part(test.try($$ SELECT idem_forget('in_flight', 'f', NULL) $$), E'\n', 1); SELECT state FROM idem_peek('in_flight', 'f'); ROLLBACK;

-- Whoever owned the key when it was forgotten finishes nothing, not even what somebody else has claimed since: no fence is given twice.
-- Goes red without: fences that are drawn anew and never counted per key (engine/claim.rs, own).
BEGIN;
SELECT decision, fence AS old_fence FROM idem_claim('k', '1', 'f', lease => '1 hour') \gset
SELECT idem_forget('k', 'f', true);
SELECT test.try(format('SELECT idem_complete(%L, %L, %L, %s)', 'k', '1', 'f', :old_fence));
SELECT test.try(format('SELECT idem_renew(%L, %L, %L, %s)', 'k', '1 minute', 'f', :old_fence));
SELECT test.try(format('SELECT idem_fail(%L, %L, scope => %L, fence => %s)', 'k', 'not_applied', 'f', :old_fence));
SELECT test.try(format('SELECT idem_release(%L, %L, %s)', 'k', 'f', :old_fence));
SELECT fence AS new_fence FROM idem_claim('k', '1', 'f', lease => '1 hour') \gset
SELECT :new_fence <> :old_fence AS another;
SELECT left(test.try(format('SELECT idem_complete(%L, %L, %L, %s)', 'k', '"late"', 'f', :old_fence)), 51) AS late_owner;
SELECT left(test.try(format('SELECT idem_fail(%L, %L, scope => %L, fence => %s)', 'k', 'not_applied', 'f', :old_fence)), 51) AS late_owner;
SELECT idem_complete('k', '"new"', 'f', :new_fence);
ROLLBACK;
-- A message that is under way: committed, as a dispatcher takes nothing else.
CALL test.make('queued');
SELECT fence AS old_fence FROM idem_dispatch('mail', 1, '1 hour', scopes => '{q}') \gset
SELECT idem_forget('queued', 'q', true);
SELECT decision, enqueued FROM idem_enqueue('queued', 'mail', '2', scope => 'q');
SELECT left(test.try(format('SELECT idem_complete(%L, %L, %L, %s)', 'queued', '"late"', 'q', :old_fence)), 56) AS late_dispatcher;
SELECT decision, payload FROM idem_dispatch('mail', 10, '1 hour', scopes => '{q}');
SELECT idem_forget('queued', 'q', true);
SELECT decision FROM idem_dispatch('mail', 10, '1 hour', scopes => '{q}');
TRUNCATE idempotency.event;
-- The event keeps what was known of the key, forced or not.
BEGIN; CALL test.make('completed'); SELECT idem_forget('completed', 'f'); SELECT :known; ROLLBACK;
BEGIN; CALL test.make('unknown'); SELECT idem_forget('unknown', 'f', true); SELECT :known; ROLLBACK;

-- What is rolled back is not forgotten.
BEGIN;
CALL test.make('completed');
SAVEPOINT s;
SELECT idem_forget('completed', 'f');
SELECT decision, idem_release('completed', 'f') FROM idem_claim('completed', '1', 'f');
ROLLBACK TO s;
SELECT :claim('completed', '1', 'f');
SELECT count(*) AS events FROM idempotency.events;
ROLLBACK;
-- An older record of the key is not left behind as a tombstone.
BEGIN;
SELECT idem_scope_set('f', guard => '10 days', late => 'execute');
CALL test.make('expired');
SELECT decision, idem_complete('expired', '2', 'f') FROM idem_claim('expired', '1', 'f');
SELECT idem_forget('expired', 'f');
SELECT state FROM idem_peek('expired', 'f');
SELECT count(*) AS tombstones FROM idempotency.tombstone;
ROLLBACK;
-- A run that lives keeps nothing that was forgotten.
BEGIN;
SELECT idem_run_begin('agent', '4 days') IS NOT NULL AS begun;
CALL test.make('completed');
SELECT idem_forget('completed', 'f');
SELECT decision FROM idem_claim('completed', '1', 'f', run => 'agent');
SELECT idem_release('completed', 'f');
ROLLBACK;

-- Bad values.
SELECT test.try(statement) FROM unnest(ARRAY['SELECT idem_forget(NULL)', 'SELECT idem_forget('''')', 'SELECT idem_forget(''k'', NULL)', 'SELECT idem_forget(''k'', ''no such scope'')']) AS statement;
BEGIN READ ONLY; SELECT idem_forget('k', 'f'); ROLLBACK;

-- Operators only: the scope's owner, its members and superusers. Whoever may merely use the scope, and whoever claimed the key, may not.
CREATE ROLE regress_forget_owner; CREATE ROLE regress_forget_member IN ROLE regress_forget_owner; CREATE ROLE regress_forget_user; CREATE ROLE regress_forget_none;
GRANT CREATE ON SCHEMA idempotency TO regress_forget_owner;
SET ROLE regress_forget_owner;
SELECT public.idem_scope_set('o'), public.idem_scope_grant('o', 'regress_forget_user');
SET ROLE regress_forget_user;
BEGIN;
SELECT decision, idem_complete('of user', '1', 'o') FROM idem_claim('of user', scope => 'o');
SELECT test.try($$ SELECT idem_forget('of user', 'o') $$);
SELECT test.try($$ SELECT idem_forget('of user', 'o', true) $$);
SELECT test.try($$ SELECT idem_forget('no such key', 'o') $$);
SET LOCAL ROLE regress_forget_none;
SELECT test.try($$ SELECT idem_forget('of user', 'o') $$);
SELECT test.try($$ SELECT idem_forget('of user', 'no such scope') $$);
SET LOCAL ROLE regress_forget_member;
SELECT idem_forget('of user', 'o');
SELECT kind, key, role FROM idempotency.events;
SET LOCAL ROLE regress_forget_user;
-- Its users see who did it; others do not.
SELECT kind, key, role FROM idempotency.events;
SET LOCAL ROLE regress_forget_none;
SELECT kind, key, role FROM idempotency.events;
ROLLBACK;
RESET ROLE;
SELECT idem_scope_drop('o');
REVOKE CREATE ON SCHEMA idempotency FROM regress_forget_owner;
DROP ROLE regress_forget_member, regress_forget_owner, regress_forget_user, regress_forget_none;
