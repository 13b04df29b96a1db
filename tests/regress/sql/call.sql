-- idem_call: which function is meant, the key it makes, and what the function raises.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

CREATE TABLE test.ledger (id int GENERATED ALWAYS AS IDENTITY, args jsonb);
CREATE SCHEMA test_ops;
CREATE FUNCTION test_ops.credit(args jsonb) RETURNS jsonb LANGUAGE sql AS
    $$ INSERT INTO test.ledger (args) VALUES ($1) RETURNING jsonb_build_object('id', id, 'args', args) $$;

-- Executed once, replayed after.
SELECT * FROM idem_call('credit/1', 'test_ops.credit', '{"amount": 5}');
SELECT * FROM idem_call('credit/1', 'test_ops.credit', '{"amount": 5.0}');
SELECT test.try($$ SELECT idem_call('credit/1', 'test_ops.credit', '{"amount": 6}') $$);
SELECT * FROM idem_call('no arguments', 'test_ops.credit');
SELECT id, args FROM test.ledger ORDER BY id;

-- Exactly f(jsonb), whatever else has the name.
CREATE FUNCTION test_ops.credit() RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(1/0) $$;
CREATE FUNCTION test_ops.credit(json) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(1/0) $$;
CREATE FUNCTION test_ops.credit(text) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(1/0) $$;
CREATE FUNCTION test_ops.credit(jsonb, int) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(1/0) $$;
CREATE FUNCTION test_ops.credit(VARIADIC jsonb[]) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(1/0) $$;
CREATE FUNCTION test_ops.credit(anyelement) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb(1/0) $$;
SELECT * FROM idem_call('overloads', 'test_ops.credit', '{}');
-- A default makes a plain call ambiguous, but not this one.
CREATE FUNCTION test_ops.twice(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb('one'::text) $$;
CREATE FUNCTION test_ops.twice(jsonb, int DEFAULT 1) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb('two'::text) $$;
SELECT * FROM idem_call('a default', 'test_ops.twice', '{}');
CREATE FUNCTION test_ops.only_default(jsonb, int DEFAULT 1) RETURNS jsonb LANGUAGE sql AS $$ SELECT $1 $$;
CREATE FUNCTION test_ops.only_json(json) RETURNS jsonb LANGUAGE sql AS $$ SELECT $1::jsonb $$;
CREATE FUNCTION test_ops.returns_text(jsonb) RETURNS text LANGUAGE sql AS $$ SELECT 'x' $$;
CREATE FUNCTION test_ops.returns_set(jsonb) RETURNS SETOF jsonb LANGUAGE sql AS $$ SELECT $1 $$;
CREATE FUNCTION test_ops.returns_nothing(jsonb) RETURNS void LANGUAGE sql AS $$ $$;
CREATE DOMAIN test_ops.document AS jsonb;
CREATE FUNCTION test_ops.returns_domain(jsonb) RETURNS test_ops.document LANGUAGE sql AS $$ SELECT $1 $$;
CREATE PROCEDURE test_ops.procedure(jsonb) LANGUAGE sql AS $$ $$;
CREATE PROCEDURE test_ops.inout_procedure(INOUT args jsonb) LANGUAGE sql AS $$ SELECT $1 $$;
CREATE AGGREGATE test_ops.aggregate(jsonb) (SFUNC = jsonb_concat, STYPE = jsonb);
CREATE FUNCTION test_ops."Strange ""name"""(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb('strange'::text) $$;
SELECT * FROM idem_call('quoted', 'test_ops."Strange ""name"""', '{}');
-- Every search_path has pg_catalog.
CREATE FUNCTION pg_catalog.regress_idem_same(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT $1 $$;
SELECT * FROM idem_call('catalog', 'regress_idem_same', '{"a": null}');
DROP FUNCTION pg_catalog.regress_idem_same(jsonb);
SELECT name, test.try(format('SELECT idem_call(%L, %L, %L)', 'not this', name, '{}')) AS answer
  FROM unnest(ARRAY['absent', 'test_ops.absent', 'no_schema.credit', 'credit', 'test_ops.only_default', 'test_ops.only_json',
                    'test_ops.returns_text', 'test_ops.returns_set', 'test_ops.returns_nothing', 'test_ops.returns_domain',
                    'test_ops.procedure', 'test_ops.inout_procedure', 'test_ops.aggregate', 'to_jsonb', 'TEST_OPS.Absent',
                    'test_ops.credit(jsonb)', 'test_ops.credit; SELECT 1', 'test_ops."', 'a.b.c.d', '', ' ', NULL]) AS name;
SELECT * FROM idem_call('folded', 'TEST_OPS.Twice', '{}');
SELECT :peek('not this');

-- On the search_path: the first one.
CREATE SCHEMA test_other;
CREATE FUNCTION test_other.credit(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT to_jsonb('other'::text) $$;
SET search_path = test_other, test_ops, public;
SELECT * FROM idem_call('path', 'credit', '{}');
SET search_path = test_ops, test_other, public;
SELECT result ->> 'args' AS args, replayed FROM idem_call('path 2', 'credit', '{}');

-- Without a key: the run, the function's full name and its arguments make it.
SELECT result ->> 'args' AS args, replayed FROM idem_call(NULL, 'credit', '{"b": 1, "a": 2}', run => 'agent/7');
SET search_path = public;
SELECT result ->> 'args' AS args, replayed FROM idem_call(NULL, 'test_ops.credit', '{"a": 2.0, "b": 1}', run => 'agent/7');
SELECT result, replayed FROM idem_call(NULL, 'test_other.credit', '{"a": 2, "b": 1}', run => 'agent/7');
SELECT replayed FROM idem_call(NULL, 'test_ops.credit', '{"a": 2, "b": 2}', run => 'agent/7');
SELECT replayed FROM idem_call(NULL, 'test_ops.credit', '{"a": 2, "b": 1}', run => 'agent/8');
SELECT replayed FROM idem_call(NULL, 'test_ops.credit', run => 'agent/7');
SELECT key, key IN (idem_key('agent/7', 'test_ops.credit', '{"a": 2, "b": 1}'), idem_key('agent/7', 'test_ops.credit')) AS made_by_idem_key, run
  FROM idempotency.records WHERE run IS NOT NULL ORDER BY key COLLATE "C";
SELECT test.try($$ SELECT idem_call(NULL, 'test_ops.credit', '{}') $$);
SELECT test.try($$ SELECT idem_call(NULL, 'test_ops.credit', '{}', run => '') $$);
CREATE FUNCTION test_ops."with/slash"(jsonb) RETURNS jsonb LANGUAGE sql AS $$ SELECT $1 $$;
SELECT test.try($$ SELECT idem_call(NULL, 'test_ops."with/slash"', '{}', run => 'agent/7') $$);
SELECT * FROM idem_call('with a key', 'test_ops."with/slash"', '{}', run => 'agent/7');
SELECT test.try($$ SELECT idem_call('', 'test_ops.credit', '{}', run => 'agent/7') $$);

-- NULL in, NULL out.
CREATE FUNCTION test_ops.strict(jsonb) RETURNS jsonb STRICT LANGUAGE sql AS $$ SELECT $1 $$;
SELECT * FROM idem_call('strict', 'test_ops.strict');
SELECT * FROM idem_call('strict', 'test_ops.strict');

-- The function's own error reaches the caller whole, and leaves no record and no effect.
CREATE FUNCTION test_ops.refuse(args jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO test.ledger (args) VALUES ('"refused"');
    RAISE 'payment required' USING ERRCODE = args ->> 'code', DETAIL = 'balance 0', HINT = 'top up', CONSTRAINT = 'c';
END
$$;
SELECT test.try($$ SELECT idem_call('raises', 'test_ops.refuse', '{"code": "PT402"}') $$);
SELECT test.try($$ SELECT idem_call('raises', 'test_ops.refuse', '{"code": "23505"}') $$);
SELECT count(*) FROM test.ledger WHERE args = '"refused"';
SELECT :peek('raises');

-- Always transactional: what is open, unknown or rejected is an error here.
SELECT fence FROM idem_claim('open', lease => '1 hour') \gset
SELECT test.try($$ SELECT idem_call('open', 'test_ops.credit') $$);
SELECT idem_fail('open', 'unknown', fence => :fence);
SELECT test.try($$ SELECT idem_call('open', 'test_ops.credit') $$);
SELECT idem_fail('open', 'rejected', fence => :fence);
SELECT test.try($$ SELECT idem_call('open', 'test_ops.credit') $$);
DROP SCHEMA test_ops, test_other CASCADE;
