# Random arguments for every function of the extension, and its views, from four roles at once: what the values are is in
# lib/NaughtyValues.pm. Functions are found in the catalogue, so a new one is covered by being there.
#
# NAUGHTY_CALLS (8000) calls in rounds; NAUGHTY_SEED repeats what a run did, but for the order in which the sessions met.
# NAUGHTY_HUGE (8) of them have an argument of up to 100 MB. A failure prints seed, round, session and statement; the scripts
# stay beside the servers' logs.
#
# Claims, and what would turn them red:
# - A call ends well or by an SQLSTATE that docs/reference.md lists: an internal error (XX000), a panic, a crash, memory that
#   runs out, an error of a cast or an overflow on the way, a code that no client is told of.
# - Whatever a function was given, views can be read: a policy whose arithmetic overflows.
# - A call ends: lock_timeout and wait bound every wait, so a statement_timeout is a hang.
# - Nothing is left behind: a lock, a second record of a key, a message without its key, a leaked reference in the log.
# - Each function is called in each role, and reaches its end for somebody: arguments that are all refused test nothing.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use IPC::Run;
use NaughtyValues;
use PostgreSQL::Test::Utils;
use Test::More;

my $seed = $ENV{NAUGHTY_SEED} // int(rand 1_000_000_000);
my $calls = $ENV{NAUGHTY_CALLS} // 8_000;
my $huge_calls = $ENV{NAUGHTY_HUGE} // 8;
my $calls_of_round = 500;
my @roles = (undef, 'regress_app', 'regress_stranger', 'regress_owner');
my $rounds = int(($calls + @roles * $calls_of_round - 1) / (@roles * $calls_of_round)) || 1;
my $failures_shown = 20;

note("NAUGHTY_SEED=$seed NAUGHTY_CALLS=$calls");
diag("NAUGHTY_SEED=$seed") if $ENV{NAUGHTY_CALLS};

# A lock that a session waits for ends by lock_timeout; what is left is a hang, or a `wait` that was asked for. Statements are not
# logged, because some are 100 MB.
my $node = IdempotencyNode->start(preload => 1, conf => [
		'log_statement = none', 'log_min_error_statement = panic', 'log_error_verbosity = verbose', 'fsync = off', "max_wal_size = '4GB'", "idempotency.naptime = '100ms'",
		"lock_timeout = '100ms'", "statement_timeout = '30s'", "deadlock_timeout = '50ms'", "idempotency.wait = '20ms'", "idempotency.reconcile_timeout = '500ms'", "idempotency.default_window = '1h'" ]);
my $sql = sub { $node->safe_psql('app', $_[0]) };

# --- what the calls are about -----------------------------------------------------------------------------------------

my @keys = map { "key-$_" } 1 .. 24;
my @scopes = ('default', 'shared', 'short', 'keyed', 'local', 'large', 'owned');
my @runs = ('run-alive', 'run-ended', 'run-silent', 'run-new', 'run-unknown');

$sql->(q{
	CREATE ROLE regress_app LOGIN; CREATE ROLE regress_member LOGIN IN ROLE regress_app; CREATE ROLE regress_stranger LOGIN; CREATE ROLE regress_owner LOGIN; CREATE ROLE regress_monitor IN ROLE pg_monitor;
	CREATE ROLE "Odd ""name""";
	GRANT CREATE ON SCHEMA idempotency TO regress_owner;
	CREATE TYPE mood AS ENUM ('ok'); CREATE DOMAIN positive_or_not AS int; CREATE TYPE composite AS (a int, b text);
	CREATE TABLE thing (id serial PRIMARY KEY, name text, m mood, c composite); INSERT INTO thing VALUES (1, 'one', 'ok', ROW(1, 'b'));
	CREATE VIEW thing_view AS SELECT * FROM thing; CREATE MATERIALIZED VIEW thing_materialized AS SELECT * FROM thing;
	CREATE TABLE parted (id int NOT NULL, name text) PARTITION BY RANGE (id); CREATE TABLE parted_1 PARTITION OF parted DEFAULT;
	CREATE TABLE child () INHERITS (thing); CREATE UNLOGGED TABLE unlogged (id int UNIQUE, name text); CREATE TABLE "Odd ""name""" ("na me" text UNIQUE, id int);
	CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere; CREATE FOREIGN TABLE foreign_thing (id int, name text) SERVER nowhere;
	CREATE TABLE effect (key text);
	GRANT SELECT ON thing TO PUBLIC; GRANT ALL ON effect TO PUBLIC;
	CREATE FUNCTION echo(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
	CREATE FUNCTION raises(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'payment required' USING ERRCODE = 'PT402'; END$$;
	CREATE FUNCTION answers_null(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT NULL::jsonb';
	CREATE FUNCTION many_rows(jsonb) RETURNS SETOF jsonb LANGUAGE sql AS 'VALUES ($1), ($1)';
	CREATE FUNCTION calls_back(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$BEGIN
		PERFORM public.idem_claim('key-1', lease => '1 ms', wait => '0');
		RETURN to_jsonb(o) FROM public.idem_once('key-2', 'SELECT public.echo($1)', $1, wait => '0') AS o;
	EXCEPTION WHEN OTHERS THEN RETURN to_jsonb(SQLSTATE); END$$;
	CREATE PROCEDURE is_procedure(jsonb) LANGUAGE sql AS 'SELECT 1';
	CREATE FUNCTION read_report(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE sql AS
		$$SELECT (ARRAY['applied', 'not_applied', 'unknown', 'rejected', 'nonsense'])[1 + abs(hashtext(key)) % 5], NULL::jsonb, to_jsonb(key)$$;
	CREATE FUNCTION read_fails(key text, args jsonb, first_claimed_at timestamptz, OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'no'; END$$;
	CREATE FUNCTION read_nonsense(key text, args jsonb, first_claimed_at timestamptz) RETURNS TABLE (verdict text, result jsonb, evidence jsonb) LANGUAGE sql AS $$VALUES ('x', 'null'::jsonb, NULL::jsonb), (NULL, NULL, NULL)$$;
	CREATE FUNCTION run_lives(run text) RETURNS boolean LANGUAGE sql AS $$SELECT NULLIF(hashtext(run) % 3, 2) = 1$$;
	CREATE FUNCTION run_fails(run text) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'no'; END$$;
	CREATE VIEW scope_number AS SELECT name AS scope, id AS scope_id FROM idempotency.scope; GRANT SELECT ON scope_number TO PUBLIC;
	SELECT idem_scope_grant('default', 'regress_app');
	SELECT idem_scope_set(s), idem_scope_grant(s, 'regress_app'), idem_scope_grant(s, 'regress_owner') FROM unnest(ARRAY['shared', 'short', 'keyed', 'local', 'large']) AS s;
	INSERT INTO idempotency.failure_kind VALUES ('bank:42', 'rejected', 'why')});
$node->safe_psql('app', q{SELECT idem_scope_set('owned'), idem_scope_grant('owned', 'regress_app')}, extra_params => [ '-U', 'regress_owner' ]);

# The functions, with their input parameters. What a session of ours must have is granted to regress_app.
my %functions;
for my $line (split /\n/, $sql->(q{
	SELECT p.oid::regproc::text, n.nspname || '.' || p.proname, p.prokind, i.ord, i.type::regtype, COALESCE(p.proargnames[i.ord], ''), i.ord > p.pronargs - p.pronargdefaults
	  FROM pg_depend AS d JOIN pg_extension AS e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND e.extname = 'idempotency' AND d.deptype = 'e'
	  JOIN pg_proc AS p ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid JOIN pg_namespace AS n ON n.oid = p.pronamespace
	  LEFT JOIN unnest(p.proargtypes) WITH ORDINALITY AS i (type, ord) ON true ORDER BY 2, 4}))
{
	my (undef, $name, $kind, $ord, $type, $parameter, $has_default) = split /\|/, $line, -1;

	$functions{$name} //= { name => $name, kind => $kind, parameters => [] };
	push @{ $functions{$name}{parameters} }, { type => $type, name => $parameter, has_default => $has_default eq 't' } if $ord ne '';
}
my @functions = map { $functions{$_} } sort keys %functions;
my @views = split /\n/, $sql->(q{SELECT c.oid::regclass FROM pg_depend AS d JOIN pg_class AS c ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
	 WHERE d.refclassid = 'pg_extension'::regclass AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idempotency') AND d.deptype = 'e' AND c.relkind = 'v' ORDER BY 1});
$sql->("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public, idempotency TO regress_app, regress_owner; GRANT EXECUTE ON ALL PROCEDURES IN SCHEMA idempotency TO regress_app");
cmp_ok(scalar @functions, '>=', 40, scalar(@functions) . ' functions are found');

my %known_type = map { $_ => 1 } naughty_types();
my %unknown_type = map { $_->{type} => 1 } grep { !$known_type{ $_->{type} } } map { @{ $_->{parameters} } } @functions;
is(join(', ', sort keys %unknown_type), '', 'lib/NaughtyValues.pm has values of every type that a parameter has');
delete $functions{ $_->{name} } for grep { grep { !$known_type{ $_->{type} } } @{ $_->{parameters} } } @functions;
@functions = map { $functions{$_} } sort keys %functions;

# What the reference lists: its table of errors, and the lines `Errors:` of its functions.
my $reference = slurp_file("$FindBin::RealBin/documents/reference.md");
my ($table) = $reference =~ /^## Errors\n(.*)\z/ms;
my %documented = map { $_ => 1 } map { /([0-9A-Z]{5})/g } $table =~ /^\| ([0-9A-Z, ]+) \|/mg;
for my $errors ($reference =~ /^Errors: (.*?)\n\n/msg) { $documented{$_} = 1 for $errors =~ /\b([0-9A-Z]*[0-9][0-9A-Z]*)\b/g; }
delete @documented{ grep { !/^[0-9A-Z]{5}$/ } keys %documented };
cmp_ok(scalar keys %documented, '>=', 20, 'the reference lists: ' . join(' ', sort keys %documented));

# --- statements -------------------------------------------------------------------------------------------------------

# Of parameters that hold code or names, PostgreSQL's own word on what was written there.
my @not_a_name = qw(0A000 42601 42602);
my %errors_of_text = (effect => [qw(42601 42703 42P01 42P02 42883 0A000 22P02 54001)], function => \@not_a_name, reconciler => \@not_a_name, run_is_alive => \@not_a_name);

# A call: its text, the codes that its arguments can give by themselves, whether it may wait as long as it likes.
sub call_of
{
	my ($function, $state, $huge) = @_;
	my ($sane, $odd) = $huge || $state->{sane} ? (1, 0) : rand() < 0.4 ? (1, 0) : rand() < 0.65 ? (1, 1) : (0, 1);
	my @parameters = @{ $function->{parameters} };
	# No argument is odd, one is, or all are.
	my $odd_one = $odd && $sane && @parameters ? int rand @parameters : -1;
	my %call = (function => $function->{name}, codes => {}, waits => 0);
	my (@arguments, $left_out);

	$state->{many} = rand() < 0.2;
	for my $number (0 .. $#parameters)
	{
		my $parameter = $parameters[$number];
		my $value;

		if (defined $huge && $huge->{parameter} == $parameter) { $value = $huge->{value}; $call{codes}{$_} = 1 for '54001'; }
		elsif ($parameter->{has_default} && $number != $odd_one && rand() < ($parameter->{name} eq 'scope' ? 0.15 : $parameter->{name} =~ /^(fences?|lease|args)$/ ? 0.3 : 0.6)) { $left_out = 1; next; }
		elsif ($sane && $number != $odd_one) { $value = sensible_value($function->{name}, $parameter->{name}, $parameter->{type}, $state); }
		my $is_odd = !defined $value;
		$value //= naughty_value($parameter->{type});
		$call{codes}{$_} = 1 for ref $value ? @$value[ 1 .. $#$value ] : ();
		$value = $value->[0] if ref $value;
		if ($is_odd) { $call{codes}{$_} = 1 for @{ $errors_of_text{ $parameter->{name} } // [] }; }
		$call{waits} = 1 if $is_odd && $parameter->{name} eq 'wait';
		push @arguments, $parameter->{name} ne '' && ($left_out || rand() < 0.7) ? "\"$parameter->{name}\" => $value" : $value;
		$left_out = 1 if $arguments[-1] =~ /^"/;
	}
	$call{text} = "$function->{name}(" . join(', ', @arguments) . ')';
	return \%call;
}

# The script of a session, statement by statement: {sql, judged, function, codes, waits}.
my @statements;
# A trigger function is for triggers: by itself it always says so.
my %never_called = ('idempotency.scopes_changed' => '39P01');

sub say_setting { push @statements, { sql => $_[0] }; return; }

# A statement whose end is judged.
sub judge
{
	my ($statement, $call, @codes) = @_;

	say_setting("SET statement_timeout = '50ms'") if $call->{waits};
	push @statements, { sql => $statement, function => $call->{function}, codes => { %{ $call->{codes} // {} }, map { $_ => 1 } @codes }, waits => $call->{waits}, judged => 1 };
	say_setting('RESET statement_timeout') if $call->{waits};
	return;
}

my $fresh = 0;

# One call, in one of the ways in which SQL calls a function.
sub add_call
{
	my ($state, $function, @codes) = @_;

	# What finishes a claim mostly finds none otherwise. Where this claim fails, its transaction has.
	if ($function->{name} =~ /complete|fail$|release|renew|resolve|escalate/ && ($state->{sane} || rand() < 0.4))
	{
		@$state{qw(key scope)} = ('fresh-' . ++$fresh, pick(qw(default shared large)));
		say_setting('SELECT public.idem_claim(' . literal($state->{key}) . pick('', ", '{\"a\": 1}'") . ', scope => ' . literal($state->{scope}) . ", wait => '0'" . pick('', ", lease => '1 minute'") . ')');
		push @codes, '25P02';
	}
	my $call = call_of($function, $state);
	my $text = $call->{text};
	push @codes, $never_called{ $function->{name} } if $never_called{ $function->{name} };
	return judge("CALL $text", $call, '2D000', @codes) if $function->{kind} eq 'p';
	my $way = rand;
	judge($way < 0.4 ? "SELECT * FROM $text" : $way < 0.6 ? "SELECT $text" : $way < 0.66 ? "SELECT $text FROM generate_series(1, 3)" : $way < 0.72 ? "SELECT count(*) FROM generate_series(1, 3), LATERAL $text"
		: $way < 0.78 ? "EXPLAIN (ANALYZE, TIMING OFF) SELECT $text" : $way < 0.84 ? "WITH w AS MATERIALIZED (SELECT $text) SELECT * FROM w LIMIT 1" : $way < 0.88 ? "INSERT INTO public.effect SELECT f::text FROM $text AS f"
		: $way < 0.92 ? "DO \$do\$ BEGIN PERFORM $text; EXCEPTION WHEN division_by_zero THEN NULL; END \$do\$"
		: $way < 0.96 ? "DO \$do\$ BEGIN FOR i IN 1..2 LOOP BEGIN PERFORM $text; RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END \$do\$"
		: "SELECT (r.x).* FROM (SELECT r AS x FROM $text AS r OFFSET 0) AS r", $call, $way >= 0.96 ? qw(42809 42883) : (), @codes);
	return;
}

sub random_function { return rand() < 0.7 ? $functions{ 'public.' . pick(qw(idem_claim idem_complete idem_fail idem_release idem_renew idem_once idem_call idem_enqueue idem_dispatch idem_resolve idem_escalate idem_reconcile idem_claim_many idem_complete_many)) } : pick(@functions); }

sub focus
{
	my ($state) = @_;

	@$state{qw(key scope)} = (pick(@{ $state->{keys} }), pick(@{ $state->{scopes} }));
	return;
}

my @settings = ("force_parallel_mode = on", "force_parallel_mode = regress", "plan_cache_mode = force_generic_plan", "search_path = ''", "search_path = pg_temp, pg_catalog", "intervalstyle = sql_standard", "datestyle = 'German'", "timezone = '<+14>-14'",
	"work_mem = '64kB'", "default_transaction_isolation = 'repeatable read'", "default_transaction_isolation = serializable", "default_transaction_read_only = on", "idempotency.wait = 0", "row_security = off",
	"backslash_quote = off", "bytea_output = escape", "extra_float_digits = 3", "enable_indexscan = off", "enable_seqscan = off", "lock_timeout = '1ms'", "session_replication_role = replica", "default_toast_compression = pglz", "vacuum_defer_cleanup_age = 0");

sub new_state { return { keys => \@keys, scopes => \@scopes, scopes_to_change => [ 'change-1', 'change-2', 'change-3' ], runs => \@runs }; }

# Each function some times, for a session that has the server for itself: what waits for others to end can end here.
sub script_alone
{
	my $state = new_state();

	@statements = ();
	for my $function ((@functions) x 3) { focus($state); add_call($state, $function); }
	# And such that most reach their end: nothing odd, the runs alive, the scopes to drop there, and without keys.
	$state->{sane} = 1;
	for (1 .. 5)
	{
		say_setting("SELECT public.idem_run_begin(r, '1 day') FROM unnest(ARRAY['" . join("', '", @runs) . "']) AS r");
		say_setting("SELECT public.idem_scope_set('change-$_')") for 1 .. 3;
		for my $function (@functions) { focus($state); add_call($state, $function); }
	}
	return @statements;
}

# Statements for one session of one round.
sub script_of
{
	my ($round, $name) = @_;
	my $state = new_state();
	my $judged = sub { scalar grep { $_->{judged} } @statements };
	my $number = 0;

	@statements = ();
	# All of them at least once.
	for my $function (@functions) { focus($state); add_call($state, $function); }
	while ($judged->() < $calls_of_round)
	{
		my $rand = rand;

		$number++;
		focus($state);
		if ($rand < 0.35) { add_call($state, random_function()); }
		elsif ($rand < 0.38) { my $view = pick(@views); judge(pick("SELECT * FROM $view", "SELECT count(*) FROM $view"), { function => $view, codes => {} }); }
		elsif ($rand < 0.45)
		{
			say_setting('SET ' . pick(@settings)) for 1 .. 1 + int rand 2;
			add_call($state, random_function()) for 1 .. 4;
			say_setting('RESET ALL');
		}
		elsif ($rand < 0.5)
		{
			my $call = call_of(random_function(), $state);

			say_setting("PREPARE p AS SELECT * FROM $call->{text}");
			# What cannot be prepared was not judged there, so that it counts here.
			for (1 .. 3) { judge('EXECUTE p', $call, '26000'); $_->{shown} = "$call->{text}, prepared" for grep { $_->{judged} } @statements[ -2, -1 ]; }
			say_setting('DEALLOCATE ALL');
		}
		elsif ($rand < 0.55)
		{
			# In a transaction that has failed nothing is called, and after ROLLBACK TO everything is.
			say_setting($_) for 'BEGIN', 'SAVEPOINT s';
			add_call($state, random_function(), '25P02') if rand() < 0.5;
			say_setting('SELECT 1 / 0');
			judge("SELECT * FROM " . call_of(random_function(), $state)->{text}, { function => 'in a failed transaction', codes => { map { $_ => 1 } qw(25P02 22007 22008 22015 22021 22P02 42601 42883 42P01 42704 42602 3F000) } });
			say_setting('ROLLBACK TO s');
			add_call($state, random_function(), '25P02');
			say_setting(pick('COMMIT', 'ROLLBACK'));
		}
		elsif ($rand < 0.6)
		{
			my $call = call_of(random_function(), $state);

			say_setting($_) for 'BEGIN', 'SAVEPOINT a', "DECLARE c CURSOR FOR SELECT * FROM $call->{text}", 'SAVEPOINT b';
			judge('FETCH 1 FROM c', $call, qw(34000 25P02));
			$_->{shown} = "$call->{text}, in a cursor" for grep { $_->{judged} } @statements[ -2, -1 ];
			say_setting(pick('ROLLBACK TO b', 'ROLLBACK TO a', 'RELEASE b'));
			judge('FETCH ALL FROM c', $call, qw(34000 24000 25P02 55000));
			say_setting(pick('COMMIT', 'ROLLBACK'));
		}
		else
		{
			my $depth = 0;
			my $mode = pick('', '', '', '', ' ISOLATION LEVEL REPEATABLE READ', ' ISOLATION LEVEL SERIALIZABLE', ' READ ONLY', ' ISOLATION LEVEL SERIALIZABLE READ ONLY');

			say_setting("BEGIN$mode");
			for (1 .. 2 + int rand 5)
			{
				say_setting('SAVEPOINT s');
				focus($state) if rand() < 0.3;
				add_call($state, random_function());
				push @statements, { sql => rand() < 0.2 ? 'ROLLBACK TO s' : "\\if :ERROR\nROLLBACK TO s;\n\\else\n" . pick('RELEASE s', 'SELECT 1') . ";\n\\endif", raw => 1 };
			}
			my $end = rand;
			my $gid = literal("naughty $round.$name.$number");

			if ($end < 0.5) { judge('COMMIT', { function => 'COMMIT', codes => {} }, '40001'); }
			elsif ($end < 0.8) { say_setting('ROLLBACK'); }
			else
			{
				judge("PREPARE TRANSACTION $gid", { function => 'PREPARE TRANSACTION', codes => {} }, '40001', '0A000');
				push @statements, { sql => "\\if :ERROR\nROLLBACK;\n\\else\n" . pick('COMMIT', 'ROLLBACK') . " PREPARED $gid;\n\\endif", raw => 1 };
			}
		}
	}
	return @statements;
}

# --- running them -----------------------------------------------------------------------------------------------------

my (%called, %succeeded, %codes_of, %failed_before, @failures);
my $log_folder = $PostgreSQL::Test::Utils::log_path;

# Runs a script in a session of its own, and gives back what is to be waited for.
sub start_script
{
	my ($role, $name, @script) = @_;
	my $file = "$log_folder/naughty_arguments_$name.sql";
	my $text = "\\set VERBOSITY verbose\n\\set ON_ERROR_STOP off\n\\o /dev/null\n";
	my $running = { file => $file, name => $name, role => $role, script => \@script, out => '', err => '' };

	for my $number (0 .. $#script)
	{
		my $statement = $script[$number];
		$statement->{line} = 1 + ($text =~ tr/\n//);
		$text .= $statement->{raw} && $statement->{sql} =~ /^\\/ ? "$statement->{sql}\n" : "$statement->{sql};\n";
		$text .= "\\echo $number :SQLSTATE\n" if $statement->{judged};
	}
	open(my $out, '>', $file) or die "$file: $!";
	print $out "$text\\echo end\n";
	close $out or die "$file: $!";
	$running->{run} = IPC::Run::start([ 'psql', '-Xq', '-f', $file, '-d', $node->connstr('app') . ($role ? " user=$role" : '') ], '<', \undef, '>', \$running->{out}, '2>', \$running->{err},
		IPC::Run::timeout(10 * $PostgreSQL::Test::Utils::timeout_default));
	return $running;
}

# Waits for it, and judges each statement.
sub end_script
{
	my ($running) = @_;
	my @script = @{ $running->{script} };
	my $failed = sub { my ($number, $what) = @_; push @failures, sprintf("seed %d, session %s (%s), statement %d: %s\n%s", $seed, $running->{name}, $running->{role} // 'superuser', $number, $what, substr($script[$number]{shown} // $script[$number]{sql}, 0, 2_000)); return; };

	eval { $running->{run}->finish; 1 } or push @failures, "seed $seed, session $running->{name}: $@";
	my %answer = $running->{out} =~ /^(\d+) ([0-9A-Z]{5})$/mg;
	for my $number (grep { $script[$_]{judged} } 0 .. $#script)
	{
		my $statement = $script[$number];
		my $code = $answer{$number};

		if (!defined $code)
		{
			$failed->($number, "it never ended: $1") if $running->{err} =~ /((?:.*\n){0,8})\z/;
			last;
		}
		$called{ $statement->{function} }{ $running->{role} // 'superuser' }++;
		$succeeded{ $statement->{function} }++ if $code eq '00000';
		$codes_of{ $statement->{function} }{$code}++;
		my $is_view = $statement->{function} =~ /^idempotency\.\w+$/ && !$functions{ $statement->{function} };
		next if $code eq '00000' || $statement->{codes}{$code} || ($is_view ? $code eq '42501' : $documented{$code}) || ($code eq '57014' && $statement->{waits});
		my ($message) = $running->{err} =~ /:$statement->{line}: ((?:ERROR|FATAL|PANIC):  \Q$code\E: .*(?:\n(?:DETAIL|HINT|CONTEXT|LOCATION).*){0,4})/;
		# Once for each function and code.
		next if $failed_before{"$statement->{function} $code"}++;
		$failed->($number, "$code, which is documented nowhere: " . substr($message // '', 0, 1_000));
	}
	push @failures, "seed $seed, session $running->{name}: $1" if $running->{err} =~ /^(.*(?:panicked|stack backtrace|server closed the connection|terminating connection).*)$/m;
	unlink $running->{file} unless grep { /session \Q$running->{name}\E[ :]/ } @failures;
	return;
}

# What must hold whatever was called.
sub look_around
{
	my ($when) = @_;
	my %queries = (
		'no key has two records' => 'SELECT scope, key FROM idempotency.records GROUP BY scope, key HAVING count(*) > 1 LIMIT 5',
		'no digest is both open and finished' => 'SELECT digest FROM idempotency.claim JOIN idempotency.outcome USING (digest) LIMIT 5',
		'messages and open keys with is_message are the same' => 'SELECT c.digest, m.digest FROM (SELECT digest FROM idempotency.claim WHERE is_message) AS c FULL JOIN idempotency.message AS m USING (digest) WHERE c.digest IS NULL OR m.digest IS NULL LIMIT 5',
		'no advisory lock is left' => q{SELECT objsubid, pid, mode FROM pg_locks LEFT JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND backend_type IS DISTINCT FROM 'idempotency worker' LIMIT 5},
		'no table is left locked' => q{SELECT relation::regclass, pid, mode FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() LIMIT 5},
		'nothing stays prepared' => 'SELECT gid FROM pg_prepared_xacts LIMIT 5');

	for my $name (sort keys %queries)
	{
		my $found = $node->psql('app', $queries{$name}, stdout => \my $out, stderr => \my $err);
		push @failures, "seed $seed, $when: $name: $out$err" if $out ne '' || $err ne '';
	}
	for my $view (@views)
	{
		$node->psql('app', "SELECT count(*) FROM (SELECT * FROM $view OFFSET 0) AS v WHERE v IS NULL OR v::text IS NOT NULL", stdout => \my $out, stderr => \my $err);
		push @failures, "seed $seed, $when: $view cannot be read: $err" if $err ne '';
	}
	return;
}

# Keys, runs and locks to begin a round with: each state that a key can have, a transaction that holds some, and a prepared one.
sub prepare_round
{
	my ($round) = @_;
	my $policies = join ', ', map { literal($_) } qw(dedup_window keep_forever max_lease provider_window wait max_result_bytes ignore_args max_attempts backoff max_backoff max_reconciles keep_payload hard_limit run_is_alive guard late issued_at_from reconciler);

	$sql->("SELECT idem_scope_reset(s, p) FROM unnest(ARRAY['default', 'shared', 'short', 'keyed', 'local', 'large', 'owned']) AS s, unnest(ARRAY[$policies]) AS p;
		SELECT idem_scope_set('short', dedup_window => '20 ms', guard => '1 s', backoff => '1 ms', effect_kind => 'external', reconciler => 'read_report');
		SELECT idem_scope_set('keyed', effect_kind => 'keyed', run_is_alive => 'run_lives', max_attempts => 3), idem_scope_set('local', effect_kind => 'local', ignore_args => ARRAY['/a'], reconciler => 'read_report', keep_payload => true), idem_scope_set('large', max_result_bytes => 268435456);
		SELECT idem_scope_set('change-1'), idem_scope_set('change-2'), idem_scope_set('change-3');
		SELECT idem_run_begin('run-alive', '1 day'), idem_run_begin('run-ended', '1 day'), idem_run_begin('run-silent', '1 ms'); SELECT idem_run_end('run-ended')");
	# A third of the keys is thrown away, so that there are new ones.
	$sql->("SELECT idem_forget(k, s, true) FROM unnest(ARRAY['" . join("', '", @keys) . "']) WITH ORDINALITY AS k (k, n), unnest(ARRAY['" . join("', '", @scopes) . "']) AS s WHERE n % 3 = " . $round % 3);
	return;
}

my $holder = IdempotencySession->open($node, 'app', settings => { lock_timeout => '0', statement_timeout => '0' });
for my $round (1 .. $rounds)
{
	srand($seed * 1_000 + $round);
	prepare_round($round);
	end_script(start_script(undef, "$round-alone", script_alone()));
	$holder->query("BEGIN; SELECT idem_claim('key-1', wait => '0'), idem_claim('key-2', scope => 'shared', wait => '0')");
	$node->psql('app', "BEGIN; SELECT idem_once('key-3', 'SELECT to_jsonb(1)', wait => '0'); PREPARE TRANSACTION 'holds key-3'");
	my @names = map { "$round-" . ($_ // 'superuser') } @roles;
	my @scripts = map { [ script_of($round, $_) ] } 0 .. $#roles;
	my @running = map { start_script($roles[$_], $names[$_], @{ $scripts[$_] }) } 0 .. $#roles;
	end_script($_) for @running;
	$holder->query('ROLLBACK');
	$node->psql('app', "ROLLBACK PREPARED 'holds key-3'");
	look_around("after round $round");
	last if @failures > $failures_shown;
}
$holder->quit;

# Those with an argument of up to 100 MB, alone, so that the machine can hold them.
srand($seed);
my @huge = map { my $function = $_; map { my $parameter = $_; map { [ $function, { parameter => $parameter, value => $_ } ] } huge_values($parameter->{type}) } @{ $function->{parameters} } } @functions;
my @huge_script;
for (1 .. $huge_calls)
{
	my ($function, $huge) = @{ splice @huge, int rand @huge, 1 };
	my $state = { %{ new_state() }, scopes => ['large'] };

	last unless @huge;
	focus($state);
	my $call = call_of($function, $state, $huge);
	@statements = ();
	judge("SELECT * FROM $call->{text}", { %$call, waits => 0 }, @{ $errors_of_text{ $huge->{parameter}{name} } // [] });
	push @huge_script, @statements;
}
end_script(start_script(undef, 'huge', { sql => 'SET statement_timeout = 0' }, @huge_script));
look_around('after the huge ones');

# --- the sum ----------------------------------------------------------------------------------------------------------

is(scalar @failures, 0, 'every call ended well or as documented, and left nothing behind')
  or diag(join "\n\n", @failures[ 0 .. ($#failures < $failures_shown ? $#failures : $failures_shown) ]);
for my $name (sort keys %functions)
{
	my @roles_called = keys %{ $called{$name} // {} };

	cmp_ok(scalar @roles_called, '==', scalar @roles, "$name was called in every role");
	note("$name: " . join ', ', map { "$_ $codes_of{$name}{$_}" } sort keys %{ $codes_of{$name} });
	next if $never_called{$name};
	cmp_ok($succeeded{$name} // 0, '>', 0, "$name reached its end ($succeeded{$name} times)") if $succeeded{$name};
	fail("$name never reached its end") unless $succeeded{$name};
}

$node->stop;
server_log_lacks($node, qr/ XX[0-9A-Z]{3}: |PANIC:|TRAP:|terminated by signal|panicked|stack backtrace| 53200: /, 'nothing crashed, and nothing internal was raised');
server_log_lacks($node, qr/reference leak|still active|not closed|refcount leak|still referenced|you don't own a lock|leaked|ResourceOwner/i, 'no reference leaked');

done_testing();
