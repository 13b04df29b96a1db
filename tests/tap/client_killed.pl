# A worker that is killed between its committed, leased claim and its completion.
#
# Claims, and what would turn them red:
# - While the lease lasts nobody else executes: a claim that forgot its lease when its session died.
# - After the lease an `external` key is for reconcile, never for execute: deciding by the lease alone.
# - After a takeover the late owner's completion is ID003, and its effect goes with it: comparing fences with >=, or
#   reporting the loss as data.
# - Without a takeover the late owner may still complete, before and after a sweep alike: a sweep that draws a fence.
# - A claim whose transaction was still open when its client was killed is gone at once.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use Test::More;

my $node = IdempotencyNode->start;
my $sql = sub { $node->safe_psql('app', $_[0]) };

effect_table($node, 'app');
$sql->(q{
	SELECT idem_scope_set('local', effect_kind => 'local'), idem_scope_set('keyed', effect_kind => 'keyed');
	CREATE ROLE regress_other LOGIN;
	GRANT INSERT ON effect TO regress_other; GRANT USAGE ON SEQUENCE effect_id_seq TO regress_other;
	SELECT idem_scope_grant('default', 'regress_other'), idem_scope_grant('local', 'regress_other');
});

# A worker claims $key, commits, and dies: gives back its fence.
sub claim_and_die
{
	my ($key, $scope, $lease) = @_;
	my $worker = IdempotencySession->open($node, 'app', application_name => 'payer');
	my ($decision, $fence) = split /\|/,
	  $worker->query("SELECT decision, fence FROM idem_claim('$key', '{\"amount\": 5}', '$scope', lease => '$lease')");

	is($decision, 'execute', "$key: the first claim executes");
	$worker->kill_client;
	return $fence;
}

sub claim
{
	my ($key, $scope, $lease) = @_;

	return split /\|/, $sql->(
		"SELECT decision, fence, attempt, reason, lease_expires_at IS NOT NULL
		   FROM idem_claim('$key', '{\"amount\": 5}', '$scope', lease => '$lease')");
}

# Waits for the end of the lease by the server's clock. A long one is shortened first, as by a last renewal.
sub lease_ends
{
	my ($key, $scope, $fence) = @_;

	$sql->("SELECT idem_renew('$key', '100ms', '$scope', $fence)") if defined $fence;

	until_true($node, 'app', "SELECT lease_expires_at < clock_timestamp() FROM idem_peek('$key', '$scope')",
		"$key: the lease ends");
	return;
}

# Completes under $fence in a transaction with its effect; gives back the SQLSTATE.
sub complete_late
{
	my ($key, $scope, $fence, %option) = @_;

	return sqlstate_of($node, 'app', "BEGIN;
		INSERT INTO effect (key, scope) VALUES ('$key', '$scope');
		SELECT idem_complete('$key', '1', '$scope', $fence);
		COMMIT;", %option);
}

sub effects
{
	my ($key) = @_;

	return $sql->("SELECT count(*) FROM effect WHERE key = '$key'");
}

# --- external: taken over by reconcile ------------------------------------------------------------------------------
{
	my $fence = claim_and_die('pay', 'default', '1h');
	my ($decision, undef, undef, undef, $has_end) = claim('pay', 'default', '1h');

	is($decision, 'in_progress', 'pay: while the lease lasts nobody else executes');
	is($has_end, 't', 'pay: in_progress says when the lease ends');
	like($sql->(q{SELECT state, held_by, application_name FROM idem_find('pay')}),
		qr/^in_flight\|\w+\|payer$/, 'pay: idem_find names the dead worker');
	lease_ends('pay', 'default', $fence);
	is(sqlstate_of($node, 'app', q{SELECT * FROM idem_claim('pay', '{"amount": 6}', lease => '1h')}),
		'ID001', 'pay: other arguments are refused, also after the lease');
	my ($next, $new_fence, $attempt, $reason) = claim('pay', 'default', '1h');
	is($next, 'reconcile', 'pay: after the lease comes reconcile');
	is("$attempt $reason", '2 lease expired', 'pay: the second attempt, and why');
	cmp_ok($new_fence, '>', $fence, 'pay: the fence has grown');

	is(complete_late('pay', 'default', $fence), 'ID003', 'pay: the late completion lost its fence');
	is(effects('pay'), 0, 'pay: the late effect is gone with it');
	is(sqlstate_of($node, 'app', "SELECT idem_renew('pay', '1h', fence => $fence)"), 'ID003',
		'pay: nor can the late owner renew');
	is(sqlstate_of($node, 'app', "SELECT idem_release('pay', fence => $fence)"), 'ID003',
		'pay: nor give the key back');
	is(sqlstate_of($node, 'app', "SELECT idem_fail('pay', 'not_applied', fence => $fence)"), 'ID003',
		'pay: nor free it for a second payment');
	is(complete_late('pay', 'default', $new_fence), '00000', 'pay: the new owner completes');
	is(complete_late('pay', 'default', $fence), 'ID003', 'pay: the late completion is refused after it, too');
	is(effects('pay'), 1, 'pay: one effect');
	is((claim('pay', 'default', '1h'))[0], 'replay', 'pay: replays');
}

# --- external: a late owner without a takeover ----------------------------------------------------------------------
for my $swept (0, 1)
{
	my $key = $swept ? 'late-swept' : 'late';
	my $fence = claim_and_die($key, 'default', '300ms');

	lease_ends($key, 'default');
	if ($swept)
	{
		is($sql->(q{SELECT leases_ended FROM idem_sweep()}), 1, "$key: the sweep ends the lease");
		is($sql->("SELECT state, fence FROM idem_peek('$key')"), "unknown|$fence",
			"$key: the sweep keeps the fence");
	}
	is(complete_late($key, 'default', $fence, user => 'regress_other'), '42501',
		"$key: a guessed fence is of no use to another role");
	is(effects($key), 0, "$key: its effect is gone");
	is(complete_late($key, 'default', $fence), '00000', "$key: the late owner completes from another connection");
	is(effects($key), 1, "$key: one effect");
	is((claim($key, 'default', '1h'))[0], 'replay', "$key: replays");
}

# --- local: an expired lease proves that nothing happened -----------------------------------------------------------
for my $swept (0, 1)
{
	my $key = $swept ? 'local-swept' : 'local';
	my $fence = claim_and_die($key, 'local', '300ms');

	lease_ends($key, 'local') unless $swept;
	# A sweep moves it to the outcomes, where the lease is no more.
	within(60, "$key: the sweep ends the lease",
		sub { $sql->('SELECT leases_ended FROM idem_sweep()'); $sql->("SELECT state FROM idem_peek('$key', 'local')") eq 'not_applied' })
	  if $swept;
	my ($decision, $new_fence, $attempt) = claim($key, 'local', '1h');
	is("$decision $attempt", 'execute 2', "$key: the next claim executes");
	cmp_ok($new_fence, '>', $fence, "$key: the fence has grown");
	is(complete_late($key, 'local', $fence), 'ID003', "$key: the late completion lost its fence");
	is(complete_late($key, 'local', $new_fence), '00000', "$key: the new owner completes");
	is(effects($key), 1, "$key: one effect");
}
for my $swept (0, 1)
{
	my $key = $swept ? 'local-late-swept' : 'local-late';
	my $fence = claim_and_die($key, 'local', '300ms');

	lease_ends($key, 'local') unless $swept;
	within(60, "$key: the sweep ends the lease",
		sub { $sql->('SELECT leases_ended FROM idem_sweep()'); $sql->("SELECT state FROM idem_peek('$key', 'local')") eq 'not_applied' })
	  if $swept;
	is(complete_late($key, 'local', $fence, user => 'regress_other'), '42501',
		"$key: a guessed fence is of no use to another role");
	is(complete_late($key, 'local', $fence), '00000', "$key: the late owner completes where nobody claimed since");
	is((claim($key, 'local', '1h'))[0], 'replay', "$key: replays");
	is(effects($key), 1, "$key: one effect");
}

# --- keyed: the other system takes our key --------------------------------------------------------------------------
{
	my $fence = claim_and_die('keyed', 'keyed', '1h');

	is((claim('keyed', 'keyed', '1h'))[0], 'in_progress', 'keyed: in progress while the lease lasts');
	lease_ends('keyed', 'keyed', $fence);
	my ($decision, $new_fence, $attempt) = claim('keyed', 'keyed', '1h');
	is("$decision $attempt", 'execute 2', 'keyed: executes again with the same key');
	is(complete_late('keyed', 'keyed', $fence), 'ID003', 'keyed: the late completion lost its fence');
	is(complete_late('keyed', 'keyed', $new_fence), '00000', 'keyed: the new owner completes');
	is(effects('keyed'), 1, 'keyed: one effect');
}

# --- a transactional takeover shuts the old owner out as well -------------------------------------------------------
{
	my $fence = claim_and_die('by-transaction', 'default', '300ms');

	lease_ends('by-transaction', 'default');
	$sql->(q{BEGIN;
		SELECT decision FROM idem_claim('by-transaction', '{"amount": 5}');
		INSERT INTO effect (key, scope) VALUES ('by-transaction', 'default');
		SELECT idem_complete('by-transaction', '1');
		COMMIT;});
	is(complete_late('by-transaction', 'default', $fence), 'ID003', 'by-transaction: the late completion lost its fence');
	is(effects('by-transaction'), 1, 'by-transaction: one effect');
}

# --- killed inside its transaction ----------------------------------------------------------------------------------
for my $what ('claimed', 'effect', 'completed')
{
	my $key = "open-$what";
	my $worker = IdempotencySession->open($node, 'app');
	my $pid = $worker->backend_pid;

	is($worker->query("BEGIN; SELECT decision FROM idem_claim('$key')"), 'execute', "$key: claimed");
	$worker->query("INSERT INTO effect (key, scope) VALUES ('$key', 'default')") if $what ne 'claimed';
	$worker->query("SELECT idem_complete('$key', '1')") if $what eq 'completed';
	is($sql->("SELECT decision FROM idem_claim('$key', wait => '0')"), 'in_progress', "$key: held");
	$worker->kill_client;
	until_true($node, 'app', "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)",
		"$key: its session ends");
	is($sql->("BEGIN; SELECT decision FROM idem_claim('$key', wait => '0'); ROLLBACK"), 'execute',
		"$key: the next caller executes at once");
	is(effects($key), 0, "$key: no effect");
}

# --- killed in an open transaction that made a leased claim ---------------------------------------------------------
{
	my $worker = IdempotencySession->open($node, 'app');
	my $pid = $worker->backend_pid;

	is($worker->query(q{BEGIN; SELECT decision FROM idem_claim('open-lease', lease => '1h')}), 'execute',
		'open-lease: claimed and not committed');
	$worker->kill_client;
	until_true($node, 'app', "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)",
		'open-lease: its session ends');
	is($sql->(q{SELECT decision, attempt FROM idem_claim('open-lease', lease => '1h', wait => '0')}),
		'execute|1', 'open-lease: nothing is left of it');
}

is($sql->(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), 0, 'no key stays locked');
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
