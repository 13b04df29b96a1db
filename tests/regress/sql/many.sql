-- idem_claim_many and idem_complete_many: order, mismatches, duplicates, limits, all or none.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- A row for each key in the order given; every decision may occur.
SELECT fence FROM idem_claim('b', '"b"', lease => '1 minute') \gset
SELECT idem_complete('b', '{"id": "b"}', fence => :fence);
SELECT fence FROM idem_claim('rejected', lease => '1 minute') \gset
SELECT idem_fail('rejected', 'rejected', 'declined', '51', fence => :fence);
SELECT fence FROM idem_claim('unknown', lease => '1 minute') \gset
SELECT idem_fail('unknown', 'unknown', 'timeout', fence => :fence);
SELECT fence FROM idem_claim('leased', lease => '1 minute') \gset
SELECT :claim_many(ARRAY['z', 'a', 'b', 'reused', 'z', 'rejected', 'unknown', 'leased', 'b'],
                   ARRAY['"z"', '"a"', '"b"', '"x"', '"z"', NULL, NULL, NULL, '"c"']::jsonb[], lease => '1 minute');
-- The second of the same key is mismatch where its arguments differ.
BEGIN;
SELECT :claim_many(ARRAY['twice', 'twice', 'twice'], ARRAY['1', '2', '1']::jsonb[]);
-- With other arguments than a claim of this transaction, and than one on record.
SELECT :claim_many(ARRAY['twice', 'a', 'b'], ARRAY['2', '"b"', '"a"']::jsonb[]);
SELECT :claim_many(ARRAY['twice', 'a', 'b']);
SELECT idem_release('twice');
COMMIT;

-- A thousand rows, transactional, in one statement each.
BEGIN;
SELECT decision, count(*), min(ord), max(ord), bool_and(key = 'row ' || ord) AS in_order, count(DISTINCT fence) > 0 AS fenced
  FROM idem_claim_many(ARRAY(SELECT 'row ' || g FROM generate_series(1, 1000) AS g),
                       ARRAY(SELECT to_jsonb(g) FROM generate_series(1, 1000) AS g)) GROUP BY decision;
SELECT count(*), bool_and(key = 'row ' || ord) AS in_order, bool_and(result = to_jsonb(ord)) AS results
  FROM idem_complete_many(ARRAY(SELECT 'row ' || g FROM generate_series(1, 1000) AS g),
                          ARRAY(SELECT to_jsonb(g) FROM generate_series(1, 1000) AS g));
COMMIT;
SELECT decision, count(*), bool_and(result = to_jsonb(ord)) AS results
  FROM idem_claim_many(ARRAY(SELECT 'row ' || g FROM generate_series(1, 1000) AS g),
                       ARRAY(SELECT to_jsonb(g) FROM generate_series(1, 1000) AS g)) GROUP BY decision;
SELECT count(*) FROM idempotency.outcome WHERE key LIKE 'row %';
SELECT test.try($$ SELECT idem_claim_many(ARRAY(SELECT 'row ' || g FROM generate_series(1, 1001) AS g)) $$);
SELECT test.try($$ SELECT idem_complete_many(ARRAY(SELECT 'row ' || g FROM generate_series(1, 1001) AS g)) $$);

-- Leased batches are finished by their fences.
SELECT array_agg(fence ORDER BY ord) AS fences FROM idem_claim_many(ARRAY['l1', 'l2', 'l3'], lease => '1 minute', run => 'import/1') \gset
SELECT key, state, run FROM idempotency.records WHERE key LIKE 'l_' ORDER BY key;
SELECT test.try($$ SELECT idem_complete_many(ARRAY['l1', 'l2', 'l3'], ARRAY['1', '2', '3']::jsonb[]) $$);
-- All or none.
SELECT test.try(format($$ SELECT idem_complete_many(ARRAY['l1', 'l2', 'absent'], ARRAY['1', '2', '3']::jsonb[], fences => %L) $$, :'fences'));
SELECT test.try(format($$ SELECT idem_complete_many(ARRAY['l1', 'l2', 'l3'], ARRAY['1', '2', '3']::jsonb[], fences => %L::bigint[] || ARRAY[7::bigint]) $$,
                       ('{' || split_part(trim(:'fences', '{}'), ',', 1) || ',' || split_part(:'fences', ',', 2) || '}')));
SELECT test.try(format($$ SELECT idem_complete_many(ARRAY['l1', 'l2', 'l3'], ARRAY['1', to_jsonb(repeat('x', 65536)), '3']::jsonb[], fences => %L) $$, :'fences'));
SELECT key, state FROM idempotency.records WHERE key LIKE 'l_' ORDER BY key;
SELECT * FROM idem_complete_many(ARRAY['l3', 'l1', 'l2'], ARRAY['3', 'null', NULL]::jsonb[],
    fences => (:'fences'::bigint[])[3:3] || (:'fences'::bigint[])[1:2]);
-- Again: the stored results.
SELECT * FROM idem_complete_many(ARRAY['l1', 'l2', 'l3'], fences => :'fences');
-- In the transaction that claimed.
BEGIN;
SELECT array_agg(fence ORDER BY ord) AS fences FROM idem_claim_many(ARRAY['h1', 'h2'], lease => '1 minute') \gset
SELECT test.try(format($$ SELECT idem_complete_many(ARRAY['h1', 'h2'], fences => %L) $$, :'fences'));
ROLLBACK;
-- The same key twice is finished once.
BEGIN;
SELECT decision FROM idem_claim('same');
SELECT test.try($$ SELECT idem_complete_many(ARRAY['same', 'same'], ARRAY['1', '2']::jsonb[]) $$);
SELECT * FROM idem_complete_many(ARRAY['same'], ARRAY['1']::jsonb[]);
COMMIT;

-- What a batch may look like.
SELECT :claim_many('{}');
SELECT * FROM idem_complete_many('{}', '{}');
SELECT call, test.try('SELECT ' || call) AS answer FROM unnest(ARRAY[
    'idem_claim_many(NULL)',
    $$idem_claim_many(ARRAY['bad', NULL])$$,
    $$idem_claim_many(ARRAY['bad', ''])$$,
    $$idem_claim_many(ARRAY['bad', repeat('x', 1025)])$$,
    $$idem_claim_many(ARRAY[['bad', 'bad 2'], ['bad 3', 'bad 4']])$$,
    $$idem_claim_many(ARRAY['bad'], ARRAY['1', '2']::jsonb[])$$,
    $$idem_claim_many(ARRAY['bad', 'bad 2'], '{}')$$,
    $$idem_claim_many(ARRAY['bad', 'bad 2'], ARRAY[['1', '2']]::jsonb[])$$,
    $$idem_claim_many(ARRAY['bad'], scope => NULL)$$,
    $$idem_claim_many(ARRAY['bad'], scope => 'absent')$$,
    $$idem_claim_many(ARRAY['bad'], lease => '0')$$,
    $$idem_claim_many(ARRAY['bad'], wait => '-1 second')$$,
    $$idem_claim_many(ARRAY['bad'], run => '')$$,
    'idem_complete_many(NULL)',
    $$idem_complete_many(ARRAY['bad', NULL])$$,
    $$idem_complete_many(ARRAY['bad'], ARRAY['1', '2']::jsonb[])$$,
    $$idem_complete_many(ARRAY['bad'], fences => '{}')$$,
    $$idem_complete_many(ARRAY['bad'], fences => '{{7}}')$$,
    $$idem_complete_many(ARRAY['bad'], fences => '{NULL}')$$,
    $$idem_complete_many(ARRAY['bad'], scope => 'absent')$$]) AS call;
SELECT count(*) FROM idempotency.records WHERE key LIKE 'bad%';
-- An array need not begin at 1.
BEGIN;
SELECT :claim_many('[5:6]={five,six}'::text[], '[0:1]={1,2}');
ROLLBACK;

-- wait is for the whole batch, and for nothing of one's own.
SELECT decision FROM idem_claim('held', lease => '1 hour');
SELECT clock_timestamp() AS before \gset
BEGIN;
SELECT :claim_many(ARRAY['free', 'held', 'free', 'held 2'], wait => '50 milliseconds');
SELECT clock_timestamp() - :'before' BETWEEN '50 milliseconds' AND '20 seconds' AS waited;
SELECT :claim_many(ARRAY['free'], wait => '1 hour');
SELECT :claim_many(ARRAY['held', 'free']);
ROLLBACK;
BEGIN;
SELECT decision FROM idem_claim('own', lease => '1 hour');
SELECT :claim_many(ARRAY['own', 'free'], wait => '1 hour');
ROLLBACK;
