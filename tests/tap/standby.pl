# A streaming standby: it answers questions, refuses to claim, and the worker stays away until it is promoted.
#
# Claims, and what would turn them red:
# - Whatever writes is 25006 there, and nothing else: direct table access that checks nothing by itself.
# - idem_peek, idem_find, the views, idem_status and the pure functions work: a lock or a write on the way.
# - The worker is quiet, in the processes and in the log: a launcher that starts before recovery ends.
# - After promotion it sweeps without a restart, claims work and fences grow: a worker that gave up on the standby,
#   a fence from a sequence.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use PostgreSQL::Test::Cluster;
use Test::More;

my $primary = IdempotencyNode->start(name => 'primary', preload => 1, allows_streaming => 1, conf => [
		"idempotency.naptime = '100ms'", "idempotency.worker = off", "log_statement = none" ]);
my $on_primary = sub { $primary->safe_psql('app', $_[0]) };

$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', 'idempotency.worker = on');
$standby->start;
my $on_standby = sub { $standby->safe_psql('app', $_[0]) };

effect_table($primary, 'app');
$on_primary->(q{
	CREATE ROLE regress_user LOGIN; SELECT idem_scope_grant('default', 'regress_user');
	SELECT idem_scope_set('local', effect_kind => 'local'), idem_scope_set('short', dedup_window => '1 ms');
	SELECT idem_once('done', 'SELECT to_jsonb(7)', '{"a": 1}'), idem_once('old', 'SELECT to_jsonb(1)', scope => 'short');
	SELECT idem_claim('held', lease => '1h'), idem_claim('ended', lease => '1ms'), idem_claim('ended-local', scope => 'local', lease => '1ms');
	BEGIN; SELECT idem_claim('unknown'); SELECT idem_fail('unknown', 'unknown', 'time out'); COMMIT;
	CREATE FUNCTION public.f(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
});
my %fence = map { $_ => $on_primary->("SELECT fence FROM idempotency.records WHERE key = '$_'") } qw(held ended ended-local unknown);
$primary->wait_for_catchup($standby, 'replay');

# --- it refuses -----------------------------------------------------------------------------------------------------

for my $call (
	q{idem_claim('new')}, q{idem_claim('new', lease => '1h')}, q{idem_claim('done', '{"a": 1}')}, q{idem_claim('held', lease => '1h')},
	q{idem_claim('held', wait => '1min')}, q{idem_claim_many(ARRAY['a', 'b'])}, q{idem_complete_many(ARRAY['a'])},
	q{idem_once('new', 'SELECT to_jsonb(1)')}, q{idem_once('done', 'SELECT to_jsonb(7)', '{"a": 1}')}, q{idem_call('new', 'f', '{}')},
	"idem_complete('held', '1', fence => $fence{held})", "idem_fail('held', 'unknown', fence => $fence{held})",
	"idem_release('held', fence => $fence{held})", "idem_renew('held', '1h', fence => $fence{held})",
	q{idem_sweep()}, q{idem_scope_set('new', wait => '1s')}, q{idem_scope_set('local', wait => '1s')}, q{idem_scope_reset('local', 'wait')},
	q{idem_scope_drop('local')}, q{idem_scope_grant('local', 'regress_user')}, q{idem_scope_revoke('default', 'regress_user')})
{
	is(sqlstate_of($standby, 'app', "SELECT $call"), '25006', "$call is refused");
}
is(sqlstate_of($standby, 'app', q{CALL idempotency.sweep()}), '25006', 'CALL idempotency.sweep() is refused');
like(error_of($standby, 'app', q{SELECT idem_claim('new')}), qr/cannot execute idem_claim\(\) during recovery/, 'with a message that says why');
# In a transaction that may only read, on the primary: the same.
is(sqlstate_of($primary, 'app', q{BEGIN READ ONLY; SELECT idem_claim('done')}), '25006', 'as in a read-only transaction');

# --- it answers -----------------------------------------------------------------------------------------------------

is($on_standby->(q{SELECT state, result FROM idem_peek('done')}), 'completed|7', 'idem_peek');
is($on_standby->(q{SELECT state FROM idem_peek('new')}), 'absent', 'idem_peek of what is not there');
is($on_standby->(q{SELECT scope, state, fence FROM idem_find('held')}), "default|in_flight|$fence{held}", 'idem_find');
is($on_standby->(q{SELECT count(*), count(DISTINCT state) FROM idempotency.records}), '6|3', 'idempotency.records');
is($on_standby->(q{SELECT string_agg(scope, ',' ORDER BY scope) FROM idempotency.scopes}), 'default,local,short', 'idempotency.scopes');
like($on_standby->(q{SELECT idem_guarantee('short')}), qr/\w/, 'idem_guarantee');
like($on_standby->(q{SELECT idem_key('run', 'op', '{"b": 1, "a": 2}') || idem_canonical('{"b": 1, "a": 2}')}), qr/\{"a":2,"b":1\}$/, 'idem_key, idem_canonical');
is($standby->safe_psql('app', q{SELECT count(*) FROM idempotency.records}, extra_params => [ '-U', 'regress_user' ]), 4, 'a role sees its own scopes');
is($on_standby->(q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT state FROM idem_peek('done'); COMMIT}), 'completed', 'in any isolation level');

# A key that is held on the primary now.
my $holder = IdempotencySession->open($primary, 'app');
$holder->query(q{BEGIN; SELECT idem_claim('open')});
is($on_standby->(q{SELECT state FROM idem_peek('open')}), 'absent', 'what is not committed there is not seen here');
$holder->quit;

# What changes there is seen here, in a session that has looked before, too.
my $looker = IdempotencySession->open($standby, 'app', user => 'regress_user');
is($looker->query(q{SELECT count(*) FROM idempotency.scopes}), 1, 'a session looks at the scopes');
$on_primary->(q{SELECT idem_scope_grant('local', 'regress_user'), idem_scope_set('later', wait => '1s'), idem_scope_grant('later', '-')});
$primary->wait_for_catchup($standby, 'replay');
is($looker->query(q{SELECT count(*) FROM idempotency.scopes}), 3, 'and sees a grant that was replayed');
is($looker->query(q{SELECT state FROM idem_peek('ended-local', 'local')}), 'in_flight', 'which lets it look at keys');

# --- and is quiet ---------------------------------------------------------------------------------------------------

like($on_standby->('SELECT worker FROM idem_status()'), qr/standby.*promotion/, 'idem_status says that this is a standby');
is($on_standby->('SELECT preloaded, launcher_pid IS NULL, leases_overdue, unknown_keys FROM idem_status()'), 't|t|2|1', 'and counts what is open');
is($on_standby->(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'idempotency%'}), 0, 'no worker runs');
is(join("\n", log_matches($standby, qr/\[\d+\] (WARNING|ERROR|FATAL|PANIC):|idempotency (launcher|worker)/)), '', 'the log is quiet');
is($on_standby->(q{SELECT count(*) FROM idempotency.outcome WHERE key = 'old'}), 1, 'nothing is pruned');

# --- promotion ------------------------------------------------------------------------------------------------------

my $started_at = $standby->safe_psql('postgres', 'SELECT pg_postmaster_start_time()');
# Nobody else may write any more.
$primary->stop('immediate');
$standby->promote;
until_true($standby, 'app', q{SELECT state = 'unknown' FROM idem_peek('ended')}, 'promoted: sweeping starts by itself');
until_true($standby, 'app', q{SELECT state = 'not_applied' FROM idem_peek('ended-local', 'local')}, 'promoted: in every scope');
until_true($standby, 'app', q{SELECT NOT EXISTS (SELECT FROM idempotency.outcome WHERE key = 'old')}, 'promoted: pruning, too');
until_true($standby, 'app', q{SELECT worker = 'running' AND launcher_pid IS NOT NULL FROM idem_status()}, 'promoted: idem_status says so');
is($standby->safe_psql('postgres', 'SELECT pg_postmaster_start_time()'), $started_at, 'promoted: without a restart');

is($on_standby->(q{SELECT decision, result FROM idem_claim('done', '{"a": 1}')}), 'replay|7', 'promoted: an old key replays');
is($on_standby->(q{SELECT decision FROM idem_claim('held', lease => '1h')}), 'in_progress', 'promoted: a lease holds');
is($on_standby->("SELECT idem_complete('held', '8', fence => $fence{held})"), '8', 'promoted: its owner completes');
for my $key ('ended', 'unknown')
{
	my ($decision, $fence) = split /\|/, $on_standby->("SELECT decision, fence FROM idem_claim('$key', lease => '1h')");
	is($decision, 'reconcile', "promoted: $key is for reconcile");
	cmp_ok($fence, '>', $fence{$key}, "promoted: $key: the fence grows");
}
is(sqlstate_of($standby, 'app', "SELECT idem_complete('ended', '1', fence => $fence{ended})"), 'ID003', 'promoted: the old fence is lost');
is($on_standby->(q{SELECT result FROM idem_once('after', $$INSERT INTO effect (key, scope) VALUES ('after', 'default') RETURNING to_jsonb(key)$$)}),
	'"after"', 'promoted: claims work');
is($looker->query(q{BEGIN; SELECT decision FROM idem_claim('by-user'); ROLLBACK}), 'execute', 'promoted: also in a session from before');
$looker->quit;

$standby->stop;
is(join("\n", log_matches($standby, qr/\[\d+\] (WARNING|ERROR|PANIC):/)), '', 'the worker raised no error');
server_log_lacks($_, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed') for $primary, $standby;

done_testing();
