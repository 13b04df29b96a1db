# A pgbouncer in front of a node, for the time of a test: on a private socket, every client as the node's own user.
#
#   plan skip_all => Pgbouncer->missing if Pgbouncer->missing;
#   my $pool = Pgbouncer->start($node, 'app', default_pool_size => 1);
#   my $session = IdempotencySession->open($node, 'app', connstr => $pool->connstr);
#   $pool->stop;

package Pgbouncer;

use strict;
use warnings FATAL => 'all';

use IdempotencyTools;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($program) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin', '/usr/local/sbin';

# Why there is none here; nothing where there is one.
sub missing { return $program ? undef : 'pgbouncer is not here: apt-get install pgbouncer lets these run'; }

# Its version as a number: 1.21.0 is 12100.
sub version
{
	my ($major, $minor, $patch) = (run_command([ $program, '--version' ]))[0] =~ /(\d+)\.(\d+)\.(\d+)/ or die 'pgbouncer does not tell its version';

	return $major * 10_000 + $minor * 100 + $patch;
}

# Options go into its configuration; transaction mode and three server connections where they do not say otherwise.
sub start
{
	my ($class, $node, $database, %option) = @_;
	my $folder = PostgreSQL::Test::Utils::tempdir_short();
	my $self = bless { folder => $folder, port => PostgreSQL::Test::Cluster::get_free_port(), node => $node, database => $database, out => '', err => '' }, $class;
	my %conf = (
		unix_socket_dir => $folder, listen_port => $self->{port}, auth_type => 'any', pool_mode => 'transaction', default_pool_size => 3,
		max_client_conn => 50, logfile => "$folder/log", pidfile => "$folder/pid", %option);
	my $user = $node->safe_psql($database, 'SELECT current_user');

	append_to_file("$folder/pgbouncer.ini", "[databases]\n$database = host=${\$node->host} port=${\$node->port} dbname=$database user=$user\n"
		  . "[pgbouncer]\n" . join('', map { "$_ = $conf{$_}\n" } sort keys %conf));
	$self->run;
	return $self;
}

sub run
{
	my ($self) = @_;

	$self->{run} = IPC::Run::start([ $program, '-q', "$self->{folder}/pgbouncer.ini" ], '<', \undef, '>', \$self->{out}, '2>', \$self->{err});
	within(60, 'pgbouncer answers', sub {
			$self->{run}->pump_nb if $self->{run}->pumpable;
			return IPC::Run::run([ 'psql', '-XAtq', '-d', $self->connstr, '-c', 'SELECT 1' ], '<', \undef, '>', \my $out, '2>', \my $err);
		}) or diag($self->{err} . slurp_file("$self->{folder}/log"));
	return;
}

# For load_start of IdempotencyTools.
sub where { my ($self) = @_; return (host => $self->{folder}, port => $self->{port}); }

sub connstr { my ($self) = @_; return "host=$self->{folder} port=$self->{port} dbname=$self->{database}"; }

# Ends it: by SIGTERM, or as it is told.
sub stop
{
	my ($self, $signal) = @_;

	return unless $self->{run};
	$self->{run}->signal($signal // 'TERM');
	eval { $self->{run}->finish };
	delete $self->{run};
	unlink "$self->{folder}/pid";
	return;
}

sub DESTROY
{
	my ($self) = @_;
	local ($?, $!, $@);

	$self->stop('KILL');
	return;
}

1;
