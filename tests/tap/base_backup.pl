# pg_basebackup while clients work, started as a server of its own: a clone of the database at one moment, with callers in the
# middle of everything.
#
# Claims, and what would turn them red:
# - In the copy effect and record agree for every key, whatever was under way: a record written in another transaction than its effect,
#   or beside the WAL.
# - What was told before the backup began is there, with fences and results; what a client was told after it ended is either whole or
#   not there: an acknowledgement before the WAL is written.
# - Nothing is locked in the copy, what has no record executes, leases hold and are finished by their fence: a lock or a claim that
#   lives in memory.
# - Its worker sweeps by itself, and takes nothing from the server it was copied from.
# - The two go their own ways: what one does is not seen by the other.

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

my @conf = ("log_statement = none", "idempotency.naptime = '100ms'", "max_connections = 40");
my $origin = IdempotencyNode->start(name => 'origin', preload => 1, allows_streaming => 1, conf => [ @conf, "idempotency.worker = off" ]);
my $there = sub { $origin->safe_psql('app', $_[0]) };

effect_table($origin, 'app');
$there->(q{
	SELECT idem_scope_set('local', effect_kind => 'local'), idem_scope_set('short', dedup_window => '1 ms');
	SELECT idem_once('old', 'SELECT to_jsonb(1)', scope => 'short');
	SELECT idem_claim('held', '{"a": 1}', lease => '1 h'), idem_claim('ended', lease => '1 ms'), idem_claim('ended', scope => 'local', lease => '1 ms');
	BEGIN; SELECT idem_fail('unknown', 'unknown', 'time out') FROM idem_claim('unknown'); COMMIT;
	SELECT idem_enqueue('message', 'bank', '{"amount": 5}')});
my %fence = map { $_ => $there->("SELECT max(fence) FROM idempotency.records WHERE key = '$_'") } qw(held ended unknown);

# --- the copy -------------------------------------------------------------------------------------------------------

# One that holds a key, with its effect written, for the whole time.
my $holder = IdempotencySession->open($origin, 'app');
$holder->query(q{BEGIN; SELECT idem_claim('open'); INSERT INTO effect (key, scope) VALUES ('open', 'default'); SELECT idem_complete('open', to_jsonb(currval('effect_id_seq')))});
$there->(q{BEGIN; SELECT idem_claim('prepared'); INSERT INTO effect (key, scope) VALUES ('prepared', 'default'); SELECT idem_complete('prepared', to_jsonb(currval('effect_id_seq'))); PREPARE TRANSACTION 'p'});

my $clients = ToldClients->start($origin, 'app', names => [ 'a', 'b', 'c' ]);
$clients->until_completed(40, 'the clients work');
my $before = $clients->told;
$origin->backup('copy');
$clients->until_completed(20, 'and go on', $clients->told);
$clients->cut;
my $told = $clients->end;
cmp_ok(scalar keys %{ $told->{completed} }, '>', scalar keys %{ $before->{completed} }, 'they were told of more after the backup had begun');

my $copy = PostgreSQL::Test::Cluster->new('copy');
$copy->init_from_backup($origin, 'copy');
$copy->start;
my $here = sub { $copy->safe_psql('app', $_[0]) };

# --- what is in it --------------------------------------------------------------------------------------------------

agree($copy, 'app', 'copy');
my $records = records_of($copy, 'app');
is(join(' ', grep { ($records->{$_} // '') !~ /^completed\|\d+\|\Q$before->{completed}{$_}\E$/ } sort keys %{ $before->{completed} }), '', 'every end that was told before the backup is there, with its result');
is(join(' ', grep { ($records->{$_} // '') !~ /^\w+\|$before->{claimed}{$_}\|/ } sort keys %{ $before->{claimed} }), '', 'so is every claim, with its fence');
my @absent = grep { !exists $records->{$_} } sort keys %{ $told->{completed} };
cmp_ok(scalar @absent, '>', 0, 'what was told after it is not: this is a copy of one moment');
is(join(' ', grep { ($records->{$_} // '') =~ /^completed\|/ && $records->{$_} !~ /^completed\|\d+\|\Q$told->{completed}{$_}\E$/ } sort keys %{ $told->{completed} }), '', 'no end in the copy is another than what was told');
is($here->(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND virtualtransaction NOT LIKE '-1/%'}), 0, 'no session of the origin holds a lock here');
is($here->(q{BEGIN; SELECT decision FROM idem_claim('open', wait => '0'); ROLLBACK}), 'execute', 'a key that was held there, and not committed, executes');
is($here->(q{SELECT count(*) FROM effect WHERE key = 'open'}), 0, 'and has no effect here');
is($here->(q{SELECT decision FROM idem_claim('prepared', wait => '0')}), 'in_progress', 'what was prepared there is held here, too');
$copy->safe_psql('app', q{COMMIT PREPARED 'p'});
is($here->(q{SELECT c.decision, c.result = to_jsonb(e.id) FROM idem_claim('prepared') c, effect e WHERE e.key = 'prepared'}), 'replay|t', 'and committed on its own');
is($here->(q{SELECT decision FROM idem_claim('held', '{"a": 1}')}), 'in_progress', 'a lease holds');
is(sqlstate_of($copy, 'app', q{SELECT idem_claim('held', '{"a": 2}')}), 'ID001', 'and its arguments are known');
is($here->("SELECT idem_complete('held', '8', fence => $fence{held})"), 8, 'its owner completes by its fence');
is($here->("SELECT decision, fence > $fence{unknown} FROM idem_claim('unknown', lease => '1 h')"), 'reconcile|t', 'doubt stays, and fences grow');

# --- its worker -----------------------------------------------------------------------------------------------------

like($here->('SELECT worker FROM idem_status()'), qr/off/, 'the worker is off, as in the server it was copied from');
$copy->append_conf('postgresql.conf', 'idempotency.worker = on');
$copy->reload;
until_true($copy, 'app', q{SELECT state = 'unknown' FROM idem_peek('ended')}, 'the worker ends leases');
until_true($copy, 'app', q{SELECT state = 'not_applied' FROM idem_peek('ended', 'local')}, 'in every scope');
until_true($copy, 'app', q{SELECT NOT EXISTS (SELECT FROM idempotency.outcome WHERE key = 'old')}, 'and prunes');
like($here->('SELECT worker FROM idem_status()'), qr/^running/, 'idem_status: running');
is($here->(q{SELECT key, payload FROM idem_dispatch('bank', 10, '1 h')}), 'message|{"amount": 5}', 'messages are delivered here, with the same key');

# --- each on its own ------------------------------------------------------------------------------------------------

is($there->(q{SELECT state FROM idem_peek('ended')}), 'in_flight', 'the origin: nothing is swept, its worker is off');
is($there->(q{SELECT count(*) FROM idempotency.outcome WHERE key = 'old'}), 1, 'the origin: nor pruned');
is($there->(q{SELECT state FROM idem_peek('held')}), 'in_flight', 'the origin: nor completed');
is($there->(q{SELECT key FROM idem_dispatch('bank', 10, '1 h')}), 'message', 'the origin: the message goes out a second time. A copy that works is a second writer');
$holder->query('COMMIT');
is($there->(q{SELECT count(*) FROM effect WHERE key = 'open'}), 1, 'the origin: the holder commits');
$origin->safe_psql('app', q{COMMIT PREPARED 'p'});
agree($origin, 'app', 'origin');
$holder->quit;

# The clients go on at the copy: what it has replays, and the rest executes once.
my $again = sub { once_again($here, @_) };
my @once = grep { /^once / } sort keys %{ $told->{completed} };
my $had = grep { exists $records->{$_} } @once;
is($again->(@once), @once . "|$had", 'the clients go on at the copy: what it has replays, the rest executes');
is($again->(@once), @once . '|' . @once, 'once');
agree($copy, 'app', 'the clients went on');

server_log_lacks($_, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed') for $origin, $copy;

done_testing();
