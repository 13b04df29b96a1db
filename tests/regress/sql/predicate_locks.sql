-- SERIALIZABLE: a claim takes no predicate lock on a page or a table of ours, however full the tables are and whatever the planner
-- thinks of them, so callers with different keys have nothing to fail each other by.
--
-- Goes red if a probe read with an MVCC snapshot (engine/record.rs, probe), or through the executor.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- 20,000 outcomes and 2,000 open claims, with statistics.
CREATE PROCEDURE test.fill() LANGUAGE plpgsql AS $$
DECLARE
    keys text[];
    fences bigint[];
BEGIN
    FOR batch IN 0 .. 21 LOOP
        keys := ARRAY(SELECT 'old ' || n FROM generate_series(batch * 1000 + 1, batch * 1000 + 1000) AS n);
        SELECT array_agg(fence ORDER BY ord) INTO fences FROM idem_claim_many(keys, lease => '1 hour');
        COMMIT;
        IF batch < 20 THEN
            PERFORM idem_complete_many(keys, fences => fences);
            COMMIT;
        END IF;
    END LOOP;
END
$$;
CALL test.fill();
SELECT state, count(*) FROM idempotency.records GROUP BY 1 ORDER BY 1;
ANALYZE idempotency.claim, idempotency.outcome;
CREATE TABLE test.effect (key text);
CREATE VIEW test.predicate_locks AS
    SELECT l.locktype, c.relname, count(*) FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
     WHERE l.mode = 'SIReadLock' AND l.pid = pg_backend_pid() AND c.relnamespace = 'idempotency'::regnamespace GROUP BY 1, 2 ORDER BY 1, 2;
BEGIN ISOLATION LEVEL SERIALIZABLE;
-- What such a lock looks like.
SELECT count(*) FROM idempotency.scope;
SELECT * FROM test.predicate_locks WHERE relname = 'scope';
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT c.decision, count(*) FROM generate_series(1, 200) AS n, idem_claim('new ' || n) AS c GROUP BY 1;
INSERT INTO test.effect SELECT 'new ' || n FROM generate_series(1, 200) AS n;
SELECT count(idem_complete('new ' || n, '1')) FROM generate_series(1, 200) AS n;
SELECT c.decision, count(*) FROM generate_series(1, 200) AS n, idem_claim('leased ' || n, lease => '1 hour') AS c GROUP BY 1;
SELECT c.decision, count(*) FROM generate_series(1, 300) AS n, idem_claim('old ' || n * 73, lease => '1 hour') AS c GROUP BY 1 ORDER BY 1;
SELECT count(result) FROM generate_series(1, 200) AS n, idem_once('once ' || n, 'SELECT $1', to_jsonb(n));
SELECT count(*) FROM idem_claim_many(ARRAY(SELECT 'many ' || n FROM generate_series(1, 500) AS n), lease => '1 hour');
SELECT count(*) FROM generate_series(1, 50) AS n, idem_enqueue('message ' || n, 'bank', to_jsonb(n));
SELECT * FROM test.predicate_locks;
COMMIT;
SELECT count(*) FROM test.effect;
