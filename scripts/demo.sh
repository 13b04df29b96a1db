#!/usr/bin/env bash
# Runs demo/run.sh with a throw-away cluster under it. The demo gets PGHOST, PGPORT, PGUSER, PGDATABASE (an empty
# database, the extension not yet created in it), PG_BINDIR on the PATH, and may source scripts/cluster.sh for
# cluster_crash_and_restart and the like. KEEP=1 leaves the cluster running.
# shellcheck source=scripts/cluster.sh
source "$(dirname "$0")/cluster.sh"
pg_resolve
export PATH=$PG_BINDIR:$PATH

keep_or_destroy() {
    if [[ -z ${KEEP:-} || ! -e ${CLUSTER_DIR:-}/data/postmaster.pid ]]; then
        cluster_destroy
    else
        printf '\nThe cluster is still running. To look around, and to end it:\n'
        printf '  %s/psql -h %s -p %s -U %s %s\n' "$PG_BINDIR" "$PGHOST" "$PGPORT" "$PGUSER" "$PGDATABASE"
        printf '  scripts/cluster.sh stop %s\n' "$CLUSTER_DIR"
    fi
}

cluster_destroy_at_exit
trap keep_or_destroy EXIT
cluster_create "shared_preload_libraries = 'idempotency'" "max_connections = 200"
cluster_start
createdb demo
cluster_env demo
demo/run.sh
