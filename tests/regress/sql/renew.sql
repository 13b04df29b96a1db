-- idem_renew: the lease ends that long from now; late renewal before and after a sweep, in every effect kind.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

SELECT idem_scope_set('local', effect_kind => 'local');
SELECT idem_scope_set('keyed', effect_kind => 'keyed');

-- It returns the end of the lease, exactly, counted from now; a lease may become shorter too.
SELECT fence FROM idem_claim('l', lease => '1 hour') \gset
SELECT clock_timestamp() AS before \gset
SELECT idem_renew('l', '90.5 seconds', fence => :fence) AS until \gset
SELECT :'until'::timestamptz - interval '90.5 seconds' BETWEEN :'before' AND clock_timestamp() AS from_now,
       lease_expires_at = :'until' AS stored, fence = :fence AS same_fence, attempt
  FROM idem_peek('l');
-- In the transaction that claimed, and of what nobody holds.
BEGIN;
SELECT fence FROM idem_claim('here', lease => '1 minute') \gset
SELECT idem_renew('here', '2 minutes', fence => :fence) - clock_timestamp() > '1 minute' AS renewed;
COMMIT;
SELECT state, lease_expires_at - claimed_at > '1 minute' AS renewed FROM idem_peek('here');
SELECT test.try($$ SELECT idem_renew('absent', '1 minute') $$);
SELECT test.try($$ SELECT idem_renew('absent', '1 minute', fence => 7) $$);
SELECT test.try($$ SELECT idem_renew('l', '1 minute') $$);
SELECT test.try($$ SELECT idem_renew('l', '1 minute', fence => 7) $$);
BEGIN;
SELECT decision FROM idem_claim('t');
SELECT test.try($$ SELECT idem_renew('t', '1 minute') $$);
ROLLBACK;

-- Leases that cannot be meant.
SELECT fence FROM idem_claim('bad', lease => '1 hour') \gset
SELECT array_agg(lease) AS leases, answer
  FROM unnest(ARRAY[NULL, '0', '-1 second', '1 hour 1 microsecond', '1 month']) AS lease,
       test.try(format('SELECT idem_renew(%L, %L, fence => %s)', 'bad', lease, :fence)) AS answer
 GROUP BY answer ORDER BY answer \gx

-- What was declared unknown or is finished has no lease any more.
SELECT idem_fail('bad', 'unknown', fence => :fence);
SELECT test.try(format($$ SELECT idem_renew('bad', '1 minute', fence => %s) $$, :fence));
SELECT idem_complete('bad', fence => :fence);
SELECT test.try(format($$ SELECT idem_renew('bad', '1 minute', fence => %s) $$, :fence));

-- The last owner may be late, before a sweep and after it alike: the key is in flight again under the same fence.
CREATE TABLE test.late AS
    SELECT s.scope, w.swept, s.scope || CASE WHEN w.swept THEN ', swept' ELSE '' END AS key, NULL::bigint AS fence
      FROM unnest(ARRAY['default', 'keyed', 'local']) AS s (scope), (VALUES (true), (false)) AS w (swept);
UPDATE test.late SET fence = (idem_claim(key, '"args"', scope, '1 minute', run => 'run')).fence;
CREATE PROCEDURE test.age_all(swept_ones bool) LANGUAGE plpgsql AS $$
DECLARE l record;
BEGIN
    FOR l IN SELECT * FROM test.late WHERE swept = swept_ones LOOP
        CALL test.age(l.key, '1 hour', l.scope);
    END LOOP;
END
$$;
CALL test.age_all(true);
CALL idempotency.sweep();
SELECT l.scope, p.state, p.attempt, p.reason, p.run FROM test.late AS l, idem_peek(l.key, l.scope) AS p
 WHERE l.swept ORDER BY l.key;
CALL test.age_all(false);
SELECT key, idem_renew(key, '1 minute', scope, fence) > clock_timestamp() AS renewed FROM test.late ORDER BY key;
SELECT l.key, p.state, p.attempt, p.reason, p.run, p.fence = l.fence AS same_fence
  FROM test.late AS l, idem_peek(l.key, l.scope) AS p ORDER BY l.key;
SELECT l.key, c.decision FROM test.late AS l, idem_claim(l.key, '"args"', l.scope) AS c ORDER BY l.key;
SELECT array_agg(l.key ORDER BY l.key) AS keys, regexp_replace(answer, 'key "[^"]*" in scope "[^"]*"', 'key ...') AS answer
  FROM test.late AS l, test.try(format('SELECT idem_claim(%L, %L, %L)', l.key, '"other"', l.scope)) AS answer
 GROUP BY 2 \gx
SELECT l.key, idem_complete(l.key, '1', l.scope, l.fence) FROM test.late AS l ORDER BY l.key;

-- Where somebody claimed since, renewing is how the old owner learns of it.
SELECT fence FROM idem_claim('lost', '"args"', 'local', '1 minute') \gset
CALL test.age('lost', '1 hour', 'local');
SELECT :claim('lost', '"args"', 'local', '1 minute');
SELECT test.try(format($$ SELECT idem_renew('lost', '1 minute', 'local', %s) $$, :fence));
SELECT fence FROM idem_claim('lost, swept', '"args"', 'local', '1 minute') \gset
CALL test.age('lost, swept', '1 hour', 'local');
CALL idempotency.sweep();
SELECT :claim('lost, swept', '"args"', 'local', '1 minute');
SELECT test.try(format($$ SELECT idem_renew('lost, swept', '1 minute', 'local', %s) $$, :fence));
-- A transactional claim that commits nothing does not count: the owner goes on.
SELECT fence FROM idem_claim('kept', scope => 'local', lease => '1 minute') \gset
CALL test.age('kept', '1 hour', 'local');
BEGIN;
SELECT :claim('kept', scope => 'local');
ROLLBACK;
SELECT idem_renew('kept', '1 minute', 'local', :fence) > clock_timestamp() AS renewed;

-- A lease renewed late that ends again means what it meant the first time.
SELECT fence FROM idem_claim('again', scope => 'local', lease => '1 minute') \gset
CALL test.age('again', '1 hour', 'local');
CALL idempotency.sweep();
SELECT idem_renew('again', '1 minute', 'local', :fence) > clock_timestamp() AS renewed;
CALL test.age('again', '1 hour', 'local');
BEGIN;
SELECT :claim('again', scope => 'local');
ROLLBACK;
