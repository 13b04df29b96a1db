# A DBA at work on our tables while sessions are busy: indexes, columns, triggers, rewrites, and the extension itself.
#
# Claims, and what would turn them red:
# - No crash, no error and no second effect while indexes are rebuilt and columns, triggers and indexes come and go: column
#   numbers or index OIDs kept over a relcache rebuild, a table lock released before the commit, catalog calls that do not
#   know expression indexes or triggers.
# - What the DBA adds is honoured: a trigger is called for every row, an index is complete, a default is filled in.
# - DROP EXTENSION and CREATE EXTENSION beside busy sessions give clean errors, and the new one works at once in the same
#   sessions: an OID or a plan kept for ever.

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

my $node = IdempotencyNode->start(preload => 1, conf => [
		"log_statement = none", "idempotency.naptime = '100ms'", "max_connections = 30", "deadlock_timeout = '100ms'" ]);
my $sql = sub { $node->safe_psql('app', $_[0]) };

plan skip_all => 'this PostgreSQL is without amcheck' if $sql->(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'}) eq '0';
effect_table($node, 'app');
$sql->(q{CREATE EXTENSION amcheck; CREATE TABLE seen (key text, operation text, state "char");
	SELECT idem_scope_set('local', effect_kind => 'local'), idem_scope_set('short', dedup_window => '1 ms')});

# --- while a load runs ----------------------------------------------------------------------------------------------

# Both tables are written: outcomes by each, claims by the leased ones.
my $load = load_start($node, 'app', {
	'\set n random(1, 1000000)
\set m random(1, 500)
SELECT result FROM idem_once(\'once:\' || :n, $$' . effect_statement(q{$1->>'k'}, 'default') . q{$$, jsonb_build_object('k', 'once:' || :n));
SELECT result FROM idem_once('again:' || :m, $$} . effect_statement(q{$1->>'k'}, 'default') . q{$$, jsonb_build_object('k', 'again:' || :m));
SELECT result FROM idem_once('old:' || :n, 'SELECT to_jsonb(1)', scope => 'short');} => 1,
	'\set n random(1, 1000000)
SELECT (decision = \'execute\')::int AS mine, COALESCE(fence, 0) AS fence FROM idem_claim(\'leased:\' || :n, scope => \'local\', lease => \'1min\') \gset
\if :mine
SELECT idem_renew(\'leased:\' || :n, \'2min\', \'local\', :fence) AS done \gset
BEGIN;
' . effect_statement(q{'leased:' || :n}, 'local') . ' \gset
SELECT idem_complete(\'leased:\' || :n, to_jsonb(:to_jsonb::bigint), \'local\', :fence) AS done \gset
COMMIT;
\endif' => 1 }, clients => 5);

sub until_worked
{
	my ($when) = @_;
	my $highest = $sql->('SELECT max(id) FROM effect') || 0;

	return until_true($node, 'app', "SELECT count(*) > 20 FROM effect WHERE id > $highest", "the load works $when");
}

until_worked('at first');
for my $statement (
	'REINDEX TABLE CONCURRENTLY idempotency.outcome', 'REINDEX TABLE CONCURRENTLY idempotency.claim',
	'REINDEX INDEX CONCURRENTLY idempotency.outcome_digest_pkey',
	'ALTER TABLE idempotency.outcome ADD COLUMN added_at timestamptz DEFAULT clock_timestamp()', 'ALTER TABLE idempotency.claim ADD COLUMN note text',
	q{ALTER TABLE idempotency.outcome ADD COLUMN shape text GENERATED ALWAYS AS (jsonb_typeof(result)) STORED},
	q{CREATE INDEX CONCURRENTLY outcome_result ON idempotency.outcome ((result #>> '{}'))},
	q{CREATE INDEX CONCURRENTLY outcome_added ON idempotency.outcome (added_at) WHERE state = 'c'},
	q{CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
		IF TG_OP <> 'DELETE' THEN INSERT INTO public.seen VALUES (NEW.key, TG_OP, NEW.state); END IF; RETURN NULL; END$$;
	  CREATE TRIGGER seen AFTER INSERT OR UPDATE OR DELETE ON idempotency.outcome FOR EACH ROW EXECUTE FUNCTION seen()},
	q{CREATE FUNCTION passes() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; NEW.note := 'seen'; RETURN NEW; END$$;
	  CREATE TRIGGER passes BEFORE INSERT OR UPDATE OR DELETE ON idempotency.claim FOR EACH ROW EXECUTE FUNCTION passes()},
	'ANALYZE idempotency.claim, idempotency.outcome', 'VACUUM FULL idempotency.claim', 'VACUUM FULL idempotency.outcome',
	'CLUSTER idempotency.outcome USING outcome_digest_pkey', 'ALTER TABLE idempotency.claim SET (fillfactor = 70)',
	'ALTER TABLE idempotency.claim ALTER COLUMN note TYPE varchar(100)', 'DROP TRIGGER passes ON idempotency.claim',
	'ALTER TABLE idempotency.claim DROP COLUMN note', 'REINDEX TABLE idempotency.claim', 'REINDEX TABLE CONCURRENTLY idempotency.scope',
	'DROP INDEX CONCURRENTLY idempotency.outcome_result', 'ALTER TABLE idempotency.outcome DROP COLUMN shape',
	'ALTER TABLE idempotency.outcome ADD CONSTRAINT result_size CHECK (pg_column_size(result) < 1000000)',
	'DROP TRIGGER seen ON idempotency.outcome', 'VACUUM idempotency.outcome', 'REINDEX TABLE CONCURRENTLY idempotency.outcome')
{
	is(error_of($node, 'app', "SET lock_timeout = '60s'; SET client_min_messages = warning;\n$statement"), '', $statement =~ s/\s+/ /gr);
	$load->{run}->pump_nb if $load->{run}->pumpable;
	until_worked('after it') if $statement =~ /^(REINDEX TABLE CONC|ALTER TABLE .* ADD|CREATE INDEX|VACUUM FULL|CREATE FUNCTION)/;
}
my $errors = load_stop($load);
unlike($errors, qr/ERROR|error:/, 'no call of the load raised anything');
until_true($node, 'app', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgbench'}, 'the load is gone');
$sql->(q{DELETE FROM idempotency.outcome WHERE key LIKE 'old:%'});
invariant_holds($node, 'app', 'after it all');
is($sql->(q{SELECT count(*) FROM idempotency.outcome WHERE added_at IS NULL}), 0, 'an added column was filled with its default');
cmp_ok($sql->(q{SELECT count(*) FROM seen s WHERE operation = 'INSERT'}), '>', 20, 'the trigger was called');
is($sql->(q{SELECT count(*) FROM (SELECT key FROM seen WHERE operation = 'INSERT' AND key NOT LIKE 'old:%' GROUP BY key HAVING count(*) > 1) s}), 0, 'once for each key');
for my $index (qw(outcome_digest_pkey claim_digest_pkey outcome_scope_id_finished_at_index outcome_added))
{
	is(error_of($node, 'app', "SET client_min_messages = warning; SELECT bt_index_check('idempotency.$index', true)"), '', "$index holds every row");
}
is($sql->(q{SELECT count(*), count(*) FILTER (WHERE NOT o.replayed) FROM effect e, LATERAL idem_once(e.key, 'SELECT to_jsonb(0)', jsonb_build_object('k', e.key)) o
	WHERE e.scope = 'default'}) , $sql->(q{SELECT count(*), 0 FROM effect WHERE scope = 'default'}), 'every key replays');

# Without its index, pruning says so, and claims are right.
$sql->('DROP INDEX idempotency.outcome_scope_id_finished_at_index');
is($sql->(q{SELECT result FROM idem_once('no-index', 'SELECT to_jsonb(1)')}), 1, 'without the index for pruning, a claim is right');
is(sqlstate_of($node, 'app', 'CALL idempotency.sweep()'), '55000', 'and pruning says that it is missing');
until_true($node, 'app', q{SELECT last_error LIKE '%outcome_scope_id_finished_at_index%' FROM idem_status()}, 'as does idem_status of the worker');
$sql->('CREATE INDEX outcome_scope_id_finished_at_index ON idempotency.outcome (scope_id, finished_at)');
until_true($node, 'app', q{SELECT last_error IS NULL FROM idem_status()}, 'until it is there again');

# A trigger that loses the record is refused: without it the effect could happen twice.
$sql->(q{CREATE FUNCTION loses() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
	CREATE TRIGGER loses BEFORE INSERT ON idempotency.outcome FOR EACH ROW EXECUTE FUNCTION loses()});
is(sqlstate_of($node, 'app', q{SELECT idem_once('lost', $$} . effect_statement(q{'lost'}, 'default') . q{$$)}), '55000', 'a trigger that drops the record is an error');
is($sql->(q{SELECT count(*) FROM effect WHERE key = 'lost'}), 0, 'and there is no effect without its record');
# So is a constraint that refuses it.
$sql->(q{DROP TRIGGER loses ON idempotency.outcome; ALTER TABLE idempotency.outcome ADD CONSTRAINT no_secret CHECK (result <> '"no"')});
is(sqlstate_of($node, 'app', q{SELECT idem_once('refused', 'SELECT to_jsonb(''no''::text)')}), '23514', 'a constraint is honoured, with its own SQLSTATE');
$sql->('ALTER TABLE idempotency.outcome DROP CONSTRAINT no_secret');

# A trigger that raises in the worker: it says so, and the launcher goes on.
$sql->(q{CREATE FUNCTION raises() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''not today''; END';
	SELECT idem_once('poison', 'SELECT to_jsonb(1)', scope => 'short');
	CREATE TRIGGER raises BEFORE DELETE ON idempotency.outcome FOR EACH ROW WHEN (OLD.key = 'poison') EXECUTE FUNCTION raises()});
$sql->(q{ALTER TABLE idempotency.outcome DISABLE TRIGGER raises; SELECT idem_once('poison', 'SELECT to_jsonb(1)', scope => 'short'); ALTER TABLE idempotency.outcome ENABLE TRIGGER raises});
until_true($node, 'app', q{SELECT last_error LIKE '%not today%' FROM idem_status()}, 'an error of a trigger in the worker shows in idem_status');
# The visits before it is tried again say the same.
for (1 .. 5)
{
	my $at = $sql->('SELECT last_sweep_at FROM idem_status()');
	until_true($node, 'app', "SELECT last_sweep_at > '$at' FROM idem_status()", 'another visit');
	is($sql->(q{SELECT last_error LIKE '%not today%' FROM idem_status()}), 't', 'which says so still');
}
is($sql->(q{SELECT prune_lag > '0' FROM idempotency.stats WHERE scope = 'short'}), 't', 'pruning is behind, and stats say so');
$sql->('DROP TRIGGER raises ON idempotency.outcome');
until_true($node, 'app', q{SELECT last_error IS NULL AND NOT EXISTS (SELECT FROM idempotency.outcome WHERE key = 'poison') FROM idem_status()}, 'and is over with it');

# --- DROP EXTENSION and CREATE EXTENSION beside busy sessions -----------------------------------------------------------

# Each effect tells of which extension it was: keys are forgotten with the extension, as documented.
$sql->(q{TRUNCATE effect; ALTER TABLE effect ADD COLUMN extension oid DEFAULT 0});
my $folder = PostgreSQL::Test::Utils::tempdir();
my @busy;
for my $n (1 .. 4)
{
	my $file = "$folder/busy$n";
	my $statements = '';
	for my $call (1 .. 1500)
	{
		# Every session asks for the same keys.
		$statements .= "SELECT idem_once('k$call', \$\$INSERT INTO effect (key, scope, extension) SELECT 'k$call', 'default', oid FROM pg_extension WHERE extname = 'idempotency' RETURNING to_jsonb(id)\$\$);\n";
		$statements .= "SELECT idem_claim('l$call', scope => 'local', lease => '1min'); BEGIN; SELECT idem_claim('t$call'); SELECT idem_release('t$call'); COMMIT;\n"
		  if $call % 4 == $n - 1;
	}
	# Over and over, until it is stopped.
	append_to_file($file, $statements x 20);
	push @busy, {
		errors => "$file.errors",
		run => IPC::Run::start([ 'psql', '-XAtq', '-v', 'VERBOSITY=sqlstate', '-d', $node->connstr('app'), '-f', $file, '-o', '/dev/null' ],
			'<', \undef, '2>', "$file.errors") };
}
for my $round (1 .. 3)
{
	until_true($node, 'app', 'SELECT count(*) > 20 FROM effect WHERE extension = (SELECT oid FROM pg_extension WHERE extname = \'idempotency\')', "round $round: the sessions work");
	is(error_of($node, 'app', 'SET client_min_messages = warning; DROP EXTENSION idempotency'), '', "round $round: DROP EXTENSION");
	is(error_of($node, 'app', q{CREATE EXTENSION idempotency; SELECT idem_scope_set('local', effect_kind => 'local')}), '', "round $round: CREATE EXTENSION");
}
my %codes;
for my $session (@busy)
{
	ok($session->{run}->pumpable, 'the session is alive');
	$session->{run}->signal('TERM');
	eval { $session->{run}->finish };
	my $errors = slurp_file($session->{errors});
	$codes{$1}++ while $errors =~ /(?:ERROR|FATAL|PANIC|WARNING):  (\w+)/g;
	$codes{gone}++ if $errors =~ /server closed the connection/;
}
until_true($node, 'app', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'}, 'the sessions are gone');
note('errors beside it: ', explain \%codes);
# No function, no schema, no tables, scope 'local' not there yet; and a plan that must be made again.
is(join(', ', grep { !/^(42883|3F000|42P01|55000|42501|25P02|0A000|40P01)$/ } sort keys %codes), '', 'every error beside it is a clean one');
cmp_ok($codes{42883} // 0, '>', 0, 'there were some');
is($sql->('SELECT key, extension, count(*) FROM effect GROUP BY key, extension HAVING count(*) > 1'), '', 'no key has two effects in one extension');
is($sql->(q{SELECT e.key FROM effect e LEFT JOIN idempotency.records r ON r.key = e.key AND r.result = to_jsonb(e.id)
	WHERE e.extension = (SELECT oid FROM pg_extension WHERE extname = 'idempotency') AND r.key IS NULL}), '', 'every effect has its record');
is($sql->(q{SELECT r.key FROM idempotency.records r WHERE r.key LIKE 'k%' AND NOT EXISTS (SELECT FROM effect e WHERE e.key = r.key AND to_jsonb(e.id) = r.result
	AND e.extension = (SELECT oid FROM pg_extension WHERE extname = 'idempotency'))}), '', 'every record has its effect');

# In one session, with what it keeps.
my $session = IdempotencySession->open($node, 'app');
for my $round (1 .. 3)
{
	is($session->query(q{PREPARE p AS SELECT result FROM idem_once('same', 'SELECT to_jsonb(1)'); EXECUTE p}), 1, "one session, round $round: executes");
	is($session->query(q{EXECUTE p; SELECT decision FROM idem_claim('lease', lease => '1h')}), "1\nexecute", "one session, round $round: replays");
	$session->query('DEALLOCATE p; DROP EXTENSION idempotency');
	is($session->query(q{SELECT idem_claim('same')}) . $session->sqlstate, '42883', "one session, round $round: dropped");
	$session->query('CREATE EXTENSION idempotency');
	is($session->error, '', "one session, round $round: created");
}
# In one transaction, with a claim open.
$session->query(q{BEGIN; SELECT idem_claim('open'); DROP EXTENSION idempotency});
$session->query('COMMIT');
is($session->sqlstate, 'ID004', 'an open claim refuses COMMIT also where the extension was dropped meanwhile');
is($session->query(q{BEGIN; DROP EXTENSION idempotency; CREATE EXTENSION idempotency; SELECT result FROM idem_once('in-one', 'SELECT to_jsonb(2)'); ROLLBACK}), 2, 'dropped, created and used in one transaction');
is($session->query(q{SELECT state FROM idem_peek('in-one')}), 'absent', 'which was rolled back');
is($session->query(q{SELECT result FROM idem_once('in-one', 'SELECT to_jsonb(3)')}), 3, 'and the session works on');
$session->quit;

until_true($node, 'app', q{SELECT worker = 'running' AND last_error IS NULL FROM idem_status()}, 'the worker has got over it');
is(join("\n", grep { !/not today|outcome_scope_id_finished_at_index/ } log_matches($node, qr/\[\d+\] (ERROR|PANIC|FATAL):/)), '', 'and raised no error of its own');
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked|cache lookup failed|could not open relation/, 'nothing crashed');

done_testing();
