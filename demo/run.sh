#!/usr/bin/env bash
# PLACEHOLDER: the story that `make demo` tells goes here.
set -euo pipefail

psql -X -v ON_ERROR_STOP=1 <<'SQL'
CREATE EXTENSION idempotency;
SELECT version();
SQL
