# shellcheck shell=bash
# WAL of one operation: records, and full-page images beside them. In a database of its own, all tables without old keys;
# a checkpoint before each. The base of the target has the columns and the two indexes of idempotency.outcome, and is
# given the very rows that idem_complete has written, in the same order, one transaction each.
OPERATIONS=10000
database wal 0 0_bare 1_client 2_function 3_recovery 4_advisory 5_queue 6_ours
export PGDATABASE=wal
sql -c 'CREATE EXTENSION pg_walinspect' -c 'CREATE TABLE same_row (LIKE idempotency.outcome)' \
    -c 'ALTER TABLE same_row ADD PRIMARY KEY (digest)' -c 'CREATE INDEX ON same_row (scope_id, finished_at)' \
    -c "CREATE PROCEDURE copy_rows() LANGUAGE plpgsql AS \$\$
        DECLARE
            one uuid;
            every uuid[] := ARRAY(SELECT digest FROM idempotency.outcome ORDER BY ctid);
        BEGIN
            FOREACH one IN ARRAY every LOOP
                INSERT INTO same_row SELECT * FROM idempotency.outcome WHERE digest = one;
                COMMIT;
            END LOOP;
        END \$\$"
begin wal "WAL per operation, in bytes, without full-page images ($OPERATIONS operations, a checkpoint before)"
UNIT='bytes'
images=

# wal LABEL COMMAND…
wal() {
    local from to record image label=$1
    shift
    sql -c CHECKPOINT
    from=$(sql -c 'SELECT pg_current_wal_insert_lsn()')
    PGOPTIONS=$SESSION "$@" >"$RESULTS/pgbench.log" 2>&1 || { cat "$RESULTS/pgbench.log" >&2 && die "failed: $label"; }
    to=$(sql -c 'SELECT pg_current_wal_insert_lsn()')
    # A commit that waits, so that all before it is on disk and can be read.
    sql -c 'CREATE TEMPORARY TABLE flush ()'
    IFS='|' read -r record image < <(sql -c "SELECT (sum(record_size) / $OPERATIONS)::numeric(9, 1), (sum(fpi_size) / $OPERATIONS)::numeric(9, 1)
        FROM pg_get_wal_stats('$from', '$to') WHERE \"resource_manager/record_type\" NOT IN ('XLOG', 'Standby')")
    LABELS+=("$label")
    record "$label" 1 "$record"
    images+="${images:+; }$label: $image"
}

# run LABEL SCRIPT: one client, so that each operation stands alone.
run() { wal "$1" pgbench -n -M prepared -c 1 -t "$OPERATIONS" --max-tries=20 -f "$CONTENDERS/$2.pgbench"; }

# shellcheck disable=SC2119
autovacuum() { sql -c "ALTER SYSTEM SET autovacuum = $1" -c 'SELECT pg_reload_conf()' >/dev/null; }

autovacuum off
run 'ours: claim + complete, no effect' 6_ours_record.new
wal 'one INSERT of the same row, same indexes' psql -Xqc 'CALL copy_rows()'
LABELS=('one INSERT of the same row, same indexes' 'ours: claim + complete, no effect')
target 'WAL per new key, without full-page images, to one INSERT of the same row' at-most 1.15 "$(ratio "${LABELS[1]}" "${LABELS[0]}")"
run '0 bare effect' 0_bare.new
run '1 from the client, five round trips' 1_client.new
run '2 one PL/pgSQL function' 2_function.new
run '3 recovery points, three transactions' 3_recovery.new
run '4 advisory lock and table' 4_advisory.new
run '5 queue: send, read, delete' 5_queue.cycle
run '6 ours: one function' 6_ours_function.new
run '6 ours: leased, two transactions' 6_ours_leased.new
run '6 ours: enqueue, dispatch, complete' 6_ours.cycle
autovacuum on
table
tell '' "Full-page images beside these, in bytes per operation: $images."
export PGDATABASE=bench
dropdb wal
