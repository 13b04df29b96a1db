# Records of every kind, and what must be so of them in a later version of the server or of the extension.
#
#   use Carried;
#   my $carried = Carried->fill($node);      # in the database app, with idempotency.worker = off
#   ... upgrade ...
#   $carried->holds($new_node);              # the worker is off, and is on in the end

package Carried;

use strict;
use warnings FATAL => 'all';

use IdempotencyNode;
use IdempotencyTools;
use Test::More;

sub fill
{
	my ($class, $node) = @_;
	my $sql = sub { $node->safe_psql('app', $_[0]) };

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
	$sql->(q{SET ROLE regress_user; SELECT idem_claim('by user', scope => 'owned', lease => '1 hour')});
	my %fence = map { $_ => $sql->("SELECT max(fence) FROM idempotency.records WHERE key = '$_'") } qw(held ended unknown);
	return bless { fence => \%fence }, $class;
}

sub holds
{
	my ($self, $node) = @_;
	my $sql = sub { $node->safe_psql('app', $_[0]) };
	my $fence = $self->{fence};

	is($sql->(q{SELECT decision, result FROM idem_claim('done', '{"a": "\u00e9", "trace": 2, "b": 1.5}', 's')}), 'replay|7', 'an old key replays');
	is(sqlstate_of($node, 'app', q{SELECT idem_claim('done', '{"a": "e", "b": 1.5}', 's')}), 'ID001', 'other arguments are seen');
	is($sql->(q{SELECT decision, result IS NULL FROM idem_claim('none', scope => 's')}), 'replay|t', 'nothing replays as nothing');
	is($sql->(q{SELECT length(result::text) FROM idem_claim('large', '1', 's')}), 32002, 'a large result is whole');
	is($sql->(q{SELECT decision, reason FROM idem_claim('rejected')}), 'rejected|closed', 'a final failure is final');
	is($sql->(q{SELECT decision FROM idem_claim('held', '{"a": 1}', 's')}), 'in_progress', 'a lease holds');
	is($sql->("SELECT idem_complete('held', '8', 's', $fence->{held})"), 8, 'its owner completes it');
	is($sql->("SELECT decision, fence > $fence->{unknown} FROM idem_claim('unknown', lease => '1 h')"), 'reconcile|t', 'doubt stays, and fences grow');
	is($sql->(q{SELECT key, payload FROM idem_dispatch('bank', 10, '1 h')}), 'm1|{"amount": 1.50}', 'messages are delivered in their order');
	is($sql->(q{SELECT idem_failure_kind('bank:42')}), 'rejected', 'your own kinds of failure are there');
	is($node->safe_psql('app', q{SELECT decision FROM idem_claim('by user', scope => 'owned')}, extra_params => [ '-U', 'regress_user' ]), 'in_progress', 'a grant is there');
	is(sqlstate_of($node, 'app', q{SELECT idem_claim('x', scope => 'local')}, user => 'regress_user'), '42501', 'and no more');
	is(sqlstate_of($node, 'app', q{SELECT idem_scope_set('owned', wait => '1 s')}, user => 'regress_owner'), '00000', 'a scope has its owner');
	is($sql->(q{SELECT result FROM idem_once('new', 'SELECT to_jsonb(1)')}), 1, 'new keys execute');

	$node->append_conf('postgresql.conf', 'idempotency.worker = on');
	$node->reload;
	until_true($node, 'app', q{SELECT state = 'unknown' FROM idem_peek('ended', 's')}, 'the worker ends leases');
	until_true($node, 'app', q{SELECT state = 'not_applied' FROM idem_peek('ended', 'local')}, 'in every scope');
	until_true($node, 'app', q{SELECT NOT EXISTS (SELECT FROM idempotency.outcome WHERE key = 'old')}, 'and prunes');
	is($sql->(q{SELECT state FROM idem_peek('in the run', 'short')}), 'completed', 'but for the keys of a live run');
	return;
}

1;
