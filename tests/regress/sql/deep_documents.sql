-- Documents as deep as PostgreSQL takes them, as arguments and as results: what jsonb accepts is accepted, compared and replayed,
-- whatever max_stack_depth is; what it refuses is an ordinary error. No session dies: the suite looks for that in the log.
--
-- Goes red with a limit of our own on the depth, as parsers have one at 128 levels, or with a recursion that nothing bounds
-- (pg/jsonb.rs, the core's document.rs and canonical.rs).
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

CREATE FUNCTION test.nested(kind text, depth int, leaf text DEFAULT '1') RETURNS text LANGUAGE sql AS $$
    SELECT CASE kind WHEN 'array' THEN repeat('[', depth) || leaf || repeat(']', depth)
                     ELSE repeat('{"a":', depth) || leaf || repeat('}', depth) END
$$;
-- The deepest that jsonb takes, up to 100,000.
CREATE FUNCTION test.deepest(kind text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE accepted int := 1; refused int := 100001; middle int;
BEGIN
    WHILE refused - accepted > 1 LOOP
        middle := (accepted + refused) / 2;
        -- Read, written and compared: each of these goes down to the leaf.
        IF test.try(format('SELECT test.nested(%L, %s)::jsonb::text, test.nested(%L, %s)::jsonb = test.nested(%L, %s)::jsonb', kind, middle, kind, middle, kind, middle)) = 'ok' THEN
            accepted := middle;
        ELSE
            refused := middle;
        END IF;
    END LOOP;
    RETURN accepted;
END
$$;
-- A depth is taken if everything below works, and refused if each is the error of PostgreSQL's own limit.
CREATE FUNCTION test.taken(name text, kind text, depth int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    key text := concat_ws(' ', name, kind, depth);
    doc text := test.nested(kind, depth);
    answer text := '';
BEGIN
    answer := concat_ws(' ', left(test.try(format('SELECT idem_hash(%L)', doc)), 5), left(test.try(format('SELECT idem_canonical(%L)', doc)), 5),
        left(test.try(format('SELECT idem_claim(%L, %L, %L, %L)', key, doc, 'deep', '1 hour')), 5));
    IF answer = 'ok ok ok' THEN
        answer := concat_ws(' ', answer,
            -- Again, its leaf in other words; with another leaf; with another depth.
            (idem_claim(key, test.nested(kind, depth, '1.0')::jsonb, 'deep')).decision, left(test.try(format('SELECT idem_claim(%L, %L, %L)', key, test.nested(kind, depth, '2'), 'deep')), 5),
            left(test.try(format('SELECT idem_claim(%L, %L, %L)', key, test.nested(kind, depth - 1), 'deep')), 5),
            -- What complete takes can be replayed.
            left(test.try(format('SELECT idem_complete(%L, %L, %L, %s)', key, doc, 'deep', (idem_peek(key, 'deep')).fence)), 5));
        IF answer LIKE '% ok' THEN
            answer := concat_ws(' ', answer, (idem_claim(key, doc::jsonb, 'deep')).decision, (idem_claim(key, doc::jsonb, 'deep')).result = doc::jsonb);
        END IF;
    END IF;
    RETURN answer;
END
$$;
SELECT idem_scope_set('deep', effect_kind => 'local', max_result_bytes => 10000000);
SELECT kind, depth, test.taken('shallow', kind, depth) FROM unnest(ARRAY['array', 'object']) AS kind, unnest(ARRAY[100, 127, 128, 129, 500, 1000]) AS depth;
-- Down to what PostgreSQL takes, and a little beyond; with more stack, further down.
CREATE TABLE test.limit AS SELECT 2 AS megabytes, kind, test.deepest(kind) AS depth FROM unnest(ARRAY['array', 'object']) AS kind;
SELECT kind, depth > 1000 AS deep, test.taken('deep', kind, depth * 3 / 4) AS above, test.taken('deep', kind, depth + 2000) ~ '^54001 54001 54001$' AS refused_beyond FROM test.limit WHERE megabytes = 2;
SET max_stack_depth = '4MB';
INSERT INTO test.limit SELECT 4, kind, test.deepest(kind) FROM unnest(ARRAY['array', 'object']) AS kind;
SELECT kind, depth > 2000 AS deep, test.taken('deeper', kind, depth * 3 / 4) AS above FROM test.limit WHERE megabytes = 4;
SELECT a.kind, a.depth < b.depth AS deeper_with_more FROM test.limit AS a JOIN test.limit AS b USING (kind) WHERE a.megabytes = 2 AND b.megabytes = 4;
-- Written with much stack, replayed with little: an answer, or the ordinary error, and the record is not lost.
SET max_stack_depth = '100kB';
SELECT kind, left(test.try(format('SELECT idem_claim(%L, test.nested(%L, %s)::jsonb, %L)', concat_ws(' ', 'deeper', kind, depth * 3 / 4), kind, depth * 3 / 4, 'deep')), 5) IN ('ok', '54001') AS ordinary FROM test.limit WHERE megabytes = 4;
SET max_stack_depth = '4MB';
SELECT kind, (idem_claim(name, test.nested(kind, depth * 3 / 4)::jsonb, 'deep')).decision AS not_lost FROM test.limit, concat_ws(' ', 'deeper', kind, depth * 3 / 4) AS name WHERE megabytes = 4;
RESET max_stack_depth;
-- Near the limit, level by level: accepted, or the ordinary error.
SELECT kind, string_agg(DISTINCT CASE WHEN taken LIKE 'ok ok ok %' THEN 'claimed' WHEN taken ~ '^(ok|54001)( (ok|54001))*$' THEN 'ordinary' ELSE taken END, ', ') ~ '^(claimed|ordinary|claimed, ordinary)$' AS ordinary
  FROM test.limit, generate_series(depth - 60, depth + 60, 12) AS d, test.taken('near', kind, d) AS taken WHERE megabytes = 2 GROUP BY kind;
-- Not closed at all, and far too deep.
SELECT left(test.try(format('SELECT idem_claim(%L, %L)', 'open', repeat('[', 100000))), 5) IN ('22P02', '54001') AS ordinary;
SELECT left(test.try(format('SELECT idem_claim(%L, %L)', 'open', repeat('{"a":', 100000))), 5) IN ('22P02', '54001') AS ordinary;
SELECT kind, left(test.try(format('SELECT idem_claim(%L, test.nested(%L, 1000000)::jsonb)', 'far', kind)), 5) AS sqlstate FROM unnest(ARRAY['array', 'object']) AS kind;
SELECT state FROM unnest(ARRAY['open', 'far']) AS key, idem_peek(key);
