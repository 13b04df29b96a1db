-- No answer depends on how the operating system sorts text: keys are compared and indexed as bytes, so a new version of the
-- locale's rules orders no index anew. A database with the rules of a language answers as one without.
--
-- Goes red with an index or a unique constraint on text in the database's collation.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- Columns of indexes that sort by anything but bytes.
SELECT i.indexrelid::regclass AS index, a.attname, format_type(a.atttypid, NULL) AS type, l.collname
  FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid AND c.relnamespace = 'idempotency'::regnamespace
  JOIN pg_attribute AS a ON a.attrelid = i.indexrelid JOIN unnest(i.indcollation) WITH ORDINALITY AS n (oid, at) ON n.at = a.attnum
  JOIN pg_collation AS l ON l.oid = n.oid WHERE l.collname <> 'C';

-- The rest needs the rules of a language, and amcheck. A PostgreSQL that is without them ends here, as in collation_1.out.
SELECT EXISTS (SELECT FROM pg_collation WHERE collname = 'en-x-icu') AND EXISTS (SELECT FROM pg_available_extensions WHERE name = 'amcheck') AS goes_on \gset
\if :goes_on
\else
\quit
\endif
\set main_database :DBNAME
CREATE DATABASE regress_idem_language TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C';
CREATE DATABASE regress_idem_bytes TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C';
ALTER DATABASE regress_idem_language SET lc_messages = 'C';
ALTER DATABASE regress_idem_bytes SET lc_messages = 'C';
CREATE FUNCTION test.script() RETURNS text LANGUAGE sql AS $s$ SELECT $t$
    CREATE EXTENSION idempotency;
    CREATE EXTENSION amcheck;
    CREATE TABLE key AS SELECT ordinality AS n, k COLLATE "C" AS k FROM unnest(ARRAY['1-1', '11', 'a b', 'ab', 'a-b', 'é', 'e', 'É', U&'e\0301', 'z', 'Z', 'aB', 'AB', ' ', '-', '--', 'co-op', 'coop']) WITH ORDINALITY AS u (k, ordinality);
    SELECT count(idem_scope_set(k)) FROM key;
$t$ $s$;
SELECT test.script() AS script \gset
\c regress_idem_language
SET client_min_messages = warning;
SELECT daticulocale IS NOT NULL OR datlocprovider = 'i' AS by_language, 'a' < 'B' AS sorts_by_language FROM (SELECT to_jsonb(d) ->> 'daticulocale' AS daticulocale, datlocprovider FROM pg_database AS d WHERE datname = current_database()) AS d;
:script
SELECT string_agg(c.decision, ' ' ORDER BY n) AS decisions FROM key, idem_claim(k, to_jsonb(n), lease => '1 hour', run => k) AS c;
SELECT string_agg(c.decision, ' ' ORDER BY n) AS in_scopes FROM key, idem_claim('k', to_jsonb(n), k, '1 hour') AS c;
SELECT array_agg(m.key ORDER BY ord) AS batch FROM (SELECT array_agg('batch ' || k ORDER BY n DESC) AS keys FROM key) AS k, idem_claim_many(k.keys, lease => '1 hour') AS m \gset
SELECT string_agg(e.decision, ' ' ORDER BY n) AS enqueued FROM key, idem_enqueue('m ' || k, k, to_jsonb(n), ordering_key => k) AS e;
SELECT count(idem_complete(k, to_jsonb(n), fence => p.fence)) AS completed FROM key, idem_peek(k) AS p;
SELECT string_agg(c.decision || ' ' || c.result, ' ' ORDER BY n) AS replays FROM key, idem_claim(k, to_jsonb(n)) AS c \gset
SELECT string_agg(d.payload::text, ' ' ORDER BY n) AS sent FROM key, idem_dispatch(k, 10, '1 hour') AS d \gset
-- Raises where an index is out of order, or lacks a row.
SELECT count(bt_index_check(oid, true)) > 15 AS checked FROM pg_class WHERE relkind = 'i' AND relnamespace = 'idempotency'::regnamespace;
SELECT string_agg(key, '|' ORDER BY scope, key) AS shown FROM idempotency.records \gset
\c regress_idem_bytes
SET client_min_messages = warning;
SELECT 'a' < 'B' AS sorts_by_language;
:script
SELECT string_agg(c.decision, ' ' ORDER BY n) AS decisions FROM key, idem_claim(k, to_jsonb(n), lease => '1 hour', run => k) AS c;
SELECT string_agg(c.decision, ' ' ORDER BY n) AS in_scopes FROM key, idem_claim('k', to_jsonb(n), k, '1 hour') AS c;
SELECT array_agg(m.key ORDER BY ord) = :'batch'::text[] AS same_batch FROM (SELECT array_agg('batch ' || k ORDER BY n DESC) AS keys FROM key) AS k, idem_claim_many(k.keys, lease => '1 hour') AS m;
SELECT string_agg(e.decision, ' ' ORDER BY n) AS enqueued FROM key, idem_enqueue('m ' || k, k, to_jsonb(n), ordering_key => k) AS e;
SELECT count(idem_complete(k, to_jsonb(n), fence => p.fence)) AS completed FROM key, idem_peek(k) AS p;
SELECT string_agg(c.decision || ' ' || c.result, ' ' ORDER BY n) = :'replays' AS same_replays FROM key, idem_claim(k, to_jsonb(n)) AS c;
SELECT string_agg(d.payload::text, ' ' ORDER BY n) = :'sent' AS same_messages FROM key, idem_dispatch(k, 10, '1 hour') AS d;
SELECT string_agg(key, '|' ORDER BY scope, key) = :'shown' AS same_order FROM idempotency.records;
\c :main_database
DROP DATABASE regress_idem_language WITH (FORCE);
DROP DATABASE regress_idem_bytes WITH (FORCE);
