# pg_upgrade, with the library preloaded on both sides. The new server is the same PostgreSQL, or that whose programs are in the
# folder PG_UPGRADE_TO, which must have the extension, too.
#
# Claims, and what would turn them red:
# - pg_upgrade comes to its end: a worker that runs while it works and keeps a template database busy, or a column of a type that it
#   cannot carry over.
# - Every row is as it was, old keys replay, other arguments are seen, leases hold, doubt stays, messages are delivered, fences
#   grow: a digest, a hash or a lock that depends on the server.
# - The worker of the new server sweeps by itself.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencyTools;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $old_programs = (run_command([ 'pg_config', '--bindir' ]))[0];
my $new_programs = $ENV{PG_UPGRADE_TO} // $old_programs;

plan skip_all => 'pg_upgrade is not here' unless -x "$new_programs/pg_upgrade";

my @conf = ("log_statement = none", "idempotency.naptime = '50ms'");
my $old = IdempotencyNode->start(name => 'old', preload => 1, conf => [ @conf, "idempotency.worker = off" ]);
my $sql = sub { $old->safe_psql('app', $_[0]) };

$sql->(q{
	CREATE ROLE regress_user LOGIN; CREATE ROLE regress_owner LOGIN; GRANT CREATE ON SCHEMA idempotency TO regress_owner;
	SELECT idem_scope_set('s', dedup_window => '90 days', ignore_args => ARRAY['/trace']), idem_scope_grant('s', 'regress_user'), idem_scope_set('local', effect_kind => 'local'), idem_scope_set('short', dedup_window => '1 ms');
	SET ROLE regress_owner; SELECT idem_scope_set('owned'), idem_scope_grant('owned', 'regress_user'); RESET ROLE;
	SELECT idem_once('done', 'SELECT to_jsonb(7)', '{"b": 1.50, "a": "é", "trace": 1}', 's'), idem_once('none', 'SELECT NULL::jsonb', scope => 's'), idem_once('old', 'SELECT to_jsonb(1)', scope => 'short');
	SELECT idem_once('large', 'SELECT to_jsonb(repeat(md5($1::text), 1000))', '1', 's'), idem_run_begin('run', '4 days'), idem_once('in the run', 'SELECT to_jsonb(1)', scope => 'short', run => 'run');
	BEGIN; SELECT idem_fail('rejected', 'rejected', 'closed', '1') FROM idem_claim('rejected'); SELECT idem_fail('unknown', 'unknown', 'time out') FROM idem_claim('unknown'); COMMIT;
	SELECT idem_claim('held', '{"a": 1}', 's', '1 hour'), idem_claim('ended', scope => 's', lease => '1 ms'), idem_claim('ended', scope => 'local', lease => '1 ms');
	SELECT idem_enqueue('m1', 'bank', '{"amount": 1.50}', scope => 's', ordering_key => 'o'), idem_enqueue('m2', 'bank', '2', scope => 's', ordering_key => 'o');
	INSERT INTO idempotency.failure_kind VALUES ('bank:42', 'rejected', 'their manual')});
# Others are upgraded beside it: a template, and one without anything of ours.
$old->safe_psql('postgres', 'CREATE DATABASE template_with TEMPLATE app IS_TEMPLATE true; CREATE DATABASE without');
$sql->(q{SET ROLE regress_user; SELECT idem_claim('by user', scope => 'owned', lease => '1 hour')});

my @tables = split /\n/, $sql->(q{SELECT oid::regclass FROM pg_class WHERE relnamespace = 'idempotency'::regnamespace AND relkind = 'r' ORDER BY 1});
sub content
{
	my ($node, $database) = @_;

	return join "\n", map { "$_:\n" . $node->safe_psql($database, "SELECT t::text FROM $_ AS t ORDER BY 1") } @tables;
}
my %content = map { $_ => content($old, $_) } 'app', 'template_with';
my %fence = map { $_ => $sql->("SELECT max(fence) FROM idempotency.records WHERE key = '$_'") } qw(held ended unknown);

# --- pg_upgrade -----------------------------------------------------------------------------------------------------

# While it works both servers run with their worker on.
$old->append_conf('postgresql.conf', 'idempotency.worker = on');
$old->stop;
my $new = PostgreSQL::Test::Cluster->new('new', $ENV{PG_UPGRADE_TO} ? (install_path => "$new_programs/..") : ());
$new->init(extra => [ '--encoding=UTF8', '--locale=C' ]);
$new->append_conf('postgresql.conf', $_) for "shared_preload_libraries = 'idempotency'", 'max_prepared_transactions = 20', @conf;

my $log = PostgreSQL::Test::Utils::tempdir();
my ($out, $err);
chdir $log or die "no folder: $!";
my $done = IPC::Run::run([ "$new_programs/pg_upgrade", '--no-sync', '-d', $old->data_dir, '-D', $new->data_dir, '-b', $old_programs, '-B', $new_programs,
		'-s', $new->host, '-p', $old->port, '-P', $new->port ], '<', \undef, '>', \$out, '2>', \$err, IPC::Run::timeout(300));
ok($done, 'pg_upgrade comes to its end') or diag($out, $err);
like($out, qr/Upgrade Complete/, 'and says so');
BAIL_OUT('there is nothing to look at') unless $done;

# --- the new server -------------------------------------------------------------------------------------------------

# What the worker changes is looked at later.
$new->append_conf('postgresql.conf', 'idempotency.worker = off');
$new->start;
$sql = sub { $new->safe_psql('app', $_[0]) };
is(content($new, $_), $content{$_}, "$_: every row is as it was") for sort keys %content;
is($sql->(q{SELECT decision, result FROM idem_claim('done', '{"a": "\u00e9", "trace": 2, "b": 1.5}', 's')}), 'replay|7', 'an old key replays');
is(sqlstate_of($new, 'app', q{SELECT idem_claim('done', '{"a": "e", "b": 1.5}', 's')}), 'ID001', 'other arguments are seen');
is($sql->(q{SELECT decision, result IS NULL FROM idem_claim('none', scope => 's')}), 'replay|t', 'nothing replays as nothing');
is($sql->(q{SELECT length(result::text) FROM idem_claim('large', '1', 's')}), 32002, 'a large result is whole');
is($sql->(q{SELECT decision, reason FROM idem_claim('rejected')}), 'rejected|closed', 'a final failure is final');
is($sql->(q{SELECT decision FROM idem_claim('held', '{"a": 1}', 's')}), 'in_progress', 'a lease holds');
is($sql->("SELECT idem_complete('held', '8', 's', $fence{held})"), 8, 'its owner completes it');
is($sql->("SELECT decision, fence > $fence{unknown} FROM idem_claim('unknown', lease => '1 h')"), 'reconcile|t', 'doubt stays, and fences grow');
is($sql->(q{SELECT key, payload FROM idem_dispatch('bank', 10, '1 h')}), 'm1|{"amount": 1.50}', 'messages are delivered in their order');
is($sql->(q{SELECT idem_failure_kind('bank:42')}), 'rejected', 'your own kinds of failure are there');
is($new->safe_psql('app', q{SELECT decision FROM idem_claim('by user', scope => 'owned')}, extra_params => [ '-U', 'regress_user' ]), 'in_progress', 'a grant is there');
is(sqlstate_of($new, 'app', q{SELECT idem_claim('x', scope => 'local')}, user => 'regress_user'), '42501', 'and no more');
is(sqlstate_of($new, 'app', q{SELECT idem_scope_set('owned', wait => '1 s')}, user => 'regress_owner'), '00000', 'a scope has its owner');
is($sql->(q{SELECT result FROM idem_once('new', 'SELECT to_jsonb(1)')}), 1, 'new keys execute');

$new->append_conf('postgresql.conf', 'idempotency.worker = on');
$new->reload;
until_true($new, 'app', q{SELECT state = 'unknown' FROM idem_peek('ended', 's')}, 'the worker ends leases');
until_true($new, 'app', q{SELECT state = 'not_applied' FROM idem_peek('ended', 'local')}, 'in every scope');
until_true($new, 'app', q{SELECT NOT EXISTS (SELECT FROM idempotency.outcome WHERE key = 'old')}, 'and prunes');
is($sql->(q{SELECT state FROM idem_peek('in the run', 'short')}), 'completed', 'but for the keys of a live run');
like($sql->(q{SELECT worker FROM idem_status()}), qr/^running/, 'idem_status: running');

server_log_lacks($_, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed') for $old, $new;

done_testing();
