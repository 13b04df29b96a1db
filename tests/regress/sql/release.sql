-- idem_release: gives a claim back and restores what it found.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- Transactional: as if it had never been claimed.
BEGIN;
SELECT :claim('t');
SELECT idem_release('t');
SELECT :claim('t');
SELECT idem_release('t');
COMMIT;
SELECT :peek('t');

-- Leased: a first claim disappears.
SELECT fence FROM idem_claim('l', lease => '1 minute') \gset
SELECT test.try($$ SELECT idem_release('l') $$);
SELECT test.try(format($$ SELECT idem_release('l', fence => %s) $$, :fence + 1));
SELECT idem_release('l', fence => :fence);
SELECT :peek('l');
SELECT test.try(format($$ SELECT idem_release('l', fence => %s) $$, :fence));
BEGIN;
SELECT :claim('l', '"other arguments"');
ROLLBACK;

-- In the transaction that claimed, nothing was begun yet.
BEGIN;
SELECT fence FROM idem_claim('here', lease => '1 minute') \gset
SELECT idem_release('here', fence => :fence);
SELECT :claim('here');
ROLLBACK;
BEGIN;
SELECT fence FROM idem_claim('here', lease => '1 minute') \gset
SELECT idem_release('here', fence => :fence);
COMMIT;
SELECT :peek('here');

-- Late, by the last owner.
SELECT fence FROM idem_claim('late', lease => '1 minute') \gset
CALL test.age('late', '1 hour');
SELECT idem_release('late', fence => :fence);
SELECT :peek('late');

-- What was unknown stays unknown, with its attempts and its reason, but nobody holds it any more.
SELECT fence FROM idem_claim('u', lease => '1 minute') \gset
SELECT idem_fail('u', 'unknown', 'timeout', fence => :fence);
SELECT :claim('u', lease => '1 minute');
SELECT fence AS second_fence FROM idem_peek('u') \gset
SELECT idem_release('u', fence => :second_fence);
SELECT :peek('u');
SELECT test.try(format($$ SELECT idem_complete('u', '1', fence => %s) $$, :second_fence));
SELECT test.try(format($$ SELECT idem_complete('u', '1', fence => %s) $$, :fence));
BEGIN;
SELECT :claim('u');
SELECT idem_release('u');
SELECT :claim('u');
SELECT idem_release('u');
COMMIT;
SELECT :peek('u');

-- A lease that was over is found again as such.
SELECT decision FROM idem_claim('x', lease => '1 minute');
CALL test.age('x', '1 hour');
SELECT :claim('x', lease => '1 minute');
SELECT fence AS second_fence FROM idem_peek('x') \gset
SELECT idem_release('x', fence => :second_fence);
BEGIN;
SELECT :claim('x');
ROLLBACK;

-- What was not applied stays so.
SELECT fence FROM idem_claim('n', lease => '1 minute') \gset
SELECT idem_fail('n', 'not_applied', 'connection refused', fence => :fence);
SELECT :claim('n', lease => '1 minute');
SELECT fence AS second_fence FROM idem_peek('n') \gset
SELECT idem_release('n', fence => :second_fence);
SELECT :peek('n');
BEGIN;
SELECT :claim('n');
ROLLBACK;

-- There is nothing to give back of what is finished or declared unknown.
SELECT fence FROM idem_claim('c', lease => '1 minute') \gset
SELECT idem_complete('c', fence => :fence);
SELECT test.try(format($$ SELECT idem_release('c', fence => %s) $$, :fence));
SELECT test.try($$ SELECT idem_release('c') $$);
SELECT test.try($$ SELECT idem_release('absent') $$);
SELECT fence FROM idem_claim('d', lease => '1 minute') \gset
SELECT idem_fail('d', 'unknown', fence => :fence);
SELECT test.try(format($$ SELECT idem_release('d', fence => %s) $$, :fence));
