-- idem_natural_key: which unique index makes an operation safe for ever, and which one only looks as if it did. What it gives as DDL is run, and then it is safe.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- Goes red without: each condition on pg_index in sql/90_doctor.sql, one block below for each.
CREATE SCHEMA regress_nk;
SET search_path = regress_nk, public;

-- Safe: a primary key, a unique constraint, a unique index; in any order, and on some of the columns.
CREATE TABLE plain (id bigint PRIMARY KEY, order_no int NOT NULL, reason text NOT NULL, note text, CONSTRAINT plain_order_reason UNIQUE (order_no, reason));
SELECT * FROM idem_natural_key('plain', '{id}');
SELECT * FROM idem_natural_key('plain', '{reason,order_no}');
SELECT * FROM idem_natural_key('plain', '{note,order_no,reason}');
SELECT * FROM idem_natural_key('plain', '{order_no,order_no,reason}');
-- The narrowest index is named.
SELECT index_name FROM idem_natural_key('plain', '{order_no,reason,id}');
-- Not on fewer columns than the index has, and not on others.
SELECT * FROM idem_natural_key('plain', '{order_no}');
SELECT * FROM idem_natural_key('plain', '{note}');
-- Columns that are only included do not make it unique.
CREATE TABLE included (a int NOT NULL, b int NOT NULL); CREATE UNIQUE INDEX included_a ON included (a) INCLUDE (b);
SELECT safe, index_name, missing FROM idem_natural_key('included', '{b}');
SELECT safe, index_name, missing FROM idem_natural_key('included', '{a,b}');

-- Nulls are never equal, unless the index says so.
CREATE TABLE nullable (a int, b int NOT NULL); CREATE UNIQUE INDEX nullable_a_b ON nullable (a, b);
SELECT safe, index_name, missing FROM idem_natural_key('nullable', '{a,b}');
INSERT INTO nullable VALUES (NULL, 1), (NULL, 1);
TRUNCATE nullable; DROP INDEX nullable_a_b; CREATE UNIQUE INDEX nullable_a_b ON nullable (a, b) NULLS NOT DISTINCT;
SELECT safe, index_name, missing FROM idem_natural_key('nullable', '{a,b}');

-- Found too late, for some rows only, or of something else.
CREATE TABLE deferred (a int NOT NULL UNIQUE DEFERRABLE INITIALLY IMMEDIATE);
SELECT safe, index_name, missing FROM idem_natural_key('deferred', '{a}');
CREATE TABLE partly (a int NOT NULL, live bool NOT NULL); CREATE UNIQUE INDEX partly_a ON partly (a) WHERE live;
SELECT safe, index_name, missing FROM idem_natural_key('partly', '{a}');
CREATE TABLE expressed (a text NOT NULL, b int NOT NULL); CREATE UNIQUE INDEX expressed_a ON expressed (lower(a));
SELECT safe, index_name, missing FROM idem_natural_key('expressed', '{a}');
-- An index on expressions of other columns is nothing that comes near.
SELECT safe, index_name, missing FROM idem_natural_key('expressed', '{b}');
CREATE UNIQUE INDEX expressed_a_b ON expressed (b, lower(a));
SELECT safe, index_name, missing FROM idem_natural_key('expressed', '{a,b}');
CREATE TABLE common (a int NOT NULL); CREATE INDEX common_a ON common (a);
SELECT safe, index_name, missing FROM idem_natural_key('common', '{a}');
CREATE TABLE excluded (a int NOT NULL, EXCLUDE USING btree (a WITH =));
SELECT safe, index_name, missing FROM idem_natural_key('excluded', '{a}');
-- Left invalid by a build that failed.
CREATE TABLE invalid (a int NOT NULL); INSERT INTO invalid VALUES (1), (1);
CREATE UNIQUE INDEX CONCURRENTLY invalid_a ON invalid (a);
SELECT safe, index_name, missing FROM idem_natural_key('invalid', '{a}');

-- What a crash or a disconnect empties.
CREATE UNLOGGED TABLE unlogged (a int PRIMARY KEY);
SELECT * FROM idem_natural_key('unlogged', '{a}');
SELECT ddl FROM idem_natural_key('unlogged', '{a}') \gexec
SELECT safe FROM idem_natural_key('unlogged', '{a}');
CREATE TEMPORARY TABLE temporary (a int PRIMARY KEY);
SELECT safe, index_name, missing, ddl FROM idem_natural_key('temporary', '{a}');
CREATE UNLOGGED TABLE unlogged_and_bare (a int);
SELECT safe, index_name, missing FROM idem_natural_key('unlogged_and_bare', '{a}');

-- Partitions: an index of the whole covers them all, one of each partition only itself. ON ONLY is invalid until the last is attached.
CREATE TABLE parted (day date NOT NULL, a int NOT NULL) PARTITION BY RANGE (day);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE UNIQUE INDEX parted_1_a ON parted_1 (a);
SELECT safe, index_name, missing FROM idem_natural_key('parted', '{a}');
SELECT safe, index_name FROM idem_natural_key('parted_1', '{a}');
CREATE UNIQUE INDEX parted_day_a ON ONLY parted (day, a);
SELECT safe, index_name, missing, ddl FROM idem_natural_key('parted', '{day,a}');
CREATE UNIQUE INDEX parted_1_day_a ON parted_1 (day, a);
ALTER INDEX parted_day_a ATTACH PARTITION parted_1_day_a;
SELECT safe, index_name, missing FROM idem_natural_key('parted', '{day,a}');
-- A crash empties a partition that is not logged, whatever the whole is.
CREATE UNLOGGED TABLE parted_2 PARTITION OF parted FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
SELECT safe FROM idem_natural_key('parted', '{day,a}');

-- Children by inheritance have no part in the parent's index.
CREATE TABLE parent (a int PRIMARY KEY); CREATE TABLE child () INHERITS (parent);
SELECT * FROM idem_natural_key('parent', '{a}');
INSERT INTO parent VALUES (1); INSERT INTO child VALUES (1); SELECT count(*) FROM parent;
DROP TABLE child;
SELECT safe FROM idem_natural_key('parent', '{a}');

-- Names that need quotes come quoted, and the DDL is what it says and no more. Statement by statement, as psql runs it.
CREATE TABLE "Odd ""Name""; DROP TABLE regress_nk.plain; --" ("Order No" int, "sum; total" numeric, "from" text NOT NULL);
SELECT * FROM idem_natural_key('"Odd ""Name""; DROP TABLE regress_nk.plain; --"', ARRAY['Order No', 'sum; total', 'from']);
SELECT statement FROM idem_natural_key('"Odd ""Name""; DROP TABLE regress_nk.plain; --"', ARRAY['Order No', 'sum; total', 'from']), regexp_split_to_table(ddl, '\n') AS statement \gexec
SELECT * FROM idem_natural_key('"Odd ""Name""; DROP TABLE regress_nk.plain; --"', ARRAY['from', 'sum; total', 'Order No']);
SELECT to_regclass('regress_nk.plain') IS NOT NULL AS still_there;
CREATE UNIQUE INDEX "Odd index" ON common (a);
SELECT index_name FROM idem_natural_key('common', '{a}');
-- Every kind of miss is mended by its DDL. CONCURRENTLY needs a statement of its own.
SELECT t, statement FROM unnest('{plain,deferred,partly,expressed,excluded,unlogged_and_bare}'::text[]) AS t, idem_natural_key(t::regclass, CASE t WHEN 'plain' THEN '{note}' ELSE '{a}' END::text[]), regexp_split_to_table(ddl, '\n') AS statement;
SELECT statement FROM unnest('{plain,deferred,partly,expressed,excluded,unlogged_and_bare}'::text[]) AS t, idem_natural_key(t::regclass, CASE t WHEN 'plain' THEN '{note}' ELSE '{a}' END::text[]), regexp_split_to_table(ddl, '\n') AS statement \gexec
SELECT t, safe, missing FROM unnest('{plain,deferred,partly,expressed,excluded,unlogged_and_bare}'::text[]) AS t, idem_natural_key(t::regclass, CASE t WHEN 'plain' THEN '{note}' ELSE '{a}' END::text[]);
-- Where only NOT NULL is missing, nothing else is added.
CREATE TABLE almost (a int UNIQUE);
SELECT ddl FROM idem_natural_key('almost', '{a}');

-- A column that was dropped, and one that came later.
CREATE TABLE changed (gone int, a int NOT NULL); ALTER TABLE changed DROP COLUMN gone; ALTER TABLE changed ADD COLUMN b int NOT NULL; ALTER TABLE changed ADD UNIQUE (b);
SELECT safe, index_name FROM idem_natural_key('changed', '{b}');

-- Refused.
CREATE VIEW looks AS SELECT 1 AS a; CREATE MATERIALIZED VIEW looks_stored AS SELECT 1 AS a; CREATE SEQUENCE counter;
SELECT test.try(format('SELECT idem_natural_key(%s)', a)) FROM unnest(ARRAY[$$NULL, '{a}'$$, $$'plain', NULL$$, $$'plain', '{}'$$, $$'plain', '{id,NULL}'$$, $$'plain', '{no_such}'$$, $$'plain', '{ID}'$$, $$'plain', '{ctid}'$$, $$'changed', '{gone}'$$,
    $$'changed', '{"........pg.dropped.1........"}'$$, $$'looks', '{a}'$$, $$'looks_stored', '{a}'$$, $$'counter', '{last_value}'$$, $$'plain_pkey', '{id}'$$, $$'no_such_table', '{a}'$$, $$0::regclass, '{a}'$$]) AS a;
-- Anybody may ask: it reads the catalogue, and a search_path of theirs changes nothing.
CREATE ROLE regress_nk_none; GRANT USAGE ON SCHEMA regress_nk TO regress_nk_none;
CREATE SCHEMA regress_nk_evil; CREATE FUNCTION regress_nk_evil.format(text, VARIADIC text[]) RETURNS text LANGUAGE sql AS $$ SELECT 'planted' $$;
SET ROLE regress_nk_none;
SET search_path = regress_nk_evil, pg_catalog, public;
SELECT safe, index_name FROM public.idem_natural_key('regress_nk.plain', '{id}');
RESET ROLE;
RESET search_path;
SET client_min_messages = error;
DROP SCHEMA regress_nk CASCADE; DROP SCHEMA regress_nk_evil CASCADE;
DROP ROLE regress_nk_none;
