#!/usr/bin/env bash
# A throw-away cluster: a folder of its own under /tmp, a private socket, no TCP port, run by a non-root user.
# Sourced for its functions (cluster_…), which know the cluster by CLUSTER_DIR alone: a child script that sources
# this file acts on the same cluster. Run as a command it ends one that was kept:
#   scripts/cluster.sh stop /tmp/idempotency.XXXXXX
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

CLUSTER_START_SECONDS_MAX=120

# cluster_env DATABASE: points every client program at the cluster in CLUSTER_DIR, whatever the environment said before.
cluster_env() {
    local name
    for name in "${!PG@}"; do
        case $name in PG_* | PGRX_* | PGVER) ;; *) unset "$name" ;; esac
    done
    export CLUSTER_DIR
    export PGHOST=$CLUSTER_DIR/socket PGPORT=54320 PGUSER=postgres PGDATABASE=$1
}

# cluster_create [SETTING…]: makes CLUSTER_DIR, and the cluster in it with these lines in its postgresql.conf.
cluster_create() {
    CLUSTER_DIR=$(pg_tmpdir)
    cluster_env postgres
    as_pg mkdir "$PGHOST"
    as_pg "$PG_BINDIR/initdb" -D "$CLUSTER_DIR/data" -U postgres -A trust -E UTF8 --no-locale --no-sync \
        >"$CLUSTER_DIR/initdb.log" 2>&1 || { cat "$CLUSTER_DIR/initdb.log" && die "initdb failed"; }
    cluster_conf "listen_addresses = ''" \
        "unix_socket_directories = '$PGHOST'" \
        "port = $PGPORT" \
        "log_line_prefix = '%m [%p] %q%a %e '" \
        "$@"
}

# Later lines win, so this also changes a setting. A start or a reload makes it so.
cluster_conf() { printf '%s\n' "$@" >>"$CLUSTER_DIR/data/postgresql.conf"; }

# A Rust backtrace must never reach a client: were it to, RUST_BACKTRACE shows it in the tests' output.
cluster_start() {
    as_pg env RUST_BACKTRACE=1 LC_ALL=C "$PG_BINDIR/pg_ctl" -s -w -t "$CLUSTER_START_SECONDS_MAX" \
        -D "$CLUSTER_DIR/data" -l "$CLUSTER_DIR/server.log" start </dev/null ||
        { tail -n 40 "$CLUSTER_DIR/server.log" >&2 && die "the throw-away server did not start"; }
}

# cluster_stop [smart|fast|immediate]; immediate is a crash: the next start recovers from the WAL.
cluster_stop() {
    as_pg "$PG_BINDIR/pg_ctl" -s -w -t "$CLUSTER_START_SECONDS_MAX" -D "$CLUSTER_DIR/data" -m "${1:-fast}" stop
}

cluster_crash_and_restart() {
    cluster_stop immediate
    cluster_start
}

# Ends every server below CLUSTER_DIR (an interrupted TAP test may leave some) and removes the folder. For traps: never
# fails, and does nothing when there is none.
cluster_destroy() {
    local pid_file
    [[ -n ${CLUSTER_DIR:-} && -d $CLUSTER_DIR ]] || return 0
    while IFS= read -r pid_file; do
        as_pg "$PG_BINDIR/pg_ctl" -s -w -D "$(dirname "$pid_file")" -m immediate stop >/dev/null 2>&1 </dev/null || true
    done < <(find "$CLUSTER_DIR" -name postmaster.pid 2>/dev/null)
    rm -rf "$CLUSTER_DIR" || true
    CLUSTER_DIR=
}

# For scripts that make a cluster: it goes when the script goes, however that happens.
cluster_destroy_at_exit() {
    trap cluster_destroy EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
    [[ ${1:-} == stop && ${2:-} == /tmp/idempotency.* && -d $2/data ]] ||
        die "usage: scripts/cluster.sh stop /tmp/idempotency.XXXXXX"
    CLUSTER_DIR=$2
    # Whichever PostgreSQL it was made with.
    [[ -n ${PG_CONFIG:-} ]] || PGVER=$(<"$CLUSTER_DIR/data/PG_VERSION")
    pg_resolve
    cluster_destroy
    say "stopped and removed"
fi
