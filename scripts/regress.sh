# shellcheck shell=bash
# How pg_regress and pg_isolation_regress are called, for scripts/test.sh and scripts/installcheck.sh. Sourced only.
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

REGRESS_SECONDS_MAX=1200

# regress_tests FOLDER SUFFIX: the names in a folder, in order, or those of TESTS. A new file needs no entry anywhere.
regress_tests() {
    local file
    if [[ -n ${TESTS:-} ]]; then
        printf '%s\n' "${TESTS}" | xargs -n 1
        return
    fi
    for file in "$1"/*"$2"; do
        [[ ! -e $file ]] || basename "$file" "$2"
    done
}

# regress_command SUITE INPUT-FOLDER OUTPUT-FOLDER [EXISTING]: sets `command`, to be followed by the tests' names. It works on the
# server that the PG* environment names.
regress_command() {
    local runner database
    case $1 in
        regress) runner=regress/pg_regress database=contrib_regression ;;
        isolation) runner=isolation/pg_isolation_regress database=isolation_regression ;;
    esac
    # In the foreground, so that Ctrl-C reaches it too.
    # shellcheck disable=SC2034
    command=(timeout --foreground -k 30 "$REGRESS_SECONDS_MAX" "$PG_TESTLIB/$runner" --bindir="$PG_BINDIR"
        --inputdir="$2" --outputdir="$3" --dbname="$database" --encoding=UTF8 --no-locale)
    # A database that is there has the version that is to be tested.
    if [[ -n ${4:-} ]]; then command+=(--use-existing); else command+=(--load-extension=idempotency); fi
}
