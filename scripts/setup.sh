#!/usr/bin/env bash
# Installs what the named parts need and what is not there yet: build, tap, chaos, bench, demo, fuzz, model, matrix, lint.
# It asks for capabilities, not for package names, and calls apt-get only when one is missing. It never touches a
# cluster: the `15/main` that Debian makes with a first postgresql package is not made either.
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

missing=()
need() { # need PACKAGE TEST…
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}

has_libclang() {
    [[ -n ${LIBCLANG_PATH:-} ]] || compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' ||
        compgen -G '/usr/lib/*/libclang*.so*'
}

need_postgres() {
    local pg_config major
    pg_config=$(pg_config_wanted)
    if [[ -x $pg_config ]]; then
        PG_CONFIG=$pg_config pg_resolve
        major=$PG_MAJOR
    else
        [[ -z ${PG_CONFIG:-} ]] || die "there is no $pg_config"
        major=${PGVER:-$PG_MAJOR_DEFAULT}
    fi
    need "postgresql-$major" test -x "${PG_BINDIR:-/nowhere}/postgres"
    need "postgresql-server-dev-$major" test -x "${PG_TESTLIB:-/nowhere}/isolation/pg_isolation_regress"
    need "postgresql-server-dev-$major" test -f "$("$pg_config" --includedir-server 2>/dev/null)/postgres.h"
}

need_build() {
    need gcc command -v gcc
    need libc6-dev test -f /usr/include/stdio.h
    need make command -v make
    need pkg-config command -v pkg-config
    need libclang-dev has_libclang
    need clang compgen -c clang
    need_postgres
}

# The first python3 that has it is taken, in the tests and in the demo.
has_psycopg() {
    local python
    for python in $(type -ap python3) /usr/bin/python3; do
        ! "$python" -c 'import psycopg' || return 0
    done
    return 1
}

need_demo() { need python3-psycopg has_psycopg; }

# What tests/tap/lib/Browser.pm looks for.
has_chromium() { command -v chromium || command -v chromium-browser || command -v google-chrome; }

# What tests/clock is made with, and what spin makes.
need_cc() {
    need gcc command -v cc
    need libc6-dev test -f /usr/include/stdio.h
}

need_tap() {
    need libipc-run-perl perl -MIPC::Run -e1
    need_demo
    need perl perl -MTest::More -MTime::HiRes -e1
    need chromium has_chromium
    need prometheus-postgres-exporter command -v prometheus-postgres-exporter
    need pgbouncer command -v pgbouncer
    need_cc
}

need_bench() {
    need_demo
    need valgrind command -v valgrind
}

need_fuzz() { need g++ command -v g++; }

need_chaos() {
    need_demo
    need_cc
}

need_model() {
    need spin command -v spin
    need_cc
}

# What a chroot of another Debian is made with; the rest is installed in there.
need_matrix() {
    need mmdebstrap command -v mmdebstrap
    need_cc
}

need_lint() {
    need python3-venv python3 -c 'import venv, ensurepip'
    need shellcheck command -v shellcheck
}

# Debian makes and starts a cluster on port 5432 with the first server package. This file, which postgresql-common
# reads, keeps it from doing so; it is gone again when the packages are there.
no_main_cluster=/etc/postgresql-common/createcluster.d/00-idempotency-setup.conf

# These two bring a service each, on port 6432 and 9187, for all to use. The tests start programs of their own: a service
# that comes with an installation here is not started (invoke-rc.d asks this file whether it may), nor at the next boot.
services=(pgbouncer prometheus-postgres-exporter)
no_services=/usr/sbin/policy-rc.d

forbid_services() {
    local names
    [[ ! -e $no_services ]] || return 0
    names=$(IFS='|' && echo "${services[*]}")
    trap 'as_root rm -f "$no_main_cluster" "$no_services"' EXIT
    # shellcheck disable=SC2016
    printf '#!/bin/sh\ncase $1 in %s) exit 101 ;; esac\n' "$names" | as_root tee "$no_services" >/dev/null
    as_root chmod 755 "$no_services"
}

disable_services() {
    local service
    command -v systemctl >/dev/null || return 0
    for service in "${services[@]}"; do
        [[ " ${missing[*]} " != *" $service "* ]] || as_root systemctl --quiet disable "$service" || true
    done
}

# In a shell of its own, whose end takes the files above away.
install_packages() (
    local packages
    mapfile -t packages < <(printf '%s\n' "${missing[@]}" | sort -u)
    say "installing system packages: ${packages[*]}"
    command -v apt-get >/dev/null || die "apt-get is not here, so these must be installed by hand: ${packages[*]}"
    trap 'as_root rm -f "$no_main_cluster"' EXIT
    as_root mkdir -p "$(dirname "$no_main_cluster")"
    echo 'create_main_cluster = false' | as_root tee "$no_main_cluster" >/dev/null
    forbid_services
    as_root apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${packages[@]}"
    disable_services
)

install_cargo_pgrx() {
    local found root=()
    require_cargo
    found=$(cargo pgrx --version 2>/dev/null || true)
    [[ $found != *" $PGRX_VERSION" ]] || return 0
    # Another version may be there for other work: leave it alone and keep ours in ./target.
    [[ -z $found ]] || root=(--root "$TOOLS_DIR")
    say "installing cargo-pgrx $PGRX_VERSION (some minutes, once)"
    env -u CARGO_TARGET_DIR cargo install cargo-pgrx --version "$PGRX_VERSION" --locked "${root[@]}"
}

require_lint_components() {
    { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1 ||
        die "rustfmt or clippy is missing" "rustup component add rustfmt clippy"
}

(($# > 0)) || set -- build
for part in "$@"; do
    case $part in
        build) need_build ;;
        tap) need_tap ;;
        demo) need_demo ;;
        bench) need_bench ;;
        fuzz) need_fuzz ;;
        chaos) need_chaos ;;
        model) need_model ;;
        matrix) need_matrix ;;
        lint) need_lint ;;
        *) die "unknown part: $part" ;;
    esac
done
((${#missing[@]} == 0)) || install_packages

install_cargo_pgrx
[[ " $* " != *' lint '* ]] || require_lint_components
