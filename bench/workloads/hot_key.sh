# shellcheck shell=bash
# 64 callers with one new key at one moment; the effect takes 50 ms. What each waits until it has its answer.
begin hot_key 'One hot key, 64 callers at once, an effect of 50 ms: time to the answer'
CLIENTS=64
PAUSE_S=0.05
UNIT='ms'
line '2 one PL/pgSQL function' 2_function.hot
line '4 advisory lock and table' 4_advisory.hot
line '6 ours: one function' 6_ours_function.hot
line '6 ours: idem_once' 6_ours_once.hot

# hot INDEX ROUND: records the median and the slowest of 64 callers, in milliseconds.
hot() {
    local log=$RESULTS/hot pgbench
    rm -f "$log".*
    background_sql "SELECT pg_advisory_lock(64); SELECT pg_sleep(86400)"
    until_true "SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 64 AND granted"
    PGOPTIONS=$SESSION pgbench -n -M prepared -c "$CLIENTS" -j 2 -t 2 -D phase=0 -D round="$2" -D pause_s="$PAUSE_S" \
        -l --log-prefix="$log" -f "${SCRIPTS[$1]}" >"$RESULTS/pgbench.log" 2>&1 &
    pgbench=$!
    until_true "SELECT count(*) = $CLIENTS FROM pg_locks WHERE locktype = 'advisory' AND objid = 64 AND NOT granted"
    end_background
    wait "$pgbench" || { cat "$RESULTS/pgbench.log" >&2 && die "pgbench failed: ${LABELS[$1]}"; }
    # The second transaction of each caller.
    awk '$2 == 1 { print $3 / 1000 }' "$log".* | sort -g >"$RESULTS/hot.ms"
    record "${LABELS[$1]}" "$2" "$(awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }' "$RESULTS/hot.ms")"
    record "${LABELS[$1]}, the slowest" "$2" "$(tail -n 1 "$RESULTS/hot.ms")"
    rm -f "$log".*
}

for ((round = 1; round <= ROUNDS; round++)); do
    for ((step = 0; step < ${#LABELS[@]}; step++)); do
        hot $((round % 2 ? step : ${#LABELS[@]} - 1 - step)) "$round"
    done
done
mapfile -t LABELS < <(for label in "${LABELS[@]}"; do printf '%s\n' "$label" "$label, the slowest"; done)
table
target 'hot key, 64 callers, 50 ms effect: answered, median' at-most 120 "$(median '6 ours: one function')" ' ms'
target 'the same, the slowest of the 64' at-most 120 "$(median '6 ours: one function, the slowest')" ' ms'
