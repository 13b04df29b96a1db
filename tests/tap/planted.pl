# Objects that an unprivileged role planted: before CREATE EXTENSION and before ALTER EXTENSION UPDATE, on the search_path, in
# pg_temp, in schema idempotency.
#
# Claims, and what would turn them red:
# - CREATE EXTENSION and UPDATE stop with "already exists" where an object of ours stands already: CREATE OR REPLACE or IF NOT
#   EXISTS in the script, which would adopt the attacker's object.
# - Nothing of the attacker's becomes a member of the extension or is referred to by it: an unqualified name at install or update.
# - No planted function, operator, type or table is used by our code, whoever calls, with whatever search_path, and by the
#   worker neither: an unqualified name or operator in a statement of ours.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use Test::More;

my $node = IdempotencyNode->start(preload => 1, conf => [ "idempotency.naptime = '100ms'" ]);
my $as = sub {
	my ($role, $database, $query) = @_;
	return $node->safe_psql($database, $query, extra_params => [ '-U', $role ]);
};

$node->safe_psql('postgres', 'CREATE ROLE regress_attacker LOGIN');

sub database
{
	my ($name) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $name");
	$node->safe_psql($name, "GRANT CREATE ON DATABASE $name TO regress_attacker; GRANT CREATE ON SCHEMA public TO regress_attacker");
	return $name;
}

# Members of the extension that the attacker owns, and what members depend on outside of themselves and of pg_catalog.
my $foreign = q{
	SELECT pg_describe_object(d.classid, d.objid, d.objsubid) FROM pg_depend d JOIN pg_shdepend s
	    ON s.classid = d.classid AND s.objid = d.objid AND s.deptype = 'o'
	       AND s.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
	 WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
	   AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idempotency')
	UNION ALL
	SELECT a.attrelid::regclass || '.' || a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type t ON t.oid = a.atttypid
	 WHERE c.relnamespace = 'idempotency'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped AND t.typnamespace <> 'pg_catalog'::regnamespace
	UNION ALL
	SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
	  CROSS JOIN unnest(p.proargtypes::oid[] || COALESCE(p.proallargtypes, '{}') || p.prorettype) AS a JOIN pg_type t ON t.oid = a
	 WHERE d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idempotency') AND t.typnamespace <> 'pg_catalog'::regnamespace};
is($node->safe_psql('app', $foreign), '', 'a clean install has nothing of others');

# --- names that collide ---------------------------------------------------------------------------------------------

my $database = database('collides');
for my $plant ('CREATE SCHEMA idempotency', 'CREATE SCHEMA idempotency CREATE TABLE claim (digest uuid PRIMARY KEY) CREATE TABLE outcome (digest uuid)')
{
	$as->('regress_attacker', $database, $plant);
	my $error = error_of($node, $database, 'CREATE EXTENSION idempotency');
	like($error, qr/ERROR:  42P06: .*already exists/, "$plant: CREATE EXTENSION stops");
	is($node->safe_psql($database, q{SELECT count(*) FROM pg_extension WHERE extname = 'idempotency'}), 0, 'nothing is installed');
	$as->('regress_attacker', $database, 'DROP SCHEMA idempotency CASCADE');
}
my @functions = split /\n/, $node->safe_psql('app', q{
	SELECT format('%I(%s)', p.proname, oidvectortypes(p.proargtypes)) FROM pg_proc p
	 WHERE p.pronamespace = 'public'::regnamespace ORDER BY 1});
cmp_ok(scalar(@functions), '>=', 20, 'there are functions to plant');
for my $function (@functions)
{
	$as->('regress_attacker', $database, "CREATE FUNCTION public.$function RETURNS int LANGUAGE sql AS 'SELECT 1'");
	like(error_of($node, $database, 'CREATE EXTENSION idempotency'), qr/ERROR:  42723: .*already exists with same argument types/,
		"$function: CREATE EXTENSION stops");
	$as->('regress_attacker', $database, "DROP FUNCTION public.$function");
}
is($node->safe_psql($database, q{SELECT count(*) FROM pg_namespace WHERE nspname = 'idempotency'}), 0, 'nothing is left of any of these');
$node->safe_psql($database, 'CREATE EXTENSION idempotency');
is($node->safe_psql($database, $foreign), '', 'without them it installs, and has nothing of others');

# --- names that do not collide --------------------------------------------------------------------------------------

# Traps in $schema: whoever calls one is written down. Types are domains whose check is a trap. What stands there already
# is left out.
sub traps
{
	my ($schema, $present) = @_;
	my $caught = sub { "LANGUAGE plpgsql AS \$\$BEGIN INSERT INTO public.caught VALUES (current_user, '$schema $_[0]'); RETURN $_[1]; END\$\$" };
	my @traps;

	for my $type (map { "pg_catalog.$_" } qw(int4 int8 oid text uuid timestamptz regrole "char" name bytea jsonb regclass interval))
	{
		push @traps, "CREATE FUNCTION $schema.trap($type, $type) RETURNS pg_catalog.bool " . $caught->("operator $type", 'true');
		push @traps, map { "CREATE OPERATOR $schema.$_ (LEFTARG = $type, RIGHTARG = $type, FUNCTION = $schema.trap)" } '=', '<>', '<', '+';
	}
	for my $function (
		'now()', 'clock_timestamp()', 'pg_extension_config_dump(pg_catalog.regclass, pg_catalog.text)', 'max(pg_catalog.int4)', 'sha256(pg_catalog.bytea)',
		'pg_stat_get_activity(pg_catalog.int4)', 'scope_usable(pg_catalog.int4)', 'window_ends_at(pg_catalog.int4, pg_catalog.timestamptz)',
		'scopes_changed(pg_catalog.int4)', 'length(pg_catalog.text)', 'sweep()', 'current_setting(pg_catalog.text)', 'set_config(pg_catalog.text, pg_catalog.text, pg_catalog.bool)',
		# Other signatures than ours.
		'idem_sweep(VARIADIC pg_catalog.text[])', 'idem_claim(pg_catalog.int4)', 'idem_complete(pg_catalog.int4)')
	{
		next if $function =~ $present;
		push @traps, "CREATE FUNCTION $schema.$function RETURNS pg_catalog.int4 " . $caught->("function $function", '1');
	}
	push @traps, "CREATE FUNCTION $schema.trapped(pg_catalog.text) RETURNS pg_catalog.bool " . $caught->('type', 'true');
	push @traps, map { "CREATE DOMAIN $schema.\"$_\" AS pg_catalog.\"$_\" CHECK ($schema.trapped('$_'))" }
	  qw(int4 int8 text jsonb uuid interval timestamptz regrole bool bytea oid);
	push @traps, map { "CREATE TABLE $schema.$_ (id pg_catalog.int4, name pg_catalog.text)" } grep { "$_(" !~ $present }
	  qw(claim outcome scope scope_grant args_rule records scopes pg_locks pg_class pg_extension pg_namespace);
	return join ";\n", @traps;
}

# Not one operator, unqualified name or cast in here.
my @calls = (
	q{SELECT decision FROM public.idem_claim('%s', '{"a": 1}', lease => '100ms')}, q{SELECT public.idem_claim('%s', '{"a": 1}', lease => '100ms')},
	q{SELECT public.idem_claim_many(ARRAY['%s-1', '%s-2'], lease => '1h')}, q{SELECT result FROM public.idem_once('%s-3', 'SELECT $1', '{"a": 1}')},
	q{SELECT public.idem_call('%s-4', 'public.effect', '{"a": 1}')}, q{SELECT public.idem_call(NULL, 'public.effect', '{"a": 1}', run => '%s')},
	q{SELECT public.idem_scope_set('%s', dedup_window => '1ms', keep_forever => false, max_lease => '1h', effect_kind => 'local', provider_window => '1h', wait => '1s', max_result_bytes => 100, ignore_args => ARRAY['/x'])},
	q{SELECT public.idem_scope_set('%s', ignore_args => ARRAY['/y'])}, q{SELECT public.idem_scope_grant('%s', 'regress_attacker')}, q{SELECT public.idem_scope_revoke('%s', 'regress_attacker')},
	q{SELECT public.idem_claim('l', scope => '%s', lease => '100ms')}, q{SELECT public.idem_once('pruned', 'SELECT $1', scope => '%s')},
	q{SELECT public.idem_scope_reset('%s', 'wait')}, q{SELECT public.idem_scope_set('%s-dropped')}, q{SELECT public.idem_scope_drop('%s-dropped')},
	q{SELECT public.idem_guarantee('%s')}, q{SELECT public.idem_peek('%s')}, q{SELECT public.idem_find('%s')}, q{SELECT public.idem_status()},
	q{SELECT key FROM idempotency.records}, q{SELECT scope, granted_to FROM idempotency.scopes}, q{SELECT public.idem_hash('{"a": 1}')}, q{SELECT public.idem_key('%s', 'o', '{"a": 1}')},
	q{BEGIN; SELECT public.idem_claim('%s-5'); SELECT public.idem_fail('%s-5', 'rejected', 'no', '{"a": 1}'); COMMIT},
	q{BEGIN; SELECT public.idem_claim('%s-6'); SELECT public.idem_find('%s-6'); SELECT public.idem_release('%s-6'); COMMIT},
	q{SELECT public.idem_sweep()}, q{CALL idempotency.sweep()});

my $nothing = qr/(?!)/;
# Installed, and updated from there. The worker comes to both.
for my $from ('', '0.1.0')
{
	my $database = database($from eq '' ? 'planted' : 'planted_updated');
	my $peek = sub { $node->safe_psql($database, "SET search_path = pg_catalog; $_[0]") };

	$as->('regress_attacker', $database, join ";\n", 'CREATE TABLE public.caught (who pg_catalog.name, what pg_catalog.text)',
		'GRANT ALL ON public.caught TO PUBLIC', 'CREATE SCHEMA evil', 'GRANT ALL ON SCHEMA evil TO PUBLIC',
		traps('public', $nothing), traps('evil', $nothing));
	$as->('regress_attacker', $database, 'SET search_path = evil, pg_catalog; SELECT 1 = 1, now(), CAST(1 AS "int4")');
	is($as->('regress_attacker', $database, 'SELECT count(*) FROM public.caught WHERE who OPERATOR(pg_catalog.=) current_user'), 3, 'the traps catch');
	$as->('regress_attacker', $database, 'TRUNCATE public.caught');

	my $install = IdempotencySession->open($node, $database, settings => { search_path => 'evil,public,pg_catalog' });
	$install->query('CREATE TEMP TABLE claim (digest uuid); CREATE TEMP TABLE outcome (digest uuid); CREATE TEMP TABLE scope (id int)');
	$install->query('TRUNCATE public.caught');
	$install->query('CREATE EXTENSION idempotency SCHEMA public' . ($from eq '' ? '' : " VERSION '$from'"));
	is($install->error, '', 'beside all of these it installs');
	is($install->query('SELECT who, what FROM public.caught'), '', 'no trap was sprung by that');
	is($node->safe_psql($database, $foreign), '', 'no member is, or refers to, anything of the attacker\'s');
	$install->quit;

	# Who may create scopes may also create objects in schema idempotency.
	$node->safe_psql($database, q{
		GRANT CREATE ON SCHEMA idempotency TO regress_attacker;
		GRANT EXECUTE ON ALL ROUTINES IN SCHEMA public, idempotency TO regress_attacker;
		SELECT public.idem_scope_grant('default', 'regress_attacker');
		CREATE FUNCTION public.effect(pg_catalog.jsonb) RETURNS pg_catalog.jsonb LANGUAGE sql AS 'SELECT $1'});
	my $ours = qr/^(scope_usable|window_ends_at|sweep|claim|outcome|scope|scope_grant|args_rule|records|scopes)\(/;
	$as->('regress_attacker', $database, traps('idempotency', $ours));
	if ($from ne '')
	{
		my $update = IdempotencySession->open($node, $database);
		# The table that is new since then is in the way.
		$as->('regress_attacker', $database, 'CREATE TABLE idempotency.prune_horizon (scope_id pg_catalog.int4 PRIMARY KEY, finished_until pg_catalog.timestamptz)');
		$update->query('ALTER EXTENSION idempotency UPDATE');
		is($update->sqlstate, '42P07', 'UPDATE stops at a table that stands already');
		is($update->query(q{SELECT extversion FROM pg_extension WHERE extname OPERATOR(pg_catalog.=) 'idempotency'}), $from, 'nothing is updated');
		$as->('regress_attacker', $database, 'DROP TABLE idempotency.prune_horizon');
		$update->query('SET search_path = pg_temp, evil, idempotency, public, pg_catalog');
		$update->query('ALTER EXTENSION idempotency UPDATE');
		is($update->error, '', 'beside all of these it is updated');
		$update->quit;
		is($peek->('SELECT who, what FROM public.caught'), '', 'no trap was sprung by that');
		is($peek->($foreign), '', 'no member is, or refers to, anything of the attacker\'s');
	}
	$node->safe_psql($database, "ALTER DATABASE $database SET search_path = evil, idempotency, public, pg_catalog");

	for my $role ('regress_attacker', 'postgres')
	{
		my $user = $role eq 'postgres' ? $node->safe_psql('postgres', 'SELECT current_user') : $role;
		my $session = IdempotencySession->open($node, $database, user => $user);
		$session->query('CREATE TEMP TABLE pg_locks (pid pg_catalog.int4); CREATE TEMP TABLE claim (id pg_catalog.int4); CREATE TEMP TABLE scope (id pg_catalog.int4); CREATE TEMP TABLE pg_extension (oid pg_catalog.int4)');
		$session->query('SET search_path = pg_temp, evil, idempotency, public, pg_catalog');
		my $failed = '';
		for my $call (@calls)
		{
			(my $statement = $call) =~ s/%s/$role/g;
			$session->query($statement);
			$failed .= "$statement: " . $session->error if $session->sqlstate ne '00000';
		}
		is($failed, '', "$role: everything works beside the traps");
		$session->quit;
	}
	within(30, 'the worker ends a lease and prunes there', sub {
		$peek->(q{SELECT count(*) FROM idempotency.claim WHERE key = 'l'}) eq '0' && $peek->(q{SELECT count(*) FROM idempotency.outcome WHERE key = 'pruned'}) eq '0' });
	is($peek->('SELECT who, what, count(*) FROM public.caught GROUP BY who, what'), '', 'no trap was ever sprung, as nobody');
	is($peek->($foreign), '', 'and no member is, or refers to, anything of the attacker\'s');

	is(sqlstate_of($node, $database, q{SET ROLE regress_attacker; SELECT key FROM idempotency.claim}), '42501',
		'the tables are closed to the attacker, with all of this');
}

server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
