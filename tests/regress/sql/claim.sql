-- idem_claim: transactional and leased claims, every decision, leases exact to the millisecond, wait.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- Transactional: lives in its transaction, stores nothing until it is finished.
BEGIN;
SELECT :claim('t', '{"amount": 5}');
SELECT count(*) FROM idempotency.records;
SELECT :claim('t', '{"amount": 5}');
SELECT idem_complete('t', '{"id": 1}');
SELECT :claim('t', '{"amount": 5}');
COMMIT;
SELECT :claim('t', '{"amount": 5}');
-- A replay is no claim: it leaves nothing to finish, and needs no transaction of one's own.
SELECT count(*) FROM idempotency.claim;

-- A rollback leaves nothing.
BEGIN;
SELECT :claim('rolled back');
ROLLBACK;
SELECT :peek('rolled back');

-- Leased: committed, finished later by its fence.
SELECT :claim('l', lease => '1 minute');
SELECT fence AS first_fence FROM idem_peek('l') \gset
SELECT :claim('l', lease => '1 minute');
SELECT :claim('l');
SELECT idem_complete('l', '2', fence => :first_fence);
SELECT :claim('l', lease => '1 minute');

-- An external lease that ended: it may have happened.
SELECT :claim('x', lease => '1 minute');
SELECT fence AS first_fence FROM idem_peek('x') \gset
CALL test.age('x', '1 minute');
SELECT :claim('x', lease => '1 minute');
SELECT fence > :first_fence AS fence_grew FROM idem_peek('x');

-- In PL/pgSQL, as the documentation shows it.
DO $$
DECLARE c record;
BEGIN
    SELECT * INTO c FROM idem_claim('plpgsql');
    ASSERT c.decision = 'execute';
    PERFORM idem_complete('plpgsql', to_jsonb(c.attempt));
    SELECT * INTO c FROM idem_claim('plpgsql');
    ASSERT c.decision = 'replay' AND c.result = '1';
END
$$;

-- What was declared unknown is reconciled, with the reason that was given.
SELECT fence AS x FROM idem_peek('x') \gset
SELECT idem_fail('x', 'unknown', 'timeout', fence => :x);
BEGIN;
SELECT :claim('x');
SELECT idem_fail('x', 'rejected', 'card declined', '{"code": 51}');
COMMIT;
SELECT :claim('x');

-- What provably did not happen is executed again.
BEGIN;
SELECT :claim('n');
SELECT idem_fail('n', 'not_applied', 'connection refused');
COMMIT;
BEGIN;
SELECT :claim('n');
SELECT idem_complete('n');
COMMIT;
SELECT :claim('n');

-- A call issued before the window is expired, unless its record is there.
SELECT :claim('old', issued_at => clock_timestamp() - interval '30 days 1 second');
SELECT :claim('t', '{"amount": 5}', issued_at => clock_timestamp() - interval '30 days 1 second');
BEGIN;
SELECT :claim('old', issued_at => clock_timestamp() - interval '30 days' + interval '1 minute');
ROLLBACK;
CALL test.age('t', '30 days');
SELECT :claim('t', '{"amount": 5}', issued_at => clock_timestamp() - interval '31 days');
-- Past its window a key is free, with any arguments.
BEGIN;
SELECT :claim('t', '{"amount": 6}');
ROLLBACK;

-- Fences are microseconds since 1970, grow with every claim, and fit a JavaScript number.
SELECT fence AS r1 FROM idem_claim('fence', lease => '1 minute') \gset
SELECT abs(:r1 - extract(epoch FROM clock_timestamp()) * 1000000) < 60000000 AS microseconds, :r1 < 2::numeric ^ 53 AS fits;
UPDATE idempotency.claim SET fence = fence + 3600000000 WHERE key = 'fence';
CALL test.age('fence', '1 minute');
BEGIN;
SELECT fence - :r1 AS one_more_than_an_hour_ahead FROM idem_claim('fence');
ROLLBACK;

-- A lease is exact to the microsecond and counts from the moment of the claim.
SELECT clock_timestamp() AS before \gset
SELECT v.lease, c.decision, c.lease_expires_at - c.claimed_at = v.lease AS exact,
       c.claimed_at BETWEEN :'before' AND clock_timestamp() AS now
  FROM (VALUES (interval '1 millisecond'), ('999 milliseconds'), ('1.5 seconds'), ('90 seconds'), ('1 hour')) AS v (lease),
       idem_claim('lease of ' || v.lease, lease => v.lease) AS c;
-- Also late in a long transaction.
BEGIN;
CALL test.wait_until(now() + '30 milliseconds');
SELECT lease_expires_at >= now() + interval '1.03 seconds' AS full_length, lease_expires_at - claimed_at AS lease
  FROM idem_claim('late', lease => '1 second');
COMMIT;
-- A lease holds to its end and not longer.
SELECT lease_expires_at AS until FROM idem_claim('short', lease => '50 milliseconds') \gset
BEGIN;
SELECT decision, claimed_at >= :'until' AS after_the_lease, claimed_at < :'until'::timestamptz + interval '10 seconds' AS soon
  FROM idem_claim('short', wait => '30 seconds');
ROLLBACK;

-- Leases that cannot be meant.
SELECT array_agg(v.lease) AS leases, answer
  FROM (VALUES ('0'), ('-1 second'), ('999 microseconds'), ('1 hour 1 microsecond'), ('1 day'), ('1 month'), ('30000'),
               ('1 month -30 days'), ('100000 years'), ('-178000000 years')) AS v (lease),
       test.try(format('SELECT idem_claim(%L, lease => %L)', 'bad lease', v.lease)) AS answer
 GROUP BY answer \gx
SELECT :peek('bad lease');

-- wait: '0' and, for a lease, NULL answer at once; an interval is waited for.
SELECT decision FROM idem_claim('w', lease => '1 hour');
SELECT clock_timestamp() AS before \gset
SELECT :claim('w', wait => '0');
SELECT :claim('w');
SELECT clock_timestamp() - :'before' < '5 seconds' AS at_once;
SELECT clock_timestamp() AS before \gset
SELECT :claim('w', wait => '60 milliseconds');
SELECT clock_timestamp() - :'before' BETWEEN '60 milliseconds' AND '20 seconds' AS waited;
-- Nobody waits for himself.
BEGIN;
SELECT :claim('self', lease => '1 hour');
SELECT :claim('self', wait => '1 hour');
SELECT :claim('self, transactional');
SELECT :claim('self, transactional', wait => '1 hour');
SELECT clock_timestamp() - now() < '20 seconds' AS at_once;
ROLLBACK;
SELECT array_agg(v.wait) AS waits, answer
  FROM (VALUES ('-1 millisecond'), ('-100000 years'), ('178000000 years')) AS v (wait),
       test.try(format('SELECT idem_claim(%L, wait => %L)', 'bad wait', v.wait)) AS answer
 GROUP BY answer \gx

-- A run is kept with its key.
SELECT decision FROM idem_claim('r', lease => '1 minute', run => 'agent/7');
SELECT run FROM idem_peek('r');
SELECT test.try(format('SELECT idem_claim(%L, run => %L)', 'bad run', v.run))
  FROM (VALUES (''), (repeat('r', 1025))) AS v (run);
SELECT array_agg(v.at) AS times, answer
  FROM (VALUES ('infinity'), ('-infinity')) AS v (at),
       test.try(format('SELECT idem_claim(%L, issued_at => %L)', 'bad time', v.at)) AS answer
 GROUP BY answer \gx
