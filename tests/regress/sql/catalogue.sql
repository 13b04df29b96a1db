-- What the extension puts into the catalogue: signatures, properties, comments, privileges, dump registration.
CREATE TEMP VIEW member AS
    SELECT d.classid, d.objid
      FROM pg_depend AS d JOIN pg_extension AS e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
     WHERE e.extname = 'idempotency' AND d.deptype = 'e';

-- Everything that it consists of. From 17 on a relation's row type and its array count too.
SELECT classid::regclass, count(*) FROM member WHERE classid <> 'pg_type'::regclass GROUP BY 1 ORDER BY classid::regclass::text;
SELECT n.nspname AS schema, CASE c.relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' ELSE c.relkind::text END AS kind, c.relname AS name, c.reloptions
  FROM member AS m JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND m.objid = c.oid JOIN pg_namespace AS n ON n.oid = c.relnamespace
 ORDER BY 1, 2, 3;

-- The functions: what a user writes, and what the planner and a view may rely on.
\pset format unaligned
SELECT format('%I.%I(%s)%s', n.nspname, p.proname, pg_get_function_arguments(p.oid), ' RETURNS ' || pg_get_function_result(p.oid)) AS function
  FROM member AS m JOIN pg_proc AS p ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid JOIN pg_namespace AS n ON n.oid = p.pronamespace
 ORDER BY n.nspname, p.proname;
\pset format aligned
SELECT n.nspname || '.' || p.proname AS function, p.prokind AS kind, l.lanname AS language, p.provolatile AS volatile, p.proparallel AS parallel, p.proisstrict AS strict, p.prosecdef AS definer,
       p.proleakproof AS leakproof, p.proretset AS set, p.proconfig AS config, coalesce(p.proacl, acldefault('f', p.proowner))::text ~ '[{,]=X' AS public_may_execute
  FROM member AS m JOIN pg_proc AS p ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid JOIN pg_namespace AS n ON n.oid = p.pronamespace JOIN pg_language AS l ON l.oid = p.prolang
 ORDER BY n.nspname, p.proname;
-- No overloads, of any function; no SECURITY DEFINER without a search_path; no name outside its prefix.
SELECT p.proname FROM member AS m JOIN pg_proc AS p ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid GROUP BY 1 HAVING count(*) > 1;
SELECT p.oid::regprocedure FROM member AS m JOIN pg_proc AS p ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid
 WHERE p.prosecdef AND NOT coalesce(p.proconfig::text LIKE '%search_path=%', false);
SELECT p.oid::regprocedure FROM member AS m JOIN pg_proc AS p ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid
 WHERE p.pronamespace <> 'idempotency'::regnamespace AND p.proname NOT LIKE 'idem\_%';

-- Every public object has a comment, on one line.
SELECT pg_describe_object(classid, objid, 0) AS without_comment FROM member
 WHERE classid <> 'pg_type'::regclass AND coalesce(obj_description(objid, classid::regclass::name), '') !~ '^[^\n]{10,}$';

-- What PUBLIC may do, besides executing functions (above).
SELECT kind, name, string_agg(privilege_type, ', ' ORDER BY privilege_type) AS public_may FROM (
    SELECT 'schema' AS kind, nspname AS name, a.privilege_type, a.grantee FROM member AS m JOIN pg_namespace AS n ON m.classid = 'pg_namespace'::regclass AND m.objid = n.oid, aclexplode(n.nspacl) AS a
    UNION ALL
    SELECT 'relation', c.oid::regclass::text, a.privilege_type, a.grantee FROM member AS m JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND m.objid = c.oid, aclexplode(c.relacl) AS a
    UNION ALL
    SELECT 'column', c.oid::regclass || '.' || t.attname, a.privilege_type, a.grantee
      FROM member AS m JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND m.objid = c.oid JOIN pg_attribute AS t ON t.attrelid = c.oid, aclexplode(t.attacl) AS a) AS g
 WHERE grantee = 0 GROUP BY 1, 2 ORDER BY 1, 2;
-- Nobody else but the owner has anything.
SELECT pg_describe_object(m.classid, m.objid, 0), a.grantee::regrole
  FROM member AS m LEFT JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND m.objid = c.oid LEFT JOIN pg_proc AS p ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid,
       aclexplode(coalesce(c.relacl, p.proacl)) AS a
 WHERE a.grantee NOT IN (0, coalesce(c.relowner, p.proowner));

-- Every table is dumped, with all its rows.
SELECT c.oid::regclass AS "table", c.oid = ANY (e.extconfig) AS dumped, e.extcondition[array_position(e.extconfig, c.oid)] AS condition
  FROM pg_extension AS e, member AS m JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND m.objid = c.oid
 WHERE e.extname = 'idempotency' AND c.relkind IN ('r', 'p', 'S') ORDER BY c.relname;

-- Columns of the tables. Roles are regrole; a column of any other reg type would make pg_upgrade refuse.
SELECT c.relname AS "table", a.attname AS "column", format_type(a.atttypid, a.atttypmod) AS type, nullif(l.collname, 'default') AS collation, a.attnotnull AS not_null,
       pg_get_expr(d.adbin, d.adrelid) AS "default"
  FROM member AS m JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND m.objid = c.oid AND c.relkind = 'r' JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_collation AS l ON l.oid = a.attcollation LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
 ORDER BY 1, a.attnum;
-- The views' columns.
\pset format unaligned
SELECT c.relname AS view, string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum) AS columns
  FROM member AS m JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND m.objid = c.oid AND c.relkind = 'v' JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
 GROUP BY 1 ORDER BY 1;
\pset format aligned

-- Indexes and constraints by name. No key column depends on a locale.
SELECT i.indrelid::regclass AS "table", c.relname AS index, i.indisunique AS "unique", i.indisprimary AS "primary", pg_get_indexdef(i.indexrelid) AS definition
  FROM member AS m JOIN pg_index AS i ON m.classid = 'pg_class'::regclass AND m.objid = i.indrelid JOIN pg_class AS c ON c.oid = i.indexrelid ORDER BY m.objid::regclass::text, c.relname;
SELECT c.relname AS index, a.attname AS depends_on_a_locale
  FROM member AS m JOIN pg_index AS i ON m.classid = 'pg_class'::regclass AND m.objid = i.indrelid JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_attribute AS a ON a.attrelid = i.indexrelid
 WHERE a.attcollation NOT IN (0, '"C"'::regcollation);
SELECT c.relname AS "table", a.attname AS key_column_with_a_locale
  FROM member AS m JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND m.objid = c.oid AND c.relkind = 'r' JOIN pg_attribute AS a ON a.attrelid = c.oid
 WHERE a.attname IN ('key', 'name', 'run', 'digest', 'args_hash') AND a.attcollation NOT IN (0, '"C"'::regcollation);
SELECT conrelid::regclass AS "table", conname, contype FROM pg_constraint WHERE connamespace = 'idempotency'::regnamespace AND contype <> 'n' ORDER BY conrelid::regclass::text, conname;
-- A table without a primary key could not be replicated.
SELECT m.objid::regclass AS without_primary_key FROM member AS m JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND m.objid = c.oid AND c.relkind = 'r'
 WHERE NOT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary);

-- Triggers, which fire for replicated changes too (A). None but these.
SELECT tgrelid::regclass AS "table", tgname, tgenabled, tgfoid::regprocedure AS function
  FROM pg_trigger AS t JOIN member AS m ON m.classid = 'pg_class'::regclass AND m.objid = t.tgrelid WHERE NOT tgisinternal ORDER BY tgrelid::regclass::text, tgname;
SELECT m.objid::regclass AS with_row_security FROM member AS m JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND m.objid = c.oid WHERE c.relrowsecurity OR c.relforcerowsecurity;

-- The install script leaves nothing in the tables, so that a restore never collides.
CREATE DATABASE regress_idem_catalogue TEMPLATE template0;
\set main_database :DBNAME
\c regress_idem_catalogue
CREATE EXTENSION idempotency;
SELECT (SELECT count(*) FROM idempotency.claim) + (SELECT count(*) FROM idempotency.outcome) + (SELECT count(*) FROM idempotency.scope)
       + (SELECT count(*) FROM idempotency.scope_grant) + (SELECT count(*) FROM idempotency.args_rule) AS rows;
\c :main_database
DROP DATABASE regress_idem_catalogue WITH (FORCE);
