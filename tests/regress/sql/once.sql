-- idem_once: claim, run one statement as the caller, complete; what the effect may be, and what it raises.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

CREATE TABLE test.credit (id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY, customer text UNIQUE, amount int CHECK (amount > 0));

-- Executed once, replayed after.
SELECT * FROM idem_once('credit/1', $$
    INSERT INTO test.credit (customer, amount) VALUES ($1 ->> 'customer', ($1 ->> 'amount')::int)
    RETURNING jsonb_build_object('id', id) $$, '{"customer": "ada", "amount": 5}');
SELECT * FROM idem_once('credit/1', $$
    INSERT INTO test.credit (customer, amount) VALUES ($1 ->> 'customer', ($1 ->> 'amount')::int)
    RETURNING jsonb_build_object('id', id) $$, '{"amount": 5, "customer": "ada"}');
-- Only the arguments are compared, not the text.
SELECT * FROM idem_once('credit/1', 'SELECT 1/0', '{"amount": 5, "customer": "ada"}');
SELECT test.try($$ SELECT idem_once('credit/1', 'SELECT 1/0', '{"amount": 6, "customer": "ada"}') $$);
SELECT * FROM test.credit;
SELECT * FROM idem_once('no arguments', $$ SELECT to_jsonb($1 IS NULL) $$);
SELECT * FROM idem_once('json null', $$ SELECT to_jsonb($1 IS NULL) $$, 'null');
SELECT * FROM idem_once('with a run', $$ SELECT $1 $$, '{}', run => 'agent/7');
SELECT state, run FROM idem_peek('with a run');
-- A result of SQL NULL is one.
SELECT * FROM idem_once('nothing', 'SELECT NULL::jsonb');
SELECT * FROM idem_once('nothing', 'SELECT NULL::jsonb');

-- The effect's own error reaches the caller whole, and leaves no record and no effect.
CREATE FUNCTION test.refuse(code text) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO test.credit (customer, amount) VALUES ('refused', 1);
    RAISE 'payment %' , 'required' USING ERRCODE = code, DETAIL = 'balance 0', HINT = 'top up', CONSTRAINT = 'c',
          TABLE = 't', COLUMN = 'col', SCHEMA = 's', DATATYPE = 'd';
END
$$;
SELECT test.try($$ SELECT idem_once('raises', 'SELECT test.refuse($x$PT402$x$)') $$);
SELECT test.try($$ SELECT idem_once('raises', 'SELECT test.refuse($x$ID003$x$)') $$);
SELECT test.try($$ SELECT idem_once('raises', 'SELECT test.refuse($x$40001$x$)') $$);
SELECT test.try($$ SELECT idem_once('raises', 'INSERT INTO test.credit (customer, amount) VALUES ($x$ada$x$, 1) RETURNING $1') $$);
SELECT test.try($$ SELECT idem_once('raises', 'INSERT INTO test.credit (customer, amount) VALUES ($x$bob$x$, 0) RETURNING $1') $$);
SELECT test.try($$ SELECT idem_once('raises', 'SELECT 1/0') $$);
SELECT test.try($$ SELECT idem_once('raises', 'SELEC 1') $$);
SELECT test.try($$ SELECT idem_once('raises', 'SELECT $2') $$);
SELECT test.try($$ SELECT idem_once('raises', 'SELECT * FROM test.absent') $$);
DO $$
DECLARE t text; c text; s text; d text;
BEGIN
    PERFORM idem_once('raises', 'SELECT test.refuse($x$PT402$x$)');
EXCEPTION WHEN SQLSTATE 'PT402' THEN
    GET STACKED DIAGNOSTICS t = TABLE_NAME, c = COLUMN_NAME, s = SCHEMA_NAME, d = PG_DATATYPE_NAME;
    RAISE WARNING 'schema %, table %, column %, type %', s, t, c, d;
END
$$;
-- As a client sees it outside any block.
SELECT idem_once('raises', 'SELECT test.refuse($x$PT402$x$)');
\echo :SQLSTATE
CREATE FUNCTION test.caller() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM idem_once('raises', 'SELECT test.refuse($x$PT402$x$)');
END
$$;
SELECT test.caller();
SELECT :peek('raises');
SELECT count(*) FROM test.credit;
-- Then the key is free, also within the transaction that caught the error.
BEGIN;
SELECT test.try($$ SELECT idem_once('raises', 'SELECT 1/0') $$);
SELECT * FROM idem_once('raises', $$ SELECT '"recovered"'::jsonb $$);
COMMIT;
SELECT * FROM idem_once('raises', $$ SELECT NULL $$);

-- Exactly one row with one jsonb column.
SELECT test.try($$ SELECT idem_once('shape', 'SELECT $1 WHERE false') $$);
SELECT test.try($$ SELECT idem_once('shape', 'SELECT $1 FROM generate_series(1, 2)') $$);
SELECT test.try($$ SELECT idem_once('shape', 'DELETE FROM test.credit WHERE customer = $x$ada$x$') $$);
SELECT test.try($$ SELECT idem_once('shape', 'SELECT 1') $$);
SELECT test.try($$ SELECT idem_once('shape', 'SELECT $x$1$x$::text') $$);
SELECT test.try($$ SELECT idem_once('shape', 'SELECT $x$1$x$::json') $$);
SELECT test.try($$ SELECT idem_once('shape', 'SELECT $1, $1') $$);
SELECT test.try($$ SELECT idem_once('shape', 'SELECT') $$);
SELECT test.try($$ SELECT idem_once('shape', 'DELETE FROM test.credit RETURNING customer') $$);
-- One statement.
SELECT test.try($$ SELECT idem_once('shape', 'SELECT $1; SELECT $1') $$);
SELECT test.try($$ SELECT idem_once('shape', 'DELETE FROM test.credit; SELECT $1') $$);
SELECT test.try($$ SELECT idem_once('shape', '') $$);
SELECT test.try($$ SELECT idem_once('shape', '-- nothing') $$);
SELECT test.try($$ SELECT idem_once('shape', NULL) $$);
SELECT * FROM idem_once('semicolon', 'SELECT $1;', '1');
-- That leaves the transaction alone, and the caller's role.
SELECT test.try($$ SELECT idem_once('shape', 'COMMIT') $$);
SELECT test.try($$ SELECT idem_once('shape', 'ROLLBACK') $$);
SELECT test.try($$ SELECT idem_once('shape', 'SAVEPOINT a') $$);
SELECT test.try($$ SELECT idem_once('shape', 'PREPARE TRANSACTION $x$p$x$') $$);
SELECT test.try($$ SELECT idem_once('shape', 'COPY test.credit TO STDOUT') $$);
SELECT test.try($$ SELECT idem_once('shape', 'COPY test.credit FROM STDIN') $$);
SELECT test.try($$ SELECT idem_once('shape', 'VACUUM test.credit') $$);
SELECT test.try($$ SELECT idem_once('shape', 'SET ROLE pg_monitor') $$);
SELECT test.try($$ SELECT idem_once('shape', 'RESET ROLE') $$);
SELECT test.try($$ SELECT idem_once('shape', 'SET SESSION AUTHORIZATION DEFAULT') $$);
SELECT test.try($$ SELECT idem_once('shape', 'SELECT to_jsonb(set_config($x$role$x$, $x$pg_monitor$x$, false))') $$);
CREATE PROCEDURE test.commits() LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$;
SELECT test.try($$ SELECT idem_once('shape', 'CALL test.commits()') $$);
CALL test.commits();
SELECT idem_once('shape', 'COMMIT');
SELECT idem_once('shape', 'CALL test.commits()');
SELECT idem_once('shape', 'DO $x$ BEGIN COMMIT; END $x$');
SELECT :peek('shape');
SELECT count(*) FROM test.credit;
SELECT current_user = session_user AS same_role;

-- An effect in a WITH clause, and one that sees what its transaction did.
BEGIN;
INSERT INTO test.credit (customer, amount) VALUES ('eve', 7);
SELECT * FROM idem_once('with', $$ WITH d AS (DELETE FROM test.credit WHERE customer = 'eve' RETURNING amount)
                                   SELECT jsonb_agg(amount) FROM d $$);
COMMIT;

-- A result over the limit takes the effect back.
SELECT test.try($$ SELECT idem_once('large', $x$ WITH i AS (INSERT INTO test.credit (customer, amount) VALUES ('large', 1) RETURNING 1)
                                                 SELECT to_jsonb(repeat('x', 65536)) FROM i $x$) $$);
SELECT count(*) FROM test.credit WHERE customer = 'large';
SELECT :peek('large');

-- Keys that are in progress, unknown, rejected, not applied.
SELECT fence FROM idem_claim('in flight', lease => '1 hour') \gset
SELECT test.try($$ SELECT idem_once('in flight', 'SELECT 1/0') $$);
SELECT test.try($$ SELECT idem_once('in flight', 'SELECT 1/0', wait => '20 milliseconds') $$);
SELECT idem_fail('in flight', 'unknown', fence => :fence);
SELECT test.try($$ SELECT idem_once('in flight', 'SELECT 1/0') $$);
SELECT :peek('in flight');
SELECT idem_fail('in flight', 'rejected', 'declined', fence => :fence);
SELECT test.try($$ SELECT idem_once('in flight', 'SELECT 1/0') $$);
SELECT fence FROM idem_claim('not applied', lease => '1 hour') \gset
SELECT idem_fail('not applied', 'not_applied', fence => :fence);
SELECT * FROM idem_once('not applied', 'SELECT to_jsonb(2)');
SELECT test.try($$ SELECT idem_once(NULL, 'SELECT $1') $$);
SELECT test.try($$ SELECT idem_once('wait', 'SELECT $1', wait => '-1 second') $$);

-- Effects inside effects.
SELECT * FROM idem_once('outer', $$ SELECT jsonb_build_array(i.result, i.replayed) FROM idem_once('inner', 'SELECT $x$1$x$::jsonb') AS i $$);
SELECT * FROM idem_once('outer 2', $$ SELECT jsonb_build_array(i.result, i.replayed) FROM idem_once('inner', 'SELECT 1/0') AS i $$);
SELECT test.try($$ SELECT idem_once('outer 3', 'SELECT i.result FROM idem_once($x$inner 3$x$, $x$SELECT 1/0$x$) AS i') $$);
SELECT test.try($$ SELECT idem_once('self', 'SELECT i.result FROM idem_once($x$self$x$, $x$SELECT 1/0$x$) AS i') $$);
SELECT :peek('outer 3');
SELECT :peek('self');
-- An effect that claims and finishes another key; one that leaves it open; one that finishes its own.
CREATE FUNCTION test.claims(k text, finish bool) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE c record;
BEGIN
    SELECT * INTO c FROM idem_claim(k);
    IF finish THEN
        PERFORM idem_complete(k, to_jsonb(c.decision));
    END IF;
    RETURN to_jsonb(c.decision);
END
$$;
SELECT * FROM idem_once('claims', $$ SELECT test.claims('claimed inside', true) $$);
SELECT :claim('claimed inside');
SELECT * FROM idem_once('leaves open', $$ SELECT test.claims('left open inside', false) $$);
\echo :SQLSTATE
SELECT :peek('leaves open');
SELECT :peek('left open inside');
SELECT * FROM idem_once('finishes itself', $$ SELECT idem_complete('finishes itself', '1') $$);
SELECT test.try($$ SELECT idem_once('releases itself', 'SELECT to_jsonb(idem_release($x$releases itself$x$)::text)') $$);
SELECT test.try($$ SELECT idem_once('fails itself', 'SELECT to_jsonb(idem_fail($x$fails itself$x$, $x$rejected$x$)::text)') $$);
SELECT :peek('releases itself');
SELECT :peek('fails itself');

-- Many different texts in one session, and a table that changes under a text that was used before.
SELECT count(*), sum((o.result)::int)
  FROM generate_series(1, 200) AS g, LATERAL idem_once('text ' || g, format('SELECT to_jsonb(%s)', g)) AS o;
CREATE TABLE test.changing (a int);
INSERT INTO test.changing VALUES (1);
SELECT * FROM idem_once('changing 1', 'SELECT to_jsonb(c) FROM test.changing AS c');
ALTER TABLE test.changing ADD b int DEFAULT 2;
SELECT * FROM idem_once('changing 2', 'SELECT to_jsonb(c) FROM test.changing AS c');
ALTER TABLE test.changing ALTER a TYPE text;
SELECT * FROM idem_once('changing 3', 'SELECT to_jsonb(c) FROM test.changing AS c');
DROP TABLE test.changing;
SELECT test.try($$ SELECT idem_once('changing 4', 'SELECT to_jsonb(c) FROM test.changing AS c') $$);
-- The same text means what the search_path of the moment says.
CREATE SCHEMA test_a;
CREATE SCHEMA test_b;
CREATE VIEW test_a.here AS SELECT 'a'::text AS name;
CREATE VIEW test_b.here AS SELECT 'b'::text AS name;
SET search_path = test_a, public;
SELECT * FROM idem_once('path a', 'SELECT to_jsonb(name) FROM here');
SET search_path = test_b, public;
SELECT * FROM idem_once('path b', 'SELECT to_jsonb(name) FROM here');
RESET search_path;
DROP SCHEMA test_a, test_b CASCADE;
