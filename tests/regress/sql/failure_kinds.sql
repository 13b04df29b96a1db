-- idem_failure_kind: what each kind of failure says about the effect, kinds of one's own, and spelling.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- Every built-in kind, and why. A change here changes what dispatchers repeat.
\pset format unaligned
SELECT kind, verdict, why FROM idempotency.failure_kinds WHERE origin = 'built in' ORDER BY split_part(kind, ':', 1), verdict, kind;
\pset format aligned
SELECT count(*), count(DISTINCT lower(kind)) AS spelt_once, count(*) FILTER (WHERE why !~ '^[^\n]{5,}$') AS without_why FROM idempotency.failure_kinds;
SELECT kind AS not_what_the_view_says FROM idempotency.failure_kinds WHERE idem_failure_kind(kind) <> verdict;

-- HTTP, status by status: those that stand for themselves, and the rest.
SELECT idem_failure_kind('http:' || status) AS verdict, string_agg(status::text, ' ' ORDER BY status) AS status
  FROM generate_series(400, 499) AS status WHERE idem_failure_kind('http:' || status) <> 'unknown' GROUP BY 1 ORDER BY 1;
SELECT idem_failure_kind('http:' || status) AS verdict, count(*), min(status), max(status)
  FROM generate_series(0, 999) AS status WHERE status NOT BETWEEN 400 AND 499 GROUP BY 1;

-- SQLSTATEs: their class where they do not stand for themselves.
SELECT kind, idem_failure_kind('sqlstate:' || kind) AS verdict
  FROM unnest(ARRAY['08000', '08001', '08003', '08004', '08006', '08007', '08P01', '22003', '23502', '23503', '23505', '23514', '23P01',
                    '25006', '25P02', '25P03', '28P01', '40000', '40001', '40002', '40003', '40P01', '42501', '42601', '42P01', '53100', '53300',
                    '54000', '55P03', '57000', '57014', '57P01', '57P02', '57P03', '57P05', '58030', 'P0001', 'P0002', 'PT402',
                    'XX000', 'XX002', 'HV000', '38000', '00000', 'ID001', 'ID002', 'ID003', 'ID004', 'ID005', 'ID006', 'ID007']) AS kind;

-- Nothing raises, and what is not known is unknown.
SELECT kind, idem_failure_kind(kind)
  FROM unnest(ARRAY[NULL, '', ' ', ':', 'http', 'http:', 'http:4', 'http:40', 'http:4000', 'http:4xy', 'http:-409', 'http:4٠9', 'sqlstate', 'sqlstate:', 'sqlstate:4',
                    'sqlstate:4000', 'sqlstate:400010', 'sqlstate:40%01', '%', '_', 'http:4__', 'http%', 'no such kind', E'\t', E'\x01', 'ünknown']) AS kind;
SELECT idem_failure_kind(repeat('timeout', 1000000)) AS long;

-- Case does not matter, nor how words are parted.
SELECT kind, idem_failure_kind(kind)
  FROM unnest(ARRAY['connection_refused', 'Connection refused', 'CONNECTION-REFUSED', E' connection_refused\r\n', 'connectionrefused', 'connection  refused',
                    'http:422', 'HTTP 422', 'http-422', 'http_422', 'http422', 'sqlstate:40p01', 'SQLSTATE 40P01', 'Http:4XX', 'sqlstate:40', 'SQLSTATE:p0']) AS kind;

-- Kinds of one's own: the kind itself before its class, and yours before what is built in.
BEGIN;
INSERT INTO idempotency.failure_kind VALUES
    ('bank:42', 'rejected', 'their manual, page 7'), ('HTTP 503', 'not_applied', 'their gateway says it before it forwards'),
    ('http:4xx', 'rejected', NULL), ('sqlstate:23', 'unknown', NULL), ('sqlstate:22012', 'not_applied', NULL), ('timeout', 'rejected', NULL),
    ('twice', 'not_applied', NULL), ('TWICE', 'rejected', NULL), ('thrice', 'rejected', NULL), ('Thrice', 'unknown', NULL), ('THRICE', 'not_applied', NULL);
SELECT kind, idem_failure_kind(kind)
  FROM unnest(ARRAY['bank:42', 'BANK 42', 'bank:43', 'http:503', 'http:502', 'http:418', 'http:409', 'http:429', 'sqlstate:23505', 'sqlstate:23514',
                    'sqlstate:22012', 'sqlstate:22003', 'timeout', 'twice', 'thrice']) AS kind;
SELECT kind, verdict, why FROM idempotency.failure_kinds WHERE origin = 'yours' ORDER BY kind;
-- What a row of yours replaces is not shown; what it does not stands as it was.
SELECT kind, origin, verdict FROM idempotency.failure_kinds WHERE kind ILIKE ANY (ARRAY['http%503', 'http:5xx', 'http:4xx', 'http:409', 'sqlstate:23%', 'timeout']) ORDER BY kind COLLATE "C";
SELECT kind AS not_what_the_view_says FROM idempotency.failure_kinds WHERE idem_failure_kind(kind) <> verdict AND kind !~* '^(twice|thrice)$' ORDER BY 1;
ROLLBACK;
SELECT test.try($$ INSERT INTO idempotency.failure_kind VALUES ('mine', 'applied') $$);
SELECT test.try($$ INSERT INTO idempotency.failure_kind VALUES ('mine', NULL) $$);
SELECT test.try($$ INSERT INTO idempotency.failure_kind VALUES (NULL, 'unknown') $$);

-- Anyone may ask, and read why; the table is its owner's.
CREATE ROLE regress_idem_asks;
SET ROLE regress_idem_asks;
SELECT idem_failure_kind('http:429'), (SELECT count(*) > 50 FROM idempotency.failure_kinds) AS reads;
SELECT test.try($$ INSERT INTO idempotency.failure_kind VALUES ('http:500', 'not_applied') $$);
SELECT test.try($$ SELECT FROM idempotency.failure_kind $$);
SELECT test.try($$ DELETE FROM idempotency.failure_kinds $$);
-- Whatever the caller's search_path holds.
RESET ROLE;
CREATE SCHEMA test_decoy;
CREATE FUNCTION test_decoy.lower(text) RETURNS text LANGUAGE sql AS $$ SELECT 'dns'::text $$;
CREATE TABLE test_decoy.failure_kinds (kind text, verdict text);
GRANT USAGE ON SCHEMA test_decoy TO regress_idem_asks;
SET ROLE regress_idem_asks;
SET search_path = test_decoy, pg_catalog, public;
SELECT public.idem_failure_kind('http:429');
RESET search_path;
RESET ROLE;
DROP SCHEMA test_decoy CASCADE;
DROP ROLE regress_idem_asks;

-- As a dispatcher uses it.
SELECT fence FROM idem_claim('payment', lease => '1 minute') \gset
SELECT idem_fail('payment', idem_failure_kind('http:502'), 'http:502', fence => :fence);
SELECT state, reason FROM idem_peek('payment');

-- However long: no copies are made of it.
SELECT idem_failure_kind(repeat('x', 300000000)), idem_failure_kind('connection_refused' || repeat(' ', 20000) || 'but not so');
