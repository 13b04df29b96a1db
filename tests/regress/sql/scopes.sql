-- Scopes: policies, their limits and effects, grants, effect kinds, dropping.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- default is there without a row, and gets one with its first policy.
SELECT scope, owner = current_user::regrole AS mine, dedup_window, keep_forever, max_lease, effect_kind, provider_window, wait, max_result_bytes, ignore_args,
       granted_to, created_at IS NOT NULL AS created FROM idempotency.scopes;
SELECT count(*) FROM idempotency.scope;
SELECT idem_scope_set('default', dedup_window => '7 days');
SELECT scope, dedup_window, keep_forever, created_at IS NOT NULL AS created FROM idempotency.scopes;
SELECT idem_scope_reset('default', 'dedup_window');
SELECT test.try($$ SELECT idem_scope_drop('default') $$);
-- Resetting it before anything was set changes nothing.
DELETE FROM idempotency.scope;
SELECT idem_scope_reset('default', 'wait');
SELECT scope, wait FROM idempotency.scopes;

-- Each policy is set, kept where NULL is given, and reset.
SELECT idem_scope_set('s', '36 hours', true, '2 hours', 'keyed', '3 days', '1.5 seconds', 1000, ARRAY['/a', '/b']);
SELECT scope, dedup_window, keep_forever, max_lease, effect_kind, provider_window, wait, max_result_bytes, ignore_args, granted_to FROM idempotency.scopes WHERE scope = 's' \gx
SELECT idem_scope_set('s');
SELECT idem_scope_set('s', wait => '0');
SELECT scope, dedup_window, keep_forever, max_lease, effect_kind, provider_window, wait, max_result_bytes, ignore_args, granted_to FROM idempotency.scopes WHERE scope = 's' \gx
SELECT count(idem_scope_reset('s', p)) FROM unnest(ARRAY['dedup_window', 'keep_forever', 'max_lease', 'effect_kind', 'provider_window', 'wait', 'max_result_bytes', 'ignore_args']) AS p;
SELECT scope, dedup_window, keep_forever, max_lease, effect_kind, provider_window, wait, max_result_bytes, ignore_args, granted_to FROM idempotency.scopes WHERE scope = 's' \gx
SELECT test.try($$ SELECT idem_scope_reset('s', 'owner') $$);
SELECT test.try($$ SELECT idem_scope_reset('s', NULL) $$);
SELECT test.try($$ SELECT idem_scope_reset('absent', 'wait') $$);

-- Values that cannot be meant change nothing, not even the policies beside them.
SELECT policy, value, test.try(format('SELECT idem_scope_set(%L, keep_forever => true, %I => %L)', 's', policy, value)) AS answer FROM (VALUES
    ('dedup_window', '0'), ('dedup_window', '-1 day'), ('dedup_window', '999 microseconds'), ('dedup_window', '102 years'), ('dedup_window', '178000000 years'),
    ('max_lease', '0'), ('max_lease', '-1 hour'), ('max_lease', '102 years'), ('provider_window', '0'), ('provider_window', '-1 hour'),
    ('wait', '-1 millisecond'), ('wait', '102 years'), ('effect_kind', 'extern'), ('effect_kind', ''), ('effect_kind', 'LOCAL'),
    ('max_result_bytes', '-1'), ('max_result_bytes', '268435457')) AS v (policy, value);
SELECT keep_forever FROM idempotency.scopes WHERE scope = 's';
SELECT test.try('SELECT idem_scope_set(''s'', ' || v || ')') FROM unnest(ARRAY['dedup_window => ''1 millisecond''', 'dedup_window => ''100 years''', 'max_lease => ''100 years''', 'max_result_bytes => 0', 'max_result_bytes => 268435456']) AS v;
SELECT count(idem_scope_reset('s', p)) FROM unnest(ARRAY['dedup_window', 'max_lease', 'max_result_bytes']) AS p;

-- dedup_window: counts from the finish, and a change applies to keys that are there.
SELECT fence FROM idem_claim('w', scope => 's', lease => '1 minute') \gset
SELECT idem_complete('w', '1', 's', :fence);
CALL test.age('w', '2 days', 's');
SELECT decision FROM idem_claim('w', scope => 's');
SELECT window_ends_at - finished_at AS guarded_for FROM idem_peek('w', 's');
BEGIN;
SELECT idem_scope_set('s', dedup_window => '1 day');
SELECT decision FROM idem_claim('w', scope => 's');
SELECT window_ends_at - finished_at AS guarded_for FROM idem_peek('w', 's');
ROLLBACK;
SELECT decision FROM idem_claim('w', scope => 's');
SELECT idem_scope_set('s', dedup_window => '3 days');
CALL test.age('w', '23 hours 59 minutes', 's');
SELECT decision FROM idem_claim('w', scope => 's');
-- keep_forever wins over any window.
SELECT idem_scope_set('s', keep_forever => true);
CALL test.age('w', '50 years', 's');
SELECT decision FROM idem_claim('w', scope => 's', issued_at => '1970-01-01');
SELECT window_ends_at FROM idem_peek('w', 's');
SELECT idem_scope_set('s', keep_forever => false);
SELECT decision FROM idem_claim('w', scope => 's', issued_at => '1970-01-01');
-- Open keys have no window.
SELECT fence FROM idem_claim('open', scope => 's', lease => '1 minute') \gset
SELECT idem_fail('open', 'unknown', scope => 's', fence => :fence);
CALL test.age('open', '50 years', 's');
SELECT decision FROM idem_claim('open', scope => 's', issued_at => '1970-01-01', lease => '1 minute');

-- max_lease, max_result_bytes.
SELECT idem_scope_set('s', max_lease => '2 days', max_result_bytes => 20);
SELECT decision, lease_expires_at - claimed_at AS lease FROM idem_claim('long', scope => 's', lease => '48 hours');
SELECT test.try($$ SELECT idem_claim('longer', scope => 's', lease => '48 hours 1 second') $$);
SELECT test.try($$ SELECT idem_renew('long', '48 hours 1 second', 's', (SELECT fence FROM idem_peek('long', 's'))) $$);
SELECT test.try($$ SELECT idem_once('result', 'SELECT $x$"more than 20 bytes"$x$::jsonb', scope => 's') $$);
SELECT * FROM idem_once('result', 'SELECT $x$"20 bytes"$x$::jsonb', scope => 's');
SELECT idem_scope_set('s', max_result_bytes => 0);
SELECT test.try($$ SELECT idem_once('result 0', 'SELECT to_jsonb(1)', scope => 's') $$);
SELECT * FROM idem_once('result 0', 'SELECT NULL::jsonb', scope => 's');

-- Effect kinds: what an expired lease means, frozen with the first claim.
SELECT idem_scope_set('external', effect_kind => 'external');
SELECT idem_scope_set('keyed', effect_kind => 'keyed');
SELECT idem_scope_set('local', effect_kind => 'local');
SELECT idem_scope_set('changing', effect_kind => 'local');
SELECT k.scope, c.decision FROM unnest(ARRAY['external', 'keyed', 'local', 'changing']) AS k (scope), idem_claim('k', scope => k.scope, lease => '1 minute') AS c;
SELECT idem_scope_set('changing', effect_kind => 'external');
DO $$ BEGIN
    CALL test.age('k', '1 hour', 'external'); CALL test.age('k', '1 hour', 'keyed'); CALL test.age('k', '1 hour', 'local'); CALL test.age('k', '1 hour', 'changing');
END $$;
SELECT k.scope, c.decision, c.attempt, c.reason FROM unnest(ARRAY['external', 'keyed', 'local', 'changing']) AS k (scope), idem_claim('k', scope => k.scope, lease => '1 minute') AS c;
-- keyed: again and again, but only within the provider's window from the first attempt.
CALL test.age('k', '10 hours', 'keyed');
SELECT decision, attempt FROM idem_claim('k', scope => 'keyed', lease => '1 minute');
CALL test.age('k', '12 hours 55 minutes', 'keyed');
SELECT decision, attempt FROM idem_claim('k', scope => 'keyed', lease => '1 minute');
CALL test.age('k', '10 minutes', 'keyed');
CALL idempotency.sweep();
SELECT decision, attempt FROM idem_claim('k', scope => 'keyed', lease => '1 minute');
-- A reconciler whose lease ends leaves it to the next one to reconcile, whatever the window says then.
SELECT idem_scope_set('keyed', provider_window => '10 days');
CALL test.age('k', '1 hour', 'keyed');
SELECT decision, attempt FROM idem_claim('k', scope => 'keyed', lease => '1 minute');
-- Not applied says nothing of the attempt before it: a key whose lease ended stays unknown.
SELECT decision FROM idem_claim('n', scope => 'keyed', lease => '1 minute');
CALL test.age('n', '1 hour', 'keyed');
SELECT fence FROM idem_claim('n', scope => 'keyed', lease => '1 minute') \gset
SELECT idem_fail('n', 'not_applied', 'refused', scope => 'keyed', fence => :fence);
SELECT state, attempt, reason FROM idem_peek('n', 'keyed');
SELECT decision, attempt FROM idem_claim('n', scope => 'keyed', lease => '1 minute');
-- Declared unknown is reconciled in every kind.
SELECT k.scope, c.decision, idem_fail('u', 'unknown', 'timeout', scope => k.scope)
  FROM unnest(ARRAY['external', 'keyed', 'local']) AS k (scope), idem_claim('u', scope => k.scope) AS c;
SELECT k.scope, c.decision, c.attempt, c.reason FROM unnest(ARRAY['external', 'keyed', 'local']) AS k (scope), idem_claim('u', scope => k.scope, lease => '1 minute') AS c;
-- local: finished in the transaction that claimed it, with every verdict; keyed and external: not.
SELECT k.scope, v.ending, split_part(test.try(format('DO $d$ DECLARE f bigint; BEGIN f := (idem_claim(%1$L, scope => %2$L, lease => %3$L)).fence; PERFORM %4$s; END $d$',
           'same ' || v.ending, k.scope, '1 minute', format(v.call, 'same ' || v.ending, k.scope))), ' key', 1) AS answer
  FROM unnest(ARRAY['external', 'keyed', 'local']) AS k (scope),
       (VALUES ('complete', 'idem_complete(%L, scope => %L, fence => f)'), ('not_applied', 'idem_fail(%L, ''not_applied'', scope => %L, fence => f)'),
               ('unknown', 'idem_fail(%L, ''unknown'', scope => %L, fence => f)'), ('rejected', 'idem_fail(%L, ''rejected'', scope => %L, fence => f)'),
               ('release', 'idem_release(%L, scope => %L, fence => f)'), ('renew', 'idem_renew(%L, ''2 minutes'', scope => %L, fence => f)')) AS v (ending, call)
 ORDER BY 1, 2;

-- Grants: stored once, listed, taken back; '-' is PUBLIC.
CREATE ROLE regress_idem_scopes;
SELECT idem_scope_grant('s', 'regress_idem_scopes');
SELECT idem_scope_grant('s', 'regress_idem_scopes');
SELECT idem_scope_grant('s', '-');
SELECT granted_to FROM idempotency.scopes WHERE scope = 's';
SELECT idem_scope_revoke('s', '-');
SELECT idem_scope_revoke('s', 'pg_monitor');
SELECT granted_to FROM idempotency.scopes WHERE scope = 's';
SELECT idem_scope_revoke('s', 'regress_idem_scopes');
SELECT test.try($$ SELECT idem_scope_grant('s', NULL) $$);
SELECT test.try($$ SELECT idem_scope_grant('s', 'regress_idem_absent') $$);
SELECT test.try($$ SELECT idem_scope_grant('s', 4294967295::regrole) $$);
SELECT test.try($$ SELECT idem_scope_grant('absent', 'regress_idem_scopes') $$);
-- default can be granted without having a row of its own.
DELETE FROM idempotency.scope WHERE id = 0;
SELECT idem_scope_grant('default', 'regress_idem_scopes');
SET ROLE regress_idem_scopes;
SELECT scope FROM idempotency.scopes;
SELECT decision FROM idem_claim('granted', lease => '1 minute');
RESET ROLE;
SELECT idem_scope_revoke('default', 'regress_idem_scopes');
SET ROLE regress_idem_scopes;
SELECT count(*) FROM idempotency.scopes;
RESET ROLE;
DROP ROLE regress_idem_scopes;

-- Dropping: only when nothing is left to forget.
SELECT idem_scope_drop('external');
SELECT test.try($$ SELECT idem_scope_drop('absent') $$);
SELECT idem_scope_set('empty');
SELECT decision FROM idem_claim('k', scope => 'empty', lease => '1 minute');
SELECT test.try($$ SELECT idem_scope_drop('empty') $$);
SELECT idem_release('k', 'empty', fence) FROM idem_peek('k', 'empty');
SELECT idem_scope_grant('empty', 'pg_monitor');
SELECT idem_scope_set('empty', ignore_args => ARRAY['/a']);
SELECT idem_scope_drop('empty');
SELECT test.try($$ SELECT idem_claim('k', scope => 'empty') $$);
SELECT idem_scope_set('empty');
SELECT ignore_args, granted_to FROM idempotency.scopes WHERE scope = 'empty';
-- A rollback brings it back, in this session too.
BEGIN;
SELECT idem_scope_drop('empty');
SELECT left(test.try($$ SELECT idem_claim('k', scope => 'empty') $$), 5) AS sqlstate;
ROLLBACK;
SELECT decision FROM idem_claim('k', scope => 'empty', lease => '1 minute');
BEGIN;
SELECT idem_scope_set('never');
SELECT decision FROM idem_claim('k', scope => 'never', lease => '1 minute');
ROLLBACK;
SELECT left(test.try($$ SELECT idem_claim('k', scope => 'never') $$), 5) AS sqlstate;
-- A claim that is open in this transaction is a key too.
BEGIN;
SELECT idem_scope_set('open here');
SELECT decision FROM idem_claim('k', scope => 'open here');
SELECT test.try($$ SELECT idem_scope_drop('open here') $$);
SELECT test.try($$ SELECT idem_complete('k', '1', 'open here') $$);
COMMIT;
SELECT test.try($$ SELECT idem_claim('k', scope => 'open here') $$);

-- idem_guarantee says it in words.
SELECT regexp_split_to_table(idem_guarantee(), '(?<=[.]) ') AS guarantee;
SELECT regexp_split_to_table(idem_guarantee('keyed'), '(?<=[.]) ') AS guarantee;
SELECT idem_scope_set('local', keep_forever => true);
SELECT sentence FROM regexp_split_to_table(idem_guarantee('local'), '(?<=[.]) ') AS sentence WHERE sentence ~ 'for ever|window';
SELECT idem_scope_set('local', keep_forever => false, dedup_window => '90 minutes');
SELECT regexp_split_to_table(idem_guarantee('local'), '(?<=[.]) ') AS guarantee;
SELECT test.try($$ SELECT idem_guarantee('absent') $$);
