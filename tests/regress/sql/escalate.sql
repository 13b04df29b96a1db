-- idem_escalate: in every state, with the fence and as an operator; what claims are told until somebody decides.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
TRUNCATE idempotency.message, idempotency.event;
\set ECHO all

SELECT idem_scope_set('s', backoff => '1 hour', max_backoff => '1 day');
CREATE TABLE test.key AS
    SELECT w.way, s.place, s.state, w.way || ', ' || s.state AS key, NULL::bigint AS fence
      FROM unnest(ARRAY['fence', 'operator']) AS w (way),
           unnest(ARRAY['absent', 'leased', 'reconciling', 'lease over', 'unknown', 'escalated', 'completed', 'rejected', 'not_applied', 'claimed by another',
                        'message, never sent', 'message, sent now', 'message, unknown']) WITH ORDINALITY AS s (state, place);
CREATE PROCEDURE test.make() LANGUAGE plpgsql AS $$
DECLARE k record; c record;
BEGIN
    UPDATE test.key SET fence = CASE WHEN state = 'absent' THEN 7 ELSE (idem_claim(key, scope => 's', lease => '1 hour')).fence END WHERE state NOT LIKE 'message%';
    PERFORM idem_enqueue(key, 'd', '1', scope => 's') FROM test.key WHERE state LIKE 'message%';
    COMMIT;
    UPDATE test.key AS t SET fence = d.fence FROM idem_dispatch('d', 100, '1 hour') AS d WHERE t.key = d.key;
    COMMIT;
    FOR k IN SELECT * FROM test.key LOOP
        CASE
            WHEN k.state = 'lease over' THEN CALL test.age(k.key, '2 hours', 's');
            WHEN k.state IN ('reconciling', 'unknown', 'message, unknown', 'claimed by another') THEN PERFORM idem_fail(k.key, 'unknown', 'before', scope => 's', fence => k.fence);
            WHEN k.state = 'escalated' THEN PERFORM idem_escalate(k.key, 'before', '{"n": 1}'::jsonb, 's', k.fence);
            WHEN k.state = 'completed' THEN PERFORM idem_complete(k.key, '1', 's', k.fence);
            WHEN k.state IN ('rejected', 'not_applied') THEN PERFORM idem_fail(k.key, k.state, 'before', scope => 's', fence => k.fence);
            WHEN k.state = 'message, never sent' THEN PERFORM idem_release(k.key, 's', k.fence);
            ELSE
        END CASE;
    END LOOP;
    COMMIT;
    FOR k IN SELECT * FROM test.key WHERE state IN ('reconciling', 'claimed by another') LOOP
        SELECT * INTO c FROM idem_claim(k.key, scope => 's', lease => '1 hour');
        IF k.state = 'reconciling' THEN UPDATE test.key SET fence = c.fence WHERE key = k.key; END IF;
    END LOOP;
END
$$;
CALL test.make();
SELECT k.key, split_part(replace(answer, k.key, '...'), E'\n', 1) AS answer INTO test.answer
  FROM test.key AS k, test.try(format('SELECT idem_escalate(%L, %L, %L::jsonb, %L, %s)', k.key, 'after', '{"n": 2}', 's', CASE k.way WHEN 'fence' THEN k.fence::text ELSE 'NULL' END)) AS answer;
SELECT k.way, k.state, a.answer, CASE WHEN k.state <> 'lease over' OR a.answer = 'ok' THEN p.state END AS is, p.attempt, p.reason, u.evidence,
       CASE WHEN p.fence = k.fence THEN 'the same' WHEN p.fence > k.fence THEN 'a new one' END AS fence
  FROM test.key AS k JOIN test.answer AS a USING (key) LEFT JOIN idempotency.unresolved AS u USING (key), idem_peek(k.key, 's') AS p
 ORDER BY k.way, k.place;
-- What claims are told: nothing is claimed, nobody waits.
BEGIN;
SELECT k.way, k.state, c.decision, c.attempt, c.reason, c.fence IS NOT NULL AS fenced
  FROM test.key AS k JOIN test.answer AS a USING (key), idem_claim(k.key, CASE WHEN k.state LIKE 'message%' THEN '1'::jsonb END, 's', '1 hour', wait => '10 minutes') AS c
 WHERE a.answer = 'ok' ORDER BY k.way, k.place;
SELECT ord, decision, reason FROM idem_claim_many(ARRAY['fence, leased', 'absent'], scope => 's');
ROLLBACK;
SELECT state, count(*) FROM idempotency.unresolved WHERE scope = 's' GROUP BY 1;
-- Other arguments are seen here, too.
SELECT fence FROM idem_claim('a', '{"x": 1}', 's', '1 hour') \gset
SELECT idem_escalate('a', scope => 's', fence => :fence);
SELECT test.try($$ SELECT * FROM idem_claim('a', '{"x": 2}', 's') $$);
SELECT :claim('a', '{"x": 1}', 's');
SELECT test.try($$ SELECT idem_once('a', 'SELECT $1', '{"x": 1}', 's') $$);
-- No dispatcher is given an escalated message, only the one that could not be escalated.
SELECT key FROM idem_dispatch('d', 100, '1 hour');

-- It keeps the fence, so the last owner may still say how it ended: every ending.
CREATE TABLE test.late AS SELECT ending, (idem_claim('late, ' || ending, scope => 's', lease => '1 hour')).fence FROM unnest(ARRAY['complete', 'rejected', 'not_applied', 'unknown', 'release', 'renew', 'applied', 'resolve unknown']) AS ending;
SELECT ending, idem_escalate('late, ' || ending, 'no answer', scope => 's', fence => fence) FROM test.late;
SELECT ending, split_part(answer, E'\n', 1) AS answer INTO test.late_answer
  FROM test.late AS l, test.try(format(CASE ending
           WHEN 'complete' THEN $$ SELECT idem_complete(%L, '"late"', 's', %s) $$
           WHEN 'release' THEN $$ SELECT idem_release(%L, 's', %s) $$
           WHEN 'renew' THEN $$ SELECT idem_renew(%L, '1 hour', 's', %s) $$
           WHEN 'applied' THEN $$ SELECT idem_resolve(%L, 'applied', '"late"', scope => 's', fence => %s) $$
           WHEN 'resolve unknown' THEN $$ SELECT idem_resolve(%L, 'unknown', scope => 's', fence => %s) $$
           ELSE $$ SELECT idem_fail(%L, '$$ || ending || $$', 'late', scope => 's', fence => %s) $$ END, 'late, ' || ending, fence)) AS answer;
SELECT l.ending, a.answer, p.state, p.result, p.reason, p.fence = l.fence AS same_fence FROM test.late AS l JOIN test.late_answer AS a USING (ending), idem_peek('late, ' || l.ending, 's') AS p;
-- After an operator has decided it may not.
SELECT fence FROM idem_claim('decided', scope => 's', lease => '1 hour') \gset
SELECT idem_escalate('decided', 'no answer', scope => 's', fence => :fence);
SELECT idem_resolve('decided', 'rejected', '{"code": 7}', 'asked the bank'::text, 's');
SELECT test.try(format($$ SELECT idem_complete('decided', '"late"', 's', %s) $$, :fence));
SELECT :claim('decided', scope => 's');

-- A sweep leaves it alone, however old it is.
CALL test.age('fence, leased', '10 years', 's');
CALL idempotency.sweep();
SELECT state, reason, lease_expires_at, finished_at FROM idem_peek('fence, leased', 's');
-- Transactional: by the claimant, in its own transaction.
BEGIN;
SELECT decision, idem_escalate('t', 'too odd', 'seen twice'::text, 's') FROM idem_claim('t', scope => 's');
COMMIT;
SELECT state, reason, evidence, since IS NOT NULL AS since FROM idempotency.unresolved WHERE key = 't';
