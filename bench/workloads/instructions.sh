# shellcheck shell=bash
# Instructions in user space of one operation, counted by callgrind in a single-user server: the same from run to run, and
# no other job of the machine changes them. An operation is one turn of a loop in a procedure, with its COMMIT; the bare
# loop is the first line. valgrind knows no SHA instructions, so digests count more here than they cost.
# The server of the other workloads is stopped meanwhile.
TURNS=2000
if ! command -v valgrind >/dev/null; then
    say "no valgrind: instructions are not counted"
    return 0
fi
begin instructions 'Instructions per operation, counted by callgrind'
UNIT='instructions'
kinds=(
    "the loop and its COMMIT|NULL"
    "SELECT by primary key in a function|decision FROM bare_answer('old-' || n)"
    "idem_claim, replay|decision FROM idem_claim('old-' || n)"
    "idem_claim with arguments, replay|decision FROM idem_claim('args-' || n, jsonb_build_object('order', n, 'amount', 5))"
    "bare effect|bare_credit(n, 5)"
    "2 one PL/pgSQL function|function_credit('count-' || n + turn, n, 5)"
    "4 advisory lock and table|advisory_credit('count-' || n + turn, n, 5)"
    "ours: one function|ours_credit('count-' || n + turn, n, 5)"
    "ours: one function, no arguments|ours_credit_plain('count-p-' || n + turn, n, 5)"
    "ours: claim + complete, no effect|ours_record('count-r-' || n + turn, '{\"credited\": 5}')"
    "ours: leased claim|decision FROM idem_claim('count-l-' || n + turn, lease => '1 minute')"
)
for kind in "${!kinds[@]}"; do
    LABELS+=("${kinds[kind]%%|*}")
    for doing in FUNCTION:warm PROCEDURE:turn; do
        sql -c "CREATE OR REPLACE ${doing%:*} instructions_${doing#*:}_$kind(turns int, turn int) $([[ $doing == PROCEDURE* ]] || echo 'RETURNS void') LANGUAGE plpgsql AS \$\$
            BEGIN
                FOR n IN 1..turns LOOP
                    PERFORM ${kinds[kind]#*|};
                    $([[ $doing != PROCEDURE* ]] || echo 'COMMIT;')
                END LOOP;
            END \$\$"
    done
done
sql -c CHECKPOINT
cluster_stop
for kind in "${!kinds[@]}"; do
    # Collected only inside the CALL; before it, the same statements warm the caches of the session up.
    as_pg sh -c "printf '%s\n' 'SELECT instructions_warm_$kind(200, 1000000)' 'CALL instructions_turn_$kind($TURNS, 3000000)' |
        valgrind --tool=callgrind --collect-atstart=no --toggle-collect=ExecuteCallStmt --callgrind-out-file='$CLUSTER_DIR/callgrind.$kind' \
            '$PG_BINDIR/postgres' --single -D '$CLUSTER_DIR/data' -c synchronous_commit=off bench" >"$RESULTS/callgrind.log" 2>&1 ||
        { cat "$RESULTS/callgrind.log" >&2 && die "callgrind failed"; }
    # For callgrind_annotate.
    cp "$CLUSTER_DIR/callgrind.$kind" "$RESULTS/callgrind.$kind"
    record "${LABELS[kind]}" 1 "$(awk -v turns="$TURNS" '/^(summary|totals):/ { printf "%.0f", $2 / turns; exit }' "$CLUSTER_DIR/callgrind.$kind")"
done
cluster_start
table
