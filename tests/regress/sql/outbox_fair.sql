-- No scope, message or ordering key stands in the way of others, and no call takes more locks than it may.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

CREATE ROLE regress_dispatcher;
CREATE ROLE regress_hostile;
GRANT CREATE ON SCHEMA idempotency TO regress_hostile;
SELECT idem_scope_set('pay'), idem_scope_grant('pay', 'regress_dispatcher');

-- Whoever grants a scope with a short max_lease to a dispatcher holds up that scope and nothing else. Goes red where one
-- message of it fails the call. No lease is cut: who sends counts on it.
SET ROLE regress_hostile;
SELECT idem_scope_set('evil', max_lease => '1 second'), idem_scope_grant('evil', 'regress_dispatcher');
SELECT decision FROM idem_enqueue('evil', 'bank', '1', scope => 'evil');
RESET ROLE;
SELECT decision FROM idem_enqueue('good', 'bank', '1', scope => 'pay');
SET ROLE regress_dispatcher;
SELECT scope, key, lease_expires_at > clock_timestamp() + interval '2 s' AS long FROM idem_dispatch('bank', 10, '30 s') ORDER BY scope;
SELECT scope FROM idem_dispatch('bank', 10, '30 s');
SELECT test.try($$ SELECT * FROM idem_dispatch('bank', 10, '30 s', scopes => ARRAY['evil', 'pay']) $$);
SELECT scope, key FROM idem_dispatch('bank', 10, '1 s');
-- A destination is no boundary; the scopes that are asked for are.
RESET ROLE;
SELECT count(idem_enqueue(s || ' 2', 'bank', '1', scope => s)) FROM unnest(ARRAY['evil', 'pay']) AS s;
SET ROLE regress_dispatcher;
SELECT scope, key FROM idem_dispatch('bank', 10, '30 s', scopes => ARRAY['pay']);
SELECT test.try($$ SELECT * FROM idem_dispatch('bank', 10, '30 s', scopes => ARRAY['pay', 'default']) $$);
SELECT test.try($$ SELECT * FROM idem_dispatch('bank', 10, '30 s', scopes => ARRAY['pay', NULL]) $$);
SELECT count(*) FROM idem_dispatch('bank', 10, '30 s', scopes => '{}');
RESET ROLE;

-- A call that finds messages tried for the last time escalates as many as it may take, and ends, so that they are
-- committed. Goes red where they are not counted.
SELECT idem_scope_set('last', max_attempts => 1);
SELECT count(idem_enqueue('m' || n, 'last', '1', scope => 'last')) FROM generate_series(1, 30) AS n;
SELECT count(*) FROM idem_dispatch('last', 30, '1 minute');
UPDATE idempotency.claim SET lease_expires_at = clock_timestamp() - interval '1 day' WHERE key ~ '^m';
-- (A background worker may escalate them first.)
BEGIN;
SELECT count(*) FROM idem_dispatch('last', 10, '1 minute', wait => '30 seconds', scopes => ARRAY['last']);
SELECT count(*) <= 10 AS bounded FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
COMMIT;
-- The ordering key's lock counts too.
SET idempotency.max_claims_per_transaction = 2;
SELECT decision FROM idem_enqueue('o1', 'order', '1', ordering_key => 'a');
SELECT test.try($$ SELECT idem_enqueue('p1', 'order', '1', ordering_key => 'b'), idem_enqueue('p2', 'order', '1', ordering_key => 'c') $$);
BEGIN;
SELECT test.try($$ SELECT idem_enqueue('p3', 'order', '1', ordering_key => 'd') $$);
SELECT test.try($$ SELECT idem_enqueue('p4', 'order', '1') $$);
ROLLBACK;
RESET idempotency.max_claims_per_transaction;

-- Of many waiting scopes and kinds, each has its turn. Goes red where the order of one call decides that of the next.
SELECT idem_scope_set('busy');
SELECT count(idem_enqueue('b' || n, 'turns', '1', scope => 'busy')) FROM generate_series(1, 400) AS n;
SELECT count(idem_enqueue('b' || n, 'turns', '1', scope => 'busy', ordering_key => n::text)) FROM generate_series(401, 800) AS n;
SELECT count(idem_enqueue('q' || n, 'turns', '1', scope => 'pay', ordering_key => n::text)) FROM generate_series(1, 3) AS n;
DO $$
BEGIN
    FOR n IN 1 .. 60 LOOP
        PERFORM count(*) FROM idem_dispatch('turns', 5, '1 hour');
        COMMIT;
    END LOOP;
END $$;
SELECT scope, count(*) FILTER (WHERE state = 'in_flight') > 0 AS had_its_turn FROM idempotency.outbox WHERE destination = 'turns' GROUP BY scope ORDER BY scope;
SELECT count(*) FILTER (WHERE ordering_key IS NULL) > 0 AS unordered, count(*) FILTER (WHERE ordering_key IS NOT NULL) > 0 AS ordered FROM idempotency.outbox WHERE destination = 'turns' AND scope = 'busy' AND state = 'in_flight';

-- An ordering key behind 12,000 that are not due is reached. Goes red where each look begins at the first.
INSERT INTO idempotency.claim (digest, claimed_at, first_claimed_at, fence, scope_id, attempt, args_rule, claimed_pid, claimed_by, state, effect_kind, prior, is_message, tries, reconciles, key)
SELECT md5('far' || n)::uuid, now(), now(), 1, s.id, 0, 0, 0, s.owner, 'q', 'x', '-', true, 0, 0, 'far' || n FROM idempotency.scope AS s, generate_series(1, 12000) AS n WHERE s.name = 'pay';
INSERT INTO idempotency.message (digest, enqueued_at, due_at, position, scope_id, enqueued_by, scope, key, destination, ordering_key, payload)
SELECT c.digest, now(), now() + interval '1 day', 1, c.scope_id, c.claimed_by, 'pay', c.key, 'far', c.key, '1' FROM idempotency.claim AS c WHERE c.key ~ '^far';
SELECT decision FROM idem_enqueue('last of all', 'far', '1', scope => 'pay', ordering_key => 'zzz');
SELECT key FROM idem_dispatch('far', 1, '1 minute') UNION ALL SELECT key FROM idem_dispatch('far', 1, '1 minute') UNION ALL SELECT key FROM idem_dispatch('far', 1, '1 minute');

-- What a keyed claim may have sent counts its provider's window from there, as a message too. Goes red where it begins
-- anew: then it is sent twice.
SELECT idem_scope_set('keyed', effect_kind => 'keyed', provider_window => '1 hour', backoff => '1 ms', max_backoff => '1 ms');
BEGIN; SELECT count(idem_claim(k, '1', 'keyed', lease => '1 minute')) FROM unnest(ARRAY['within', 'later']) AS k; COMMIT;
CALL test.age('within', '30 minutes', 'keyed');
CALL test.age('later', '2 hours', 'keyed');
SELECT k, e.decision, e.enqueued FROM unnest(ARRAY['within', 'later']) AS k, idem_enqueue(k, 'keyed', '1', scope => 'keyed') AS e;
SELECT key, decision, attempt FROM idem_dispatch('keyed', 10, '1 minute') ORDER BY key DESC;

-- Giving a read back that was claimed without a delivery takes no try back.
SELECT idem_scope_set('tries', backoff => '1 ms', max_backoff => '1 ms');
SELECT decision FROM idem_enqueue('t', 'tries', '1', scope => 'tries');
SELECT key, fence FROM idem_dispatch('tries', 1, '1 minute') \gset
SELECT idem_fail('t', 'unknown', scope => 'tries', fence => :fence);
BEGIN; SELECT decision FROM idem_claim('t', '1', 'tries'); SELECT idem_release('t', 'tries'); COMMIT;
SELECT state, tries FROM idempotency.outbox WHERE key = 't';

DELETE FROM idempotency.claim; DELETE FROM idempotency.message; DELETE FROM idempotency.outcome;
SELECT count(idem_scope_drop(s)) FROM unnest(ARRAY['pay', 'evil', 'last', 'busy', 'keyed', 'tries']) AS s;
REVOKE CREATE ON SCHEMA idempotency FROM regress_hostile;
DROP ROLE regress_dispatcher, regress_hostile;
