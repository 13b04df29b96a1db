# The server's clock jumps, back and forth, by hours: an operator's correction, a virtual machine that was paused.
#
# Clocks decide when a lease or a window ends, and nothing else. Claims, and what would turn them red:
# - A jump back cuts no lease short, prunes nothing and replays what is finished: unsigned arithmetic, or an age below
#   zero taken for a large one.
# - Fences grow though the clock does not: a fence that is the clock alone.
# - After a jump forward an ended lease is for reconcile, never for execute, and stays so when the clock is right again.
# - Naps, visits and waits are as long as they are: durations measured by the wall clock. A visit that a jump makes
#   endless would hold up DROP DATABASE, a wait its caller.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyClock;
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use Test::More;
use Time::HiRes qw(time);

plan skip_all => IdempotencyClock->missing if IdempotencyClock->missing;

my $clock = IdempotencyClock->new;
my $node = $clock->start(IdempotencyNode->make(preload => 1, conf => [ "log_statement = none", "idempotency.naptime = '100ms'" ]));

# Sets the server's clock to so many hours from now.
sub clock_is
{
	my ($hours) = @_;

	return $clock->set(time + $hours * 3600);
}

$node->safe_psql('postgres', 'CREATE DATABASE app');
$node->safe_psql('app', 'CREATE EXTENSION idempotency');
my $sql = sub { $node->safe_psql('app', $_[0]) };
my $hours = sub { $sql->("SELECT round(extract(epoch FROM clock_timestamp()) / 3600 - $_[0])") };
my $start = time / 3600;

clock_is(2);
is($hours->($start), 2, 'the clock moves');
clock_is(0);
is($hours->($start), 0, 'and is right');

sub peek
{
	my ($key, $columns) = @_;

	return $sql->("SELECT $columns FROM idem_peek('$key')");
}

sub ends_a_lease
{
	my ($name) = @_;

	$sql->("SELECT idem_claim('$name', lease => '200ms')");
	return within(20, "$name: the worker ends a lease", sub { peek($name, 'state') eq 'unknown' });
}

# --- back -----------------------------------------------------------------------------------------------------------

$sql->(q{SELECT idem_scope_set('short', dedup_window => '1 hour');
	SELECT idem_claim('held', lease => '1h'), idem_claim('second', lease => '1ms'), idem_once('done', 'SELECT to_jsonb(1)'), idem_once('done', 'SELECT to_jsonb(1)', scope => 'short');
	BEGIN; SELECT idem_claim('failed'); SELECT idem_fail('failed', 'not_applied'); COMMIT;
	BEGIN; SELECT idem_claim('declared'); SELECT idem_fail('declared', 'unknown'); COMMIT});
my %fence = map { $_ => peek($_, 'fence') } qw(held failed declared);
ends_a_lease('right');

clock_is(-3);
is($hours->($start), -3, 'the clock is three hours behind');
is($sql->(q{SELECT decision FROM idem_claim('held', lease => '1h')}), 'in_progress', 'back: a lease is not cut short');
is($sql->(q{SELECT decision, result FROM idem_claim('done')}), 'replay|1', 'back: what is finished replays');
is($sql->(q{SELECT decision FROM idem_claim('done', scope => 'short')}), 'replay', 'back: within any window');
for my $key ('failed', 'declared')
{
	is($sql->("SELECT fence FROM idem_claim('$key', lease => '1h')"), $fence{$key} + 1, "back: the fence of $key grows by one");
	is($sql->("SELECT idem_complete('$key', '1', fence => $fence{$key} + 1)"), 1, "back: and finishes it");
}
is(sqlstate_of($node, 'app', "SELECT idem_complete('declared', '2', fence => $fence{declared})"), 'ID003', 'back: the fence before it is lost');
ends_a_lease('back');
is($sql->(q{SELECT count(*) FROM idempotency.outcome WHERE key = 'done'}), 2, 'back: nothing was pruned meanwhile');
is($sql->(q{SELECT worker, last_error IS NULL FROM idem_status()}), 'running|t', 'back: the worker is well');
# A new lease has its length, by the clock there is.
is($sql->(q{SELECT lease_expires_at - claimed_at FROM idem_claim('new', lease => '10 minutes')}), '00:10:00', 'back: a new lease has its full length');
is($sql->(q{SELECT idem_renew('new', '30 minutes', fence => fence) - clock_timestamp() > interval '29 minutes' FROM idem_peek('new')}), 't', 'back: so has a renewal');
my $fence_new = peek('new', 'fence');

# --- and forth ------------------------------------------------------------------------------------------------------

clock_is(0);
within(20, 'forth: leases that ended by the clock are ended', sub { peek('new', 'state') eq 'unknown' });
is($sql->(q{SELECT decision FROM idem_claim('held', lease => '1h')}), 'in_progress', 'forth: a lease that has not ended is held');
clock_is(5);
within(20, 'ahead: so are the others', sub { peek('held', 'state') eq 'unknown' });
within(20, 'ahead: and what is past its window is pruned', sub { $sql->(q{SELECT count(*) FROM idempotency.outcome WHERE key = 'done'}) eq '1' });
ends_a_lease('ahead');
my $ahead = $sql->(q{SELECT fence FROM idem_claim('taken', lease => '1h')});
$sql->("SELECT idem_fail('taken', 'not_applied', fence => $ahead)");

clock_is(0);
is($sql->(q{SELECT decision FROM idem_claim('held', lease => '1h')}), 'reconcile', 'right again: what ended meanwhile is for reconcile, never for execute');
cmp_ok(peek('held', 'fence'), '>', $fence{held}, 'right again: under a greater fence');
is(sqlstate_of($node, 'app', "SELECT idem_complete('held', '1', fence => $fence{held})"), 'ID003', 'right again: the owner before it is shut out');
is($sql->(q{SELECT decision, fence FROM idem_claim('taken', lease => '1h')}), 'execute|' . ($ahead + 1), 'right again: fences go on from where they were');
is($sql->("SELECT decision, fence > $fence_new FROM idem_claim('new', lease => '1h')"), 'reconcile|t', 'right again: also from the hours behind');
ends_a_lease('right-again');

# --- durations ------------------------------------------------------------------------------------------------------

# A wait that the clock jumps back under.
$sql->(q{SELECT idem_claim('awaited', lease => '1h')});
my $waiter = IdempotencySession->open($node, 'app');
my $pid = $waiter->backend_pid;
$waiter->send(q{SELECT decision FROM idem_claim('awaited', wait => '2s')});
until_true($node, 'app', "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $pid", 'somebody waits for a lease');
clock_is(-1);
within(20, 'a wait is no longer than it was asked to be', sub { $waiter->done })
  or $sql->("SELECT pg_terminate_backend($pid)");
is($waiter->answer, 'in_progress', 'and ends in progress');
$waiter->forget;
clock_is(0);

# A busy visit that the clock jumps back under.
$node->safe_psql('postgres', 'CREATE DATABASE busy');
# Slow by work: a pg_sleep is measured by the clock that jumps, and would last for hours.
$node->safe_psql('busy', q{CREATE EXTENSION idempotency;
	CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM count(*) FROM generate_series(1, 5000); RETURN OLD; END';
	CREATE TRIGGER slowly BEFORE DELETE ON idempotency.outcome FOR EACH ROW EXECUTE FUNCTION slowly();
	INSERT INTO idempotency.outcome (digest, finished_at, fence, scope_id, attempt, args_rule, state, key)
	SELECT gen_random_uuid(), now() - interval '60 days', n, 0, 1, 0, 'c', 'old-' || n FROM generate_series(1, 40000) AS n});
until_true($node, 'postgres', q{SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'idempotency worker' AND datname = 'busy')}, 'a sweeper is at work');
clock_is(-2);
my $error;
my $took = seconds_of(sub { $error = error_of($node, 'postgres', 'DROP DATABASE busy') });
is($error, '', 'DROP DATABASE succeeds while the clock jumps back under a busy sweeper');
cmp_ok($took, '<', 15, sprintf('in less than 15 s (%.1f s)', $took));
$node->safe_psql('postgres', 'DROP DATABASE IF EXISTS busy WITH (FORCE)');
ends_a_lease('at-last');

is(join("\n", log_matches($node, qr/\[\d+\] (ERROR|PANIC|WARNING):/)), '', 'the worker raised no error');
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
