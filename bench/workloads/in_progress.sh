# shellcheck shell=bash
# Requests whose key somebody else works on, and who do not wait: under a lease, or in a transaction that is open.
# Contender 2 has no such answer: its callers wait.
begin in_progress 'In-progress answers, 4 clients'
sql -c "SELECT count(*) FROM idem_claim_many(ARRAY(SELECT 'busy-' || n FROM generate_series(1, 1000) AS n), lease => '1 hour')" >/dev/null
background_sql "BEGIN; SELECT count(*) FROM idem_claim_many(ARRAY(SELECT 'held-' || n FROM generate_series(1, 1000) AS n));
    SELECT count(pg_advisory_xact_lock(hashtextextended('held-' || n, 0))) FROM generate_series(1, 1000) AS n; SELECT pg_sleep(86400)"
until_true "SELECT count(*) >= 2000 FROM pg_locks WHERE locktype = 'advisory'"
line '0 SELECT by primary key in a function' 0_bare.replay
line '3 recovery points: the key is locked' 3_recovery.busy
line '4 advisory lock: not free' 4_advisory.busy
line '6 ours: under a lease' 6_ours_claim.busy
line '6 ours: in an open transaction' 6_ours_held.busy
rounds
end_background
sql -c 'DELETE FROM idempotency.claim'
