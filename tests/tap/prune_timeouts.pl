# The worker prunes a large backlog in a database whose settings are against it, beside a transaction that stays open.
#
# Claims, and what would turn them red:
# - Settings of the database (timeouts, read-only, isolation, role, search_path) do not stop it: a worker that takes them
#   as they are.
# - It prunes everything but the keys that somebody holds, and those as soon as they are free: a batch that waits for a
#   lock, a cursor that starts again at a row that must stay and never gets past it.
# - A row that cannot be pruned (locked by a transaction, or referred to by another table) stays and holds up no other.
# - Leases end meanwhile: pruning that comes first and takes all the time.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use Test::More;

my $node = IdempotencyNode->start(preload => 1, conf => [
		"log_statement = none", "idempotency.naptime = '100ms'", "idempotency.worker = off", "wal_level = minimal" ]);
my $sql = sub { $node->safe_psql('app', "SET statement_timeout = 0; SET lock_timeout = 0; SET default_transaction_read_only = off; SET ROLE NONE; SET search_path = public, pg_catalog; SET idempotency.max_claims_per_transaction = 1000;\n$_[0]") };

# Keys that the functions made, so that they have their own digests; and very many others, all finished in the same moment,
# before and after the ones that stay.
$sql->(q{
	SELECT idem_scope_set('short', dedup_window => '1 hour'), idem_scope_set('later'), idem_scope_set('ever', keep_forever => true);
	SELECT idem_once('held', 'SELECT to_jsonb(1)'), idem_once('held-short', 'SELECT to_jsonb(1)', scope => 'short'), idem_once('row-locked', 'SELECT to_jsonb(1)'),
	       idem_once('due', 'SELECT to_jsonb(1)'), idem_once('fresh', 'SELECT to_jsonb(1)'), idem_once('fresh', 'SELECT to_jsonb(1)', scope => 'short'), idem_once('kept', 'SELECT to_jsonb(1)', scope => 'ever');
	UPDATE idempotency.outcome SET finished_at = '2020-01-01' WHERE key IN ('held', 'held-short', 'row-locked', 'due', 'kept');
	CREATE FUNCTION backlog(scope_id int, rows int) RETURNS void LANGUAGE sql AS $$
		-- What is written into the past lies behind the place where pruning goes on.
		DELETE FROM idempotency.prune_progress;
		INSERT INTO idempotency.outcome (digest, finished_at, fence, scope_id, attempt, args_rule, state, key)
		SELECT gen_random_uuid(), timestamptz '2020-01-01' + (n % 3 - 1) * interval '1 day', n, scope_id, 1, 0, 'c', 'old-' || n FROM generate_series(1, rows) AS n $$;
	SELECT backlog(0, 60000), backlog((SELECT id FROM idempotency.scope WHERE name = 'short'), 40000), backlog((SELECT id FROM idempotency.scope WHERE name = 'later'), 1000),
	       backlog((SELECT id FROM idempotency.scope WHERE name = 'ever'), 1000);
	CREATE ROLE regress_nobody; GRANT pg_monitor TO regress_nobody;
	CREATE SCHEMA evil; CREATE FUNCTION evil.eq(int, int) RETURNS bool LANGUAGE sql AS 'SELECT false'; CREATE OPERATOR evil.= (LEFTARG = int, RIGHTARG = int, FUNCTION = evil.eq);
	ALTER DATABASE app SET statement_timeout = '200ms'; ALTER DATABASE app SET lock_timeout = '50ms'; ALTER DATABASE app SET idle_in_transaction_session_timeout = '100ms';
	ALTER DATABASE app SET default_transaction_read_only = on; ALTER DATABASE app SET default_transaction_isolation = 'serializable';
	ALTER DATABASE app SET default_transaction_deferrable = on; ALTER DATABASE app SET search_path = evil, pg_catalog; ALTER DATABASE app SET role = regress_nobody;
	ALTER DATABASE app SET idempotency.max_claims_per_transaction = 5;
});
is($node->safe_psql('app', q{SELECT current_user, current_setting('statement_timeout'), current_setting('transaction_read_only')}), 'regress_nobody|200ms|on', 'the settings count for everybody else');

# Who holds keys: a claim past its window is a claim of a free key.
my $holder = IdempotencySession->open($node, 'app', settings => { statement_timeout => 0, lock_timeout => 0, idle_in_transaction_session_timeout => 0 });
$holder->query(q{SET ROLE NONE; SET default_transaction_read_only = off; SET idempotency.max_claims_per_transaction = 100;
	BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE});
is($holder->query(q{SELECT public.idem_claim('held')}) =~ s/,.*//r, '(execute', 'held: somebody claims a key past its window, and keeps the transaction open') or diag($holder->error);
is($holder->query(q{SELECT public.idem_claim('held-short', scope => 'short')}) =~ s/,.*//r, '(execute', 'held-short: in another scope, too');

$sql->(q{SELECT public.idem_claim('lease', lease => '1ms')});
$node->append_conf('postgresql.conf', 'idempotency.worker = on');
$node->reload;

my $left = q{SELECT COALESCE(string_agg(line, ','), '') FROM (
	SELECT s.name || ' ' || o.key AS line FROM idempotency.outcome o JOIN (SELECT id, name FROM idempotency.scope UNION ALL SELECT 0, 'default') s ON s.id = o.scope_id
	 WHERE s.name <> 'ever' AND o.key <> 'fresh' ORDER BY line LIMIT 5) l};
within(120, 'everything is pruned but the keys that are held', sub { $sql->($left) eq 'default held,short held-short' }) or diag($sql->($left));
is($sql->(q{SELECT count(*) FROM idempotency.outcome o JOIN idempotency.scope s ON s.id = o.scope_id WHERE s.name = 'ever'}), 1001, 'what is kept for ever is there');
is($sql->(q{SELECT count(*) FROM idempotency.outcome WHERE key = 'fresh'}), 2, 'what is within its window, too');
is($sql->(q{SELECT state FROM public.idem_peek('lease')}), 'unknown', 'a lease ended meanwhile');
is($sql->(q{SELECT worker, last_error FROM public.idem_status()}), 'running|', 'idem_status tells of no error');
# But for autovacuum, which does take the role as it is.
is(join("\n", grep { !/can (?:vacuum|analyze) it|permission denied to (?:vacuum|analyze)/ } log_matches($node, qr/\[\d+\] (ERROR|FATAL|PANIC|WARNING):/)), '', 'nor does the log');

$holder->query('ROLLBACK');
within(30, 'the held ones follow when they are free', sub { $sql->($left) eq '' }) or diag($sql->($left));

# --- rows that cannot be deleted ------------------------------------------------------------------------------------

# Each alone, in the middle of a new backlog.
my $behind = q{SELECT count(*) FROM idempotency.outcome WHERE key LIKE 'old-%' AND scope_id = 0};
for my $case (
	[ 'a row that a transaction locks', q{BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT FROM idempotency.outcome WHERE key = 'stays' FOR UPDATE}, 'ROLLBACK' ],
	[ 'a row that another table refers to', q{CREATE TABLE public.receipt (digest uuid REFERENCES idempotency.outcome); INSERT INTO public.receipt SELECT digest FROM idempotency.outcome WHERE key = 'stays'}, 'DROP TABLE public.receipt' ])
{
	my ($name, $begin, $end) = @$case;
	my $log = log_position($node);
	$node->append_conf('postgresql.conf', 'idempotency.worker = off');
	$node->reload;
	until_true($node, 'app', q{SELECT worker LIKE 'off%' FROM public.idem_status()}, "$name: the worker is off");
	$sql->(q{SELECT public.idem_once('stays', 'SELECT pg_catalog.to_jsonb(1)'); UPDATE idempotency.outcome SET finished_at = '2020-01-01' WHERE key = 'stays'; SELECT public.backlog(0, 3000)});
	$holder->query($begin);
	is($holder->error, '', "$name: it stays");
	$node->append_conf('postgresql.conf', 'idempotency.worker = on');
	$node->reload;
	within(20, "$name: holds up no other", sub { $sql->($behind) eq '0' }) or diag($sql->($behind) . ' rows are left; last_error: ' . $sql->('SELECT last_error FROM public.idem_status()'));
	is($sql->(q{SELECT count(*) FROM idempotency.outcome WHERE key = 'stays'}), 1, "$name: is there");
	$holder->query($end);
	within(30, "$name: follows when it can", sub { $sql->(q{SELECT count(*) FROM idempotency.outcome WHERE key = 'stays'}) eq '0' });
	cmp_ok(scalar(log_matches($node, qr/\[\d+\] (ERROR|FATAL|WARNING|LOG:  idempotency)/, $log)), "<", 60, "$name: does not flood the log");
}

# The same for leases, which come before all pruning.
$sql->(q{SELECT public.idem_claim('stays', lease => '1ms'); SELECT public.backlog(0, 1000)});
$holder->query(q{BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SELECT FROM idempotency.claim WHERE key = 'stays' FOR UPDATE});
is($holder->error, '', 'a claim that a transaction locks: it stays');
$sql->(q{SELECT public.idem_claim('next-' || n, lease => '1ms') FROM generate_series(1, 12) AS n});
within(20, 'a claim that a transaction locks: holds up no other', sub { $sql->(q{SELECT count(*) FROM idempotency.records WHERE key LIKE 'next-%' AND state = 'unknown'}) eq '12' })
  or diag($sql->('SELECT last_error FROM public.idem_status()'));
within(20, 'a claim that a transaction locks: nor the pruning', sub { $sql->($behind) eq '0' });
$holder->query('ROLLBACK');
within(30, 'a claim that a transaction locks: follows when it can', sub { $sql->(q{SELECT state FROM public.idem_peek('stays')}) eq 'unknown' });
$holder->quit;
until_true($node, 'app', q{SELECT worker = 'running' AND last_error IS NULL FROM public.idem_status()}, 'no error is left');
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
