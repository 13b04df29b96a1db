# Runs the documentation: every ```sql block of README.md, docs/external-effects.md and docs/reference.md, and on a server
# that preloads the library of docs/windows.md and docs/operations.md, in order, in one psql session and one database per
# document, as a reader would who types it. A block that raises an error it does not announce fails.
#
#   <!-- error ID001 -->   before a block: exactly these errors, in this order, are its point
#   <!-- output -->        before a ```text block: exactly what psql printed for the block above
#   <!-- message -->       before a ```text block: exactly the error of the block above
#
# What should not run is in another kind of block. Every test that ARCHITECTURE.md, docs/guarantees.md or tests/CASES.md names must be there. The reference is
# also held against the catalogue: every public function with all its parameters and columns, every view with its
# columns, every setting. The built-in kinds of failure stand in external-effects.md with the verdict that they have;
# operations.md has a section on each finding of the doctor and each alert, and a line on each column of the statistics.
# Links between the documents lead to headings that are there.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use PostgreSQL::Test::Utils;
use Test::More;

my $documents = "$FindBin::RealBin/documents";

# The blocks of a document: line, sql, the SQLSTATEs that it announces, the output that it shows.
sub blocks_of
{
	my ($text) = @_;
	my (@blocks, $kind, @body, $line, $mark);
	my $number = 0;

	for (split /\n/, $text)
	{
		$number++;
		if (defined $kind)
		{
			if ($_ !~ /^```\s*$/) { push @body, $_; next; }
			my $body = join("\n", @body);
			if ($kind eq 'sql')
			{
				my @errors = ($mark // '') =~ /^error (.*)$/ ? split(' ', $1) : ();
				push @blocks, { line => $line, sql => $body, errors => \@errors };
			}
			elsif (($mark // '') =~ /^(output|message)$/) { $blocks[-1]->{$1} = $body; }
			($kind, $mark) = (undef, undef);
		}
		elsif (/^```(\w*)\s*$/) { ($kind, $line, @body) = ($1, $number); }
		elsif (/^<!-- (.*) -->$/) { $mark = $1; }
		elsif (/\S/) { $mark = undef; }
	}
	return @blocks;
}

# What the $number-th part of a stream is, between its markers.
sub part_of
{
	my ($stream, $number) = @_;
	return $stream =~ /^=== begin $number\n(.*?)^=== end $number$/ms ? $1 : undef;
}

# An error as psql shows it without VERBOSITY.
sub terse
{
	my ($complaints) = @_;
	$complaints =~ s/^psql:.*?: (?=ERROR:)//mg;
	$complaints =~ s/^(ERROR:  )\w{5}: /$1/mg;
	$complaints =~ s/^LOCATION:.*\n//mg;
	return $complaints;
}

# psql ends lines of a table with blanks, editors do not.
sub trimmed
{
	my ($text) = @_;
	$text =~ s/[ \t]+$//mg;
	$text =~ s/\A\n+|\s+\z//g;
	return $text;
}

sub run_document
{
	my ($node, $name) = @_;
	my $database = $name =~ s/\W/_/gr;
	my @blocks = blocks_of(slurp_file("$documents/$name"));
	my $script = "\\pset format aligned\n\\pset tuples_only off\n\\set VERBOSITY verbose\n";
	my ($stdout, $stderr);

	cmp_ok(scalar @blocks, '>=', 10, "$name has blocks to run");
	for my $at (0 .. $#blocks)
	{
		# The ROLLBACK after the marker must find no transaction open: it warns then.
		$script .= "\\echo === begin $at\n\\warn === begin $at\n$blocks[$at]->{sql}\n"
		  . "\\echo === end $at\n\\warn === end $at\n"
		  . "\\warn === begin after $at\nROLLBACK;\n\\warn === end after $at\n";
	}
	$node->safe_psql('postgres', "CREATE DATABASE \"$database\"");
	$node->psql($database, $script, on_error_stop => 0, stdout => \$stdout, stderr => \$stderr);

	for my $at (0 .. $#blocks)
	{
		my $block = $blocks[$at];
		my $where = "$name line $block->{line}";
		my $complaints = part_of($stderr, $at) // '';

		isnt(part_of($stdout, $at), undef, "$where: ran");
		is(join(' ', $complaints =~ /(?:ERROR|FATAL|PANIC):\s+(\w{5}):/g),
			join(' ', @{ $block->{errors} }),
			"$where: no error but those announced")
		  or diag($complaints);
		like(part_of($stderr, "after $at") // '', qr/25P01/, "$where: leaves no transaction open");
		is(trimmed(part_of($stdout, $at) // ''), trimmed($block->{output}), "$where: prints what is shown")
		  if defined $block->{output};
		is(trimmed(terse($complaints)), trimmed($block->{message}), "$where: raises what is shown")
		  if defined $block->{message};
	}
	return $database;
}

# The section of the reference under the heading that names this object.
sub section_of
{
	my ($reference, $name) = @_;
	return $reference =~ /^(#+) `?\Q$name\E\b.*?\n(.*?)(?=^#{1,3} |\z)/ms ? $2 : undef;
}

sub reference_is_complete
{
	my ($node, $database) = @_;
	my $reference = slurp_file("$documents/reference.md");
	my $functions = $node->safe_psql($database, q{
		SELECT p.proname, array_to_string(p.proargnames, ' ')
		  FROM pg_proc AS p JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
		 WHERE p.proname LIKE 'idem\_%' ORDER BY 1});
	my $views = $node->safe_psql($database, q{
		SELECT c.oid::regclass, string_agg(a.attname, ' ' ORDER BY a.attnum)
		  FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
		 WHERE c.relkind = 'v' AND c.relnamespace = 'idempotency'::regnamespace GROUP BY c.oid ORDER BY 1});
	my $settings = $node->safe_psql($database, q{
		LOAD 'idempotency'; SELECT name FROM pg_settings WHERE name LIKE 'idempotency.%' ORDER BY 1});

	for (split /\n/, "$functions\n$views")
	{
		my ($name, $parts) = split /\|/;
		my $section = section_of($reference, $name);
		ok(defined $section, "the reference has a section for $name") or next;
		is(join(' ', grep { $section !~ /\b\Q$_\E\b/ } split(' ', $parts // '')),
			'', "the section for $name names all its parameters and columns");
	}
	for (split /\n/, $settings)
	{
		like($reference, qr/`\Q$_\E`/, "the reference names the setting $_");
		like(slurp_file("$documents/README.md"), qr/`\Q$_\E`/, "README.md names the setting $_");
	}
	return;
}

# The table of external-effects.md: each built-in kind of failure is in a row with its verdict, and no row names another.
sub failure_kinds_are_documented
{
	my ($node, $database) = @_;
	my ($section) = slurp_file("$documents/external-effects.md") =~ /^## What a failure says\n(.*?)^## /ms;
	my (%said, %verdict);

	for (grep { /^\| (?!kind)/ } split /\n/, $section)
	{
		my (undef, $kinds, $verdict) = split /\s*\|\s*/;
		my $prefix = $kinds =~ s/^(HTTP|SQLSTATE) // ? lc($1) . ':' : '';
		$said{ $prefix . $_ } = $verdict for $kinds =~ /\w+/g;
	}
	for (split /\n/, $node->safe_psql($database, q{DELETE FROM idempotency.failure_kind; SELECT kind, verdict FROM idempotency.failure_kinds}))
	{
		my ($kind, $verdict) = split /\|/;
		$verdict{$kind} = $verdict;
	}
	# A code whose class says the same may be left out of the table.
	for my $kind (sort keys %verdict)
	{
		my $class = $kind =~ /^(sqlstate:\w\w)\w{3}$/ ? $1 : $kind;
		is($said{$kind} // $said{$class}, $verdict{$kind}, "external-effects.md says what $kind means");
	}
	is($verdict{$_}, $said{$_}, "external-effects.md names a kind of failure that is built in: $_") for sort keys %said;
	return;
}

# How headings are linked to: lower case, punctuation gone, blanks as hyphens.
sub anchors_of
{
	my ($text) = @_;
	my @headings = $text =~ /^#+ (.*)$/mg;
	my %anchors = map { (lc s/[^\w\- ]//gr) =~ s/ /-/gr => 1 } @headings;

	return \%anchors;
}

# What idem_doctor() can find, what the alert rules point to, what is shown of the server: operations.md says what to do.
sub operations_are_documented
{
	my ($node, $database) = @_;
	my $operations = slurp_file("$documents/operations.md");
	my ($runbooks) = $operations =~ /^## Runbooks\n(.*)\z/ms;
	my $source = $node->safe_psql($database, q{SELECT prosrc FROM pg_proc WHERE proname = 'idem_doctor'});
	my @findings = $source =~ /'(?:notice|warning|critical)',\s+'(\w+)'/g;
	push @findings, $source =~ /THEN '(window_\w+)' ELSE '(window_\w+)'/;

	cmp_ok(scalar @findings, '>=', 25, 'the findings of the doctor were found in its source');
	like($runbooks, qr/`\Q$_\E`/, "the runbooks name the finding $_") for @findings;
	# monitoring/prometheus points here.
	my $anchors = anchors_of($operations);
	ok($anchors->{$_}, "operations.md has a section $_")
	  for qw(expired-alive unknown-too-long escalations sweep-stalled window-near window-too-short pruning-behind doctor-critical not-preloaded);
	my $shown = $node->safe_psql($database, q{
		SELECT attname FROM pg_attribute WHERE attrelid IN ('idempotency.stats'::regclass, 'idempotency.sweeps'::regclass) AND attnum > 0
		UNION SELECT unnest(proargnames) FROM pg_proc WHERE proname IN ('idem_status', 'idem_doctor')
		UNION SELECT name FROM pg_settings WHERE name LIKE 'idempotency.%' ORDER BY 1});
	like($operations, qr/`\Q$_\E`/, "operations.md says what $_ is") for split /\n/, $shown;
	return;
}

# [text](other.md#anchor) and [text](#anchor), where the other is one of these documents too.
sub links_lead_somewhere
{
	my %text = map { s{.*/}{}r => slurp_file($_) } glob("$documents/*.md");
	my $links = 0;

	for my $from (sort keys %text)
	{
		for ($text{$from} =~ /\]\(([^)\s]*#[^)\s]+)\)/g)
		{
			my ($path, $anchor) = split /#/;
			my $to = $path eq '' ? $from : $path =~ s{.*/}{}r;
			next unless exists $text{$to};
			$links++;
			ok(anchors_of($text{$to})->{$anchor}, "$from: its link to $path#$anchor leads to a heading");
		}
	}
	cmp_ok($links, '>=', 30, 'links were looked at');
	return;
}

# `regress/x`, `isolation/x` and `tap/x` in the table of claims are tests that exist.
sub named_tests_exist
{
	my %path = (
		regress => "$documents/regress/%s.sql",
		isolation => "$documents/isolation/%s.spec",
		tap => "$FindBin::RealBin/%s.pl");
	my $least = 20;

	for my $document ('ARCHITECTURE.md', 'windows.md')
	{
		my @named = slurp_file("$documents/$document") =~ m{`((?:regress|isolation|tap)/\w+)`}g;

		cmp_ok(scalar @named, '>=', $least, "$document names tests");
		for (@named)
		{
			my ($suite, $test) = split m{/};
			ok(-e sprintf($path{$suite}, $test), "$document names a test that exists: $_");
		}
		$least = 1;
	}
	return;
}

# docs/guarantees.md: rows that are numbered through, each promise with a test that exists, and each thing that is not promised with one,
# or with the word that there is none. Conditions that are named are in their table.
sub guarantees_have_tests
{
	my %path = (
		regress => "$documents/regress/%s.sql",
		isolation => "$documents/isolation/%s.spec",
		tap => "$FindBin::RealBin/%s.pl",
		core => "$documents/core/%s.rs");
	my $text = slurp_file("$documents/guarantees.md");
	my @rows = $text =~ /^\| ([CGN]\d+ \|.*) \|$/mg;
	# The names of the model's cases are made of those of its configurations.
	my $model = slurp_file("$documents/model/run.sh");
	my %model = map { $_ => 1 } $model =~ /^breaks (\S+)/mg, map { ("$_-safe", "$_-progress") } $model =~ /^(\S+) -D/mg;
	my (%last, %conditions);

	for (@rows)
	{
		my ($number, @cells) = split /\s*\|\s*/;
		my ($part, $count) = $number =~ /^(\w)(\d+)$/;
		is($count, ++$last{$part}, "guarantees.md: $number is in its place");
		if ($part eq 'C') { $conditions{$number} = 1; next; }
		is(scalar @cells, 3, "$number: has its cells");
		if ($part eq 'G') { ok($conditions{$_}, "$number: $_ is a condition") for $cells[1] =~ /\bC\d+/g; }
		else { ok(length $cells[1] > 10, "$number: says what happens then"); }
		my $shown = $cells[2] // '';
		ok($shown =~ /^none/, "$number: says that there is no test"), next if $part eq 'N' && $shown !~ /`/;
		for (split /, /, $shown)
		{
			my ($suite, $test) = m{^`(\w+)(?:/([\w-]+))?`$};
			ok(defined $suite && ($suite eq 'chaos' ? !defined $test && -e "$documents/chaos/run.py"
				  : $suite eq 'model' ? $model{$test} : $path{$suite} && -e sprintf($path{$suite}, $test)), "$number: names a test that exists: $_");
		}
	}
	cmp_ok($last{G}, '>=', 20, 'guarantees.md has promises');
	cmp_ok($last{N}, '>=', 20, 'and says what is not promised');
	return;
}

# tests/CASES.md: a row for each of the thirty cases, each with tests that exist and a result.
sub cases_have_tests
{
	my %path = (
		regress => "$documents/regress/%s.sql",
		isolation => "$documents/isolation/%s.spec",
		tap => "$FindBin::RealBin/%s.pl",
		core => "$documents/core/%s.rs");
	my %rows = map { /^\| (S\d\d) \|/ ? ($1 => $_) : () } split /\n/, slurp_file("$documents/CASES.md");

	is(join(' ', sort keys %rows), join(' ', map { sprintf 'S%02d', $_ } 1 .. 30), 'CASES.md has a row for each case');
	for my $case (sort keys %rows)
	{
		my (undef, undef, $fails, undef, $tests, $result) = split /\s*\|\s*/, $rows{$case};
		my @named = split /, /, $tests;

		cmp_ok(length($fails) * length($result // ''), '>', 0, "$case: says what fails and what came out");
		cmp_ok(scalar @named, '>=', 1, "$case: names a test");
		for (@named)
		{
			my ($suite, $test) = m{^`(\w+)/(\w+)`$};
			ok(defined $suite && $path{$suite} && -e sprintf($path{$suite}, $test), "$case: names a test that exists: $_");
		}
	}
	return;
}

my $log_prefix = "log_line_prefix = '%m [%p] %q%a %e '";
my $node = IdempotencyNode->start(extension => 0, conf => [$log_prefix]);
# One whose doctor finds nothing, and whose worker does not come between two blocks.
my $preloaded = IdempotencyNode->start(name => 'preloaded', preload => 1, extension => 0,
	conf => [ $log_prefix, 'fsync = on', "idempotency.naptime = '1h'" ]);

run_document($node, 'README.md');
failure_kinds_are_documented($node, run_document($node, 'external-effects.md'));
reference_is_complete($node, run_document($node, 'reference.md'));
run_document($preloaded, 'windows.md');
operations_are_documented($preloaded, run_document($preloaded, 'operations.md'));
links_lead_somewhere();
named_tests_exist();
guarantees_have_tests();
cases_have_tests();
server_log_lacks($_, qr/ XX000|PANIC:|terminated by signal/, 'nothing crashed') for $node, $preloaded;

done_testing();
