# shellcheck shell=bash
# Leased claims of new keys, one at a time and many in a call: the claims alone, without effect or completion.
# A leased claim is on disk before it is answered, whatever synchronous_commit says. To see what the CPU alone does,
# fsync is off in the first part.
fsync() { sql -c "ALTER SYSTEM SET fsync = $1" -c 'SELECT pg_reload_conf()' >/dev/null; }

claims() {
    line 'idem_claim' 6_ours_claim.claim
    line 'idem_claim_many, 100 keys' 6_ours_many100.claim 100
    line 'idem_claim_many, 1,000 keys' 6_ours_many1000.claim 1000
    rounds
    sql -c 'TRUNCATE idempotency.claim'
}

begin batches 'Claims of new keys under a lease, fsync off, 4 clients'
fsync off
claims
fsync on
target 'idem_claim_many, 1,000 keys, to single claims, per key, fsync off' at-least 5 "$(ratio 'idem_claim_many, 1,000 keys' 'idem_claim')"
begin batches_durable 'Claims of new keys under a lease, fsync on, 8 clients'
CLIENTS=8
claims
target 'idem_claim_many, 1,000 keys, to single claims, per key, fsync on' at-least 5 "$(ratio 'idem_claim_many, 1,000 keys' 'idem_claim')"
