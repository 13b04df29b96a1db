# Sessions that many callers share: nothing of a call outlives its transaction, so a pool may hand the session to anybody.
#
# Claims, and what would turn them red:
# - After any transaction, however it ended, the session holds no lock of a key or of our tables, and has the settings it
#   had: a session-level lock, a LockTimeout that is not put back, an identity that stays switched.
# - DISCARD ALL, DISCARD PLANS and DEALLOCATE ALL change no answer: a plan or a cache that they take away.
# - A claim is finished by its fence from any other connection: state in the session that claimed.
#
# pgbouncer.pl looks at such a pool itself.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use Test::More;

my $node = IdempotencyNode->start(preload => 1, conf => [ "log_statement = none", "deadlock_timeout = '50ms'", "max_connections = 30" ]);
my $sql = sub { $node->safe_psql('app', $_[0]) };

effect_table($node, 'app');
$sql->(q{SELECT idem_once('done', 'SELECT to_jsonb(1)', '{"a": 1}'), idem_claim('leased', lease => '1h');
	CREATE FUNCTION f(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1'});

# --- nothing outlives the transaction -------------------------------------------------------------------------------

my $holder = IdempotencySession->open($node, 'app');
$holder->query(q{BEGIN; SELECT idem_claim('held')});

my $session = IdempotencySession->open($node, 'app', settings => { lock_timeout => '7s', statement_timeout => '90s' });
my $pid = $session->backend_pid;
my $settings = q{SELECT md5(string_agg(name || '=' || setting, ',' ORDER BY name)), current_user, session_user, current_setting('lock_timeout')
	FROM pg_settings WHERE name NOT LIKE 'transaction%' AND name <> 'in_hot_standby'};
my $locks = q{SELECT COALESCE(string_agg(concat_ws(' ', l.locktype, l.mode, c.relname), ', '), 'none') FROM pg_locks l LEFT JOIN pg_class c ON c.oid = l.relation
	WHERE l.pid = %s AND (l.locktype = 'advisory' OR c.relnamespace = 'idempotency'::regnamespace)};
# The first calls load the libraries, which define their settings.
$session->query('SELECT idem_status(); DO $$BEGIN END$$');
my $as_at_first = $session->query($settings);

for my $case (
	[ '00000', 'completed', q{BEGIN; SELECT idem_claim('a1'); SELECT idem_complete('a1'); COMMIT} ],
	[ '00000', 'rolled back', q{BEGIN; SELECT idem_claim('a2'); ROLLBACK} ],
	[ 'ID004', 'left open at COMMIT', q{BEGIN; SELECT idem_claim('a3'); COMMIT} ],
	[ 'ID004', 'left open without BEGIN', q{SELECT idem_claim('a4')} ],
	[ '00000', 'failed', q{BEGIN; SELECT idem_claim('a5'); SELECT idem_fail('a5', 'unknown', 'why'); COMMIT} ],
	[ '00000', 'released', q{BEGIN; SELECT idem_claim('a6'); SELECT idem_release('a6'); COMMIT} ],
	[ '00000', 'leased', q{SELECT idem_claim('a7', lease => '1h')} ],
	[ '00000', 'renewed', q{SELECT idem_renew('a7', '30min', fence => fence) FROM idem_peek('a7')} ],
	[ '00000', 'replayed', q{SELECT idem_claim('done', '{"a": 1}')} ],
	[ 'ID001', 'mismatched', q{SELECT idem_claim('done', '{"a": 2}')} ],
	[ '00000', 'in progress at once', q{SELECT idem_claim('held', wait => '0')} ],
	[ '00000', 'in progress after a wait', q{SELECT idem_claim('held', wait => '20ms')} ],
	[ '00000', 'in progress after a wait for a lease', q{SELECT idem_claim('leased', wait => '20ms')} ],
	[ '00000', 'a wait within a transaction', q{BEGIN; SELECT idem_claim('a8'); SELECT idem_claim('held', wait => '20ms'); SELECT idem_complete('a8'); COMMIT} ],
	[ '57014', 'a wait that was cancelled', q{BEGIN; SET LOCAL statement_timeout = '30ms'; SELECT idem_claim('held', wait => '30s'); COMMIT} ],
	[ '57014', 'a wait for a lease that was cancelled', q{BEGIN; SET LOCAL statement_timeout = '30ms'; SELECT idem_claim('leased', wait => '30s'); COMMIT} ],
	[ '00000', 'a wait that lock_timeout ended', q{BEGIN; SET LOCAL lock_timeout = '20ms'; SELECT idem_claim('held', wait => '30s'); COMMIT} ],
	[ 'ID002', 'idem_once in progress', q{SELECT idem_once('held', 'SELECT to_jsonb(1)', wait => '20ms')} ],
	[ '00000', 'idem_once', q{SELECT idem_once('a9', 'SELECT to_jsonb(1)')} ],
	[ '22012', 'an effect that raised', q{SELECT idem_once('a10', 'SELECT to_jsonb(1/0)')} ],
	[ '00000', 'an effect that was caught', q{DO $$BEGIN PERFORM idem_once('a11', 'SELECT to_jsonb(1/0)'); EXCEPTION WHEN division_by_zero THEN NULL; END$$} ],
	[ '00000', 'idem_call', q{SELECT idem_call('a12', 'f', '1')} ],
	[ '00000', 'rolled back to a savepoint', q{BEGIN; SAVEPOINT s; SELECT idem_claim('a13'); ROLLBACK TO s; COMMIT} ],
	[ '00000', 'in a cursor', q{BEGIN; DECLARE c CURSOR FOR SELECT idem_claim('a14', lease => '1h'); FETCH c; COMMIT} ],
	[ '00000', 'many', q{BEGIN; SELECT idem_claim_many(ARRAY['a15', 'a16', 'held', 'done'], wait => '20ms'); SELECT idem_complete_many(ARRAY['a15', 'a16']); COMMIT} ],
	[ '00000', 'prepared', q{BEGIN; SELECT idem_claim('a17'); SELECT idem_complete('a17'); PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p'} ],
	[ 'ID004', 'left open at PREPARE', q{BEGIN; SELECT idem_claim('a18'); PREPARE TRANSACTION 'p'} ],
	[ '00000', 'repeatable read', q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT idem_claim('a19'); SELECT idem_complete('a19'); COMMIT} ],
	[ '00000', 'looked at', q{SELECT idem_peek('held'), idem_find('held'); SELECT FROM idempotency.records} ],
	[ '00000', 'a scope set', q{SELECT idem_scope_set('pool', wait => '1s')} ],
	[ '00000', 'swept', q{SELECT idem_sweep()} ],
	[ '00000', 'swept to the end', q{CALL idempotency.sweep()} ])
{
	my ($sqlstate, $name, $statements) = @$case;
	$session->query($statements);
	is($session->sqlstate, $sqlstate, "$name: as expected");
	$session->query('ROLLBACK') if $sqlstate ne '00000';
	is($sql->(sprintf $locks, $pid), 'none', "$name: no lock is left");
	is($session->query($settings), $as_at_first, "$name: the settings and the role are as before");
}
$holder->quit;
is($sql->(q{SELECT string_agg(key, ',' ORDER BY key) FROM idempotency.records WHERE key IN ('a2', 'a3', 'a4', 'a10', 'a11', 'a13', 'a17', 'a18', 'held')}), '',
	'and what was not finished left nothing');

# --- DISCARD --------------------------------------------------------------------------------------------------------

for my $discard ('DISCARD ALL', 'DISCARD PLANS', 'DISCARD TEMP', 'DEALLOCATE ALL', 'RESET ALL', 'RESET SESSION AUTHORIZATION')
{
	my $key = lc($discard) =~ tr/ /_/r;
	is($session->query(qq{SELECT result FROM idem_once('$key', 'INSERT INTO effect (key, scope) VALUES (''$key'', ''default'') RETURNING to_jsonb(id)')}) . $session->sqlstate,
		$sql->("SELECT id FROM effect WHERE key = '$key'") . '00000', "before $discard");
	$session->query($discard);
	is($session->query(qq{SELECT replayed FROM idem_once('$key', 'INSERT INTO effect (key, scope) VALUES (''$key'', ''default'') RETURNING to_jsonb(id)')}), 't', "after $discard: replays");
	# The very same text, so that a kept plan would be used again.
	is($session->query(qq{SELECT replayed FROM idem_once('$key-2', 'SELECT \$1', '2')}), 'f', "after $discard: executes");
	is($session->query(qq{SELECT replayed FROM idem_call('$key-3', 'f', '3')}), 'f', "after $discard: calls");
	my $fence = $session->query("SELECT fence FROM idem_claim('$key-4', lease => '1h')");
	$session->query($discard);
	is($sql->("SELECT idem_complete('$key-4', '4', fence => $fence)"), 4, "$discard between claim and completion, from another connection");
}
$session->quit;
# Before it is claimed again by whoever comes next.
is($sql->(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), 0, 'no key is locked');

server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked|you don't own a lock/, 'nothing crashed');

done_testing();
