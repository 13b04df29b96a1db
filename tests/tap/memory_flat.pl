# The memory of a backend over many calls of each function, of one transaction with many claims, and of the launcher over many
# visits of the worker. MEMORY_CALLS (10000) calls of each; MEMORY_SWEEPS (MEMORY_CALLS / 20), MEMORY_VISITS (MEMORY_CALLS / 40)
# and MEMORY_KEYS (20000, in one transaction) for the rest. Only growth is judged, never time.
#
# Claims, and what would turn them red:
# - What a call allocates is gone with it, in success and in error: an allocation in TopMemoryContext, a Rust value that is
#   forgotten where an error passes it, a cache that nobody bounds. What PostgreSQL allocates is counted by
#   pg_backend_memory_contexts to the byte, what Rust does shows in RssAnon.
# - A transaction with many claims keeps a bounded number of bytes for each key, and gives them back: an entry that holds
#   arguments or results.
# - The launcher lives as long as the server, and does not grow by its visits.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

plan skip_all => 'needs /proc' unless -r '/proc/self/status';

my $calls = $ENV{MEMORY_CALLS} || 10_000;
my $sweeps = $ENV{MEMORY_SWEEPS} || int($calls / 20);
my $visits = $ENV{MEMORY_VISITS} || int($calls / 40);
my $keys = $ENV{MEMORY_KEYS} || 20_000;

# After the warm-up, the first two fifths of the calls. Contexts grow by what the sampling itself caches, and once, at any
# moment, by up to 86 kB of caches (seen on 18; none in 100,000 calls after it), RssAnon by a step of malloc, which takes
# 128 kB at a time. A leak of 32 bytes a call exceeds both.
my $samples_max = 50;
my $context_bytes_max = 128 * 1024;
my $context_bytes_max_for_call = 0.1;
my $rss_bytes_max = 160 * 1024;
my $rss_bytes_max_for_call = 0.5;
my $bytes_max_for_key = 1024;

my $node = IdempotencyNode->start(preload => 1, conf => [
		'log_statement = none', 'log_min_error_statement = panic', 'log_min_messages = fatal', 'fsync = off', 'synchronous_commit = off', "max_wal_size = '4GB'", "idempotency.naptime = '10ms'", 'idempotency.worker = off',
		"idempotency.max_claims_per_transaction = " . 4 * $keys, 'max_locks_per_transaction = ' . (64 + int($keys / 20)), 'autovacuum_naptime = 1s' ]);
my $sql = sub { $node->safe_psql('app', $_[0]) };

$sql->(q{
	CREATE TABLE sample (number bigserial, name text, calls bigint, rss_anon bigint, contexts bigint);
	CREATE FUNCTION sample(name text, calls bigint) RETURNS void LANGUAGE sql AS $$
		INSERT INTO public.sample (name, calls, rss_anon, contexts)
		SELECT name, calls, 1024 * substring(pg_read_file('/proc/self/status') FROM 'RssAnon:\s+(\d+)')::bigint, (SELECT sum(used_bytes) FROM pg_backend_memory_contexts) $$;
	CREATE FUNCTION echo(args jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
	CREATE FUNCTION raises(args jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'payment required' USING ERRCODE = 'PT402'; END$$;
	CREATE FUNCTION read_report(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE sql AS $$SELECT 'unknown', NULL::jsonb, to_jsonb(key)$$;
	SELECT idem_scope_set('doubt', reconciler => 'read_report', max_reconciles => 1000000), idem_scope_set('short', dedup_window => '1 ms', guard => '1 s'), idem_scope_set('noisy', ignore_args => ARRAY['/a/b', '/c']),
		idem_run_begin('run', '1 day'), idem_once('same', 'SELECT to_jsonb(1)', '{"a": 1}'), idem_claim('held', lease => '1 hour'), idem_claim('doubted', scope => 'doubt', lease => '1 hour');
	SELECT idem_fail('doubted', 'unknown', scope => 'doubt', fence => fence) FROM idem_peek('doubted', 'doubt');
	CREATE ROLE regress_stranger LOGIN});

# --- one function after the other -------------------------------------------------------------------------------------

# For pgbench: name => what is called, :i counts. A number before the name divides the calls: these take longer.
my %by_pgbench = (
	'idem_once, new' => q{SELECT idem_once('k' || :i::int, 'SELECT $1', '{"a": [1, 2.50, "x"]}');},
	'idem_once, replay' => q{SELECT idem_once('same', 'SELECT $1', '{"a": 1}');},
	'idem_call, new' => q{SELECT idem_call('k' || :i::int, 'echo', '{"a": 1}', run => 'run');},
	'idem_call, key made' => q{SELECT idem_call(NULL, 'echo', to_jsonb(:i::int), run => 'run');},
	'idem_claim and idem_complete' => q{BEGIN; SELECT idem_claim('k' || :i::int, '{"a": 1}'); SELECT idem_complete('k' || :i::int, '{"b": 1}'); COMMIT;},
	'idem_claim, leased, and idem_complete' => q{SELECT fence FROM idem_claim('k' || :i::int, '{"a": {"b": 1}}', scope => 'noisy', lease => '1 minute') \gset
SELECT idem_complete('k' || :i::int, '{"b": 1}', scope => 'noisy', fence => :fence);},
	'idem_claim, replay' => q{SELECT idem_claim('same', '{"a": 1}');},
	'idem_claim, in progress' => q{SELECT idem_claim('held');},
	'idem_claim and ROLLBACK TO' => q{BEGIN; SAVEPOINT s; SELECT idem_claim('k' || :i::int); ROLLBACK TO s; SELECT idem_claim('k' || :i::int); SELECT idem_release('k' || :i::int); COMMIT;},
	'idem_renew, idem_fail, idem_resolve' => q{SELECT fence FROM idem_claim('k' || :i::int, lease => '1 minute') \gset
SELECT idem_renew('k' || :i::int, '2 minutes', fence => :fence);
SELECT idem_fail('k' || :i::int, 'unknown', 'why', fence => :fence);
SELECT idem_resolve('k' || :i::int, 'applied', '1', evidence => '{"a": 1}'::jsonb);},
	'idem_escalate and idem_forget' => q{SELECT fence FROM idem_claim('k' || :i::int, lease => '1 minute') \gset
SELECT idem_escalate('k' || :i::int, 'why', 'seen'::text, fence => :fence);
SELECT idem_forget('k' || :i::int, force => true);},
	'idem_reconcile' => q{SELECT idem_reconcile('doubted', scope => 'doubt');},
	'idem_claim_many and idem_complete_many' => q{BEGIN; SELECT count(*) FROM idem_claim_many(ARRAY['k' || :i::int, 'l' || :i::int, 'm' || :i::int], ARRAY['1', '2', '3']::jsonb[]); SELECT count(*) FROM idem_complete_many(ARRAY['k' || :i::int, 'l' || :i::int, 'm' || :i::int], ARRAY['1', '2', '3']::jsonb[]); COMMIT;},
	'idem_enqueue, idem_dispatch, idem_complete' => q{SELECT idem_enqueue('k' || :i::int, 'mail', '{"to": "a"}');
SELECT key, fence FROM idem_dispatch('mail', 1, lease => '1 minute') \gset
SELECT idem_complete('k' || :i::int, fence => :fence);},
	'idem_peek and idem_find' => q{SELECT idem_peek('same'); SELECT idem_find('same');},
	'idem_key, idem_hash, idem_canonical' => q{SELECT idem_key('run', 'op', to_jsonb(:i::int)), idem_hash('{"b": 1.50, "a": [1e-7, true]}'), idem_canonical('{"b": 1.50, "a": "x"}');},
	'idem_run_begin, idem_run_touch, idem_run_end' => q{SELECT idem_run_begin('r' || :i::int, '1 day', 'label'), idem_run_touch('run'); SELECT idem_run_end('r' || :i::int);},
	'idem_failure_kind, idem_guarantee' => q{SELECT idem_failure_kind('http:429'), idem_guarantee('doubt');},
	'errors that are caught' => q{DO 'BEGIN PERFORM idem_claim(''same'', ''2''); EXCEPTION WHEN OTHERS THEN NULL; END';},
	'idem_once whose effect raises, caught' => q{DO 'BEGIN PERFORM idem_once(''k'', ''SELECT raises($1)''); EXCEPTION WHEN OTHERS THEN NULL; END';},
	'10 idempotency.records, stats, advice' => q{SELECT count(*) FROM idempotency.scopes; SELECT count(*) FROM idempotency.stats; SELECT count(*) FROM idempotency.advice; SELECT count(*) FROM idempotency.unresolved;},
	'10 idem_status, idem_natural_key' => q{SELECT idem_status(), idem_natural_key('sample', '{number}');},
	'20 idem_scope_set, idem_scope_grant' => q{SELECT idem_scope_set('changing', dedup_window => make_interval(secs => 1 + :i::int % 1000)), idem_scope_grant('changing', 'regress_stranger'); SELECT idem_claim('k' || :i::int, scope => 'changing', lease => '1 s');},
	'100 idem_doctor, idem_report' => q{SELECT count(*) FROM idem_doctor(); SELECT length(idem_report('default'));});

# For psql, whose session outlives an error of a whole statement.
my %by_psql = (
	'ID001' => q{SELECT idem_claim('same', '2');},
	'ID003' => q{SELECT idem_complete('same', fence => 1);},
	'ID004 at COMMIT' => q{BEGIN; SELECT idem_claim('open', '{"a": "bcd"}'); COMMIT;},
	'22023, 22004' => q{SELECT idem_claim('k', lease => '-1 s'); SELECT idem_claim(NULL);},
	'PT402 of an effect' => q{SELECT idem_call('k', 'raises', '{"a": 1}');},
	'54000' => q{SELECT idem_once('k', 'SELECT to_jsonb(repeat(''x'', 70000))');},
	'42601 of an effect' => q{SELECT idem_once('k', 'SELEC');},
	'COMMIT and ROLLBACK PREPARED' => q{BEGIN; SELECT idem_once('prepared', 'SELECT to_jsonb(1)'); PREPARE TRANSACTION 'g'; ROLLBACK PREPARED 'g';});

sub samples_of
{
	my ($name) = @_;
	my @found = map { my ($at, $rss, $contexts) = split /\|/; { calls => $at, rss => $rss, contexts => $contexts } } split /\n/, $sql->("SELECT calls, rss_anon, contexts FROM sample WHERE name = \$name\$$name\$name\$ ORDER BY number");

	return @found;
}

sub most { my ($what, @of) = @_; my $most = 0; for (@of) { $most = $_->{$what} if $_->{$what} > $most; } return $most; }

# Two tests: the most that was in use in the second fifth of the calls, and after it.
sub is_flat
{
	my ($name, @samples) = @_;

	return fail("$name: enough samples to speak of growth") if @samples < 10;
	my @warm = @samples[ int(@samples / 5) .. int(2 * @samples / 5) ];
	my @late = @samples[ int(4 * @samples / 5) .. $#samples ];
	my $between = $late[-1]{calls} - $warm[-1]{calls};
	my $contexts = most('contexts', @late) - most('contexts', @warm);
	my $rss = most('rss', @late) - most('rss', @warm);

	note(sprintf('%s: %d calls, RssAnon %.2f MB, contexts %.2f MB', $name, $late[-1]{calls}, $late[-1]{rss} / 1e6, $late[-1]{contexts} / 1e6));
	cmp_ok($contexts, '<', $context_bytes_max + $context_bytes_max_for_call * $between, sprintf('%s: contexts grow by %d bytes, %.3f for each call', $name, $contexts, $contexts / $between));
	cmp_ok($rss, '<', $rss_bytes_max + $rss_bytes_max_for_call * $between, sprintf('%s: RssAnon grows by %d bytes, %.3f for each call', $name, $rss, $rss / $between))
	  or diag(join "\n", map { sprintf '%9d calls: RssAnon %9d, contexts %9d', @$_{qw(calls rss contexts)} } @samples);
	return;
}

# What a case has left in the tables is not the next one's.
sub clear { $sql->(q{DELETE FROM idempotency.outcome WHERE key <> 'same'; DELETE FROM idempotency.claim WHERE key NOT IN ('held', 'doubted'); TRUNCATE idempotency.event, idempotency.message, idempotency.tombstone; DELETE FROM idempotency.run WHERE run <> 'run'; DELETE FROM idempotency.run_sign}); return; }

my $folder = PostgreSQL::Test::Utils::tempdir();
my $only = $ENV{MEMORY_ONLY} // '';
for my $name (sort keys %by_pgbench)
{
	my ($divisor, $title) = $name =~ /^(\d+) (.*)$/ ? ($1, $2) : (1, $name);
	my $count = int($calls / $divisor) || 1;
	my $every = int($count / $samples_max) || 1;
	my $file = "$folder/case.sql";

	next unless $title =~ /$only/;
	PostgreSQL::Test::Utils::append_to_file($file, "\\set i :i + 1\n$by_pgbench{$name}\n\\if :i % $every = 0\nSELECT sample(\$name\$$title\$name\$, :i::bigint);\n\\endif\n");
	my ($out, $err) = ('', '');
	my $well = IPC::Run::run([ 'pgbench', '-n', '-M', 'prepared', '-c', 1, '-t', $count, '-D', 'i=0', '-f', $file, '-h', $node->host, '-p', $node->port, 'app' ], '<', \undef, '>', \$out, '2>', \$err);
	unlink $file;
	ok($well && $err !~ /ERROR|aborted/, "$title: no call failed") or diag($err);
	is_flat($title, samples_of($title));
	clear();
}
for my $name (sort keys %by_psql)
{
	my $every = int($calls / $samples_max) || 1;
	my ($out, $err) = ('', '');
	my $number = 0;

	next unless $name =~ /$only/;
	my $file = "$folder/case.sql";
	open(my $script, '>', $file) or die "$file: $!";
	for (1 .. $calls) { print $script "$by_psql{$name}\n", $_ % $every == 0 ? "SELECT sample(\$name\$$name\$name\$, $_);\n" : ''; }
	close $script or die "$file: $!";
	IPC::Run::run([ 'psql', '-Xq', '-o', '/dev/null', '-v', 'VERBOSITY=sqlstate', '-f', $file, '-d', $node->connstr('app') ], '<', \undef, '>', \$out, '2>', '/dev/null');
	unlink $file;
	is_flat($name, samples_of($name));
	clear();
}

# --- sweeps -----------------------------------------------------------------------------------------------------------

if ('sweeps' =~ /$only/)
{
	my $session = IdempotencySession->open($node, 'app');
	my $every = int($sweeps / $samples_max) || 1;

	# Each has a lease to end, an outcome to prune and a tombstone to forget.
	$sql->(q{CREATE PROCEDURE sweep_many(first int, number int) LANGUAGE plpgsql AS $$
		BEGIN
			FOR i IN first .. first + number - 1 LOOP
				PERFORM idem_once('s' || i, 'SELECT to_jsonb(1)', scope => 'short'), idem_claim('t' || i, lease => '1 ms');
				COMMIT;
				PERFORM idem_sweep();
				COMMIT;
			END LOOP;
		END$$});
	for (my $done = 0; $done < $sweeps; $done += $every)
	{
		$session->query("CALL sweep_many($done, $every)");
		is($session->sqlstate, '00000', 'sweeps went well') or last if $session->error ne '';
		$session->query("SELECT sample('sweeps', " . ($done + $every) . ')');
	}
	is_flat('sweeps', samples_of('sweeps'));
	$session->quit;
	clear();
}

# --- one transaction ----------------------------------------------------------------------------------------------------

# Four of them after the first two: a leak of 2 bytes a key is 160 kB.
my $rounds = 6;
my %in_one = (
	'idem_claim' => q{PERFORM idem_claim('k' || i, jsonb_build_object('a', i, 'long', repeat('x', 1000)), wait => '0');},
	'idem_claim and idem_complete' => q{PERFORM idem_claim('k' || i, jsonb_build_object('a', i, 'long', repeat('x', 1000)), wait => '0'); PERFORM idem_complete('k' || i, to_jsonb(repeat('y', 1000)));},
	'idem_claim with lease' => q{PERFORM idem_claim('k' || i, '1', lease => '1 hour', wait => '0', run => 'run');},
	'idem_enqueue' => q{PERFORM idem_enqueue('k' || i, 'mail', to_jsonb(repeat('y', 1000)));});
for my $name (sort keys %in_one)
{
	next unless $name =~ /$only/;
	my $session = IdempotencySession->open($node, 'app', settings => { statement_timeout => '0' });
	my $loop = sub { return "DO \$do\$ BEGIN FOR i IN $_[0] .. $_[1] LOOP $in_one{$name} END LOOP; END \$do\$"; };
	# Outside of the transaction's own tables.
	my $now = sub { return split /\|/, $session->query(q{SELECT 1024 * substring(pg_read_file('/proc/self/status') FROM 'RssAnon:\s+(\d+)')::bigint, sum(used_bytes) FROM pg_backend_memory_contexts}); };
	my (@before, @within, @after);

	$session->query("BEGIN; " . $loop->(1, 1000) . "; ROLLBACK");
	$now->() for 1 .. 2;
	for my $round (0 .. $rounds - 1)
	{
		$before[$round] = [ $now->() ];
		$session->query('BEGIN; ' . $loop->(1, $keys));
		is($session->sqlstate, '00000', "$name, $keys in one transaction") or diag($session->error);
		$within[$round] = [ $now->() ];
		$session->query('ROLLBACK');
		$after[$round] = [ $now->() ];
	}
	my ($rss, $contexts) = map { ($within[0][$_] - $before[0][$_]) / $keys } 0, 1;
	cmp_ok($rss, '<', $bytes_max_for_key, sprintf('%s: %d bytes of RssAnon for each key, %d of them in contexts', $name, $rss, $contexts));
	# The tables of locks and the like keep their size, and do not grow again. In the second round malloc may do once what it
	# did not in the first: what was mapped and freed there raised the size from which it maps.
	cmp_ok(abs($after[-1][1] - $after[0][1]), '<', $context_bytes_max, sprintf('%s: after ROLLBACK contexts have %d bytes as after the first one', $name, $after[-1][1]));
	cmp_ok($after[-1][0] - $after[1][0], '<', $rss_bytes_max, sprintf('%s: RssAnon %.2f MB at first, %.2f MB after one, %.2f MB after two, %.2f MB after %d', $name, (map { $_ / 1e6 } $before[0][0], $after[0][0], $after[1][0], $after[-1][0]), $rounds));
	$session->quit;
}

# --- the launcher -------------------------------------------------------------------------------------------------------

if ('launcher' =~ /$only/)
{
	$node->append_conf('postgresql.conf', 'idempotency.worker = on');
	$node->reload;
	my $rss_of = sub { my ($pid) = @_; return slurp_file("/proc/$pid/status") =~ /RssAnon:\s+(\d+)/ ? 1024 * $1 : die "no RssAnon of $pid"; };
	my $session = IdempotencySession->open($node, 'app');
	my $launcher = $session->query('SELECT launcher_pid FROM idem_status()');
	my $every = int($visits / $samples_max) || 1;
	my ($last, $seen, $polls, @samples) = ('', 0, 0);

	# A visit is one end of a sweep in any database.
	while ($seen < $visits && $polls++ < 1000 * $visits)
	{
		my $latest = $session->query('SELECT max(last_sweep_at) FROM idempotency.sweeps');

		if ($latest ne $last)
		{
			($last, $seen) = ($latest, $seen + 1);
			push @samples, { calls => $seen, rss => $rss_of->($launcher), contexts => 0 } if $seen % $every == 0;
		}
		else { usleep(1_000); }
	}
	cmp_ok($seen, '>=', $visits, "$seen visits were seen");
	is($session->query('SELECT launcher_pid FROM idem_status()'), $launcher, 'by one launcher');
	is_flat('launcher', @samples);
	$session->quit;
}

is($sql->('SELECT count(*) FROM idempotency.records GROUP BY scope, key HAVING count(*) > 1'), '', 'no key has two records');
$node->stop;
server_log_lacks($node, qr/PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
