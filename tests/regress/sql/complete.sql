-- idem_complete: what it stores and returns, again, late, with the wrong fence, and where nothing is claimed.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- It returns what is stored, as jsonb stores it.
BEGIN;
SELECT decision FROM idem_claim('a');
SELECT idem_complete('a', '{"b": 1, "a": 1.50, "b": 2}');
COMMIT;
SELECT result FROM idem_claim('a');

-- Nothing is claimed, or not any more.
SELECT test.try($$ SELECT idem_complete('never claimed', '1') $$);
SELECT test.try($$ SELECT idem_complete('never claimed', '1', fence => 7) $$);
SELECT test.try($$ SELECT idem_complete('a', '1') $$);
SELECT :peek('never claimed');
BEGIN;
SELECT decision FROM idem_claim('twice');
SELECT idem_complete('twice', '1');
SELECT test.try($$ SELECT idem_complete('twice', '2') $$);
COMMIT;
SELECT result FROM idem_claim('twice');

-- A transactional claim may name its fence; another one is refused.
BEGIN;
SELECT fence FROM idem_claim('with fence') \gset
SELECT test.try(format($$ SELECT idem_complete('with fence', '1', fence => %s) $$, :fence + 1));
SELECT idem_complete('with fence', '1', fence => :fence);
SELECT idem_complete('with fence', '2', fence => :fence) AS again;
COMMIT;
SELECT idem_complete('with fence', '3', fence => :fence) AS again_after_commit;

-- A leased claim needs its fence.
SELECT fence FROM idem_claim('l', lease => '1 minute') \gset
SELECT test.try($$ SELECT idem_complete('l', '1') $$);
SELECT test.try(format($$ SELECT idem_complete('l', '1', fence => %s) $$, :fence - 1));
SELECT :peek('l');
SELECT idem_complete('l', '1', fence => :fence);
-- The same call again, such as after a lost acknowledgement, gets the stored result.
SELECT idem_complete('l', '2', fence => :fence);
SELECT test.try(format($$ SELECT idem_complete('l', '1', fence => %s) $$, :fence + 1));
SELECT :peek('l');
-- Past the window there is nothing to complete again.
CALL test.age('l', '31 days');
SELECT test.try(format($$ SELECT idem_complete('l', '1', fence => %s) $$, :fence));

-- In the transaction that claimed: refused for outside effects, and nothing is changed.
BEGIN;
SELECT fence FROM idem_claim('same transaction', lease => '1 minute') \gset
SELECT test.try(format($$ SELECT idem_complete('same transaction', fence => %s) $$, :fence));
COMMIT;
SELECT idem_complete('same transaction', '1', fence => :fence);

-- The last owner may be late, before and after a sweep, as long as nobody claimed since.
SELECT fence FROM idem_claim('late', lease => '1 minute') \gset
CALL test.age('late', '1 hour');
SELECT idem_complete('late', '"late"', fence => :fence);
SELECT fence FROM idem_claim('late, swept', lease => '1 minute') \gset
CALL test.age('late, swept', '1 hour');
CALL idempotency.sweep();
SELECT :peek('late, swept');
SELECT idem_complete('late, swept', '"late"', fence => :fence);
SELECT fence FROM idem_claim('too late', lease => '1 minute') \gset
CALL test.age('too late', '1 hour');
SELECT :claim('too late', lease => '1 minute');
SELECT test.try(format($$ SELECT idem_complete('too late', '1', fence => %s) $$, :fence));
SELECT fence AS second_fence FROM idem_peek('too late') \gset
SELECT idem_complete('too late', '"second"', fence => :second_fence);
SELECT test.try(format($$ SELECT idem_complete('too late', '1', fence => %s) $$, :fence));

-- A transactional takeover shuts the old owner out too, from its commit on.
SELECT fence FROM idem_claim('takeover', lease => '1 minute') \gset
CALL test.age('takeover', '1 hour');
BEGIN;
SELECT :claim('takeover');
SELECT idem_complete('takeover', '"read: it happened"');
COMMIT;
SELECT test.try(format($$ SELECT idem_complete('takeover', '1', fence => %s) $$, :fence));
SELECT result FROM idem_claim('takeover');

-- Who was unknown and turns out to have happened.
SELECT fence FROM idem_claim('unknown', lease => '1 minute') \gset
SELECT idem_fail('unknown', 'unknown', 'timeout', fence => :fence);
SELECT idem_complete('unknown', '1', fence => :fence);
SELECT :claim('unknown');

-- A result over the limit is refused, and the claim stays open.
SELECT fence FROM idem_claim('large', lease => '1 minute') \gset
SELECT test.try(format($$ SELECT idem_complete('large', to_jsonb(repeat('x', 65536)), fence => %s) $$, :fence));
SELECT :peek('large');
SELECT idem_complete('large', '"stored elsewhere"', fence => :fence);
-- A result that jsonb cannot take never reaches us, and the claim stays open.
SELECT fence FROM idem_claim('unstorable', lease => '1 minute') \gset
SELECT test.try(format($$ SELECT idem_complete('unstorable', '{"o": "\u0000"}', fence => %s) $$, :fence));
SELECT :claim('unstorable');
SELECT idem_complete('unstorable', '{"o": ""}', fence => :fence);
