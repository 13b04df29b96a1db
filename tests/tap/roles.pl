# Who may do what, in real sessions of real roles; and what the server's log tells.
#
# Claims, and what would turn them red:
# - Without access to a scope a role learns nothing: another error, or another text, for a key or a scope that exists.
# - A grant opens a scope and nothing else, also to members of the granted role; a revoke is seen by busy sessions.
# - The effect runs as its caller and cannot change roles: running it as the owner of the tables.
# - The tables are closed to everybody else: a grant to PUBLIC.
# - Arguments and results never reach the log or an error: a message or DETAIL that quotes them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use PostgreSQL::Test::Utils;
use Test::More;

# By these settings a statement's text is not logged, so a secret in the log would come from a message of ours.
my $node = IdempotencyNode->start(preload => 1, conf => [
		"log_statement = none", "log_min_error_statement = panic", "log_min_duration_statement = -1",
		"log_error_verbosity = verbose", "log_min_messages = debug1", "idempotency.naptime = '100ms'" ]);
my $sql = sub { $node->safe_psql('app', $_[0]) };

$sql->(q{
	CREATE ROLE regress_app LOGIN; CREATE ROLE regress_member LOGIN; GRANT regress_app TO regress_member;
	CREATE ROLE regress_stranger LOGIN; CREATE ROLE regress_owner LOGIN; CREATE ROLE regress_monitor LOGIN IN ROLE pg_monitor;
	GRANT CREATE ON SCHEMA idempotency TO regress_owner;
	GRANT EXECUTE ON FUNCTION idem_once(text, text, jsonb, text, interval, text), idem_call(text, text, jsonb, text, interval, text)
		TO regress_app, regress_stranger;
	CREATE TABLE effect (id bigserial, key text, by_role name DEFAULT current_user);
	GRANT INSERT, SELECT ON effect TO regress_app; GRANT USAGE ON SEQUENCE effect_id_seq TO regress_app;
	CREATE TABLE private (a jsonb);
	CREATE FUNCTION f(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
	SELECT idem_scope_set('payments');
	SELECT idem_once('paid', 'SELECT to_jsonb(1)', scope => 'payments'), idem_claim('held', scope => 'payments', lease => '1h');
});
my $as = sub {
	my ($role, $query) = @_;
	return $node->safe_psql('app', $query, extra_params => [ '-U', $role ]);
};
my $state_as = sub {
	my ($role, $query) = @_;
	return sqlstate_of($node, 'app', $query, user => $role);
};

# --- no access ------------------------------------------------------------------------------------------------------

# The same error whatever exists, but for the name of the scope that was asked for.
for my $call (
	q{idem_claim('%1$s', scope => '%2$s')}, q{idem_claim('%1$s', scope => '%2$s', lease => '1h', wait => '1s')},
	q{idem_claim_many(ARRAY['%1$s'], scope => '%2$s')}, q{idem_complete('%1$s', scope => '%2$s', fence => 1)},
	q{idem_complete_many(ARRAY['%1$s'], scope => '%2$s')}, q{idem_fail('%1$s', 'unknown', scope => '%2$s')},
	q{idem_release('%1$s', '%2$s')}, q{idem_renew('%1$s', '1h', '%2$s', 1)}, q{idem_peek('%1$s', '%2$s')},
	q{idem_once('%1$s', 'SELECT to_jsonb(1)', scope => '%2$s')}, q{idem_call('%1$s', 'f', scope => '%2$s')},
	q{idem_scope_set('%2$s', wait => '1s')}, q{idem_scope_reset('%2$s', 'wait')}, q{idem_scope_drop('%2$s')},
	q{idem_scope_grant('%2$s', 'regress_stranger')}, q{idem_scope_revoke('%2$s', 'regress_app')}, q{idem_guarantee('%2$s')})
{
	my %error;
	for my $case ([ 'paid', 'payments' ], [ 'held', 'payments' ], [ 'absent', 'payments' ], [ 'paid', 'no such' ], [ 'paid', 'default' ])
	{
		my $error = error_of($node, 'app', 'SELECT ' . sprintf($call, @$case), user => 'regress_stranger');
		$error =~ s/^LOCATION:.*\n?//mg;
		$error =~ s/\Q$case->[1]\E/SCOPE/g;
		$error =~ s/\Q$case->[0]\E/KEY/g;
		$error{$error}++;
	}
	my $name = sprintf($call, 'KEY', 'SCOPE');
	is(scalar(keys %error), 1, "$name: a stranger cannot tell what exists") or diag(explain \%error);
	like((keys %error)[0], qr/ERROR:  42501: .*\n.*HINT/, "$name: 42501 with a HINT");
}
is($as->('regress_stranger', q{SELECT count(*) FROM idem_find('paid')}), 0, 'idem_find finds nothing');
is($as->('regress_stranger', 'SELECT count(*) FROM idempotency.records'), 0, 'nor do the records show');
is($as->('regress_stranger', 'SELECT count(*) FROM idempotency.scopes'), 0, 'nor the scopes');
is($sql->(q{SELECT count(*) FROM idempotency.records}), 2, 'nothing was reserved by all of this');
for my $table (qw(scope scope_grant args_rule claim outcome))
{
	for my $role (qw(regress_stranger regress_app regress_owner regress_monitor))
	{
		is($state_as->($role, "SELECT FROM idempotency.$table"), '42501', "$role may not read $table");
		is($state_as->($role, "DELETE FROM idempotency.$table"), '42501', "$role may not write $table");
	}
}
is($state_as->('regress_stranger', 'SELECT idem_sweep()'), '42501', 'a stranger may not sweep');
is($state_as->('regress_member', q{SELECT idem_once('k', 'SELECT to_jsonb(1)')}), '42501', 'a member has no access before the grant');
is($state_as->('regress_owner', q{SELECT idem_once('k', 'SELECT to_jsonb(1)')}), '42501', 'idem_once is not for PUBLIC');
is($state_as->('regress_monitor', 'SELECT idem_status()'), '00000', 'idem_status is for those who watch');
# A leaky function sees only rows that its caller may see.
is($state_as->('regress_stranger', q{CREATE FUNCTION pg_temp.leak(text) RETURNS bool LANGUAGE plpgsql COST 0.0000001 AS
	$$BEGIN RAISE EXCEPTION 'leaked %', $1; END$$; SELECT count(*) FROM idempotency.records WHERE pg_temp.leak(key)}), '00000',
	'a leaky function gets no row to look at');

# --- access ---------------------------------------------------------------------------------------------------------

my $busy = IdempotencySession->open($node, 'app', user => 'regress_member');
$busy->query(q{SELECT idem_claim('m1', scope => 'payments', lease => '1h')});
is($busy->sqlstate, '42501', 'a busy session has no access');
$sql->(q{SELECT idem_scope_grant('payments', 'regress_app')});
is($busy->query(q{SELECT decision FROM idem_claim('m1', scope => 'payments', lease => '1h')}), 'execute', 'but does from the grant on, as a member');
is($as->('regress_app', q{SELECT result FROM idem_peek('paid', 'payments')}), 1, 'the granted role sees what is there');
is($state_as->('regress_app', q{SELECT idem_claim('k')}), '42501', 'but not in other scopes');
is($state_as->('regress_app', q{SELECT idem_scope_set('payments', wait => '1s')}), '42501', 'nor may it change the scope');
is($state_as->('regress_app', q{SELECT idem_scope_grant('payments', 'regress_stranger')}), '42501', 'nor let others in');
is($state_as->('regress_app', q{SELECT idem_scope_set('mine')}), '42501', 'nor make scopes');
is($state_as->('regress_app', q{SELECT idem_complete('held', '1', 'payments', fence) FROM idem_peek('held', 'payments')}), '42501', 'nor finish what another role claimed');
is($state_as->('regress_app', q{SELECT idem_release('held', 'payments', fence) FROM idem_peek('held', 'payments')}), '42501', 'nor release it');
is($state_as->('regress_app', q{SELECT idem_renew('held', '1s', 'payments', fence) FROM idem_peek('held', 'payments')}), '42501', 'nor renew it');
is($sql->(q{SELECT decision FROM idem_claim('held', scope => 'payments', lease => '1h')}), 'in_progress', 'it is held as before');
is($state_as->('regress_app', q{SELECT idem_complete('m1', '1', 'payments', fence) FROM idem_peek('m1', 'payments')}), '42501', 'a role is not a member of its members');
is($sql->(q{SELECT idem_complete('m1', '1', 'payments', fence) FROM idem_peek('m1', 'payments')}), '1', 'the owner of the scope may finish');
$sql->(q{SELECT idem_scope_revoke('payments', 'regress_app')});
$busy->query(q{SELECT idem_claim('m1', scope => 'payments')});
is($busy->sqlstate, '42501', 'a busy session loses access with the revoke');
$busy->quit;

# A scope of one's own.
is($state_as->('regress_owner', q{SELECT idem_scope_set('own', wait => '1s'), idem_scope_grant('own', 'regress_app')}), '00000', 'who may create scopes owns them');
is($as->('regress_app', q{SELECT decision FROM idem_claim('o', scope => 'own', lease => '1h')}), 'execute', 'others use it');
is($as->('regress_owner', q{SELECT count(*) FROM idempotency.records}), 1, 'its owner sees its keys');
is($state_as->('regress_owner', q{SELECT idem_fail('o', 'unknown', scope => 'own', fence => fence) FROM idem_peek('o', 'own')}), '00000', 'and operates on them');
is($state_as->('regress_owner', q{SELECT idem_scope_set('payments', wait => '1s')}), '42501', 'others belong to others');
is($state_as->('regress_owner', q{DELETE FROM idempotency.scope}), '42501', 'and the table to none of them');

# The caller's rights stay the caller's.
$sql->(q{SELECT idem_scope_grant('default', 'regress_app')});
is($as->('regress_app', q{SELECT result FROM idem_once('e1', 'INSERT INTO effect (key) VALUES (''e1'') RETURNING to_jsonb(by_role)')}), '"regress_app"', 'an effect runs as its caller');
is($state_as->('regress_app', q{SELECT idem_once('e2', 'INSERT INTO private VALUES (''1'') RETURNING a')}), '42501', 'with no more rights');
is($state_as->('regress_app', q{SELECT idem_once('e3', 'SELECT to_jsonb(count(*)) FROM idempotency.outcome')}), '42501', 'and none on our tables');
is($state_as->('regress_member', q{SET ROLE regress_app; SELECT idem_once('e4', 'SELECT to_jsonb(set_config(''role'', ''regress_member'', false))')}), '42501', 'it cannot change roles');
is($as->('regress_member', q{SET ROLE regress_app; SELECT result FROM idem_once('e5', 'SELECT to_jsonb(current_user)')}), '"regress_app"', 'a role that was set counts');
is($state_as->('regress_app', q{SELECT idem_peek('e2')}), '00000', 'what failed');
is($sql->(q{SELECT string_agg(key, ',' ORDER BY key) FROM idempotency.records WHERE key LIKE 'e_'}), 'e1,e5', 'left no record');
# A function that runs as another role uses that role's access.
$sql->(q{CREATE FUNCTION definer() RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = public AS $$SELECT decision FROM idem_claim('d', scope => 'payments', lease => '1h')$$});
is($as->('regress_stranger', 'SELECT definer()'), 'execute', 'SECURITY DEFINER lends its owner\'s access');
is($state_as->('regress_stranger', q{SELECT idem_peek('d', 'payments')}), '42501', 'for as long as it runs');

# --- roles that go --------------------------------------------------------------------------------------------------

$sql->(q{SELECT idem_scope_set('left'); CREATE ROLE regress_leaver LOGIN; SELECT idem_scope_grant('left', 'regress_leaver')});
is($as->('regress_leaver', q{SELECT decision FROM idem_claim('l', '{"a": 1}', 'left', lease => '1h')}), 'execute', 'a role claims');
is($sql->(q{DROP ROLE regress_leaver; SELECT state FROM idem_peek('l', 'left')}), 'in_flight', 'and is dropped: its key is there');
like($sql->(q{SELECT held_by FROM idem_find('l')}), qr/^\d+$/, 'held by a number');
is($sql->(q{SELECT idem_complete('l', '1', 'left', fence) FROM idem_peek('l', 'left')}), '1', 'an operator finishes it');
is($sql->(q{SELECT count(*) FROM idempotency.scopes}), 4, 'the scopes can still be read');

# --- secrets --------------------------------------------------------------------------------------------------------

my $log = log_position($node);
my $secret = 'tok-4711-geheim';
my $args = qq('{"card": "$secret", "$secret": 1}');
my $client = '';
$sql->(qq{SELECT idem_scope_set('tiny', max_result_bytes => 10), idem_scope_set('short', dedup_window => '1ms');
	SELECT idem_once('s1', 'SELECT \$1', $args), idem_claim('s2', $args, lease => '1h'), idem_once('s3', 'SELECT \$1', $args, 'short'), idem_claim('s4', $args, lease => '1ms');
	CREATE FUNCTION fails(a jsonb) RETURNS jsonb LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END'});
for my $statement (
	"SELECT idem_claim('s1', '{\"other\": \"$secret\"}')", "SELECT idem_claim('s2', '{\"other\": \"$secret\"}')",
	"SELECT idem_claim_many(ARRAY['s1', 's2'], ARRAY['\"$secret\"', '\"$secret\"']::jsonb[])",
	"SELECT idem_once('s1', 'SELECT \$1', '\"$secret\"')", "SELECT idem_once('s2', 'SELECT \$1', $args)",
	"SELECT idem_once('s5', 'SELECT \$1', $args, 'tiny')", "SELECT idem_once('s6', 'SELECT \$1 WHERE false', $args)",
	"SELECT idem_once('s7', 'SELECT \$1 UNION ALL SELECT \$1', $args)", "SELECT idem_once('s8', 'SELECT \$1::text', $args)",
	"SELECT idem_once('s9', 'SELECT \$1, \$1', $args)", "SELECT idem_call('s10', 'fails', $args)", "SELECT idem_call('s11', 'nowhere', $args)",
	"SELECT idem_claim('s12', $args)", "BEGIN; SELECT idem_claim('s13', $args); COMMIT", "BEGIN; SELECT idem_claim('s14', $args); PREPARE TRANSACTION 'x'",
	"SELECT idem_complete('s1', '\"$secret\"')", "SELECT idem_complete('s2', '\"$secret\"')", "SELECT idem_complete('s2', '\"$secret\"', fence => 1)",
	"SELECT idem_fail('s2', 'rejected', 'why', '\"$secret\"', fence => 1)", "SELECT idem_fail('s2', 'nonsense', 'why', '\"$secret\"', fence => 1)",
	"SELECT idem_fail('s2', 'unknown', 'why', '\"$secret\"', fence => fence) FROM idem_peek('s2')",
	"BEGIN; SELECT idem_claim('s15', $args, lease => '1h'); SELECT idem_complete('s15', '\"$secret\"', fence => fence) FROM idem_peek('s15')",
	"BEGIN READ ONLY; SELECT idem_claim('s16', $args)", "SELECT idem_claim(NULL, $args)", "SELECT idem_claim('', $args)",
	"SELECT idem_claim('s17', $args, 'no such')", "SELECT idem_claim('s18', $args, lease => '-1s')", "SELECT idem_key('r', 'o/o', $args)",
	"SELECT idem_once('s19', 'nonsense', $args)", "SELECT idem_once('s20', 'SELECT 1/0; SELECT 1', $args)", "SELECT idem_once('s20', 'SELECT to_jsonb(1/0)', $args)")
{
	my $error = error_of($node, 'app', $statement);
	# psql quotes the statement itself where the server gives a position in it.
	$error = join "\n", grep { !/^LINE \d|^ +\^/ } split /\n/, $error;
	$client .= "$error\n";
}
unlike($client, qr/\Q$secret\E/, 'neither arguments nor results are in any error');
cmp_ok(scalar(() = $client =~ /ERROR:/g), '>=', 25, 'of which there were many');
# A waiter that is cancelled, a lost deadlock, and the worker's own work. PostgreSQL's report of a deadlock shows the
# statements: arguments in their text are the client's own.
$sql->("INSERT INTO private VALUES ($args)");
my $first = IdempotencySession->open($node, 'app');
my $second = IdempotencySession->open($node, 'app', settings => { deadlock_timeout => '10ms', statement_timeout => '60s' });
$first->query("BEGIN; SELECT idem_claim('w1', $args)");
is(sqlstate_of($node, 'app', "SET statement_timeout = '50ms'; SELECT idem_claim('w1', $args, wait => '10s')"), '57014', 'a waiter is cancelled');
$second->query("BEGIN; SELECT idem_claim('w2', $args)");
my $pid = $first->backend_pid;
$first->send(q{SELECT decision FROM private, idem_claim('w2', a, wait => '20s')});
until_true($node, 'app', "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid", 'a claim waits for another transaction');
$second->query(q{SELECT decision FROM private, idem_claim('w1', a, wait => '20s')});
is($second->sqlstate, '40P01', 'a deadlock ends by an error');
is($first->answer, 'execute', 'for one of the two');
$_->quit for $first, $second;
until_true($node, 'app', q{SELECT state = 'unknown' FROM idem_peek('s4')}, 'the worker ends a lease');
until_true($node, 'app', q{SELECT state = 'absent' FROM idem_peek('s3', 'short')}, 'and prunes');
my $logged = slurp_file($node->logfile, $log);
is(join("\n", grep { /\Q$secret\E/ } split /\n/, $logged), '', 'nor are they in the log, at debug1');
like($logged, qr/ID001/, 'where the errors are');

server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
