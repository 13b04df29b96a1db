# What idempotency.stats counts: exact numbers for a history that is known, in all the ways a transaction can end.
#
# Claims, and what would turn them red:
# - Nothing is counted that was rolled back: by transaction, savepoint, exception block, ROLLBACK PREPARED or a killed
#   session. A counter that is raised where the work is done, and not where it commits.
# - What no rollback undoes is counted: refusals. A counter that waits for the commit of a transaction that fails by it.
# - Each database and scope has its own numbers: a place in shared memory that is found by the scope's number alone.
# - 1,024 scopes are counted, more do no harm and say so; a scope that is dropped makes room: a table that is never cleared.
# - The worker writes down each count once, over restarts of its own: sums in idempotency.activity that grow by themselves.
# - A restart begins at zero and says since when; what was observed is kept.
# - Without the library in shared_preload_libraries counters are NULL, counters_note says why, the gauges are there.
# - pg_monitor sees numbers and no key; others only scopes of their own.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use Test::More;

my $node = IdempotencyNode->start(preload => 1, conf => [
		"log_statement = none", "idempotency.naptime = '50ms'", "idempotency.worker = off" ]);
my $sql = sub { $node->safe_psql($_[1] // 'app', $_[0]) };

my @counters = qw(claims executes reconciles replays rejections in_progress mismatches takeovers fences_lost completed failed_not_applied
  failed_unknown failed_rejected released unknown escalated leases_expired late_finishes enqueued dispatched pruned pruned_alive late_retries);
my $names = join ', ', map { "'$_'" } @counters;

# The counters of a scope that are not zero, in the order above.
sub counted
{
	my ($scope, $database) = @_;

	return $sql->(qq{
		SELECT COALESCE(string_agg(name || ' ' || (row ->> name), ', ' ORDER BY ord), '')
		  FROM (SELECT to_jsonb(s) AS row FROM idempotency.stats AS s WHERE scope = '$scope') AS r
		 CROSS JOIN unnest(ARRAY[$names]) WITH ORDINALITY AS u (name, ord) WHERE row ->> name <> '0'}, $database);
}

# A scope of its own for each history: what $do did must be counted like this, and no more.
sub history
{
	my ($scope, $do, $expected, $policies) = @_;

	$sql->("SELECT idem_scope_set('$scope'" . ($policies ? ", $policies" : '') . ')');
	ref $do ? $do->($scope) : $sql->($do =~ s/\bS\b/'$scope'/gr);
	return is(counted($scope), $expected, "$scope: counted exactly");
}

# A statement that fails: its SQLSTATE.
sub fails { return sqlstate_of($node, 'app', $_[0]); }

# --- every kind of ending -------------------------------------------------------------------------------------------

history('once', q{SELECT idem_once('a', 'SELECT to_jsonb(1)', scope => S); SELECT idem_once('a', 'SELECT to_jsonb(1)', scope => S); SELECT idem_once('a', 'SELECT to_jsonb(1)', scope => S); SELECT idem_once('b', 'SELECT to_jsonb(1)', scope => S)},
	'claims 4, executes 2, replays 2, completed 2');
history('call', q{CREATE FUNCTION effect(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1'; SELECT idem_call('a', 'effect', '1', scope => S); SELECT idem_call('a', 'effect', '1', scope => S)},
	'claims 2, executes 1, replays 1, completed 1');
history('many', q{BEGIN; SELECT count(*) FROM idem_claim_many(ARRAY['a', 'b', 'c'], scope => S); SELECT count(*) FROM idem_complete_many(ARRAY['a', 'b', 'c'], scope => S); COMMIT;
	SELECT count(*) FROM idem_claim_many(ARRAY['a', 'b', 'd'], scope => S, lease => '1h')},
	'claims 6, executes 4, replays 2, completed 3');
history('failures', q{
	BEGIN; SELECT idem_claim('n', scope => S); SELECT idem_fail('n', 'not_applied', scope => S); COMMIT;
	BEGIN; SELECT idem_claim('u', scope => S); SELECT idem_fail('u', 'unknown', scope => S); COMMIT;
	BEGIN; SELECT idem_claim('r', scope => S); SELECT idem_fail('r', 'rejected', scope => S); COMMIT;
	SELECT idem_claim('r', scope => S);
	BEGIN; SELECT idem_claim('l', scope => S); SELECT idem_release('l', S); COMMIT},
	'claims 5, executes 4, rejections 1, failed_not_applied 1, failed_unknown 1, failed_rejected 1, released 1, unknown 1');
history('doubt', q{
	BEGIN; SELECT idem_claim('u', scope => S); SELECT idem_fail('u', 'unknown', scope => S); COMMIT;
	SELECT idem_escalate('u', scope => S); SELECT idem_claim('u', scope => S); SELECT idem_resolve('u', 'applied', '1', scope => S); SELECT idem_claim('u', scope => S)},
	'claims 3, executes 1, replays 1, completed 1, failed_unknown 1, unknown 1, escalated 1');
history('leases', sub {
	$sql->(q{SELECT idem_claim('held', scope => 'leases', lease => '1h'), idem_claim('over', scope => 'leases', lease => '1ms'), idem_claim('late', scope => 'leases', lease => '1ms')});
	until_true($node, 'app', q{SELECT bool_and(lease_expires_at < clock_timestamp()) FROM idempotency.records WHERE scope = 'leases' AND key <> 'held'}, 'leases are over');
	my $fence = $sql->(q{SELECT fence FROM idem_peek('over', 'leases')});
	is($sql->(q{SELECT decision FROM idem_claim('held', scope => 'leases', lease => '1h', wait => '0')}), 'in_progress', 'one is held');
	is($sql->(q{SELECT decision FROM idem_claim('over', scope => 'leases', lease => '1h')}), 'reconcile', 'one is taken over');
	is(fails("SELECT idem_complete('over', '1', 'leases', $fence)"), 'ID003', 'its owner before is refused');
	$sql->(q{SELECT idem_complete('late', '1', 'leases', fence) FROM idem_peek('late', 'leases')});
}, 'claims 5, executes 3, reconciles 1, in_progress 1, takeovers 1, fences_lost 1, completed 1, leases_expired 1, late_finishes 1');
history('swept', sub {
	$sql->(q{SELECT idem_claim('over', scope => 'swept', lease => '1ms')});
	until_true($node, 'app', q{SELECT lease_expires_at < clock_timestamp() FROM idem_peek('over', 'swept')}, 'a lease is over');
	$sql->(q{CALL idempotency.sweep()});
	is($sql->(q{SELECT decision FROM idem_claim('over', scope => 'swept', lease => '1h')}), 'reconcile', 'a sweep has seen it before the next owner');
}, 'claims 2, executes 1, reconciles 1, takeovers 1, unknown 1, leases_expired 1');
history('refused', sub {
	$sql->(q{SELECT idem_once('a', 'SELECT to_jsonb(1)', '{"amount": 5}', scope => 'refused')});
	is(fails(q{SELECT idem_once('a', 'SELECT to_jsonb(1)', '{"amount": 6}', scope => 'refused')}), 'ID001', 'other arguments: refused') for 1 .. 3;
}, 'claims 1, executes 1, mismatches 3, completed 1');
history('outbox', q{SELECT idem_enqueue('m', 'mail', '1', scope => S); SELECT idem_enqueue('m', 'mail', '1', scope => S);
	SELECT count(*) FROM idem_dispatch('mail', 10, '1h', scopes => ARRAY[S]); SELECT idem_complete('m', '1', S, fence) FROM idem_peek('m', S)},
	'completed 1, enqueued 1, dispatched 1');
history('expiry', sub {
	$sql->(q{SELECT idem_run_begin('alive', '1 year');
		SELECT idem_once('pruned', 'SELECT to_jsonb(1)', scope => 'expiry'), idem_once('of-run', 'SELECT to_jsonb(1)', scope => 'expiry', run => 'alive'), idem_once('stays', 'SELECT to_jsonb(1)', scope => 'expiry');
		UPDATE idempotency.outcome SET finished_at = finished_at - interval '3 days' WHERE key IN ('pruned', 'of-run');
		CALL idempotency.sweep()});
	is(fails(q{SELECT idem_once('pruned', 'SELECT to_jsonb(1)', scope => 'expiry')}), 'ID007', 'a late claim is refused');
	is($sql->(q{SELECT decision FROM idem_claim('pruned', scope => 'expiry')}), 'expired', 'or answered');
}, 'claims 4, executes 3, completed 3, pruned 2, pruned_alive 1, late_retries 2', q{dedup_window => '1 day', hard_limit => '2 days', guard => '1 year'});

# --- every way a transaction can end --------------------------------------------------------------------------------

my $once = q{SELECT idem_once('k', 'SELECT to_jsonb(1)', scope => S)};
history('rolled-back', "BEGIN; $once; $once; SELECT idem_claim('l', scope => S, lease => '1h'); ROLLBACK", '');
history('rolled-back-replay', "$once; BEGIN; $once; ROLLBACK", 'claims 1, executes 1, completed 1');
history('savepoints', qq{BEGIN; SAVEPOINT a; $once; ROLLBACK TO a; SAVEPOINT b; SAVEPOINT c; SELECT idem_once('kept', 'SELECT to_jsonb(1)', scope => S);
	RELEASE c; SAVEPOINT d; SELECT idem_once('gone', 'SELECT to_jsonb(1)', scope => S); ROLLBACK TO d; RELEASE b; COMMIT},
	'claims 1, executes 1, completed 1');
history('nested', q{BEGIN; SAVEPOINT a; SAVEPOINT b; SELECT idem_once('gone', 'SELECT to_jsonb(1)', scope => S); RELEASE b; ROLLBACK TO a; COMMIT}, '');
history('exception-block', q{DO $$ BEGIN FOR i IN 1 .. 10 LOOP BEGIN PERFORM idem_once('k' || i, 'SELECT to_jsonb(1)', scope => S); IF i % 2 = 0 THEN RAISE division_by_zero; END IF;
	EXCEPTION WHEN division_by_zero THEN END; END LOOP; END $$}, 'claims 5, executes 5, completed 5');
history('procedure', q{DO $$ BEGIN FOR i IN 1 .. 10 LOOP PERFORM idem_once('k' || i, 'SELECT to_jsonb(1)', scope => S); IF i % 2 = 0 THEN ROLLBACK; ELSE COMMIT; END IF; END LOOP; END $$},
	'claims 5, executes 5, completed 5');
history('fails-at-commit', sub {
	$sql->('CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)');
	is(fails(q{SELECT idem_once('k', 'INSERT INTO child VALUES (1) RETURNING to_jsonb(1)', scope => 'fails-at-commit')}), '23503', 'a commit that fails');
}, '');
history('prepared', sub {
	$sql->(qq{BEGIN; $once; PREPARE TRANSACTION 'counted'} =~ s/\bS\b/'prepared'/r);
	is(counted('prepared'), '', 'prepared: not yet');
	$sql->(q{ROLLBACK PREPARED 'counted'});
}, '');
# Whoever commits it knows nothing of what it counted: too few, and never too many.
history('prepared-committed', "BEGIN; $once; PREPARE TRANSACTION 'counted'; COMMIT PREPARED 'counted'; $once", 'claims 1, replays 1');
history('killed', sub {
	my $session = IdempotencySession->open($node, 'app');

	$session->query($once =~ s/\bS\b/'killed'/r);
	$session->query(q{BEGIN; SELECT idem_once('in-transaction', 'SELECT to_jsonb(1)', scope => 'killed')});
	my $pid = $session->backend_pid;
	$sql->("SELECT pg_terminate_backend($pid)");
	until_gone($pid, 'a session is killed in its transaction');
	$session->forget;
}, 'claims 1, executes 1, completed 1');
history('no-effect', sub {
	is(fails(q{SELECT idem_once('k', 'SELECT to_jsonb(1 / 0)', scope => 'no-effect')}), '22012', 'an effect that raises');
}, '');
# By many at once: nothing is lost.
history('many-sessions', sub {
	my @sessions = map { IdempotencySession->open($node, 'app') } 1 .. 6;

	$sessions[$_]->send("DO \$\$ BEGIN FOR i IN 1 .. 300 LOOP PERFORM idem_once('k$_/' || i, 'SELECT to_jsonb(1)', scope => 'many-sessions'), idem_once('k$_/' || i, 'SELECT to_jsonb(1)', scope => 'many-sessions'); COMMIT; END LOOP; END \$\$") for 0 .. 5;
	$_->answer, $_->quit for @sessions;
}, 'claims 3600, executes 1800, replays 1800, completed 1800');

# --- two databases --------------------------------------------------------------------------------------------------

$sql->('CREATE DATABASE other', 'postgres');
$sql->('CREATE EXTENSION idempotency', 'other');
$sql->(q{SELECT idem_once('a', 'SELECT to_jsonb(1)')}) for 1 .. 2;
$sql->(q{SELECT idem_once('a', 'SELECT to_jsonb(1)')}, 'other') for 1 .. 3;
is(counted('default'), 'claims 2, executes 1, replays 1, completed 1', 'one database');
is(counted('default', 'other'), 'claims 3, executes 1, replays 2, completed 1', 'and another');

# --- the worker writes it down --------------------------------------------------------------------------------------

my $totals = q{SELECT sum(claims), sum(executes), sum(replays), sum(pruned) FROM %s AS t%s};
my $written = sprintf $totals, 'idempotency.activity', '';
my $counted = sprintf $totals, 'idempotency.stats', '';
my $swept = sub {
	my ($name, $visits, $last) = (@_, 3, '');
	within(60, $name, sub { my $now = $sql->('SELECT last_sweep_at FROM idem_status()'); ($visits, $last) = ($visits - 1, $now) if $now ne $last; $visits < 0 });
};
$node->append_conf('postgresql.conf', 'idempotency.worker = on');
$node->reload;
within(30, 'the worker writes down what each scope did in each hour', sub { $sql->($written) eq $sql->($counted) }) or diag($sql->($written) . ' of ' . $sql->($counted));
$swept->('visits without anything new');
is($sql->($written), $sql->($counted), 'and nothing twice');
is($sql->(q{SELECT claims, executes, replays, pruned FROM idempotency.activity JOIN idempotency.scope ON id = scope_id WHERE name = 'expiry'}), '4|3|0|2', 'by scope');
is($sql->(q{SELECT hour = date_trunc('hour', hour, 'UTC') FROM idempotency.activity LIMIT 1}), 't', 'by hour');
is($sql->(q{SELECT (SELECT sum(n) FROM unnest(repeats) AS n), longest_repeat > '0' FROM idempotency.observed JOIN idempotency.scope ON id = scope_id WHERE name = 'once'}), '2|t', 'repeats are in the histogram, each once');
is($sql->(q{SELECT longest_late BETWEEN interval '3 days' AND interval '4 days' FROM idempotency.observed JOIN idempotency.scope ON id = scope_id WHERE name = 'expiry'}), 't', 'how late a late claim came');
is($sql->(q{SELECT longest_unknown > '0' FROM idempotency.observed JOIN idempotency.scope ON id = scope_id WHERE name = 'doubt'}), 't', 'how long an outcome was unknown');
is($sql->(q{SELECT longest_lease, slowest_call > '0' FROM idempotency.observed JOIN idempotency.scope ON id = scope_id WHERE name = 'leases'}), '01:00:00|t', 'how long leases and calls were');
is($sql->(q{SELECT claims FROM idempotency.activity WHERE scope_id = 0}, 'other'), 3, 'in each database');

# --- reset ----------------------------------------------------------------------------------------------------------

my $now = $sql->('SELECT clock_timestamp()');
$sql->(q{SELECT idem_stats_reset('once')});
is(counted('once'), '', 'reset: the counters of a scope are zero');
is($sql->(qq{SELECT counted_since >= '$now', longest_repeat IS NULL FROM idempotency.stats WHERE scope = 'once'}), 't|t', 'reset: since now, and nothing is observed');
is(counted('call'), 'claims 2, executes 1, replays 1, completed 1', 'reset: the other scopes keep theirs');
my $activity = $sql->($written);
$swept->('visits after a reset');
is($sql->($written), $activity, 'reset: what was written down stays, and no more is written');
$sql->(q{SELECT idem_once('a', 'SELECT to_jsonb(1)', scope => 'once')});
is(counted('once'), 'claims 1, replays 1', 'reset: counts go on from there');
$sql->(q{CREATE ROLE regress_user; CREATE ROLE regress_monitor; GRANT pg_monitor TO regress_monitor});
is(fails(q{SET ROLE regress_user; SELECT idem_stats_reset('once')}), '42501', 'reset: for operators of the scope');
is(fails(q{SET ROLE regress_user; SELECT idem_stats_reset()}), '42501', 'reset: of all, for the owner of the extension');
is(fails(q{SET ROLE regress_monitor; SELECT idem_stats_reset()}), '42501', 'reset: not for pg_monitor');
is(fails(q{SELECT idem_stats_reset('no such scope')}) ne '00000', 1, 'reset: a scope that is not there is an error');
$sql->(q{SELECT idem_stats_reset()});
is($sql->(q{SELECT string_agg(scope, ', ') FROM idempotency.stats WHERE claims > 0 OR longest_repeat IS NOT NULL}), '', 'reset: all of them');
is(counted('default', 'other'), 'claims 3, executes 1, replays 2, completed 1', 'reset: but those of the other database');

# --- who sees what --------------------------------------------------------------------------------------------------

$sql->(q{CREATE SCHEMA own; SELECT idem_scope_grant('once', 'regress_user'); SELECT idem_once('secret', 'SELECT to_jsonb(1)', scope => 'call')});
is($sql->('SET ROLE regress_user; SELECT string_agg(scope, \',\') FROM idempotency.stats'), 'once', 'a user sees the scopes that it may use');
is($sql->('SET ROLE regress_monitor; SELECT count(*) FROM idempotency.stats'), $sql->('SELECT count(*) FROM idempotency.stats'), 'pg_monitor sees them all');
is($sql->(q{SET ROLE regress_monitor; SELECT completed, outcomes FROM idempotency.stats WHERE scope = 'call'}), '1|2', 'counters and gauges');
is($sql->('SET ROLE regress_monitor; SELECT worker FROM idem_status()'), 'running', 'and what the worker does');
is($sql->(q{SET ROLE regress_monitor; SELECT string_agg(database, ',' ORDER BY database) FROM idempotency.sweeps}), 'app,other', 'in each database that has the extension')
  or diag($sql->('SELECT * FROM idempotency.sweeps'));
is($sql->('SET ROLE regress_monitor; SELECT count(*) FROM idempotency.records'), 0, 'but no key');
is($sql->(q{SET ROLE regress_monitor; SELECT count(*) FROM idem_find('secret')}), 0, 'by no way');
is($sql->(q{SET ROLE regress_monitor; SELECT count(*) FROM idempotency.events}), 0, 'nor in events');
is(fails("SET ROLE regress_monitor; SELECT key FROM idempotency.$_"), '42501', "nor in table $_") for qw(outcome claim event message);
is($sql->(q{SET ROLE regress_monitor; SELECT count(*) FROM idempotency.stats AS s WHERE to_jsonb(s)::text LIKE '%secret%'}), 0, 'nor in the numbers');
is(fails('SET ROLE regress_user; SELECT * FROM idem_status()'), '42501', 'others do not see what the worker does');
is(fails('SET ROLE regress_user; SELECT * FROM idempotency.sweeps'), '42501', 'nor its visits');

# --- more scopes than places ----------------------------------------------------------------------------------------

$sql->(q{SELECT idem_scope_set('scope-' || i) FROM generate_series(1, 1100) AS i});
# Who meets a scope at the same moment takes one place for it.
my @meeting = map { IdempotencySession->open($node, 'app') } 1 .. 3;
$_->send(q{DO $$ BEGIN FOR i IN 1 .. 1100 LOOP PERFORM idem_once(pg_backend_pid()::text, 'SELECT to_jsonb(1)', scope => 'scope-' || i); COMMIT; END LOOP; END $$}) for @meeting;
for my $session (@meeting) { $session->answer; is($session->error, '', 'scope after scope, three sessions at once'); $session->quit }
is($sql->(q{SELECT count(*) FROM idempotency.records WHERE scope LIKE 'scope-%'}), 3_300, 'more than 1,024 scopes: all of them work');
my $without = $sql->('SELECT count(*) FROM idempotency.stats WHERE claims IS NULL');
# 1,024 places for two databases; one of them has one.
my $scopes = $sql->('SELECT count(*) FROM idempotency.stats');
is($scopes - $without, 1_023, 'as many are counted as there are places');
is($sql->(q{SELECT severity, what FROM idem_doctor() WHERE finding = 'not_counted'}), "notice|$without scope(s) are not counted: 1,024 are", 'the doctor says how many are not');
is($sql->(q{SELECT DISTINCT counters_note FROM idempotency.stats WHERE claims IS NULL}), 'no room: 1,024 scopes are counted already', 'the others say why they are not');
is($sql->(q{SELECT sum(claims) FROM idempotency.stats WHERE scope LIKE 'scope-%'}), $sql->(q{SELECT 3 * count(claims) FROM idempotency.stats WHERE scope LIKE 'scope-%'}), 'those that are counted are counted right');
is($sql->(q{SELECT count(*) FROM idempotency.stats WHERE scope LIKE 'scope-%' AND outcomes = 3 AND next_expiry_at IS NOT NULL}), 1_100, 'all of them have their gauges');
$swept->('the worker comes by');
is($sql->('SELECT last_error FROM idem_status()'), '', 'and has no trouble with it');
my $uncounted = $sql->('SELECT scope FROM idempotency.stats WHERE claims IS NULL AND scope LIKE \'scope-%\' LIMIT 1');
my $known = $sql->(q{SELECT scope FROM idempotency.stats WHERE claims > 0 AND scope LIKE 'scope-%' LIMIT 1});
$sql->(qq{SELECT idem_forget(key, '$known') FROM idempotency.records WHERE scope = '$known'; SELECT idem_scope_drop('$known')});
within(30, 'a scope that is dropped makes room', sub { $sql->(qq{SELECT idem_once('k', 'SELECT to_jsonb(1)', scope => '$uncounted')}); counted($uncounted) =~ /^claims/ });
like(counted($uncounted), qr/^claims (\d+), replays \1$/, 'for another, which begins at zero');

# --- a restart ------------------------------------------------------------------------------------------------------

$sql->(q{SELECT idem_once('a', 'SELECT to_jsonb(1)', scope => 'once')});
within(30, 'a repeat is written down', sub { $sql->(q{SELECT longest_repeat IS NOT NULL FROM idempotency.observed JOIN idempotency.scope ON id = scope_id WHERE name = 'once'}) eq 't' });
$node->restart;
is(counted('once'), '', 'a restart: counters begin at zero');
is($sql->(q{SELECT bool_and(counted_since >= pg_postmaster_start_time()), count(counted_since) = count(*) FROM idempotency.stats WHERE counters_note IS NULL}), 't|t', 'a restart: since then');
is($sql->(q{SELECT longest_repeat > '0' FROM idempotency.stats WHERE scope = 'once'}), 't', 'a restart: what was observed is kept');
$activity = $sql->($written);
$swept->('visits after the restart');
is($sql->($written), $activity, 'a restart: nothing is written down twice');
$sql->(q{SELECT idem_once('a', 'SELECT to_jsonb(1)', scope => 'once')});
is(counted('once'), 'claims 1, replays 1', 'a restart: counts go on');
# A crash forgets them, too, and no more.
$node->stop('immediate');
$node->start;
is(counted('once'), '', 'a crash: counters begin at zero');

# --- without preload ------------------------------------------------------------------------------------------------

$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
is($sql->(q{SELECT counters_note, counted_since IS NULL FROM idempotency.stats WHERE scope = 'once'}), 'idempotency is not in shared_preload_libraries|t', 'without preload: the note says why');
is($sql->(qq{SELECT count(*) FROM idempotency.stats AS s WHERE EXISTS (SELECT FROM unnest(ARRAY[$names]) AS n WHERE to_jsonb(s) ->> n IS NOT NULL)}), 0, 'without preload: every counter is NULL');
is($sql->(q{SELECT outcomes, bytes > 0, open_keys, next_expiry_at IS NOT NULL, longest_repeat > '0' FROM idempotency.stats WHERE scope = 'once'}), '2|t|0|t|t', 'without preload: the gauges are there');
is($sql->(q{SELECT open_keys, in_flight, unknown_keys, oldest_open_at IS NOT NULL FROM idempotency.stats WHERE scope = 'leases'}), '2|2|0|t', 'without preload: those of open keys, too')
  or diag($sql->(q{SELECT * FROM idempotency.records WHERE scope = 'leases'}));
$sql->(q{SELECT idem_stats_reset('once')});
is($sql->(q{SELECT count(*) FROM idempotency.counters()}), 0, 'without preload: nothing is counted');

server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
