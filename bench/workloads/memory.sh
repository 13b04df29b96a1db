# shellcheck shell=bash
# Memory of one backend after 1,000 and after 100,000 claims, each in its transaction; and locks held.
begin memory 'Memory of a backend, and locks'
sql -c "CREATE OR REPLACE PROCEDURE claims(first int, last int) LANGUAGE plpgsql AS \$\$
    BEGIN
        FOR n IN first..last LOOP
            PERFORM ours_credit('memory-' || n, n, 5);
            PERFORM decision FROM idem_claim('old-' || n % 1000 + 1);
            COMMIT;
        END LOOP;
    END \$\$"

# The memory of this session's backend: RssAnon of /proc, without shared memory; and what its memory contexts hold.
look="\\o | cat
SELECT :'at' AS claims, (SELECT regexp_replace(pg_read_file('/proc/' || pg_backend_pid() || '/status'), '.*RssAnon:\\s*(\\d+) kB.*', '\\1'))::int AS rss_anon_kb,
    (SELECT sum(total_bytes) / 1024 FROM pg_backend_memory_contexts)::int AS contexts_kb,
    (SELECT sum(used_bytes) / 1024 FROM pg_backend_memory_contexts)::int AS used_kb,
    (SELECT count(*) FROM pg_backend_memory_contexts) AS contexts;
\\o"
mapfile -t rows < <(psql -XqAt -F ' | ' -v ON_ERROR_STOP=1 <<S
SET synchronous_commit = off;
CALL claims(1, 1000);
\set at '1,000'
$look
CALL claims(1001, 10000);
\set at '10,000'
$look
CALL claims(10001, 100000);
\set at '100,000'
$look
S
)
tell '| keys claimed, and as many replays | private memory, kB | memory contexts, kB | of these used, kB | contexts |' '|---:|---:|---:|---:|---:|'
for row in "${rows[@]}"; do tell "| $row |"; done

# locks SQL: how many a session holds after it, in the same transaction.
locks() {
    sql -c "BEGIN; $1; SELECT count(*) FILTER (WHERE locktype = 'advisory') || ' | ' || count(*) FILTER (WHERE locktype = 'relation' AND relation <> 'pg_locks'::regclass)
        FROM pg_locks WHERE pid = pg_backend_pid(); ROLLBACK" | tail -n 1
}
tell '' '| in a transaction, after | locks of keys | locks of tables and indexes |' '|---|---:|---:|'
tell "| idem_claim, execute | $(locks "SELECT decision FROM idem_claim('locks-1')") |"
tell "| and idem_complete | $(locks "SELECT decision FROM idem_claim('locks-1'); SELECT idem_complete('locks-1')") |"
tell "| idem_claim, replay | $(locks "SELECT decision FROM idem_claim('old-1')") |"
tell "| idem_claim with a lease, execute | $(locks "SELECT decision FROM idem_claim('locks-1', lease => '1 minute')") |"
tell "| idem_claim_many, 1,000 keys, execute | $(locks "SELECT count(*) FROM idem_claim_many(ARRAY(SELECT 'locks-' || n FROM generate_series(1, 1000) AS n))") |"
tell '' 'After COMMIT or ROLLBACK: none.'
