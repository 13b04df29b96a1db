# A server whose clock a test sets, while it runs: tests/clock/clock.c in front of the whole server.
#
#   use IdempotencyClock;
#   plan skip_all => IdempotencyClock->missing if IdempotencyClock->missing;
#   my $clock = IdempotencyClock->new;
#   my $node = $clock->start($node);                      # a node of IdempotencyNode->make, not yet started
#   $clock->set($epoch); $clock->step(-3600);             # at once, for all its processes
#
# The monotonic clock is left as it is: naps and deadlines are as long as ever.

package IdempotencyClock;

use strict;
use warnings FATAL => 'all';

use File::Basename qw(dirname);
use PostgreSQL::Test::Utils;
use Time::HiRes ();

my $source = dirname(__FILE__) . '/clock.c';

# Why there is no such clock here; nothing where there is one.
sub missing
{
	return 'no C compiler is here: apt-get install gcc libc6-dev lets these run' unless grep { -x "$_/cc" } split /:/, $ENV{PATH};
	return;
}

sub new
{
	my ($class) = @_;
	my $folder = PostgreSQL::Test::Utils::tempdir();
	my $self = bless { file => "$folder/offset", preload => "$folder/clock.so", offset => 0 }, $class;

	system_or_bail('cc', '-O2', '-shared', '-fPIC', '-o', $self->{preload}, $source);
	$self->write;
	return $self;
}

sub write
{
	my ($self) = @_;
	my $new = "$self->{file}.new";

	unlink $new;
	append_to_file($new, sprintf("%d\n", $self->{offset} * 1_000_000));
	rename $new, $self->{file} or die "could not set the clock: $!";
	return;
}

# Starts a node under this clock; for the server alone, not for its clients.
sub start
{
	my ($self, $node) = @_;
	local @ENV{qw(LD_PRELOAD CLOCK_FILE)} = ($self->{preload}, $self->{file});

	$node->start;
	return $node;
}

# What the server's clock shows.
sub now { return Time::HiRes::time() + $_[0]{offset}; }

# It shows this time (seconds since 1970) from now on, and goes on from there.
sub set
{
	my ($self, $epoch) = @_;

	$self->{offset} = $epoch - Time::HiRes::time();
	$self->write;
	return;
}

# It jumps by so many seconds.
sub step
{
	my ($self, $seconds) = @_;

	$self->{offset} += $seconds;
	$self->write;
	return;
}

1;
