# The life of the background worker: it ends leases in time, comes back after a kill, and is never in anybody's way.
#
# Claims, and what would turn them red:
# - Expired leases end within two naptimes: a launcher that naps longer, or sleeps through a reload.
# - A killed launcher or sweeper is back within seconds, without a restart of the cluster: bgw_restart_time never, or a
#   sweeper whose end the launcher does not notice.
# - DROP DATABASE, RENAME, TEMPLATE and DROP EXTENSION succeed while the worker is busy there: a visit without an end
#   (PostgreSQL waits 5 s for others), or a launcher with a database of its own.
# - A fast shutdown ends a sweep, also one whose commit waits for a standby: a worker that ignores SIGTERM.
# - It obeys idempotency.worker and idempotency.databases at a reload, and says what it does.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use Test::More;

# The naptime is set by a reload, which must end the long one.
my $node = IdempotencyNode->start(preload => 1, conf => [
		"idempotency.naptime = '1h'", "log_statement = none", "log_min_error_statement = panic",
		"idempotency.sweep_batch = 200", "wal_level = replica", "max_wal_senders = 1" ]);
my $sql = sub { $node->safe_psql('app', $_[0]) };
my $started_at = $node->safe_psql('postgres', 'SELECT pg_postmaster_start_time()');
my $launcher = q{backend_type = 'idempotency launcher'};
my $sweeper = q{backend_type = 'idempotency worker'};

sub set
{
	my (@lines) = @_;

	$node->append_conf('postgresql.conf', $_) for @lines;
	$node->reload;
	return;
}

sub launcher_pid
{
	return $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE $launcher");
}

# Expired outcomes, and a trigger that makes each take a moment: the worker is busy here for a long time.
sub make_busy
{
	my ($database, $rows) = @_;

	$node->safe_psql($database, qq{
		CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN PERFORM pg_sleep(0.0005); RETURN OLD; END';
		CREATE TRIGGER slowly BEFORE DELETE ON idempotency.outcome FOR EACH ROW EXECUTE FUNCTION slowly();
		INSERT INTO idempotency.outcome (digest, finished_at, fence, scope_id, attempt, args_rule, state, key)
		SELECT gen_random_uuid(), now() - interval '60 days' + n * interval '1 ms', n, 0, 1, 0, 'c', 'old-' || n
		  FROM generate_series(1, $rows) AS n});
	return;
}

# Copies of one template, which the worker leaves alone as one.
sub busy_database
{
	my ($database) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $database TEMPLATE busy");
	return;
}

sub until_swept
{
	my ($database) = @_;

	return until_true($node, 'postgres',
		"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $sweeper AND datname = '$database')",
		"a sweeper is at work in $database");
}

# Runs a statement that must succeed within $seconds.
sub succeeds_within
{
	my ($seconds, $database, $statement) = @_;
	my ($status, $stderr);
	my $took = seconds_of(sub { $status = $node->psql($database, $statement, stderr => \$stderr) });

	is($stderr, '', "$statement succeeds while the worker is busy");
	cmp_ok($took, '<', $seconds, sprintf('and takes less than %d s (%.1f s)', $seconds, $took));
	return;
}

# A lease that ends in $database by the worker alone.
sub lease_ends_in
{
	my ($database, $key) = @_;

	$node->safe_psql($database, "SELECT * FROM idem_claim('$key', lease => '100ms')");
	until_true($node, $database, "SELECT state = 'unknown' FROM idem_peek('$key')", "$database: the worker ends a lease");
	return;
}

# --- it says what it does -------------------------------------------------------------------------------------------

until_true($node, 'postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE $launcher AND query = 'napping'",
	'the launcher says that it naps');
# The first round may have come before the extension.
is($sql->('SELECT preloaded, worker, last_error IS NULL FROM idem_status()'), 't|running|t', 'idem_status: running');
is($sql->('SELECT launcher_pid FROM idem_status()'), launcher_pid(), 'idem_status tells the launcher\'s pid');
is($sql->("SELECT usename IS NULL OR rolsuper, datname IS NULL FROM pg_stat_activity LEFT JOIN pg_roles ON rolname = usename
            WHERE $launcher"), 't|t', 'the launcher has no database');

# --- leases end in time ---------------------------------------------------------------------------------------------

set("idempotency.naptime = '1s'");
# When a lease was ended, by the server's clock: how fast this test looks does not matter.
$sql->(q{
	CREATE TABLE ended (key text, late interval);
	CREATE FUNCTION ended() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN INSERT INTO public.ended VALUES (OLD.key, clock_timestamp() - OLD.lease_expires_at); RETURN NULL; END';
	CREATE TRIGGER ended AFTER UPDATE OR DELETE ON idempotency.claim FOR EACH ROW EXECUTE FUNCTION ended();
	SELECT idem_scope_set('keyed', effect_kind => 'keyed'), idem_scope_set('local', effect_kind => 'local');
	SELECT idem_claim('l' || n, lease => make_interval(secs => n * 0.2)) FROM generate_series(1, 8) AS n;
	SELECT idem_claim('l9', scope => 'keyed', lease => '700ms'), idem_claim('l10', scope => 'local', lease => '1100ms');
	SELECT idem_claim('long', lease => '1h');
});
until_true($node, 'app', 'SELECT count(*) = 10 FROM ended', 'the worker ends every expired lease');
is($sql->(q{SELECT key, late FROM ended WHERE late NOT BETWEEN interval '0' AND interval '2s' + interval '1.5s'}), '',
	'within two naptimes (and a moment for a slow machine), never early');
note('late: ' . $sql->('SELECT max(late) FROM ended'));
is($sql->(q{SELECT string_agg(DISTINCT scope || ' ' || state, ', ' ORDER BY scope || ' ' || state) FROM idempotency.records
             WHERE key ~ '^l[0-9]'}),
	'default unknown, keyed unknown, local not_applied', 'external and keyed became unknown, local not_applied');
is($sql->(q{SELECT state FROM idem_peek('long')}), 'in_flight', 'a lease that lasts is left alone');
is($sql->(q{SELECT count(*) FROM idempotency.records WHERE reason = 'lease expired'}), 10, 'with the reason');
is($sql->('SELECT open_keys, unknown_keys, leases_overdue FROM idem_status()'), '10|9|0', 'idem_status counts them');
until_true($node, 'app', q{SELECT last_sweep_at > clock_timestamp() - interval '10s' AND last_error IS NULL FROM idem_status()},
	'idem_status tells of the last sweep');

set("idempotency.naptime = '100ms'");

# --- kills ----------------------------------------------------------------------------------------------------------

my $witness = IdempotencySession->open($node, 'app');
my $witness_pid = $witness->backend_pid;

{
	my $old = launcher_pid();

	is($node->safe_psql('postgres', "SELECT pg_terminate_backend($old)"), 't', 'the launcher is terminated');
	within(20, 'another launcher is there within seconds', sub { my $pid = launcher_pid(); $pid ne '' && $pid ne $old });
	lease_ends_in('app', 'after-launcher');
}
is($sql->('SELECT worker FROM idem_status()'), 'running', 'idem_status: running again');
is($sql->('SELECT launcher_pid FROM idem_status()'), launcher_pid(), 'idem_status knows the new launcher');

make_busy('app', 20_000);
for my $round (1 .. 3)
{
	until_swept('app');
	within(20, 'a sweeper is terminated', sub {
		$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE $sweeper AND datname = 'app'") eq 't' });
}
like($node->safe_psql('app', q{
	SELECT backend_type || ', ' || query FROM pg_stat_activity, generate_series(1, 1)
	 WHERE backend_type LIKE 'idempotency%' AND query <> '' LIMIT 1}),
	qr/^idempotency (launcher|worker), \w/, 'pg_stat_activity tells what it does');
until_true($node, 'postgres', q{SELECT EXISTS (SELECT FROM pg_stat_activity
	WHERE backend_type = 'idempotency worker' AND datname = 'app' AND query = 'sweeping expired leases and old outcomes')},
	'pg_stat_activity: a sweeper says that it sweeps');
lease_ends_in('app', 'after-sweepers');
my $left = $sql->(q{SELECT count(*) FROM idempotency.outcome WHERE key LIKE 'old-%'});
until_true($node, 'app', "SELECT count(*) < $left FROM idempotency.outcome WHERE key LIKE 'old-%'",
	'and the pruning goes on');
is($witness->query('SELECT pg_backend_pid()'), $witness_pid, 'the cluster did not restart: an older session lives');
is($node->safe_psql('postgres', 'SELECT pg_postmaster_start_time()'), $started_at, 'nor did the postmaster');
$witness->quit;
$sql->(q{TRUNCATE idempotency.outcome});

# --- never in the way -----------------------------------------------------------------------------------------------

$node->safe_psql('postgres', 'CREATE DATABASE busy IS_TEMPLATE true');
$node->safe_psql('busy', 'CREATE EXTENSION idempotency');
make_busy('busy', 50_000);
busy_database('busy1');
until_swept('busy1');
succeeds_within(15, 'postgres', 'DROP DATABASE busy1');

busy_database('busy2');
until_swept('busy2');
succeeds_within(15, 'postgres', 'DROP DATABASE busy2 WITH (FORCE)');

busy_database('busy3');
until_swept('busy3');
succeeds_within(15, 'postgres', 'ALTER DATABASE busy3 RENAME TO renamed');
until_swept('renamed');
succeeds_within(15, 'postgres', 'CREATE DATABASE copied TEMPLATE renamed');
lease_ends_in('copied', 'in-the-copy');
$node->safe_psql('copied', 'TRUNCATE idempotency.outcome');
lease_ends_in('renamed', 'in-the-renamed');

until_swept('renamed');
succeeds_within(15, 'renamed', 'ALTER TABLE idempotency.outcome ADD COLUMN note text');
succeeds_within(15, 'renamed', 'DROP EXTENSION idempotency CASCADE');
succeeds_within(15, 'renamed', 'CREATE EXTENSION idempotency');
lease_ends_in('renamed', 'in-the-new-extension');
is($node->safe_psql('renamed', q{SELECT worker FROM idem_status()}), 'running', 'idem_status after DROP and CREATE EXTENSION');
until_true($node, 'renamed', q{SELECT last_error IS NULL FROM idem_status()}, 'no error is left of it');

# --- settings at a reload -------------------------------------------------------------------------------------------

# The launcher's rounds, by which "nothing happened" is measured.
sub rounds
{
	my ($count) = @_;
	my $round = "SELECT state_change FROM pg_stat_activity WHERE $launcher";
	my $last = $node->safe_psql('postgres', $round);

	for (1 .. $count)
	{
		return fail('the launcher goes round') unless $node->poll_query_until('postgres', "SELECT ($round) > '$last'");
		$last = $node->safe_psql('postgres', $round);
	}
	return;
}

set('idempotency.worker = off');
until_true($node, 'app', q{SELECT worker LIKE 'off:%' FROM idem_status()}, 'idem_status: off');
rounds(2);
$sql->(q{SELECT idem_claim('off', lease => '1ms')});
my $swept_at = $sql->('SELECT last_sweep_at FROM idem_status()');
rounds(3);
is($sql->(q{SELECT state FROM idem_peek('off')}), 'in_flight', 'idempotency.worker = off: nothing is swept');
is($sql->('SELECT last_sweep_at FROM idem_status()'), $swept_at, 'no database is visited');
is($sql->('SELECT leases_overdue FROM idem_status()'), 1, 'idem_status counts the overdue lease');
is($sql->(q{SELECT decision FROM idem_claim('off', lease => '1h')}), 'reconcile', 'claims are right without it');
$sql->(q{SELECT idem_claim('off2', lease => '1ms')});
set('idempotency.worker = on', "idempotency.databases = 'copied, nowhere'");
lease_ends_in('copied', 'named');
rounds(2);
is($sql->(q{SELECT state FROM idem_peek('off2')}), 'in_flight', 'idempotency.databases: others are not swept');
set("idempotency.databases = ''");
until_true($node, 'app', q{SELECT state = 'unknown' FROM idem_peek('off2')}, 'empty again: all are swept');

# --- a standby that never answers -----------------------------------------------------------------------------------

# Commits wait for it for ever, the sweeper's too if it lets itself be made to.
busy_database('busy4');
busy_database('busy5');
set("synchronous_standby_names = 'nobody'");
until_true($node, 'postgres', q{SELECT current_setting('synchronous_standby_names') = 'nobody'}, 'commits wait for a standby');
my $waiting = IdempotencySession->open($node, 'app');
$waiting->send('CREATE TABLE waits ()');
until_true($node, 'postgres', q{SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')}, 'a commit waits');
# A session that waits for a standby does not answer the barrier of a DROP DATABASE; that is not the worker's doing.
$sql->(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'client backend'}, 'postgres');
until_true($node, 'postgres', q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'client backend')}, 'no client waits any more');
until_swept('busy4');
until_swept('busy5');
{
	my ($stderr, $status);
	my $took = seconds_of(sub {
		$status = $node->psql('postgres', 'SET synchronous_commit = local; DROP DATABASE busy4', stderr => \$stderr,
			on_error_stop => 1);
	});
	is($stderr, '', 'DROP DATABASE succeeds while a standby is awaited');
	cmp_ok($took, '<', 15, sprintf('in less than 15 s (%.1f s)', $took));
}

# --- shutdown -------------------------------------------------------------------------------------------------------

my $took = seconds_of(sub { $node->stop('fast') });
cmp_ok($took, '<', 20, sprintf('a fast shutdown takes less than 20 s, while a sweep waits for a standby (%.1f s)', $took));
$waiting->forget;
$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
$node->start;
until_swept('busy5');
# A database that is not visited.
$node->safe_psql('postgres', 'ALTER DATABASE app IS_TEMPLATE true');
is($node->safe_psql('app', q{SELECT severity, what FROM idem_doctor() WHERE finding = 'not_swept'}), 'warning|database app is a template', 'the doctor says that a template is not swept');
$node->safe_psql('postgres', 'ALTER DATABASE app IS_TEMPLATE false');
is($node->safe_psql('app', q{SELECT count(*) FROM idem_doctor() WHERE finding = 'not_swept'}), 0, 'and of no other');
$took = seconds_of(sub { $node->stop('fast') });
cmp_ok($took, '<', 20, sprintf('a fast shutdown takes less than 20 s, while a sweep is busy (%.1f s)', $took));

# --- the log --------------------------------------------------------------------------------------------------------

# Lines of processes without a client: nothing stands between the pid and the level.
# But for a wait behind this test's own DDL, where the machine is slow.
my @own = grep { !/lock timeout/ } log_matches($node, qr/\[\d+\] (ERROR|PANIC|WARNING):/);
is("@own", '', 'the worker raised no error');
my @ends = log_matches($node, qr/background worker "idempotency launcher" .*exited with exit code/);
cmp_ok(scalar(@ends), '<=', 3, 'no restart loop: the launcher ended only when it was terminated')
  or diag(join "\n", @ends);
my @fatal = grep { !/terminating background worker|database ".*" does not exist|does not exist$/ } log_matches($node, qr/\[\d+\] FATAL:/);
is("@fatal", '', 'no other fatal error');
my @gone = log_matches($node, qr/FATAL:.*does not exist/);
cmp_ok(scalar(@gone), '<=', 6, 'at most one line for each database that went away meanwhile') or diag(join "\n", @gone);
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked|reinitializing/, 'nothing crashed');

done_testing();
