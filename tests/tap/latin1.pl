# Databases that are not in UTF-8: LATIN1, where text is converted on the way in and out, and SQL_ASCII, where bytes are
# bytes.
#
# Claims, and what would turn them red:
# - Keys, runs, arguments, results and reasons with letters beyond ASCII come back as they were, replay and mismatch: text
#   taken for UTF-8 that is not.
# - A key is the same key in every encoding, so a dump that changes the encoding still replays: a digest or a hash over the
#   bytes of the database.
# - Messages name the key in the client's encoding.
# - Bytes that are no UTF-8, possible in SQL_ASCII alone, give the ordinary error 22021: a panic, or a guess.
# - Databases and roles with such names are no obstacle, for the worker neither: a launcher that dies on reading one.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdempotencyNode->start(preload => 1, extension => 0, conf => [ "log_statement = none", "idempotency.naptime = '100ms'" ]);
my $e = "\xc3\xa9";       # é in UTF-8
my $e_latin1 = "\xe9";    # and in LATIN1

# psql with a client encoding of its own.
sub ask
{
	my ($database, $encoding, $query) = @_;
	local $ENV{PGCLIENTENCODING} = $encoding;

	return $node->safe_psql($database, $query);
}

sub asked_error
{
	my ($database, $encoding, $query) = @_;
	local $ENV{PGCLIENTENCODING} = $encoding;

	return error_of($node, $database, $query);
}

for my $new ([ 'latin1', 'LATIN1' ], [ 'utf8', 'UTF8' ], [ 'ascii', 'SQL_ASCII' ])
{
	my ($database, $encoding) = @$new;
	system_or_bail('createdb', '-h', $node->host, '-p', $node->port, '-T', 'template0', '-E', $encoding, '--locale=C', $database);
	$node->safe_psql($database, 'CREATE EXTENSION idempotency');
}

# --- the same calls, in three encodings of the database and two of the client ----------------------------------------

my %seen;
for my $case ([ 'latin1', 'UTF8', $e ], [ 'latin1', 'LATIN1', $e_latin1 ], [ 'utf8', 'UTF8', $e ], [ 'utf8', 'LATIN1', $e_latin1 ], [ 'ascii', 'SQL_ASCII', $e ], [ 'ascii', 'UTF8', $e ])
{
	my ($database, $encoding, $x) = @$case;
	my $name = "$database, client $encoding";
	my $ask = sub { ask($database, $encoding, $_[0]) };
	my $key = "caf$x-$encoding";

	$ask->("SELECT idem_scope_set('caf$x', ignore_args => ARRAY['/$x']), idem_scope_grant('caf$x', '-')");
	is($ask->("SELECT result, replayed FROM idem_once('$key', 'SELECT jsonb_build_object(''$x'', \$1->''$x'')', '{\"$x\": \"$x$x\", \"b\": 1}', run => 'r$x')"),
		qq({"$x": "$x$x"}|f), "$name: executes");
	is($ask->("SELECT decision, result FROM idem_claim('$key', '{\"b\": 1.0, \"$x\": \"$x$x\"}')"), qq(replay|{"$x": "$x$x"}), "$name: replays");
	# SQL_ASCII does not know what the escape stands for.
	is($ask->("SELECT decision FROM idem_claim('$key', '{\"b\": 1.0, \"\\u00e9\": \"$x\\u00e9\"}')"), 'replay', "$name: replays, spelled with escapes")
	  if $database ne 'ascii';
	my $error = asked_error($database, $encoding, "SELECT idem_claim('$key', '{\"$x\": \"$x\", \"b\": 1}')");
	like($error, qr/ID001: key "\Q$key\E" in scope/, "$name: sees other arguments, and names the key");
	is($ask->("SELECT state, run, result FROM idem_peek('$key')"), qq(completed|r$x|{"$x": "$x$x"}), "$name: idem_peek");
	is($ask->("SELECT scope, state FROM idem_find('$key')"), 'default|completed', "$name: idem_find");
	is($ask->("SELECT key FROM idempotency.records WHERE key = '$key'"), $key, "$name: the records");
	$ask->("BEGIN; SELECT idem_claim('r$key', '{\"$x\": 1}', 'caf$x'); SELECT idem_fail('r$key', 'rejected', 'd${x}ja', '{\"$x\": 2}', 'caf$x'); COMMIT");
	is($ask->("SELECT decision, reason, result FROM idem_claim('r$key', '{\"$x\": 3}', 'caf$x')"), qq(rejected|d${x}ja|{"$x": 2}), "$name: scope, reason and ignored member");
	is($ask->("SELECT decision FROM idem_claim('l$key', lease => '1h', scope => 'caf$x')"), 'execute', "$name: a leased claim");
	is($ask->("SELECT idem_complete('l$key', '\"$x\"', 'caf$x', fence) FROM idem_peek('l$key', 'caf$x')"), qq("$x"), "$name: completes");
	is($ask->("SELECT count(*) FROM idem_claim_many(ARRAY['m$key', '$key'], ARRAY['1', '{\"$x\": 0}']::jsonb[], lease => '1h') WHERE decision IN ('execute', 'mismatch')"), 2, "$name: many");
	is($ask->("SET application_name = 'b$x'; SELECT decision FROM idem_claim('a$key', lease => '1h')"), 'execute', "$name: an application's name");
	like(asked_error($database, $encoding, "SELECT idem_once('e$key', 'SELECT \$1->>''$x'' FROM caf$x')"), qr/42P01: relation "caf\Q$x\E" does not exist/, "$name: an effect's own error");
	like(asked_error($database, $encoding, "SELECT idem_claim('k', scope => 'nowhere$x')"), qr/42501: .*"nowhere\Q$x\E"/, "$name: an unknown scope");
	my $canonical = $ask->("SELECT idem_canonical('{\"z\": \"$x\", \"$x\": [1.50, \"\\n\"]}')");
	is($canonical, qq({"z":"$x","$x":[1.5,"\\n"]}), "$name: the canonical form");
	$seen{$name} = $ask->("SELECT idem_hash('{\"z\": \"$x\"}'), right(idem_key('r$x', 'o$x', '{\"$x\": 1}'), 32)");
	is($ask->("SELECT left(made, -32) FROM idem_key('r$x', 'o$x', '{\"$x\": 1}') AS made"), "r$x/o$x/", "$name: a made key");
}
is(scalar(keys %{ { map { $_ => 1 } values %seen } }), 1, 'hash and made key are the same in every encoding') or diag(explain \%seen);

# --- a dump that changes the encoding -------------------------------------------------------------------------------

my $folder = PostgreSQL::Test::Utils::tempdir();
my @at = ('-h', $node->host, '-p', $node->port);
for my $move ([ 'latin1', 'moved_utf8', 'UTF8' ], [ 'utf8', 'moved_latin1', 'LATIN1' ], [ 'ascii', 'moved_ascii', 'UTF8' ])
{
	my ($from, $to, $encoding) = @$move;
	system_or_bail('createdb', @at, '-T', 'template0', '-E', $encoding, '--locale=C', $to);
	system_or_bail('pg_dump', @at, '-Fc', '-f', "$folder/$from", '-E', 'UTF8', $from);
	system_or_bail('pg_restore', @at, '-d', $to, "$folder/$from");
	is(ask($to, 'UTF8', "SELECT decision, result FROM idem_claim('caf$e-UTF8', '{\"$e\": \"$e$e\", \"b\": 1}')"), qq(replay|{"$e": "$e$e"}), "$from to $encoding: an old key replays");
	like(asked_error($to, 'UTF8', "SELECT idem_claim('caf$e-UTF8', '{\"$e\": \"$e\", \"b\": 1}')"), qr/ID001/, "$from to $encoding: and is compared");
	is(ask($to, 'UTF8', "SELECT decision, reason FROM idem_claim('rcaf$e-UTF8', '{\"$e\": 7}', 'caf$e')"), "rejected|d${e}ja", "$from to $encoding: by its rule, in its scope");
	is(ask($to, 'UTF8', "SELECT count(*) FROM idempotency.records"), ask($from, 'UTF8', 'SELECT count(*) FROM idempotency.records'), "$from to $encoding: every record");
}

# --- what one encoding cannot say -----------------------------------------------------------------------------------

like(asked_error('latin1', 'UTF8', "SELECT idem_claim('\xe2\x82\xac', lease => '1h')"), qr/22P05/, 'latin1: a key that the database cannot hold is refused by the server');
like(asked_error('latin1', 'UTF8', q{SELECT idem_claim('k', '"\u20ac"', lease => '1h')}), qr/22P05/, 'latin1: so is such an argument');
is(ask('latin1', 'UTF8', q{SELECT idem_canonical(to_jsonb(chr(233)))}), qq("$e"), 'latin1: a character by its number');
# Length is counted in UTF-8, the form in which a key is the same everywhere.
is(asked_error('latin1', 'UTF8', "SELECT idem_claim(repeat('$e', 512), lease => '1h')"), '', 'latin1: 512 letters of two bytes are a key');
like(asked_error('latin1', 'UTF8', "SELECT idem_claim(repeat('$e', 513), lease => '1h')"), qr/22023/, 'latin1: 513 are too long');
like(asked_error('utf8', 'UTF8', "SELECT idem_claim(repeat('$e', 513), lease => '1h')"), qr/22023/, 'utf8: as in UTF-8');

# --- bytes that are no UTF-8 ----------------------------------------------------------------------------------------

$node->safe_psql('ascii', q{CREATE FUNCTION bad() RETURNS jsonb LANGUAGE sql AS $$SELECT to_jsonb(convert_from('\xe9', 'SQL_ASCII'))$$;
	CREATE FUNCTION returns_bad(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT bad()'});
my $bad = q{convert_from('\xe9', 'SQL_ASCII')};
for my $call (
	"idem_claim($bad)", "idem_claim($bad, lease => '1h')", "idem_claim('k', bad())", "idem_claim('k', jsonb_build_object($bad, 1))", "idem_claim('k', lease => '1h', run => $bad)",
	"idem_claim('k', scope => $bad)", "idem_claim_many(ARRAY['a', $bad])", "idem_claim_many(ARRAY['a'], ARRAY[bad()])", "idem_complete($bad)", "idem_complete_many(ARRAY[$bad])",
	"idem_fail($bad, 'unknown')", "idem_fail('k', $bad)", "idem_fail('k', 'unknown', $bad)", "idem_release($bad)", "idem_renew($bad, '1s', fence => 1)", "idem_peek($bad)", "idem_find($bad)",
	"idem_key($bad, 'o')", "idem_key('r', 'o', bad())", "idem_canonical(bad())", "idem_hash(bad())", "idem_scope_set($bad)", "idem_scope_set('s', ignore_args => ARRAY['/' || $bad])",
	"idem_once($bad, 'SELECT to_jsonb(1)')", "idem_once('k', 'SELECT to_jsonb(''' || $bad || '''::text)')", "idem_once('k', 'SELECT 1', bad())", "idem_call('k', $bad)", "idem_call('k', 'returns_bad', bad())")
{
	my $error = asked_error('ascii', 'SQL_ASCII', "SELECT $call");
	like($error, qr/ERROR:  22021: invalid byte sequence for encoding "UTF8": 0xe9/, "$call: 22021") or diag($error);
}
# A result is stored and given back as it is: nobody reads it.
is(ask('ascii', 'SQL_ASCII', q{SELECT result FROM idem_call('bad-result', 'returns_bad')}), qq("$e_latin1"), 'a result is not looked at');
is(ask('ascii', 'SQL_ASCII', q{SELECT decision, result FROM idem_claim('bad-result')}), qq(replay|"$e_latin1"), 'and replays');
is(ask('ascii', 'SQL_ASCII', q{SELECT count(*) FROM idempotency.records WHERE key = 'k'}), 0, 'nothing was changed by what was refused');
# An error of the user's with such bytes passes as it is.
like(asked_error('ascii', 'SQL_ASCII', "SELECT idem_once('k', 'SELECT f\xe9()')"), qr/42883|22021/, 'an effect with such bytes is an ordinary error');
$node->safe_psql('ascii', q{CREATE FUNCTION raises(jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'no %', convert_from('\xe9', 'SQL_ASCII') USING ERRCODE = 'ZZ001', HINT = convert_from('\xe9', 'SQL_ASCII'); END$$});
like(asked_error('ascii', 'SQL_ASCII', q{SELECT idem_call('k', 'raises')}), qr/ZZ001: no \xe9/, 'an error with such bytes keeps its SQLSTATE and message');
is(asked_error('ascii', 'SQL_ASCII', q{DO $$BEGIN PERFORM idem_call('k', 'raises'); EXCEPTION WHEN SQLSTATE 'ZZ001' THEN NULL; END$$}), '', 'and can be caught');
is(ask('ascii', 'SQL_ASCII', q{SELECT decision FROM idem_claim('k', lease => '1h')}), 'execute', 'the session and the key are sound');

# --- names ----------------------------------------------------------------------------------------------------------

# Named in LATIN1, and read by everybody else.
ask('latin1', 'UTF8', qq(CREATE ROLE "regress_r$e" LOGIN; CREATE DATABASE "db$e" TEMPLATE latin1));
my $latin1 = "db$e_latin1";
for my $database ('latin1', 'utf8', 'ascii')
{
	my $oid = $node->safe_psql('postgres', q{SELECT oid FROM pg_roles WHERE rolname LIKE 'regress_r%'});
	# The startup packet names it by its bytes, whatever the encoding of the database.
	my $session = IdempotencySession->open($node, $database, user => "regress_r$e_latin1", environment => { PGCLIENTENCODING => 'SQL_ASCII' });
	$session->query(q{SELECT idem_claim('n', lease => '1h')});
	# A message that cannot name the role in this database's encoding is refused as such; there is no access either way.
	like($session->sqlstate, $database eq 'latin1' ? qr/^42501$/ : qr/^(42501|22021)$/, "$database: a role with a name in LATIN1 has no access") or diag($session->error);
	$node->safe_psql($database, "SELECT idem_scope_grant('default', $oid\::regrole)");
	is($session->query(q{SELECT decision FROM idem_claim('n', lease => '1h')}), 'execute', "$database: is granted it, and claims") or diag($session->error);
	is($session->query("SELECT claimed_by = $oid FROM idem_peek('n')"), 't', "$database: which can be seen") or diag($session->error);
	is($session->query("SELECT held_by = $oid FROM idem_find('n')"), 't', "$database: by idem_find, too") or diag($session->error);
	is($session->query("SELECT count(*) FROM idempotency.records WHERE claimed_by = $oid"), 1, "$database: and by the records") or diag($session->error);
	$session->quit;
}
# The worker visits it, and all the others.
for my $database ('latin1', 'utf8', 'ascii', 'postgres')
{
	$node->safe_psql($database, 'CREATE EXTENSION idempotency') if $database eq 'postgres';
	$node->safe_psql($database, q{SELECT idem_claim('swept', lease => '1ms')});
	until_true($node, $database, q{SELECT state = 'unknown' FROM idem_peek('swept')}, "$database: the worker sweeps");
}
{
	local $ENV{PGCLIENTENCODING} = 'SQL_ASCII';
	my $session = IdempotencySession->open($node, 'unused', connstr => "host=${\$node->host} port=${\$node->port} dbname=$latin1");
	$session->query(q{SELECT idem_claim('swept-here', lease => '1ms')});
	is($session->sqlstate, '00000', 'a database with a name in LATIN1 works');
	within(30, 'the worker sweeps it', sub { $session->query(q{SELECT state FROM idem_peek('swept-here')}) eq 'unknown' });
	is($session->query(q{SELECT worker FROM idem_status()}), 'running', 'idem_status');
	$session->quit;
}
# Named in a setting, by the bytes that it has.
$node->append_conf('postgresql.conf', "idempotency.databases = 'utf8, $latin1'");
$node->reload;
$node->safe_psql('utf8', q{SELECT idem_claim('swept-again', lease => '1ms')});
until_true($node, 'utf8', q{SELECT state = 'unknown' FROM idem_peek('swept-again')}, 'idempotency.databases with such a name: others in the list are swept');
{
	my $session = IdempotencySession->open($node, 'unused', connstr => "host=${\$node->host} port=${\$node->port} dbname=$latin1");
	$session->query(q{SELECT idem_claim('swept-again', lease => '1ms')});
	within(30, 'and so is it', sub { $session->query(q{SELECT state FROM idem_peek('swept-again')}) eq 'unknown' });
	$session->quit;
}

is(join("\n", log_matches($node, qr/\[\d+\] (ERROR|PANIC|FATAL):|exited with exit code [^0]/)), '', 'the worker raised no error');
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
