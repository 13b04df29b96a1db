#!/usr/bin/env bash
# Run by scripts/matrix.sh inside the Debian of one version: installs what is missing there, then runs the suites.
#
#   scripts/matrix-inside.sh VERSION SUITE…     a suite of scripts/test.sh, or `build`, or `upgrade`
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

version=$1
shift

# No Debian has 16. Its server comes in a Python package: an old minor release, without contrib and ICU. What the
# tests are run with is that of 17.
PG16_DIR=/opt/postgres-16
PG16_PACKAGE=pgserver==0.1.4
PG16_SHA256=d595789b47624a3d963aa9aa6359da9be31beb7e61f1a45541953242068b8813

# Debian's sources of the same version.
ASSERT_DIR=/opt/postgres-assert

install_packages() { DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@"; }

get_postgres_16() {
    local dir
    [[ ! -e $PG16_DIR ]] || return 0
    install_packages python3-pip
    dir=$(mktemp -d)
    printf '%s --hash=sha256:%s\n' "$PG16_PACKAGE" "$PG16_SHA256" >"$dir/requirements"
    pip download --quiet --no-deps --only-binary :all: --python-version 3.11 --require-hashes \
        -d "$dir" -r "$dir/requirements"
    python3 -m zipfile -e "$dir"/*.whl "$dir/unpacked"
    chmod -R a+rX "$dir/unpacked"
    chmod a+x "$dir"/unpacked/*/pginstall/{bin/*,lib/postgresql/pgxs/src/test/*/*}
    cp -r /usr/lib/postgresql/17/lib/pgxs/src/test/perl "$dir"/unpacked/*/pginstall/lib/postgresql/pgxs/src/test/
    mv "$dir/unpacked" "$PG16_DIR"
}

build_with_assertions() {
    local dir=/opt/source part
    [[ ! -e $ASSERT_DIR/built ]] || return 0
    say "building PostgreSQL $PGVER with assertions"
    sed 's/^deb /deb-src /' /etc/apt/sources.list >/etc/apt/sources.list.d/source.list
    apt-get update -q
    install_packages dpkg-dev g++ bison flex perl libicu-dev libreadline-dev zlib1g-dev libipc-run-perl
    rm -rf "$dir"
    mkdir -p "$dir"
    (cd "$dir" && apt-get source -q "postgresql-$PGVER") >"$dir/log" 2>&1 || { cat "$dir/log" && die "there is no source"; }
    cd "$dir/postgresql-$PGVER"-*/
    ./configure --quiet --prefix="$ASSERT_DIR" --enable-cassert --enable-debug --enable-tap-tests --with-icu CFLAGS='-O1 -g'
    for part in . contrib src/test/regress src/test/isolation src/test/perl; do
        make -s -j"$(nproc)" -C "$part" install >>"$dir/log" 2>&1 || { tail -n 60 "$dir/log" && die "$part was not built"; }
    done
    cd "$ROOT"
    touch "$ASSERT_DIR/built"
}

# tap/pg_upgrade from PostgreSQL 15: the packages of Debian 12, beside the server that this system is for.
upgrade_from_15() {
    local to=$PG_BINDIR
    sed -E "s/\\b$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)\\b/bookworm/" /etc/apt/sources.list \
        >/etc/apt/sources.list.d/bookworm.list
    printf '%s\n' 'Package: *' 'Pin: release n=bookworm*' 'Pin-Priority: 100' >/etc/apt/preferences.d/bookworm
    scripts/install.sh
    unset PG_CONFIG PG_BINDIR PG_TESTLIB
    export PGVER=15
    scripts/setup.sh build tap
    say "pg_upgrade from PostgreSQL 15"
    PG_UPGRADE_TO=$to TESTS=pg_upgrade scripts/test.sh tap
}

suites=() with_upgrade=
for suite in "$@"; do
    if [[ $suite == upgrade ]]; then with_upgrade=yes; else suites+=("$suite"); fi
done

parts=(build)
[[ " $* " != *' tap '* ]] || parts+=(tap)
[[ " $* " != *' chaos '* ]] || parts+=(chaos)
PGVER=${version%-*}
[[ $PGVER != 16 ]] || PGVER=17
export PGVER
scripts/setup.sh "${parts[@]}"
case $version in
    16)
        get_postgres_16
        PG_CONFIG=$(echo "$PG16_DIR"/*/pginstall/bin/pg_config)
        ;;
    *-assert)
        build_with_assertions
        PG_CONFIG=$ASSERT_DIR/bin/pg_config
        ;;
esac
pg_resolve
say "server: $("$PG_BINDIR/postgres" --version)"
status=0
if [[ ${suites[*]} == build ]]; then
    scripts/build.sh
    echo "1 passed, 0 failed"
elif ((${#suites[@]} > 0)); then
    scripts/test.sh "${suites[@]}" || status=$?
fi
[[ -z $with_upgrade ]] || upgrade_from_15
exit "$status"
