# The server dies in the middle of load, and so do clients and backends. After it: one effect for each key, one record
# for each effect, and what was answered to a client is still so.
#
# Claims, and what would turn them red:
# - After an immediate stop and restart no key has two effects, no effect lacks its record, no record its effect: a record
#   written in another transaction than the effect, or a write that skips the WAL.
# - What a client was told is still there: a leased claim or an outcome that is not durable.
# - Nothing stays locked, and what has no record executes: a lock that outlives its owner.
# - PREPARE TRANSACTION keeps the key over a restart: a lock that is not in the two-phase state.
# - SIGKILL for a backend, for pgbench, and pg_terminate_backend at COMMIT change none of it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use Test::More;

my $node = IdempotencyNode->start(preload => 1, conf => [
		"restart_after_crash = on", "log_statement = none", "idempotency.naptime = '200ms'", "wal_level = replica",
		"max_wal_senders = 1", "max_connections = 40" ]);
# Waits for no standby, whatever the test sets for others.
my $sql = sub { $node->safe_psql('app', "SET synchronous_commit = local;\n$_[0]") };

effect_table($node, 'app');
$sql->(q{SELECT idem_scope_set('local', effect_kind => 'local')});

# Three ways to work on the keys of one small range: each is fought over by all clients.
sub scripts
{
	my ($round) = @_;
	my $key = sub { "'$_[0]:$round:' || :n" };
	my $draw = '\set n random(1, 400)';

	return {
		"$draw\nSELECT result FROM idem_once(" . $key->('once') . ', $$' . effect_statement(q{$1->>'k'}, 'default')
		  . '$$, jsonb_build_object(\'k\', ' . $key->('once') . "));\n" => 4,
		"$draw
BEGIN;
SELECT (decision = 'execute')::int AS mine FROM idem_claim(" . $key->('transaction') . ") \\gset
\\if :mine
" . effect_statement($key->('transaction'), 'default') . " \\gset
SELECT idem_complete(" . $key->('transaction') . ", to_jsonb(:to_jsonb::bigint)) AS done \\gset
\\endif
COMMIT;\n" => 4,
		"$draw
SELECT (decision IN ('execute'))::int AS mine, COALESCE(fence, 0) AS fence
  FROM idem_claim(" . $key->('leased') . ", scope => 'local', lease => '2s') \\gset
\\if :mine
BEGIN;
" . effect_statement($key->('leased'), 'local') . " \\gset
SELECT idem_complete(" . $key->('leased') . ", to_jsonb(:to_jsonb::bigint), 'local', :fence) AS done \\gset
COMMIT;
\\endif\n" => 4,
	};
}

# A client that remembers what it was told: key => state and fence, or result.
sub told_something
{
	my ($round) = @_;
	my $client = IdempotencySession->open($node, 'app');
	my %told;

	for my $n (1 .. 10)
	{
		my $key = "told:$round:$n";
		my $fence = $client->query("SELECT fence FROM idem_claim('$key', lease => '1h')");
		$told{$key} = "in_flight|$fence|";
		next if $n % 2;
		$client->query("INSERT INTO effect (id, key, scope) VALUES (-100 * $round - $n, '$key', 'default');
			SELECT idem_complete('$key', '" . (-100 * $round - $n) . "', fence => $fence)");
		# The effect here is beside the record: outside effects are.
		$told{$key} = "completed|$fence|" . (-100 * $round - $n);
	}
	$client->quit;
	return \%told;
}

sub still_true
{
	my ($told, $when) = @_;
	my %now = map { split /=/, $_, 2 } split /\n/, $sql->(
		q{SELECT key || '=' || concat_ws('|', state, fence, COALESCE(result::text, '')) FROM idempotency.records WHERE key LIKE 'told:%'});

	is_deeply({ map { $_ => $now{$_} } keys %$told }, $told, "$when: what a client was told is still so");
	return;
}

# Waits until the load of this round has left $count effects.
sub until_worked
{
	my ($round, $count) = @_;

	return until_true($node, 'app', "SELECT count(*) >= $count FROM effect WHERE key LIKE '%:$round:%'",
		"round $round: the load works");
}

# All sessions of a load or of an earlier life are gone.
sub until_quiet
{
	return until_true($node, 'app', q{SELECT count(*) = 0 FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()}, 'its sessions are gone');
}

sub all_is_well
{
	my ($when) = @_;

	invariant_holds($node, 'app', $when);
	is($sql->(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), 0, "$when: no key is locked");
	is($sql->(q{SELECT count(*), count(*) FILTER (WHERE NOT o.replayed OR o.result IS DISTINCT FROM r.result)
		FROM (SELECT key, result FROM idempotency.records WHERE key LIKE 'once:%') r,
		     LATERAL idem_once(r.key, 'SELECT to_jsonb(0)', jsonb_build_object('k', r.key)) o}),
		$sql->(q{SELECT count(*), 0 FROM effect WHERE key LIKE 'once:%'}), "$when: every idem_once replays its own result");
	is($sql->(q{SELECT DISTINCT c.decision FROM (SELECT key, result FROM idempotency.records WHERE key LIKE 'transaction:%') r,
		     LATERAL idem_claim(r.key) c}), 'replay', "$when: every transaction's key replays");
	return;
}

# Keys of the range without a record: nobody holds them, the next caller executes.
sub rest_executes
{
	my ($round, $when) = @_;

	is($sql->("BEGIN; SELECT count(*) FILTER (WHERE decision <> 'execute') FROM
		(SELECT 'once:$round:' || n AS key FROM generate_series(1, 400) AS n
		 EXCEPT SELECT key FROM idempotency.records) AS free, LATERAL idem_claim(free.key, wait => '0') c; ROLLBACK"),
		0, "$when: every key without a record executes");
	return;
}

# --- immediate stops ------------------------------------------------------------------------------------------------

my %told;
for my $round (1 .. 3)
{
	my $load = load_start($node, 'app', scripts($round));
	until_worked($round, 250);
	my $told = told_something($round);
	$node->stop('immediate');
	load_stop($load);
	$node->start;
	%told = (%told, %$told);
	still_true(\%told, "crash $round");
	all_is_well("crash $round");
	rest_executes($round, "crash $round");
}

# The same keys again: what a crash interrupted is finished, and nothing happens twice.
{
	my $load = load_start($node, 'app', scripts(3));
	until_true($node, 'app', q{SELECT count(*) = 1200 FROM effect WHERE key ~ '^(once|transaction|leased):3:'},
		'every key of the last round is finished, those whose lease a crash left behind too');
	my $errors = load_stop($load);
	unlike($errors, qr/ERROR/, 'without an error');
	until_quiet();
	all_is_well('finished after the crash');
	is($sql->(q{SELECT count(*) FROM idempotency.records WHERE key LIKE 'leased:3:%' AND state = 'completed'}), 400,
		'leased ones too');
}

# --- a backend is killed: all of them restart -----------------------------------------------------------------------

{
	my $load = load_start($node, 'app', scripts(4));
	until_worked(4, 250);
	my $told = told_something(4);
	my $bystander = IdempotencySession->open($node, 'app');
	my $victim = IdempotencySession->open($node, 'app');
	my $pid = $victim->backend_pid;
	$victim->query(q{BEGIN; SELECT idem_claim('killed'); INSERT INTO effect (key, scope) VALUES ('killed', 'default'); SELECT idem_complete('killed', '1')});
	$bystander->query(q{BEGIN; SELECT idem_claim('beside'); INSERT INTO effect (key, scope) VALUES ('beside', 'default')});
	my $log = log_position($node);
	is(kill('KILL', $pid), 1, 'a backend is killed with a key completed and not committed');
	$node->wait_for_log(qr/all server processes terminated; reinitializing/, $log);
	$_->forget for $victim, $bystander;
	load_stop($load);
	within(60, 'the cluster is back', sub { connects($node, 'app') });
	%told = (%told, %$told);
	still_true(\%told, 'backend killed');
	all_is_well('backend killed');
	rest_executes(4, 'backend killed');
	for my $key ('killed', 'beside')
	{
		is($sql->("BEGIN; SELECT decision FROM idem_claim('$key', wait => '0'); ROLLBACK"), 'execute', "$key: executes");
	}
	$sql->(q{SELECT idem_claim('after', lease => '1ms')});
	until_true($node, 'app', q{SELECT state = 'unknown' FROM idem_peek('after')}, 'the worker is back');
}

# --- clients are killed ---------------------------------------------------------------------------------------------

{
	my $load = load_start($node, 'app', scripts(5));
	until_worked(5, 250);
	$load->{run}->signal('KILL');
	load_stop($load);
	until_quiet();
	all_is_well('pgbench killed');
	rest_executes(5, 'pgbench killed');
}

# --- prepared transactions ------------------------------------------------------------------------------------------

for my $end ('COMMIT', 'ROLLBACK')
{
	$sql->("BEGIN; SELECT idem_claim('prepared-$end'); INSERT INTO effect (id, key, scope) VALUES (DEFAULT, 'prepared-$end', 'default');
		SELECT idem_complete('prepared-$end', to_jsonb(currval('effect_id_seq'))); PREPARE TRANSACTION '$end'");
}
# One that was prepared while it finishes a lease that is over by now.
$sql->(q{SELECT idem_claim('prepared-lease', scope => 'local', lease => '100 ms')});
$sql->(q{BEGIN; SELECT idem_complete('prepared-lease', to_jsonb(0), 'local', fence) FROM idem_peek('prepared-lease', 'local'); PREPARE TRANSACTION 'LEASE'});
$node->stop('immediate');
$node->start;
$sql->(q{SELECT idem_claim('beside-prepared', scope => 'local', lease => '1 ms')});
until_true($node, 'app', q{SELECT state = 'not_applied' FROM idem_peek('beside-prepared', 'local')}, 'prepared: the worker serves other keys meanwhile');
is(sqlstate_of($node, 'app', q{SET statement_timeout = '10s'; CALL idempotency.sweep()}), '00000', 'prepared: a sweep does not wait for them');
is($sql->(q{SET lock_timeout = '1s'; SELECT decision FROM idem_claim('prepared-COMMIT', wait => '1min')}), 'in_progress', 'prepared: a claim waits no longer than lock_timeout');
is($sql->(q{SELECT decision FROM idem_claim('prepared-lease', scope => 'local', lease => '1h', wait => '0')}), 'in_progress', 'prepared: a lease that is over is held by its completion');
$node->safe_psql('app', q{COMMIT PREPARED 'LEASE'});
is($sql->(q{SELECT decision, result FROM idem_claim('prepared-lease', scope => 'local')}), 'replay|0', 'prepared: which counts when it commits');
# Not an effect of its own.
$sql->(q{SELECT idem_forget('prepared-lease', 'local')});
for my $end ('COMMIT', 'ROLLBACK')
{
	my $claim = "SELECT decision FROM idem_claim('prepared-$end', wait => '0')";
	is($sql->($claim), 'in_progress', "prepared: the key is held over the crash, before $end");
	$node->safe_psql('app', "$end PREPARED '$end'");
	is($sql->("BEGIN; $claim; ROLLBACK"), $end eq 'COMMIT' ? 'replay' : 'execute', "prepared: after $end");
}
invariant_holds($node, 'app', 'prepared transactions');

# --- terminated at COMMIT -------------------------------------------------------------------------------------------

my $once = sub { "SELECT result FROM idem_once('$_[0]', \$\$" . effect_statement("'$_[0]'", 'default') . '$$)' };

# Before the commit: a deferred trigger waits.
$sql->(q{
	CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END';
	CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
		WHEN (NEW.key LIKE 'deferred%') EXECUTE FUNCTION waits();
});
for my $how ('terminate', 'cancel')
{
	my $blocker = IdempotencySession->open($node, 'app');
	my $worker = IdempotencySession->open($node, 'app');
	my $pid = $worker->backend_pid;
	$blocker->query('SELECT pg_advisory_lock(42)');
	$worker->send($once->("deferred-$how"));
	until_true($node, 'app', "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid", "$how: COMMIT waits, its record written");
	is($sql->("SELECT decision FROM idem_claim('deferred-$how', wait => '0')"), 'in_progress', "$how: the key is held meanwhile");
	$sql->("SELECT pg_${how}_backend($pid)");
	$worker->answer;
	like($worker->sqlstate, $how eq 'cancel' ? qr/^57014$/ : qr/^(57P01|08006)$/, "$how: the client hears of it");
	$blocker->quit;
	$worker->forget;
	is($sql->("SELECT state FROM idem_peek('deferred-$how')"), 'absent', "$how: no record");
	is($sql->("SELECT count(*) FROM effect WHERE key = 'deferred-$how'"), 0, "$how: no effect");
	like($sql->($once->("deferred-$how")), qr/^\d+$/, "$how: the next caller executes");
}

# After the commit: it waits for a standby, and the client never hears of it.
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
$node->reload;
until_true($node, 'postgres', q{SELECT current_setting('synchronous_standby_names') = 'nobody'}, 'commits wait for a standby');
for my $how ('terminate', 'cancel')
{
	my $worker = IdempotencySession->open($node, 'app');
	my $pid = $worker->backend_pid;
	$worker->send($once->("committed-$how"));
	until_true($node, 'app', "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid", "$how: the commit waits for its standby");
	is($sql->("SELECT decision FROM idem_claim('committed-$how', wait => '0')"), 'in_progress', "$how: the key is held meanwhile");
	$sql->("SELECT pg_${how}_backend($pid)");
	$worker->answer;
	$worker->forget;
	my $first = $sql->("SELECT id FROM effect WHERE key = 'committed-$how'");
	like($first, qr/^\d+$/, "$how: the effect is there");
	is($sql->($once->("committed-$how")), $first, "$how: whoever asks again gets the first answer");
}
{
	# And the server dies while it waits.
	my $worker = IdempotencySession->open($node, 'app');
	my $pid = $worker->backend_pid;
	$worker->send($once->('committed-crash'));
	until_true($node, 'app', "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid", 'crash: the commit waits for its standby');
	$node->stop('immediate');
	$worker->forget;
	$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
	$node->start;
	my $first = $sql->("SELECT id FROM effect WHERE key = 'committed-crash'");
	like($first, qr/^\d+$/, 'crash: the effect is there');
	is($sql->($once->('committed-crash')), $first, 'crash: whoever asks again gets the first answer');
}

all_is_well('at the end');
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal (?!9:)|panicked|could not serialize|deadlock/, 'nothing crashed by itself');

done_testing();
