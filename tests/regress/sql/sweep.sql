-- Sweeping: idem_sweep and CALL idempotency.sweep() end leases and prune outcomes in batches, and never change an answer.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

SELECT idem_scope_set('keyed', effect_kind => 'keyed');
SELECT idem_scope_set('local', effect_kind => 'local');
SELECT idem_scope_set('short', dedup_window => '1 hour');
SELECT idem_scope_set('forever', keep_forever => true);
-- A pass that an earlier statement of this session has begun is finished first.
CALL idempotency.sweep();
-- Runs batches until a pass is over.
CREATE FUNCTION test.pass(OUT batch bigint, OUT leases_ended int, OUT outcomes_pruned int, OUT more bool) RETURNS SETOF record LANGUAGE plpgsql AS $$
BEGIN
    batch := 0; more := true;
    WHILE more LOOP
        batch := batch + 1;
        SELECT s.leases_ended, s.outcomes_pruned, s.more INTO leases_ended, outcomes_pruned, more FROM idem_sweep() AS s;
        RETURN NEXT;
    END LOOP;
END
$$;

-- In one transaction, so that a background worker sees nothing of it. Five leases that are over, one that is not, one declared unknown long ago.
BEGIN;
SELECT count(idem_claim('x' || g, lease => '1 minute')) FROM generate_series(1, 3) AS g;
SELECT count(idem_claim('k', scope => 'keyed', lease => '1 minute')), count(idem_claim('l', scope => 'local', lease => '1 minute')), count(idem_claim('held', lease => '1 hour'));
SELECT decision, idem_fail('u', 'unknown', 'timeout') FROM idem_claim('u');
DO $$ BEGIN
    CALL test.age('x1', '1 minute'); CALL test.age('x2', '40 days'); CALL test.age('x3', '40 days'); CALL test.age('k', '40 days', 'keyed'); CALL test.age('l', '1 hour', 'local');
    CALL test.age('held', '59 minutes'); CALL test.age('u', '40 days');
END $$;
SET LOCAL idempotency.sweep_batch = 2;
SELECT sum(leases_ended) AS leases_ended, max(leases_ended) AS most_in_a_batch, sum(outcomes_pruned) AS outcomes_pruned, count(*) > 3 AS batches, count(*) FILTER (WHERE NOT more) AS over FROM test.pass();
SELECT scope, key, state, attempt, reason, lease_expires_at IS NOT NULL AS leased, finished_at IS NOT NULL AS finished FROM idempotency.records ORDER BY scope, key;
-- A second pass finds nothing to do.
SELECT sum(leases_ended) AS leases_ended, sum(outcomes_pruned) AS outcomes_pruned FROM test.pass();
ROLLBACK;

-- Outcomes past their window go, scope by scope, in batches; others stay, and do not stand in the way.
BEGIN;
CREATE TABLE test.outcome AS
    SELECT s.scope, 'k' || g AS key, (ARRAY['2 hours', '59 minutes', '31 days', '29 days 23 hours', '400 days'])[1 + g % 5]::interval AS age, (ARRAY['completed', 'rejected', 'not_applied'])[1 + g % 3] AS state
      FROM unnest(ARRAY['default', 'short', 'forever']) AS s (scope), generate_series(1, 30) AS g;
DO $$
DECLARE o record;
BEGIN
    FOR o IN SELECT * FROM test.outcome LOOP
        PERFORM idem_claim(o.key, scope => o.scope);
        IF o.state = 'completed' THEN PERFORM idem_complete(o.key, '1', o.scope); ELSE PERFORM idem_fail(o.key, o.state, scope => o.scope); END IF;
        CALL test.age(o.key, o.age, o.scope);
    END LOOP;
END
$$;
SET LOCAL idempotency.sweep_batch = 5;
SELECT sum(leases_ended) AS leases_ended, max(outcomes_pruned) AS most_in_a_batch, sum(outcomes_pruned) AS outcomes_pruned FROM test.pass();
SELECT o.scope, o.age, count(*) AS were, count(p.finished_at) AS are FROM test.outcome AS o, idem_peek(o.key, o.scope) AS p GROUP BY 1, 2 ORDER BY 1, 2;
-- A longer window saves, a shorter one frees; a policy that changes while a pass is under way counts from the next batch on.
SELECT idem_scope_set('short', dedup_window => '1 minute');
SELECT sum(outcomes_pruned) AS outcomes_pruned FROM test.pass();
SELECT idem_scope_set('forever', keep_forever => false, dedup_window => '30 days');
SELECT sum(outcomes_pruned) AS outcomes_pruned FROM test.pass();
SELECT idem_scope_set('default', dedup_window => '1 year');
SELECT sum(outcomes_pruned) AS outcomes_pruned FROM test.pass();
SELECT scope, count(*) FROM idempotency.records GROUP BY 1 ORDER BY 1;
ROLLBACK;

-- A sweep never changes an answer: the next claim is told the same before and after it.
CREATE TABLE test.key AS SELECT s.scope, p.past, NULL::bigint AS fence, s.scope || ', ' || p.past AS key
    FROM unnest(ARRAY['default', 'keyed', 'local']) AS s (scope), unnest(ARRAY['first', 'not applied before', 'unknown before', 'ended before', 'renewed', 'keyed too long ago']) AS p (past);
CREATE PROCEDURE test.make() LANGUAGE plpgsql AS $$
DECLARE k record;
BEGIN
    UPDATE test.key SET fence = (idem_claim(key, '1', scope, '1 minute')).fence;
    COMMIT;
    FOR k IN SELECT * FROM test.key LOOP
        CASE k.past
            WHEN 'not applied before' THEN PERFORM idem_fail(k.key, 'not_applied', 'before', scope => k.scope, fence => k.fence);
            WHEN 'unknown before' THEN PERFORM idem_fail(k.key, 'unknown', 'before', scope => k.scope, fence => k.fence);
            WHEN 'ended before' THEN CALL test.age(k.key, '1 hour', k.scope);
            WHEN 'renewed' THEN PERFORM idem_renew(k.key, '2 minutes', k.scope, k.fence);
            WHEN 'keyed too long ago' THEN CALL test.age(k.key, '2 days', k.scope);
            ELSE
        END CASE;
    END LOOP;
    UPDATE test.key SET fence = (idem_claim(key, '1', scope, '1 minute')).fence WHERE past IN ('not applied before', 'unknown before', 'ended before', 'keyed too long ago');
    COMMIT;
END
$$;
-- What a claim would answer: asked, and undone.
CREATE FUNCTION test.would_claim(key text, args jsonb, scope text, OUT decision text, OUT attempt int, OUT reason text) LANGUAGE plpgsql AS $$
BEGIN
    SELECT c.decision, c.attempt, c.reason INTO decision, attempt, reason FROM idem_claim(key, args, scope) AS c;
    RAISE EXCEPTION USING ERRCODE = 'ZZ000';
EXCEPTION WHEN OTHERS THEN
    IF SQLSTATE <> 'ZZ000' THEN decision := SQLSTATE; END IF;
END
$$;
CALL test.make();
BEGIN;
DO $$ DECLARE k record; BEGIN FOR k IN SELECT * FROM test.key LOOP CALL test.age(k.key, '5 minutes', k.scope); END LOOP; END $$;
CREATE TABLE test.before AS SELECT k.key, c.decision, c.attempt, c.reason FROM test.key AS k, test.would_claim(k.key, '1', k.scope) AS c;
SELECT sum(leases_ended) AS leases_ended FROM test.pass();
SELECT k.scope, k.past, p.state, c.decision, c.attempt, c.reason, (b.decision, b.attempt, b.reason) IS NOT DISTINCT FROM (c.decision, c.attempt, c.reason) AS as_before
  FROM test.key AS k JOIN test.before AS b USING (key), idem_peek(k.key, k.scope) AS p, idem_claim(k.key, '1', k.scope) AS c ORDER BY k.scope, k.past;
ROLLBACK;

-- Also where the lease ended longer ago than the scope's window.
BEGIN;
CREATE TABLE test.answer AS SELECT NULL::text AS at, NULL::text AS scope, NULL::text AS decision, NULL::int AS attempt, NULL::text AS reason, NULL::text AS other_arguments LIMIT 0;
SELECT s.scope, c.decision FROM unnest(ARRAY['default', 'keyed', 'local']) AS s (scope), idem_claim('long over', '1', s.scope, '1 minute') AS c;
DO $$ BEGIN CALL test.age('long over', '40 days', 'default'); CALL test.age('long over', '40 days', 'keyed'); CALL test.age('long over', '40 days', 'local'); END $$;
CREATE PROCEDURE test.ask(at text) LANGUAGE sql AS $$
    INSERT INTO test.answer SELECT at, s.scope, c.decision, c.attempt, c.reason, (test.would_claim('long over', '2', s.scope)).decision
      FROM unnest(ARRAY['default', 'keyed', 'local']) AS s (scope), test.would_claim('long over', '1', s.scope) AS c;
$$;
CALL test.ask('before');
SELECT sum(leases_ended) AS leases_ended FROM test.pass();
CALL test.ask('after');
SELECT b.scope, b.decision, (b.decision, b.attempt, b.reason, b.other_arguments) IS NOT DISTINCT FROM (a.decision, a.attempt, a.reason, a.other_arguments) AS as_before
  FROM test.answer AS b JOIN test.answer AS a USING (scope) WHERE b.at = 'before' AND a.at = 'after' ORDER BY 1;
ROLLBACK;

-- CALL idempotency.sweep() commits after each batch, so it cannot run inside a transaction.
SELECT fence FROM idem_claim('over', lease => '1 minute') \gset
CALL test.age('over', '1 hour');
BEGIN;
CALL idempotency.sweep();
\echo :SQLSTATE
ROLLBACK;
SET idempotency.sweep_batch = 1;
CALL idempotency.sweep();
-- A background worker may be at it and not have committed.
DO $$ BEGIN WHILE (SELECT state FROM idem_peek('over')) = 'in_flight' LOOP PERFORM pg_sleep(0.001); END LOOP; END $$;
SELECT state FROM idem_peek('over');
RESET idempotency.sweep_batch;
-- A sweep that is rolled back is done again.
BEGIN;
SELECT decision, idem_complete('rolled back', '1') FROM idem_claim('rolled back');
CALL test.age('rolled back', '31 days');
SAVEPOINT a;
SELECT sum(outcomes_pruned) AS outcomes_pruned FROM test.pass();
ROLLBACK TO a;
SELECT sum(outcomes_pruned) AS outcomes_pruned FROM test.pass();
ROLLBACK;
