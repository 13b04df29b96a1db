#!/usr/bin/env bash
# Builds, then copies what differs into the PostgreSQL of PG_CONFIG (below DESTDIR if set); --uninstall removes it.
# Root rights are used for the copy alone, and only where the folders are not ours. An installed library is replaced
# by a new file, never written over, so servers that have it loaded keep running the old one.
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

DESTDIR=${DESTDIR:-}

# `make && sudo make install` is a habit, and root often has no cargo: then what was built before is installed.
if [[ ${1:-} != --uninstall ]]; then
    pg_resolve
    if command -v cargo >/dev/null; then
        scripts/build.sh
    elif [[ -d $PACKAGE_DIR ]]; then
        say "no cargo on this PATH: installing what is in $PACKAGE_DIR"
    else
        require_cargo
    fi
fi
pg_resolve

# The nearest folder of a path that exists tells whether we may write there.
root_unless_writable() {
    local dir=$1
    shift
    until [[ -d $dir ]]; do dir=$(dirname "$dir"); done
    if [[ -w $dir ]]; then "$@"; else as_root "$@"; fi
}

install_one() {
    local file=$1 mode=644
    local to=$DESTDIR${file#"$PACKAGE_DIR"}
    [[ $file != *.so ]] || mode=755
    if cmp -s "$file" "$to"; then return; fi
    say "installing $to"
    root_unless_writable "$(dirname "$to")" install -D -m "$mode" "$file" "$to"
}

remove_one() {
    [[ -e $1 ]] || return 0
    say "removing $1"
    root_unless_writable "$(dirname "$1")" rm -f "$1"
}

if [[ ${1:-} == --uninstall ]]; then
    shopt -s nullglob
    for file in "$DESTDIR$("$PG_CONFIG" --pkglibdir)/idempotency.so" \
        "$DESTDIR$("$PG_CONFIG" --sharedir)/extension/"idempotency{.control,--*.sql}; do
        remove_one "$file"
    done
else
    while IFS= read -r file; do install_one "$file"; done < <(find "$PACKAGE_DIR" -type f | sort)
fi
