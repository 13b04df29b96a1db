# shellcheck shell=bash
# Bytes on disk of a finished key: keys of 64 bytes, results of 60, each index included. Written by claims and
# completions as they come, not packed.
COUNT=100000
createdb disk
export PGDATABASE=disk
sql -v old_keys=0 -f "$CONTENDERS/0_bare.sql" -f "$CONTENDERS/6_ours.sql"
sql -c "CREATE PROCEDURE fill(args bool) LANGUAGE plpgsql AS \$\$
    BEGIN
        FOR n IN 1..$COUNT LOOP
            PERFORM ours_record('order-' || encode(sha224(n::text::bytea), 'hex') || 'xx', jsonb_build_object('credit', lpad(n::text, 46, '0')),
                CASE WHEN args THEN jsonb_build_object('order', n) END);
            COMMIT;
        END LOOP;
    END \$\$"
begin disk 'Bytes on disk per key: 64-byte key, 60-byte result'
tell "| arguments | key | result as text | result as stored | row | digest index | age index | all |" \
    '|---|---:|---:|---:|---:|---:|---:|---:|'
for args in false true; do
    sql -c 'TRUNCATE idempotency.outcome' -c "SET synchronous_commit = off" -c "CALL fill($args)" -c 'VACUUM idempotency.outcome'
    row=$(sql -F ' | ' -c "SELECT CASE WHEN $args THEN 'compared' ELSE 'none' END, max(octet_length(key)), max(octet_length(result::text)), max(pg_column_size(result)),
        (pg_relation_size('idempotency.outcome') / count(*)::numeric)::numeric(9, 1),
        (pg_relation_size('idempotency.outcome_digest_pkey') / count(*)::numeric)::numeric(9, 1),
        (pg_relation_size('idempotency.outcome_scope_id_finished_at_index') / count(*)::numeric)::numeric(9, 1),
        (pg_total_relation_size('idempotency.outcome') / count(*)::numeric)::numeric(9, 1) FROM idempotency.outcome")
    tell "| $row |"
    what='bytes on disk per key, no arguments'
    [[ $args == false ]] || what='the same with the hash of arguments'
    target "$what" at-most 260 "${row##* }"
done
export PGDATABASE=bench
dropdb disk
