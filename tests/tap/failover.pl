# The primary is lost while clients work, and its standby is promoted: with synchronous replication, and with asynchronous. Each
# time the stream to the standby is cut first, at a moment that nobody chose, so that the standby lacks the end of the log.
# The clients wrote down what they were told.
#
# Claims, and what would turn them red:
# - Synchronous: every claim and every end that was acknowledged is there, with its fence and its result, at every level of
#   synchronous_commit from remote_write on; nobody is told to execute what was claimed, and the fence of the next claim is greater:
#   an acknowledgement that does not wait for the standby.
# - The clients go on at the new primary, by their fences and by new claims, and each key has one effect, inside and outside.
# - Asynchronous: what is lost is lost whole, record and effect together, and it is the end of what was told: a record that travels
#   another way than its effect. Whoever asks again executes; the fence of the next claim is none that was told before.
# - A fence of the old primary finishes nothing that was lost, and its effect goes with it: a fence that is taken on its word.
# - A standby whose clock is an hour behind gives no fence back for what it has: a fence from the clock alone.
#
# What is shown of what is not promised: an outside effect whose claim was lost happens again; it is so with synchronous
# replication, too, for a session with synchronous_commit = off or local. And the clock that is behind gives a lower fence for a key
# of which nothing came over.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyClock;
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use PostgreSQL::Test::Cluster;
use Test::More;
use ToldClients;

my @conf = ("log_statement = none", "idempotency.naptime = '200ms'", "max_connections = 40", "max_wal_senders = 10");
my $primary = IdempotencyNode->start(name => 'first', preload => 1, allows_streaming => 1, conf => \@conf);

effect_table($primary, 'app');
$primary->safe_psql('app', q{SELECT idem_scope_set('local', effect_kind => 'local')});

# A new standby of this primary, which is waited for or not.
sub standby_of
{
	my ($node, $name, $synchronous) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$node->backup("for_$name");
	$standby->init_from_backup($node, "for_$name", has_streaming => 1);
	$standby->append_conf('postgresql.conf', "synchronous_standby_names = ''");
	$standby->start;
	wait_for($node, $synchronous ? $name : '');
	$node->wait_for_catchup($standby, 'replay');
	return $standby;
}

# From now on commits wait for this standby.
sub wait_for
{
	my ($node, $name) = @_;

	$node->append_conf('postgresql.conf', "synchronous_standby_names = '$name'");
	$node->reload;
	until_true($node, 'postgres', "SELECT current_setting('synchronous_standby_names') = '$name'", $name eq '' ? 'commits wait for nobody' : "commits wait for $name");
	until_true($node, 'postgres', "SELECT sync_state = 'sync' FROM pg_stat_replication WHERE application_name = '$name'", "$name is there") if $name ne '';
	return;
}

# Nothing more arrives at the standby, which stays up.
sub cut
{
	my ($standby) = @_;

	$standby->append_conf('postgresql.conf', "primary_conninfo = ''");
	$standby->reload;
	until_true($standby, 'postgres', 'SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)', 'the stream is cut');
	return;
}

sub promote
{
	my ($old, $standby) = @_;

	$old->stop('immediate');
	$standby->promote;
	return until_true($standby, 'postgres', 'SELECT NOT pg_is_in_recovery()', $standby->name . ' is promoted');
}

# The clients go on where they were: each key that was begun is brought to its end at $node. Gives back the effects outside.
sub go_on
{
	my ($node, $told) = @_;
	my $session = IdempotencySession->open($node, 'app');
	my %paid = map { $_ => 1 } keys %{ $told->{paid} };
	# A claim may have come over whose client was not told of it.
	my $records = records_of($node, 'app');
	my %begun = map { $_ => 1 } (map { $_->{key} } @{ $told->{all} }), grep { $records->{$_} !~ /^completed/ } keys %$records;
	my @errors;
	my $query = sub { my $answer = $session->query($_[0]); push @errors, $session->error if $session->error =~ /ERROR/; $answer };

	for my $key (sort keys %begun)
	{
		my ($kind, $scope) = ((split ' ', $key)[0], ToldClients::scope_of($key));
		my $effect = effect_statement("'$key'", $scope);
		$query->("SELECT idem_once('$key', \$\$$effect\$\$)"), next if $kind eq 'once';
		my $record = $query->("SELECT state, fence FROM idem_peek('$key', '$scope')");
		my ($owner) = $record =~ /^in_flight\|(\d+)$/;
		# Nobody has the fence, so the end of the lease is waited for: it is a short one, an operator says.
		if (defined $owner && $owner != ($told->{claimed}{$key} // 0))
		{
			$query->("SELECT idem_renew('$key', '1 ms', '$scope', $owner)");
			$node->poll_query_until('app', "SELECT lease_expires_at < clock_timestamp() OR state <> 'in_flight' FROM idem_peek('$key', '$scope')") or die "$key: its lease does not end";
			$owner = undef;
		}
		# Its owner has its fence still.
		my ($mine, $fence) = defined $owner ? ('owned', $owner)
		  : split /\|/, $query->("SELECT decision, fence FROM idem_claim('$key', scope => '$scope', lease => '1 h')");
		next if $mine eq 'replay';
		if ($kind eq 'local') { $query->("WITH e AS ($effect) SELECT idem_complete('$key', to_jsonb, '$scope', $fence) FROM e"); next; }
		# The paired read, of whoever may find the effect there.
		$paid{$key}++ if $mine eq 'execute' || !$paid{$key};
		$query->("SELECT idem_complete('$key', to_jsonb('receipt of $key'::text), '$scope', $fence)");
	}
	$session->quit;
	is(join('', @errors), '', $node->name . ': the clients go on without an error');
	return \%paid;
}

# --- synchronous ----------------------------------------------------------------------------------------------------

for my $level ('on', 'remote_apply', 'remote_write')
{
	my $standby = standby_of($primary, "sync_$level", 1);
	my $clients = ToldClients->start($primary, 'app', names => [ map { "$level-$_" } 1 .. 3 ], settings => { synchronous_commit => $level });

	$clients->until_completed(40, "$level: the clients work");
	cut($standby);
	until_true($primary, 'app', q{SELECT count(*) = 3 FROM pg_stat_activity WHERE application_name LIKE 'told-%' AND wait_event = 'SyncRep'},
		"$level: each client waits for the standby");
	promote($primary, $standby);
	my $told = $clients->end;
	my ($records, $claims) = (records_of($standby, 'app'), claims_of($standby, 'app', keys %{ $told->{claimed} }, keys %{ $told->{completed} }));

	my %expected = map { $_ => 'completed|' . $told->{completed}{$_} } keys %{ $told->{completed} };
	is_deeply({ map { $_ => ($records->{$_} // 'nothing') =~ s/\|\d+\|/|/r } keys %expected }, \%expected, "$level: every end that was told is there, with its result");
	is(join(' ', grep { ($records->{$_} // '') !~ /^\w+\|$told->{claimed}{$_}\|/ } sort keys %{ $told->{claimed} }), '', "$level: every claim that was told is there, with its fence");
	is_deeply([ grep { $claims->{$_}[0] ne 'replay' } keys %expected ], [], "$level: every end replays");
	is_deeply([ grep { $claims->{$_}[0] !~ /^(replay|in_progress)$/ } keys %{ $told->{claimed} } ], [], "$level: nobody is told to execute what was claimed");
	agree($standby, 'app', "$level: promoted");
	# What was claimed and not finished: its owner gives it up, with its fence, and the next is told so.
	my @open = grep { !exists $told->{completed}{$_} && ($records->{$_} // '') =~ /^in_flight/ } keys %{ $told->{claimed} };
	for my $key (@open)
	{
		my $scope = ToldClients::scope_of($key);
		is($standby->safe_psql('app', "SELECT idem_renew('$key', '1 ms', '$scope', $told->{claimed}{$key}) IS NOT NULL"), 't', "$level: $key is renewed by its fence");
		until_true($standby, 'app', "SELECT state <> 'in_flight' FROM idem_peek('$key', '$scope')", "$level: the worker of the new primary ends its lease");
		my ($decision, $fence) = @{ claims_of($standby, 'app', $key)->{$key} };
		is($decision, $scope eq 'local' ? 'execute' : 'reconcile', "$level: and the next is told what that means");
		cmp_ok($fence, '>', $told->{claimed}{$key}, "$level: with a greater fence");
	}
	my $paid = go_on($standby, $told);
	agree($standby, 'app', "$level: the clients went on");
	is_deeply([ grep { $paid->{$_} > 1 } keys %$paid ], [], "$level: no outside effect happened twice");
	is($standby->safe_psql('app', q{SELECT count(*) FROM idempotency.records WHERE state <> 'completed'}), 0, "$level: every key is finished");
	# The next round begins here.
	$primary = $standby;
}

# --- asynchronous ---------------------------------------------------------------------------------------------------

{
	my $standby = standby_of($primary, 'async', 0);
	my $clients = ToldClients->start($primary, 'app', names => [ map { "async-$_" } 1 .. 3 ]);

	$clients->until_completed(40, 'async: the clients work');
	cut($standby);
	$clients->until_completed(40, 'async: and go on without the standby', $clients->told);
	promote($primary, $standby);
	my $told = $clients->end;
	my $records = records_of($standby, 'app');
	my (%is_there, @holes);

	agree($standby, 'app', 'async: promoted');
	for (@{ $told->{all} })
	{
		next if $_->{kind} eq 'paid';
		my $there = ($records->{ $_->{key} } // '') =~ ($_->{kind} eq 'claimed' ? qr/^\w+\|$_->{value}\|/ : qr/^completed\|\d+\|\Q$_->{value}\E$/) || 0;
		push @holes, $_->{key} if $there && !($is_there{ $_->{client} } // 1);
		$is_there{ $_->{client} } = $there;
	}
	is_deeply(\%is_there, { map { ("async-$_" => 0) } 1 .. 3 }, 'async: of each client something is lost, so this test can fail');
	is_deeply(\@holes, [], 'async: what is lost is the end of what each was told');
	my %lost = map { $_ => $told->{claimed}{$_} } grep { !exists $records->{$_} } keys %{ $told->{claimed} };
	my ($inside) = grep { /^local/ } sort keys %lost;
	my $late = sub { sqlstate_of($standby, 'app', "BEGIN; INSERT INTO effect (key, scope) VALUES ('$inside', 'local'); SELECT idem_complete('$inside', '0', 'local', $lost{$inside}); COMMIT") };
	is($late->(), 'ID004', 'async: a fence whose claim was lost finishes nothing');
	my $claims = claims_of($standby, 'app', keys %lost);
	is_deeply([ grep { $claims->{$_}[0] ne 'execute' } keys %lost ], [], 'async: what was lost executes');
	is_deeply([ grep { $claims->{$_}[1] <= $lost{$_} } keys %lost ], [], 'async: with a fence that is greater than the one that was told');
	my $next = $standby->safe_psql('app', "SELECT fence FROM idem_claim('$inside', scope => 'local', lease => '1 h')");
	is($late->(), 'ID003', 'async: nor does it when the key has a new owner');
	is($standby->safe_psql('app', "SELECT count(*) FROM effect WHERE key = '$inside'"), 0, 'async: and its effect is gone');
	$standby->safe_psql('app', "SELECT idem_release('$inside', 'local', $next)");

	my $paid = go_on($standby, $told);
	agree($standby, 'app', 'async: the clients went on');
	# Not promised: nothing of the claim is left, so its effect is asked for again.
	is_deeply([ sort grep { $paid->{$_} > 1 } keys %$paid ], [ sort grep { $lost{$_} && $told->{paid}{$_} } keys %lost ],
		'async: the outside effects that happened twice are those whose claims were lost');
	cmp_ok(scalar(grep { $paid->{$_} > 1 } keys %$paid), '>=', 3, 'async: and there are some');
	$primary = $standby;
}

# --- synchronous, but not for everyone ------------------------------------------------------------------------------

{
	my $standby = standby_of($primary, 'partly', 1);
	my %session = map { $_ => IdempotencySession->open($primary, 'app', settings => { synchronous_commit => $_ }) } 'on', 'local', 'off';

	$_->query(q{SELECT 1}) for values %session;
	cut($standby);
	$session{on}->send(q{SELECT decision FROM idem_claim('partly on', lease => '1 h')});
	is($session{$_}->query("SELECT decision FROM idem_claim('partly $_', lease => '1 h')"), 'execute', "synchronous_commit = $_: a claim is acknowledged without the standby") for 'local', 'off';
	until_true($primary, 'app', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'}, 'synchronous_commit = on: it waits');
	ok(!$session{on}->done, 'and is not acknowledged');
	promote($primary, $standby);
	$_->forget for values %session;
	# Not promised: the session has asked not to wait for a standby.
	is($standby->safe_psql('app', "SELECT decision FROM idem_claim('partly $_', lease => '1 h')"), 'execute', "synchronous_commit = $_: the next is told to execute again") for 'local', 'off';
	$primary = $standby;
}

# --- a clock that is behind -----------------------------------------------------------------------------------------

SKIP:
{
	skip(IdempotencyClock->missing, 1) if IdempotencyClock->missing;
	my $clock = IdempotencyClock->new;
	my $standby = PostgreSQL::Test::Cluster->new('behind');

	$primary->backup('for_behind');
	$standby->init_from_backup($primary, 'for_behind', has_streaming => 1);
	$standby->append_conf('postgresql.conf', "synchronous_standby_names = ''");
	$clock->step(-3600);
	$clock->start($standby);
	$primary->wait_for_catchup($standby, 'replay');
	my $fence = $primary->safe_psql('app', q{SELECT fence FROM idem_claim('came over', scope => 'local', lease => '1 h')});
	$primary->wait_for_catchup($standby, 'replay');
	cut($standby);
	my $lost = $primary->safe_psql('app', q{SELECT fence FROM idem_claim('did not', scope => 'local', lease => '1 h')});
	promote($primary, $standby);
	is($standby->safe_psql('app', 'SELECT clock_timestamp() < to_timestamp(' . (time - 3000) . ')'), 't', 'behind: the clock of the new primary is an hour behind');
	is($standby->safe_psql('app', "SELECT idem_renew('came over', '1 ms', 'local', $fence) IS NOT NULL"), 't', 'behind: a claim that came over is renewed by its fence');
	until_true($standby, 'app', q{SELECT state <> 'in_flight' FROM idem_peek('came over', 'local')}, 'behind: its lease ends by the clock of the new primary');
	is($standby->safe_psql('app', q{SELECT decision, fence FROM idem_claim('came over', scope => 'local', lease => '1 h')}), 'execute|' . ($fence + 1), 'behind: the next fence is greater by one');
	is(sqlstate_of($standby, 'app', "SELECT idem_complete('came over', '1', 'local', $fence)"), 'ID003', 'behind: and the old one is lost');
	# Not promised, and harmless: fences are compared for equality.
	is($standby->safe_psql('app', "SELECT decision, fence < $lost FROM idem_claim('did not', scope => 'local', lease => '1 h')"), 'execute|t', 'behind: a claim that did not come over has a greater fence than the next');
	is(sqlstate_of($standby, 'app', "SELECT idem_complete('did not', '1', 'local', $lost)"), 'ID003', 'behind: which finishes nothing all the same');
	$primary = $standby;
}

$primary->stop;
server_log_lacks($primary, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
