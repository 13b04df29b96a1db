#!/usr/bin/env bash
# Builds the release library and its install SQL into target/package/pgNN, laid out as it will be installed.
# Writes nothing outside the target folder. Options: --env, --clean.
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

build() {
    require_cargo
    local found
    found=$(cargo pgrx --version 2>/dev/null || true)
    [[ $found == *" $PGRX_VERSION" ]] || die "cargo-pgrx $PGRX_VERSION is needed, found: ${found:-none}" \
        "cargo install cargo-pgrx --version $PGRX_VERSION --locked (or: make setup)"
    pg_resolve
    mapfile -t features < <(cargo_features)
    say "building for PostgreSQL $PG_MAJOR ($PG_CONFIG)"
    rm -rf "$PACKAGE_DIR"
    mkdir -p "$PACKAGE_DIR"
    # cargo's progress and every error go to stderr; what cargo-pgrx tells besides is of interest only on failure.
    cargo pgrx package --profile release "${features[@]}" --pg-config "$PG_CONFIG" --out-dir "$PACKAGE_DIR" \
        >"$TARGET_DIR/package/build.log" || { cat "$TARGET_DIR/package/build.log" && die "the build failed"; }
    # So that an older version can be created as well, and updated: what an update is tested with.
    cp sql/released/idempotency--*.sql "$PACKAGE_DIR$("$PG_CONFIG" --sharedir)/extension/"
}

clean() {
    local entry
    for entry in "$TARGET_DIR"/* crates/core/fuzz/target; do
        [[ $entry == "$TOOLS_DIR" ]] || rm -rf "$entry"
    done
}

case ${1:-} in
    '') build ;;
    --env) pg_resolve && printf 'export PGRX_PG_CONFIG_PATH=%q\n' "$PGRX_PG_CONFIG_PATH" ;;
    --clean) clean ;;
    *) die "unknown option: $1" ;;
esac
