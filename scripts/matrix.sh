#!/usr/bin/env bash
# The suites that a server takes part in, on each of the named PostgreSQL versions, in a Debian of its own each: a
# folder made by mmdebstrap, entered by chroot. Ends with a table, and 'N passed, N failed'.
#
#   scripts/matrix.sh VERSION…      15 (Debian 12), 17 (Debian 13), 18 (sid); and, found or built by
#                                   scripts/matrix-inside.sh, 16, and 15-, 17- and 18-assert (with assertions)
#   MATRIX_DIR=/some/folder         where the systems and builds are kept (target/matrix); remove it to begin anew
#   MATRIX_SUITES="regress tap"     these suites only, of regress, isolation, chaos, tap, and on 17 upgrade (pg_upgrade from
#                                   15); `build` compiles and no more
#   TESTS, MINUTES, CHAOS_SEED      as in scripts/test.sh
#
# Exits with 77 where this machine cannot make such a Debian: no mount namespaces, or no mirror that answers.
# Needs root. Nothing is mounted but in a mount namespace that ends with the run, and the work tree is read only there.
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

MATRIX_DIR=$(realpath -m "${MATRIX_DIR:-$TARGET_DIR/matrix}")
MATRIX_SUITES=${MATRIX_SUITES:-regress isolation chaos tap upgrade}

debian_of() {
    case $1 in
        15 | 15-assert) echo bookworm ;;
        16 | 17 | 17-assert) echo trixie ;;
        18 | 18-assert) echo sid ;;
        *) die "no Debian is known for PostgreSQL $1" "15, 16, 17, 18, 15-assert, 17-assert and 18-assert are" ;;
    esac
}

cannot() {
    say "a Debian of its own cannot be made here: $1"
    exit 77
}

# make_system VERSION: the smallest Debian that apt works in. Half a one is never taken for a whole one.
make_system() {
    local dir=$MATRIX_DIR/$1 options=() debian
    debian=$(debian_of "$1")
    mkdir -p "$dir/build" "$dir/cargo/bin"
    [[ ! -d $dir/root ]] || return 0
    # A mirror of sid may lag; its signature is checked all the same.
    [[ $debian != sid ]] || options=(--aptopt='Acquire::Check-Valid-Until "false"')
    say "making a Debian $debian in $dir/root"
    rm -rf "$dir/root.new"
    mmdebstrap --quiet --variant=minbase "${options[@]}" "$debian" "$dir/root.new" || cannot "mmdebstrap $debian failed"
    mkdir -p "$dir/root.new"/{src,build,cargo,rust}
    mv "$dir/root.new" "$dir/root"
}

# What it takes from this machine: names, certificates, Rust, cargo-pgrx and what cargo has downloaded.
lend_to_system() {
    local dir=$MATRIX_DIR/$1 registry=${CARGO_HOME:-$HOME/.cargo}/registry file
    for file in /etc/resolv.conf /etc/hosts; do
        [[ ! -e $file ]] || install -m 644 "$file" "$dir/root$file"
    done
    # Beside those that its own packages bring.
    file=/etc/ssl/certs/ca-certificates.crt
    [[ ! -e $file ]] || install -m 644 "$file" "$dir/root/etc/certificates-of-host.crt"
    if [[ $(cargo pgrx --version 2>/dev/null || true) == *" $PGRX_VERSION" ]]; then
        install "$(command -v cargo-pgrx)" "$dir/cargo/bin/"
    fi
    mkdir -p "$registry" "$dir/cargo/registry"
    LENT=("$ROOT:/src" "$dir/build:/build" "$dir/cargo:/cargo" "$registry:/cargo/registry" "$(rustc --print sysroot):/rust")
}

# in_system VERSION COMMAND…: as root, in /src. All that it started ends with it, and so do the mounts.
in_system() {
    local version=$1
    shift
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --kill-child bash -c '
        set -euo pipefail
        root=$1 count=$2
        shift 2
        rm -rf "$root"/tmp/*
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
        mount -t tmpfs tmpfs "$root/run"
        for pair in "${@:1:count}"; do mount --bind "${pair%%:*}" "$root${pair#*:}"; done
        mount -o remount,bind,ro "$root/src"
        mount -o remount,bind,ro "$root/rust"
        shift "$count"
        exec chroot "$root" env -i "$@"
    ' - "$MATRIX_DIR/$version/root" "${#LENT[@]}" "${LENT[@]}" \
        HOME=/root LC_ALL=C.UTF-8 TERM=dumb \
        PATH=/rust/bin:/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        CARGO_HOME=/cargo CARGO_TARGET_DIR=/build CARGO_INCREMENTAL=0 CARGO_TERM_COLOR=never \
        SSL_CERT_FILE=/etc/certificates-of-host.crt PIP_CERT=/etc/certificates-of-host.crt \
        TESTS="${TESTS:-}" MINUTES="${MINUTES:-1}" CHAOS_SEED="${CHAOS_SEED:-}" \
        bash -c 'cd /src && exec "$@"' - "$@"
}

# Of the last line of each run of scripts/test.sh: "N passed, N failed, N skipped".
number_of() {
    sed -nE '/^[0-9]+ passed, [0-9]+ failed/s/.*\b([0-9]+) '"$1"'.*/\1/p' "$2" | awk '{ n += $1 } END { print n + 0 }'
}

run_version() {
    local version=$1 log=$MATRIX_DIR/$1/log start=$SECONDS status=0 suites lock
    read -ra suites <<<"$MATRIX_SUITES"
    [[ $version == 17* ]] || mapfile -t suites < <(printf '%s\n' "${suites[@]}" | grep -vx upgrade)
    mkdir -p "$MATRIX_DIR/$version"
    exec {lock}>"$MATRIX_DIR/$version/lock"
    flock -n "$lock" || die "somebody is at work in $MATRIX_DIR/$version"
    make_system "$version"
    lend_to_system "$version"
    say "PostgreSQL $version: ${suites[*]}"
    in_system "$version" scripts/matrix-inside.sh "$version" "${suites[@]}" 2>&1 </dev/null | tee "$log" || status=$?
    local server ok bad skip
    server=$(sed -n 's/^==> server: postgres (PostgreSQL) //p' "$log")
    ok=$(number_of passed "$log") bad=$(number_of failed "$log") skip=$(number_of skipped "$log")
    # It ended before it could count.
    ((status == 0 || bad > 0)) || bad=1
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    table+=("$(printf '%-10s %-32s %7d %7d %7d %8d' "$version" "${server:-none}" "$ok" "$bad" "$skip" $((SECONDS - start)))")
}

(($# > 0)) || set -- 15 17 18
((EUID == 0)) || die "this makes file systems and enters them: it must be run by root"
unshare --mount --pid --fork true || cannot "unshare --mount --pid failed"
require_cargo
for version in "$@"; do debian_of "$version" >/dev/null; done
passed=0 failed=0 skipped=0 table=()
cargo fetch --quiet --locked
for version in "$@"; do run_version "$version"; done

say "logs: $MATRIX_DIR/VERSION/log, results: $MATRIX_DIR/VERSION/build/test-results"
printf '%-10s %-32s %7s %7s %7s %8s\n' version server passed failed skipped seconds
printf '%s\n' "${table[@]}"
summary="$passed passed, $failed failed"
((skipped == 0)) || summary+=", $skipped skipped"
printf '%s\n' "$summary"
((failed == 0))
