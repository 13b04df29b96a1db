# shellcheck shell=bash
# Shared by every script here: where things are, which PostgreSQL is meant, who runs what.
# Sourced, never run. It changes nothing on the machine.

set -euo pipefail

# The same version as the pgrx dependency in Cargo.toml.
# shellcheck disable=SC2034
PGRX_VERSION=0.18.1
PG_MAJOR_DEFAULT=15

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"

# Services and containers may come without HOME; cargo and rustup need it.
if [[ -z ${HOME:-} ]]; then
    HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
    export HOME
fi

TARGET_DIR=${CARGO_TARGET_DIR:-$ROOT/target}
TOOLS_DIR=$ROOT/target/tools
PATH=$TOOLS_DIR/bin:$PATH
command -v cargo >/dev/null || PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
PATH=$PATH:/usr/sbin:/sbin
export PATH

say() { printf '==> %s\n' "$*"; }

die() {
    printf 'error: %s\n' "$1" >&2
    shift
    (($# == 0)) || printf 'hint: %s\n' "$@" >&2
    exit 1
}

# Root where root is needed: system packages, and folders of the system's PostgreSQL.
as_root() {
    if ((EUID == 0)); then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "this needs root: $*" "run it as root, or install sudo"
    fi
}

# The user of every server and of every client program that refuses root.
# From /tmp, because it may not be able to enter the work tree: give it absolute paths.
as_pg() (
    cd /tmp
    if ((EUID == 0)); then
        exec runuser -u postgres -- env HOME=/tmp "$@"
    else
        exec "$@"
    fi
)

# A new folder that as_pg can reach, whatever the mode of the work tree and of the folders above it.
# Always under /tmp: a socket's path must stay below 108 bytes.
pg_tmpdir() {
    local dir
    dir=$(mktemp -d /tmp/idempotency.XXXXXX)
    ((EUID != 0)) || chown postgres: "$dir"
    printf '%s\n' "$dir"
}

require_cargo() {
    command -v cargo >/dev/null || die "cargo is not on the PATH" \
        "install Rust 1.95 with rustup; if it belongs to your own user, run make as that user, not with sudo"
}

# The pg_config that PG_CONFIG or PGVER name, also before it is installed.
pg_config_wanted() {
    if [[ -n ${PG_CONFIG:-} ]]; then
        command -v "$PG_CONFIG" || printf '%s\n' "$PG_CONFIG"
    else
        printf '/usr/lib/postgresql/%s/bin/pg_config\n' "${PGVER:-$PG_MAJOR_DEFAULT}"
    fi
}

# Sets PG_CONFIG and all that follows from it.
pg_resolve() {
    PG_CONFIG=$(pg_config_wanted)
    [[ -x $PG_CONFIG ]] || die "there is no $PG_CONFIG" \
        "make setup installs PostgreSQL ${PGVER:-$PG_MAJOR_DEFAULT}; or name another one: make … PG_CONFIG=/path/to/pg_config"
    PG_MAJOR=$("$PG_CONFIG" --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/')
    PG_BINDIR=$("$PG_CONFIG" --bindir)
    PG_TESTLIB=$(dirname "$(dirname "$("$PG_CONFIG" --pgxs)")")/test
    PACKAGE_DIR=$TARGET_DIR/package/pg$PG_MAJOR
    # pgrx then builds against exactly this PostgreSQL, and neither reads nor writes ~/.pgrx.
    PGRX_PG_CONFIG_PATH=$PG_CONFIG
    export PG_CONFIG PG_MAJOR PG_BINDIR PG_TESTLIB PACKAGE_DIR PGRX_PG_CONFIG_PATH
}

# The same for every cargo command, so that nothing is compiled twice.
cargo_features() { printf '%s\n' --no-default-features --features "pg$PG_MAJOR"; }
