-- CREATE EXTENSION: nothing that was planted before is adopted.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

\set main_database :DBNAME
CREATE DATABASE regress_idem_install TEMPLATE template0;
ALTER DATABASE regress_idem_install SET lc_messages = 'C';
CREATE ROLE regress_idem_planter;
GRANT CREATE ON DATABASE regress_idem_install TO regress_idem_planter;
\c regress_idem_install
GRANT CREATE ON SCHEMA public TO regress_idem_planter;
-- Its schema, any of its functions: refused as a whole, and nothing is left behind. From 18 on an error has a context.
\set SHOW_CONTEXT never
SET ROLE regress_idem_planter;
CREATE SCHEMA idempotency;
RESET ROLE;
CREATE EXTENSION idempotency;
\echo :SQLSTATE
DROP SCHEMA idempotency;
SET ROLE regress_idem_planter;
CREATE FUNCTION public.idem_claim(key text, args jsonb, scope text, lease interval, wait interval, run text, issued_at timestamptz) RETURNS text LANGUAGE sql AS $$ SELECT 'planted' $$;
RESET ROLE;
CREATE EXTENSION idempotency;
\echo :SQLSTATE
DROP FUNCTION public.idem_claim(text, jsonb, text, interval, interval, text, timestamptz);
SET ROLE regress_idem_planter;
CREATE FUNCTION public.idem_status() RETURNS text LANGUAGE sql AS $$ SELECT 'planted' $$;
RESET ROLE;
CREATE EXTENSION idempotency;
\echo :SQLSTATE
DROP FUNCTION public.idem_status();
SELECT count(*) FROM pg_namespace WHERE nspname = 'idempotency';
-- Not by an ordinary role either.
SET ROLE regress_idem_planter;
CREATE EXTENSION idempotency;
\echo :SQLSTATE
-- Operators and functions in the schema that it goes into are not used while it is made, nor later.
CREATE FUNCTION public.evil(int, int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE 'planted operator used'; END $$;
CREATE OPERATOR public.= (FUNCTION = public.evil, LEFTARG = int, RIGHTARG = int);
CREATE FUNCTION public.pg_extension_config_dump(regclass, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'planted function used'; END $$;
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE 'planted function used'; END $$;
CREATE DOMAIN public.jsonb AS text CHECK (false);
CREATE DOMAIN public.regrole AS text CHECK (false);
RESET ROLE;
SET search_path = public, pg_catalog;
CREATE EXTENSION idempotency;
RESET search_path;
SELECT idem_scope_set('s', wait => '1 second');
SELECT decision FROM idem_claim('k', '1', 's', '1 minute');
SELECT key, state FROM idempotency.records;
SELECT scope FROM idempotency.scopes ORDER BY 1;
CALL idempotency.sweep();
-- Every object of it belongs to who made it.
SELECT count(*) > 30 AS members, count(*) FILTER (WHERE owner <> current_user::pg_catalog.regrole) AS of_others
  FROM pg_depend AS d
  LEFT JOIN LATERAL (SELECT proowner FROM pg_proc WHERE oid = d.objid AND d.classid = 'pg_proc'::regclass
                     UNION ALL SELECT relowner FROM pg_class WHERE oid = d.objid AND d.classid = 'pg_class'::regclass
                     UNION ALL SELECT nspowner FROM pg_namespace WHERE oid = d.objid AND d.classid = 'pg_namespace'::regclass
                     UNION ALL SELECT typowner FROM pg_type WHERE oid = d.objid AND d.classid = 'pg_type'::regclass) AS o (owner) ON true
 WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idempotency');
\c :main_database
DROP DATABASE regress_idem_install WITH (FORCE);
DROP ROLE regress_idem_planter;
