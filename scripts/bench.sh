#!/usr/bin/env bash
# Measures this extension against what people write themselves, on a throw-away cluster: bench/README.md says how.
# Prints tables, and keeps them, with all that was measured, in target/bench. Nothing is asserted.
#
#   BENCH_ONLY="replays wal"   only these workloads (the files of bench/workloads)
#   BENCH_ROUNDS=5             rounds of each workload
#   BENCH_SECONDS=2            seconds of each line in each round
#   BENCH_FULL=1               also with 20 million old keys
# shellcheck source=scripts/cluster.sh
source "$(dirname "$0")/cluster.sh"
pg_resolve
export PATH=$PG_BINDIR:$PATH
# shellcheck source=bench/lib.sh
source bench/lib.sh

WORKLOADS=(new_keys durable batches replays in_progress hot_key results outbox old_keys pruning snapshot wal disk memory instructions)
SETTINGS=("shared_preload_libraries = 'idempotency'"
    "max_connections = 200"
    "shared_buffers = '2GB'"
    "max_wal_size = '16GB'"
    "checkpoint_timeout = '1h'"
    "idempotency.worker = off"
    "idempotency.naptime = '1s'"
    "idempotency.max_result_bytes = '256kB'")

machine() {
    tell "- Machine: $(nproc) × $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(awk '/^MemTotal/ { printf "%.0f", $2 / 1048576 }' /proc/meminfo) GB; Linux $(uname -r); files on $(findmnt -no FSTYPE -T "$CLUSTER_DIR" || echo 'an unknown file system')." \
        "- $("$PG_BINDIR/postgres" --version), all else as initdb leaves it, UTF-8 and C locale." \
        "- Settings: \`$(printf '%s; ' "${SETTINGS[@]}" | sed 's/; $//')\`." \
        "- $BENCH_ROUNDS rounds of $BENCH_SECONDS seconds, $OLD_KEYS old keys of each contender. Load average at the start: $(cut -d ' ' -f 1-3 /proc/loadavg)."
}

read -ra only <<<"${BENCH_ONLY:-${WORKLOADS[*]}}"
for workload in "${only[@]}"; do
    [[ -f bench/workloads/$workload.sh ]] || die "there is no workload $workload" "these are: ${WORKLOADS[*]}"
done

mkdir -p "$RESULTS"
: >"$RESULTS/table.md"
: >"$RESULTS/targets.md"
cluster_destroy_at_exit
cluster_create "${SETTINGS[@]}"
cluster_start
machine
database bench "$OLD_KEYS" 0_bare 1_client 2_function 3_recovery 4_advisory 5_queue 6_ours
cluster_env bench
sql -c CHECKPOINT

for workload in "${only[@]}"; do
    # shellcheck source=/dev/null
    source "bench/workloads/$workload.sh"
done

if [[ -s $RESULTS/targets.md ]]; then
    tell '' '### Targets' '' '| what | target | measured | |' '|---|---:|---:|---|'
    tee -a "$RESULTS/table.md" <"$RESULTS/targets.md"
fi
