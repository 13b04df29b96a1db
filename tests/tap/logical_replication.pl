# Logical replication between two databases that both have the extension: FOR ALL TABLES, with the initial copy. Claims are made
# on the publisher; the subscriber's worker is off until it takes over.
#
# Claims, and what would turn them red:
# - The initial copy and every later change are applied, and stay so: seeded rows that collide, or a table without a primary key,
#   whose updates and deletes cannot be published.
# - The subscriber answers what the publisher would, in every state, and its sessions notice changes of scopes and grants: a cache
#   that the apply worker does not invalidate.
# - The subscriber's worker changes nothing of its own where it is off there: an ended lease that is swept on both sides stops
#   the apply worker at a row that is gone.
# - After the switch it sweeps and prunes, old keys replay, open ones are finished by their fence, and fences grow.
# - Large arguments, results and payloads are whole on the other side: a column that is left out where it did not change.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use Test::More;

my @conf = ("log_statement = none", "wal_level = logical", "idempotency.naptime = '100ms'");
my $publisher = IdempotencyNode->start(name => 'publisher', preload => 1, allows_streaming => 'logical', conf => [ @conf, "idempotency.worker = off" ]);
my $subscriber = IdempotencyNode->start(name => 'subscriber', preload => 1, conf => [ @conf, "idempotency.databases = 'postgres'" ]);
my $there = sub { $publisher->safe_psql('app', $_[0]) };
my $here = sub { $subscriber->safe_psql('app', $_[0]) };

# Tables that an upkeep of either side writes for itself are replicated like the others.
my @tables = split /\n/, $there->(q{SELECT oid::regclass FROM pg_class WHERE relnamespace = 'idempotency'::regnamespace AND relkind = 'r' ORDER BY 1});
cmp_ok(scalar @tables, '>=', 12, 'there are tables to replicate');

sub content
{
	my ($sql) = @_;

	return join "\n", map { "$_:\n" . $sql->("SELECT t::text FROM $_ AS t ORDER BY 1") } @tables;
}

sub same
{
	my ($when) = @_;

	$publisher->wait_for_catchup('sub');
	return is(content($here), content($there), "$when: the tables are the same") || diag($subscriber->safe_psql('app', 'SELECT * FROM pg_stat_subscription'));
}

# A table of the application's is replicated with ours.
for my $node ($publisher, $subscriber)
{
	$node->safe_psql('app', q{CREATE ROLE regress_user LOGIN; CREATE TABLE sent (key text PRIMARY KEY, fence bigint)});
}
my $large = q{(SELECT jsonb_agg(md5(n::text)) FROM generate_series(1, 2600) AS n)};
is($there->("SELECT octet_length($large\::text) BETWEEN 90000 AND 110000"), 't', 'a document of 100 kB');
$there->(qq{
	SELECT idem_scope_set('s', wait => '1 s', max_result_bytes => 1000000), idem_scope_set('short', dedup_window => '1 ms'), idem_scope_set('local', effect_kind => 'local');
	SELECT idem_once('before', 'SELECT to_jsonb(1)', '{"a": 1}', 's'), idem_once('old', 'SELECT to_jsonb(1)', scope => 'short');
	SELECT idem_claim('open', '{"a": 1}', 's', '1 h'), idem_claim('ended', scope => 's', lease => '1 ms');
	SELECT idem_enqueue('message', 'bank', '{"a": 1}', scope => 's'), idem_run_begin('run', '4 days'), idem_once('in the run', 'SELECT to_jsonb(1)', scope => 's', run => 'run');
	BEGIN; SELECT idem_fail('unknown', 'unknown', 'time out') FROM idem_claim('unknown'); COMMIT;
	INSERT INTO idempotency.failure_kind VALUES ('bank:42', 'rejected', 'their manual')});

# A session that has looked before.
my $session = IdempotencySession->open($subscriber, 'app', user => 'regress_user');
is($session->query(q{SELECT count(*) FROM idempotency.scopes}), 0, 'a session of the subscriber sees no scope');
# The views read the tables; the functions what the session keeps in memory.
my $may_peek = sub { $session->query(q{SELECT state FROM idem_peek('new', 's')}); $session->sqlstate };
is($may_peek->(), '42501', 'nor may it look at keys');
$there->('CREATE PUBLICATION everything FOR ALL TABLES');
$here->('CREATE SUBSCRIPTION sub CONNECTION $$' . $publisher->connstr('app') . '$$ PUBLICATION everything WITH (copy_data = true)');
$subscriber->poll_query_until('app', q{SELECT count(*) = 0 FROM pg_subscription_rel WHERE srsubstate NOT IN ('r', 's')}) or fail('the initial copy');
same('initial copy');
is($may_peek->(), '42501', 'initial copy: the scope is there, and not granted');

# --- what changes there ---------------------------------------------------------------------------------------------

my $fence = $there->(q{SELECT fence FROM idem_peek('open', 's')});
my $state = sub { $here->("SELECT state FROM idem_peek('$_[0]', 's')") };
$there->(qq{
	SELECT idem_claim('new', scope => 's', lease => '1 h'), idem_claim('to fail', scope => 's', lease => '1 h'), idem_claim('to release', scope => 's', lease => '1 h'), idem_claim('by user', scope => 's', lease => '1 h');
	SELECT idem_renew('new', '30 min', 's', fence) FROM idem_peek('new', 's');
	SELECT idem_release('to release', 's', fence) FROM idem_peek('to release', 's');
	SELECT idem_fail('to fail', 'rejected', 'closed', '{"code": 1}', 's', fence) FROM idem_peek('to fail', 's');
	SELECT idem_scope_grant('s', 'regress_user')});
$there->(q{INSERT INTO sent SELECT key, fence FROM idem_dispatch('bank', 10, '1 h')});
same('claimed, renewed, released, failed, dispatched');
is($session->query(q{SELECT scope FROM idempotency.scopes}), 's', 'a grant reaches the sessions of the subscriber');
is($session->query(q{SELECT wait FROM idempotency.scopes}), '00:00:01', 'with the policy');
$there->(q{SELECT idem_scope_set('s', wait => '2 s')});
same('a policy changed');
is($session->query(q{SELECT wait FROM idempotency.scopes}), '00:00:02', 'and so does a change of it');
is($session->query(q{SELECT state FROM idem_peek('new', 's')}), 'in_flight', 'a key is seen there');
$there->(q{SELECT idem_scope_revoke('s', 'regress_user')});
same('revoked');
is($may_peek->(), '42501', 'a revoke reaches the sessions of the subscriber');
$there->(q{SELECT idem_scope_grant('s', 'regress_user')});
same('granted again');
is($may_peek->(), '00000', 'and so does a grant');
# An outcome with a large result, an open key with a long reason, a message with a large payload; each is changed without it.
$there->(qq{
	SELECT idem_claim('large', $large, 's', '1 h');
	SELECT idem_enqueue('large message', 'mail', $large, scope => 's')});
$there->(qq{
	SELECT idem_complete('large', $large, 's', fence) FROM idem_peek('large', 's');
	INSERT INTO sent SELECT key, fence FROM idem_dispatch('mail', 10, '1 h')});
$there->(q{SELECT idem_fail(key, 'not_applied', 'refused', scope => 's', fence => fence) FROM sent WHERE key = 'large message'});
same('large ones');
is($here->("SELECT payload = $large FROM idempotency.outbox WHERE key = 'large message'"), 't', 'a large payload is whole, though its row was changed since');
is($here->("SELECT result = $large FROM idem_peek('large', 's')"), 't', 'so is a large result');
# Swept and pruned there, once.
$there->('CALL idempotency.sweep()');
same('swept and pruned');
is($state->('ended'), 'unknown', 'the end of a lease arrives');
is($here->(q{SELECT count(*) FROM idempotency.outcome WHERE key = 'old'}), 0, 'and so does pruning');
$there->(q{SELECT idem_resolve('unknown', 'applied', '"found"', 'bank'::text), idem_escalate('ended', 'nobody knows', scope => 's'), idem_run_end('run'), idem_scope_drop('local'), idem_forget('before', 's')});
same('decided, escalated, ended, dropped, forgotten');

# --- the subscriber's worker is off ---------------------------------------------------------------------------------

$there->(q{SELECT idem_claim('ends', scope => 's', lease => '1 ms'), idem_once('goes', 'SELECT to_jsonb(1)', scope => 'short')});
$publisher->wait_for_catchup('sub');
{
	# Another database is served meanwhile, so the worker is at work, and would have been here.
	$subscriber->safe_psql('postgres', 'CREATE EXTENSION idempotency');
	for my $round (1 .. 3)
	{
		$subscriber->safe_psql('postgres', "SELECT idem_claim('beat $round', lease => '1 ms')");
		until_true($subscriber, 'postgres', "SELECT state = 'unknown' FROM idem_peek('beat $round')", "round $round: the worker serves the database that is named");
	}
}
is($state->('ends'), 'in_flight', 'an ended lease is left to the publisher');
is($here->(q{SELECT count(*) FROM idempotency.outcome WHERE key = 'goes'}), 1, 'so is what is past its window');
$there->('CALL idempotency.sweep()');
same('swept by the publisher');
is(join("\n", log_matches($subscriber, qr/\[\d+\] (ERROR|FATAL|PANIC):/)), '', 'the apply worker met no error');

# --- the switch -----------------------------------------------------------------------------------------------------

$there->(q{SELECT idem_claim('last', scope => 's', lease => '1 ms'), idem_once('last', 'SELECT to_jsonb(1)', scope => 'short')});
same('at last');
my $last = $there->(q{SELECT fence FROM idempotency.records WHERE key = 'ends'});
$here->('ALTER SUBSCRIPTION sub DISABLE; ALTER SUBSCRIPTION sub SET (slot_name = NONE); DROP SUBSCRIPTION sub');
$publisher->stop;
$subscriber->append_conf('postgresql.conf', "idempotency.databases = ''");
$subscriber->reload;
until_true($subscriber, 'app', q{SELECT state = 'unknown' FROM idem_peek('last', 's')}, 'after the switch the worker ends leases');
until_true($subscriber, 'app', q{SELECT count(*) = 0 FROM idempotency.outcome WHERE key = 'last'}, 'and prunes');
is($here->(q{SELECT decision, result FROM idem_claim('in the run', scope => 's')}), 'replay|1', 'an old key replays');
is($here->(q{SELECT decision, result FROM idem_claim('unknown')}), 'replay|"found"', 'with what was decided');
is($here->("SELECT decision, result = $large FROM idem_claim('large', $large, 's')"), 'replay|t', 'a large one, too');
is($here->(q{SELECT decision, reason FROM idem_claim('to fail', scope => 's')}), 'rejected|closed', 'a final failure is final');
is(sqlstate_of($subscriber, 'app', q{SELECT idem_claim('open', '{"a": 2}', 's')}), 'ID001', 'other arguments are seen');
is($here->(q{SELECT decision FROM idem_claim('open', '{"a": 1}', 's')}), 'in_progress', 'a lease holds');
is($here->("SELECT idem_complete('open', '8', 's', $fence)"), 8, 'its owner completes');
is($here->(q{SELECT decision, fence > } . $last . q{ FROM idem_claim('ends', scope => 's', lease => '1 h')}), 'reconcile|t', 'what was in doubt is for reconcile, and fences grow');
is($here->(q{SELECT idem_complete(key, '"sent"', 's', fence) FROM sent WHERE key = 'message'}), '"sent"', 'a dispatcher finishes its message');
is($here->(q{SELECT decision FROM idem_claim('new key', scope => 's', lease => '1 h')}), 'execute', 'new keys execute');
$session->quit;
$subscriber->stop;
is(join("\n", grep { !/ID001/ } log_matches($subscriber, qr/\[\d+\] (ERROR|PANIC):/)), '', 'no background process met an error');
server_log_lacks($_, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed') for $publisher, $subscriber;

done_testing();
