#!/usr/bin/env bash
# Runs the named suites (unit, fuzz-smoke, model, regress, isolation, chaos, tap), all of them even if one fails, and ends with one
# line that sums them up: 'N passed, N failed'. What a suite printed stays in target/test-results.
# shellcheck source=scripts/cluster.sh
source "$(dirname "$0")/cluster.sh"
# shellcheck source=scripts/regress.sh
source "$(dirname "$0")/regress.sh"
pg_resolve

FUZZ_SECONDS=${FUZZ_SECONDS:-20}
TAP_FILE_SECONDS_MAX=900
RESULTS_DIR=$TARGET_DIR/test-results

passed=0 failed=0 skipped=0

# count SUITE PASSED FAILED [SKIPPED]
count() {
    passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + ${4:-0}))
    say "$1: $2 ok, $3 not ok"
}

matches() { grep -cE "$1" "$2" || true; }

# --- unit -------------------------------------------------------------------------------------------------------

suite_unit() {
    local log=$RESULTS_DIR/unit.log status=0 ok bad
    cargo test -p idempotency-core -p idempotency-report 2>&1 | tee "$log" || status=$?
    ok=$(sed -nE 's/^test result: .* ([0-9]+) passed.*/\1/p' "$log" | awk '{ n += $1 } END { print n + 0 }')
    bad=$(sed -nE 's/^test result: .* ([0-9]+) failed.*/\1/p' "$log" | awk '{ n += $1 } END { print n + 0 }')
    ((status == 0 || bad > 0)) || bad=1
    count unit "$ok" "$bad"
}

# --- fuzz-smoke -------------------------------------------------------------------------------------------------

suite_fuzz_smoke() {
    local log=$RESULTS_DIR/fuzz-smoke.log ok=1 bad=0
    say "fuzzing the canonical form for $FUZZ_SECONDS s, after a build of its own"
    CARGO_TARGET_DIR=$TARGET_DIR/fuzz sh crates/core/fuzz/run.sh "$FUZZ_SECONDS" >"$log" 2>&1 || ok=0 bad=1
    if ((bad > 0)); then tail -n 80 "$log"; else grep number_of_executed_units "$log" || true; fi
    count fuzz-smoke "$ok" "$bad"
}

# --- model ------------------------------------------------------------------------------------------------------

suite_model() {
    local log=$RESULTS_DIR/model.log status=0 ok bad names=()
    read -ra names <<<"${TESTS:-}"
    tests/model/run.sh "$RESULTS_DIR/model" "${names[@]}" 2>&1 | tee "$log" || status=$?
    ok=$(matches '^ok ' "$log")
    bad=$(matches '^not ok ' "$log")
    # None of its cases may be among those that are asked for by name.
    ((status == 0 && ok + ${#names[@]} > 0 || bad > 0)) || bad=1
    count model "$ok" "$bad"
}

# --- chaos ------------------------------------------------------------------------------------------------------

suite_chaos() {
    local log=$RESULTS_DIR/chaos.log status=0 ok bad
    rm -rf "$RESULTS_DIR/chaos"
    CHAOS_KEEP=$RESULTS_DIR/chaos scripts/chaos.sh "$((${MINUTES:-1} * 60))" 2>&1 | tee "$log" || status=$?
    ok=$(matches '^ok ' "$log")
    bad=$(matches '^not ok ' "$log")
    ((status == 0 && ok > 0 || bad > 0)) || bad=1
    count chaos "$ok" "$bad"
}

# --- regress and isolation --------------------------------------------------------------------------------------

# A cluster made for tests: nothing is worth a sync, a prepared transaction is possible.
test_cluster() {
    cluster_create "fsync = off" "max_prepared_transactions = 20" "$@"
    cluster_start
}

# No test may crash a backend or make it say XX000 (internal error), which is also what a Rust panic becomes.
check_server_log() {
    local label=$1 log=$CLUSTER_DIR/server.log
    cp "$log" "$RESULTS_DIR/$label/server.log"
    if grep -nE ' XX000 |PANIC: |TRAP: |was terminated by signal|stack backtrace' "$log"; then
        count "$label server log" 0 1
    else
        count "$label server log" 1 0
    fi
}

# The files are copied to where the server's user can read them, and the results back to where ours can.
pg_regress_suite() { # pg_regress_suite SUITE LABEL SQL-OR-SPEC-FOLDER SUFFIX
    local suite=$1 label=$2 folder=$3 suffix=$4 status=0 ok bad test tests command
    local work=$CLUSTER_DIR/$suite out=$RESULTS_DIR/$label
    mapfile -t tests < <(regress_tests "tests/$suite/$folder" "$suffix")
    ((${#tests[@]} > 0)) || { say "$label: no test" && return; }
    rm -rf "$out"
    mkdir -p "$out"
    cp -rL "tests/$suite" "$work"
    # Without its expected file a new test would stop the whole run instead of showing its output as a difference.
    mkdir -p "$work/expected"
    for test in "${tests[@]}"; do
        [[ -e $work/expected/$test.out ]] || touch "$work/expected/$test.out"
    done
    ((EUID != 0)) || chown -R postgres: "$work"
    regress_command "$suite" "$work" "$work" "${OLD_SQL:-}"
    as_pg env RUST_BACKTRACE=1 PGISOLATIONTIMEOUT=180 "${command[@]}" "${tests[@]}" 2>&1 | tee "$out/output" || status=$?
    cp -r "$work/results" "$out/" 2>/dev/null || true
    cp "$work/regression.diffs" "$out/" 2>/dev/null || true
    # "test name ... ok" up to PostgreSQL 15, TAP from 16 on.
    ok=$(matches '^(test .*|\s+.*)\.\.\. ok\b|^ok +[0-9]+' "$out/output")
    bad=$(matches '\.\.\. FAILED\b|^not ok +[0-9]+' "$out/output")
    ((status == 0 || bad > 0)) || bad=1
    if ((bad > 0)) && [[ -n ${ACCEPT:-} ]]; then
        accept_results "$suite" "$work" "${tests[@]}"
    elif [[ -s $out/regression.diffs ]]; then
        cat "$out/regression.diffs"
    fi
    count "$label" "$ok" "$bad"
    check_server_log "$label"
}

accept_results() {
    local suite=$1 work=$2 test
    shift 2
    mkdir -p "tests/$suite/expected"
    for test in "$@"; do
        if [[ -e $work/results/$test.out ]] && ! cmp -s "$work/results/$test.out" "tests/$suite/expected/$test.out"; then
            say "accepted as expected: tests/$suite/expected/$test.out"
            cat "$work/results/$test.out" >"tests/$suite/expected/$test.out"
        fi
    done
}

# Twice: whether the library is preloaded must not change an answer.
suite_regress() {
    test_cluster
    pg_regress_suite regress regress sql .sql
    cluster_destroy
    [[ -z ${ACCEPT:-} ]] || return 0
    test_cluster "shared_preload_libraries = 'idempotency'"
    pg_regress_suite regress regress-preloaded sql .sql
    cluster_destroy
    for script in sql/released/idempotency--*.sql; do
        script=${script#sql/released/idempotency--}
        suite_regress_old "${script%.sql}"
    done
}

# Tests of what is newer than a released version, or different in it.
declare -A NEWER_THAN=([0.1.0]='catalogue doctor failure_kinds late look natural_key')

# The library of today with the SQL objects of a released version: nobody updates all databases at once.
suite_regress_old() {
    local version=$1 tests newer
    read -ra newer <<<"${NEWER_THAN[$version]:-}"
    mapfile -t tests < <(regress_tests tests/regress/sql .sql | grep -vxF "$(printf '%s\n' "${newer[@]:-}")")
    ((${#tests[@]} > 0)) || return 0
    test_cluster
    cluster_env postgres
    "$PG_BINDIR/psql" -Xqc 'CREATE DATABASE contrib_regression TEMPLATE template0'
    "$PG_BINDIR/psql" -Xqd contrib_regression -c "CREATE EXTENSION idempotency VERSION '$version'"
    OLD_SQL=$version TESTS="${tests[*]}" pg_regress_suite regress "regress-sql-$version" sql .sql
    cluster_destroy
}

suite_isolation() {
    test_cluster
    pg_regress_suite isolation isolation specs .spec
    cluster_destroy
}

# --- tap --------------------------------------------------------------------------------------------------------

suite_tap() {
    local ok=0 bad=0 skip=0 name file_ok file_bad file_skip out=$RESULTS_DIR/tap work names
    mapfile -t names < <(regress_tests tests/tap .pl)
    rm -rf "$out"
    mkdir -p "$out"
    # These tests make their own clusters; ours is only the folder, removed by the same trap.
    CLUSTER_DIR=$(pg_tmpdir)
    work=$CLUSTER_DIR/tap
    cp -rL tests/tap "$work"
    ((EUID != 0)) || chown -R postgres: "$work"
    for name in "${names[@]}"; do
        local log=$out/$name.log status=0 start=$SECONDS
        tap_file "$work" "$name" >"$log" 2>&1 || status=$?
        file_skip=$(matches '^ok [0-9]+.* # skip' "$log")
        file_ok=$(($(matches '^ok [0-9]+' "$log") - file_skip))
        file_bad=$(grep -E '^not ok [0-9]+' "$log" | grep -cvE '# TODO' || true)
        ((status == 0 || file_bad > 0)) || file_bad=1
        ((status != 0 || file_ok + file_skip > 0)) || file_skip=1
        printf '%-40s %s (%d tests, %d s)\n' "$name" "$( ((file_bad == 0)) && echo ok || echo FAILED)" \
            $((file_ok + file_bad + file_skip)) $((SECONDS - start))
        ((file_bad == 0)) || show_tap_failure "$work" "$name" "$log"
        ok=$((ok + file_ok)) bad=$((bad + file_bad)) skip=$((skip + file_skip))
    done
    cp -r "$work/tmp_check/log" "$out/server-logs" 2>/dev/null || true
    cluster_destroy
    count tap "$ok" "$bad" "$skip"
}

tap_file() {
    local work=$1 name=$2
    # shellcheck disable=SC2016
    as_pg env RUST_BACKTRACE=1 PATH="$PG_BINDIR:$PATH" PG_REGRESS="$PG_TESTLIB/regress/pg_regress" \
        TESTDIR="$work" TESTDATADIR="$work/tmp_check" TESTLOGDIR="$work/tmp_check/log" \
        PG_TEST_TIMEOUT_DEFAULT=180 PG_TEST_PORT_DIR="$work" TMPDIR="$CLUSTER_DIR" \
        bash -c 'cd "$1" && exec timeout --foreground -k 60 "$2" prove --verbose -I lib -I "$3" "$4"' - \
        "$work" "$TAP_FILE_SECONDS_MAX" "$PG_TESTLIB/perl" "$name.pl"
}

show_tap_failure() {
    local work=$1 name=$2 log=$3 file
    tail -n 100 "$log"
    for file in "$work"/tmp_check/log/"$name"*.log; do
        [[ ! -e $file ]] || { printf -- '--- %s\n' "${file##*/}" && tail -n 60 "$file"; }
    done
}

# ----------------------------------------------------------------------------------------------------------------

mkdir -p "$RESULTS_DIR"
cluster_destroy_at_exit
installed=
start=$SECONDS
for suite in "$@"; do
    case $suite in
        regress | isolation | chaos | tap)
            [[ -n $installed ]] || { scripts/install.sh && installed=1; }
            ;;
    esac
    say "suite $suite"
    case $suite in
        unit) suite_unit ;;
        fuzz-smoke) suite_fuzz_smoke ;;
        model) suite_model ;;
        regress) suite_regress ;;
        isolation) suite_isolation ;;
        chaos) suite_chaos ;;
        tap) suite_tap ;;
        *) die "unknown suite: $suite" ;;
    esac
done
say "$# suites in $((SECONDS - start)) s; details are in $RESULTS_DIR"
summary="$passed passed, $failed failed"
((skipped == 0)) || summary+=", $skipped skipped"
printf '%s\n' "$summary"
((failed == 0))
