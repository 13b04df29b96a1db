#!/usr/bin/env bash
# The chaos of tests/chaos, in each of its modes, on a throw-away cluster each. Prints lines as in TAP.
#
#   scripts/chaos.sh [SECONDS]     for so long, all modes together (60)
#   CHAOS_SEED=…                   repeats the plan of a seed that was printed before
#   CHAOS_MODES="sync async"       these modes only
#   CHAOS_PLANT=two-transactions   with a fault in the clients, which must be found
#   CHAOS_KEEP=/some/folder        keeps journals and server logs there
# shellcheck source=scripts/cluster.sh
source "$(dirname "$0")/cluster.sh"
pg_resolve

seconds=${1:-60}
seed=${CHAOS_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
read -ra modes <<<"${CHAOS_MODES:-sync async clock}"

# The first python3 that has psycopg.
python_with_psycopg() {
    local python
    for python in $(type -ap python3) /usr/bin/python3; do
        ! "$python" -c 'import psycopg' 2>/dev/null || { printf '%s\n' "$python" && return; }
    done
    die "no python3 here has psycopg" "apt-get install python3-psycopg"
}

keep() { # keep MODE
    [[ -n ${CHAOS_KEEP:-} ]] || return 0
    mkdir -p "$CHAOS_KEEP/$1"
    cp -r "$CLUSTER_DIR/chaos/." "$CHAOS_KEEP/$1/"
    cp "$CLUSTER_DIR/server.log" "$CHAOS_KEEP/$1/"
}

cluster_destroy_at_exit
python=$(python_with_psycopg)
printf '# CHAOS_SEED=%s\n' "$seed"
status=0
for mode in "${modes[@]}"; do
    # shellcheck disable=SC2119
    cluster_create
    cp -r tests/chaos "$CLUSTER_DIR/program"
    cc -O2 -shared -fPIC -o "$CLUSTER_DIR/program/clock.so" tests/clock/clock.c
    ((EUID != 0)) || chown -R postgres: "$CLUSTER_DIR/program"
    as_pg env PYTHONDONTWRITEBYTECODE=1 PG_BINDIR="$PG_BINDIR" CLOCK_LIBRARY="$CLUSTER_DIR/program/clock.so" \
        "$python" "$CLUSTER_DIR/program/run.py" "$CLUSTER_DIR" "$CLUSTER_DIR/chaos" \
        "$mode" "$seed" $((seconds / ${#modes[@]})) ${CHAOS_PLANT:+"$CHAOS_PLANT"} || status=1
    keep "$mode"
    cluster_destroy
done
((status == 0)) || printf '# to repeat it: CHAOS_SEED=%s\n' "$seed"
exit "$status"
