# Outcomes that are past their window and must stay all the same, because their run lives; and a snapshot that is held for
# long, which keeps every dead index entry. Neither is read again and again. What is read is counted by the server.
#
# Claims, and what would turn them red:
# - 50,000 that stay do not keep the 100 behind them: a batch that begins at the first outcome each time.
# - The next visits do not read the 50,000 again: a place that is forgotten at the end of a pass. A restart does not, either.
# - A full pass, after ten minutes or where asked for, does look at them again: a place that never goes back, so that the
#   keys of ended runs stay for ever.
# - Behind a snapshot that is held, a visit reads what is due and no dead entries of earlier ones, outcomes or tombstones.
# - A scope that is dropped leaves nothing behind that a later scope could take for its own.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use Test::More;
use Time::HiRes qw(usleep);

my $node = IdempotencyNode->start(preload => 1, conf => [
		"log_statement = none", "idempotency.naptime = '100ms'", "idempotency.worker = off", "autovacuum = off" ]);
my $sql = sub { $node->safe_psql('app', $_[0]) };
my $watch = IdempotencySession->open($node, 'app');

sub worker
{
	my ($on_or_off) = @_;

	$node->append_conf('postgresql.conf', "idempotency.worker = $on_or_off");
	$node->reload;
	until_true($node, 'app', "SELECT worker LIKE '" . ($on_or_off eq 'on' ? 'running' : 'off%') . "' FROM idem_status()", "the worker is $on_or_off");
	until_true($node, 'app', q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'idempotency worker')}, 'and at rest')
	  if $on_or_off eq 'off';
	return;
}

# Counts the visits until something is so; gives their number.
sub visits_until
{
	my ($name, $seconds, $done) = @_;
	my $visits = 0;
	my $last = $watch->query('SELECT last_sweep_at FROM idem_status()');

	within($seconds, $name, sub {
		my $so = $done->($visits);
		my $now = $watch->query('SELECT last_sweep_at FROM idem_status()');
		($visits, $last) = ($visits + 1, $now) if $now ne $last;
		$so;
	});
	return $visits;
}

# Entries that were read of this table's indexes so far, and rows by sequential scans; written down by each process when its visit ends.
sub entries_read
{
	my ($table) = @_;

	return $sql->("SELECT sum(idx_tup_read) + (SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = '$table') FROM pg_stat_user_indexes WHERE relname = '$table'");
}

# Over so many visits, at most this many entries of the table's indexes are read.
sub reads_little
{
	my ($name, $table, $visits, $most, $meanwhile) = @_;
	my $before = entries_read($table);

	$meanwhile->() if $meanwhile;
	visits_until("$name: $visits visits", 60, sub { $_[0] >= $visits });
	my $read = entries_read($table) - $before;
	return cmp_ok($read, '<=', $most, "$name: $read entries were read");
}

sub old
{
	my ($name, $scope, $count, $ago, $run) = @_;
	my $of = $run ? "'$run'" : 'NULL';

	$sql->(qq{
		INSERT INTO idempotency.outcome (digest, finished_at, fence, scope_id, attempt, args_rule, state, key, run)
		SELECT gen_random_uuid(), now() - interval '$ago' + n * interval '1 us', n, (SELECT id FROM idempotency.scope WHERE name = '$scope'), 1, 0, 'c', '$name-' || n, $of
		  FROM generate_series(1, $count) AS n});
	return;
}

# By a session of its own: what it reads is written down when it ends, and not in the middle of a measurement.
sub left { return $sql->("SELECT count(*) FROM idempotency.outcome WHERE key LIKE '$_[0]-%'"); }

# --- those that stay ------------------------------------------------------------------------------------------------

$sql->(q{SELECT idem_scope_set('kept', dedup_window => '1 hour'), idem_scope_set('held', dedup_window => '1 hour', guard => '1 hour'); SELECT idem_run_begin('alive', '1 year')});
old('stays', 'kept', 50_000, '3 days', 'alive');
old('due', 'kept', 100, '2 days');
old('fresh', 'kept', 100, '1 minute');
worker('on');
# The visit that is on while it is looked at is not counted yet.
my $visits = visits_until('the 100 behind 50,000 that stay go', 60, sub { left('due') == 0 });
# Each goes on where the one before ended; how far one comes is a matter of the machine.
cmp_ok($visits, '<=', 10, "in $visits visits and what the last one took of its own");
is(left('stays'), 50_000, 'those that stay are there');
until_true($node, 'app', q{SELECT at_end FROM idempotency.prune_progress WHERE scope_id = (SELECT id FROM idempotency.scope WHERE name = 'kept')}, 'the pass came to its end');
visits_until('what it read is counted', 30, sub { $_[0] >= 2 });

reads_little('the next visits', 'outcome', 10, 500);
old('due', 'kept', 100, '1 day');
reads_little('visits with 100 more to do', 'outcome', 10, 2_000);
is(left('due'), 0, 'which are gone');
worker('off');
$watch->quit;
$node->restart;
$watch = IdempotencySession->open($node, 'app');
my $before = entries_read('outcome');
worker('on');
visits_until('after a restart', 30, sub { $_[0] >= 5 });
cmp_ok(entries_read('outcome') - $before, '<=', 1_000, 'after a restart: nothing is read from the beginning');

# Ten minutes later, by the book.
$before = entries_read('outcome');
$sql->(q{UPDATE idempotency.prune_progress SET pass_began_at = pass_began_at - interval '11 minutes'});
within(60, 'a full pass reads them again', sub { entries_read('outcome') - $before >= 50_000 });
my $at_end = q{SELECT at_end AND pass_began_at > now() - interval '5 minutes' FROM idempotency.prune_progress WHERE scope_id = (SELECT id FROM idempotency.scope WHERE name = 'kept')};
until_true($node, 'app', $at_end, 'to its end');
is(left('stays'), 50_000, 'and keeps them');
$sql->(q{SELECT idem_run_end('alive'); UPDATE idempotency.run SET ended_at = ended_at - interval '2 hours' WHERE run = 'alive'});
$sql->(q{UPDATE idempotency.prune_progress SET pass_began_at = pass_began_at - interval '11 minutes'});
visits_until('a window after the end of their run a full pass takes them', 120, sub { left('stays') == 0 });
is(left('fresh'), 100, 'what is within its window stays');

# --- a snapshot that is held ----------------------------------------------------------------------------------------

my $holder = IdempotencySession->open($node, 'app');
$holder->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
is($holder->query(q{SELECT count(*) > 0 FROM idempotency.outcome}), 't', 'somebody holds a snapshot');
# 90 minutes ago: past the window by half an hour, so that the guard remembers them for another half.
old('dead', 'held', 20_000, '90 minutes');
visits_until('20,000 are pruned under it', 60, sub { left('dead') == 0 });
is($sql->('SELECT count(*) FROM idempotency.tombstone'), 20_000, 'and remembered');
visits_until('the pass comes to its end', 30, sub { $_[0] >= 3 });
reads_little('outcomes under a held snapshot', 'outcome', 10, 500);
reads_little('and with 100 more to do', 'outcome', 10, 2_000, sub { old('dead', 'held', 100, '80 minutes') });
is(left('dead'), 0, 'which are gone');
# Their guard is over.
$sql->(q{UPDATE idempotency.tombstone SET expired_at = expired_at - interval '40 minutes'; UPDATE idempotency.prune_progress SET tombstones_from = NULL});
visits_until('the tombstones go', 60, sub { $sql->('SELECT count(*) FROM idempotency.tombstone') == 0 });
visits_until('the pass comes to its end', 30, sub { $_[0] >= 3 });
reads_little('tombstones under a held snapshot', 'tombstone', 10, 500);
# Events past their retention, too.
$sql->(q{INSERT INTO idempotency.event (happened_at, kind, from_state, to_state, role, pid)
	SELECT now() - interval '1 year', 'doubt', '-', '-', 'pg_monitor'::regrole, 0 FROM generate_series(1, 20000)});
visits_until('20,000 events go', 60, sub { $sql->(q{SELECT count(*) FROM idempotency.event WHERE kind = 'doubt'}) == 0 });
visits_until('the pass comes to its end', 30, sub { $_[0] >= 3 });
$holder->query('COMMIT');
$holder->quit;

# --- a scope that goes ----------------------------------------------------------------------------------------------

# A claim that is counted, so that the worker has something to write down of the scope.
$sql->(q{SELECT idem_scope_set('gone', dedup_window => '1 ms'); SELECT idem_once('k', 'SELECT to_jsonb(1)', scope => 'gone')});
my $id = $sql->(q{SELECT id FROM idempotency.scope WHERE name = 'gone'});
within(30, 'the worker prunes a scope', sub { $sql->("SELECT count(*) FROM idempotency.outcome WHERE scope_id = $id") eq '0' });
within(30, 'and writes down what was counted', sub { $sql->("SELECT EXISTS (SELECT FROM idempotency.activity WHERE scope_id = $id AND pruned = 1) AND EXISTS (SELECT FROM idempotency.prune_progress WHERE scope_id = $id)") eq 't' });
$sql->(q{SELECT idem_scope_drop('gone')});
visits_until('the scope is dropped', 30, sub { $_[0] >= 3 });
is($sql->("SELECT t, count(*) FROM (SELECT 'prune_progress' AS t, scope_id FROM idempotency.prune_progress UNION ALL SELECT 'observed', scope_id FROM idempotency.observed UNION ALL SELECT 'activity', scope_id FROM idempotency.activity) AS a WHERE scope_id = $id GROUP BY t"), '',
	'nothing is left of a scope that was dropped');
$sql->(q{SELECT idem_scope_set('next', dedup_window => '1 ms'); SELECT idem_once('k', 'SELECT to_jsonb(1)', scope => 'next')});
within(30, 'a scope that comes after it is pruned', sub { $sql->(q{SELECT count(*) FROM idempotency.records WHERE scope = 'next'}) eq '0' });

$watch->quit;
is(join("\n", log_matches($node, qr/\[\d+\] (ERROR|PANIC|WARNING):/)), '', 'the worker raised no error');
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
