# pg_dump and restore keep every record, scope and grant; old keys answer as before, and fences go on growing.
#
# Claims, and what would turn them red:
# - Every state comes back as it was, in every dump format: a table, or a column, that pg_extension_config_dump misses;
#   anything that the install script seeds and that then collides.
# - Old keys replay, mismatches are seen, open leases hold, unknown stays unknown: state kept outside the tables.
# - Messages are delivered where they were, escalated keys wait for their human, the trail and the DBA's kinds of failure
#   are there: a message without its claim, or a claim without its message.
# - The next fence is above the dumped one: fences from a sequence, whose value a dump of an extension leaves out.
# - A role with pg_read_all_data alone can dump: row security on the tables.
# - Data can be loaded into a database that has the extension, and its sessions notice: a cache of scopes that COPY does
#   not invalidate. What collides there is refused as a whole, never mixed in.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdempotencyNode->start(extension => 0, conf => [ "log_statement = none" ]);
my $folder = PostgreSQL::Test::Utils::tempdir();
my $sql = sub { my ($query, $database, $server) = @_; return ($server // $node)->safe_psql($database // 'app', $query) };

sub run_ok
{
	my ($name, @command) = @_;
	my ($out, $err) = ('', '');
	my $ok = IPC::Run::run([@command], '>', \$out, '2>', \$err);

	ok($ok && $err !~ /error/i, $name) or diag($err);
	return $err;
}

sub at { my ($server) = @_; return ('-h', $server->host, '-p', $server->port); }

# --- a database with everything -------------------------------------------------------------------------------------

# Functions in a schema of their own, as CREATE EXTENSION allows.
$sql->(q{
	CREATE ROLE regress_user LOGIN; CREATE ROLE "regress Odd ""name""" LOGIN; CREATE ROLE regress_owner LOGIN;
	CREATE ROLE regress_dumper LOGIN IN ROLE pg_read_all_data;
	CREATE SCHEMA tools; GRANT USAGE ON SCHEMA tools TO PUBLIC;
	CREATE EXTENSION idempotency SCHEMA tools;
	ALTER DATABASE app SET search_path = public, tools;
	GRANT CREATE ON SCHEMA idempotency TO regress_owner;
});
$sql->(q{
	SELECT idem_scope_set('local', effect_kind => 'local', max_lease => '2 hours', wait => '3 seconds');
	SELECT idem_scope_set('keyed', effect_kind => 'keyed', provider_window => '2 days', dedup_window => '1 mon 3 days');
	SELECT idem_scope_set('for ever', keep_forever => true, max_result_bytes => 1000);
	SELECT idem_scope_set('noise', ignore_args => ARRAY['/trace', '/items/*/at']);
	SELECT idem_once('ruled-1', 'SELECT to_jsonb(1)', '{"a": 1, "trace": "x"}', 'noise');
	SELECT idem_scope_set('noise', ignore_args => ARRAY['/trace', '/other']);
	SELECT idem_once('ruled-2', 'SELECT to_jsonb(2)', '{"a": 1, "other": "x"}', 'noise');
	SELECT idem_scope_set('default', dedup_window => '90 days');
	SELECT idem_scope_set('outbox', max_attempts => 7, backoff => '2 hours', max_backoff => '1 day 1 hour', max_reconciles => 3, keep_payload => true);
	SELECT idem_scope_grant('default', 'regress_user'), idem_scope_grant('local', '"regress Odd ""name"""'), idem_scope_grant('noise', '-');
	SET ROLE regress_owner;
	SELECT idem_scope_set('owned', wait => '0');
	SELECT idem_scope_grant('owned', 'regress_user');
});
$sql->(q{
	SELECT idem_once('object', $$SELECT '{"b": [1, 2.50, "é\n"], "a": 12345678901234567890.123}'::jsonb$$, '{"x": 1}', run => 'run 1');
	SELECT idem_once('json-null', $$SELECT 'null'::jsonb$$), idem_once('sql-null', 'SELECT NULL::jsonb'), idem_once('false', $$SELECT 'false'::jsonb$$);
	SELECT idem_once('big', $$SELECT to_jsonb(repeat('x', 50000))$$);
	SELECT idem_once(E'odd\tkey\\\\ "quoted" é', 'SELECT to_jsonb(1)'), idem_once('kept', 'SELECT to_jsonb(3)', scope => 'for ever');
	SELECT idem_once('owned', 'SELECT to_jsonb(4)', scope => 'owned');
	BEGIN; SELECT idem_claim('rejected', '{"x": 2}'); SELECT idem_fail('rejected', 'rejected', 'card declined', '{"code": 51}'); COMMIT;
	BEGIN; SELECT idem_claim('not-applied'); SELECT idem_fail('not-applied', 'not_applied', 'no route'); COMMIT;
	BEGIN; SELECT idem_claim('declared'); SELECT idem_fail('declared', 'unknown', 'time out'); COMMIT;
	SELECT idem_claim('leased', '{"x": 3}', lease => '1h', run => 'run 2');
	SELECT idem_claim('expired', lease => '1ms'), idem_claim('expired-local', scope => 'local', lease => '1ms'), idem_claim('expired-keyed', scope => 'keyed', lease => '1ms');
});
until_true($node, 'app', 'SELECT leases_overdue = 3 FROM idem_status()', 'leases end');
$sql->(q{SELECT idem_sweep(); SELECT idem_claim('not-swept', lease => '1ms')});
$sql->(q{SET ROLE regress_user; SELECT idem_claim('by-user', lease => '1h')});
# A takeover, so that fences are not only clocks.
$sql->(q{SELECT idem_claim('taken-over', lease => '1ms')});
until_true($node, 'app', q{SELECT lease_expires_at < clock_timestamp() FROM idem_peek('taken-over')}, 'a lease ends');
is($sql->(q{SELECT decision FROM idem_claim('taken-over', lease => '1h')}), 'reconcile', 'and is taken over');
# Doubt and messages, in every state.
$sql->(q{
	SELECT idem_enqueue('m-' || s, 'bank', '{"amount": 12345678901234567890.50}', scope => 'outbox', run => 'run 3') FROM unnest(ARRAY['in-flight', 'retry', 'unknown', 'escalated', 'sent']) AS s;
	SELECT idem_enqueue('m-late', 'bank', '"late"', scope => 'outbox', delay => '3 days');
	SELECT idem_enqueue('m-first', 'ordered', '1', scope => 'outbox', ordering_key => 'o');
	SELECT idem_enqueue('m-second', 'ordered', '2', scope => 'outbox', ordering_key => 'o');
	CREATE TABLE public.sent AS SELECT * FROM idem_dispatch('bank', 10, '1 hour');
	SELECT idem_enqueue('m-queued', 'bank', '{"x": 1}', scope => 'outbox');
});
$sql->(q{
	SELECT idem_fail(key, 'not_applied', 'refused', scope => scope, fence => fence) FROM public.sent WHERE key = 'm-retry';
	SELECT idem_fail(key, 'unknown', 'reset', scope => scope, fence => fence) FROM public.sent WHERE key = 'm-unknown';
	SELECT idem_escalate(key, 'two answers', '{"answers": [1, 2.50, "é"]}'::jsonb, scope, fence) FROM public.sent WHERE key = 'm-escalated';
	SELECT idem_complete(key, '"receipt"', scope, fence) FROM public.sent WHERE key = 'm-sent';
	DROP TABLE public.sent;
	BEGIN; SELECT idem_claim('escalated', '{"x": 4}'); SELECT idem_escalate('escalated', 'by hand', 'a text'::text); COMMIT;
	BEGIN; SELECT idem_fail('read-in-vain', 'unknown', 'timeout') FROM idem_claim('read-in-vain'); COMMIT;
	SELECT idem_resolve('read-in-vain', 'unknown', evidence => 'no answer'::text);
	INSERT INTO idempotency.failure_kind VALUES ('bank:42', 'rejected', 'their manual, page 7'), ('http 418', 'unknown', NULL);
});
# As if the clock had been an hour ahead.
$sql->(q{UPDATE idempotency.claim SET fence = fence + 3600000000 WHERE key = 'declared';
	UPDATE idempotency.outcome SET fence = fence + 3600000000 WHERE key = 'not-applied'});

my @tables = qw(scope scope_grant args_rule claim outcome message event failure_kind);

# Views that show the same wherever they are read.
my @views = qw(scopes unresolved events outbox debezium_outbox);

# All that is stored, as text.
sub content
{
	my ($database, $server) = @_;

	return join "\n", map { "$_:\n" . $sql->("SELECT t::text FROM idempotency.$_ AS t ORDER BY 1", $database, $server) } @tables;
}

sub seen
{
	my ($database, $server) = @_;

	return $sql->('SELECT r::text FROM idempotency.records AS r ORDER BY 1', $database, $server) . "\n"
	  . join "\n", map { $sql->("SELECT v::text FROM idempotency.$_ AS v ORDER BY 1", $database, $server) } @views;
}

my ($content, $seen) = (content('app'), seen('app'));
my $fence = q{SELECT fence FROM idempotency.records WHERE key = };
is($sql->('SELECT count(*), count(DISTINCT state), count(DISTINCT scope) FROM idempotency.records'), '31|7|7',
	'there is every state in every scope');

# What a restored database must answer.
sub answers_as_before
{
	my ($database, $name, $server) = @_;
	my $ask = sub { $sql->($_[0], $database, $server) };
	my $tools = 'SET search_path = public, tools; ';
	my $claim = sub { $ask->("${tools}BEGIN; SELECT $_[0] FROM idem_claim($_[1]); ROLLBACK") };

	is(content($database, $server), $content, "$name: every row is as it was");
	is($ask->("$tools SELECT r::text FROM idempotency.records AS r ORDER BY 1") . "\n"
		. join("\n", map { $ask->("$tools SELECT v::text FROM idempotency.$_ AS v ORDER BY 1") } @views), $seen, "$name: the views show the same");
	is($claim->('decision, result', q{'object', '{"x": 1.0}'}),
		'replay|{"a": 12345678901234567890.123, "b": [1, 2.50, "é\n"]}', "$name: an old key replays");
	is(sqlstate_of($server // $node, $database, qq{$tools SELECT idem_claim('object', '{"x": 2}')}), 'ID001', "$name: other arguments are seen");
	is($claim->(q{decision, result IS NULL, COALESCE(result::text, '-')}, "'$_->[0]'"), $_->[1], "$name: $_->[0] replays")
	  for [ 'json-null', 'replay|f|null' ], [ 'sql-null', 'replay|t|-' ], [ 'false', 'replay|f|false' ];
	is($claim->('decision, length(result::text)', q{'big'}), 'replay|50002', "$name: a large result, too");
	is($claim->('decision', q{'kept', scope => 'for ever'}), 'replay', "$name: in every scope");
	is($claim->('decision', q{E'odd\tkey\\\\ "quoted" é'}), 'replay', "$name: with any key");
	is($claim->('decision, reason, result', q{'rejected', '{"x": 2}'}), 'rejected|card declined|{"code": 51}', "$name: rejected stays so");
	is($claim->('decision', q{'leased', '{"x": 3}'}), 'in_progress', "$name: a lease holds");
	is($claim->('decision, reason', q{'declared'}), 'reconcile|time out', "$name: unknown stays unknown");
	is($claim->('decision', q{'expired'}), 'reconcile', "$name: an ended lease, too");
	is($claim->('decision, attempt', q{'not-swept'}), 'reconcile|2', "$name: swept or not");
	is($claim->('decision, attempt', q{'expired-local', scope => 'local'}), 'execute|2', "$name: not applied executes");
	is($claim->('decision, attempt', q{'expired-keyed', scope => 'keyed'}), 'execute|2', "$name: keyed executes again");
	is($claim->('decision, attempt', q{'not-applied'}), 'execute|2', "$name: a failed attempt is counted");
	is($claim->('decision', q{'ruled-1', '{"a": 1, "trace": "y"}', 'noise'}), 'replay', "$name: a key is compared by its own rule");
	is(sqlstate_of($server // $node, $database, qq{$tools SELECT idem_claim('ruled-1', '{"a": 1, "other": "y"}', 'noise')}), 'ID001', "$name: and not by another");
	is($claim->('decision', q{'ruled-2', '{"a": 1, "other": "y"}', 'noise'}), 'replay', "$name: with every rule");

	# Doubt.
	is($claim->('decision, reason, fence', q{'escalated', '{"x": 4}'}), 'escalated|by hand|', "$name: escalated waits for a human");
	is($ask->(q{SELECT reason, evidence FROM idempotency.unresolved WHERE key = 'escalated'}), 'by hand|"a text"', "$name: with what was known");
	is($claim->('decision, reason', q{'read-in-vain'}), 'reconcile|no answer', "$name: unknown is read again");
	is($ask->("${tools}BEGIN; SELECT idem_resolve('read-in-vain', 'unknown') FROM generate_series(1, 4); ROLLBACK"), join("\n", ('unknown') x 3, 'escalated'), "$name: its reads in vain are counted on");
	is($ask->("${tools}BEGIN; SELECT idem_resolve('escalated', 'applied', '1'); SELECT result FROM idem_claim('escalated', '{\"x\": 4}'); ROLLBACK"), "completed\n1", "$name: an operator decides");
	is($ask->("SELECT verdict, why FROM idempotency.failure_kind WHERE kind = 'bank:42'"), 'rejected|their manual, page 7', "$name: the DBA's kinds of failure");

	# Messages.
	is($claim->('decision', q{'m-queued', '{"x": 1}', 'outbox', wait => '0'}), 'queued', "$name: a message waits");
	my $dispatch = sub { $ask->("${tools}BEGIN; UPDATE idempotency.message SET due_at = now() WHERE $_[1]; UPDATE idempotency.claim SET retry_at = now() WHERE retry_at > now(); SELECT key, decision, attempt, payload FROM idem_dispatch($_[0], 100, '1 hour') ORDER BY key; ROLLBACK") };
	is($dispatch->(q{'bank'}, 'false'), 'm-queued|execute|1|{"x": 1}', "$name: what is due is delivered");
	is($dispatch->(q{'bank'}, q{due_at > now() AND due_at < 'infinity' AND key IN ('m-retry', 'm-unknown')}),
		qq{m-queued|execute|1|{"x": 1}\nm-retry|execute|2|{"amount": 12345678901234567890.50}\nm-unknown|reconcile|2|{"amount": 12345678901234567890.50}}, "$name: what backs off after it");
	is($dispatch->(q{'ordered'}, 'false'), 'm-first|execute|1|1', "$name: one after the other");
	is($ask->("${tools}BEGIN; SELECT idem_complete('m-in-flight', '8', 'outbox', fence) FROM idempotency.outbox WHERE key = 'm-in-flight'; ROLLBACK"), 8, "$name: its dispatcher completes what is in flight");
	is($ask->(q{SELECT payload FROM idempotency.records WHERE key = 'm-sent'}), '{"amount": 12345678901234567890.50}', "$name: a kept payload is kept");
	is($ask->("${tools}BEGIN; SELECT idem_enqueue('m-third', 'ordered', '3', scope => 'outbox', ordering_key => 'o') IS NULL; SELECT string_agg(key, ' ' ORDER BY position) FROM idempotency.message WHERE ordering_key = 'o'; ROLLBACK"), "f\nm-first m-second m-third", "$name: new ones come after the old ones");

	# Fences.
	for my $key ('declared', 'not-applied', 'taken-over')
	{
		my $old = $sql->("$fence '$key'");
		my $lease = $key eq 'taken-over' ? "UPDATE idempotency.claim SET lease_expires_at = now() WHERE key = '$key';" : '';
		cmp_ok($ask->("${tools}BEGIN; $lease SELECT fence FROM idem_claim('$key', lease => '1h'); ROLLBACK"), '>', $old, "$name: $key: the fence grows");
	}
	my $old = $sql->("$fence 'leased'");
	is($ask->("${tools}BEGIN; SELECT idem_complete('leased', '9', fence => $old); ROLLBACK"), 9, "$name: the owner completes under its old fence");
	is(sqlstate_of($server // $node, $database, "${tools}SELECT idem_complete('taken-over', '9', fence => $old)"), 'ID003', "$name: a stale fence stays stale");

	# Rights.
	is(sqlstate_of($server // $node, $database, "${tools}BEGIN; SELECT idem_claim('r'); ROLLBACK", user => 'regress_user'), '00000', "$name: a grant is there");
	is(sqlstate_of($server // $node, $database, "${tools}BEGIN; SELECT idem_claim('r', scope => 'local'); ROLLBACK", user => 'regress_user'), '42501', "$name: and no more");
	is(sqlstate_of($server // $node, $database, "${tools}BEGIN; SELECT idem_claim('r', scope => 'local'); ROLLBACK", user => 'regress Odd "name"'), '00000', "$name: also for an odd name");
	is(sqlstate_of($server // $node, $database, "${tools}BEGIN; SELECT idem_claim('r', scope => 'noise'); ROLLBACK", user => 'regress_dumper'), '00000', "$name: and for PUBLIC");
	is(sqlstate_of($server // $node, $database, "${tools}BEGIN; SELECT idem_scope_set('owned', wait => '1s'); ROLLBACK", user => 'regress_owner'), '00000', "$name: a scope has its owner");
	is(sqlstate_of($server // $node, $database, "${tools}BEGIN; SELECT idem_scope_set('new', wait => '1s'); ROLLBACK", user => 'regress_owner'), '00000', "$name: who may create others");
	is(sqlstate_of($server // $node, $database, "${tools}BEGIN; SELECT idem_scope_set('new', wait => '1s'); ROLLBACK"), '00000', "$name: and their ids do not collide");
	return;
}

# --- dumps ----------------------------------------------------------------------------------------------------------

answers_as_before('app', 'before');
run_ok('pg_dump -Fc', 'pg_dump', at($node), '-Fc', '-f', "$folder/custom", 'app');
run_ok('pg_dump as text', 'pg_dump', at($node), '-f', "$folder/plain.sql", 'app');
run_ok('pg_dump --inserts, by a role with pg_read_all_data alone', 'pg_dump', at($node), '-U', 'regress_dumper', '--rows-per-insert=3', '-f', "$folder/dumper.sql", 'app');

$sql->('CREATE DATABASE custom', 'postgres');
run_ok('pg_restore in parallel', 'pg_restore', at($node), '-j', '2', '-d', 'custom', "$folder/custom");
answers_as_before('custom', 'custom');

$sql->('CREATE DATABASE plain', 'postgres');
run_ok('psql', 'psql', '-XqAt', at($node), '-v', 'ON_ERROR_STOP=1', '--single-transaction', '-f', "$folder/plain.sql", '-d', 'plain', '-o', '/dev/null');
answers_as_before('plain', 'plain');

$sql->('CREATE DATABASE by_dumper', 'postgres');
run_ok('psql', 'psql', '-XqAt', at($node), '-v', 'ON_ERROR_STOP=1', '-f', "$folder/dumper.sql", '-d', 'by_dumper', '-o', '/dev/null');
answers_as_before('by_dumper', 'pg_read_all_data');

# A dump of the restored database gives the same again.
run_ok('pg_dump of what was restored', 'pg_dump', at($node), '-Fc', '-f', "$folder/again", 'custom');
$sql->('CREATE DATABASE again', 'postgres');
run_ok('pg_restore of it', 'pg_restore', at($node), '--single-transaction', '-d', 'again', "$folder/again");
is(content('again'), $content, 'again: every row is as it was');

# --- into a database that has the extension already -----------------------------------------------------------------

# Documented: the data alone, into the same extension without scopes and keys of its own.
$sql->("CREATE DATABASE present", 'postgres');
$sql->('CREATE SCHEMA tools; GRANT USAGE ON SCHEMA tools TO PUBLIC; CREATE EXTENSION idempotency SCHEMA tools; GRANT CREATE ON SCHEMA idempotency TO regress_owner', 'present');
my $session = IdempotencySession->open($node, 'present', settings => { search_path => 'tools' });
is($session->query(q{SELECT decision FROM idem_claim('own', lease => '1h')}), 'execute', 'present: a session is busy there');
like($session->query(q{SELECT idem_claim('x', scope => 'local', lease => '1h')}) . $session->sqlstate, qr/42501/, 'present: without the scope');
run_ok('pg_restore --data-only', 'pg_restore', at($node), '--data-only', '--single-transaction', '-d', 'present', "$folder/custom");
is($session->query(q{SELECT decision FROM idem_claim('x', scope => 'local', lease => '1h')}), 'execute', 'present: the busy session sees the scopes');
is($session->query(q{BEGIN; SELECT decision FROM idem_claim('object', '{"x": 1}'); ROLLBACK}), 'replay', 'present: and the keys');
is($session->query(q{SELECT dedup_window FROM idempotency.scopes WHERE scope = 'default'}), '90 days', 'present: and the policies of default');
$session->query(q{DELETE FROM idempotency.claim WHERE key IN ('own', 'x')});
answers_as_before('present', 'present');
# The whole dump again: CREATE EXTENSION IF NOT EXISTS lets it pass, the first key that is there already does not.
isnt(IPC::Run::run([ 'pg_restore', at($node), '--data-only', '--single-transaction', '-d', 'present', "$folder/custom" ], '2>', \my $twice), 1,
	'present: the same keys again are refused');
like($twice, qr/duplicate key value violates unique constraint/, 'present: as duplicates');
is(content('present'), $content, 'present: and nothing is mixed in');
$session->quit;

# With a scope of its own under the same number, the load is refused as a whole.
$sql->("CREATE DATABASE other TEMPLATE template0", 'postgres');
$sql->(q{CREATE SCHEMA tools; CREATE EXTENSION idempotency SCHEMA tools; SELECT tools.idem_scope_set('mine', wait => '1s'); SELECT tools.idem_once('object', 'SELECT to_jsonb(1)', scope => 'mine')}, 'other');
# Numbers are drawn and do not meet by chance.
my $number = $sql->('SELECT min(id) FROM idempotency.scope WHERE id <> 0', 'app');
$sql->("UPDATE idempotency.outcome SET scope_id = $number WHERE scope_id = (SELECT id FROM idempotency.scope WHERE name = 'mine'); UPDATE idempotency.scope SET id = $number WHERE name = 'mine'", 'other');
my $other = content('other');
isnt(IPC::Run::run([ 'pg_restore', at($node), '--data-only', '--single-transaction', '-d', 'other', "$folder/custom" ], '2>', \my $collides), 1,
	'other: a scope of its own under the same number is not mixed up with another');
is(content('other'), $other, 'other: nothing has changed');

# --- a whole cluster ------------------------------------------------------------------------------------------------

my $second = IdempotencyNode->make(name => 'second', preload => 1, conf => [ "log_statement = none", "idempotency.worker = off" ]);
$second->start;
run_ok('pg_dumpall', 'pg_dumpall', at($node), '-f', "$folder/all.sql");
IPC::Run::run([ 'psql', '-XqAt', at($second), '-f', "$folder/all.sql", '-d', 'postgres', '-o', '/dev/null' ], '2>', \my $errors);
is(join("\n", grep { /ERROR/ && !/role .* already exists/ } split /\n/, $errors), '', 'restored into another cluster');
answers_as_before('app', 'another cluster', $second);

server_log_lacks($_, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed') for $node, $second;

done_testing();
