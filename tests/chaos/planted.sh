#!/usr/bin/env bash
# Shows that the chaos finds faults: each patch of tests/chaos/planted goes into a copy of the tree, which is built and
# installed into a copy of PostgreSQL, both in a temporary folder; the chaos there must turn the named invariants red.
# One fault more is in the clients: an effect and its completion in two transactions.
#
#   tests/chaos/planted.sh [NAME…]
# shellcheck source=scripts/cluster.sh
source "$(dirname "$0")/../../scripts/cluster.sh"
pg_resolve

SECONDS_EACH=${CHAOS_SECONDS:-30}
# Which invariant must turn red: its number in tests/chaos/README.md.
declare -A found_by=([no_lock]=8 [no_fence]=7 [two_transactions]=1 [denied]=5)

work=$(pg_tmpdir)
trap 'rm -rf "$work"' EXIT
failed=0

# verdict NAME: whether the output of its chaos says what it must.
verdict() {
    local name=$1 output=$work/$1.output
    sed 's/^/    /' "$output"
    if grep -q "^not ok - .*: ${found_by[$name]} " "$output"; then
        printf 'ok - %s is found by invariant %s\n' "$name" "${found_by[$name]}"
    else
        printf 'not ok - %s is found by invariant %s\n' "$name" "${found_by[$name]}"
        failed=1
    fi
}

# What of PostgreSQL a server needs, in the same places below $work/root: it finds its files by where it lies.
copy_postgres() {
    local dir
    for dir in "$PG_BINDIR" "$("$PG_CONFIG" --pkglibdir)" "$("$PG_CONFIG" --sharedir)"; do
        mkdir -p "$work/root$dir"
        cp -rL "$dir/." "$work/root$dir/"
    done
}

# The tree, and what is built already, so that only this project is compiled again.
copy_tree() {
    git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- -cf - | tar -C "$work/tree" -xf -
    mkdir -p "$work/target/package"
    [[ ! -d $TARGET_DIR/release ]] || cp -a "$TARGET_DIR/release" "$work/target/"
}

chaos() { # chaos NAME TREE PG_CONFIG
    (cd "$2" && PG_CONFIG=$3 CHAOS_MODES=sync scripts/chaos.sh "$SECONDS_EACH") >"$work/$1.output" 2>&1 || true
    verdict "$1"
}

patched() { # patched NAME
    say "$1: building"
    rm -rf "$work/tree" "$work/root"
    mkdir "$work/tree"
    [[ -d $work/target ]] || mkdir "$work/target"
    copy_tree
    copy_postgres
    (
        cd "$work/tree"
        patch -s -p1 <"$ROOT/tests/chaos/planted/$1.patch"
        CARGO_TARGET_DIR=$work/target DESTDIR=$work/root scripts/install.sh
    )
    chmod -R a+rX "$work/root"
    chaos "$1" "$work/tree" "$work/root$PG_BINDIR/pg_config"
}

(($# > 0)) || set -- two_transactions no_lock no_fence denied
for name in "$@"; do
    case $name in
        two_transactions) scripts/install.sh && CHAOS_PLANT=two-transactions chaos "$name" "$ROOT" "$PG_CONFIG" ;;
        *) patched "$name" ;;
    esac
done
exit "$failed"
