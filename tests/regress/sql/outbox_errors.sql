-- What idem_enqueue and idem_dispatch refuse, with SQLSTATE, DETAIL and HINT; and the settings of their scopes.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
TRUNCATE idempotency.message, idempotency.event;
\set ECHO all

-- idem_enqueue.
SELECT call, test.try(format('SELECT * FROM idem_enqueue(%s)', call)) FROM unnest(ARRAY[
    'NULL, ''d'', ''1''', ''''', ''d'', ''1''', '''k'', NULL, ''1''', '''k'', '''', ''1''', '''k'', ''d'', NULL', '''k'', ''d'', ''1'', scope => NULL', '''k'', ''d'', ''1'', scope => ''absent''',
    '''k'', ''d'', ''1'', delay => ''-1 ms''', '''k'', ''d'', ''1'', delay => ''200 years''', '''k'', ''d'', ''1'', ordering_key => ''''', '''k'', ''d'', ''1'', run => ''''']) AS call;
SELECT call, split_part(test.try(format('SELECT * FROM idem_enqueue(%s)', call)), E'\n', 1) FROM unnest(ARRAY[
    'repeat(''k'', 1024), ''d'', ''1''', 'repeat(''k'', 1025), ''d'', ''1''', '''d 255'', repeat(''d'', 255), ''1''', '''d 256'', repeat(''d'', 256), ''1''', '''d 510'', repeat(''é'', 128), ''1''',
    '''o 1024'', ''d'', ''1'', ordering_key => repeat(''o'', 1024)', '''o 1025'', ''d'', ''1'', ordering_key => repeat(''o'', 1025)',
    '''r'', ''d'', ''1'', run => repeat(''r'', 1025)']) AS call;
-- The payload has a limit.
SELECT test.try($$ SELECT * FROM idem_enqueue('large', 'd', to_jsonb(repeat('x', 1048577))) $$);
SELECT test.try($$ SELECT * FROM idem_enqueue('fits', 'd', to_jsonb(repeat('x', 1048000))) $$);
SET idempotency.max_payload_bytes = 100;
SELECT test.try($$ SELECT * FROM idem_enqueue('large', 'd', to_jsonb(repeat('x', 200))) $$);
RESET idempotency.max_payload_bytes;
SELECT left(key, 10) AS key, length(key), length(destination) AS destination, length(ordering_key) AS ordering_key FROM idempotency.outbox ORDER BY 1, 2;

-- idem_dispatch.
SELECT call, test.try(format('SELECT * FROM idem_dispatch(%s)', call)) FROM unnest(ARRAY[
    'NULL, 1, ''1 hour''', ''''', 1, ''1 hour''', 'repeat(''d'', 256), 1, ''1 hour''', '''d'', NULL, ''1 hour''', '''d'', 0, ''1 hour''', '''d'', -1, ''1 hour''', '''d'', 1001, ''1 hour''', '''d'', 1, NULL', '''d'', 1, ''0''',
    '''d'', 1, ''-1 hour''', '''d'', 1, ''1 hour 1 ms''', '''d'', 1, ''200 years''', '''d'', 1, ''1 hour'', ''-1 ms''', '''d'', 1, ''1 hour'', ''200 years''']) AS call;
-- max_lease is the scope's of the message.
SELECT idem_scope_set('short', max_lease => '1 minute');
SELECT idem_scope_set('long', max_lease => '1 day');
SELECT decision FROM idem_enqueue('k', 'short', '1', scope => 'short');
SELECT decision FROM idem_enqueue('k', 'long', '1', scope => 'long');
SELECT test.try($$ SELECT * FROM idem_dispatch('short', 1, '61 seconds', scopes => ARRAY['short']) $$);
SELECT test.try($$ SELECT * FROM idem_dispatch('long', 1, '1 day') $$);
SELECT state FROM idem_peek('k', 'short');

-- A role without the right to a scope; it learns nothing of the key.
CREATE ROLE regress_stranger;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA test TO PUBLIC;
SET ROLE regress_stranger;
SELECT test.try($$ SELECT * FROM idem_enqueue('k', 'd', '1') $$);
SELECT test.try($$ SELECT * FROM idem_enqueue('k', 'short', '1', scope => 'short') $$);
SELECT test.try($$ SELECT * FROM idem_enqueue('k', 'd', '1', scope => 'absent') $$);
SELECT count(*) FROM idem_dispatch('short', 10, '1 minute');
RESET ROLE;
DROP ROLE regress_stranger;

-- Transactions that must not write; and too many keys in one.
BEGIN READ ONLY;
SELECT test.try($$ SELECT * FROM idem_enqueue('ro', 'd', '1') $$);
SELECT test.try($$ SELECT * FROM idem_dispatch('d', 1, '1 hour') $$);
ROLLBACK;
BEGIN;
SET LOCAL idempotency.max_claims_per_transaction = 3;
SELECT split_part(test.try(format('SELECT * FROM idem_enqueue(%L, %L, %L)', 'many ' || n, 'many', n)), E'\n', 1) FROM generate_series(1, 5) AS n;
COMMIT;
SELECT count(*) BETWEEN 1 AND 3 AS some FROM idempotency.outbox WHERE destination = 'many';

-- The policies of a scope: what cannot be meant is refused and changes nothing.
SELECT policy, value, split_part(test.try(format('SELECT idem_scope_set(%L, keep_forever => true, %I => %L)', 'p', policy, value)), E'\n', 1) AS answer FROM (VALUES
    ('max_attempts', '0'), ('max_attempts', '-1'), ('max_reconciles', '0'), ('max_reconciles', '-1'), ('backoff', '0'), ('backoff', '-1 s'), ('backoff', '102 years'), ('max_backoff', '0'), ('max_backoff', '-1 s'), ('max_backoff', '102 years'),
    ('reconciler', ''), ('reconciler', 'absent.absent')) AS v (policy, value);
SELECT count(*) FROM idempotency.scopes WHERE scope = 'p';
SELECT idem_scope_set('p', max_attempts => 7, backoff => '2 seconds', max_backoff => '5 minutes', max_reconciles => 2, keep_payload => true);
SELECT max_attempts, backoff, max_backoff, max_reconciles, keep_payload, reconciler FROM idempotency.scopes WHERE scope = 'p';
SELECT idem_scope_set('p', max_attempts => 8);
SELECT max_attempts, backoff, max_backoff, max_reconciles, keep_payload, reconciler FROM idempotency.scopes WHERE scope = 'p';
SELECT count(idem_scope_reset('p', policy)) FROM unnest(ARRAY['max_attempts', 'backoff', 'max_backoff', 'max_reconciles', 'keep_payload', 'reconciler']) AS policy;
SELECT max_attempts, backoff, max_backoff, max_reconciles, keep_payload, reconciler FROM idempotency.scopes WHERE scope = 'p';
