# shellcheck shell=bash
# The same work without and with a snapshot that somebody holds for long: nothing that died since can be removed, and
# what scans over dead rows gets slower. Before it is measured each line makes dead rows for as long again, twice.
ROUNDS_SNAPSHOT=$(((BENCH_ROUNDS + 1) / 2))
begin snapshot 'While somebody holds a snapshot'
SECONDS_EACH=$BENCH_SECONDS
names=('6 ours: one function' '6 ours: leased, two transactions' '5 queue: send, read, delete' '6 ours: enqueue, dispatch, complete')
scripts=(6_ours_function.new 6_ours_leased.new 5_queue.cycle 6_ours.cycle)
for index in "${!names[@]}"; do line "${names[index]}" "${scripts[index]}"; done
for ((round = 1; round <= ROUNDS_SNAPSHOT; round++)); do
    sql -c 'VACUUM'
    for index in "${!names[@]}"; do record "${names[index]}" "$round" "$(measure "$index")"; done
    sql -c 'VACUUM'
    background_sql 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM credits LIMIT 1; SELECT pg_sleep(86400)'
    until_true "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'bench_background' AND backend_xmin IS NOT NULL AND wait_event = 'PgSleep'"
    for index in "${!names[@]}"; do measure "$index" >/dev/null && measure "$index" >/dev/null; done
    for index in "${!names[@]}"; do record "${names[index]}, snapshot held" "$round" "$(measure "$index")"; done
    end_background
done
for index in "${!names[@]}"; do
    LABELS=("${names[index]}" "${names[index]}, snapshot held")
    table "$WORKLOAD"
    tell ''
done
sql -c 'VACUUM'
