-- Real request bodies as arguments and results: re-spelled they replay, changed they are refused.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- The same document in other words: members in reverse order, every character escaped, numbers with an exponent.
CREATE FUNCTION test.respell(text) RETURNS text LANGUAGE sql AS $$
    SELECT '"' || coalesce(string_agg(CASE WHEN code < 65536 THEN '\u' || lpad(to_hex(code), 4, '0')
                                           ELSE '\u' || to_hex(55296 + ((code - 65536) >> 10)) || '\u' || to_hex(56320 + ((code - 65536) & 1023))
                                      END, '' ORDER BY n), '') || '"'
      FROM string_to_table($1, NULL) WITH ORDINALITY AS c (letter, n), ascii(c.letter) AS code
$$;
CREATE FUNCTION test.respell(v jsonb) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    CASE jsonb_typeof(v)
        WHEN 'object' THEN
            RETURN '{ ' || coalesce((SELECT string_agg(test.respell(m.key) || ' : ' || test.respell(m.value), E' ,\r\n\t' ORDER BY m.key DESC)
                                       FROM jsonb_each(v) AS m), '') || ' }';
        WHEN 'array' THEN
            RETURN '[' || coalesce((SELECT string_agg(test.respell(e.value), ' , ' ORDER BY e.n)
                                      FROM jsonb_array_elements(v) WITH ORDINALITY AS e (value, n)), '') || ']';
        WHEN 'string' THEN RETURN test.respell(v #>> '{}');
        WHEN 'number' THEN RETURN v::text || 'e0';
        ELSE RETURN v::text;
    END CASE;
END
$$;
SELECT test.respell('{"a": [1, 2.50, -0, true, null], "é😀": {"": ""}}'::jsonb);

\set path :abs_srcdir '/data/stripe/invoice.payment_failed.json'
\set invoice `cat :'path'`
\set path :abs_srcdir '/data/stripe/charge.refunded.json'
\set refund `cat :'path'`
\set path :abs_srcdir '/data/stripe/checkout.session.completed.json'
\set checkout `cat :'path'`
\set path :abs_srcdir '/data/github/check_suite-requested.payload.with-email-with-special-characters.json'
\set check_suite `cat :'path'`
\set path :abs_srcdir '/data/github/pull_request-opened.payload.json'
\set pull_request `cat :'path'`
CREATE TABLE test.payload (name text, body text);
INSERT INTO test.payload VALUES ('invoice', :'invoice'), ('refund', :'refund'), ('checkout', :'checkout'), ('check_suite', :'check_suite'),
                                ('pull_request', :'pull_request');
SELECT name, length(body) > 500 AS read, test.respell(body::jsonb) <> body AS respelled, test.respell(body::jsonb)::jsonb = body::jsonb AS same_document,
       idem_hash(test.respell(body::jsonb)::jsonb) = idem_hash(body::jsonb) AS same_hash,
       idem_canonical(body::jsonb)::jsonb = body::jsonb AS canonical_is_the_document
  FROM test.payload ORDER BY name;

-- As arguments: the first delivery executes, a redelivery in other words gets the first answer.
SELECT p.name, c.decision FROM test.payload AS p, idem_claim('event/' || p.name, p.body::jsonb, lease => '1 minute') AS c ORDER BY p.name;
SELECT p.name, c.decision FROM test.payload AS p, idem_claim('event/' || p.name, test.respell(p.body::jsonb)::jsonb, lease => '1 minute') AS c ORDER BY p.name;
SELECT p.name, idem_complete('event/' || p.name, jsonb_build_object('received', p.body::jsonb), fence => k.fence) -> 'received' = p.body::jsonb AS stored
  FROM test.payload AS p, idem_peek('event/' || p.name) AS k ORDER BY p.name;
SELECT p.name, c.decision, c.result -> 'received' = p.body::jsonb AS first_answer
  FROM test.payload AS p, idem_claim('event/' || p.name, test.respell(p.body::jsonb)::jsonb, lease => '1 minute') AS c ORDER BY p.name;

-- One value changed: refused.
CREATE TABLE test.change (name text, path text[], value jsonb);
INSERT INTO test.change VALUES
    ('invoice', '{fixtures,2,params,amount}', '2000.01'), ('invoice', '{fixtures,2,params,amount}', '"2000"'),
    ('checkout', '{fixtures,1,params,unit_amount}', '"1501"'), ('checkout', '{fixtures,1,params,unit_amount}', '1500'),
    ('check_suite', '{check_suite,id}', '118578148'), ('pull_request', '{pull_request,draft}', '"false"'),
    ('pull_request', '{pull_request,assignee}', '{}'), ('pull_request', '{pull_request,user,login}', '"codertocat"');
SELECT c.name, c.path, c.value, p.body::jsonb #> c.path AS was, left(answer, 5) AS sqlstate
  FROM test.change AS c JOIN test.payload AS p USING (name),
       test.try(format('SELECT idem_claim(%L, %L)', 'event/' || c.name, jsonb_set(p.body::jsonb, c.path, c.value, false))) AS answer;
SELECT idem_claim('event/invoice', replace(:'invoice', '2000', '20000')::jsonb);
\echo :SQLSTATE
-- A member more or less, an array in another order.
SELECT left(test.try(format('SELECT idem_claim(%L, %L)', 'event/refund', :'refund'::jsonb || '{"x": null}')), 5) AS one_more,
       left(test.try(format('SELECT idem_claim(%L, %L)', 'event/refund', :'refund'::jsonb - '_meta')), 5) AS one_less,
       left(test.try(format('SELECT idem_claim(%L, %L)', 'event/invoice',
            jsonb_set(:'invoice'::jsonb, '{fixtures}', (SELECT jsonb_agg(e ORDER BY n DESC) FROM jsonb_array_elements(:'invoice'::jsonb -> 'fixtures')
                                                        WITH ORDINALITY AS f (e, n))))), 5) AS other_order;
-- Nothing of a body reaches a message.
SELECT count(*) AS errors, count(*) FILTER (WHERE answer ~ '2000|usd|Codertocat') AS telling
  FROM test.payload AS p, test.try(format('SELECT idem_claim(%L, %L)', 'event/' || p.name, p.body::jsonb || '{"x": 1}')) AS answer;
