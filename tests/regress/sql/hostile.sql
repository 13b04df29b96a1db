-- What an impatient or hostile caller sends: an ordinary error, and nothing lost. Each case was a defect once.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- A text that a message echoes is cut, whatever its length and however it would have to be escaped.
CREATE FUNCTION test.message_of(statement text, OUT code text, OUT characters int) LANGUAGE plpgsql AS $$
DECLARE message text;
BEGIN
    EXECUTE statement;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, code = RETURNED_SQLSTATE;
    characters := length(message);
END
$$;
SELECT code, characters < 10000 AS bounded FROM test.message_of($$ SELECT idem_fail('k', repeat(E'\x01', 1000000)) $$);
SELECT code, characters < 10000 AS bounded FROM test.message_of($$ SELECT idem_scope_set('h', effect_kind => repeat('x', 1000000)) $$);
SELECT code, characters < 10000 AS bounded FROM test.message_of($$ SELECT idem_scope_reset('default', repeat('x', 1000000)) $$);

-- An error that is caught, followed by another that is caught, and raised again, is still itself.
CREATE FUNCTION test.reraise(args jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    BEGIN
        RAISE EXCEPTION 'payment required' USING ERRCODE = 'PT402', DETAIL = 'detail', HINT = 'hint', CONSTRAINT = 'constraint';
    EXCEPTION WHEN OTHERS THEN
        BEGIN PERFORM 1 / 0; EXCEPTION WHEN OTHERS THEN NULL; END;
        RAISE;
    END;
END
$$;
SELECT test.try($$ SELECT test.reraise('{}') $$);
SELECT test.try($$ SELECT * FROM idem_call('reraise', 'test.reraise', '{}') $$);
SELECT test.try($$ SELECT * FROM idem_once('reraise', 'SELECT test.reraise($1)', '{}') $$);
SELECT state FROM idem_peek('reraise');

-- A few bytes of jsonb that are many digits.
SELECT test.try($$ SELECT idem_hash(jsonb_agg(1e131071::numeric)) FROM generate_series(1, 600) $$);
SELECT length(idem_hash(jsonb_agg(1e131071::numeric))) FROM generate_series(1, 100);
SELECT test.try($$ SELECT idem_claim('digits', (SELECT jsonb_agg(1e131071::numeric) FROM generate_series(1, 600))) $$);

-- One key that cannot be changed does not keep the others from being swept.
SELECT idem_scope_set('held', dedup_window => '1 day');
SELECT count(idem_once('held ' || g, 'SELECT $1', '1', 'held')) FROM generate_series(1, 20) AS g;
UPDATE idempotency.outcome SET finished_at = finished_at - interval '2 days' WHERE key LIKE 'held %';
CREATE FUNCTION test.legal_hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.key = 'held 7' THEN RETURN NULL; END IF;
    IF OLD.key = 'held 11' THEN RAISE EXCEPTION 'held by law'; END IF;
    RETURN OLD;
END
$$;
CREATE TRIGGER legal_hold BEFORE DELETE ON idempotency.outcome FOR EACH ROW EXECUTE FUNCTION test.legal_hold();
SET client_min_messages = error;
CALL idempotency.sweep();
RESET client_min_messages;
SELECT key FROM idempotency.records WHERE scope = 'held' ORDER BY key;
DROP TRIGGER legal_hold ON idempotency.outcome;
CALL idempotency.sweep();
SELECT key FROM idempotency.records WHERE scope = 'held' ORDER BY key;

-- The id of a dropped scope is not given to another.
CREATE TABLE test.scope_id AS SELECT id FROM idempotency.scope WHERE name = 'held';
SELECT idem_scope_drop('held');
SELECT idem_scope_set('held');
SELECT s.id <> t.id AS another FROM idempotency.scope AS s, test.scope_id AS t WHERE s.name = 'held';

-- A table that is no longer what the extension made is not read as if it were.
BEGIN;
ALTER TABLE idempotency.claim ALTER COLUMN args_hash TYPE int USING NULL;
SELECT test.try($$ SELECT idem_claim('retyped') $$);
ROLLBACK;
BEGIN;
ALTER EXTENSION idempotency DROP TABLE idempotency.claim;
SELECT test.try($$ SELECT idem_claim('not a member') $$);
ROLLBACK;

-- A leased claim that ended in its own transaction does not open a way around the COMMIT before an outside effect.
BEGIN;
SELECT decision FROM idem_claim('same transaction', lease => '1 ms');
SELECT lease_expires_at FROM idem_peek('same transaction') \gset
CALL test.wait_until(:'lease_expires_at');
SELECT decision FROM idem_claim('same transaction');
SELECT test.try($$ SELECT idem_complete('same transaction', '1') $$);
ROLLBACK;
