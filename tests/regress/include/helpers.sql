-- Included by every test, by a superuser: an empty store, and helpers that print nothing that differs from run to run.
-- They live in schema test, which each test makes anew.

-- A test that waits for itself fails instead of hanging.
SET statement_timeout = '60s';
SET client_min_messages = warning;
TRUNCATE idempotency.claim, idempotency.outcome, idempotency.message, idempotency.event, idempotency.failure_kind,
    idempotency.scope, idempotency.scope_grant, idempotency.args_rule, idempotency.tombstone, idempotency.run,
    idempotency.run_sign,    idempotency.prune_progress, idempotency.observed, idempotency.activity;
DROP SCHEMA IF EXISTS test CASCADE;
CREATE SCHEMA test;
GRANT USAGE ON SCHEMA test TO PUBLIC;

-- What a caller sees of an answer: SELECT :claim('key');
\set claim 'decision, attempt, result, reason, fence IS NOT NULL AS fenced, lease_expires_at IS NOT NULL AS leased, finished_at IS NOT NULL AS finished FROM idem_claim'
\set claim_many 'ord, key, decision, attempt, result, reason, fence IS NOT NULL AS fenced, lease_expires_at IS NOT NULL AS leased, finished_at IS NOT NULL AS finished FROM idem_claim_many'
\set peek 'state, attempt, result, reason, fence IS NOT NULL AS fenced, lease_expires_at IS NOT NULL AS leased, finished_at IS NOT NULL AS finished FROM idem_peek'

-- Runs a statement and says 'ok', or everything of its error that a client gets. Whoever runs the tests is "superuser".
CREATE FUNCTION test.try(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    state text; message text; detail text; hint text; what text;
BEGIN
    EXECUTE statement;
    RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
        detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT, what = CONSTRAINT_NAME;
    RETURN replace(concat_ws(E'\n', state || ' ' || message, 'DETAIL: ' || nullif(detail, ''), 'HINT: ' || nullif(hint, ''),
                             'CONSTRAINT: ' || nullif(what, '')),
                   '"' || session_user || '"', '"superuser"');
END
$$;

-- For idem_call: PostgreSQL itself has no such function in every version.
CREATE FUNCTION test.same(args jsonb) RETURNS jsonb IMMUTABLE LANGUAGE sql AS $$ SELECT args $$;

-- Moves the record of a key into the past, as if that much time had gone by since it was written.
CREATE PROCEDURE test.age(of_key text, by interval, of_scope text DEFAULT 'default') LANGUAGE plpgsql AS $$
DECLARE
    id int := coalesce((SELECT s.id FROM idempotency.scope AS s WHERE s.name = of_scope), 0);
    moved int;
BEGIN
    WITH open AS (
        UPDATE idempotency.claim
           SET claimed_at = claimed_at - by, first_claimed_at = first_claimed_at - by,
               lease_expires_at = lease_expires_at - by
         WHERE scope_id = id AND key = of_key RETURNING 1
    ), finished AS (
        UPDATE idempotency.outcome
           SET claimed_at = claimed_at - by, finished_at = finished_at - by
         WHERE scope_id = id AND key = of_key RETURNING 1
    )
    SELECT count(*) INTO moved FROM (SELECT FROM open UNION ALL SELECT FROM finished) AS rows;
    IF moved <> 1 THEN
        RAISE 'test.age: % rows of key % in scope %', moved, of_key, of_scope;
    END IF;
    -- Nothing is written into the past but by us: the next pass must look there again.
    DELETE FROM idempotency.prune_progress WHERE scope_id = id;
END
$$;

-- Polls the clock; returns once it is past the given time.
CREATE PROCEDURE test.wait_until(moment timestamptz) LANGUAGE plpgsql AS $$
BEGIN
    WHILE clock_timestamp() < moment LOOP
        PERFORM pg_sleep(0.001);
    END LOOP;
END
$$;
