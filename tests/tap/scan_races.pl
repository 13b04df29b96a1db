# Rows that are replaced, and transactions that commit, while a scan without their lock is under way: it sees the row, and it
# does not pass by a part of a transaction and go on behind it.
#
# Claims, and what would turn them red:
# - A key that only its run keeps is not executed while its run is begun anew, again and again: a scan that judges each version
#   as it comes to it, the new one before its commit and the old one after it.
# - A sign of life that was committed counts, whatever a sweep is just taking in: signs that are removed and were not looked at.
# - Outcomes that are long past their window when they are committed, all in one transaction, are pruned by the passes that
#   follow, and not ten minutes later: a scan that sees the end of a transaction and not its beginning.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use Test::More;

my $node = IdempotencyNode->start(conf => [ 'synchronous_commit = off', 'log_min_messages = warning' ]);
my $sql = sub { $node->safe_psql('app', $_[0]) };

$sql->(q{
	CREATE PROCEDURE ask(key text, scope text, run text, times int) LANGUAGE plpgsql AS $$
		DECLARE told record;
		BEGIN
			FOR n IN 1 .. times LOOP
				told := idem_claim(key, scope => scope, run => run, wait => '0');
				IF told.decision <> 'replay' THEN RAISE 'call % was told %', n, told; END IF;
				COMMIT;
			END LOOP;
		END $$;
	CREATE TABLE stop ();
	CREATE PROCEDURE repeat(statement text) LANGUAGE plpgsql AS $$
		BEGIN
			WHILE to_regclass('stop') IS NOT NULL LOOP EXECUTE statement; COMMIT; END LOOP;
		END $$;
	-- As a DBA might: no replacement stays on its page's chain, where a scan cannot miss it.
	CREATE INDEX ON idempotency.run (seen_at)});

# Asks while others repeat these statements: what the asking met.
sub beside
{
	my ($call, @statements) = @_;
	my @repeating = map { IdempotencySession->open($node, 'app') } @statements;

	$repeating[$_]->send("CALL repeat(\$s\$ $statements[$_] \$s\$)") for 0 .. $#statements;
	my $asking = IdempotencySession->open($node, 'app');
	$asking->query($call);
	my $met = $asking->error;
	$sql->('DROP TABLE stop');
	for my $session (@repeating)
	{
		$session->answer;
		is($session->error, '', 'and whoever repeated it met no error');
	}
	$_->quit for $asking, @repeating;
	$sql->('CREATE TABLE stop ()');
	return $met;
}

# --- runs -----------------------------------------------------------------------------------------------------------

$sql->(q{
	SELECT idem_scope_set('brief', dedup_window => '1 ms'), idem_run_begin('alive', '1 hour');
	SELECT idem_once('k', 'SELECT to_jsonb(1)', scope => 'brief', run => 'alive')});
is(beside(q{CALL ask('k', 'brief', 'alive', 30000)}, (q{SELECT idem_run_begin('alive', '1 hour')}) x 2), '', 'a run that is begun again is seen alive');

# --- signs of life --------------------------------------------------------------------------------------------------

$sql->(q{
	CREATE PROCEDURE touch(touched text, times int) LANGUAGE plpgsql AS $$
		DECLARE told timestamptz; shown timestamptz;
		BEGIN
			FOR n IN 1 .. times LOOP
				told := idem_run_touch(touched);
				COMMIT;
				SELECT over_at INTO shown FROM idempotency.runs WHERE run = touched;
				IF shown < told THEN RAISE 'touch % was told %, and then shown %', n, told, shown; END IF;
			END LOOP;
		END $$});
is(beside(q{CALL touch('alive', 20000)}, q{SELECT idem_sweep()}), '', 'a sign of life is not lost to a sweep');

# --- pruning --------------------------------------------------------------------------------------------------------

my @sweeping = map { IdempotencySession->open($node, 'app') } 1 .. 2;
$_->send('CALL repeat($s$ SELECT idem_sweep() $s$)') for @sweeping;
$sql->(q{SELECT idem_scope_set('old', dedup_window => '1 hour')});
for my $round (1 .. 8)
{
	$sql->(q{INSERT INTO idempotency.outcome (digest, finished_at, fence, scope_id, attempt, args_rule, state, key)
		SELECT gen_random_uuid(), now() - interval '1 day' + n * interval '1 us', n, id, 1, 0, 'c', 'k-' || n
		  FROM idempotency.scope, generate_series(1, 20000) AS n WHERE name = 'old'});
	next if within(60, "all of transaction $round are pruned", sub { $sql->(q{SELECT count(*) FROM idempotency.records WHERE scope = 'old'}) eq '0' });
	diag($sql->(q{SELECT count(*), min(fence), max(fence) FROM idempotency.outcome WHERE key LIKE 'k-%'}));
	last;
}
$sql->('DROP TABLE stop');
$_->answer for @sweeping;
is($sweeping[$_]->error, '', 'sweeping met no error') for 0 .. $#sweeping;
$_->quit for @sweeping;
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
