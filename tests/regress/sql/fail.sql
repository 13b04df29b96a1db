-- idem_fail: every verdict in every state, and what the next claim is told.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- The states, one key for each verdict, made in earlier transactions.
CREATE TABLE test.key AS
    SELECT s.place, s.state, v.verdict, s.state || ', ' || v.verdict AS key, NULL::bigint AS fence
      FROM unnest(ARRAY['absent', 'leased', 'lease over', 'lease over, swept', 'declared unknown', 'reconciling',
                        'completed', 'rejected', 'not_applied', 'claimed by another']) WITH ORDINALITY AS s (state, place),
           unnest(ARRAY['not_applied', 'unknown', 'rejected']) AS v (verdict);
UPDATE test.key SET fence = CASE WHEN state = 'absent' THEN 7 ELSE (idem_claim(key, lease => '1 minute')).fence END;
CREATE PROCEDURE test.age_state(s text) LANGUAGE plpgsql AS $$
DECLARE k record;
BEGIN
    FOR k IN SELECT * FROM test.key WHERE state = s LOOP
        CALL test.age(k.key, '1 hour');
    END LOOP;
END
$$;
CALL test.age_state('lease over, swept');
CALL idempotency.sweep();
CALL test.age_state('lease over');
CALL test.age_state('claimed by another');
DO $$
DECLARE k record;
BEGIN
    FOR k IN SELECT * FROM test.key LOOP
        IF k.state IN ('declared unknown', 'reconciling') THEN
            PERFORM idem_fail(k.key, 'unknown', 'before', fence => k.fence);
        ELSIF k.state = 'completed' THEN
            PERFORM idem_complete(k.key, '"before"', fence => k.fence);
        ELSIF k.state IN ('rejected', 'not_applied') THEN
            PERFORM idem_fail(k.key, k.state, 'before', fence => k.fence);
        END IF;
    END LOOP;
END
$$;
CREATE TABLE test.claimed AS
    SELECT k.key, k.state, c.decision, c.fence
      FROM test.key AS k, idem_claim(k.key, lease => '1 minute') AS c
     WHERE k.state IN ('reconciling', 'claimed by another');
SELECT DISTINCT state, decision FROM test.claimed ORDER BY 1;
UPDATE test.key AS k SET fence = c.fence FROM test.claimed AS c WHERE c.key = k.key AND k.state = 'reconciling';

-- Verdicts by the fence.
SELECT state, verdict, split_part(answer, E'\n', 1) AS answer, substring(answer FROM '(?n)^DETAIL: (.*)$') AS detail
  FROM test.key, test.try(format('SELECT idem_fail(%L, %L, %L, fence => %s)', key, verdict, 'after', fence)) AS answer
 ORDER BY place, verdict;
-- What the next claim is told.
BEGIN;
SELECT k.state, k.verdict, c.decision, c.attempt, c.reason, c.result
  FROM test.key AS k, idem_claim(k.key) AS c ORDER BY k.place, k.verdict;
ROLLBACK;

-- Without the fence, and with another.
SELECT decision FROM idem_claim('l', lease => '1 minute');
SELECT test.try($$ SELECT idem_fail('l', 'unknown') $$);
SELECT test.try($$ SELECT idem_fail('l', 'unknown', fence => 7) $$);

-- Transactional: the same verdicts without a fence.
BEGIN;
SELECT verdict, decision, idem_fail('t, ' || verdict, verdict, 'because')
  FROM unnest(ARRAY['not_applied', 'unknown', 'rejected']) AS verdict, idem_claim('t, ' || verdict);
COMMIT;
BEGIN;
SELECT verdict, c.* FROM unnest(ARRAY['not_applied', 'unknown', 'rejected']) AS verdict,
       LATERAL (SELECT :claim('t, ' || verdict)) AS c;
ROLLBACK;
SELECT :peek('t, not_applied');
SELECT :peek('t, unknown');
SELECT :peek('t, rejected');

-- Only a final answer takes a result, and it is replayed with it.
SELECT fence FROM idem_claim('declined', lease => '1 minute') \gset
SELECT test.try(format($$ SELECT idem_fail('declined', 'not_applied', result => '{}', fence => %s) $$, :fence));
SELECT test.try(format($$ SELECT idem_fail('declined', 'unknown', result => 'null', fence => %s) $$, :fence));
SELECT idem_fail('declined', 'rejected', 'no funds', '{"code": 51}', fence => :fence);
SELECT idem_fail('declined', 'rejected', 'another reason', '{"code": 52}', fence => :fence);
SELECT :claim('declined', lease => '1 minute');
SELECT test.try(format($$ SELECT idem_complete('declined', '1', fence => %s) $$, :fence));

-- There is no default verdict, and no other.
SELECT fence FROM idem_claim('verdict', lease => '1 minute') \gset
SELECT test.try(format($$ SELECT idem_fail('verdict', NULL, fence => %s) $$, :fence));
SELECT array_agg(verdict) AS verdicts, regexp_replace(answer, 'not ".*"', 'not ...') AS answer
  FROM unnest(ARRAY['failed', '', 'Rejected', ' unknown', 'completed']) AS verdict,
       test.try(format('SELECT idem_fail(%L, %L, fence => %s)', 'verdict', verdict, :fence)) AS answer
 GROUP BY 2 \gx
-- A reason has a limit.
SELECT test.try(format($$ SELECT idem_fail('verdict', 'unknown', repeat('r', 8193), fence => %s) $$, :fence));
SELECT :peek('verdict');
SELECT idem_fail('verdict', 'unknown', repeat('r', 8192), fence => :fence);
SELECT length(reason) FROM idem_peek('verdict');
