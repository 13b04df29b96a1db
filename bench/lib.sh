# shellcheck shell=bash
# What the workloads share: lines that are measured round by round beside each other, tables, targets. Sourced by
# scripts/bench.sh. Nothing here judges: a target that is missed is printed as missed, and the run goes on.
#
# A workload calls `begin`, then `line` for each contender, then `rounds`. In every round each line runs once, in this
# order and in the next round backwards, so that what else the machine does meets all of them. Ratios are made within a
# round; the median of the rounds is what counts.

CONTENDERS=$ROOT/bench/contenders
RESULTS=$ROOT/target/bench
BENCH_ROUNDS=${BENCH_ROUNDS:-5}
BENCH_SECONDS=${BENCH_SECONDS:-2}
OLD_KEYS=${OLD_KEYS:-100000}
POLLS_MAX=1200

sql() { psql -XqAt -v ON_ERROR_STOP=1 "$@"; }

# until_true QUERY [DATABASE]: polls, with a deadline.
until_true() {
    local polls
    for ((polls = 0; polls < POLLS_MAX; polls++)); do
        [[ $(sql -d "${2:-$PGDATABASE}" -c "$1") != t ]] || return 0
        sleep 0.05
    done
    die "this did not become true: $1"
}

# Prints, and keeps in the table of this run.
tell() { printf '%s\n' "$@" | tee -a "$RESULTS/table.md"; }

# database NAME OLD_KEYS CONTENDER…: a database with the schemas of these contenders, each with that many old keys.
database() {
    local name=$1 old_keys=$2 contender
    shift 2
    createdb "$name"
    for contender in "$@"; do
        sql -d "$name" -v old_keys="$old_keys" -f "$CONTENDERS/$contender.sql" >/dev/null
    done
    sql -d "$name" -c 'VACUUM (ANALYZE)'
}

# begin NAME TITLE: a workload's heading; sets what its lines have in common back to the defaults.
begin() {
    WORKLOAD=$1
    LABELS=() SCRIPTS=() KEYS=() DATABASES=() OPTIONS=()
    CLIENTS=4
    SESSION='-c synchronous_commit=off'
    UNIT='keys/s'
    ROUNDS=$BENCH_ROUNDS
    SECONDS_EACH=$BENCH_SECONDS
    : >"$RESULTS/$WORKLOAD.tsv"
    tell '' "### $2" ''
}

# line LABEL SCRIPT [KEYS_PER_TRANSACTION [DATABASE [OPTION…]]]: one row of the table. The first line is the base.
line() {
    LABELS+=("$1")
    SCRIPTS+=("$CONTENDERS/$2.pgbench")
    KEYS+=("${3:-1}")
    DATABASES+=("${4:-$PGDATABASE}")
    OPTIONS+=("${*:5}")
}

# measure INDEX [OPTION…]: one run of a line. Prints keys per second.
measure() {
    local index=$1 options=()
    shift
    read -ra options <<<"${OPTIONS[index]}"
    PGOPTIONS=$SESSION pgbench -n -M prepared -c "$CLIENTS" -j 2 -T "$SECONDS_EACH" --max-tries=20 -D old_keys="$OLD_KEYS" \
        "${options[@]}" "$@" -f "${SCRIPTS[index]}" "${DATABASES[index]}" >"$RESULTS/pgbench.log" 2>&1 ||
        { cat "$RESULTS/pgbench.log" >&2 && die "pgbench failed: ${LABELS[index]}"; }
    awk -v keys="${KEYS[index]}" '/^tps = / { printf "%.1f\n", $3 * keys }' "$RESULTS/pgbench.log"
}

# record LABEL ROUND VALUE
record() { printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>"$RESULTS/$WORKLOAD.tsv"; }

# rounds: runs all lines in turn, and prints the table.
rounds() {
    local round step index value count=${#LABELS[@]}
    for ((round = 1; round <= ROUNDS; round++)); do
        for ((step = 0; step < count; step++)); do
            index=$((round % 2 ? step : count - 1 - step))
            value=$(measure "$index")
            record "${LABELS[index]}" "$round" "$value"
        done
    done
    table
}

# table [TITLE]: of what this workload has recorded, in the order of its lines.
table() {
    local label
    for label in "${LABELS[@]}"; do awk -F '\t' -v label="$label" '$1 == label' "$RESULTS/$WORKLOAD.tsv"; done |
        awk -v title="${1:-$WORKLOAD}" -v unit="$UNIT" -f "$ROOT/bench/table.awk" | tee -a "$RESULTS/table.md"
}

# ratio LABEL BASE: the median of the ratios of two lines of this workload.
ratio() { awk -v only="$1" -v base="$2" -f "$ROOT/bench/table.awk" "$RESULTS/$WORKLOAD.tsv"; }

# median LABEL
median() { awk -F '\t' -v label="$1" '$1 == label { print $3 }' "$RESULTS/$WORKLOAD.tsv" | sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

# target WHAT at-least|at-most WANTED MEASURED [UNIT]: for the table of targets at the end.
target() {
    awk -v what="$1" -v kind="$2" -v wanted="$3" -v measured="$4" -v unit="${5:-}" 'BEGIN {
        met = kind == "at-least" ? measured >= wanted : measured <= wanted
        printf "| %s | %s %s%s | %.2f%s | %s |\n", what, kind == "at-least" ? "≥" : "≤", wanted, unit, measured, unit, met ? "met" : "missed"
    }' >>"$RESULTS/targets.md"
}

# background_sql SQL: runs it in a session of its own, until end_background. For transactions that are held open.
background_sql() {
    psql -Xq -v ON_ERROR_STOP=1 -c "SET application_name = 'bench_background'" -c "$1" >/dev/null 2>&1 &
    BACKGROUND_PID=$!
}

end_background() {
    sql -c "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'bench_background'" >/dev/null
    wait "$BACKGROUND_PID" 2>/dev/null || true
    until_true "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'bench_background'"
}
