# The connection dies at COMMIT: before it is sent, with it, or with the server's answer on its way. The client cannot know which,
# tries again with the same key, and once the server crashes in between.
#
# Claims, and what would turn them red:
# - However the connection dies, an operation has one effect and one record, and what a client is told is that effect's: a record
#   that commits apart from the effect, or a retry that is taken for a new operation.
# - Every client gets there: a key that a dead connection keeps.
# - The same clients with a new key for each attempt have effects twice: the cuts are real, and this test can fail.
#
# The seed of the cuts is in the test's output; COMMIT_LOST_SEED sets it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencyTools;
use IO::Select;
use IO::Socket::UNIX;
use IPC::Run;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

use constant { CLIENTS => 4, KEYS => 500, KEYS_ANEW => 60 };

my $seed = $ENV{COMMIT_LOST_SEED} // time;
note("seed: $seed");

my $node = IdempotencyNode->start(preload => 1, conf => [ "log_statement = none", "max_connections = 40", "idempotency.naptime = '200ms'" ]);
my $sql = sub { $node->safe_psql('app', $_[0]) };
my $folder = PostgreSQL::Test::Utils::tempdir_short();
my $fates = "$folder/fates";

effect_table($node, 'app');
$sql->(q{
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
		RETURN concat_ws(' ', CASE WHEN c.decision IN ('execute', 'replay') THEN 'told' ELSE c.decision END, c.result);
	END
	$$});

# --- a proxy that cuts ----------------------------------------------------------------------------------------------

# Passes on what comes between clients and the server, and cuts three connections of four at their COMMIT.
sub proxy
{
	my ($path) = @_;
	my $listener = IO::Socket::UNIX->new(Local => $path, Listen => 50) or die "no socket: $!";
	my $target = $node->host . '/.s.PGSQL.' . $node->port;
	my $select = IO::Select->new($listener);
	my (%other, %is_client, %swallows);
	my @kinds = ('before', 'sent', 'answered', 'none');

	srand($seed);
	my $cut = sub {
		for my $socket (grep { defined } $_[0], delete $other{ $_[0] })
		{
			delete @other{ grep { $other{$_} == $socket } keys %other };
			delete $_->{$socket} for \%is_client, \%swallows;
			$select->remove($socket);
			close $socket;
		}
	};
	for (;;)
	{
		for my $ready ($select->can_read)
		{
			if ($ready == $listener)
			{
				my $client = $listener->accept or next;
				my $server = IO::Socket::UNIX->new(Peer => $target);
				# The server is down just now.
				close($client), next unless $server;
				@other{ $client, $server } = ($server, $client);
				$is_client{$client} = 1;
				$select->add($client, $server);
				next;
			}
			next unless $other{$ready};
			my $read = sysread($ready, my $data, 65536);
			if (!$read || delete $swallows{$ready}) { $cut->($ready); next; }
			my $fate = 'none';
			if ($is_client{$ready} && $data =~ /\AQ....COMMIT/s)
			{
				$fate = $kinds[ int(rand(@kinds)) ];
				append_to_file($fates, "$fate\n");
			}
			my $to = $other{$ready};
			if ($fate eq 'before') { $cut->($ready); next; }
			local $SIG{PIPE} = 'IGNORE';
			if (!defined syswrite($to, $data)) { $cut->($ready); next; }
			if ($fate eq 'sent') { $cut->($ready); }
			elsif ($fate eq 'answered') { $swallows{$to} = 1; }
		}
	}
}

# Runs in a process of its own; none of its exits is ours.
sub in_background
{
	my ($code) = @_;
	my $pid = fork // die "no fork: $!";

	if ($pid == 0)
	{
		eval { $code->(); 1 } or print STDERR $@;
		POSIX::_exit(0);
	}
	return $pid;
}

# --- clients --------------------------------------------------------------------------------------------------------

# One attempt; what the client was told, or nothing where it does not know.
sub attempt
{
	my ($key) = @_;
	my ($out, $err);
	my $ok = IPC::Run::run([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', "host=$folder port=1 dbname=app user=" . getpwuid($>),
			'-c', 'BEGIN', '-c', "SELECT do_once('$key')", '-c', 'COMMIT' ], '<', \undef, '>', \$out, '2>', \$err);

	return $ok && $out =~ /^told (\d+)$/m ? $1 : undef;
}

# Each client has its part of the keys, and tries each until it knows. $name_of makes the key of an attempt.
sub work
{
	my ($client, $keys, $name_of) = @_;

	for my $n (grep { $_ % CLIENTS == $client } 1 .. $keys)
	{
		my $told;
		for my $try (1 .. 1000)
		{
			last if defined($told = attempt($name_of->($n, $try)));
			usleep(20_000);
		}
		append_to_file("$folder/told.$client", "$n " . ($told // 'nothing') . "\n");
	}
	return;
}

my $proxy = in_background(sub { proxy("$folder/.s.PGSQL.1") });
within(30, 'the proxy passes on', sub { defined attempt('first') });

# --- the same key for each attempt ----------------------------------------------------------------------------------

my @clients = map { my $client = $_; in_background(sub { work($client, KEYS, sub { "op $_[0]" }) }) } 0 .. CLIENTS - 1;
until_true($node, 'app', 'SELECT count(*) >= 150 FROM effect', 'the clients work');
$node->stop('immediate');
$node->start;
waitpid($_, 0) for @clients;

my %told = map { split ' ' } map { split /\n/, slurp_file("$folder/told.$_") } 0 .. CLIENTS - 1;
is(scalar(keys %told), KEYS, 'every operation was tried');
is(join(' ', grep { $told{$_} eq 'nothing' } sort keys %told), '', 'and every client got to know');
invariant_holds($node, 'app', 'connections cut at COMMIT');
is($sql->(q{SELECT count(*), count(DISTINCT key) FROM effect WHERE key LIKE 'op %'}), KEYS . '|' . KEYS, 'each operation has one effect');
my %effect = map { split /\|/ } split /\n/, $sql->(q{SELECT split_part(key, ' ', 2), id FROM effect WHERE key LIKE 'op %'});
is_deeply(\%told, \%effect, 'what each client was told is that effect');
my %count;
$count{$_}++ for split /\n/, slurp_file($fates);
cmp_ok($count{$_} // 0, '>=', 50, "connections were cut ($_): $count{$_}") for 'before', 'sent', 'answered';
until_true($node, 'app', q{SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory'}, 'no key is locked');

# --- a new key for each attempt ---------------------------------------------------------------------------------------

unlink "$folder/told.$_" for 0 .. CLIENTS - 1;
@clients = map { my $client = $_; in_background(sub { work($client, KEYS_ANEW, sub { "anew $_[0] $_[1]" }) }) } 0 .. CLIENTS - 1;
waitpid($_, 0) for @clients;
cmp_ok($sql->(q{SELECT count(*) FROM effect WHERE key LIKE 'anew %'}), '>', KEYS_ANEW, 'with a new key for each attempt there are effects twice');

kill 'KILL', $proxy;
waitpid($proxy, 0);
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
