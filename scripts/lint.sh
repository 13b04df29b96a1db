#!/usr/bin/env bash
# Every lint, all of them even if one fails: shellcheck, rustfmt, clippy, rustdoc, and pgspot over the SQL that
# CREATE EXTENSION runs. A warning is an error.
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"
pg_resolve
mapfile -t features < <(cargo_features)

PGSPOT_VERSION=0.9.4
# pgspot reads SQL with PostgreSQL's own parser, which pglast brings.
PGLAST_VERSION=7.21

# The build flags of `cargo pgrx package`: with the same ones the build scripts (bindgen above all) run once for both.
# Only check and doc builds use them here.
like_pgrx=(--config
    "target.'cfg(all(target_family = \"unix\", not(target_os = \"macos\")))'.rustflags = [\"-C\", \"link-arg=-Wl,--no-gc-sections\"]")

lint_shell() {
    shellcheck -x scripts/*.sh demo/*.sh crates/core/fuzz/*.sh tests/model/*.sh tests/chaos/*.sh .ci/run
    # Each is sourced, and sets what bench/lib.sh reads.
    shellcheck -x -e SC2034,SC2119,SC2120 bench/*.sh bench/workloads/*.sh
}

lint_format() { cargo fmt --all --check; }

lint_clippy() {
    # After the word clippy: before it, cargo would not pass them on.
    cargo clippy "${like_pgrx[@]}" --release --workspace --all-targets "${features[@]}" -- -D warnings
}

lint_doc() {
    RUSTDOCFLAGS='-D warnings' cargo "${like_pgrx[@]}" doc --release --workspace --no-deps --document-private-items \
        "${features[@]}"
}

# (pgspot) No code is ignored. One procedure has no search_path of its own, because a procedure with a SET clause may not COMMIT
# and this one commits between batches; every name in it is qualified, which the other checks see to.
lint_released() {
    # A script that somebody has installed is never edited.
    (cd sql/released && sha256sum --check --strict --quiet SHA256SUMS)
    local script version
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
    for script in sql/released/*.sql; do
        grep -q " ${script##*/}\$" sql/released/SHA256SUMS || die "$script is not in SHA256SUMS"
    done
    for script in sql/idempotency--*--*.sql; do
        [[ $script == *--"$version".sql ]] || grep -q " ../${script##*/}\$" sql/released/SHA256SUMS ||
            die "$script leads to a released version and is not in sql/released/SHA256SUMS"
    done
}

lint_sql() {
    local venv=$TARGET_DIR/pgspot-$PGSPOT_VERSION script base
    if [[ ! -x $venv/bin/pgspot ]]; then
        python3 -m venv "$venv"
        "$venv/bin/pip" install -q --disable-pip-version-check "pgspot==$PGSPOT_VERSION" "pglast==$PGLAST_VERSION"
    fi
    scripts/build.sh
    for script in "$PACKAGE_DIR$("$PG_CONFIG" --sharedir)"/extension/idempotency--*.sql; do
        say "pgspot ${script##*/}"
        # What an update replaces is known from the script of the version that it comes from.
        base=()
        [[ ! ${script##*/} =~ ^idempotency--(.+)--.+\.sql$ ]] || base=(-a "sql/released/idempotency--${BASH_REMATCH[1]}.sql")
        "$venv/bin/pgspot" --proc-without-search-path 'idempotency.sweep()' "${base[@]}" "$script" || return 1
    done
}

failed=()
for lint in shell format doc clippy released sql; do
    say "lint: $lint"
    # Not `if lint_…`: bash then ignores `set -e` inside the function.
    set +e
    (set -e && "lint_$lint")
    status=$?
    set -e
    ((status == 0)) || failed+=("$lint")
done
((${#failed[@]} == 0)) || die "lint failed: ${failed[*]}"
say "lint: clean"
