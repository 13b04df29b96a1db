# A headless Chromium with a new profile, for tests of pages: what a person would see at a given width, by day or night,
# and whether a page asked for anything from elsewhere.
#
#   my $browser = Browser->open;
#   $browser->view($file, width => 360, dark => 1);
#   is($browser->evaluate('document.title'), 'Idempotency report');
#   $browser->screenshot("$folder/narrow.png");
#   is_deeply([ $browser->close ], []);    # what was requested since it was opened
#
# Speaks the DevTools protocol over a pipe, so it needs no port. Scripts given to `evaluate` run whatever the page's
# policy forbids. Every wait has a deadline. The browser ends with its object.

package Browser;

use strict;
use warnings FATAL => 'all';

use Fcntl qw(F_DUPFD);
use File::Temp ();
use IO::Select;
use JSON::PP ();
use MIME::Base64 qw(decode_base64);
use POSIX ();
use Time::HiRes qw(time usleep);

my $SECONDS_MAX = 60;
my $JSON = JSON::PP->new->utf8->allow_nonref;

# What Chromium would do by itself on the network; and its renderers share memory in files, as /dev/shm may be small.
my @QUIET = qw(
  --headless=new --no-first-run --no-default-browser-check --disable-background-networking --disable-component-update
  --disable-sync --disable-default-apps --disable-extensions --disable-domain-reliability --disable-dev-shm-usage
  --disable-client-side-phishing-detection --disable-gpu --metrics-recording-only --hide-scrollbars --no-proxy-server
);
# Whatever is asked for, by a page or by the browser itself, stays on this machine.
push @QUIET, '--disable-features=OptimizationHints,MediaRouter,Translate', '--host-resolver-rules=MAP * 127.0.0.1';

# The program, or undef where there is none.
sub program
{
	my ($found) = grep { -x } map { ("$_/chromium", "$_/chromium-browser", "$_/google-chrome") } split(/:/, $ENV{PATH});
	return $found;
}

# Chromium's own sandbox is left out only where it cannot be had: as root, and where a container forbids namespaces.
sub open
{
	my ($class) = @_;

	return $class->start('--no-sandbox') if $> == 0;
	return eval { $class->start } // $class->start('--no-sandbox');
}

sub start
{
	my ($class, @more) = @_;
	my $program = program() // die 'there is no chromium: apt-get install chromium';
	my $folder = File::Temp->newdir('browser.XXXXXX', TMPDIR => 1);
	my $self = bless { folder => $folder, net_log => "$folder/net.json", count => 0, in => '', events => [] }, $class;
	my @command = ($program, @QUIET, @more, '--remote-debugging-pipe', "--user-data-dir=$folder/profile", "--log-net-log=$self->{net_log}", 'about:blank');

	pipe(my $command_read, $self->{to}) && pipe($self->{from}, my $answer_write) || die "pipe: $!";
	$self->{pid} = fork() // die "fork: $!";
	if ($self->{pid} == 0)
	{
		POSIX::setpgid(0, 0);
		$ENV{HOME} = "$folder";
		# By way of higher numbers, as one of these may already be 3 or 4.
		my ($commands, $answers) = map { fcntl($_, F_DUPFD, 10) } $command_read, $answer_write;
		CORE::open(STDIN, '<', '/dev/null') && CORE::open(STDOUT, '>', "$folder/log") && CORE::open(STDERR, '>&', \*STDOUT)
		  && POSIX::dup2($commands, 3) && POSIX::dup2($answers, 4) && exec(@command);
		POSIX::_exit(127);
	}
	close($command_read);
	close($answer_write);
	$self->{to}->autoflush(1);
	my ($page) = grep { $_->{type} eq 'page' } @{ $self->ask('Target.getTargets')->{targetInfos} };
	$self->{session} = $self->ask('Target.attachToTarget', targetId => $page->{targetId}, flatten => JSON::PP::true)->{sessionId};
	$self->ask($_) for qw(Page.enable Runtime.enable Log.enable);
	return $self;
}

# Shows a file. Options: width (1280), height (800), dark (0), print (0).
sub view
{
	my ($self, $file, %option) = @_;

	$self->ask('Emulation.setDeviceMetricsOverride', width => 0 + ($option{width} // 1280), height => 0 + ($option{height} // 800),
		deviceScaleFactor => 1, mobile => JSON::PP::false);
	$self->ask('Emulation.setEmulatedMedia', media => $option{print} ? 'print' : 'screen',
		features => [ { name => 'prefers-color-scheme', value => $option{dark} ? 'dark' : 'light' } ]);
	$self->{events} = [];
	my $error = $self->ask('Page.navigate', url => "file://$file")->{errorText};
	die "$file: $error" if $error;
	$self->pump until grep { $_->{method} eq 'Page.loadEventFired' } @{ $self->{events} };
	# Two frames later it is laid out and painted.
	$self->evaluate('new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))');
	return $self;
}

# What an expression gives, as Perl data; a promise is awaited.
sub evaluate
{
	my ($self, $script) = @_;
	my $answer = $self->ask('Runtime.evaluate', expression => $script, returnByValue => JSON::PP::true, awaitPromise => JSON::PP::true);

	die "the script failed: " . ($answer->{exceptionDetails}{exception}{description} // 'unknown') if $answer->{exceptionDetails};
	return $answer->{result}{value};
}

# The document as the browser understood it.
sub dom { return $_[0]->evaluate('document.documentElement.outerHTML'); }

# A picture of the whole page; with `window => 1`, only of what the window shows.
sub screenshot
{
	my ($self, $file, %option) = @_;
	my $whole = $option{window} ? JSON::PP::false : JSON::PP::true;

	CORE::open(my $handle, '>:raw', $file) or die "$file: $!";
	print $handle decode_base64($self->ask('Page.captureScreenshot', format => 'png', captureBeyondViewport => $whole)->{data});
	close($handle);
	return;
}

# What the browser complained of since the page was viewed: breaches of its policy, scripts that failed.
sub complaints
{
	my ($self) = @_;

	return map { $_->{params}{entry}{text} // $_->{params}{exceptionDetails}{text} }
	  grep { $_->{method} =~ /^(?:Log\.entryAdded|Runtime\.exceptionThrown)$/ } @{ $self->{events} };
}

# Ends the browser. Gives back what the pages that it viewed asked of the network, by themselves or by what they loaded:
# URLs, and hosts to which a connection was prepared. What the browser asked for on its own account does not count.
sub close
{
	my ($self) = @_;

	$self->send('Browser.close', {});
	my $deadline = time + $SECONDS_MAX;
	while (waitpid($self->{pid}, POSIX::WNOHANG()) == 0)
	{
		die 'the browser does not end' if time > $deadline;
		usleep(20_000);
	}
	delete $self->{pid};
	CORE::open(my $handle, '<:raw', $self->{net_log}) or die "$self->{net_log}: $!";
	my $log = $JSON->decode(do { local $/ = undef; <$handle> });
	my $types = $log->{constants}{logEventTypes};
	my %requested;
	for my $event (@{ $log->{events} })
	{
		my $parameters = $event->{params} // next;
		my $asked = $event->{type} == $types->{URL_REQUEST_START_JOB} ? $parameters->{url}
		  : $event->{type} == $types->{HOST_RESOLVER_MANAGER_REQUEST} ? $parameters->{host} : undef;
		my $for = $parameters->{network_isolation_key} // $parameters->{network_anonymization_key} // '';
		$requested{$asked} = 1 if defined $asked && $for =~ /^file:/ && $asked !~ /^(?:file|data|about|blob):/;
	}
	return sort keys %requested;
}

# --- the protocol ---------------------------------------------------------------------------------------------------

sub send
{
	my ($self, $method, $parameters) = @_;
	my %message = (id => ++$self->{count}, method => $method, params => $parameters);

	local $SIG{PIPE} = 'IGNORE';
	$message{sessionId} = $self->{session} if $self->{session};
	print { $self->{to} } $JSON->encode(\%message), "\0" or die 'the browser is gone';
	return $self->{count};
}

# One command and its answer; events that come meanwhile are kept.
sub ask
{
	my ($self, $method, %parameters) = @_;
	my $id = $self->send($method, \%parameters);

	$self->{deadline} = time + $SECONDS_MAX;
	$self->pump until $self->{answers}{$id};
	my $answer = delete $self->{answers}{$id};
	die "$method: $answer->{error}{message}" if $answer->{error};
	return $answer->{result};
}

sub pump
{
	my ($self) = @_;

	die 'the browser does not answer' unless IO::Select->new($self->{from})->can_read($self->{deadline} - time);
	sysread($self->{from}, $self->{in}, 1 << 20, length $self->{in}) or die 'the browser ended: ' . $self->log;
	while ($self->{in} =~ s/^([^\0]*)\0//)
	{
		my $message = $JSON->decode($1);
		if ($message->{id}) { $self->{answers}{ $message->{id} } = $message; }
		else { push @{ $self->{events} }, $message; }
	}
	return;
}

# The end of what the browser wrote.
sub log
{
	my ($self) = @_;

	CORE::open(my $handle, '<', "$self->{folder}/log") or return '';
	my $text = do { local $/ = undef; <$handle> } // '';
	return substr($text, -1_000);
}

sub DESTROY
{
	my ($self) = @_;
	local ($?, $!, $@);

	return unless $self->{pid};
	kill('KILL', -$self->{pid});
	waitpid($self->{pid}, 0);
	return;
}

1;
