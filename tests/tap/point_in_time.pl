# A restore to a point in the middle of work: by name and by time, from a base backup and archived WAL.
#
# Claims, and what would turn them red:
# - Every key that was finished before the point replays, with its result and its fence. Every key that was begun after it executes
#   again, and its effect is gone with its record: a record that is restored apart from its effect, or a point that is another.
# - What was claimed before the point and finished after it is in progress until its lease is over; its owner finishes it again by its
#   fence. A later fence, which the restore took back, finishes nothing, and the next one is greater than every one that was told.
# - After the lease comes what the effect kind says: reconcile, execute with the same key, execute.
# - A transaction that was open at the point has left nothing; one that was prepared holds its key. What was decided after it (resolved,
#   forgotten, dispatched) is to be decided again.
# - Windows go on by the clock, and the worker runs.
#
# What is shown of what is not promised: an outside effect whose claim lies after the point is asked for again, and a message that was
# finished after it is delivered again.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use PostgreSQL::Test::Cluster;
use Test::More;
use ToldClients;

my $origin = IdempotencyNode->start(name => 'origin', preload => 1, has_archiving => 1, allows_streaming => 1,
	conf => [ "log_statement = none", "idempotency.naptime = '100ms'", "max_connections = 40", "idempotency.worker = off" ]);
my $there = sub { $origin->safe_psql('app', $_[0]) };

effect_table($origin, 'app');
$there->(q{SELECT idem_scope_set('local', effect_kind => 'local'), idem_scope_set('keyed', effect_kind => 'keyed'), idem_scope_set('short', dedup_window => '1 ms')});
$origin->backup('base');

# --- before the point -----------------------------------------------------------------------------------------------

my $put = sub { my ($key) = @_; return "INSERT INTO effect (key, scope) VALUES ('$key', 'default'); SELECT idem_complete('$key', to_jsonb(currval('effect_id_seq')))" };

$there->(q{
	SELECT idem_claim('held', '{"a": 1}', lease => '1 h'), idem_claim('taken over', scope => 'local', lease => '1 h'), idem_claim('external', lease => '1 h'),
		idem_claim('keyed', scope => 'keyed', lease => '1 h'), idem_claim('local', scope => 'local', lease => '1 h');
	SELECT idem_once('short', 'SELECT to_jsonb(1)', scope => 'short'), idem_enqueue('message', 'bank', '{"amount": 5}');
	BEGIN; SELECT idem_fail('resolved', 'unknown', 'time out') FROM idem_claim('resolved'); COMMIT});
$there->("BEGIN; SELECT idem_claim('forgotten'); " . $put->('forgotten') . '; COMMIT');
$there->("BEGIN; SELECT idem_claim('prepared'); " . $put->('prepared') . q{; PREPARE TRANSACTION 'p'});
my %fence = map { $_ => $there->("SELECT fence FROM idempotency.records WHERE key = '$_'") } 'held', 'taken over', 'external', 'keyed', 'local', 'resolved';
my $open = IdempotencySession->open($origin, 'app');
$open->query(q{BEGIN; SELECT idem_claim('open'); } . $put->('open'));

my $clients = ToldClients->start($origin, 'app', names => [ 'a', 'b', 'c' ]);

# A point while the clients work: what had been told before it, and what was told when it was over.
sub point
{
	my ($make) = @_;
	my %point = (before => $clients->told);

	$point{target} = $make->();
	$point{after} = $clients->told;
	return \%point;
}
$clients->until_completed(40, 'the clients work');
my $named = point(sub { $there->(q{SELECT pg_create_restore_point('middle')}); return "recovery_target_name = 'middle'" });
$clients->until_completed(20, 'and go on', $clients->told);
my $timed = point(sub { return "recovery_target_time = '" . $there->('SELECT clock_timestamp()') . "'" });
$clients->until_completed(20, 'and go on', $clients->told);
$clients->cut;
my $told = $clients->end;

# --- after it -------------------------------------------------------------------------------------------------------

is($there->(qq{BEGIN; INSERT INTO effect (key, scope) VALUES ('held', 'default'); SELECT idem_complete('held', to_jsonb(currval('effect_id_seq')), fence => $fence{held}); COMMIT}) =~ /^\d+$/, 1, 'after the point: completed');
$there->("SELECT idem_renew('taken over', '1 ms', 'local', $fence{'taken over'})");
until_true($origin, 'app', q{SELECT lease_expires_at < clock_timestamp() FROM idem_peek('taken over', 'local')}, 'after the point: a lease ends');
my $later_fence = $there->(q{SELECT fence FROM idem_claim('taken over', scope => 'local', lease => '1 h')});
cmp_ok($later_fence, '>', $fence{'taken over'}, 'after the point: taken over');
$there->(q{SELECT idem_resolve('resolved', 'applied', '"found"', 'bank'::text); SELECT idem_forget('forgotten'); COMMIT PREPARED 'p'});
$open->query('COMMIT');
$there->(q{CREATE TABLE sent AS SELECT * FROM idem_dispatch('bank', 10, '1 h')});
is($there->(q{SELECT idem_complete(key, '"sent"', scope, fence) FROM sent}), '"sent"', 'after the point: a message is sent');
$open->quit;
# All of it is in the archive.
my $last = $there->('SELECT pg_walfile_name(pg_switch_wal())');
until_true($origin, 'postgres', "SELECT last_archived_wal >= '$last' FROM pg_stat_archiver", 'the log is archived');
$origin->stop;

# --- restored -------------------------------------------------------------------------------------------------------

# The keys that their client cannot have begun before the point was over: those after the one that followed the last end it was told of.
sub begun_after
{
	my ($point) = @_;
	my %number;

	for (@{ $point->{after}{all} })
	{
		my (undef, $client, $number) = split ' ', $_->{key};
		$number{$client} = $number if $_->{kind} eq 'completed';
	}
	return grep { my (undef, $client, $number) = split ' '; $number > $number{$client} + 1 } sort keys %{ $told->{completed} };
}

for my $case ([ 'by_name', $named ], [ 'by_time', $timed ])
{
	my ($name, $point) = @$case;
	my $node = PostgreSQL::Test::Cluster->new($name);
	my $here = sub { $node->safe_psql('app', $_[0]) };

	$node->init_from_backup($origin, 'base', has_restoring => 1, standby => 0);
	$node->append_conf('postgresql.conf', $_) for $point->{target}, "recovery_target_action = 'promote'", 'archive_mode = off';
	$node->start;
	until_true($node, 'postgres', 'SELECT NOT pg_is_in_recovery()', "$name: restored");
	agree($node, 'app', $name);

	# Before it, and after it.
	my $before = $point->{before};
	my $records = records_of($node, 'app');
	my $claims = claims_of($node, 'app', keys %{ $told->{completed} });
	my @after = begun_after($point);
	is(join(' ', grep { ($records->{$_} // '') !~ /^completed\|\d+\|\Q$before->{completed}{$_}\E$/ } sort keys %{ $before->{completed} }), '', "$name: every end that was told before the point is there, with its result");
	is(join(' ', grep { ($records->{$_} // '') !~ /^\w+\|$before->{claimed}{$_}\|/ } sort keys %{ $before->{claimed} }), '', "$name: so is every claim, with its fence");
	is(join(' ', grep { $claims->{$_}[0] ne 'replay' } sort keys %{ $before->{completed} }), '', "$name: every key before it replays");
	cmp_ok(scalar @after, '>=', 50, "$name: keys were begun and finished after the point");
	is(join(' ', grep { $claims->{$_}[0] ne 'execute' } @after), '', "$name: every key after it executes again");
	is($here->('SELECT count(*) FROM effect WHERE key IN (' . join(', ', map { "'$_'" } @after) . ')'), 0, "$name: and has no effect");
	is(join(' ', grep { $claims->{$_}[1] <= ($told->{claimed}{$_} // 0) } @after), '', "$name: with a fence that is greater than the one that was told");
	is(join(' ', grep { $told->{paid}{$_} && $claims->{$_}[0] eq 'execute' } @after), join(' ', grep { /^outside/ } @after), "$name: outside effects after the point are asked for again");

	# What was under way.
	is($here->(q{SELECT decision FROM idem_claim('held', '{"a": 1}')}), 'in_progress', "$name: finished after the point: in progress");
	is($here->(q{SELECT count(*) FROM effect WHERE key = 'held'}), 0, "$name: without its effect");
	like($here->("BEGIN; INSERT INTO effect (key, scope) VALUES ('held', 'default'); SELECT idem_complete('held', to_jsonb(currval('effect_id_seq')), fence => $fence{held}); COMMIT"), qr/^\d+$/, "$name: its owner finishes it again by its fence");
	is(sqlstate_of($node, 'app', "SELECT idem_complete('taken over', '1', 'local', $later_fence)"), 'ID003', "$name: a fence that was given after the point finishes nothing");
	is($here->("SELECT idem_renew('taken over', '1 ms', 'local', $fence{'taken over'}) IS NOT NULL"), 't', "$name: the one that was given before it is the newest");
	until_true($node, 'app', q{SELECT lease_expires_at < clock_timestamp() FROM idem_peek('taken over', 'local')}, "$name: its lease ends");
	is($here->("SELECT decision, fence > $later_fence FROM idem_claim('taken over', scope => 'local', lease => '1 h')"), 'execute|t', "$name: and the next is greater than both");
	for my $kind ([ external => 'default', 'reconcile' ], [ keyed => 'keyed', 'execute' ], [ local => 'local', 'execute' ])
	{
		my ($key, $scope, $decision) = @$kind;
		is($here->("SELECT decision FROM idem_claim('$key', scope => '$scope', lease => '1 h')"), 'in_progress', "$name: $key: in progress while its lease lasts");
		$here->("SELECT idem_renew('$key', '1 ms', '$scope', $fence{$key})");
		until_true($node, 'app', "SELECT lease_expires_at < clock_timestamp() FROM idem_peek('$key', '$scope')", "$name: $key: its lease ends");
		is($here->("SELECT decision, fence > $fence{$key} FROM idem_claim('$key', scope => '$scope', lease => '1 h')"), "$decision|t", "$name: $key: then $decision, with a greater fence");
	}
	is($here->(q{BEGIN; SELECT decision FROM idem_claim('open', wait => '0'); ROLLBACK}), 'execute', "$name: open at the point: executes");
	is($here->(q{SELECT count(*) FROM effect WHERE key IN ('open', 'prepared')}), 0, "$name: without its effect");
	is($here->(q{SELECT decision FROM idem_claim('prepared', wait => '0')}), 'in_progress', "$name: prepared at the point: held");
	$here->(q{COMMIT PREPARED 'p'});
	is($here->(q{SELECT c.decision, c.result = to_jsonb(e.id) FROM idem_claim('prepared') c, effect e WHERE e.key = 'prepared'}), 'replay|t', "$name: and committed once more");
	is($here->("SELECT decision, fence > $fence{resolved} FROM idem_claim('resolved', lease => '1 h')"), 'reconcile|t', "$name: resolved after the point: in doubt");
	is($here->(q{SELECT c.decision, c.result = to_jsonb(e.id) FROM idem_claim('forgotten') c, effect e WHERE e.key = 'forgotten'}), 'replay|t', "$name: forgotten after the point: known");
	is($here->(q{SELECT key, payload FROM idem_dispatch('bank', 10, '1 h')}), 'message|{"amount": 5}', "$name: sent after the point: delivered again, with its key");
	is($here->(q{BEGIN; SELECT decision FROM idem_claim('short', scope => 'short'); ROLLBACK}), 'execute', "$name: windows go on by the clock");

	# The worker, and the rest of the work.
	$here->(q{SELECT idem_claim('beat', lease => '1 ms')});
	$node->append_conf('postgresql.conf', 'idempotency.worker = on');
	$node->reload;
	until_true($node, 'app', q{SELECT state = 'unknown' FROM idem_peek('beat')}, "$name: the worker ends leases");
	until_true($node, 'app', q{SELECT NOT EXISTS (SELECT FROM idempotency.outcome WHERE key = 'short')}, "$name: and prunes");
	my @once = grep { /^once / } sort keys %{ $told->{completed} };
	my $again = sub { once_again($here, @once) };
	my $had = grep { exists $records->{$_} } @once;
	is($again->(), @once . "|$had", "$name: the clients go on: what is there replays, the rest executes");
	is($again->(), @once . '|' . @once, "$name: once");
	agree($node, 'app', "$name: the clients went on");
	$node->stop;
	server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, "$name: nothing crashed");
}

done_testing();
