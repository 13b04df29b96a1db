# Arguments for naughty_arguments.pl, as SQL expressions on one line: by type, what breaks programs; by the name of the
# parameter, what its function is made for.
#
# An expression that PostgreSQL itself refuses, before any function of ours is called, stands as [expression, SQLSTATE...].
# A type that a signature has and that is not here is a failed test: write its values below.

package NaughtyValues;

use strict;
use warnings FATAL => 'all';
use parent 'Exporter';

our @EXPORT = qw(literal pick naughty_types naughty_value sensible_value huge_values);

sub pick { return $_[ int rand @_ ]; }

# A string as an SQL literal in printable ASCII, whatever it holds.
sub literal
{
	my ($string) = @_;

	$string =~ s{([^ -&(-\[\]-~])}{ $1 eq "'" ? "''" : $1 eq "\\" ? "\\\\" : sprintf(ord $1 < 0x10000 ? '\\u%04x' : '\\U%08x', ord $1) }ge;
	return "E'$string'";
}

# Written for this test; of the kinds that lists of troublesome input have.
my @strings = (
	# nothing, and what looks like it
	'', ' ', '   ', "\t", "\n", "\r\n", "\x{0b}\x{0c}", "\x{a0}", "\x{3000}", "\x{200b}", "\x{feff}", "\x{2060}\x{200c}\x{200d}", "\x{ad}", "\x{180e}",
	# words that mean something somewhere
	'NULL', 'null', 'undefined', 'nil', 'None', 'true', 'false', 'NaN', 'Infinity', '-Infinity', 'default', 'DEFAULT', '-', '*', '.', '..', '/', '//', '\\', '0', '-1', '00',
	'1e309', '0x7fffffff', '9223372036854775808', '2147483648', '1,000', "\x{0661}\x{0662}\x{0663}", "\x{ff11}",
	# control characters, and what ends lines
	(map { chr } 1 .. 8), "\x{1b}[31mred\x{1b}[0m", "\x{7f}", "\x{80}", "\x{85}", "\x{9f}", "a\rb", "a\nb", "\x{2028}", "\x{2029}",
	# the edges of Unicode
	"\x{d7ff}", "\x{e000}", "\x{fffd}", "\x{fffe}", "\x{ffff}", "\x{10000}", "\x{1ffff}", "\x{10ffff}", "\x{fdd0}",
	# directions, and characters that are several
	"\x{5e9}\x{5dc}\x{5d5}\x{5dd}", "\x{645}\x{631}\x{62d}\x{628}\x{627}", "\x{202e}txt.exe", "\x{2066}x\x{2069}", "\x{200f}\x{200e}", "e\x{301}", "\x{e9}", "\x{1112}\x{1161}\x{11ab}", "\x{d55c}",
	'a' . "\x{300}" x 300, "\x{1f469}\x{200d}\x{1f467}\x{200d}\x{1f466}", "\x{1f1e9}\x{1f1ea}", "\x{1f44d}\x{1f3ff}", "\x{2764}\x{fe0f}", "\x{1f4a9}", "\x{fdfd}",
	# letters whose case or form is not simple
	"\x{130}", "\x{131}", "\x{df}", "\x{1e9e}", "\x{17f}", "\x{3c2}", "\x{fb03}", "\x{2126}", "\x{1d54f}", "\x{1c5}", "stra\x{df}e", "\x{430}\x{440}\x{440}\x{435}",
	# quotes, and what ends a statement
	"'", '"', '`', "''", '""', "\\'", "'; DROP TABLE credit; --", "' OR '1'='1", '$1', '$$', '$x$', '--', '/*', '*/', ';', ');', "x'); SELECT 1; --", 'a"b', "Robert'); --", '{', '}', '{}', '{,}', '{{', '[', '[]', '(', ',',
	'"\\ud800"', '\\ud800', '\\u0000', "\\x00", '%00', "\\0", '\\n', '&#0;',
	# templates and formats
	'%s', '%n%n%n%n', '%x%x%x', '%1$s', '{0}', '{}{}', '${HOME}', '#{1}', '{{7*7}}', '<script>alert(1)</script>', '</title><img src=x onerror=alert(1)>', '&lt;', '$(id)', '`id`', '|id', '../../etc/passwd', 'file:///etc/passwd', "\@import", '=1+1',
	# names
	'pg_catalog', 'pg_temp', 'pg_catalog.now', 'public.nowhere', 'a.b', 'a.b.c', 'a.b.c.d', '.a', 'a.', 'a..b', '"a', 'a"', '"a"."b"', 'f()', 'f(jsonb)', 'now()', 'Upper', '"Upper"', 'select', 'user', 'pg_toast.x', 'x' x 63, 'x' x 64, '"' . 'x' x 70 . '"', '1abc', 'a b',
	# keys and kinds with parts
	'http:', 'http:4', 'http:4xx', 'http:99999', 'http:-1', 'http: 4 2 9', 'HTTP_503', 'sqlstate:', 'sqlstate:4', 'sqlstate:40001x', ':', '::', '_-: ', 'run/', '/run', 'run/op/0123456789abcdef0123456789abcdef',
	'018f0000-0000-7000-8000-000000000000', 'ffffffff-ffff-7fff-bfff-ffffffffffff', '00000000-0000-7000-8000-000000000000', '018F00000000700080000000000000000', '01ARZ3NDEKTSV4RRFFQ69G5FAV', '7ZZZZZZZZZZZZZZZZZZZZZZZZZ', '8ZZZZZZZZZZZZZZZZZZZZZZZZZ', '00000000000000000000000000',
	# pointers, and JSON that nearly is
	'/', '/a', '/a/*/b', '/~', '/~0~1', '/~2', '//', '/0', '/-1', '/*', '/a' x 33, '[1', '{"a":}', 'nan', "\x{201c}a\x{201d}");

my @long = map { "repeat($_)" } ("'x', 254", "'x', 255", "'x', 256", "'x', 1023", "'x', 1024", "'x', 1025", "E'\\u00e9', 127", "E'\\u00e9', 512", "E'\\u00e9', 513", "E'\\U0001f4a9', 256", "E'\\U0001f4a9', 257",
	"'x', 8192", "'x', 8193", "E'\\u0001', 5000", "'''', 2000", "'x', 70000", "'x', 1048576", "'x', 2000000", "'/a', 30000", "'a.', 20000", "'[', 50000", "'(', 20000", "'http:', 30000");

my @moments = map { "timestamptz '$_'" } ('-infinity', 'infinity', '4714-11-24 00:00:00+00 BC', '294276-12-31 23:59:59.999999+00', 'epoch', '2000-01-01 00:00:00+00', '1969-12-31 23:59:59.999999+00',
	'2024-02-29 12:00:00+14', '9999-12-31', '0001-01-01 BC', 'now', 'tomorrow', 'yesterday');
my @spans = map { "interval '$_'" } ('0', '-0', '1 microsecond', '-1 microsecond', '999 microseconds', '1 millisecond', '1.5 milliseconds', '1 second', '-1 second', '1 day', '24 hours', '1 month', '-1 month', '1 month -30 days', '-1 month 31 days',
	'1 month -1 day -1 second', '100 years', '100 years 1 day', '36525 days', '1000000 years', '178000000 years', '-178000000 years', '178956970 years 7 months', '-178956970 years -8 months', '2147483647 days', '-2147483648 days',
	'2147483647 months 2147483647 days', '2562047788 hours', '-2562047788 hours', '9223372036854 seconds', '2147483647 months 2147483647 days 9223372036854 seconds', '-2147483648 months -2147483648 days -9223372036854 seconds', '2147483647 months -2147483648 days');

my @jsons = (
	(map { "jsonb '$_'" } ('null', 'true', 'false', '0', '-0', '0.0', '1e-7', '1e22', '1e-400', '9007199254740993', '-9223372036854775809', '123456789012345678901234567890.123456789', '""', '" "', '[]', '{}', '[[]]', '[null]', '{"": null}', '{"": {"": {}}}',
		'{"a": 1, "a": 2}', '"\ud83d\ude00"', '"\u0001\u001f"', '{"\ud83d\ude00": 1, "\ufb33": 2}', '[1, "1", true, null, {}, []]', '{"a": {"*": [1]}, "~": 0, "/": 1}', '{"amount": 5}')),
	"to_jsonb('NaN'::numeric)", "to_jsonb('Infinity'::float8)", 'to_jsonb(1e131071)', 'to_jsonb(1e-16383)', "to_jsonb(repeat('x', 70000))", "to_jsonb(repeat(E'\\u0001', 20000))", "to_jsonb(repeat(E'\\U0001f4a9', 20000))",
	"(repeat('[', 3000) || repeat(']', 3000))::jsonb", q<(repeat('{"a":', 2000) || '1' || repeat('}', 2000))::jsonb>, '(SELECT jsonb_agg(g) FROM generate_series(1, 20000) AS g)', '(SELECT jsonb_object_agg(g, g) FROM generate_series(1, 20000) AS g)',
	'(SELECT jsonb_agg(1e131071) FROM generate_series(1, 50))', 'jsonb_build_array(1e131071, 1e-16383)', "to_jsonb(now())", 'to_jsonb(ROW(1, NULL))', q<jsonb_build_object('a', repeat('y', 200000))>,
	[ q(jsonb '"\ud800"'), '22P02' ], [ q(jsonb '"\u0000"'), '22P05' ], [ q(jsonb '{'), '22P02' ], [ q(jsonb ''), '22P02' ], [ q<(repeat('[', 1000000))::jsonb>, '54001' ], [ q(jsonb '1e200000'), '22003' ]);

my @integers = qw(0 1 -1 2 3 10 63 64 65 255 256 1000 1001 65535 65536 1000000 1000001 2147483647 (-2147483648));
my @arrays = ("'{}'", "'{NULL}'", "'{{a,b},{c,d}}'", "'{{{a}}}'", "'[5:6]={a,b}'", "'[-2147483648:-2147483647]={a,b}'", "'{a,NULL,b}'", "'{a,a,a}'", q('{"",""}'));

# Anything at all, for parameters of a polymorphic type. Their common type with a default of text must be found.
my @things = ("'x'", 'NULL', 'NULL::text', '1', '1.5', "'{}'::jsonb", "'null'::json", "'{\"a\": 1}'::json", "'<a/>'::text", "E'\\\\xdeadbeef'::bytea", 'true', 'now()', "interval '1 month'", 'point(1, 2)', "ROW(1, 'a', NULL)", 'ROW()', 'ROW(ROW(1), ARRAY[1])',
	'ARRAY[1, 2, NULL]', "'{}'::int[]", "ARRAY[[1, 2], [3, 4]]", "int4range(1, 5)", "'empty'::numrange", "'{[1,2)}'::int4multirange", "'pg_class'::regclass", "0::oid", "'-'::regrole", "'a'::\"char\"", "'x'::name", "1::money", "'192.168.0.1'::inet", "B'101'",
	"'a b'::tsvector", "gen_random_uuid()", '(SELECT c FROM pg_class AS c LIMIT 1)', "(SELECT t FROM public.thing AS t LIMIT 1)", "'ok'::public.mood", "(-1)::public.positive_or_not", "'NaN'::float8", "'1e1000'::numeric", "repeat('x', 9000)", "repeat(E'\\u0001', 100000)",
	"array_fill(1, ARRAY[100000])", "NULL::int", "NULL::public.thing", "pg_snapshot '1:1:'", "pg_lsn '0/0'", "xid '0'",
	[ "pg_sleep(0)", qw(42804 42883 0A000 42P18) ], [ "'x'::cstring", qw(42804 42883 0A000 42846) ], [ "E'\\xff'", '22021' ]);

# Types of parameters: code that gives one value.
my %naughty = (
	text => sub { my $rand = rand; return $rand < 0.08 ? 'NULL' : $rand < 0.78 ? literal(pick(@strings)) : $rand < 0.79 ? [ "E'\\xff'", '22021' ] : $rand < 0.85 ? literal(pick(@strings) . pick(@strings)) : pick(@long); },
	jsonb => sub { return rand() < 0.08 ? 'NULL' : rand() < 0.2 ? 'to_jsonb(' . literal(pick(@strings)) . '::text)' : pick(@jsons); },
	interval => sub { return rand() < 0.08 ? 'NULL' : rand() < 0.04 ? [ "interval '1000000000 years'", '22015', '22008' ] : pick(@spans); },
	'timestamp with time zone' => sub { return rand() < 0.1 ? 'NULL' : rand() < 0.04 ? [ "timestamptz '294277-01-01'", '22008' ] : pick(@moments); },
	integer => sub { return rand() < 0.1 ? 'NULL' : rand() < 0.03 ? [ '2147483648', '42883' ] : pick(@integers); },
	bigint => sub { return rand() < 0.1 ? 'NULL' : rand() < 0.03 ? [ "bigint '9223372036854775808'", '22003' ] : pick(@integers, '9223372036854775807', "'-9223372036854775808'::bigint", '9007199254740993'); },
	boolean => sub { return pick(qw(NULL true false)); },
	'text[]' => sub { return array_of('text', $_[0]); },
	'jsonb[]' => sub { return array_of('jsonb', $_[0]); },
	'bigint[]' => sub { return array_of('bigint', $_[0]); },
	regclass => sub {
		return pick('NULL', "'-'", '0', '1', '4294967295', (map { "'$_'" } qw(pg_class pg_catalog.pg_class_oid_index pg_toast.pg_toast_1255 information_schema.tables pg_stat_activity public.thing public.thing_id_seq
			public.thing_pkey public.thing_view public.thing_materialized public.parted public.parted_1 public.composite public.foreign_thing public.child public.unlogged idempotency.claim idempotency.records), '"public"."Odd ""name"""'),
			[ "'nowhere'", '42P01' ], [ literal(pick(@strings)), qw(22003 42P01 42601 42602 3F000 42704 0A000) ], [ "'-1'", '42P01', '22P02', '42602' ]);
	},
	regrole => sub {
		return pick('NULL', "'-'", '0', '1', '10', '4294967295', (map { "'$_'" } qw(regress_app regress_stranger regress_owner regress_member pg_monitor postgres)), [ "'nobody'", '42704' ],
			[ literal(pick(@strings)), qw(22003 42704 42601 42602) ]);
	},
	oid => sub { return pick(qw(NULL 0 1 4294967295)); },
	internal => sub { return pick([ 'NULL', qw(0A000 42883) ], [ '0', '42883' ]); },
	anycompatible => sub { return pick(@things); });

sub naughty_types { return keys %naughty; }

sub naughty_value { my ($type) = @_; return $naughty{$type}->($type =~ s/\[\]$//r); }

sub array_of
{
	my ($type) = @_;
	my $rand = rand;
	my $element = { text => sub { return literal(pick(@strings)) }, jsonb => sub { return pick("jsonb '{\"a\": 1}'", "jsonb 'null'", 'NULL') }, bigint => sub { return pick(@integers) } }->{$type};
	my %series = (text => "'k' || g", jsonb => 'to_jsonb(g)', bigint => 'g::bigint');

	return "NULL::$type\[]" if $rand < 0.1;
	return "ARRAY(SELECT $series{$type} FROM generate_series(1, " . pick(0, 1, 999, 1000, 1001, 100_000) . ') AS g)' if $rand < 0.25;
	return "array_fill(NULL::$type, ARRAY[" . pick('0', '1', '3', '2, 2', '100, 100', '100000') . '])' if $rand < 0.4;
	return 'ARRAY[' . join(', ', map { $element->() } 1 .. 1 + int rand 4) . "]::$type\[]" if $rand < 0.7;
	my $array = pick(@arrays);
	$array =~ s/[abcd]/1/g if $type ne 'text';
	return $type eq 'text' || $array !~ /"/ ? "$array\::$type\[]" : [ "$array\::$type\[]", '22P02' ];
}

# What $parameter of $function is made for; undef where nothing is known of it. $state: keys, scopes and runs that are
# there, and key and scope that this block of statements is about.
sub sensible_value
{
	my ($function, $parameter, $type, $state) = @_;
	my $key = $state->{key};
	my $scope = $state->{scope};

	if ($function =~ /scope_(set|reset|drop|grant|revoke)$/)
	{
		return literal(rand() < 0.15 && $1 ne 'drop' ? $scope : pick(@{ $state->{scopes_to_change} })) if $parameter eq 'scope';
		return rand() < 0.3 ? pick(@spans) : pick("'1 ms'", "'1 day'", "'50 ms'", "'100 years'") if $type eq 'interval';
	}
	my %by_name = (
		key => sub { return literal($key) },
		keys => sub { return 'ARRAY[' . join(', ', map { literal($_) } $key, $state->{many} ? pick(@{ $state->{keys} }) : ()) . ']' },
		scope => sub { return literal($scope) },
		scopes => sub { return 'ARRAY[' . join(', ', map { literal($_) } $scope, pick(@{ $state->{scopes} })) . ']' },
		args => sub {
			return $type eq 'jsonb' ? pick('NULL', "'{\"a\": 1}'") : $state->{many} ? "ARRAY['{\"a\": 1}', '{\"a\": 1}']::jsonb[]" : "ARRAY['{\"a\": 1}']::jsonb[]";
		},
		result => sub { return pick('NULL', "'null'", "'{\"done\": 1}'") },
		payload => sub { return "'{\"a\": 1}'" },
		evidence => sub { return rand() < 0.5 ? pick(@things) : pick("'seen'::text", "'{\"seen\": 1}'::jsonb") },
		reason => sub { return "'because'" },
		verdict => sub { return literal($function =~ /resolve/ ? pick(qw(applied not_applied rejected unknown)) : pick(qw(not_applied unknown rejected))) },
		lease => sub { return rand() < 0.25 && $function =~ /claim/ ? 'NULL' : pick("'1 ms'", "'30 ms'", "'1 minute'") },
		wait => sub { return pick('NULL', "'0'", "'10 ms'") },
		delay => sub { return pick('NULL', "'0'", "'1 ms'", "'1 hour'") },
		run => sub { return literal(pick(@{ $state->{runs} })) },
		issued_at => sub { return pick('now()', "now() - interval '1 hour'", "now() - interval '1 year'") },
		fence => sub { return rand() < 0.3 ? 'NULL' : '(SELECT max(fence) FROM idempotency.records WHERE key = ' . literal($key) . ' AND scope = ' . literal($scope) . ')' },
		fences => sub { return 'ARRAY[(SELECT max(fence) FROM idempotency.records WHERE key = ' . literal($key) . ' AND scope = ' . literal($scope) . ')]' },
		results => sub { return "ARRAY['1']::jsonb[]" },
		effect => sub {
			my $inner = literal(pick(@{ $state->{keys} }));
			my $effect = pick('SELECT to_jsonb(1)', 'SELECT $1', "INSERT INTO public.effect VALUES ('x') RETURNING to_jsonb(key)", 'SELECT NULL::jsonb', [ 'SELECT to_jsonb(1 / 0)', '22012' ], [ 'SELECT public.raises($1)', 'PT402' ], 'SELECT to_jsonb(1) WHERE false',
				'VALUES (to_jsonb(1)), (to_jsonb(2))', 'SELECT 1', 'SELECT', [ 'COMMIT', '2D000', '0A000' ], 'ROLLBACK', 'SELECT to_jsonb(1); SELECT to_jsonb(2)', ';', '-- nothing', [ 'SAVEPOINT x', '0A000', '2D000' ], [ 'SET ROLE regress_app', '42501' ], [ 'VACUUM', '25001' ],
				[ 'COPY public.effect TO STDOUT', '0A000' ], 'LISTEN x', [ 'DECLARE c CURSOR FOR SELECT 1', '0A000', '25P01', '42P03' ], 'CREATE TEMP TABLE IF NOT EXISTS scratch (a int)', 'EXPLAIN SELECT 1', [ 'CALL idempotency.sweep()', '2D000' ],
				"SELECT to_jsonb(c) FROM public.idem_claim($inner, lease => '1 ms') AS c", "SELECT to_jsonb(o) FROM public.idem_once($inner, 'SELECT to_jsonb(1)') AS o", "SELECT public.idem_complete($inner)", 'WITH w AS (DELETE FROM public.effect RETURNING 1) SELECT to_jsonb(count(*)) FROM w',
				'SELECT to_jsonb(repeat(\'x\', 100000))', 'SELECT jsonb_agg(g) FROM generate_series(1, 1000) AS g', [ 'SELECT nonsense', '42703' ], [ 'SELECT $2', '42P02' ], [ 'SELECT $1::int::text::jsonb', '22023' ]);
			return ref $effect ? [ literal($effect->[0]), @$effect[ 1 .. $#$effect ] ] : literal($effect);
		},
		function => sub {
			my $called = pick(qw(public.echo public.echo echo public.raises public.calls_back public.answers_null pg_catalog.now public.many_rows public.is_procedure sum), '"public"."echo"');
			return $called =~ /raises/ ? [ literal($called), 'PT402' ] : literal($called);
		},
		longest_pause => sub { return pick("'1 ms'", "'1 hour'", "'4 days'") },
		label => sub { return "'a label'" },
		operation => sub { return "'charge'" },
		policy => sub { return literal(pick(qw(dedup_window keep_forever max_lease effect_kind provider_window wait max_result_bytes ignore_args max_attempts backoff max_backoff max_reconciles keep_payload reconciler hard_limit run_is_alive guard late issued_at_from))) },
		role => sub { return literal(pick(qw(regress_member regress_monitor pg_monitor), '-')) },
		effect_kind => sub { return literal(pick(qw(external keyed local))) },
		max_result_bytes => sub { return pick(100, 1000, 65536, 268435456) },
		ignore_args => sub { return pick("'{}'", "ARRAY['/a']", "ARRAY['/b/*/c', '/~0~1']") },
		max_attempts => sub { return pick(1, 2, 20) },
		max_reconciles => sub { return pick(1, 2, 20) },
		reconciler => sub { return literal(pick(qw(public.read_report public.read_fails public.read_nonsense))) },
		run_is_alive => sub { return literal(pick(qw(public.run_lives public.run_fails))) },
		late => sub { return literal(pick(qw(expired execute))) },
		issued_at_from => sub { return literal(pick(qw(uuidv7 ulid))) },
		kind => sub { return literal(pick(qw(timeout http:429 http:503 sqlstate:40001 bank:42))) },
		destination => sub { return literal(pick(qw(mail bank))) },
		ordering_key => sub { return literal(pick(qw(customer-1 customer-2))) },
		max_rows => sub { return pick(1, 2, 10) },
		columns => sub { return pick("'{id}'", "'{id,name}'", "'{name}'") },
		table => sub { return pick("'public.thing'", "'public.parted'", "'public.child'") },
		force => sub { return 'false' },
		scope_id => sub { return '(SELECT scope_id FROM public.scope_number WHERE scope = ' . literal($scope) . ')' },
		finished_at => sub { return 'now()' },
		seen_at => sub { return 'now()' });

	return defined $parameter && $by_name{$parameter} ? $by_name{$parameter}->() : undef;
}

# Up to 100 MB, and texts beyond the sizes that a copy with four bytes for each character can have.
sub huge_values
{
	my ($type) = @_;
	my %huge = (
		text => [ "repeat('x', 100000000)", "repeat(E'\\u0001', 100000000)", "repeat(' ', 100000000)", "'SELECT to_jsonb(1) --' || repeat('x', 100000000)", "repeat('(', 1000000)", "repeat('x', 300000000)" ],
		jsonb => [ "to_jsonb(repeat('x', 100000000))", "to_jsonb(repeat(E'\\u0001', 50000000))", '(SELECT jsonb_agg(g) FROM generate_series(1, 2000000) AS g)', q<(SELECT jsonb_object_agg(g, 'x') FROM generate_series(1, 500000) AS g)> ],
		'text[]' => [ "array_fill(repeat('x', 1000000), ARRAY[100])", "ARRAY(SELECT 'k' || g FROM generate_series(1, 1000000) AS g)" ],
		'jsonb[]' => [ "array_fill(to_jsonb(repeat('x', 1000000)), ARRAY[100])" ],
		anycompatible => [ "repeat('x', 100000000)", "to_jsonb(repeat('x', 100000000))", 'array_fill(1, ARRAY[10000000])' ]);

	return @{ $huge{$type} // [] };
}

1;
