# One psql that stays connected, for the tests in this folder: statements sent one by one, with or without waiting for
# the answer, and a client or server process that can be killed.
#
#   my $session = IdempotencySession->open($node, 'app', user => 'regress_worker');
#   is($session->query('SELECT 1'), '1');
#   $session->send(q{SELECT idem_once('k', 'SELECT pg_sleep(1)::text::jsonb')});    # does not wait
#   is($session->answer, ...); is($session->sqlstate, '00000');
#   $session->kill_client;

package IdempotencySession;

use strict;
use warnings FATAL => 'all';

use IPC::Run;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(usleep);

my $count = 0;

# Options: user, settings (hash: sent as libpq options), connstr (instead of the node's own), environment (hash).
sub open
{
	my ($class, $node, $database, %option) = @_;
	my $connstr = $option{connstr} // $node->connstr($database);
	my %settings = %{ $option{settings} // {} };

	$connstr .= " user=$option{user}" if $option{user};
	$connstr .= " application_name=$option{application_name}" if $option{application_name};
	$connstr .= " options='" . join(' ', map { "-c $_=$settings{$_}" } sort keys %settings) . "'"
	  if %settings;
	my $self = bless { in => '', out => '', err => '', asked => 0, name => ++$count }, $class;
	$self->{timer} = IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default);
	local @ENV{ keys %{ $option{environment} // {} } } = values %{ $option{environment} // {} };
	$self->{run} = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d', $connstr ],
		'<', \$self->{in}, '>', \$self->{out}, '2>', \$self->{err}, $self->{timer});
	return $self;
}

# Sends statements and returns at once.
sub send
{
	my ($self, $sql) = @_;

	$self->{timer}->start;
	$self->{asked}++;
	$self->{marker} = "answer $self->{name}.$self->{asked} ends";
	$sql .= "\n;" unless $sql =~ /;\s*\z|^\\/;
	$self->{in} .= "$sql\n\\echo '$self->{marker}'\n\\warn '$self->{marker}'\n";
	$self->{run}->pump_nb;
	return;
}

# Has the answer come?
sub done
{
	my ($self) = @_;

	$self->{run}->pump_nb if $self->{run}->pumpable;
	return $self->{out} =~ /\Q$self->{marker}\E\n/ && $self->{err} =~ /\Q$self->{marker}\E\n/;
}

# Waits for the answer to what was sent last: its rows. Errors are in `error` and `sqlstate`.
sub answer
{
	my ($self) = @_;

	until ($self->done)
	{
		last unless $self->{run}->pumpable;
		usleep(5_000);
	}
	my ($out, $error) = @$self{qw(out err)};
	@$self{qw(out err)} = ('', '');
	s/\n?\Q$self->{marker}\E\n// for $out, $error;
	chomp($out);
	$self->{last_error} = $error;
	return $out;
}

sub query
{
	my ($self, $sql) = @_;

	$self->send($sql);
	return $self->answer;
}

# What the last answer wrote to stderr: message, DETAIL, HINT.
sub error { return $_[0]{last_error}; }

# SQLSTATE of the last answer's first error; 00000 where there was none.
sub sqlstate
{
	my ($self) = @_;

	return $self->{last_error} =~ /(?:ERROR|FATAL|PANIC):  ([0-9A-Z]{5}):/ ? $1
	  : $self->{last_error} =~ /server closed the connection|connection to server was lost/ ? '08006'
	  : '00000';
}

sub backend_pid
{
	my ($self) = @_;

	$self->{backend_pid} //= $self->query('SELECT pg_backend_pid()');
	return $self->{backend_pid};
}

# The client process dies by SIGKILL: it says goodbye to nobody.
sub kill_client
{
	my ($self) = @_;

	$self->{run}->signal('KILL');
	$self->forget;
	return;
}

# For a session whose client or server is gone.
sub forget
{
	my ($self) = @_;

	eval { $self->{run}->finish };
	return;
}

sub quit
{
	my ($self) = @_;

	$self->{in} .= "\\q\n" if $self->{run}->pumpable;
	$self->forget;
	return;
}

1;
