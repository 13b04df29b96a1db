# A server whose clock a test sets, while it runs: libfaketime (Debian package faketime) in front of the whole server.
#
#   use IdempotencyClock;
#   plan skip_all => IdempotencyClock->missing if IdempotencyClock->missing;
#   my $clock = IdempotencyClock->new;
#   my $node = $clock->start($node);                      # a node of IdempotencyNode->make, not yet started
#   $clock->set($epoch); $clock->step(-3600);             # at once, for all its processes
#
# Before PostgreSQL 16 the postmaster starts background workers in a signal handler that interrupts its select(), and
# libfaketime, which answers for select() as well, leaves the clock of whatever is forked there alone. So there a library of a
# few lines, made with the C compiler that building the extension needs anyway, takes select() away from libfaketime.
# The monotonic clock is left as it is: naps and deadlines are as long as ever.

package IdempotencyClock;

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Time::HiRes ();

my ($library) = grep { -e } $ENV{LIBFAKETIME} // (), glob('/usr/lib/*/faketime/libfaketime.so.1'),
  '/usr/lib/faketime/libfaketime.so.1';

# Why there is no such clock here; nothing where there is one.
sub missing
{
	return 'libfaketime is not here: apt-get install faketime lets these run' unless $library;
	return 'no C compiler is here, which these need' unless grep { -x "$_/cc" } split /:/, $ENV{PATH};
	return;
}

sub new
{
	my ($class) = @_;
	my $folder = PostgreSQL::Test::Utils::tempdir();
	my $self = bless { file => "$folder/offset", offset => 0 }, $class;

	append_to_file("$folder/select.c", <<'END');
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/select.h>

int
select(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *t)
{
	static int (*of_libc) (int, fd_set *, fd_set *, fd_set *, struct timeval *);

	if (!of_libc)
		*(void **) &of_libc = dlsym(dlopen("libc.so.6", RTLD_LAZY), "select");
	return of_libc(n, r, w, e, t);
}
END
	system_or_bail('cc', '-shared', '-fPIC', '-o', "$folder/select.so", "$folder/select.c", '-ldl');
	$self->{preload} = "$folder/select.so $library";
	$self->write;
	return $self;
}

sub write
{
	my ($self) = @_;
	my $new = "$self->{file}.new";

	unlink $new;
	append_to_file($new, sprintf("%+.3f\n", $self->{offset}));
	rename $new, $self->{file} or die "could not set the clock: $!";
	return;
}

# Starts a node under this clock; for the server alone, not for its clients.
sub start
{
	my ($self, $node) = @_;
	local @ENV{qw(LD_PRELOAD FAKETIME_TIMESTAMP_FILE FAKETIME_NO_CACHE FAKETIME_DONT_FAKE_MONOTONIC DONT_FAKE_MONOTONIC)} =
	  ($self->{preload}, $self->{file}, 1, 1, 1);

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
