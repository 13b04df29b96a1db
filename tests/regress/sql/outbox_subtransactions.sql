-- Messages follow the subtransaction: what is undone is never delivered, and its key is free; what a block finished and undid
-- is open again.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- Claimed and enqueued inside, undone; the key is claimed again at once, completed, and nothing is to be sent.
BEGIN;
SAVEPOINT a;
SELECT decision FROM idem_claim('k');
SELECT decision, enqueued FROM idem_enqueue('m', 'bank', '{"amount": 1}');
SELECT state FROM idem_peek('m');
ROLLBACK TO a;
SELECT key, state FROM unnest(ARRAY['k', 'm']) AS key, idem_peek(key);
SELECT decision FROM idem_claim('k');
SELECT idem_complete('k', '"done"');
COMMIT;
SELECT count(*) AS messages FROM idempotency.outbox;
SELECT count(*) AS delivered FROM idem_dispatch('bank', 10, '1 hour');
SELECT :claim('k');
-- The same key may be enqueued afterwards, with other arguments.
SELECT decision, enqueued FROM idem_enqueue('m', 'bank', '{"amount": 2}');
SELECT key, payload FROM idem_dispatch('bank', 10, '1 hour');

-- Claimed outside, completed inside, undone.
SELECT fence FROM idem_claim('leased', lease => '1 hour') \gset
BEGIN;
SAVEPOINT a;
SELECT idem_complete('leased', '"first"', fence => :fence);
SELECT state FROM idem_peek('leased');
ROLLBACK TO a;
COMMIT;
SELECT state, fence = :fence AS same_fence FROM idem_peek('leased');
SELECT idem_complete('leased', '"second"', fence => :fence);
SELECT :claim('leased');
-- A delivery that was taken inside and undone is to be taken again; one finished inside and undone is in flight.
SELECT decision FROM idem_enqueue('d', 'mail', '1');
BEGIN;
SAVEPOINT a;
SELECT key, attempt FROM idem_dispatch('mail', 10, '1 hour');
ROLLBACK TO a;
COMMIT;
SELECT key, attempt, fence FROM idem_dispatch('mail', 10, '1 hour') \gset
\echo :key :attempt
BEGIN;
SAVEPOINT a;
SELECT idem_complete('d', '"sent"', fence => :fence);
SELECT count(*) FROM idempotency.outbox WHERE key = 'd';
ROLLBACK TO a;
COMMIT;
SELECT state FROM idempotency.outbox WHERE key = 'd';
SELECT idem_complete('d', '"sent"', fence => :fence);

-- In a PL/pgSQL block, nested, and through idem_once.
DO $$
BEGIN
    PERFORM idem_enqueue('outer', 'shop', '"outer"');
    BEGIN
        PERFORM idem_enqueue('inner', 'shop', '"inner"');
        BEGIN
            PERFORM idem_enqueue('innermost', 'shop', '"innermost"');
        EXCEPTION WHEN OTHERS THEN RAISE;
        END;
        RAISE division_by_zero;
    EXCEPTION WHEN division_by_zero THEN
        PERFORM idem_enqueue('handler', 'shop', '"handler"');
    END;
END
$$;
SELECT test.try($s$ SELECT idem_once('once', $$ SELECT jsonb_build_array(decision, 1 / 0) FROM idem_enqueue('of once', 'shop', '1') $$) $s$);
SELECT key, state FROM unnest(ARRAY['outer', 'inner', 'innermost', 'handler', 'once', 'of once']) AS key, idem_peek(key);
SELECT key, payload FROM idem_dispatch('shop', 10, '1 hour') ORDER BY key;
