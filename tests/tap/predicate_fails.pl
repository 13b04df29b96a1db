# A scope's run_is_alive is somebody else's code. Whatever it does - hang, raise, recurse, end its process, write - the worker
# goes on with the other scopes and says so, and the keys that were asked about stay.
#
# Claims, and what would turn them red:
# - The keys stay: a predicate that fails and is taken for one that says false.
# - Other scopes are pruned, and leases end, within seconds: one scope that takes a whole visit, each time; a process that ends
#   before it came to the others, always in the same order.
# - idem_status() names the scope and the failure, as long as it lasts: an error that is gone with the next visit.
# - Claims of these keys do not wait for it: keys that are locked while the predicate is asked.
# - One that used up its time is not asked for a minute, unless its scope is told of another: a visit that is lost each time.
# - The log says it once: a line for each visit, or none.
# - It runs as the scope's owner, and what it writes is undone: a predicate that is called as the worker.
# - Mended, it is asked again, and the keys go a window after it first said false: a failure that is remembered for good.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencyTools;
use Test::More;

my $node = IdempotencyNode->start(preload => 1, conf => [ "log_statement = none", "idempotency.naptime = '300ms'" ]);
my $sql = sub { $node->safe_psql('app', $_[0]) };

$sql->(q{
	CREATE ROLE regress_owner; GRANT CREATE ON SCHEMA idempotency TO regress_owner; GRANT CREATE ON SCHEMA public TO regress_owner;
	CREATE TABLE asked (run text, by text); GRANT INSERT, SELECT ON asked TO regress_owner;
	SET ROLE regress_owner;
	CREATE FUNCTION alive(run text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
	CREATE FUNCTION over(run text) RETURNS boolean LANGUAGE sql AS 'SELECT false';
	SELECT idem_scope_set('asked', dedup_window => '1 hour', run_is_alive => 'alive'), idem_scope_set('plain', dedup_window => '1 hour'), idem_scope_set('over', dedup_window => '1 hour', run_is_alive => 'over');
	RESET ROLE;
	CREATE FUNCTION backlog(of_scope text, name text, rows int, of_run text DEFAULT NULL) RETURNS void LANGUAGE sql AS $$
		DELETE FROM idempotency.prune_progress;
		INSERT INTO idempotency.outcome (digest, finished_at, fence, scope_id, attempt, args_rule, state, key, run)
		SELECT gen_random_uuid(), now() - interval '1 day' + n * interval '1 us', n, (SELECT id FROM idempotency.scope WHERE name = of_scope), 1, 0, 'c', name || '-' || n, of_run || n
		  FROM generate_series(1, rows) AS n $$});

sub left { return $sql->("SELECT count(*) FROM idempotency.records WHERE scope = '$_[0]' AND key <> 'held'"); }

sub predicate
{
	my ($body, $language) = @_;

	# As a superuser, who gives it to the scope's owner: some of these a plain role may not even write.
	$sql->("CREATE OR REPLACE FUNCTION alive(run text) RETURNS boolean LANGUAGE " . ($language // 'plpgsql') . " AS \$body\$ $body \$body\$");
	# The one before may be one that is not asked for a minute.
	return $sql->(q{SELECT idem_scope_set('asked', run_is_alive => 'alive')});
}

my $log;
for my $case (
	[ 'raises', q{BEGIN RAISE 'orchestrator unreachable'; END}, qr/orchestrator unreachable/ ],
	[ 'divides by zero', q{BEGIN RETURN 1 / 0 = 1; END}, qr/division by zero/ ],
	[ 'hangs', q{BEGIN PERFORM pg_sleep(3600); RETURN false; END}, qr/no answer within 1000 ms/ ],
	[ 'is busy for ever', q{BEGIN LOOP END LOOP; END}, qr/no answer within 1000 ms/ ],
	[ 'recurses for ever', q{BEGIN RETURN public.alive(run); END}, qr/stack depth/ ],
	[ 'swallows the cancel', q{BEGIN LOOP BEGIN PERFORM pg_sleep(3600); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END}, qr/used up its time, or ended the worker|no answer within 1000 ms/ ],
	[ 'holds a lock of its own', q{BEGIN LOCK TABLE idempotency.outcome IN ACCESS EXCLUSIVE MODE NOWAIT; RETURN false; END}, qr/permission denied/ ],
	[ 'leaves its role', q{BEGIN RESET ROLE; RETURN false; END}, qr/cannot set parameter "role"/ ],
	[ 'has no answer', q{BEGIN RETURN NULL; END}, undef ],
	[ 'says that they live', q{BEGIN RETURN true; END}, undef ])
{
	my ($name, $body, $error) = @$case;

	$log = log_position($node);
	predicate($body);
	$sql->(qq{SELECT backlog('asked', '$name', 5, '$name'), backlog('plain', '$name', 3000), backlog('over', '$name', 100, 'over'); SELECT idem_claim('lease of $name', scope => 'plain', lease => '1ms')});
	my $replay = '';
	my $took = seconds_of(sub { $replay = $sql->(qq{SELECT replayed FROM idem_once('held', 'SELECT to_jsonb(1)', scope => 'asked', run => 'held')}) });
	cmp_ok($took, '<', 2, sprintf('%s: a claim does not wait for it (%.2f s)', $name, $took));
	within(60, "$name: another scope is pruned", sub { $sql->(q{SELECT count(*) FROM idempotency.outcome o JOIN idempotency.scope s ON s.id = scope_id WHERE s.name = 'plain'}) eq '0' });
	within(30, "$name: leases end", sub { $sql->(qq{SELECT state FROM idem_peek('lease of $name', 'plain')}) eq 'unknown' });
	within(60, "$name: the runs of a scope whose predicate answers are seen to be over", sub { $sql->(q{SELECT count(*) FROM idempotency.run JOIN idempotency.scope ON id = scope_id WHERE name = 'over'}) eq '100' });
	if ($error)
	{
		# One that took all its time is not asked in the visits that follow.
		my $says = qr/$error|not asked for a minute/;
		within(20, "$name: idem_status says so", sub { $sql->('SELECT last_error FROM idem_status()') =~ $says })
		  or diag($sql->('SELECT last_error FROM idem_status()'));
		like($sql->('SELECT last_error FROM idem_status()'), qr/run_is_alive of scope asked/, "$name: with the scope");
		# Some visits later.
		my ($visits, $last, $lasting) = (0, '', 1);
		within(60, "$name: the worker comes by again", sub {
			my ($at, $said) = split /\|/, $sql->('SELECT last_sweep_at, last_error FROM idem_status()'), 2;
			if ($at ne $last) { ($last, $visits) = ($at, $visits + 1); $lasting = 0 if $said !~ $says; }
			$visits >= 4;
		});
		ok(scalar(log_matches($node, qr/\[\d+\] WARNING:  the sweep of database "app" met an error: run_is_alive of scope asked.*$error/, $log)), "$name: the log says why");
		ok($lasting, "$name: and goes on to say so") or diag($sql->('SELECT last_error FROM idem_status()'));
	}
	is($sql->("SELECT count(*) FROM idempotency.outcome WHERE key LIKE '$name-%'") - $sql->(q{SELECT count(*) FROM idempotency.outcome JOIN idempotency.scope ON id = scope_id WHERE name = 'over' AND key LIKE '} . $name . q{-%'}), 5, "$name: the keys stay");
	is($sql->(q{SELECT count(*) FROM idempotency.run JOIN idempotency.scope ON id = scope_id WHERE name = 'asked'}), 0, "$name: and no run of theirs is taken to be over");
	cmp_ok(scalar(log_matches($node, qr/\[\d+\] (ERROR|FATAL|WARNING|LOG:  idempotency)/, $log)), '<', 30, "$name: does not flood the log")
	  or diag(join "\n", (log_matches($node, qr/\[\d+\] (ERROR|FATAL|WARNING|LOG:  idempotency)/, $log))[ 0 .. 5 ]);
	$sql->(q{DELETE FROM idempotency.outcome USING idempotency.scope WHERE id = scope_id AND name IN ('over', 'plain'); DELETE FROM idempotency.run});
}

# --- one that ends its process --------------------------------------------------------------------------------------

$log = log_position($node);
$sql->(q{SELECT idem_scope_set('plain', dedup_window => '1 hour'); GRANT pg_signal_backend TO regress_owner});
predicate(q{BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN false; END});
# A superuser's scope may do that.
$sql->(q{CREATE FUNCTION fatal(run text) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN false; END';
	SELECT idem_scope_set('fatal', dedup_window => '1 hour', run_is_alive => 'fatal');
	SELECT backlog('fatal', 'fatal', 5, 'fatal'), backlog('plain', 'beside', 3000)});
within(60, 'a process that ends: another scope is pruned', sub { $sql->(q{SELECT count(*) FROM idempotency.outcome WHERE key LIKE 'beside-%'}) eq '0' });
is($sql->(q{SELECT count(*) FROM idempotency.outcome WHERE key LIKE 'fatal-%'}), 5, 'a process that ends: the keys stay');
$sql->(q{SELECT idem_claim('lease beside it', scope => 'plain', lease => '1ms')});
within(30, 'a process that ends: leases end', sub { $sql->(q{SELECT state FROM idem_peek('lease beside it', 'plain')}) eq 'unknown' });
$sql->(q{SELECT idem_scope_reset('fatal', 'run_is_alive')});
within(30, 'a process that ends: without the predicate they go', sub { $sql->(q{SELECT count(*) FROM idempotency.outcome WHERE key LIKE 'fatal-%'}) eq '0' });

# --- what it may do -------------------------------------------------------------------------------------------------

predicate(q{BEGIN INSERT INTO public.asked VALUES (run, current_user); RETURN NULL; END});
$sql->(q{SELECT backlog('asked', 'writes', 5, 'writes')});
within(30, 'it is asked', sub { $sql->(q{SELECT at_end FROM idempotency.prune_progress JOIN idempotency.scope ON id = scope_id WHERE name = 'asked'}) eq 't' });
is($sql->('SELECT count(*) FROM asked'), 0, 'what it writes is undone');
predicate(q{BEGIN RAISE 'asked as %, path %', current_user, current_setting('search_path'); END});
$sql->('DELETE FROM idempotency.prune_progress');
within(30, 'it runs as the owner of the scope, with a path of its own', sub { $sql->('SELECT last_error FROM idem_status()') =~ /asked as regress_owner, path pg_catalog, pg_temp/ })
  or diag($sql->('SELECT last_error FROM idem_status()'));
$sql->('DROP FUNCTION alive; DELETE FROM idempotency.prune_progress');
within(30, 'dropped: idem_status says so', sub { $sql->('SELECT last_error FROM idem_status()') =~ /run_is_alive of scope asked \(public\.alive\): the function is gone/ })
  or diag($sql->('SELECT last_error FROM idem_status()'));

# --- mended ---------------------------------------------------------------------------------------------------------

my $kept = $sql->(q{SELECT count(*) FROM idempotency.outcome JOIN idempotency.scope ON id = scope_id WHERE name = 'asked'});
cmp_ok($kept, '>', 50, "all $kept keys that were asked about are there");
$sql->(q{SET ROLE regress_owner; CREATE FUNCTION alive(run text) RETURNS boolean LANGUAGE sql AS $$ SELECT run = 'held' $$; RESET ROLE; DELETE FROM idempotency.prune_progress});
within(60, 'mended: the runs are seen to be over', sub { $sql->(q{SELECT count(*) FROM idempotency.run JOIN idempotency.scope ON id = scope_id WHERE name = 'asked'}) eq $kept - 1 });
is($sql->(q{SELECT count(*) FROM idempotency.outcome JOIN idempotency.scope ON id = scope_id WHERE name = 'asked'}), $kept, 'mended: their keys have a window from there');
is($sql->(q{SELECT count(*) FROM idempotency.records WHERE scope = 'asked' AND window_ends_at BETWEEN now() + interval '50 minutes' AND now() + interval '1 hour'}), $kept - 1, 'mended: of an hour');
$sql->(q{UPDATE idempotency.run SET ended_at = ended_at - interval '61 minutes'; DELETE FROM idempotency.prune_progress});
within(60, 'mended: after which they go', sub { left('asked') eq '0' }) or diag(left('asked'));
is($sql->(q{SELECT state FROM idem_peek('held', 'asked')}), 'completed', 'mended: and none of a run that lives');
until_true($node, 'app', 'SELECT last_error IS NULL FROM idem_status()', 'mended: no error is left');
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
