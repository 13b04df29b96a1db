# One scrape of prometheus postgres_exporter (Debian package prometheus-postgres-exporter) with our query file, and what
# our alert rules make of it.
#
#   my $scrape = Scrape->of($query_file, 'host=... dbname=app');
#   is($scrape->value('idempotency_claims_total', scope => 'payments'), 3);
#   is_deeply([ sort keys %{ $scrape->alerts($rules) } ], [...]);
#
# The exporter is started anew for each scrape, since it keeps what some queries said.

package Scrape;

use strict;
use warnings FATAL => 'all';

use HTTP::Tiny;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time usleep);

# What text, type and values of each metric, and what the exporter said.
sub of
{
	my ($class, $query_file, $source, @arguments) = @_;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my ($in, $out, $log) = ('', '', '');
	local $ENV{DATA_SOURCE_NAME} = $source;
	my $exporter = IPC::Run::start([ 'prometheus-postgres-exporter', "--web.listen-address=127.0.0.1:$port",
			"--extend.query-path=$query_file", @arguments ], '<', \$in, '>', \$out, '2>', \$log);
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;
	my $answer;

	do
	{
		usleep(50_000);
		$exporter->pump_nb;
		$answer = HTTP::Tiny->new(timeout => 60)->get("http://127.0.0.1:$port/metrics");
	} until $answer->{success} || $answer->{status} != 599 || time > $until;
	$exporter->signal('TERM');
	$exporter->finish;

	my $self = bless { status => $answer->{status}, text => $answer->{content}, log => $log, type => {}, samples => [] }, $class;
	$self->read_sample($_) for split /\n/, $answer->{content};
	return $self;
}

sub read_sample
{
	my ($self, $line) = @_;

	if ($line =~ /^# TYPE (\S+) (\S+)$/) { $self->{type}{$1} = $2; }
	elsif ($line =~ /^([a-zA-Z_:]\w*)(?:\{(.*)\})? (\S+)$/)
	{
		my ($name, $labels, $value) = ($1, $2 // '', $3);
		my %label = $labels =~ /(\w+)="((?:[^"\\]|\\.)*)"/g;
		s/\\(.)/$1 eq 'n' ? "\n" : $1/ge for values %label;
		push @{ $self->{samples} }, { name => $name, label => \%label, value => $value };
	}
	return;
}

# The samples of a metric that have these labels.
sub series
{
	my ($self, $name, %label) = @_;
	return grep {
		my $sample = $_;
		$sample->{name} eq $name && !grep { ($sample->{label}{$_} // '') ne $label{$_} } keys %label
	} @{ $self->{samples} };
}

# The number of the one that has them; undef where there is none, or more than one.
sub value
{
	my @series = series(@_);
	return @series == 1 ? $series[0]{value} + 0 : undef;
}

# Names of our metrics.
sub names
{
	my ($self) = @_;
	my %name = map { $_->{name} => 1 } grep { $_->{name} =~ /^idempotency_/ } @{ $self->{samples} };
	return sort keys %name;
}

# Which alerts would be pending or firing: name => [scopes, or databases, or findings]. Understands what our rules use,
# and dies of anything else: comparisons with a number or with a multiple of another metric, `and`, `or`, absent(), and
# one metric `unless` another of the same server and database.
sub alerts
{
	my ($self, $rules) = @_;
	my %alert;

	for my $rule (@$rules)
	{
		my %hit;
		for my $alternative (split / or /, $rule->{expr})
		{
			my @sets = map { { $self->holds($_) } } split / and /, $alternative;
			for my $labels (keys %{ $sets[0] })
			{
				$hit{ $sets[0]{$labels} } = 1 unless grep { !exists $_->{$labels} } @sets;
			}
		}
		$alert{ $rule->{alert} } = [ sort keys %hit ] if %hit;
	}
	return \%alert;
}

# For which label sets a comparison holds: all labels as one text => what to call them.
sub holds
{
	my ($self, $term) = @_;
	my $labels = sub { join ',', map { "$_=$_[0]{$_}" } sort keys %{ $_[0] } };
	my $called = sub { $_[0]{finding} // $_[0]{scope} // $_[0]{datname} };

	if ($term =~ /^absent\((\w+)\)$/)
	{
		return $self->series($1) ? () : ('' => $1);
	}
	if ($term =~ /^(\w+) unless on \(server, datname\) (\w+)$/)
	{
		my ($there, $missing) = ($1, $2);
		return map { $labels->($_->{label}) => $called->($_->{label}) }
		  grep { my $at = $_->{label}; !$self->series($missing, map { $_ => $at->{$_} } qw(server datname)) } $self->series($there);
	}
	my ($name, $selector, $operator, $factor, $other) =
	  $term =~ /^(\w+)(?:\{(\w+="[^"]*")\})? (==|>|<) (?:(\d+) \* )?(\w+)$/ or die "not understood: $term";
	my %hit;
	for my $sample ($self->series($name, defined $selector ? $selector =~ /(\w+)="([^"]*)"/ : ()))
	{
		my $right = $other =~ /^\d+$/ ? $other : $self->value($other, %{ $sample->{label} });
		next unless defined $right;
		$right *= $factor // 1;
		my $order = $sample->{value} <=> $right // next;    # NaN
		$hit{ $labels->($sample->{label}) } = $called->($sample->{label})
		  if $operator eq '==' ? $order == 0 : $operator eq '>' ? $order > 0 : $order < 0;
	}
	return %hit;
}

1;
