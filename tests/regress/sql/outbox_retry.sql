-- Retries of messages: exponential back-off with jitter, the last try and the human, requeueing, lease ends by effect
-- kind; and messages that never succeed hold up no other.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
TRUNCATE idempotency.message, idempotency.event;
-- As if the back-off had gone by.
CREATE PROCEDURE test.due(of_key text) LANGUAGE sql AS $$
    UPDATE idempotency.message SET due_at = clock_timestamp() - interval '1 ms' WHERE key = of_key;
    UPDATE idempotency.claim SET retry_at = clock_timestamp() - interval '1 ms' WHERE key = of_key;
    -- Of a lease that is over, the back-off counts from its end.
    UPDATE idempotency.claim SET lease_expires_at = lease_expires_at - interval '1 day'
     WHERE key = of_key AND state = 'f' AND lease_expires_at <= clock_timestamp();
$$;
\set ECHO all

-- min(max_backoff, backoff * 2 ^ (tries - 1)), times 0.5 to 1.
SELECT idem_scope_set('slow', backoff => '1 hour', max_backoff => '5 hours', max_attempts => 6);
SELECT decision FROM idem_enqueue('k', 'd', '1', scope => 'slow');
CREATE TABLE test.step (n int, decision text, attempt int, tries int, due interval, state text);
CREATE PROCEDURE test.steps(of_key text, verdict text, steps int) LANGUAGE plpgsql AS $$
DECLARE m record; o record; now timestamptz; BEGIN
    FOR n IN 1 .. steps LOOP
        SELECT * INTO m FROM idem_dispatch('d', 1, '1 hour');
        COMMIT;
        PERFORM idem_fail(m.key, verdict, 'no ' || n, scope => m.scope, fence => m.fence);
        now := clock_timestamp();
        SELECT * INTO o FROM idempotency.outbox WHERE key = of_key;
        INSERT INTO test.step VALUES (n, m.decision, m.attempt, o.tries, o.due_at - now, o.state);
        IF o.state <> 'escalated' THEN CALL test.due(of_key); END IF;
        COMMIT;
    END LOOP;
END
$$;
CALL test.steps('k', 'not_applied', 6);
SELECT n, decision, attempt, tries, state, due BETWEEN least('5 hours'::interval, '1 hour'::interval * 2 ^ (tries - 1)) * 0.5 - interval '1 s' AND least('5 hours'::interval, '1 hour'::interval * 2 ^ (tries - 1)) AS backs_off FROM test.step ORDER BY n;
-- After the last try it is a dead letter: listed, claimed by nobody, until an operator requeues it.
SELECT key, state, reason, destination FROM idempotency.unresolved;
SELECT due_at, tries, state FROM idempotency.outbox;
SELECT count(*) FROM idem_dispatch('d', 10, '1 hour');
SELECT :claim('k', '1', 'slow');
SELECT decision, enqueued, reason FROM idem_enqueue('k', 'd', '1', scope => 'slow');
SELECT idem_resolve('k', 'not_applied', evidence => 'the bank is open again'::text, scope => 'slow');
SELECT state, tries, reconciles, due_at <= clock_timestamp() AS due FROM idempotency.outbox;
SELECT key, attempt, decision, reason, set_config('test.fence', fence::text, false) <> '' AS fenced FROM idem_dispatch('d', 10, '1 hour');
SELECT idem_complete('k', '"sent"', 'slow', current_setting('test.fence')::bigint);
SELECT :claim('k', '1', 'slow');
-- Once more, with another end: rejected, and applied, by an operator.
SELECT count(idem_enqueue(key, 'dead', '1', scope => 'slow')) FROM unnest(ARRAY['r', 'a']) AS key;
SELECT idem_escalate(key, 'given up', scope => 'slow') FROM unnest(ARRAY['r', 'a']) AS key;
SELECT key, idem_resolve(key, verdict, '{"by": "hand"}', 'asked'::text, 'slow') FROM (VALUES ('r', 'rejected'), ('a', 'applied')) AS v (key, verdict);
SELECT key, decision, result FROM unnest(ARRAY['r', 'a']) AS key, idem_claim(key, '1', 'slow');
SELECT count(*) FROM idempotency.outbox;

-- Jitter: what failed together does not come back together.
SELECT count(idem_enqueue('j' || n, 'jitter', '1', scope => 'slow')) FROM generate_series(1, 20) AS n;
CREATE TABLE test.jitter AS SELECT * FROM idem_dispatch('jitter', 100, '1 hour');
SELECT count(idem_fail(key, 'not_applied', 'no', scope => scope, fence => fence)) FROM test.jitter;
SELECT count(DISTINCT date_trunc('minute', due_at)) > 3 AS spread, count(*) FILTER (WHERE due_at < clock_timestamp() + interval '29 minutes' OR due_at > clock_timestamp() + interval '1 hour') AS outside FROM idempotency.outbox WHERE destination = 'jitter';

-- The times that are the defaults: 1 s to 1 hour.
SELECT decision FROM idem_enqueue('default', 'default', '1');
SELECT key, fence FROM idem_dispatch('default', 1, '1 hour') \gset
SELECT idem_fail('default', 'not_applied', 'no', fence => :fence);
SELECT due_at BETWEEN clock_timestamp() - interval '30 s' AND clock_timestamp() + interval '1 s' AS within_a_second FROM idempotency.outbox WHERE key = 'default';
-- It comes by itself: a dispatcher that waits gets it.
SELECT key, attempt, decision, reason FROM idem_dispatch('default', 1, '1 hour', wait => '30 s');

-- The whole life by waiting alone, with short times.
SELECT idem_scope_set('fast', backoff => '1 ms', max_backoff => '2 ms', max_attempts => 4);
SELECT decision FROM idem_enqueue('f', 'fast', '1', scope => 'fast');
CREATE PROCEDURE test.deliver(destination text, verdict text) LANGUAGE plpgsql AS $$
DECLARE m record; BEGIN
    LOOP
        SELECT * INTO m FROM idem_dispatch(destination, 1, '1 hour', wait => CASE WHEN EXISTS (SELECT FROM idempotency.outbox AS o WHERE o.destination = deliver.destination AND o.due_at IS NOT NULL) THEN '30 s'::interval END);
        COMMIT;
        EXIT WHEN m.key IS NULL;
        PERFORM idem_fail(m.key, verdict, 'try ' || m.attempt, scope => m.scope, fence => m.fence);
        COMMIT;
    END LOOP;
END
$$;
CALL test.deliver('fast', 'not_applied');
SELECT key, state, tries, attempt, reason FROM idempotency.outbox WHERE destination = 'fast';

-- unknown: delivered again to be read, after the back-off; reads in vain end with a human, too.
SELECT idem_scope_set('fast', max_attempts => 100, max_reconciles => 3);
SELECT decision FROM idem_enqueue('u', 'unknown', '1', scope => 'fast');
TRUNCATE test.step;
CREATE PROCEDURE test.read(destination text) LANGUAGE plpgsql AS $$
DECLARE m record; BEGIN
    LOOP
        SELECT * INTO m FROM idem_dispatch(destination, 1, '1 hour', wait => CASE WHEN EXISTS (SELECT FROM idempotency.outbox AS o WHERE o.destination = read.destination AND o.due_at IS NOT NULL) THEN '30 s'::interval END);
        COMMIT;
        EXIT WHEN m.key IS NULL;
        IF m.decision = 'execute' THEN PERFORM idem_fail(m.key, 'unknown', 'reset', scope => m.scope, fence => m.fence);
        ELSE PERFORM idem_resolve(m.key, 'unknown', evidence => 'no answer ' || m.attempt, scope => m.scope, fence => m.fence); END IF;
        INSERT INTO test.step SELECT m.attempt, m.decision, m.attempt, o.tries, NULL, o.state FROM idempotency.outbox AS o WHERE o.key = m.key;
        COMMIT;
    END LOOP;
END
$$;
CALL test.read('unknown');
SELECT n, decision, tries, state FROM test.step ORDER BY n;
SELECT key, state, reconciles, reason, evidence FROM idempotency.unresolved WHERE key = 'u';
-- Requeued: it is sent again, and has all its tries and reads again.
SELECT idem_resolve('u', 'not_applied', scope => 'fast');
SELECT state, tries, reconciles FROM idempotency.outbox WHERE key = 'u';
SELECT key, decision, attempt FROM idem_dispatch('unknown', 1, '1 hour');

-- The end of a lease: the message backs off, counted from there, whether a sweep has been there or not.
SELECT count(idem_enqueue(key, 'over', '1', scope => 'slow')) FROM unnest(ARRAY['unswept', 'swept']) AS key;
SELECT count(*) FROM idem_dispatch('over', 10, '1 hour');
CALL test.age('swept', '61 minutes', 'slow');
CALL idempotency.sweep();
CALL test.age('unswept', '61 minutes', 'slow');
SELECT key FROM idem_dispatch('over', 10, '1 hour');
DO $$ BEGIN CALL test.due('swept'); CALL test.due('unswept'); END $$;
SELECT key, decision, attempt FROM idem_dispatch('over', 10, '1 hour') ORDER BY key;

-- The end of a lease, by effect kind: told before and after a sweep alike.
SELECT idem_scope_set('external', effect_kind => 'external', backoff => '1 hour', max_backoff => '1 day');
SELECT idem_scope_set('keyed', effect_kind => 'keyed', backoff => '1 hour', max_backoff => '1 day', provider_window => '1 day');
SELECT idem_scope_set('local', effect_kind => 'local', backoff => '1 hour', max_backoff => '1 day');
CREATE TABLE test.key AS SELECT s.scope, w.place, w.past, s.scope || ', ' || w.past AS key, NULL::bigint AS fence
    FROM unnest(ARRAY['external', 'keyed', 'local']) AS s (scope), unnest(ARRAY['lease over', 'lease over, swept', 'long ago', 'long ago, swept', 'second try']) WITH ORDINALITY AS w (past, place);
SELECT count(idem_enqueue(key, 'ends', '1', scope => scope)) FROM test.key;
UPDATE test.key AS k SET fence = d.fence FROM idem_dispatch('ends', 100, '1 minute') AS d WHERE d.key = k.key;
-- A first delivery that had no effect does not begin the provider's window.
DO $$ DECLARE k record; BEGIN
    FOR k IN SELECT * FROM test.key WHERE past = 'second try' LOOP
        PERFORM idem_fail(k.key, 'not_applied', 'refused', scope => k.scope, fence => k.fence);
        CALL test.age(k.key, '2 days', k.scope);
        CALL test.due(k.key);
    END LOOP;
END $$;
UPDATE test.key AS k SET fence = d.fence FROM idem_dispatch('ends', 100, '1 minute') AS d WHERE d.key = k.key;
DO $$ DECLARE k record; BEGIN
    FOR k IN SELECT * FROM test.key WHERE past LIKE '%swept' LOOP CALL test.age(k.key, CASE WHEN k.past LIKE 'long%' THEN interval '2 days' ELSE '1 hour' END, k.scope); END LOOP;
END $$;
CALL idempotency.sweep();
DO $$ DECLARE k record; BEGIN
    FOR k IN SELECT * FROM test.key WHERE past NOT LIKE '%swept' LOOP CALL test.age(k.key, CASE WHEN k.past LIKE 'long%' THEN interval '2 days' ELSE '1 hour' END, k.scope); END LOOP;
END $$;
BEGIN; SELECT k.scope, k.past, c.decision AS a_claim_is_told, c.fence IS NOT NULL AS fenced FROM test.key AS k, idem_claim(k.key, '1', k.scope, wait => '0') AS c ORDER BY k.scope, k.place; ROLLBACK;
-- Each is delivered again once the back-off has gone by.
DO $$ DECLARE k record; BEGIN FOR k IN SELECT * FROM test.key LOOP CALL test.due(k.key); END LOOP; END $$;
CREATE TABLE test.again AS SELECT d.* FROM idem_dispatch('ends', 100, '1 hour') AS d;
SELECT k.scope, k.past, d.decision, d.attempt, d.fence > k.fence AS newer, o.tries, o.reconciles FROM test.key AS k LEFT JOIN test.again AS d USING (key) LEFT JOIN idempotency.outbox AS o USING (key) ORDER BY k.scope, k.place;
-- The dispatchers that were too late are refused.
SELECT DISTINCT split_part(test.try(format('SELECT idem_complete(%L, scope => %L, fence => %s)', key, scope, fence)), ' ', 1) AS late FROM test.key;
-- An ended lease is a try: the last one ends with a human.
SELECT idem_scope_set('local', max_attempts => 1);
SELECT idem_scope_set('external', max_attempts => 1);
SELECT idem_scope_set('keyed', max_attempts => 1);
SELECT count(idem_enqueue('last', 'last', '1', scope => scope)) FROM unnest(ARRAY['external', 'keyed', 'local']) AS scope;
SELECT count(*) FROM idem_dispatch('last', 10, '1 minute');
DO $$ BEGIN CALL test.age('last', '1 hour', 'external'); CALL test.age('last', '1 hour', 'keyed'); CALL test.age('last', '1 hour', 'local'); END $$;
SELECT count(*) FROM idem_dispatch('last', 10, '1 minute');
CALL idempotency.sweep();
SELECT scope, state, tries FROM idempotency.outbox WHERE key = 'last' ORDER BY 1;
SELECT scope, c.decision, c.reason FROM unnest(ARRAY['external', 'keyed', 'local']) AS scope, idem_claim('last', '1', scope) AS c;

-- Messages that never succeed hold up no other: older, due, more of them than a dispatcher takes at once.
SELECT idem_scope_set('poison', backoff => '1 ms', max_backoff => '1 ms', max_attempts => 3);
SELECT count(idem_enqueue('poison ' || n, 'mixed', '"poison"', scope => 'poison')) FROM generate_series(1, 20) AS n;
SELECT count(idem_enqueue('good ' || n, 'mixed', '"good"', scope => 'poison')) FROM generate_series(1, 5) AS n;
CREATE PROCEDURE test.work(destination text) LANGUAGE plpgsql AS $$
DECLARE m record; deadline timestamptz := clock_timestamp() + interval '50 s'; BEGIN
    WHILE EXISTS (SELECT FROM idempotency.outbox AS o WHERE o.destination = work.destination AND o.state <> 'escalated') LOOP
        IF clock_timestamp() > deadline THEN RAISE 'messages are left'; END IF;
        CREATE TEMP TABLE batch AS SELECT * FROM idem_dispatch(destination, 4, '1 minute', wait => '1 s');
        COMMIT;
        FOR m IN SELECT * FROM batch LOOP
            IF m.payload = '"poison"' THEN PERFORM idem_fail(m.key, 'not_applied', 'poison', scope => m.scope, fence => m.fence);
            ELSE PERFORM idem_complete(m.key, '"sent"', m.scope, m.fence); END IF;
        END LOOP;
        DROP TABLE batch;
        COMMIT;
    END LOOP;
END
$$;
CALL test.work('mixed');
SELECT state, min(attempt) AS attempts_min, max(attempt) AS attempts_max, count(*) FROM idempotency.records WHERE scope = 'poison' GROUP BY 1 ORDER BY 1;
