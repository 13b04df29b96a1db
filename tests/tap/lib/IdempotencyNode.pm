# A PostgreSQL::Test::Cluster node with the extension, for the tests in this folder.
#
#   use IdempotencyNode;
#   my $node = IdempotencyNode->start(preload => 1, conf => ["idempotency.naptime = '1s'"]);
#   is($node->safe_psql('app', 'SELECT 1'), '1');
#
# `start` makes the node, starts it, and creates the database `app` with the extension in it. The node stops by itself
# when the test ends. `until_true` and `until_gone` poll with a deadline: no test sleeps for a fixed time.

package IdempotencyNode;

use strict;
use warnings FATAL => 'all';
use parent 'Exporter';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT = qw(until_true until_gone server_log_lacks);

# Options: name, preload (0), conf (lines), extension (1), database (app), allows_streaming (0), has_archiving (0).
sub start
{
	my ($class, %option) = @_;
	my $node = $class->make(%option);

	$node->start;
	my $database = $option{database} // 'app';
	# Whatever limits a test gives to everybody.
	$node->safe_psql('postgres', "SET statement_timeout = 0;\nCREATE DATABASE $database");
	$node->safe_psql($database, "SET statement_timeout = 0;\nCREATE EXTENSION idempotency")
	  if $option{extension} // 1;
	return $node;
}

# The same, not yet started and without a database: for standbys, archives and other special cases.
sub make
{
	my ($class, %option) = @_;
	my $node = PostgreSQL::Test::Cluster->new($option{name} // 'main');

	# Whatever the locale of whoever runs the tests.
	$node->init(allows_streaming => $option{allows_streaming} // 0, has_archiving => $option{has_archiving} // 0, extra => [ '--encoding=UTF8', '--locale=C' ]);
	$node->append_conf('postgresql.conf', "max_prepared_transactions = 20");
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idempotency'")
	  if $option{preload};
	$node->append_conf('postgresql.conf', $_) for @{ $option{conf} // [] };
	return $node;
}

# Polls until the query in $database answers 't'; a failed test, not a hang, when it never does.
sub until_true
{
	my ($node, $database, $query, $name) = @_;
	return ok($node->poll_query_until($database, $query), $name);
}

# Polls until the process is gone.
sub until_gone
{
	my ($pid, $name) = @_;
	my $polls_max = 10 * $PostgreSQL::Test::Utils::timeout_default;

	for (1 .. $polls_max)
	{
		return pass($name) unless kill(0, $pid);
		usleep(100_000);
	}
	return fail($name);
}

# Nothing in the server's log, from $offset on, matches.
sub server_log_lacks
{
	my ($node, $regexp, $name, $offset) = @_;
	return unlike(slurp_file($node->logfile, $offset // 0), $regexp, $name);
}

1;
