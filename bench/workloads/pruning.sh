# shellcheck shell=bash
# New keys while the worker prunes old ones at the rate at which new ones come: in steady state as many keys come to the
# end of their window as are finished. Both lines begin with the same old rows, which come due one after the other.
begin pruning 'New keys while old ones are pruned at the same rate, one function, 4 clients'
SECONDS_EACH=$((BENCH_SECONDS * 3))
LABELS=('worker off' 'worker on: pruning')
SCRIPTS=("$CONTENDERS/6_ours_function.new.pgbench" "$CONTENDERS/6_ours_function.new.pgbench")
KEYS=(1 1) DATABASES=("$PGDATABASE" "$PGDATABASE") OPTIONS=('' '')
sql -c "SELECT idem_scope_set('old', dedup_window => '1 hour')" >/dev/null
old="(SELECT id FROM idempotency.scope WHERE name = 'old')"

worker() {
    sql -c "ALTER SYSTEM SET idempotency.worker = $1" -c 'SELECT pg_reload_conf()' >/dev/null
    [[ $1 == on ]] || until_true "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type LIKE 'idempotency%' AND state = 'active'"
}

left() { sql -c "SELECT count(*) FROM idempotency.outcome WHERE scope_id = $old"; }

rate=$(measure 0)
pruned=()
for ((round = 1; round <= ROUNDS; round++)); do
    for ((step = 0; step < 2; step++)); do
        index=$((round % 2 ? step : 1 - step))
        sql -c "DELETE FROM idempotency.outcome WHERE scope_id = $old" -c 'DELETE FROM idempotency.prune_progress' \
            -c "INSERT INTO idempotency.outcome (digest, finished_at, fence, scope_id, attempt, args_rule, state, key)
                SELECT gen_random_uuid(), clock_timestamp() - interval '1 hour' + n / $rate * interval '1 second', n, $old, 1, 0, 'c', 'old-' || n
                FROM generate_series(1, ($rate * $SECONDS_EACH * 1.5)::int) AS n" \
            -c 'VACUUM idempotency.outcome'
        before=$(left)
        ((index == 0)) || worker on
        value=$(measure "$index")
        ((index == 0)) || worker off
        record "${LABELS[index]}" "$round" "$value"
        ((index == 0)) || pruned+=($(((before - $(left)) / SECONDS_EACH)))
    done
done
table
tell '' "Rows came due at ${rate%.*}/s, and were pruned at $(printf '%s\n' "${pruned[@]}" | sort -g | paste -sd ' ')/s."
target 'throughput with pruning at the insert rate' at-least 0.9 "$(ratio 'worker on: pruning' 'worker off')"
