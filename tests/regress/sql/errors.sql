-- Every error that the extension raises: SQLSTATE, message, DETAIL, HINT. What needs a second session is in tests/isolation.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

CREATE ROLE regress_idem_owner;
CREATE ROLE regress_idem_user;
CREATE ROLE regress_idem_other;
GRANT CREATE ON SCHEMA idempotency TO regress_idem_owner;
SET ROLE regress_idem_owner;
SELECT idem_scope_set('s');
SELECT idem_scope_grant('s', 'regress_idem_user');
SELECT idem_scope_grant('s', 'regress_idem_other');
SELECT fence FROM idem_claim('unknown', scope => 's', lease => '1 minute') \gset
SELECT idem_fail('unknown', 'unknown', scope => 's', fence => :fence);
SELECT fence FROM idem_claim('rejected', scope => 's', lease => '1 minute') \gset
SELECT idem_fail('rejected', 'rejected', scope => 's', fence => :fence);
SELECT fence FROM idem_claim('leased', '1', 's', '1 hour') \gset
RESET ROLE;
CREATE FUNCTION test.error_of(who text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE answer text;
BEGIN
    EXECUTE format('SET LOCAL ROLE %I', who);
    answer := test.try(statement);
    RESET ROLE;
    RETURN answer;
END
$$;
GRANT CREATE ON SCHEMA test TO regress_idem_owner;
SET ROLE regress_idem_owner;
CREATE FUNCTION test.returns_text(jsonb) RETURNS text LANGUAGE sql AS $$ SELECT '' $$;
CREATE AGGREGATE test.aggregate(jsonb) (SFUNC = jsonb_concat, STYPE = jsonb);
RESET ROLE;
GRANT EXECUTE ON FUNCTION idem_once(text, text, jsonb, text, interval, text), idem_call(text, text, jsonb, text, interval, text) TO regress_idem_owner;

\x on
SELECT call, answer FROM (VALUES
    (1, $$idem_claim('leased', '2', 's')$$),
    (2, $$idem_once('leased', 'SELECT $1', '1', 's')$$),
    (3, $$idem_complete('leased', '1', 's', 7)$$),
    (4, $$idem_complete('absent', '1', 's')$$),
    (5, $$idem_complete('leased', '1', 's')$$),
    (6, $$idem_release('rejected', 's', (SELECT fence FROM idem_peek('rejected', 's')))$$),
    (7, $$(SELECT idem_complete('here', '1', 's', fence) FROM idem_claim('here', scope => 's', lease => '1 minute'))$$),
    (8, $$(SELECT idem_renew('here', '1 minute', 's', fence) FROM idem_claim('here', scope => 's'))$$),
    (9, $$idem_once('unknown', 'SELECT $1', scope => 's')$$),
    (10, $$idem_once('rejected', 'SELECT $1', scope => 's')$$),
    (11, $$idem_claim(NULL, scope => 's')$$),
    (12, $$idem_claim('', scope => 's')$$),
    (13, $$idem_claim(repeat('k', 1025), scope => 's')$$),
    (14, $$idem_claim('k', scope => '')$$),
    (15, $$idem_claim('k', scope => 's', lease => '0')$$),
    (16, $$idem_claim('k', scope => 's', wait => '-1 second')$$),
    (17, $$idem_claim('k', scope => 's', issued_at => 'infinity')$$),
    (18, $$idem_claim('k', scope => 's', run => '')$$),
    (19, $$idem_key('run', 'a/b')$$),
    (20, $$idem_fail('leased', 'failed', scope => 's')$$),
    (21, $$idem_fail('leased', 'unknown', result => '1', scope => 's')$$),
    (22, $$idem_fail('leased', 'unknown', repeat('r', 8193), scope => 's')$$),
    (23, $$idem_complete('leased', to_jsonb(repeat('r', 65536)), 's')$$),
    (24, $$idem_claim_many(ARRAY(SELECT 'k' || g FROM generate_series(1, 1001) AS g), scope => 's')$$),
    (25, $$idem_claim_many(ARRAY['a', 'b'], ARRAY['1']::jsonb[], scope => 's')$$),
    (26, $$idem_claim_many(ARRAY[['a'], ['b']], scope => 's')$$),
    (27, $$idem_claim('k', scope => 'absent')$$),
    (28, $$idem_claim('k')$$),
    (29, $$idem_scope_set('s', dedup_window => '0')$$),
    (30, $$idem_scope_set('s', effect_kind => 'x')$$),
    (31, $$idem_scope_set('s', max_result_bytes => -1)$$),
    (32, $$idem_scope_set('s', ignore_args => ARRAY['a'])$$),
    (33, $$idem_scope_reset('s', 'x')$$),
    (34, $$idem_scope_drop('s')$$),
    (35, $$idem_scope_grant('s', 4294967295::regrole)$$),
    (36, $$idem_once('k', 'SELECT $1 WHERE false', scope => 's')$$),
    (37, $$idem_once('k', 'SELECT $1 FROM generate_series(1, 2)', scope => 's')$$),
    (38, $$idem_once('k', 'SELECT 1', scope => 's')$$),
    (39, $$idem_once('k', 'SELECT $1; SELECT $1', scope => 's')$$),
    (40, $$idem_once('k', 'COMMIT', scope => 's')$$),
    (41, $$idem_once('k', 'COPY (SELECT 1) TO STDOUT', scope => 's')$$),
    (42, $$idem_call('k', 'absent', scope => 's')$$),
    (43, $$idem_call('k', 'test.returns_text', scope => 's')$$),
    (44, $$idem_call('k', 'test.aggregate', scope => 's')$$),
    (45, $$idem_call(NULL, 'test.same', scope => 's')$$)) AS v (n, call),
    test.error_of('regress_idem_owner', 'SELECT ' || call) AS answer ORDER BY n;
-- Of roles that may use a scope and not more.
SELECT call, answer FROM (VALUES
    (1, $$idem_complete('leased', '1', 's', (SELECT fence FROM idem_peek('leased', 's')))$$),
    (2, $$idem_scope_set('s', keep_forever => true)$$),
    (3, $$idem_scope_reset('s', 'wait')$$),
    (4, $$idem_scope_drop('s')$$),
    (5, $$idem_scope_grant('s', 'regress_idem_other')$$),
    (6, $$idem_scope_revoke('s', 'regress_idem_other')$$),
    (7, $$idem_scope_set('mine')$$)) AS v (n, call),
    test.error_of('regress_idem_other', 'SELECT ' || call) AS answer ORDER BY n;
\x off

-- A claim left open, at COMMIT and at PREPARE TRANSACTION.
SELECT idem_claim('left open');
\echo :SQLSTATE
BEGIN;
SELECT count(idem_claim(k)) FROM unnest(ARRAY['left', 'open', 'three']) AS k;
COMMIT;
\echo :SQLSTATE
BEGIN;
SELECT decision FROM idem_claim('left open');
PREPARE TRANSACTION 'regress_idem';
\echo :SQLSTATE

-- Too many keys in one transaction.
BEGIN;
SET LOCAL idempotency.max_claims_per_transaction = 2;
SELECT count(idem_claim(k)) FROM unnest(ARRAY['a', 'b']) AS k;
SELECT test.try($$ SELECT idem_claim('c') $$);
ROLLBACK;

-- A row that something else wrote at the same moment, as logical replication might.
CREATE FUNCTION test.beside() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_trigger_depth() = 1 THEN
        INSERT INTO idempotency.outcome SELECT (NEW).*;
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER regress_beside BEFORE INSERT ON idempotency.outcome FOR EACH ROW EXECUTE FUNCTION test.beside();
SELECT test.try($$ SELECT idem_once('beside', 'SELECT $1') $$);
DROP TRIGGER regress_beside ON idempotency.outcome;
-- A row that a trigger kept from being written.
CREATE FUNCTION test.suppress() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER regress_suppress BEFORE INSERT ON idempotency.outcome FOR EACH ROW EXECUTE FUNCTION test.suppress();
SELECT test.try($$ SELECT idem_once('suppressed', 'SELECT $1') $$);
DROP TRIGGER regress_suppress ON idempotency.outcome;

-- Read-only transactions: every function that writes is refused, every function that reads works.
CREATE FUNCTION test.one(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT $1 $$;
BEGIN READ ONLY;
SELECT call, test.try('SELECT ' || call) AS answer FROM unnest(ARRAY[
    $$idem_claim('k')$$, $$idem_claim('k', lease => '1 minute')$$, $$idem_complete('k')$$, $$idem_fail('k', 'unknown')$$, $$idem_release('k')$$, $$idem_renew('k', '1 minute')$$,
    $$idem_claim_many(ARRAY['k'])$$, $$idem_claim_many('{}')$$, $$idem_complete_many(ARRAY['k'])$$, $$idem_once('k', 'SELECT $1')$$, $$idem_call('k', 'test.one')$$,
    $$idem_scope_set('r')$$, $$idem_scope_reset('s', 'wait')$$, $$idem_scope_drop('s')$$, $$idem_scope_grant('s', 'pg_monitor')$$, $$idem_scope_revoke('s', 'pg_monitor')$$, $$idem_sweep()$$,
    $$idem_peek('k')$$, $$idem_find('k')$$, $$idem_key('run', 'operation')$$, $$idem_canonical('1')$$, $$idem_hash('1')$$, $$idem_guarantee()$$, $$idem_status()$$]) AS call;
SELECT count(*) >= 0 AS works FROM idempotency.records;
SELECT count(*) FROM idempotency.scopes;
ROLLBACK;

-- In a parallel worker, through a function that was wrongly declared parallel safe.
CREATE FUNCTION test.claims(k text) RETURNS text LANGUAGE plpgsql PARALLEL SAFE AS $$
BEGIN
    RETURN (idem_claim(k)).decision;
END
$$;
CREATE TABLE test.row AS SELECT g AS n FROM generate_series(1, 2000) AS g;
BEGIN;
SET LOCAL parallel_setup_cost = 0;
SET LOCAL parallel_tuple_cost = 0;
SET LOCAL min_parallel_table_scan_size = 0;
SET LOCAL parallel_leader_participation = off;
SELECT DISTINCT test.claims('row ' || n) FROM test.row WHERE n < 10;
\echo :SQLSTATE
ROLLBACK;

SELECT idem_scope_revoke('s', r) FROM unnest(ARRAY['regress_idem_user', 'regress_idem_other']::regrole[]) AS r;
TRUNCATE idempotency.claim, idempotency.outcome;
SELECT idem_scope_drop('s');
DROP OWNED BY regress_idem_owner;
DROP ROLE regress_idem_owner, regress_idem_user, regress_idem_other;
