-- Who may do what: no rights, grants, members, claims of other roles, views, planted objects, and effects that run as the caller.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

CREATE ROLE regress_idem_owner;
CREATE ROLE regress_idem_app;
CREATE ROLE regress_idem_app2;
CREATE ROLE regress_idem_member IN ROLE regress_idem_app;
CREATE ROLE regress_idem_noinherit NOINHERIT IN ROLE regress_idem_app;
CREATE ROLE regress_idem_nobody;
GRANT CREATE ON SCHEMA idempotency TO regress_idem_owner;
SET ROLE regress_idem_owner;
SELECT idem_scope_set('s', dedup_window => '9 days');
SELECT idem_scope_set('other');
SELECT idem_scope_grant('s', r) FROM unnest(ARRAY['regress_idem_app', 'regress_idem_app2']::regrole[]) AS r;
SET ROLE regress_idem_app;
SELECT fence FROM idem_claim('open', '"args of app"', 's', '1 hour', run => 'run of app') \gset
SELECT fence AS done_fence FROM idem_claim('done', '"args of app"', 's', '1 hour') \gset
SELECT idem_complete('done', '"secret of app"', 's', :done_fence);
RESET ROLE;
SELECT decision FROM idem_claim('superuser', scope => 'other', lease => '1 hour');
-- Even where a role may execute everything, a scope that it may not use and one that does not exist look alike.
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO regress_idem_nobody;
SET ROLE regress_idem_nobody;
CREATE FUNCTION pg_temp.calls(scope text, key text) RETURNS SETOF text LANGUAGE sql AS $$
    SELECT format(c, key, scope) FROM unnest(ARRAY[
        'idem_claim(%L, scope => %L)', 'idem_claim(%L, scope => %L, lease => ''1 minute'')', 'idem_claim(%L, scope => %L, lease => ''100 days'')', 'idem_complete(%L, ''1'', %L)',
        'idem_complete(%L, ''1'', %L, 7)', 'idem_complete(%L, to_jsonb(repeat(''x'', 100000)), %L, 7)', 'idem_fail(%L, ''unknown'', scope => %L, fence => 7)', 'idem_release(%L, %L, 7)',
        'idem_renew(%L, ''1 minute'', %L, 7)', 'idem_claim_many(ARRAY[%L], scope => %L)', 'idem_complete_many(ARRAY[%L], scope => %L, fences => ARRAY[7])', 'idem_once(%L, ''SELECT 1/0'', scope => %L)',
        'idem_call(%L, ''test.same'', scope => %L)', 'idem_peek(%L, %L)', 'idem_guarantee(%2$L)', 'idem_scope_reset(%2$L, ''wait'')', 'idem_scope_drop(%2$L)',
        'idem_scope_grant(%2$L, ''regress_idem_nobody'')', 'idem_scope_revoke(%2$L, ''regress_idem_app'')', 'idem_scope_set(%2$L)']) AS c
$$;
SELECT regexp_replace(answer, '(scope "|grant\('')\w+', '\1...', 'g') AS answer, count(*), string_agg(DISTINCT split_part(call, '(', 1), ' ') AS functions
  FROM unnest(ARRAY['s', 'other', 'absent', 'default']) AS scope, unnest(ARRAY['open', 'done', 'superuser', 'absent']) AS key, pg_temp.calls(scope, key) AS call,
       test.try('SELECT ' || call) AS answer GROUP BY 1 \gx
SELECT * FROM idem_find('open');
SELECT * FROM idem_find('done');
SELECT count(*) FROM idempotency.records;
SELECT count(*) FROM idempotency.scopes;
SELECT open_keys, leases_overdue, unknown_keys FROM idem_status() \gx
-- The views' helpers tell nothing of scopes that one may not use.
SELECT g AS scope_id, idempotency.scope_usable(g) AS usable, idempotency.window_ends_at(g, '2000-01-01', NULL) AS window_ends_at FROM generate_series(-1, 3) AS g;
RESET ROLE;
-- Nothing was reserved or changed by all that.
SELECT key, state, fence IN (:fence, :done_fence) AS same_fence FROM idempotency.records WHERE scope = 's' ORDER BY key;

-- The tables are nobody's but the owner's; the views are read only.
CREATE FUNCTION test.as_role(who text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE answer text;
BEGIN
    EXECUTE format('SET LOCAL ROLE %I', who);
    answer := test.try(statement);
    RESET ROLE;
    RETURN answer;
END
$$;
SELECT answer, count(*) FROM unnest(ARRAY['claim', 'outcome', 'scope', 'scope_grant', 'args_rule']) AS t,
       unnest(ARRAY['SELECT 1 FROM idempotency.%I', 'SELECT FROM idempotency.%I WHERE false', 'DELETE FROM idempotency.%I', 'TRUNCATE idempotency.%I', 'LOCK TABLE idempotency.%I IN ACCESS SHARE MODE',
                    'INSERT INTO idempotency.%I DEFAULT VALUES', 'SELECT 1 FROM idempotency.%I FOR UPDATE', 'CREATE INDEX ON idempotency.%I ((1))', 'ALTER TABLE idempotency.%I ADD x int']) AS statement,
       test.as_role('regress_idem_app', format(statement, t)) AS answer GROUP BY 1 ORDER BY 1;
SELECT test.as_role('regress_idem_app', statement) FROM unnest(ARRAY[
    'DELETE FROM idempotency.records', 'UPDATE idempotency.scopes SET wait = NULL', 'SELECT idempotency.scopes_changed()', 'CREATE TABLE idempotency.mine ()', 'CALL idempotency.sweep()',
    'SELECT idem_sweep()', $$SELECT idem_once('k', 'SELECT $1', scope => 's')$$, $$SELECT idem_call('k', 'test.same', scope => 's')$$]) AS statement;

-- Grants: the role, its members who inherit, and nobody else.
SELECT who, answer FROM unnest(ARRAY['regress_idem_owner', 'regress_idem_app', 'regress_idem_app2', 'regress_idem_member', 'regress_idem_noinherit', 'regress_idem_nobody']) AS who,
       test.as_role(who, format('SELECT idem_claim(%L, scope => %L, lease => %L)', 'by ' || who, 's', '1 hour')) AS answer;
SELECT idem_scope_grant('s', '-');
SELECT test.as_role('regress_idem_nobody', $$ SELECT idem_claim('public', scope => 's', lease => '1 hour') $$);
SELECT idem_scope_revoke('s', '-');
SELECT split_part(test.as_role('regress_idem_nobody', $$ SELECT idem_claim('public', scope => 's', lease => '1 hour') $$), E'\n', 1);
SELECT key, claimed_by FROM idempotency.records WHERE scope = 's' ORDER BY key;

-- A leased claim is finished by the role that made it, its members, the scope's owner and superusers, whatever fence others know.
CREATE FUNCTION test.endings(key text, fence bigint) RETURNS SETOF text LANGUAGE sql AS $$
    SELECT format(c, key, 's', fence) FROM unnest(ARRAY['idem_complete(%L, ''"x"'', %L, %s)', 'idem_fail(%L, ''unknown'', scope => %L, fence => %s)', 'idem_release(%L, %L, %s)',
                                                         'idem_renew(%L, ''1 minute'', %L, %s)', 'idem_complete_many(ARRAY[%L], scope => %L, fences => ARRAY[%s])']) AS c
$$;
SELECT DISTINCT who, answer FROM unnest(ARRAY['regress_idem_app2', 'regress_idem_noinherit', 'regress_idem_nobody']) AS who, test.endings('open', :fence) AS call, test.as_role(who, 'SELECT ' || call) AS answer ORDER BY 1, 2;
SELECT DISTINCT answer FROM test.endings('done', :done_fence) AS call, test.as_role('regress_idem_app2', 'SELECT ' || call) AS answer;
SELECT split_part(test.as_role('regress_idem_app2', format($$ SELECT idem_complete('open', '1', 's', %s) $$, :fence + 1)), E'\n', 1) AS another_fence;
SELECT who, test.as_role(who, format($$ SELECT idem_renew('open', '30 minutes', 's', %s) $$, :fence)) FROM unnest(ARRAY['regress_idem_app', 'regress_idem_member', 'regress_idem_owner']) AS who;
SELECT idem_renew('open', '30 minutes', 's', :fence) IS NOT NULL AS by_a_superuser;
-- After a sweep moved it too.
SELECT idem_scope_set('local', effect_kind => 'local');
SELECT idem_scope_grant('local', r) FROM unnest(ARRAY['regress_idem_app', 'regress_idem_app2']::regrole[]) AS r;
SET ROLE regress_idem_app;
SELECT fence AS swept_fence FROM idem_claim('swept', scope => 'local', lease => '1 minute') \gset
RESET ROLE;
CALL test.age('swept', '1 hour', 'local');
CALL idempotency.sweep();
SELECT split_part(test.as_role('regress_idem_app2', format($$ SELECT idem_renew('swept', '1 minute', 'local', %s) $$, :swept_fence)), E'\n', 1) AS answer;
SELECT test.as_role('regress_idem_app', format($$ SELECT idem_renew('swept', '1 minute', 'local', %s) $$, :swept_fence)) AS answer;
-- Others of the scope see, replay and take over.
SET ROLE regress_idem_app2;
SELECT state, claimed_by, run FROM idem_peek('open', 's');
SELECT decision FROM idem_claim('open', '"args of app"', 's');
SELECT decision, result FROM idem_claim('done', '"args of app"', 's');
RESET ROLE;
CALL test.age('open', '2 hours', 's');
SET ROLE regress_idem_app2;
SELECT decision FROM idem_claim('open', '"args of app"', 's', '1 hour');
RESET ROLE;
SELECT split_part(test.as_role('regress_idem_app', format($$ SELECT idem_complete('open', '1', 's', %s) $$, :fence)), E'\n', 1) AS old_owner;

-- Policies are the owner's; creating is a right of its own, and a name that somebody has is not told.
SELECT who, answer FROM unnest(ARRAY['regress_idem_app', 'regress_idem_nobody']) AS who, test.as_role(who, $$ SELECT idem_scope_set('s', keep_forever => true) $$) AS answer;
SET ROLE regress_idem_owner;
SELECT test.try($$ SELECT idem_scope_set('local') $$);
SELECT test.try($$ SELECT idem_scope_set('default') $$);
RESET ROLE;
SELECT idem_scope_set('s', wait => '1 second');
SELECT scope, owner, wait, granted_to FROM idempotency.scopes WHERE scope = 's';

-- The views show the scopes that one may use, and to functions in WHERE no others.
SET ROLE regress_idem_app;
CREATE FUNCTION pg_temp.leak(what text) RETURNS bool LANGUAGE plpgsql COST 0.0000001 AS $$ BEGIN RAISE WARNING 'seen: %', what; RETURN true; END $$;
CREATE FUNCTION pg_temp.leak(what jsonb) RETURNS bool LANGUAGE plpgsql COST 0.0000001 AS $$ BEGIN RAISE WARNING 'seen: %', what; RETURN true; END $$;
SELECT scope, key FROM idempotency.records WHERE pg_temp.leak(key) AND pg_temp.leak(result) AND key = 'done';
SELECT scope FROM idempotency.scopes WHERE pg_temp.leak(scope) ORDER BY 1;
RESET ROLE;
SET ROLE regress_idem_nobody;
SELECT scope, key FROM idempotency.records WHERE pg_temp.leak(key) AND pg_temp.leak(result);
SELECT scope FROM idempotency.scopes WHERE pg_temp.leak(scope);
RESET ROLE;

-- Effects run as the caller, with the caller's rights and no others, and cannot change roles.
CREATE TABLE test.private (a jsonb);
CREATE TABLE test.shared (a jsonb);
GRANT INSERT, SELECT ON test.shared TO regress_idem_app;
GRANT EXECUTE ON FUNCTION idem_once(text, text, jsonb, text, interval, text), idem_call(text, text, jsonb, text, interval, text) TO regress_idem_app;
CREATE FUNCTION test.credit(jsonb) RETURNS jsonb LANGUAGE sql AS $$ INSERT INTO test.shared VALUES ($1) RETURNING to_jsonb(current_user) $$;
CREATE FUNCTION test.forbidden(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT $1 $$;
REVOKE ALL ON FUNCTION test.forbidden(jsonb) FROM PUBLIC;
CREATE SCHEMA test_hidden CREATE VIEW nothing AS SELECT 1 AS a;
CREATE FUNCTION test_hidden.f(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT $1 $$;
SET ROLE regress_idem_app;
SELECT * FROM idem_once('insert', 'INSERT INTO test.shared VALUES ($1) RETURNING to_jsonb(current_user)', '1', 's');
SELECT * FROM idem_call('credit', 'test.credit', '2', 's');
SELECT test.try(format($$ SELECT idem_once('forbidden', %L, scope => 's') $$, effect)) FROM unnest(ARRAY[
    'INSERT INTO test.private VALUES ($1) RETURNING a', 'SELECT to_jsonb(o) FROM idempotency.outcome AS o', 'SET ROLE regress_idem_member', 'RESET ROLE', 'SET SESSION AUTHORIZATION DEFAULT',
    'SELECT to_jsonb(set_config($x$role$x$, $x$none$x$, false))', 'SELECT to_jsonb(set_config($x$session_authorization$x$, session_user::text, false))',
    'SELECT test_hidden.f($1)']) AS effect;
SELECT test.try($$ SELECT idem_call('forbidden', 'test.forbidden', scope => 's') $$);
SELECT test.try($$ SELECT idem_call('forbidden', 'test_hidden.f', scope => 's') $$);
SELECT state FROM idem_peek('forbidden', 's');
SELECT current_user;
RESET ROLE;
SELECT a FROM test.shared;
-- A SECURITY DEFINER function claims as its owner, for callers who have no rights here.
GRANT CREATE ON SCHEMA test TO regress_idem_owner;
SET ROLE regress_idem_owner;
CREATE FUNCTION test.wrapper(k text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE c record;
BEGIN
    SELECT * INTO c FROM idem_claim(k, scope => 'other', lease => '1 hour');
    RETURN c.decision || ' ' || current_user;
END
$$;
SET ROLE regress_idem_nobody;
SELECT test.wrapper('wrapped');
SELECT test.wrapper('wrapped');
SELECT split_part(test.try($$ SELECT idem_peek('wrapped', 'other') $$), E'\n', 1);
RESET ROLE;
SELECT claimed_by FROM idem_peek('wrapped', 'other');

-- What others have planted on the search_path and in pg_temp is never used.
CREATE SCHEMA test_evil;
GRANT ALL ON SCHEMA test_evil TO regress_idem_nobody;
SET ROLE regress_idem_nobody;
DO $$
DECLARE t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['int', 'bigint', 'text', 'oid', 'regrole', 'uuid', 'bytea', 'jsonb', 'interval', 'timestamptz', '"char"', 'name', 'smallint'] LOOP
        EXECUTE format('CREATE FUNCTION test_evil.evil(%1$s, %1$s) RETURNS bool LANGUAGE plpgsql AS $x$ BEGIN RAISE ''planted operator used''; END $x$', t);
        EXECUTE (SELECT string_agg(format('CREATE OPERATOR test_evil.%s (FUNCTION = test_evil.evil, LEFTARG = %s, RIGHTARG = %2$s)', op, t), ';') FROM unnest(ARRAY['=', '<>', '<', '>', '<=', '>=', '+', '-', '||']) AS op);
    END LOOP;
    FOREACH t IN ARRAY ARRAY['max(int)', 'clock_timestamp()', 'now()', 'pg_stat_get_activity(int)', 'coalesce(text, text)', 'unnest(text[])', 'sum(int)', 'count(int)', 'current_user()', 'idem_sweep()'] LOOP
        EXECUTE format('CREATE FUNCTION test_evil.%s RETURNS int LANGUAGE plpgsql AS $x$ BEGIN RAISE ''planted function used''; END $x$', replace(t, 'coalesce', '"coalesce"'));
    END LOOP;
    FOREACH t IN ARRAY ARRAY['interval', 'regrole', 'int2', 'int4', 'int8', 'bool', 'oid', 'timestamptz'] LOOP
        EXECUTE format('CREATE DOMAIN test_evil.%s AS text CHECK (false)', t);
    END LOOP;
END
$$;
CREATE TABLE test_evil.scope (id text);
CREATE TABLE test_evil.pg_locks (pid text);
CREATE TABLE test_evil.pg_class (oid text);
CREATE TEMP TABLE scope (id text);
CREATE TEMP TABLE scope_grant (id text);
CREATE TEMP TABLE args_rule (id text);
CREATE TEMP TABLE claim (digest text);
CREATE TEMP TABLE outcome (digest text);
CREATE TEMP TABLE pg_locks (pid text);
CREATE TEMP TABLE pg_class (oid text);
RESET ROLE;
SET search_path = pg_temp, test_evil, pg_catalog, public;
SELECT 1 = 1;
SELECT clock_timestamp();
SELECT idem_scope_set('evil', '1 day', false, '2 hours', 'local', '1 day', '1 second', 1000, ARRAY['/a']);
SELECT idem_scope_grant('evil', 'regress_idem_app');
SELECT decision FROM idem_claim('k', '{"a": 1}', 'evil', '1 minute');
SELECT decision FROM idem_claim('k', '{"a": 2}', 'evil', '1 minute');
SELECT idem_renew('k', '2 minutes', 'evil', fence) IS NOT NULL AS renewed FROM idem_peek('k', 'evil');
SELECT state, pid IS NULL AS without_pid FROM idem_find('k');
SELECT idem_complete('k', '1', 'evil', fence) FROM idem_peek('k', 'evil');
SELECT ord, decision FROM idem_claim_many(ARRAY['k', 'k2'], ARRAY['{"a": 3}', NULL]::jsonb[], 'evil', '1 minute');
SELECT idem_fail('k2', 'not_applied', scope => 'evil', fence => fence) FROM idem_peek('k2', 'evil');
SELECT result FROM idem_once('k3', 'SELECT $1', '{"a": 1}', 'evil');
SELECT result FROM idem_call('k4', 'test.same', '{"a": 1}', 'evil');
SELECT idem_scope_reset('evil', 'wait');
SELECT idem_scope_revoke('evil', 'regress_idem_app');
SELECT leases_ended IS NOT NULL AS swept FROM public.idem_sweep();
CALL idempotency.sweep();
SELECT scope, key, state FROM idempotency.records ORDER BY scope, key;
SELECT scope FROM idempotency.scopes ORDER BY scope;
SELECT version IS NOT NULL AS has_version FROM idem_status();
SELECT idem_guarantee('evil') IS NOT NULL AS guarantee;
SELECT idem_key('run', 'operation', '1') IS NOT NULL AS key, idem_hash('1') IS NOT NULL AS hash;
RESET search_path;

DROP SCHEMA test_evil, test_hidden CASCADE;
TRUNCATE idempotency.claim, idempotency.outcome, idempotency.scope, idempotency.scope_grant, idempotency.args_rule;
DROP OWNED BY regress_idem_owner, regress_idem_app, regress_idem_nobody CASCADE;
DROP ROLE regress_idem_member, regress_idem_noinherit, regress_idem_owner, regress_idem_app, regress_idem_app2, regress_idem_nobody;
