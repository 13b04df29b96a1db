-- idem_resolve: every verdict in every state, with the fence and as an operator, and what the next claim is told.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
TRUNCATE idempotency.message, idempotency.event;
\set ECHO all

-- One key for each way to ask, state and verdict, made in earlier transactions. A background worker changes none of them.
SELECT idem_scope_set('s', backoff => '1 hour', max_backoff => '1 day', max_lease => '1 day');
SELECT idem_scope_set('local', effect_kind => 'local', max_lease => '1 day');
SELECT idem_scope_set('keyed', effect_kind => 'keyed', backoff => '1 hour', max_lease => '1 day');
CREATE TABLE test.key AS
    SELECT w.way, s.place, s.state, v.nr, v.verdict, w.way || ', ' || s.state || ', ' || v.verdict AS key, NULL::bigint AS fence,
           CASE WHEN s.state LIKE '%local' THEN 'local' WHEN s.state LIKE '%keyed' THEN 'keyed' ELSE 's' END AS scope
      FROM unnest(ARRAY['fence', 'operator']) AS w (way),
           unnest(ARRAY['absent', 'leased', 'reconciling', 'lease over', 'lease over, swept', 'reconciling, lease over',
                        'lease over, local', 'lease over, keyed', 'declared unknown', 'given back', 'escalated',
                        'completed', 'rejected', 'not_applied', 'claimed by another',
                        'message, never sent', 'message, sent now', 'message, backs off', 'message, unknown', 'message, escalated'])
               WITH ORDINALITY AS s (state, place),
           unnest(ARRAY['applied', 'rejected', 'not_applied', 'unknown']) WITH ORDINALITY AS v (verdict, nr);
CREATE PROCEDURE test.make() LANGUAGE plpgsql AS $$
DECLARE k record; m record;
BEGIN
    UPDATE test.key SET fence = CASE WHEN state = 'absent' THEN 7 ELSE (idem_claim(key, scope => scope, lease => '1 hour')).fence END
     WHERE state NOT LIKE 'message%';
    PERFORM idem_enqueue(key, 'd', '{"amount": 1}', scope => scope) FROM test.key WHERE state LIKE 'message%';
    COMMIT;
    UPDATE test.key AS t SET fence = d.fence FROM idem_dispatch('d', 1000, '1 hour') AS d WHERE t.key = d.key;
    COMMIT;
    FOR k IN SELECT * FROM test.key ORDER BY key LOOP
        CASE
            WHEN k.state LIKE 'lease over%' THEN CALL test.age(k.key, '2 hours', k.scope);
            WHEN k.state IN ('reconciling', 'declared unknown', 'reconciling, lease over', 'given back', 'message, unknown', 'claimed by another') THEN
                PERFORM idem_fail(k.key, 'unknown', 'before', scope => k.scope, fence => k.fence);
            WHEN k.state IN ('escalated', 'message, escalated') THEN
                PERFORM idem_escalate(k.key, 'before', scope => k.scope, fence => k.fence);
            WHEN k.state = 'completed' THEN PERFORM idem_complete(k.key, '"before"', k.scope, k.fence);
            WHEN k.state IN ('rejected', 'not_applied') THEN PERFORM idem_fail(k.key, k.state, 'before', scope => k.scope, fence => k.fence);
            WHEN k.state = 'message, backs off' THEN PERFORM idem_fail(k.key, 'not_applied', 'before', scope => k.scope, fence => k.fence);
            WHEN k.state = 'message, never sent' THEN PERFORM idem_release(k.key, k.scope, k.fence);
            ELSE
        END CASE;
    END LOOP;
    COMMIT;
    FOR k IN SELECT * FROM test.key WHERE state IN ('reconciling', 'reconciling, lease over', 'given back', 'claimed by another') LOOP
        SELECT * INTO m FROM idem_claim(k.key, scope => k.scope, lease => '1 hour');
        IF m.decision <> 'reconcile' THEN RAISE '% is %', k.key, m.decision; END IF;
        IF k.state <> 'claimed by another' THEN UPDATE test.key SET fence = m.fence WHERE key = k.key; END IF;
        COMMIT;
        IF k.state = 'given back' THEN PERFORM idem_release(k.key, k.scope, m.fence); END IF;
        IF k.state = 'reconciling, lease over' THEN CALL test.age(k.key, '2 hours', k.scope); END IF;
    END LOOP;
    COMMIT;
END
$$;
CALL test.make();
CALL idempotency.sweep();
-- Where a sweep must not have been.
CREATE PROCEDURE test.unswept() LANGUAGE plpgsql AS $$
DECLARE k record; BEGIN
    FOR k IN SELECT * FROM test.key WHERE state IN ('lease over', 'lease over, local', 'lease over, keyed') LOOP
        DELETE FROM idempotency.outcome WHERE key = k.key; DELETE FROM idempotency.claim WHERE key = k.key;
        UPDATE test.key SET fence = (idem_claim(key, scope => scope, lease => '1 hour')).fence WHERE key = k.key;
        COMMIT;
        CALL test.age(k.key, '2 hours', k.scope);
    END LOOP;
END
$$;
CALL test.unswept();

-- The answer, or the SQLSTATE; the rest of an error goes into test.error.
CREATE TABLE test.error (state text, sqlstate text, message text, detail text, hint text);
CREATE FUNCTION test.ask(k test.key, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE answer text; e test.error;
BEGIN
    EXECUTE statement INTO answer;
    RETURN answer;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS e.sqlstate = RETURNED_SQLSTATE, e.message = MESSAGE_TEXT, e.detail = PG_EXCEPTION_DETAIL, e.hint = PG_EXCEPTION_HINT;
    e.state := k.state;
    e.message := replace(e.message, k.key, '...');
    INSERT INTO test.error SELECT e.*;
    RETURN e.sqlstate;
END
$$;
CREATE FUNCTION test.resolve(k test.key) RETURNS text LANGUAGE sql AS $$
    SELECT test.ask(k, format('SELECT idem_resolve(%L, %L, %s, %L::text, %L, %s)', k.key, k.verdict,
                    CASE WHEN k.verdict IN ('applied', 'rejected') THEN '''{"answer": 1}''' ELSE 'NULL' END,
                    'after', k.scope, CASE k.way WHEN 'fence' THEN k.fence::text ELSE 'NULL' END));
$$;
CREATE TABLE test.answer AS SELECT k.key, test.resolve(k) AS answer FROM test.key AS k ORDER BY k.way, k.place, k.nr;
-- Nothing but expected errors.
SELECT sqlstate, message, detail, hint, count(*), array_agg(DISTINCT state ORDER BY state) AS states FROM test.error GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4 \gx
-- What is told, and what is there then.
-- (A background worker may have swept a local lease that is over.)
SELECT k.way, k.state, k.verdict, a.answer, CASE WHEN k.state <> 'lease over, local' THEN p.state END AS is, p.attempt, p.result, CASE WHEN k.state <> 'lease over, local' THEN p.reason END AS reason, CASE WHEN k.state <> 'lease over, local' THEN c.reconciles END AS reconciles,
       CASE WHEN p.fence = k.fence THEN 'the same' WHEN p.fence > k.fence THEN 'a new one' END AS fence
  FROM test.key AS k JOIN test.answer AS a USING (key), idem_peek(k.key, k.scope) AS p LEFT JOIN idempotency.claim AS c ON true AND c.fence = p.fence
 WHERE c.key IS NULL OR c.key = k.key
 ORDER BY k.way, k.place, k.nr;
-- What the next claim is told.
BEGIN;
SELECT k.way, k.state, k.verdict, c.decision, c.attempt, c.reason, c.result
  FROM test.key AS k, idem_claim(k.key, CASE WHEN k.state LIKE 'message%' THEN '{"amount": 1}'::jsonb END, k.scope, wait => '0') AS c ORDER BY k.way, k.place, k.nr;
ROLLBACK;
-- Which messages are still there, and when they are due.
SELECT k.way, k.state, k.verdict, o.state AS is, o.tries, o.reconciles, o.reason,
       CASE WHEN o.due_at IS NULL THEN 'never' WHEN o.due_at <= clock_timestamp() THEN 'now' ELSE 'later' END AS due
  FROM test.key AS k LEFT JOIN idempotency.outbox AS o USING (key) WHERE k.state LIKE 'message%' ORDER BY k.way, k.place, k.nr;

-- The same call again, after a lost acknowledgement: with the fence it gives the same answer and changes nothing.
CREATE TABLE test.before AS SELECT scope, key, state, attempt, fence, reason, result FROM idempotency.records;
SELECT count(*) AS events FROM idempotency.event \gset
SELECT k.state, k.verdict, a.answer, test.resolve(k) AS again
  FROM test.key AS k JOIN test.answer AS a USING (key)
 WHERE k.way = 'fence' AND a.answer !~ '^ID' AND a.answer <> 'unknown' ORDER BY k.place, k.nr;
SELECT count(*) AS changed, (SELECT count(*) FROM idempotency.event) - :events AS new_events FROM (SELECT * FROM test.before WHERE key NOT IN (SELECT key FROM test.key WHERE state = 'lease over, local') EXCEPT SELECT scope, key, state, attempt, fence, reason, result FROM idempotency.records) AS r;
-- Another verdict under the same fence is refused, and changes nothing.
SELECT k.state, k.verdict, a.answer, test.ask(k, format('SELECT idem_resolve(%L, %L, scope => %L, fence => %s)', k.key, CASE k.verdict WHEN 'applied' THEN 'not_applied' ELSE 'applied' END, k.scope, k.fence)) AS other
  FROM test.key AS k JOIN test.answer AS a USING (key) WHERE k.way = 'fence' AND a.answer IN ('completed', 'rejected', 'not_applied') ORDER BY k.place, k.nr;
SELECT count(*) AS changed, (SELECT count(*) FROM idempotency.event) - :events AS new_events FROM (SELECT * FROM test.before WHERE key NOT IN (SELECT key FROM test.key WHERE state = 'lease over, local') EXCEPT SELECT scope, key, state, attempt, fence, reason, result FROM idempotency.records) AS r;
-- Once an operator has decided, every older fence is refused.
SELECT k.state, k.verdict, a.answer, test.ask(k, format('SELECT idem_complete(%L, scope => %L, fence => %s)', k.key, k.scope, k.fence)) AS late
  FROM test.key AS k JOIN test.answer AS a USING (key) WHERE k.way = 'operator' AND a.answer !~ '^ID' ORDER BY k.place, k.nr;
SELECT count(*) AS changed, (SELECT count(*) FROM idempotency.event) - :events AS new_events FROM (SELECT * FROM test.before WHERE key NOT IN (SELECT key FROM test.key WHERE state = 'lease over, local') EXCEPT SELECT scope, key, state, attempt, fence, reason, result FROM idempotency.records) AS r;

-- Transactional: a claim that is told to reconcile is resolved in its own transaction, without a fence.
CREATE TABLE test.t AS SELECT verdict, 't, ' || verdict AS key FROM unnest(ARRAY['applied', 'rejected', 'not_applied', 'unknown']) AS verdict;
BEGIN;
SELECT count(idem_fail(key, 'unknown', 'timeout', scope => 's')) FROM test.t, idem_claim(key, scope => 's') AS c WHERE c.decision = 'execute';
COMMIT;
BEGIN;
SELECT verdict, decision, idem_resolve(key, verdict, evidence => 'read'::text, scope => 's') FROM test.t, idem_claim(key, scope => 's') AS c ORDER BY verdict;
COMMIT;
SELECT t.verdict, p.state, p.attempt, p.result, p.reason FROM test.t, idem_peek(key, 's') AS p ORDER BY 1;
-- What is rolled back was not said.
BEGIN;
SELECT idem_resolve('t, unknown', 'applied', '1', scope => 's');
SAVEPOINT a;
SELECT decision, result FROM idem_claim('t, unknown', scope => 's');
ROLLBACK;
SELECT :peek('t, unknown', 's');
BEGIN;
SELECT decision FROM idem_claim('t, unknown', scope => 's');
SAVEPOINT a;
SELECT idem_resolve('t, unknown', 'applied', '1', scope => 's');
ROLLBACK TO a;
SELECT idem_resolve('t, unknown', 'not_applied', scope => 's');
COMMIT;
SELECT :peek('t, unknown', 's');

-- unknown counts, and after max_reconciles a human is asked.
SELECT idem_scope_set('s', max_reconciles => 3);
SELECT fence FROM idem_claim('r', scope => 's', lease => '1 hour') \gset
SELECT idem_fail('r', 'unknown', 'timeout', scope => 's', fence => :fence);
SELECT state, reconciles, reason, evidence FROM idempotency.unresolved WHERE key = 'r';
SELECT fence FROM idem_claim('r', scope => 's', lease => '1 hour') \gset
SELECT idem_resolve('r', 'unknown', evidence => 'read 1'::text, scope => 's', fence => :fence);
SELECT state, reconciles, reason, evidence FROM idempotency.unresolved WHERE key = 'r';
SELECT fence FROM idem_claim('r', scope => 's', lease => '1 hour') \gset
SELECT idem_fail('r', 'unknown', 'read 2', scope => 's', fence => :fence);
SELECT state, reconciles, reason, evidence FROM idempotency.unresolved WHERE key = 'r';
SELECT fence FROM idem_claim('r', scope => 's', lease => '1 hour') \gset
SELECT idem_resolve('r', 'unknown', evidence => '{"read": 3}'::jsonb, scope => 's', fence => :fence);
SELECT state, reconciles, reason, evidence FROM idempotency.unresolved WHERE key = 'r';
SELECT :claim('r', scope => 's', lease => '1 hour');
-- An operator's unknown leaves it there.
SELECT idem_resolve('r', 'unknown', evidence => 'asked the bank'::text, scope => 's');
SELECT state, evidence FROM idempotency.unresolved WHERE key = 'r';
SELECT idem_resolve('r', 'not_applied', evidence => 'the bank has nothing'::text, scope => 's');
SELECT :claim('r', scope => 's', lease => '1 hour');
-- The count begins anew with the next attempt.
SELECT reconciles FROM idempotency.claim WHERE key = 'r';

-- A lease that ends on a claim that was told to reconcile is a read in vain, counted once, swept or not.
BEGIN;
SELECT decision, idem_fail('v', 'unknown', 'timeout', scope => 's') FROM idem_claim('v', scope => 's');
COMMIT;
SELECT decision FROM idem_claim('v', scope => 's', lease => '1 hour');
CALL test.age('v', '2 hours', 's');
SELECT decision FROM idem_claim('v', scope => 's', lease => '1 hour');
CALL test.age('v', '2 hours', 's');
CALL idempotency.sweep();
SELECT state, reconciles FROM idempotency.unresolved WHERE key = 'v';
CALL idempotency.sweep();
SELECT state, reconciles FROM idempotency.unresolved WHERE key = 'v';
SELECT decision FROM idem_claim('v', scope => 's', lease => '1 hour');
CALL test.age('v', '2 hours', 's');
SELECT decision FROM idem_claim('v', scope => 's', lease => '1 hour');
SELECT decision FROM idem_claim('v', scope => 's', lease => '1 hour');
CALL idempotency.sweep();
SELECT state, reconciles FROM idempotency.unresolved WHERE key = 'v';
-- One that is given back is not.
SELECT fence FROM idem_claim('w', scope => 's', lease => '1 hour') \gset
SELECT idem_fail('w', 'unknown', 'timeout', scope => 's', fence => :fence);
SELECT fence FROM idem_claim('w', scope => 's', lease => '1 hour') \gset
SELECT idem_release('w', 's', :fence);
SELECT state, reconciles, reason FROM idempotency.unresolved WHERE key = 'w';

-- An escalated or queued key through idem_once.
SELECT test.try($$ SELECT idem_once('v', 'SELECT to_jsonb(1)', scope => 's') $$);
SELECT decision, enqueued FROM idem_enqueue('q', 'd', '1', scope => 's');
SELECT test.try($$ SELECT idem_once('q', 'SELECT to_jsonb(1)', '1', 's', wait => '0') $$);
SELECT test.try($$ SELECT idem_once('q', 'SELECT to_jsonb(1)', '2', 's', wait => '0') $$);
