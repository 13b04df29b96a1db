# Clients that work through keys of their own, one after the other, and write down what they are told: for tests in which the
# server they work on is lost, copied or set back, and which then hold another server against what was said.
#
#   my $clients = ToldClients->start($node, 'app', names => [ 'a', 'b' ], settings => { synchronous_commit => 'on' });
#   $clients->until_completed(100, 'the clients work');
#   $node->stop('immediate');
#   my $told = $clients->end;
#
# What is told, in the order in which it came, is a list of { client, kind, key, value } in $told->{all}:
#   claimed     a leased claim was acknowledged, with its fence
#   paid        the client had its effect outside the database: this line is the effect
#   completed   the end was acknowledged, with its result
# and the same by key in $told->{claimed}, {paid} and {completed}.
#
# A key is of one of three kinds: `once ...` is an idem_once; `local ...` a leased claim whose effect commits with its
# completion; `outside ...` a leased claim, an effect outside, a completion. Effects inside are rows of the table `effect`.
#
# `records_of`, `claims_of` and `agree` look at a server afterwards.

package ToldClients;

use strict;
use warnings FATAL => 'all';
use parent 'Exporter';

use IdempotencyTools;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(records_of claims_of once_again agree);

# The scope of a key, by its kind.
my %SCOPE = (once => 'default', local => 'local', outside => 'default');
my @KINDS = ('once', 'local', 'outside');

sub scope_of { return $SCOPE{ (split ' ', $_[0])[0] }; }

# Needs the table of effects and a scope `local` of that effect kind. Options: names, settings (of each session), from, keys.
sub start
{
	my ($class, $node, $database, %option) = @_;
	my $self = bless { node => $node, database => $database, folder => PostgreSQL::Test::Utils::tempdir(), clients => [] }, $class;

	for my $name (@{ $option{names} })
	{
		my %client = (name => $name, file => "$self->{folder}/told.$name", script => "$self->{folder}/script.$name", err => '');
		my $options = join ' ', map { "-c $_=$option{settings}{$_}" } sort keys %{ $option{settings} // {} };
		my $from = $option{from} // 1;

		append_to_file($client{script}, join '', map { steps("$KINDS[$_ % @KINDS] $name $_") } $from .. $from + ($option{keys} // 20_000) - 1);
		append_to_file($client{file}, '');
		$client{run} = IPC::Run::start([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-f', $client{script},
				'-d', $node->connstr($database) . " application_name=told-$name options='$options'" ],
			'<', \undef, '>>', $client{file}, '2>', \$client{err});
		push @{ $self->{clients} }, \%client;
	}
	return $self;
}

# What a client does for one key, as a script of psql.
sub steps
{
	my ($key) = @_;
	my ($kind, $scope) = ((split ' ', $key)[0], scope_of($key));
	my $effect = effect_statement("'$key'", $scope);

	return "SELECT 'completed', '$key', result FROM idem_once('$key', \$\$$effect\$\$);\n" if $kind eq 'once';
	my $claim = "SELECT decision = 'execute' AS mine, decision, fence FROM idem_claim('$key', scope => '$scope', lease => '1 h') \\gset\n\\if :mine\n\\echo claimed|$key|:fence\n";
	return $kind eq 'local'
	  ? "${claim}BEGIN;\n$effect \\gset\nSELECT idem_complete('$key', :'to_jsonb', '$scope', :fence) AS done \\gset\nCOMMIT;\nSELECT 'completed', '$key', :'done';\n\\endif\n"
	  : "$claim\\echo paid|$key|1\nSELECT 'completed', '$key', idem_complete('$key', to_jsonb('receipt of $key'::text), '$scope', :fence);\n\\endif\n";
}

# What was told so far. psql writes out a row at once, and other lines with the next row or at its end.
sub told
{
	my ($self) = @_;
	my %told = (all => [], claimed => {}, paid => {}, completed => {});

	for my $client (@{ $self->{clients} })
	{
		for (grep { /\|.*\|/ } split /(?<=\n)/, slurp_file($client->{file}))
		{
			my ($kind, $key, $value) = /^(\w+)\|([^|]*)\|(.*)\n\z/ or next;
			push @{ $told{all} }, { client => $client->{name}, kind => $kind, key => $key, value => $value };
			$told{$kind}{$key} = $value;
		}
	}
	return \%told;
}

# Each client has been told of so many ends, counted from what $told says.
sub until_completed
{
	my ($self, $count, $name, $told) = @_;
	my $ends = sub { my %ends; $ends{ $_->{client} }++ for grep { $_->{kind} eq 'completed' } @{ $_[0]{all} }; \%ends };
	my $before = $told ? $ends->($told) : {};

	return within($PostgreSQL::Test::Utils::timeout_default, $name, sub {
			my $now = $ends->($self->told);
			for (@{ $self->{clients} }) { $_->{run}->pump_nb if $_->{run}->pumpable }
			return !grep { ($now->{ $_->{name} } // 0) - ($before->{ $_->{name} } // 0) < $count } @{ $self->{clients} };
		});
}

# Takes their connections away, where the server still lives.
sub cut
{
	my ($self) = @_;

	$self->{node}->safe_psql($self->{database}, q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'told-%'});
	return;
}

# Waits for the end of the clients, whose server or connection is gone, and gives back all that they were told.
sub end
{
	my ($self) = @_;

	for my $client (@{ $self->{clients} })
	{
		eval { $client->{run}->finish };
		like($client->{err}, qr/server closed the connection|terminating connection|connection to server was lost/, "client $client->{name} worked until its server was gone");
		unlike($client->{err}, qr/ERROR/, "client $client->{name} met no error");
	}
	return $self->told;
}

# --- a server that is looked at -------------------------------------------------------------------------------------

# What is on record of the clients' keys: key => "state|fence|result".
sub records_of
{
	my ($node, $database) = @_;

	return { map { split /=/, $_, 2 } split /\n/, $node->safe_psql($database,
			q{SELECT key || '=' || concat_ws('|', state, fence, COALESCE(result::text, '')) FROM idempotency.records WHERE key ~ '^(once|local|outside) '}) };
}

# What the next claim of each of these keys is told: key => [ decision, fence ]. Nothing stays of it.
sub claims_of
{
	my ($node, $database, @keys) = @_;
	my %answers;

	# No transaction may claim more than 2,000.
	while (my @part = splice @keys, 0, 1000)
	{
		my $list = join ', ', map { "('$_', '" . scope_of($_) . "')" } @part;
		for (split /\n/, $node->safe_psql($database, "BEGIN; SELECT k, c.decision, c.fence FROM (VALUES $list) AS v (k, s), LATERAL idem_claim(k, scope => s, lease => '1 h', wait => '0') AS c; ROLLBACK"))
		{
			my ($key, @answer) = split /\|/;
			$answers{$key} = \@answer;
		}
	}
	return \%answers;
}

# Does each of these keys with idem_once: how many that were, and how many of them were told what had been done.
sub once_again
{
	my ($sql, @keys) = @_;
	my ($all, $replayed) = (0, 0);

	# No transaction may claim more than 2,000.
	while (my @part = splice @keys, 0, 1000)
	{
		my $list = join ', ', map { "('$_')" } @part;
		my ($n, $r) = split /\|/, $sql->("SELECT count(*), count(*) FILTER (WHERE o.replayed) FROM (VALUES $list) AS k (key), LATERAL idem_once(k.key, format(\$\$" . effect_statement('%L', 'default') . "\$\$, k.key)) AS o");
		$all += $n;
		$replayed += $r;
	}
	return "$all|$replayed";
}

# Effect inside and record are there together, or neither; one test. Effects outside are not looked at.
sub agree
{
	my ($node, $database, $when) = @_;

	return is($node->safe_psql($database, q{
		SELECT 'twice', key FROM effect GROUP BY scope, key HAVING count(*) > 1
		UNION ALL SELECT 'no record', e.key FROM effect e LEFT JOIN idempotency.records r USING (scope, key)
		 WHERE r.state IS DISTINCT FROM 'completed' OR r.result <> to_jsonb(e.id)
		UNION ALL SELECT 'no effect', r.key FROM idempotency.records r
		 WHERE r.state = 'completed' AND r.key ~ '^(once|local) ' AND NOT EXISTS (SELECT FROM effect e WHERE e.scope = r.scope AND e.key = r.key AND to_jsonb(e.id) = r.result) LIMIT 10}),
		'', "$when: each effect has its record, each record its effect, no key has two");
}

1;
