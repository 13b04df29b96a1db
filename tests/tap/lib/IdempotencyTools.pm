# What several of the tests in this folder do: wait with a deadline, look at errors, load a server with pgbench, and
# check the invariant after it.

package IdempotencyTools;

use strict;
use warnings FATAL => 'all';
use parent 'Exporter';

use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

our @EXPORT = qw(
  within seconds_of sqlstate_of error_of log_matches log_position connects
  load_start load_stop effect_table effect_statement invariant_holds
);

# Polls until $code gives true, for $seconds at most; one test.
sub within
{
	my ($seconds, $name, $code) = @_;
	my $start = time;

	for (;;)
	{
		if ($code->())
		{
			note sprintf('%s: after %.2f s', $name, time - $start);
			return pass($name);
		}
		last if time - $start > $seconds;
		usleep(30_000);
	}
	return fail("$name (not within $seconds s)");
}

sub seconds_of
{
	my ($code) = @_;
	my $start = time;

	$code->();
	return time - $start;
}

# The first error of a script, in psql's verbose form with DETAIL and HINT; '' where all went well.
sub error_of
{
	my ($node, $database, $sql, %option) = @_;
	my $stderr = '';
	my @parameters = ('-v', 'VERBOSITY=verbose');

	push @parameters, '-U', $option{user} if $option{user};
	$node->psql($database, $sql, stderr => \$stderr, extra_params => \@parameters);
	return $stderr;
}

# Its SQLSTATE; 00000 where all went well.
sub sqlstate_of
{
	my $error = error_of(@_);

	return $error =~ /(?:ERROR|FATAL):  ([0-9A-Z]{5}):/ ? $1 : $error =~ /\S/ ? $error : '00000';
}

sub log_position { return -s $_[0]->logfile; }

# Lines of the server's log, from $offset on, that match.
sub log_matches
{
	my ($node, $regexp, $offset) = @_;

	return grep { /$regexp/ } split /\n/, slurp_file($node->logfile, $offset // 0);
}

sub connects
{
	my ($node, $database) = @_;

	return $node->psql($database // 'postgres', 'SELECT 1', stdout => \my $out, stderr => \my $err) == 0;
}

# --- load -----------------------------------------------------------------------------------------------------------

# The table of effects, without any constraint of its own: what keeps it right is idempotency alone.
sub effect_table
{
	my ($node, $database) = @_;

	$node->safe_psql($database,
		'CREATE TABLE effect (id bigserial, key text NOT NULL, scope text NOT NULL)');
	return;
}

# The effect of one key: its result is the id of the row.
sub effect_statement
{
	my ($key, $scope) = @_;

	return "INSERT INTO effect (key, scope) VALUES ($key, '$scope') RETURNING to_jsonb(id)";
}

# Starts pgbench with these scripts (text => weight) until load_stop. Options: clients, user, port, connections.
sub load_start
{
	my ($node, $database, $scripts, %option) = @_;
	my $folder = PostgreSQL::Test::Utils::tempdir();
	my $load = { out => '', err => '' };
	my @files;
	my $number = 0;

	for my $script (sort keys %$scripts)
	{
		my $file = "$folder/load" . ++$number . '.sql';
		append_to_file($file, $script);
		push @files, '-f', "$file\@$scripts->{$script}";
	}
	my @command = (
		'pgbench', '-n', '-M', $option{protocol} // 'simple', '-T', '600',
		'-c', $option{clients} // 6, '-j', '1', @{ $option{more} // [] }, @files,
		'-h', $option{host} // $node->host, '-p', $option{port} // $node->port,
		'-U', $option{user} // getpwuid($>) // 'postgres', $database);
	$load->{run} = IPC::Run::start(\@command, '<', \undef, '>', \$load->{out}, '2>', \$load->{err});
	return $load;
}

# Ends it and gives back what it wrote to stderr. pgbench ends at once, its sessions where they stand.
sub load_stop
{
	my ($load) = @_;

	$load->{run}->pump_nb;
	$load->{run}->signal('INT') if $load->{run}->pumpable;
	eval { $load->{run}->finish };
	return $load->{err};
}

# No key has two effects, no completed record lacks its effect, no effect its record, and each record tells of its very
# own effect. Three tests.
sub invariant_holds
{
	my ($node, $database, $when) = @_;
	my $problems = sub {
		my ($title, $query) = @_;
		my $found = $node->safe_psql($database, $query);
		is($found, '', "$when: $title");
	};

	$problems->('no key has two effects',
		'SELECT scope, key, count(*) FROM effect GROUP BY scope, key HAVING count(*) > 1 LIMIT 5');
	$problems->('every effect has its record', q{
		SELECT e.scope, e.key, e.id, r.state, r.result FROM effect e
		  LEFT JOIN idempotency.records r USING (scope, key)
		 WHERE r.state IS DISTINCT FROM 'completed' OR r.result <> to_jsonb(e.id) LIMIT 5});
	$problems->('every completed record has its effect', q{
		SELECT r.scope, r.key, r.result FROM idempotency.records r
		 WHERE r.state = 'completed'
		   AND NOT EXISTS (SELECT FROM effect e
		                    WHERE e.scope = r.scope AND e.key = r.key AND to_jsonb(e.id) = r.result) LIMIT 5});
	return;
}

1;
