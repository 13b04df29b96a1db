-- idem_natural_key: what makes an operation safe for ever, what only looks like it, and the DDL that mends it.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

SET search_path = test, public;
CREATE TABLE credit (order_no int NOT NULL, kind text NOT NULL, note text, "Odd ""name" int NOT NULL);
\set key 'safe, index_name, missing, ddl FROM idem_natural_key'
SELECT :key('credit', '{order_no}');
-- Indexes that do not count.
CREATE INDEX plain ON credit (order_no);
SELECT :key('credit', '{order_no}');
DROP INDEX plain;
CREATE UNIQUE INDEX partial ON credit (order_no) WHERE kind = 'delay';
SELECT :key('credit', '{order_no}');
DROP INDEX partial;
CREATE UNIQUE INDEX expression ON credit ((order_no + 1));
SELECT :key('credit', '{order_no}');
DROP INDEX expression;
CREATE UNIQUE INDEX nullable ON credit (order_no, note);
SELECT :key('credit', '{order_no,note}');
-- Columns beyond those that were asked for prove nothing.
SELECT :key('credit', '{order_no}');
DROP INDEX nullable;
ALTER TABLE credit ADD CONSTRAINT later UNIQUE (order_no) DEFERRABLE INITIALLY IMMEDIATE;
SELECT :key('credit', '{order_no}');
ALTER TABLE credit DROP CONSTRAINT later;
INSERT INTO credit VALUES (1, 'delay', NULL, 1), (1, 'delay', NULL, 1);
CREATE UNIQUE INDEX CONCURRENTLY invalid ON credit (order_no);
SELECT :key('credit', '{order_no}');
DROP INDEX invalid;
TRUNCATE credit;
-- Indexes that do.
CREATE UNIQUE INDEX one ON credit (order_no);
SELECT :key('credit', '{order_no}');
-- On some of the columns: whatever repeats them all repeats those.
SELECT :key('credit', '{kind,order_no,kind}');
DROP INDEX one;
CREATE UNIQUE INDEX two ON credit (kind, order_no) INCLUDE (note);
SELECT :key('credit', '{order_no,kind}');
SELECT :key('credit', '{order_no}');
DROP INDEX two;
CREATE UNIQUE INDEX nulls ON credit (note) NULLS NOT DISTINCT;
SELECT :key('credit', '{note}');
ALTER TABLE credit ADD PRIMARY KEY ("Odd ""name");
SELECT :key('credit', ARRAY['Odd "name']);
-- Tables that forget, or do not hold all rows.
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
SELECT :key('unlogged', '{id}');
CREATE TEMPORARY TABLE temporary (id int PRIMARY KEY);
SELECT :key('pg_temp.temporary', '{id}');
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child () INHERITS (parent);
SELECT :key('parent', '{id}');
CREATE TABLE parted (id int NOT NULL, at date NOT NULL) PARTITION BY RANGE (at);
CREATE TABLE parted_1 PARTITION OF parted DEFAULT;
SELECT :key('parted', '{id,at}');
CREATE UNIQUE INDEX ON parted (id, at);
SELECT :key('parted', '{id,at}');
-- What is given as the mend, mends.
CREATE TABLE mended (a int, b int);
DO $$
DECLARE statement text;
BEGIN
    FOREACH statement IN ARRAY string_to_array((SELECT replace(ddl, ' CONCURRENTLY', '') FROM idem_natural_key('mended', '{a,b}')), E'\n') LOOP
        EXECUTE statement;
    END LOOP;
END $$;
SELECT :key('mended', '{b,a}');
-- Misuse.
SELECT test.try(format('SELECT idem_natural_key(%s)', args)) FROM unnest(ARRAY['NULL, ''{a}''', '''test.credit'', NULL', '''test.credit'', ''{}''', '''test.credit'', ''{order_no,NULL}''', '''test.credit'', ''{{order_no}}''', '''test.credit'', ''{no_such}''', '''test.credit'', ''{ctid}''',
    '''pg_views'', ''{viewname}''', '''test.nulls'', ''{note}''']) AS args;
