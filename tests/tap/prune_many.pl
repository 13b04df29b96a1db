# 500,000 outcomes past their window, in a server whose timeouts are against long work: by the worker, by idem_sweep() and
# CALL idempotency.sweep(), and in a database that is dropped meanwhile.
#
# Claims, and what would turn them red:
# - The worker prunes them all, visit by visit, without an error in its log: a transaction as long as the work, or a
#   worker that takes statement_timeout = 200 ms as it is.
# - A client under the same timeouts gets on batch by batch: idem_sweep() whose batch takes longer than 200 ms, or that
#   begins at the first outcome again each time and finds only dead ones. CALL, which PostgreSQL times as one statement, keeps what
#   its batches committed, and the next CALL goes on.
# - Nothing within its window goes: fresh ones are counted before and after.
# - DROP DATABASE waits for a batch or two: a visit without an end.
# - A pause (restart) in the middle costs no second reading: a place that is kept in memory alone.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use Test::More;
use Time::HiRes qw(time);

my $rows = 500_000;
my $node = IdempotencyNode->start(preload => 1, conf => [
		"log_statement = none", "idempotency.naptime = '100ms'", "idempotency.worker = off", "fsync = off", "wal_level = minimal",
		"max_wal_senders = 0", "max_wal_size = '4GB'", "autovacuum = off",
		"statement_timeout = '200ms'", "lock_timeout = '50ms'", "idle_in_transaction_session_timeout = '200ms'" ]);
# For the test's own long statements.
my $free = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0;";
my $sql = sub { $node->safe_psql($_[1] // 'app', "$free $_[0]") };

sub backlog
{
	my ($count, $database) = @_;

	$sql->(qq{
		DELETE FROM idempotency.prune_progress;
		INSERT INTO idempotency.outcome (digest, finished_at, fence, scope_id, attempt, args_rule, state, key)
		SELECT gen_random_uuid(), now() - interval '60 days' + n * interval '1 ms', n, 0, 1, 0, 'c', 'old-' || n
		  FROM generate_series(1, $count) AS n}, $database);
	return;
}

sub left { return $sql->(q{SELECT count(*) FROM idempotency.outcome WHERE key LIKE 'old-%'}, $_[0]); }
sub fresh { return $sql->(q{SELECT count(*) FROM idempotency.outcome WHERE key LIKE 'fresh-%'}); }

sub worker
{
	my ($on_or_off) = @_;

	$node->append_conf('postgresql.conf', "idempotency.worker = $on_or_off");
	$node->reload;
	return until_true($node, 'app', "SELECT worker LIKE '" . ($on_or_off eq 'on' ? 'running' : 'off%') . "' FROM idem_status()", "the worker is $on_or_off");
}

$sql->(q{SELECT idem_once('fresh-' || n, 'SELECT to_jsonb(1)') FROM generate_series(1, 100) AS n});

# --- by the worker --------------------------------------------------------------------------------------------------

backlog($rows);
is($node->safe_psql('app', q{SELECT current_setting('statement_timeout')}), '200ms', 'the timeouts count for everybody');
worker('on');
my $start = time;
# In the middle the server goes down, and comes back.
within(120, 'the worker got through a third', sub { left() < $rows * 2 / 3 });
worker('off');
until_true($node, 'app', q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'idempotency worker')}, 'its visit has ended');
my $left_then = left();
cmp_ok($left_then, '>', 1_000, 'in the middle');
my $place = $sql->(q{SELECT finished_at, place FROM idempotency.prune_progress});
$node->restart;
is($sql->(q{SELECT finished_at, place FROM idempotency.prune_progress}), $place, 'the place of pruning is kept over a restart');
worker('on');
within(300, 'the worker prunes 500,000 under statement_timeout = 200 ms', sub { left() == 0 }) or diag(left() . ' are left; ' . $sql->('SELECT last_error FROM idem_status()'));
note(sprintf('%d rows a second, restart included', $rows / (time - $start)));
# What was read before is dead, or was there no more: it is not read again by the next batch, visit or server.
within(30, 'the statistics are there', sub { $sql->(q{SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'outcome'}) >= $rows });
cmp_ok($sql->(q{SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'outcome_scope_id_finished_at_index'}), '<', 1.5 * $rows,
	'each outcome was read about once by age');
is(fresh(), 100, 'what is within its window is there');
is($sql->('SELECT worker, last_error FROM idem_status()'), 'running|', 'idem_status tells of no error');
is($sql->(q{SELECT pruned FROM idempotency.stats WHERE scope = 'default'} ), $left_then, 'counted since the restart');
is(join("\n", grep { !/terminating background worker/ } log_matches($node, qr/\[\d+\] (ERROR|FATAL|PANIC|WARNING|LOG:  idempotency)/)), '', 'nor does the log');
is($sql->('SELECT at_end FROM idempotency.prune_progress'), 't', 'the pass came to its end');

# --- by a client ----------------------------------------------------------------------------------------------------

worker('off');
my $client = IdempotencySession->open($node, 'app');
is($client->query('SHOW statement_timeout'), '200ms', 'a client under the timeouts');
backlog($rows);
my ($calls, $failed, $longest) = (0, 0, 0);
$start = time;
while (time - $start < 240)
{
	my $began = time;
	my $more = $client->query('SELECT more FROM idem_sweep()');

	$longest = time - $began if time - $began > $longest;
	$calls++;
	$failed++ if $client->sqlstate ne '00000';
	diag($client->error) if $client->sqlstate ne '00000' && $failed < 3;
	last if $more eq 'f' || $failed > 20;
}
is(left(), 0, 'SELECT idem_sweep() until there is no more prunes 500,000');
is($failed, 0, 'no batch ran into statement_timeout');
note(sprintf('%d calls, the longest %.3f s, %d rows a second', $calls, $longest, $rows / (time - $start)));

# One CALL is one statement: the timeout ends it, and what its batches committed stays.
backlog(60_000);
my ($rounds, $before) = (0, left());
while ($before > 0 && $rounds < 200)
{
	$client->query('CALL idempotency.sweep()');
	my $now = left();
	like($client->sqlstate, qr/^(00000|57014)$/, 'CALL succeeds, or is ended by the timeout') unless $rounds;
	last if $now >= $before && $client->sqlstate ne '00000';
	($before, $rounds) = ($now, $rounds + 1);
}
is(left(), 0, 'CALL idempotency.sweep() again and again prunes them all') or diag($client->error);
note("$rounds calls");
is($client->query('CALL idempotency.sweep()') . $client->sqlstate, '00000', 'and where nothing is left, it ends well');
# Over many dead ones, too, which no vacuum has removed: autovacuum is off here.
backlog(5_000);
for (1 .. 20) { $client->query('CALL idempotency.sweep()'); last if left() == 0; }
is(left(), 0, 'so does it behind many that are dead') or diag($client->error);
is(fresh(), 100, 'what is within its window is there');

# Without timeouts, one CALL does it all, as pg_cron would.
backlog(60_000);
$sql->('CALL idempotency.sweep()');
is(left(), 0, 'one CALL without timeouts prunes 60,000');
$client->quit;

# --- a database that is dropped meanwhile ---------------------------------------------------------------------------

$sql->('CREATE DATABASE doomed');
$sql->('CREATE EXTENSION idempotency', 'doomed');
backlog($rows, 'doomed');
worker('on');
within(60, 'the worker prunes there', sub { left('doomed') < $rows });
my $many = left('doomed');
my $error;
my $took = seconds_of(sub { $error = error_of($node, 'postgres', "SET statement_timeout = 0;\nDROP DATABASE doomed") });
is($error, '', 'DROP DATABASE succeeds while the worker prunes there');
cmp_ok($took, '<', 5, sprintf('in less than 5 s (%.1f s), with %d rows left', $took, $many));
cmp_ok($many, '>', 100_000, 'it was in the middle of it');
until_true($node, 'app', q{SELECT last_sweep_at > clock_timestamp() - interval '5 seconds' AND last_error IS NULL FROM idem_status()}, 'the others are visited on');
is($sql->(q{SELECT count(*) FROM idempotency.sweeps WHERE database = 'doomed'}), 0, 'and the database is forgotten');
# The next round of the launcher forgets it.
until_true($node, 'app', 'SELECT count(*) = 1 FROM idempotency.last_sweeps() WHERE database NOT IN (SELECT oid FROM pg_database WHERE datname = \'postgres\')', 'in shared memory, too');
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
