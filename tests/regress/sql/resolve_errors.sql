-- What idem_resolve, idem_escalate and idem_reconcile refuse: arguments, roles, transactions. SQLSTATE, DETAIL and HINT.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
TRUNCATE idempotency.message, idempotency.event;
\set ECHO all

-- Arguments. The key is unknown all the time: a refused call changes nothing.
SELECT fence FROM idem_claim('k', lease => '1 hour') \gset
SELECT idem_fail('k', 'unknown', 'timeout', fence => :fence);
SELECT test.try(format($$ SELECT idem_resolve(%s, fence => %s) $$, arguments, :fence)) FROM unnest(ARRAY[
    'NULL, ''applied''', '''k'', NULL', '''k'', ''''', '''k'', ''completed''', '''k'', ''Applied''', '''k'', '' unknown''',
    '''k'', ''not_applied'', ''1''', '''k'', ''unknown'', ''null''',
    '''k'', ''applied'', to_jsonb(repeat(''x'', 65536))', 'repeat(''k'', 1025), ''applied''']) AS arguments;
SELECT test.try($$ SELECT idem_resolve('k', 'applied', scope => NULL) $$);
SELECT test.try($$ SELECT idem_resolve('k', 'applied', scope => 'absent') $$);
SELECT test.try($$ SELECT idem_resolve('', 'applied') $$);
-- How long evidence may be.
SELECT test.try(format($$ SELECT idem_resolve('k', 'unknown', evidence => repeat('e', 1000000), fence => %s) $$, :fence));
SELECT :peek('k');
SELECT reconciles, evidence FROM idempotency.unresolved;
SELECT test.try(format($$ SELECT idem_escalate(%s) $$, arguments)) FROM unnest(ARRAY[
    'NULL', '''''', '''k'', repeat(''r'', 8193)', '''k'', scope => NULL', '''k'', scope => ''absent''', '''absent''', '''absent'', fence => 7']) AS arguments;
SELECT test.try(format($$ SELECT * FROM idem_reconcile(%s) $$, arguments)) FROM unnest(ARRAY[
    'NULL', '''''', '''k'', scope => NULL', '''k'', scope => ''absent''', '''k''']) AS arguments;
SELECT :peek('k');

-- Evidence: jsonb and json are kept as they are, anything else as a JSON string.
CREATE FUNCTION test.evidence(e text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE kept jsonb; BEGIN
    EXECUTE format('SELECT idem_resolve(%L, %L, evidence => %s)', 'k', 'unknown', e);
    SELECT evidence INTO kept FROM idempotency.unresolved WHERE key = 'k';
    RAISE EXCEPTION USING ERRCODE = 'ZZ000', MESSAGE = COALESCE(kept::text, 'NULL');
EXCEPTION WHEN SQLSTATE 'ZZ000' THEN
    RETURN CASE SQLERRM WHEN 'NULL' THEN NULL ELSE SQLERRM::jsonb END;
END
$$;
SELECT e, test.evidence(e), jsonb_typeof(test.evidence(e)) FROM unnest(ARRAY[
    '''no such payment''', '''no such payment''::text', '''a''::varchar', '''{"a": 1}''', '''{"a": 1}''::jsonb', '''[1, 2.50]''::json', '12', '1.50::numeric', 'true', 'NULL',
    'NULL::jsonb', '''null''::jsonb', '''''::text']) AS e;

-- Roles: a stranger, a role with a grant, the owner of the scope, a member of the owner, a superuser.
CREATE ROLE regress_stranger;
CREATE ROLE regress_worker;
CREATE ROLE regress_other;
CREATE ROLE regress_owner;
CREATE ROLE regress_on_call IN ROLE regress_owner;
GRANT CREATE ON SCHEMA idempotency TO regress_owner;
GRANT USAGE ON SCHEMA test TO regress_stranger, regress_worker, regress_other, regress_owner;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA test TO PUBLIC;
SET ROLE regress_owner;
SELECT idem_scope_set('pay', effect_kind => 'external');
SELECT idem_scope_grant('pay', 'regress_worker'), idem_scope_grant('pay', 'regress_other');
RESET ROLE;
-- Who may do what with a key that regress_worker left unknown or escalated: asked, and undone.
CREATE TABLE test.key (key text, fence bigint);
GRANT SELECT, INSERT ON test.key TO PUBLIC;
SET ROLE regress_worker;
INSERT INTO test.key SELECT key, c.fence FROM unnest(ARRAY['live', 'unknown', 'escalated', 'done']) AS key, idem_claim(key, scope => 'pay', lease => '1 hour') AS c;
SELECT idem_fail('unknown', 'unknown', 'timeout', scope => 'pay', fence => fence) FROM test.key WHERE key = 'unknown';
SELECT idem_escalate('escalated', 'no idea', scope => 'pay', fence => fence) FROM test.key WHERE key = 'escalated';
SELECT idem_complete('done', '1', 'pay', fence) FROM test.key WHERE key = 'done';
RESET ROLE;
CREATE FUNCTION test.as(role text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE answer text; BEGIN
    EXECUTE format('SET LOCAL ROLE %I', role);
    EXECUTE statement INTO answer;
    RAISE EXCEPTION USING ERRCODE = 'ZZ000', MESSAGE = COALESCE(answer, 'NULL');
EXCEPTION
    WHEN SQLSTATE 'ZZ000' THEN RETURN SQLERRM;
    WHEN OTHERS THEN RETURN SQLSTATE;
END
$$;
CREATE TABLE test.call AS
    SELECT r.place, r.role, f.call, f.with_fence, k.key, k.fence
      FROM unnest(ARRAY['regress_stranger', 'regress_other', 'regress_worker', 'regress_owner', 'regress_on_call', current_user]) WITH ORDINALITY AS r (role, place),
           (VALUES ('resolve', true), ('resolve', false), ('escalate', true), ('escalate', false)) AS f (call, with_fence), test.key AS k;
SELECT regexp_replace(role, '^(?!regress_).*', 'superuser') AS role, call, with_fence,
       max(answer) FILTER (WHERE key = 'live') AS live, max(answer) FILTER (WHERE key = 'unknown') AS unknown,
       max(answer) FILTER (WHERE key = 'escalated') AS escalated, max(answer) FILTER (WHERE key = 'done') AS done
  FROM test.call, test.as(role, format(CASE call WHEN 'resolve' THEN $$ SELECT idem_resolve(%L, 'not_applied', scope => 'pay', fence => %s) $$
                                                 ELSE $$ SELECT coalesce(nullif(idem_escalate(%L, 'because', scope => 'pay', fence => %s)::text, ''), 'ok') $$ END,
                                       key, CASE WHEN with_fence THEN fence::text ELSE 'NULL' END)) AS answer
 GROUP BY place, 1, 2, 3 ORDER BY call DESC, with_fence DESC, place;
-- With SQLSTATE, DETAIL and HINT.
SET ROLE regress_stranger;
SELECT test.try($$ SELECT idem_resolve('unknown', 'applied', scope => 'pay') $$);
SELECT test.try($$ SELECT * FROM idem_reconcile('unknown', scope => 'pay') $$);
SET ROLE regress_worker;
SELECT test.try($$ SELECT idem_resolve('unknown', 'applied', scope => 'pay') $$);
SELECT test.try($$ SELECT idem_escalate('unknown', scope => 'pay') $$);
-- Whether there is such a key makes no difference.
SELECT test.try($$ SELECT idem_resolve('absent', 'applied', scope => 'pay') $$);
SELECT test.try($$ SELECT * FROM idem_reconcile('unknown', scope => 'pay') $$);
SET ROLE regress_other;
SELECT test.try(format($$ SELECT idem_resolve('unknown', 'applied', scope => 'pay', fence => %s) $$, fence)) FROM test.key WHERE key = 'unknown';
SET ROLE regress_owner;
SELECT test.try($$ SELECT idem_resolve('live', 'applied', scope => 'pay') $$);
SELECT test.try($$ SELECT idem_escalate('live', scope => 'pay') $$);
SELECT test.try($$ SELECT idem_resolve('done', 'applied', scope => 'pay') $$);
SELECT test.try($$ SELECT idem_resolve('absent', 'applied', scope => 'pay') $$);
SELECT test.try($$ SELECT idem_resolve('unknown', 'applied', scope => 'pay', fence => 7) $$);
RESET ROLE;
-- A worker who was told to reconcile needs no right but its fence; in its own transaction not even that.
SET ROLE regress_other;
SELECT decision, fence FROM idem_claim('unknown', scope => 'pay', lease => '1 hour') \gset o_
SELECT :'o_decision' AS decision, idem_resolve('unknown', 'unknown', evidence => 'no answer'::text, scope => 'pay', fence => :o_fence);
BEGIN;
SELECT decision FROM idem_claim('unknown', scope => 'pay');
SELECT idem_resolve('unknown', 'applied', '"found"', 'seen'::text, 'pay');
COMMIT;
SELECT :claim('unknown', scope => 'pay');
RESET ROLE;
-- Everyone sees what it may use, and nobody else.
CREATE FUNCTION test.seen(role text, OUT unresolved bigint, OUT events bigint, OUT outbox bigint, OUT debezium bigint) LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('SET LOCAL ROLE %I', role);
    SELECT count(*) INTO unresolved FROM idempotency.unresolved;
    SELECT count(*) INTO events FROM idempotency.events;
    SELECT count(*) INTO outbox FROM idempotency.outbox;
    SELECT count(*) INTO debezium FROM idempotency.debezium_outbox;
    RESET ROLE;
END
$$;
SELECT decision FROM idem_enqueue('m', 'd', '1', scope => 'pay');
SELECT regexp_replace(role, '^(?!regress_).*', 'superuser') AS role, s.unresolved, s.events > 0 AS events, s.outbox, s.debezium
  FROM unnest(ARRAY['regress_stranger', 'regress_worker', 'regress_owner', current_user]) AS role, test.seen(role) AS s;
-- The tables are for nobody.
SET ROLE regress_owner;
SELECT t, test.try('SELECT FROM idempotency.' || t) FROM unnest(ARRAY['claim', 'message', 'event', 'failure_kind']) AS t;
RESET ROLE;

-- A function that leaks what it sees learns nothing of other scopes through the views.
CREATE FUNCTION test.leak(t text) RETURNS bool LANGUAGE plpgsql COST 0.0000001 AS $$ BEGIN RAISE NOTICE 'leaked %', t; RETURN true; END $$;
SET client_min_messages = notice;
SET ROLE regress_stranger;
SELECT count(*) FROM idempotency.unresolved WHERE test.leak(key);
SELECT count(*) FROM idempotency.events WHERE test.leak(key);
SELECT count(*) FROM idempotency.outbox WHERE test.leak(payload::text);
SELECT count(*) FROM idempotency.debezium_outbox WHERE test.leak(payload::text);
RESET ROLE;
SET client_min_messages = warning;

-- Transactions that must not write, and claims that are not committed yet.
BEGIN READ ONLY;
SELECT test.try($$ SELECT idem_resolve('k', 'applied') $$);
SELECT test.try($$ SELECT idem_escalate('k') $$);
ROLLBACK;
BEGIN;
SELECT fence FROM idem_claim('new', scope => 'pay', lease => '1 hour') \gset
SELECT test.try(format($$ SELECT idem_resolve('new', 'applied', scope => 'pay', fence => %s) $$, :fence));
ROLLBACK;

DROP OWNED BY regress_owner, regress_worker, regress_other, regress_stranger;
TRUNCATE idempotency.claim, idempotency.outcome, idempotency.scope, idempotency.scope_grant, idempotency.message, idempotency.event;
DROP SCHEMA test CASCADE;
DROP ROLE regress_stranger, regress_worker, regress_other, regress_on_call, regress_owner;
