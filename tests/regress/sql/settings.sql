-- Settings: what there is, who may set what, and what is refused.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

SELECT name, vartype, boot_val, unit, min_val, max_val, context, short_desc, extra_desc FROM pg_settings WHERE name LIKE 'idempotency.%' ORDER BY name \gx
-- Unknown ones and bad values.
SET idempotency.windw = '1 day';
\echo :SQLSTATE
SELECT set_config('idempotency.max_lease', '1 hour', false);
\echo :SQLSTATE
-- From 17 on a range names its unit.
SELECT regexp_replace(test.try(format('SET idempotency.%s', v)), '\(0 (ms|B) \.\. (\d+) \1\)', '(0 .. \2)') AS try FROM unnest(ARRAY['wait = -1', 'wait = ''soon''', 'max_result_bytes = -1', 'max_claims_per_transaction = 0', 'sweep_batch = 0', 'sweep_batch = 10001', 'sweep_batch = 2.7e9']) AS v;
-- Those that a reload changes cannot be set in a session.
SELECT test.try(format('SET idempotency.%s', v)) FROM unnest(ARRAY['default_window = ''1 day''', 'naptime = ''1 s''', 'worker = off', 'databases = ''a''']) AS v;
-- An ordinary role may choose how long it waits, and nothing that others rely on.
CREATE ROLE regress_idem_settings;
SET ROLE regress_idem_settings;
SELECT test.try(format('SET idempotency.%s', v)) FROM unnest(ARRAY['wait = ''1 s''', 'max_result_bytes = ''1 MB''', 'max_claims_per_transaction = 5', 'sweep_batch = 5', 'default_window = ''1 s''']) AS v;
RESET ROLE;
SHOW idempotency.wait;
RESET idempotency.wait;
SHOW idempotency.wait;
-- Unless a superuser lets it.
ALTER ROLE regress_idem_settings SET idempotency.max_claims_per_transaction = 7;
SELECT setconfig FROM pg_db_role_setting WHERE setrole = 'regress_idem_settings'::regrole;
DROP ROLE regress_idem_settings;

-- They take effect at once.
SET idempotency.max_result_bytes = 10;
SELECT test.try($$ SELECT idem_once('k', 'SELECT $1', '"more than ten"') $$);
SET idempotency.max_result_bytes = '1 kB';
SELECT result FROM idem_once('k', 'SELECT $1', '"more than ten"');
RESET idempotency.max_result_bytes;
-- A scope's own policy comes first.
SELECT idem_scope_set('small', max_result_bytes => 10);
SELECT test.try($$ SELECT idem_once('k', 'SELECT $1', '"more than ten"', 'small') $$);
SET idempotency.max_result_bytes = 0;
SELECT idem_scope_set('small', max_result_bytes => 100);
SELECT result FROM idem_once('k', 'SELECT $1', '"more than ten"', 'small');
RESET idempotency.max_result_bytes;
-- default_window in the words of a scope that sets none.
SELECT idem_guarantee('small') ~ ('window of ' || extract(day FROM justify_hours(current_setting('idempotency.default_window')::interval)) || ' days') AS default_window;
