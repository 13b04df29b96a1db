# No worker: not preloaded, no slot for a sweeper, no slot for the launcher. Nothing that correctness needs is missing
# then, and idem_status says what to do.
#
# Claims, and what would turn them red:
# - Claims, takeovers and pruning by hand are right without a worker: deciding by what a sweep wrote instead of the clock.
# - idem_status names the cause and the setting that helps: a worker that fails in silence.
# - The log is told once: a launcher that complains at each round.
# - With a slot it sweeps what was left: a launcher that gave up for good.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use Test::More;

my $node = IdempotencyNode->start(conf => [ "log_statement = none" ]);
my $sql = sub { $node->safe_psql('app', $_[0]) };

$sql->(q{
	SELECT idem_scope_set('local', effect_kind => 'local'), idem_scope_set('short', dedup_window => '1 second');
	CREATE TABLE effect (id bigserial, key text);
});

# Everything that matters, with keys named after the arrangement.
sub works_without_a_worker
{
	my ($name) = @_;

	is($sql->("SELECT decision FROM idem_claim('$name', lease => '1ms')"), 'execute', "$name: a claim executes");
	is($sql->("SELECT decision FROM idem_claim('$name-l', scope => 'local', lease => '1ms')"), 'execute', "$name: local, too");
	is($sql->("SELECT decision FROM idem_claim('$name-1h', lease => '1h')"), 'execute', "$name: and one that lasts");
	until_true($node, 'app', "SELECT leases_overdue >= 2 FROM idem_status()", "$name: leases end, and idem_status counts them");
	is($sql->("SELECT state FROM idem_peek('$name')"), 'in_flight', "$name: nobody swept");
	is($sql->("SELECT decision, attempt FROM idem_claim('$name', lease => '1ms')"), 'reconcile|2', "$name: an ended lease is for reconcile");
	is($sql->("SELECT decision, attempt FROM idem_claim('$name-l', scope => 'local', lease => '1ms')"), 'execute|2', "$name: a local one executes again");
	is($sql->("SELECT decision FROM idem_claim('$name-1h', lease => '1h')"), 'in_progress', "$name: a lease that lasts holds");

	# Waking a waiter needs no worker either.
	my $waiter = IdempotencySession->open($node, 'app');
	$waiter->send("SELECT decision, result FROM idem_claim('$name-1h', wait => '1min')");
	until_true($node, 'app', q{SELECT EXISTS (SELECT FROM pg_stat_activity WHERE state = 'active' AND wait_event_type = 'Extension')},
		"$name: somebody waits for a lease");
	$sql->("SELECT idem_complete('$name-1h', '7', fence => fence) FROM idem_peek('$name-1h')");
	is($waiter->answer, 'replay|7', "$name: the waiter is woken and replays");
	$waiter->quit;

	is($sql->("SELECT result FROM idem_once('$name-once', \$\$INSERT INTO effect (key) VALUES ('$name') RETURNING to_jsonb(key)\$\$)"),
		qq("$name"), "$name: idem_once");
	$sql->("SELECT idem_once('$name-old', 'SELECT to_jsonb(1)', scope => 'short')");
	until_true($node, 'app', "SELECT window_ends_at < clock_timestamp() FROM idem_peek('$name-old', 'short')", "$name: a window ends");
	is($sql->("BEGIN; SELECT decision FROM idem_claim('$name-old', scope => 'short'); ROLLBACK"), 'execute', "$name: past its window a key is free");
	$sql->('CALL idempotency.sweep()');
	is($sql->("SELECT state FROM idem_peek('$name')"), 'unknown', "$name: CALL idempotency.sweep() ends leases");
	is($sql->("SELECT state FROM idem_peek('$name-old', 'short')"), 'absent', "$name: and prunes");
	return;
}

sub restarted_with
{
	my (@lines) = @_;

	$node->append_conf('postgresql.conf', $_) for @lines;
	$node->restart;
	return;
}

# --- not preloaded --------------------------------------------------------------------------------------------------

like($sql->('SELECT preloaded, worker FROM idem_status()'),
	qr/^f\|no worker: .*shared_preload_libraries.*idempotency\.sweep\(\)/, 'not preloaded: idem_status tells the two ways out');
is($sql->('SELECT launcher_pid IS NULL, last_sweep_at IS NULL, last_error IS NULL FROM idem_status()'), 't|t|t',
	'not preloaded: there is no launcher and no sweep');
works_without_a_worker('bare');

# --- a launcher, but no slot for its sweepers -----------------------------------------------------------------------

# The launcher of logical replication takes the first slot.
my $log = log_position($node);
restarted_with("shared_preload_libraries = 'idempotency'", "idempotency.naptime = '50ms'",
	'max_worker_processes = 1', 'max_logical_replication_workers = 0');
until_true($node, 'app', q{SELECT worker LIKE '%no%slot%max_worker_processes%' FROM idem_status()},
	'no slot for a sweeper: idem_status says what to raise');
is($sql->('SELECT preloaded, launcher_pid IS NOT NULL FROM idem_status()'), 't|t', 'the launcher is there');
works_without_a_worker('no_slot');
cmp_ok(scalar(log_matches($node, qr/LOG:  .*max_worker_processes/, $log)), '==', 1, 'the log is told once');
is(join("\n", log_matches($node, qr/\[\d+\] (ERROR|FATAL|PANIC|WARNING):/, $log)), '', 'and of nothing else');

# --- no slot at all -------------------------------------------------------------------------------------------------

restarted_with('max_worker_processes = 0');
$log = log_position($node);
like($sql->('SELECT worker FROM idem_status()'), qr/^no worker: .*max_worker_processes/, 'no slot for the launcher: idem_status says what to raise');
is($sql->('SELECT preloaded, launcher_pid IS NULL FROM idem_status()'), 't|t', 'there is no launcher');
works_without_a_worker('no_launcher');
is(join("\n", log_matches($node, qr/\[\d+\] (ERROR|FATAL|PANIC):/, $log)), '', 'no error in the log');

# --- a slot at last -------------------------------------------------------------------------------------------------

$sql->(q{SELECT idem_claim('at-last', lease => '1ms')});
restarted_with('max_worker_processes = 2');
until_true($node, 'app', q{SELECT worker = 'running' AND last_sweep_at IS NOT NULL FROM idem_status()}, 'with a slot: running');
until_true($node, 'app', q{SELECT state = 'unknown' FROM idem_peek('at-last')}, 'and it sweeps');

$node->stop;
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
