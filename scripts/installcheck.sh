#!/usr/bin/env bash
# The regression tests against a running server into which the extension is installed. The server is found by
# PGHOST, PGPORT and PGUSER (a superuser), as extensions conventionally do; the database contrib_regression is
# dropped and made anew. Builds and installs nothing.
# shellcheck source=scripts/regress.sh
source "$(dirname "$0")/regress.sh"
pg_resolve

output=$TARGET_DIR/installcheck
rm -rf "$output"
mkdir -p "$output"
mapfile -t tests < <(regress_tests tests/regress/sql .sql)
regress_command regress tests/regress "$output"
"${command[@]}" "${tests[@]}" || {
    [[ ! -s $output/regression.diffs ]] || cat "$output/regression.diffs"
    die "regression tests failed; results are in $output"
}
