# Behind pgbouncer: clients that are handed another server connection for each transaction, and server connections that are handed
# from client to client.
#
# Claims, and what would turn them red:
# - Many clients over few server connections: every key gets one effect, in simple and extended protocol, with prepared statements
#   where pgbouncer carries them (from 1.21 on; an older one refuses them, and nothing happens twice), with DISCARD ALL after every
#   transaction, and in statement mode with what is one statement: state in the session.
# - A claim is finished by its fence through any server connection, and a repeat is told so through any.
# - Nothing of one client is left for the next one on the same server connection: no open claim, no count of claims, no setting by
#   SET LOCAL, no role's right to a scope: memory that outlives its transaction.
# - A client that vanishes within a transaction leaves neither effect nor record nor lock; one that vanishes while it waits leaves both
#   or neither; a lease outlives its client. So it is when pgbouncer itself is killed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use Pgbouncer;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => Pgbouncer->missing if Pgbouncer->missing;

my $node = IdempotencyNode->start(preload => 1, conf => [ "log_statement = none", "max_connections = 40" ]);
my $sql = sub { $node->safe_psql('app', $_[0]) };
my $version = Pgbouncer->version;
note("pgbouncer $version");

effect_table($node, 'app');
$sql->(q{
	SELECT idem_scope_set('local', effect_kind => 'local'), idem_scope_set('tenant');
	CREATE FUNCTION f(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
	CREATE FUNCTION put(args jsonb) RETURNS jsonb LANGUAGE sql AS $$INSERT INTO effect (key, scope) VALUES (args ->> 'k', 'default') RETURNING to_jsonb(id)$$;
	CREATE ROLE regress_granted; CREATE ROLE regress_other; SELECT idem_scope_grant('tenant', 'regress_granted')});

sub through { my ($pool) = @_; return IdempotencySession->open($node, 'app', connstr => $pool->connstr); }

# --- load -----------------------------------------------------------------------------------------------------------

use constant KEYS => 150;

# Each key is fought over by all clients. In statement mode there is no BEGIN.
sub scripts
{
	my ($prefix, %option) = @_;
	my $draw = '\set n random(1, ' . KEYS . ')';
	my $key = sub { "'$prefix $_[0] ' || :n" };
	my %scripts = (
		"$draw\nSELECT result FROM idem_once(" . $key->('once') . ', $$' . effect_statement(q{$1->>'k'}, 'default') . q{$$, jsonb_build_object('k', } . $key->('once') . "));\n" => 1,
		"$draw\nSELECT result FROM idem_call(" . $key->('call') . q{, 'put', jsonb_build_object('k', } . $key->('call') . "));\n" => 1,
		"$draw
SELECT (decision = 'execute')::int AS mine, COALESCE(fence, 0) AS fence FROM idem_claim(" . $key->('leased') . ", scope => 'local', lease => '1min') \\gset
\\if :mine
WITH e AS (" . effect_statement($key->('leased'), 'local') . ") SELECT idem_complete(" . $key->('leased') . ", to_jsonb, 'local', :fence) AS done FROM e \\gset
\\endif\n" => 1);

	$scripts{"$draw
BEGIN;
SELECT (decision = 'execute')::int AS mine FROM idem_claim(" . $key->('transaction') . ") \\gset
\\if :mine
" . effect_statement($key->('transaction'), 'default') . " \\gset
SELECT idem_complete(" . $key->('transaction') . ", to_jsonb(:to_jsonb::bigint)) AS done \\gset
\\endif
COMMIT;\n"} = 1 unless $option{single};
	return \%scripts;
}

# A thread for each client: pgbench waits for the answer to a Prepare with the whole thread.
my @threads = (more => [ '-j', 12 ]);

# Twelve clients until each key of the prefix has its effect.
sub finishes
{
	my ($pool, $name, $prefix, %option) = @_;
	my $load = load_start($node, 'app', scripts($prefix, %option), clients => 12, protocol => $option{protocol}, @threads, $pool->where);
	my $keys = KEYS * ($option{single} ? 3 : 4);

	until_true($node, 'app', "SELECT count(*) >= $keys FROM effect WHERE key LIKE '$prefix %'", "$name: twelve clients finish every key");
	unlike(load_stop($load), qr/ERROR|error:/, "$name: without an error");
	is($sql->("SELECT count(*), count(DISTINCT key) FROM effect WHERE key LIKE '$prefix %'"), "$keys|$keys", "$name: each has one effect");
	all_is_well($name);
	return;
}

# What a client had claimed under a lease and not finished is its own for that time. Here it is given back, by its fence.
sub give_back
{
	my ($prefix) = @_;

	$sql->("SELECT idem_release(key, scope, fence) FROM idempotency.records WHERE key LIKE '$prefix leased %' AND state = 'in_flight'");
	return;
}

sub all_is_well
{
	my ($name) = @_;

	until_true($node, 'app', q{SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory'}, "$name: no key is locked");
	is($sql->(q{SELECT e.key FROM effect e LEFT JOIN idempotency.records r USING (scope, key) WHERE r.state IS DISTINCT FROM 'completed' OR r.result <> to_jsonb(e.id)
		UNION ALL SELECT key FROM effect GROUP BY scope, key HAVING count(*) > 1 LIMIT 5}), '', "$name: every effect has its record, and no key has two");
	return;
}

{
	my $pool = Pgbouncer->start($node, 'app');
	like($sql->('SELECT version()'), qr/PostgreSQL/, 'there is a server behind it');
	finishes($pool, 'simple protocol', 'simple', protocol => 'simple');
	finishes($pool, 'extended protocol', 'extended', protocol => 'extended');
	is($sql->(q{SELECT count(*) <= 3 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()}), 't', 'over three server connections');
	$pool->stop;
}
if ($version >= 12_100)
{
	my $pool = Pgbouncer->start($node, 'app', max_prepared_statements => 100);
	finishes($pool, 'prepared statements', 'prepared', protocol => 'prepared');
	$pool->stop;
}
else
{
	# Each client prepares on whatever connection it is handed, and finds the names of others on the next.
	my $pool = Pgbouncer->start($node, 'app');
	my $log = log_position($node);
	my $load = load_start($node, 'app', scripts('prepared'), clients => 12, protocol => 'prepared', @threads, $pool->where);

	$node->wait_for_log(qr/ERROR:  prepared statement "\w+" (?:does not exist|already exists)/, $log);
	pass('prepared statements: pgbouncer before 1.21 does not carry them, and PostgreSQL says so');
	load_stop($load);
	$pool->stop;
	all_is_well('prepared statements');
	give_back('prepared');
	$pool = Pgbouncer->start($node, 'app');
	finishes($pool, 'prepared statements are off', 'prepared', protocol => 'extended');
	$pool->stop;
}
{
	my $pool = Pgbouncer->start($node, 'app', server_reset_query => 'DISCARD ALL', server_reset_query_always => 1);
	finishes($pool, 'DISCARD ALL after each transaction', 'discard', protocol => 'extended');
	$pool->stop;
}
{
	my $pool = Pgbouncer->start($node, 'app', pool_mode => 'statement');
	finishes($pool, 'statement mode', 'statement', protocol => 'simple', single => 1);
	my $session = through($pool);
	$session->query('BEGIN');
	like($session->error, qr/transaction blocks not allowed in statement pooling mode/, 'statement mode: a transactional claim is not to be had, and pgbouncer says so');
	$session->forget;
	$pool->stop;
}

# --- through other server connections -------------------------------------------------------------------------------

{
	my $pool = Pgbouncer->start($node, 'app');
	my ($first, $second) = map { through($pool) } 1 .. 2;
	my ($claimed_by, $decision, $fence) = split /\|/, $first->query(q{SELECT pg_backend_pid(), decision, fence FROM idem_claim('pooled', lease => '1h')});
	is($decision, 'execute', 'a leased claim through the pool');
	# Whoever is in a transaction keeps its server connection.
	$first->query('BEGIN');
	my $other = $second->query('BEGIN; SELECT pg_backend_pid()');
	my $third = through($pool);
	my $finisher = $other == $claimed_by ? $third : $second;
	$third->query('BEGIN');
	isnt($finisher->query('SELECT pg_backend_pid()'), $claimed_by, 'another client has another server connection');
	is($finisher->query("SELECT idem_complete('pooled', '5', fence => $fence)"), 5, 'it finishes the claim');
	$_->query('COMMIT') for $first, $second, $third;
	is($first->query(q{SELECT decision, result FROM idem_claim('pooled')}), 'replay|5', 'and the first one is told so');

	for my $call ([ 'idem_once', q{idem_once('pair', $$INSERT INTO effect (key, scope) VALUES ('pair', 'default') RETURNING to_jsonb(id)$$, wait => %s)} ],
		[ 'idem_call', q{idem_call('pair by call', 'put', '{"k": "pair by call"}', wait => %s)} ])
	{
		my ($name, $text) = @$call;
		my $says = sub { my ($session, $wait) = @_; return $session->query('SELECT result, replayed FROM ' . sprintf($text, $wait)) };

		$first->query('BEGIN');
		my $answer = $says->($first, q{'1 s'});
		like($answer, qr/^\d+\|f$/, "$name: executes");
		$says->($second, q{'0'});
		is($second->sqlstate, 'ID002', "$name: a second client, on another server connection, is told that it is in progress");
		$third->send('SELECT result, replayed FROM ' . sprintf($text, q{'1 min'}));
		until_true($node, 'app', q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}, "$name: a third one waits");
		$first->query('COMMIT');
		is($third->answer, $answer =~ s/f$/t/r, "$name: and is given the first answer");
		is($says->($_, q{'0'}), $answer =~ s/f$/t/r, "$name: so is whoever asks again") for $first, $second;
	}
	$_->quit for $first, $second, $third;
	$pool->stop;
	all_is_well('other connections');
}

# --- the same server connection, one client after the other ----------------------------------------------------------

{
	my $pool = Pgbouncer->start($node, 'app', default_pool_size => 1);
	my ($first, $second) = map { through($pool) } 1 .. 2;
	is($first->query('SELECT pg_backend_pid()'), $second->query('SELECT pg_backend_pid()'), 'two clients have one server connection');

	my @settings = ('idempotency.wait', 'lock_timeout', 'statement_timeout', 'role', 'transaction_isolation');
	my $show = 'SELECT ' . join(', ', map { "current_setting('$_')" } @settings);
	my $default = $second->query("SELECT idem_status(); $show") =~ s/.*\n//sr;
	$first->query(q{BEGIN ISOLATION LEVEL SERIALIZABLE; SET LOCAL idempotency.wait = '20 ms'; SET LOCAL lock_timeout = '7 s'; SET LOCAL statement_timeout = '90 s'; SET LOCAL ROLE regress_granted;
		SELECT idem_claim('set', scope => 'tenant'); SELECT idem_complete('set', scope => 'tenant')});
	isnt($first->query($show), $default, 'a client has settings of its own in its transaction');
	$first->query('COMMIT');
	is($first->sqlstate, '00000', 'and claims and completes in it');
	is($second->query($show), $default, 'the next client has none of them');
	# So that this would be seen: what is set for a session stays, and pgbouncer does not take it away in transaction mode.
	$first->query(q{SET idempotency.wait = '20 ms'});
	isnt($second->query($show), $default, 'SET without LOCAL is left for the next client: not for pools');
	$first->query(q{RESET idempotency.wait});

	# Claims of one transaction.
	my $held = sub { my ($session, $key) = @_; $session->query("SELECT idem_complete('$key', '1')"); return $session->sqlstate };
	$first->query(q{BEGIN; SELECT idem_claim('left')});
	$first->query('COMMIT');
	is($first->sqlstate, 'ID004', 'a claim left open is refused at COMMIT');
	is($held->($second, 'left'), 'ID004', 'the next client cannot complete it');
	is($second->query(q{BEGIN; SELECT decision FROM idem_claim('left', wait => '0'); ROLLBACK}), 'execute', 'and may claim it');
	$first->query(q{BEGIN; SELECT idem_claim('rolled back'); ROLLBACK});
	is($held->($second, 'rolled back'), 'ID004', 'nor one that was rolled back');
	$first->query(q{BEGIN; SELECT idem_claim('failed'); SELECT 1 / 0});
	$first->query('ROLLBACK');
	is($held->($second, 'failed'), 'ID004', 'nor one whose transaction failed');
	my $fence = $first->query(q{SELECT fence FROM idem_claim('outside', lease => '1 h')});
	is($second->query(q{SELECT decision, reason FROM idem_claim('outside')}), 'in_progress|', 'a lease of another client is not taken for its own');
	is($second->query("SELECT idem_complete('outside', '1', fence => $fence)"), 1, 'nor its completion for one in the transaction of the claim');
	my $three = q{BEGIN; SET LOCAL idempotency.max_claims_per_transaction = 3; SELECT count(*) FROM idem_claim_many(ARRAY['n1', 'n2', 'n3']) WHERE decision = 'execute'};
	is($_->query($three), 3, 'three claims, no more than are allowed') && $_->query('ROLLBACK') for $first, $second, $first;

	# Roles.
	is($first->query(q{BEGIN; SET LOCAL ROLE regress_granted; SELECT state FROM idem_peek('set', 'tenant')}), 'completed', 'a role sees its scope');
	my $tenant_fence = $first->query(q{SELECT fence FROM idem_claim('of the tenant', scope => 'tenant', lease => '1 h')});
	$first->query('COMMIT');
	for my $call (q{idem_peek('set', 'tenant')}, q{idem_claim('set', scope => 'tenant')}, q{idem_claim('new', scope => 'tenant', lease => '1 h')}, "idem_complete('of the tenant', '1', 'tenant', $tenant_fence)")
	{
		$second->query("BEGIN; SET LOCAL ROLE regress_other; SELECT $call");
		is($second->sqlstate, '42501', "another role on the same connection may not: $call");
		$second->query('ROLLBACK');
	}
	is($second->query(q{BEGIN; SET LOCAL ROLE regress_other; SELECT count(*) FROM idempotency.records WHERE scope = 'tenant'; COMMIT}), 0, 'nor does it see the keys');
	$sql->(q{SELECT idem_scope_grant('tenant', 'regress_other')});
	is($second->query(q{BEGIN; SET LOCAL ROLE regress_other; SELECT decision FROM idem_claim('set', scope => 'tenant'); COMMIT}), 'replay', 'a grant reaches the connection at once');
	$_->quit for $first, $second;
	$pool->stop;

	# With the reset that is meant for session mode.
	$pool = Pgbouncer->start($node, 'app', default_pool_size => 1, server_reset_query => 'DISCARD ALL', server_reset_query_always => 1);
	($first, $second) = map { through($pool) } 1 .. 2;
	$first->query(q{SET lock_timeout = '7 s'});
	is($second->query('SHOW lock_timeout'), '0', 'DISCARD ALL after each transaction: SET is gone as well');
	$fence = $first->query(q{SELECT fence FROM idem_claim('discarded', '{"a": 1}', lease => '1 h')});
	is($second->query("SELECT idem_complete('discarded', '6', fence => $fence)"), 6, 'DISCARD ALL between claim and completion');
	is($first->query(q{SELECT decision, result FROM idem_claim('discarded', '{"a": 1}')}), 'replay|6', 'and before the replay');
	$_->quit for $first, $second;
	$pool->stop;
	all_is_well('the same connection');
}

# --- clients that vanish --------------------------------------------------------------------------------------------

my $once = sub { "SELECT result FROM idem_once('$_[0]', \$\$" . effect_statement("'$_[0]'", 'default') . q{$$, wait => '1 min')} };

{
	my $pool = Pgbouncer->start($node, 'app');
	my ($lost, $other) = map { through($pool) } 1 .. 2;

	$lost->query(q{BEGIN; SELECT idem_claim('vanished'); INSERT INTO effect (key, scope) VALUES ('vanished', 'default'); SELECT idem_complete('vanished', to_jsonb(currval('effect_id_seq')))});
	is($other->query(q{SELECT decision FROM idem_claim('vanished', wait => '0')}), 'in_progress', 'a client is in the middle of its transaction');
	$lost->kill_client;
	within(60, 'it is gone, and its key is free', sub { $other->query(q{BEGIN; SELECT decision FROM idem_claim('vanished', wait => '0'); ROLLBACK}) eq 'execute' });
	is($sql->(q{SELECT count(*) FROM effect WHERE key = 'vanished'}), 0, 'its effect is gone as well');
	like($other->query($once->('vanished')), qr/^\d+$/, 'the next client executes');

	$lost = through($pool);
	my $fence = $lost->query(q{SELECT fence FROM idem_claim('left behind', lease => '1 h')});
	$lost->kill_client;
	is($other->query(q{SELECT decision FROM idem_claim('left behind')}), 'in_progress', 'a lease outlives its client');
	is($other->query("SELECT idem_complete('left behind', '1', fence => $fence)"), 1, 'and is finished by its fence');

	my $holder = IdempotencySession->open($node, 'app');
	$holder->query(q{BEGIN; SELECT idem_claim('waited for')});
	$lost = through($pool);
	$lost->send($once->('waited for'));
	until_true($node, 'app', q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}, 'a client waits for a key');
	$lost->kill_client;
	$holder->query('ROLLBACK');
	my $answer = $other->query($once->('waited for'));
	is($answer, $sql->(q{SELECT id FROM effect WHERE key = 'waited for'}), 'it vanished: there is one effect, and whoever asks is told of it');
	$_->quit for $holder, $other;
	all_is_well('clients that vanish');

	# pgbouncer itself, with all its clients in the middle of work.
	my $load = load_start($node, 'app', scripts('killed'), clients => 12, $pool->where);
	until_true($node, 'app', q{SELECT count(*) >= 100 FROM effect WHERE key LIKE 'killed %'}, 'clients work');
	$pool->stop('KILL');
	load_stop($load);
	until_true($node, 'app', q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()}, 'pgbouncer is killed, and its server connections end');
	all_is_well('pgbouncer killed');
	$pool->run;
	give_back('killed');
	finishes($pool, 'pgbouncer is back', 'killed');
	$pool->stop;
}

server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked|you don't own a lock/, 'nothing crashed');

done_testing();
