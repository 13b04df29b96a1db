-- What a DBA may do to the tables: columns, indexes, triggers, constraints, REINDEX, and the extension dropped and made again in one session.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

\set main_database :DBNAME
CREATE DATABASE regress_idem_dba TEMPLATE template0;
ALTER DATABASE regress_idem_dba SET lc_messages = 'C';
\c regress_idem_dba
CREATE EXTENSION idempotency;
\set ECHO none
\i :helpers
\set ECHO all
-- One operation of each kind, whatever the tables look like: what the tests below run again and again.
CREATE FUNCTION test.works(what text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE c record; f bigint;
BEGIN
    SELECT * INTO c FROM idem_claim(what || ' t', '1');
    ASSERT c.decision = 'execute' AND c.attempt = 1, 'claim ' || c.decision;
    PERFORM idem_complete(what || ' t', '{"amount": 5, "id": 7}');
    SELECT * INTO c FROM idem_claim(what || ' t', '1');
    ASSERT c.decision = 'replay' AND c.result = '{"amount": 5, "id": 7}', 'replay ' || c.decision;
    SELECT * INTO c FROM idem_claim(what || ' l', '1', 'local', '1 minute');
    PERFORM idem_renew(what || ' l', '2 minutes', 'local', c.fence);
    PERFORM idem_fail(what || ' l', 'unknown', 'timeout', scope => 'local', fence => c.fence);
    SELECT * INTO c FROM idem_claim(what || ' l', '1', 'local', '1 minute');
    ASSERT c.decision = 'reconcile' AND c.attempt = 2 AND c.reason = 'timeout', 'reconcile ' || c.decision;
    PERFORM idem_fail(what || ' l', 'rejected', 'declined', '{"amount": 1}', 'local', c.fence);
    SELECT * INTO c FROM idem_claim(what || ' l', '1', 'local');
    ASSERT c.decision = 'rejected' AND c.reason = 'declined' AND c.result = '{"amount": 1}', 'rejected ' || c.decision;
    SELECT * INTO c FROM idem_claim(what || ' s', '1', 'local', '1 minute');
    CALL test.age(what || ' s', '1 hour', 'local');
    WHILE (SELECT more FROM idem_sweep()) LOOP END LOOP;
    SELECT * INTO c FROM idem_claim(what || ' s', '1', 'local', '1 minute');
    ASSERT c.decision = 'execute' AND c.attempt = 2 AND c.reason = 'lease expired', 'swept ' || c.decision;
    PERFORM idem_release(what || ' s', 'local', c.fence);
    ASSERT (SELECT state FROM idem_peek(what || ' s', 'local')) = 'not_applied', 'released';
    CALL test.age(what || ' s', '31 days', 'local');
    WHILE (SELECT more FROM idem_sweep()) LOOP END LOOP;
    ASSERT (SELECT state FROM idem_peek(what || ' s', 'local')) = 'absent', 'pruned';
    ASSERT (SELECT count(*) FROM idempotency.records WHERE key LIKE what || ' %') = 2, 'records';
    ASSERT (SELECT count(*) FROM idem_find(what || ' t')) = 1, 'find';
    RETURN 'right';
END
$$;
SELECT idem_scope_set('local', effect_kind => 'local');
SELECT test.works('as installed');

-- Columns, with defaults of every sort, between calls of one session.
ALTER TABLE idempotency.outcome ADD note text DEFAULT 'by a DBA', ADD at timestamptz DEFAULT now(), ADD n bigserial;
SELECT test.works('columns');
SELECT count(*), count(DISTINCT note), count(DISTINCT n) = count(*) AS numbered FROM idempotency.outcome WHERE key LIKE 'columns %';
ALTER TABLE idempotency.claim ADD note text NOT NULL DEFAULT 'by a DBA', ADD u uuid DEFAULT gen_random_uuid();
SELECT test.works('columns of claim');
SELECT decision FROM idem_claim('noted', lease => '1 minute');
UPDATE idempotency.claim SET note = 'kept' WHERE key = 'noted';
SELECT idem_renew('noted', '2 minutes', fence => fence) IS NOT NULL AS renewed FROM idem_peek('noted');
SELECT note FROM idempotency.claim WHERE key = 'noted';
ALTER TABLE idempotency.outcome ADD amount numeric GENERATED ALWAYS AS ((result ->> 'amount')::numeric) STORED;
SELECT test.works('generated');
SELECT amount FROM idempotency.outcome WHERE key LIKE 'generated %' ORDER BY key;
ALTER TABLE idempotency.outcome DROP at, DROP n;
ALTER TABLE idempotency.outcome ADD later jsonb DEFAULT '{}';
SELECT test.works('dropped columns');
ALTER TABLE idempotency.scope ADD note text DEFAULT 'x';
SELECT idem_scope_set('new', wait => '1 second');
SELECT test.works('columns of scope');
-- A column that nothing fills is the DBA's own error, and leaves nothing.
ALTER TABLE idempotency.outcome ADD needed int;
ALTER TABLE idempotency.outcome ADD CONSTRAINT needed CHECK (needed IS NOT NULL) NOT VALID;
SELECT split_part(test.try($$ SELECT idem_once('needed', 'SELECT $1') $$), E'\n', 1);
SELECT state FROM idem_peek('needed');
ALTER TABLE idempotency.outcome DROP needed;

-- Indexes: on an expression of the result, partial, unique.
CREATE INDEX regress_amount ON idempotency.outcome (((result ->> 'amount')::numeric)) WHERE state = 'c';
CREATE INDEX regress_lower ON idempotency.claim (lower(key));
CREATE INDEX regress_gin ON idempotency.outcome USING gin (result);
SELECT test.works('indexes');
SET enable_seqscan = off;
SELECT count(*) FROM idempotency.outcome WHERE (result ->> 'amount')::numeric = 5 AND state = 'c';
SELECT count(*) FROM idempotency.outcome WHERE result @> '{"amount": 1}';
RESET enable_seqscan;
CREATE UNIQUE INDEX regress_unique ON idempotency.outcome ((result ->> 'id')) WHERE key LIKE 'unique %';
SELECT result FROM idem_once('unique 1', 'SELECT $1', '{"id": 1}');
SELECT test.try($$ SELECT idem_once('unique 2', 'SELECT $1', '{"id": 1}') $$);
SELECT state FROM idem_peek('unique 2');
-- An expression that fails for some result is the DBA's own error too.
SELECT test.try($$ SELECT idem_once('text', 'SELECT $1', '{"amount": "five"}') $$);
ALTER TABLE idempotency.outcome DROP amount;
DROP INDEX idempotency.regress_amount, idempotency.regress_unique;

-- CHECK constraints.
ALTER TABLE idempotency.outcome ADD CONSTRAINT regress_small CHECK (pg_column_size(result) < 100);
SELECT fence FROM idem_claim('check', lease => '1 minute') \gset
SELECT answer ~ '^23514 new row for relation "outcome" violates check constraint "regress_small"' AS refused FROM test.try(format($$ SELECT idem_complete('check', to_jsonb(repeat('x', 100)), fence => %s) $$, :fence)) AS answer;
SELECT state FROM idem_peek('check');
-- Its DETAIL shows the row to those who may read the table, and to nobody else.
CREATE ROLE regress_idem_dba;
SELECT idem_scope_grant('default', 'regress_idem_dba');
GRANT EXECUTE ON FUNCTION idem_once(text, text, jsonb, text, interval, text) TO regress_idem_dba;
SET ROLE regress_idem_dba;
SELECT test.try($$ SELECT idem_once('check 2', 'SELECT $1', to_jsonb(repeat('secret', 20))) $$);
RESET ROLE;
SELECT idem_complete('check', '"x"', fence => :fence);
SELECT test.works('check');

-- Triggers that audit, that change a row, and deferred ones.
CREATE TABLE test.audit (op text, tab text, key text);
CREATE FUNCTION test.audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO test.audit VALUES (TG_OP, TG_TABLE_NAME, coalesce(NEW.key, OLD.key));
    RETURN NULL;
END
$$;
CREATE TRIGGER regress_audit AFTER INSERT OR UPDATE OR DELETE ON idempotency.claim FOR EACH ROW EXECUTE FUNCTION test.audit();
CREATE CONSTRAINT TRIGGER regress_audit AFTER INSERT OR UPDATE OR DELETE ON idempotency.outcome DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION test.audit();
CREATE FUNCTION test.stamp() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.note := 'stamped ' || TG_OP; RETURN NEW; END $$;
CREATE TRIGGER regress_stamp BEFORE INSERT OR UPDATE ON idempotency.outcome FOR EACH ROW EXECUTE FUNCTION test.stamp();
SELECT test.works('triggers');
SELECT tab, array_agg(DISTINCT op) AS seen, count(*) FILTER (WHERE op = 'INSERT') - count(*) FILTER (WHERE op = 'DELETE') AS rows_left
  FROM test.audit WHERE key LIKE 'triggers %' GROUP BY 1 ORDER BY 1;
SELECT DISTINCT note FROM idempotency.outcome WHERE key LIKE 'triggers %';
-- A trigger that raises takes the operation with it, and keeps its own words.
CREATE FUNCTION test.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today' USING ERRCODE = 'PT503', HINT = 'tomorrow'; END $$;
CREATE TRIGGER regress_refuse BEFORE INSERT ON idempotency.outcome FOR EACH ROW WHEN (NEW.key = 'refused') EXECUTE FUNCTION test.refuse();
SELECT test.try($$ SELECT idem_once('refused', 'SELECT $1') $$);
SELECT state FROM idem_peek('refused');
DROP TRIGGER regress_audit ON idempotency.claim;
DROP TRIGGER regress_audit ON idempotency.outcome;
DROP TRIGGER regress_stamp ON idempotency.outcome;
-- A trigger that keeps a row from being written would let the effect happen twice: refused.
CREATE FUNCTION test.suppress() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
SELECT fence FROM idem_claim('suppressed', lease => '1 minute') \gset
CREATE TRIGGER regress_suppress BEFORE INSERT OR UPDATE OR DELETE ON idempotency.claim FOR EACH ROW EXECUTE FUNCTION test.suppress();
SELECT test.try($$ SELECT idem_claim('suppressed 2', lease => '1 minute') $$);
SELECT test.try(format($$ SELECT idem_renew('suppressed', '2 minutes', fence => %s) $$, :fence));
SELECT test.try(format($$ SELECT idem_complete('suppressed', fence => %s) $$, :fence));
SELECT test.try(format($$ SELECT idem_fail('suppressed', 'unknown', fence => %s) $$, :fence));
SELECT test.try(format($$ SELECT idem_release('suppressed', fence => %s) $$, :fence));
SELECT state FROM idem_peek('suppressed');
DROP TRIGGER regress_suppress ON idempotency.claim;
CREATE TRIGGER regress_suppress BEFORE INSERT OR UPDATE OR DELETE ON idempotency.outcome FOR EACH ROW EXECUTE FUNCTION test.suppress();
SELECT test.try($$ SELECT idem_once('suppressed 3', 'SELECT $1') $$);
SELECT test.try(format($$ SELECT idem_complete('suppressed', fence => %s) $$, :fence));
SELECT state FROM idem_peek('suppressed');
DROP TRIGGER regress_suppress ON idempotency.outcome;
SELECT test.works('after the triggers');

-- REINDEX, VACUUM FULL, CLUSTER: new files under the session's feet.
REINDEX TABLE idempotency.outcome;
REINDEX INDEX CONCURRENTLY idempotency.claim_digest_pkey;
REINDEX TABLE CONCURRENTLY idempotency.outcome;
SELECT test.works('reindex');
VACUUM FULL idempotency.outcome, idempotency.claim;
CLUSTER idempotency.outcome USING outcome_digest_pkey;
SELECT test.works('vacuum full');
SELECT decision FROM idem_claim('as installed t', '1');
-- An index by another name is still the primary key. Without one nothing can be promised, and without the other nothing can be pruned.
ALTER INDEX idempotency.outcome_digest_pkey RENAME TO renamed;
SELECT test.works('renamed');
BEGIN;
ALTER TABLE idempotency.outcome DROP CONSTRAINT renamed;
SELECT answer ~ '^55000 .*(index|primary key)' AS says_what_is_missing FROM test.try($$ SELECT idem_claim('no primary key') $$) AS answer;
ROLLBACK;
DROP INDEX idempotency.outcome_scope_id_finished_at_index;
SELECT result FROM idem_once('without index', 'SELECT $1', '1');
SELECT test.try($$ DO 'BEGIN WHILE (SELECT more FROM idem_sweep()) LOOP END LOOP; END' $$);
CREATE INDEX outcome_scope_id_finished_at_index ON idempotency.outcome (scope_id, finished_at);
SELECT test.works('index again');

-- Policies changed by hand are seen at once, also by replication roles.
UPDATE idempotency.scope SET dedup_window = '1 hour' WHERE name = 'local';
SELECT window_ends_at - finished_at AS guarded_for FROM idem_peek('as installed l', 'local');
SET session_replication_role = replica;
UPDATE idempotency.scope SET dedup_window = '2 hours' WHERE name = 'local';
SELECT window_ends_at - finished_at AS guarded_for FROM idem_peek('as installed l', 'local');
SELECT test.works('replica');
RESET session_replication_role;

-- Dropped and made again in one session: what it knew is gone, and everything works, by new table numbers.
PREPARE claim(text) AS SELECT decision FROM idem_claim($1, lease => '1 minute');
EXECUTE claim('prepared');
DROP EXTENSION idempotency;
EXECUTE claim('prepared');
SELECT idem_claim('k');
CREATE EXTENSION idempotency;
EXECUTE claim('prepared');
EXECUTE claim('prepared');
SELECT idem_scope_set('local', effect_kind => 'local');
SELECT test.works('again');
-- Also within one transaction; a claim that was left open refuses the drop.
BEGIN;
SELECT result FROM idem_once('same transaction', 'SELECT $1', '1');
DROP EXTENSION idempotency;
CREATE EXTENSION idempotency;
SELECT result FROM idem_once('same transaction', 'SELECT $1', '2');
COMMIT;
SELECT result FROM idem_peek('same transaction');
BEGIN;
SELECT decision FROM idem_claim('open');
DROP EXTENSION idempotency;
COMMIT;
\echo :SQLSTATE
SELECT result FROM idem_peek('same transaction');
BEGIN;
DROP EXTENSION idempotency;
ROLLBACK;
SELECT result FROM idem_peek('same transaction');
SELECT idem_scope_set('local', effect_kind => 'local');
SELECT test.works('kept');
-- A function that outlived its tables says so.
ALTER EXTENSION idempotency DROP FUNCTION idem_peek(text, text);
DROP EXTENSION idempotency;
SELECT test.try($$ SELECT idem_peek('k') $$);
DROP FUNCTION idem_peek(text, text);
-- In another schema, with a name that needs quotes.
CREATE SCHEMA "Odd schema";
CREATE EXTENSION idempotency SCHEMA "Odd schema";
SELECT idem_claim('k');
SELECT decision FROM "Odd schema".idem_claim('k', lease => '1 minute');
CALL idempotency.sweep();
ALTER EXTENSION idempotency SET SCHEMA public;
SELECT key, state FROM idempotency.records;
ALTER EXTENSION idempotency UPDATE;
DROP EXTENSION idempotency;
SELECT count(*) FROM pg_namespace WHERE nspname = 'idempotency';
\c :main_database
DROP DATABASE regress_idem_dba WITH (FORCE);
DROP ROLE regress_idem_dba;
