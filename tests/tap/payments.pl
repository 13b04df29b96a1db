# Payments through the outbox and examples/dispatcher, to a payment server that fails in every way it can and keeps no key
# from being paid twice. Dispatchers die by SIGKILL, the payment server dies, and the database server crashes once.
#
# Claims, and what would turn them red:
# - Every payment whose business row committed is made exactly once, and nothing else is: a message with two dispatchers,
#   a retry of what may have happened, a message lost with a crash or passed over.
# - A payment whose business row was rolled back is never made: a message that is visible before its commit.
# - What could not be known went through reconcile, and the trail says so.
# - Payments of one ordering key are made in the order in which they were enqueued, whatever fails between.
# - What the payment server refuses is final, with its answer, and holds up nobody.
# - The same run with a dispatcher that takes reconcile for execute pays twice: this test can fail.
# - SIGTERM: a dispatcher gives back what it has not begun, and loses nothing.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencyTools;
use JSON::PP;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

# Per mille of all connections to the payment server.
my $FAULTS = 'busy=20,close=20,fail=20,error=30,die=3,death=6,timeout=15';
my $RUN_SECONDS_MAX = 240;
my $DISPATCHERS = 4;

my ($python) = grep { -x && system("$_ -c 'import psycopg' 2>" . File::Spec->devnull) == 0 }
  map { "$_/python3" } split(/:/, $ENV{PATH}), '/usr/bin';
BAIL_OUT('no python3 can import psycopg 3: apt-get install python3-psycopg') unless $python;
note "python: $python, psycopg " . `$python -c 'import psycopg; print(psycopg.__version__)'`;

# --- processes that are started again when they end -----------------------------------------------------------------

my %processes;

sub start_process
{
	my ($name, $log, $environment, @command) = @_;
	append_to_file($log, '');
	my $log_start = -s $log;
	my $pid = fork() // die "fork: $!";

	if ($pid == 0)
	{
		$SIG{$_} = 'DEFAULT' for qw(INT TERM HUP PIPE);
		%ENV = (%ENV, %$environment);
		open(STDIN, '<', File::Spec->devnull) && open(STDOUT, '>>', $log) && open(STDERR, '>&', \*STDOUT)
		  && exec(@command);
		POSIX::_exit(127);
	}
	$processes{$name} = { pid => $pid, log => $log, log_start => $log_start, again => [@_], starts => ($processes{$name} ? $processes{$name}{starts} : 0) + 1 };
	return;
}

# The exit status where the process has ended.
sub ended
{
	my ($name) = @_;

	return waitpid($processes{$name}{pid}, POSIX::WNOHANG()) == $processes{$name}{pid} ? $? : undef;
}

# A dispatcher says so in its log when it is ready for messages and for SIGTERM.
sub until_delivering
{
	my (@names) = @_;

	return within(60, 'the dispatchers are ready: ' . @names, sub {
		for my $name (@names)
		{
			start_process(@{ $processes{$name}{again} }) if defined ended($name);
			return 0 if slurp_file($processes{$name}{log}, $processes{$name}{log_start}) !~ /delivering/;
		}
		return 1;
	});
}

sub kill_process
{
	my ($name, $signal) = @_;

	return unless $processes{$name};
	kill($signal, $processes{$name}{pid});
	waitpid($processes{$name}{pid}, 0);
	return $?;
}

END
{
	my $status = $?;
	kill('KILL', $_->{pid}) for values %processes;
	waitpid($_->{pid}, 0) for values %processes;
	$? = $status;
}

# --- a run ----------------------------------------------------------------------------------------------------------

sub new_node
{
	my (%option) = @_;
	my $node = IdempotencyNode->start(%option, conf => [ "log_statement = none", "deadlock_timeout = '100ms'", "max_connections = 30" ]);

	$node->safe_psql('app', q{
		CREATE ROLE regress_dispatcher LOGIN;
		CREATE TABLE payment (run text, id int, amount numeric NOT NULL, PRIMARY KEY (run, id));
		-- Each business row with its message; begun again, it goes on where a crash cut it off. Of every tenth payment a
		-- twin is rolled back, and every fourth is one of an account whose payments go out in order.
		CREATE PROCEDURE make_payments(name text, payments int) LANGUAGE plpgsql AS $$
		DECLARE
			due numeric;
		BEGIN
			FOR n IN 1 .. payments LOOP
				CONTINUE WHEN EXISTS (SELECT FROM payment p WHERE p.run = name AND p.id = n);
				IF n % 10 = 0 THEN
					INSERT INTO payment VALUES (name, -n, n);
					PERFORM idem_enqueue(name || '/-' || n, name, jsonb_build_object('amount', n), scope => name);
					ROLLBACK;
				END IF;
				-- An amount of 0 is refused.
				due := CASE WHEN n % 100 = 99 THEN 0 ELSE n + 0.5 END;
				INSERT INTO payment VALUES (name, n, due);
				PERFORM idem_enqueue(name || '/' || n, name, jsonb_build_object('amount', due), scope => name,
						ordering_key => CASE WHEN n % 4 = 0 THEN 'account/' || n % 50 END);
				COMMIT;
			END LOOP;
		END $$;
	});
	return $node;
}

# What the payment server wrote down.
sub server_log
{
	my ($run) = @_;
	my $json = JSON::PP->new->utf8;

	return map { $json->decode($_) } split /\n/, slurp_file("$run->{folder}/payments");
}

sub payment_counts
{
	my ($run) = @_;
	my %count;

	$count{ $_->{key} }++ for grep { $_->{what} eq 'payment' } server_log($run);
	return \%count;
}

# A scope, a payment server and a dispatcher for a run.
sub prepare
{
	my ($node, $run) = @_;

	$run->{folder} = PostgreSQL::Test::Utils::tempdir();
	append_to_file("$run->{folder}/payments", '');
	$node->safe_psql('app', "SELECT idem_scope_set('$run->{name}', effect_kind => 'external', max_lease => '10s', backoff => '500ms', max_backoff => '1s',
			max_attempts => 1000, max_reconciles => 100), idem_scope_grant('$run->{name}', 'regress_dispatcher')");
	return;
}

sub start_server
{
	my ($run, @more) = @_;

	$run->{port} = PostgreSQL::Test::Cluster::get_free_port();
	start_process('server', "$run->{folder}/server.log", {},
		$python, "$FindBin::RealBin/lib/payment_server.py", '--port', $run->{port}, '--port-file', "$run->{folder}/port", '--log', "$run->{folder}/payments", @more);
	return;
}

sub start_dispatcher
{
	my ($node, $run, $n) = @_;

	start_process("dispatcher $n", "$run->{folder}/dispatcher$n.log", {
			DISPATCH_DATABASE => $node->connstr('app') . " user=regress_dispatcher application_name=dispatcher$n",
			DISPATCH_DESTINATION => $run->{name}, DISPATCH_SCOPES => $run->{name}, DISPATCH_API => "http://127.0.0.1:$run->{port}", DISPATCH_ROWS_MAX => 5,
			DISPATCH_WAIT_S => 2, DISPATCH_LEASE_S => 2, DISPATCH_HTTP_TIMEOUT_S => 0.5, DISPATCH_SETTLE_S => 0.5,
			PYTHONDONTWRITEBYTECODE => 1, PYTHONUNBUFFERED => 1, $run->{careless} ? (CARELESS => 1) : () },
		$python, "$FindBin::RealBin/lib/careless_dispatcher.py");
	return;
}

# Options: name, payments, kills (whether dispatchers die), crash (after so many payments), careless.
sub run_payments
{
	my ($node, %run) = @_;
	my $sql = sub { $node->safe_psql('app', $_[0]) };
	my $name = $run{name};
	my $deadline = time + $RUN_SECONDS_MAX;
	prepare($node, \%run);
	@run{qw(killed crashed)} = (0, 0);
	start_server(\%run, '--faults', $FAULTS, '--seed', $name);
	start_dispatcher($node, \%run, $_) for 1 .. $DISPATCHERS;
	start_process('enqueuer', "$run{folder}/enqueuer.log", {},
		'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('app'), '-c', "CALL make_payments('$name', $run{payments})");

	my $next_kill = time + 1;
	my $is_enqueued = 0;
	my $is_done = 0;
	until ($is_done || time > $deadline || length($run{unexpected_ends} // '') > 500)
	{
		for my $process (sort keys %processes)
		{
			my $status = ended($process) // next;
			if ($process eq 'enqueuer' && $status == 0)
			{
				delete $processes{enqueuer};
				$is_enqueued = 1;
				next;
			}
			# The only ends there are: by our SIGKILL, by a death that was drawn, and by the crash of the database server.
			$run{unexpected_ends} .= "$process: $status\n"
			  unless $process =~ /^dispatcher/ ? $status == 9 : $process eq 'server' ? $status == 256 : $run{crashed};
			start_process(@{ $processes{$process}{again} });
		}
		if ($run{kills} && time > $next_kill)
		{
			kill('KILL', $processes{ 'dispatcher ' . (1 + int rand $DISPATCHERS) }{pid});
			$run{killed}++;
			$next_kill = time + 0.2 + rand 0.6;
		}
		if ($run{crash} && !$run{crashed} && keys %{ payment_counts(\%run) } >= $run{crash})
		{
			$node->stop('immediate');
			$node->start;
			$run{crashed} = 1;
		}
		usleep(30_000);
		$is_done = $is_enqueued && $sql->("SELECT NOT EXISTS (SELECT FROM idempotency.outbox WHERE scope = '$name')") eq 't';
	}
	ok($is_done, "$name: the outbox is empty") or diag($sql->("SELECT * FROM idempotency.outbox WHERE scope = '$name' LIMIT 20"));
	until_delivering(map { "dispatcher $_" } 1 .. $DISPATCHERS);
	for my $n (1 .. $DISPATCHERS)
	{
		is(kill_process("dispatcher $n", 'TERM'), 0, "$name: dispatcher $n stops when it is asked to");
	}
	kill_process('server', 'TERM');
	$run{server_deaths} = $processes{server}{starts} - 1;
	%processes = ();
	is($run{unexpected_ends} // '', '', "$name: nothing ended by itself");
	note sprintf('%s: %.1f s, %d dispatchers killed, %d deaths of the payment server, %d crashes of the database server',
		$name, $RUN_SECONDS_MAX - $deadline + time, @run{qw(killed server_deaths crashed)});
	note "$name: $_" for split /\n/, $sql->("SELECT format('%s -> %s, %s: %s', from_state, to_state, COALESCE(reason, '(no reason)'), count(*))
		FROM idempotency.events WHERE scope = '$name' GROUP BY from_state, to_state, reason ORDER BY count(*) DESC");
	return \%run;
}

# The promise. Where it is broken, the whole story of a key.
sub paid_once
{
	my ($node, $run) = @_;
	my $name = $run->{name};
	my $count = payment_counts($run);
	my @due = split /\n/, $node->safe_psql('app', "SELECT run || '/' || id FROM payment WHERE run = '$name' AND amount > 0");
	my @twice = sort grep { $count->{$_} > 1 } keys %$count;
	my %is_due = map { $_ => 1 } @due;
	my @log = server_log($run);

	is($node->safe_psql('app', "SELECT count(*), min(id) FROM payment WHERE run = '$name'"), "$run->{payments}|1",
		"$name: every business row is there");
	is(scalar(@twice), 0, "$name: no payment was made twice");
	is(join(' ', grep { !$count->{$_} } @due), '', "$name: none was left out");
	is(join(' ', grep { !$is_due{$_} } sort keys %$count), '', "$name: and nothing else was paid");
	for my $key (@twice > 3 ? @twice[ 0 .. 2 ] : @twice)
	{
		diag(map { JSON::PP->new->canonical->encode($_) . "\n" } grep { ($_->{key} // '') eq $key } @log);
		diag($node->safe_psql('app', "SELECT * FROM idempotency.events WHERE key = '$key' ORDER BY happened_at"));
	}
	return;
}

# --- 2,000 payments, and everything goes wrong ----------------------------------------------------------------------

srand(20);
my $node = new_node(preload => 1);
my $sql = sub { $node->safe_psql('app', $_[0]) };
my $run = run_payments($node, name => 'all', payments => 2000, kills => 1, crash => 700);

paid_once($node, $run);
is($run->{crashed}, 1, 'the database server crashed once');
cmp_ok($run->{killed}, '>=', 10, 'dispatchers were killed');
cmp_ok($run->{server_deaths}, '>=', 3, 'the payment server died');

is($sql->(q{SELECT count(*) FROM payment p JOIN idempotency.records r ON r.scope = p.run AND r.key = p.run || '/' || p.id
	WHERE p.amount > 0 AND r.state = 'completed' AND (r.result ->> 'amount')::numeric = p.amount AND r.result ->> 'key' = r.key}),
	1980, 'every key is completed, with the answer of its own payment');
is($sql->(q{SELECT count(*), min(r.reason), min(r.result::text) FROM payment p JOIN idempotency.records r ON r.scope = p.run AND r.key = p.run || '/' || p.id
	WHERE p.amount = 0 AND r.state = 'rejected'}), '20|http:422|{"error": "amount must be positive"}', 'what was refused is final, with the answer');
is($sql->(q{SELECT count(*) FROM idempotency.records WHERE scope = 'all'}), 2000, 'there are no other keys');
is($sql->(q{SELECT (SELECT count(*) FROM idempotency.message), (SELECT count(*) FROM idempotency.claim), (SELECT count(*) FROM idempotency.unresolved)}),
	'0|0|0', 'nothing is left open');

# The payments that the server made without the dispatcher hearing of it: each was read before anything else happened.
my %told = map { $_ => 1 } split /\n/, $sql->(q{SELECT DISTINCT key FROM idempotency.events WHERE scope = 'all' AND from_state = 'unknown' AND to_state = 'in_flight'});
my @unheard = grep { $_->{what} eq 'payment' && $_->{fault} =~ /^(error|timeout|death)$/ } server_log($run);
my %read = map { $_->{key} => 1 } grep { ($_->{method} // '') eq 'GET' } server_log($run);
cmp_ok(scalar(@unheard), '>=', 40, 'payments were made that no dispatcher heard of: ' . @unheard);
is(join(' ', map { $_->{key} } grep { !$told{ $_->{key} } } @unheard), '', 'each of them was told to reconcile');
is(join(' ', map { $_->{key} } grep { !$read{ $_->{key} } } @unheard), '', 'and read');
my $ends = sub { $sql->("SELECT count(DISTINCT key) FROM idempotency.events WHERE scope = 'all' AND $_[0]") };
cmp_ok($ends->(q{from_state = 'in_flight' AND to_state = 'completed'}), '>=', 40, 'reads found payments that were made');
cmp_ok($ends->(q{from_state = 'in_flight' AND to_state = 'queued'}), '>=', 20, 'and payments that were not');
cmp_ok($ends->(q{reason = 'lease expired'}), '>=', 1, 'leases ended, of dispatchers that were killed');

my (%last, @overtaken);
for my $entry (grep { $_->{what} eq 'payment' } server_log($run))
{
	my ($n) = $entry->{key} =~ /(\d+)$/;
	next if $n % 4;
	push @overtaken, $n if ($last{ $n % 50 } // 0) > $n;
	$last{ $n % 50 } = $n;
}
is("@overtaken", '', 'payments of one account were made in their order');
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal (?!9:)|panicked/, 'nothing crashed by itself');
$node->stop;

# --- the same with and without the paired read, on a server that does not preload -----------------------------------

$node = new_node(name => 'plain');
$run = run_payments($node, name => 'careful', payments => 300, kills => 1);
paid_once($node, $run);
is($node->safe_psql('app', q{SELECT count(*) FILTER (WHERE state = 'completed'), count(*) FROM idempotency.records WHERE scope = 'careful'}), '297|300',
	'careful: every key is completed but the three that were refused');

$run = run_payments($node, name => 'careless', payments => 300, kills => 1, careless => 1);
my $count = payment_counts($run);
my $twice = grep { $_ > 1 } values %$count;
cmp_ok($twice, '>=', 3, "careless: $twice of 297 payments were made twice");
is($node->safe_psql('app', q{SELECT count(*) FILTER (WHERE state = 'completed') FROM idempotency.records WHERE scope = 'careless'}), 297,
	'careless: and its records look as if all were well');

# --- a dispatcher is asked to stop ----------------------------------------------------------------------------------

$run = { name => 'stopped', payments => 5 };
prepare($node, $run);
$node->safe_psql('app', q{CALL make_payments('stopped', 5)});
start_server($run, '--first', 'timeout');
# Or else the first message would be refused and the next one time out.
within(60, 'the payment server listens', sub { -e "$run->{folder}/port" });
start_dispatcher($node, $run, 1);
within(60, 'the first of five payments is made and not answered', sub { keys %{ payment_counts($run) } == 1 });
is(kill_process('dispatcher 1', 'TERM'), 0, 'the dispatcher stops');
is($node->safe_psql('app', q{SELECT state, reason, tries, count(*), count(lease_expires_at) FROM idempotency.outbox WHERE scope = 'stopped'
	GROUP BY 1, 2, 3 ORDER BY 1}), "queued||0|4|0\nunknown|timeout|1|1|0", 'it said what became of that one, and gave back what it had not begun');
start_dispatcher($node, $run, 1);
until_true($node, 'app', q{SELECT NOT EXISTS (SELECT FROM idempotency.outbox)}, 'the next dispatcher does the rest');
until_delivering('dispatcher 1');
is(kill_process('dispatcher 1', 'TERM'), 0, 'and stops');
kill_process('server', 'TERM');
%processes = ();
paid_once($node, $run);
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
