# Many clients, few keys, in each isolation level: whatever the order of their arrival, one effect for each key and one answer
# for everybody.
#
# Claims, and what would turn them red:
# - 32 clients on 50 keys: no client gets an error, a unique violation least of all, and nobody's transaction is lost because
#   another one came first: a claim that inserts and hopes, or that raises where it should answer.
# - In REPEATABLE READ and SERIALIZABLE nothing but 40001 and 40P01 comes up, and who tries again gets there: an answer from a
#   snapshot that is too old, an error of another kind.
# - In SERIALIZABLE clients with keys of their own fail each other never, in tables that are full and analysed: predicate locks
#   on pages or tables of ours.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencyTools;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdempotencyNode->start(conf => [ "log_statement = none", "log_min_error_statement = panic", "max_connections = 50", "deadlock_timeout = '50ms'", "fsync = off" ]);
my $sql = sub { $node->safe_psql('app', $_[0]) };
my $folder = PostgreSQL::Test::Utils::tempdir();

# What a client does: claims, has its effect and completes; says what it was told. The effect has no constraint of its own.
$sql->(q{
	CREATE TABLE effect (id bigserial, key text NOT NULL, scope text NOT NULL);
	CREATE TABLE told (key text, decision text, result jsonb);
	CREATE FUNCTION do_once(k text) RETURNS text LANGUAGE plpgsql AS $$
	DECLARE
		c record;
		n bigint;
	BEGIN
		SELECT * INTO c FROM idem_claim(k, to_jsonb(k));
		IF c.decision = 'execute' THEN
			INSERT INTO effect (key, scope) VALUES (k, 'default') RETURNING id INTO n;
			c.result := idem_complete(k, to_jsonb(n));
		END IF;
		INSERT INTO told VALUES (k, c.decision, c.result);
		RETURN c.decision;
	END
	$$});

# Runs a script by so many clients, so often each; gives what pgbench said.
sub load
{
	my ($name, $script, $level, @more) = @_;
	my $file = "$folder/" . $name =~ tr/a-z0-9/_/cr . '.sql';
	my ($out, $err);

	append_to_file($file, $script);
	local $ENV{PGOPTIONS} = '-c default_transaction_isolation=' . ($level =~ s/ /\\ /gr) . ' -c idempotency.wait=60s';
	ok(IPC::Run::run([ 'pgbench', '-n', '-j', '2', @more, '-f', $file, '-h', $node->host, '-p', $node->port, '-U', getpwuid($>) // 'postgres', 'app' ],
			'<', \undef, '>', \$out, '2>', \$err), "$name: every client comes to its end") or diag($err);
	is($err =~ s/^pgbench(?: \(.*?\))?: (?:pghost|nclients|starting).*\n//mgr, '', "$name: and has nothing to complain of");
	note($out);
	return $out;
}

sub is_well
{
	my ($name, $keys, $calls, $log, @expected) = @_;
	my %states = map { $_ => 1 } map { / ([0-9A-Z]{5}) (?:ERROR|FATAL):/ } log_matches($node, qr/ (ERROR|FATAL):/, $log);

	delete $states{$_} for @expected;
	is(join(' ', sort keys %states), '', "$name: no error in the log" . (@expected ? " but @expected" : ''));
	invariant_holds($node, 'app', $name);
	is($sql->('SELECT count(*), count(DISTINCT key) FROM effect'), "$keys|$keys", "$name: $keys keys, $keys effects");
	is($sql->(q{SELECT count(*), count(*) FILTER (WHERE decision = 'execute'), count(*) FILTER (WHERE decision NOT IN ('execute', 'replay')) FROM told}), "$calls|$keys|0",
		"$name: each of $calls was told to execute, or got the answer");
	is($sql->(q{SELECT count(*) FROM told AS t JOIN effect AS e USING (key) WHERE t.result IS DISTINCT FROM to_jsonb(e.id)}), 0, "$name: and all the same one");
	$sql->('TRUNCATE effect, told, idempotency.claim, idempotency.outcome');
	return;
}

$node->append_conf('postgresql.conf', "log_line_prefix = '%m [%p] %e '");
$node->reload;
until_true($node, 'postgres', q{SELECT current_setting('log_line_prefix') LIKE '%e '}, 'the log has SQLSTATEs');

# --- few keys -------------------------------------------------------------------------------------------------------

# Something before the claim, so that its transaction has a snapshot; something after it, so that it must be usable.
my $few = "\\set k random(1, 50)\nBEGIN;\nSELECT count(*) FROM told WHERE false;\nSELECT do_once('few ' || :k);\nSELECT 1;\nCOMMIT;\n";

for my $level ('read committed', 'repeatable read', 'serializable')
{
	my $log = log_position($node);
	my $strict = $level ne 'read committed';
	my @more = $strict ? ('--max-tries=0', '--latency-limit=120000') : ();
	my ($clients, $calls) = (32, $strict ? 60 : 300);
	my $out = load("few keys, $level", $few, $level, '-c', $clients, '-t', $calls, @more);
	like($out, qr/number of failed transactions: 0 \(/, "few keys, $level: no transaction was given up") ;
	is_well("few keys, $level", 50, $clients * $calls, $log, $strict ? ('40001', '40P01') : ());
}

# --- keys of their own ----------------------------------------------------------------------------------------------

$sql->(q{
	INSERT INTO idempotency.outcome (digest, finished_at, fence, scope_id, attempt, args_rule, state, key)
	SELECT gen_random_uuid(), now(), n, 0, 1, 0, 'c', 'old-' || n FROM generate_series(1, 100000) AS n;
	ANALYZE idempotency.outcome, idempotency.claim});
{
	my $log = log_position($node);
	# Effects and what was told in the order of arrival: no reads of tables that others write.
	my $out = load('own keys, serializable', "\\set k random(1, 1000000000)\nBEGIN;\nSELECT 1;\nSELECT do_once(:client_id || ' ' || :k);\nCOMMIT;\n", 'serializable', '-c', 16, '-t', 100, '--max-tries=1');

	like($out, qr/number of failed transactions: 0 \(/, 'own keys, serializable: nobody failed anybody');
	$sql->(q{DELETE FROM idempotency.outcome WHERE key LIKE 'old-%'});
	is_well('own keys, serializable', 1600, 1600, $log);
}

server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
