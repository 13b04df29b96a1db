# A wrong time source sets the server's clock a year ahead; keys are claimed and finished there, and then the clock is put right.
#
# Claims, and what would turn them red:
# - The worker goes on at its pace after the jump back, and ends leases and prunes what is due by the right clock: a next
#   visit, a place or a ban that was written down as a time and lies a year ahead now.
# - A lease that was alive before the jump back is not cut short, and what was finished a year ahead replays: an age below zero
#   taken for a large one.
# - Nothing that is dated a year ahead is beyond help: its owner finishes it, an operator decides or forgets it. Red is a
#   record that only time can free.
# - What was over a year ahead is in doubt and not free: a jump that makes things execute twice.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyClock;
use IdempotencyNode;
use IdempotencyTools;
use Test::More;

use constant { YEAR => 365 * 86400 };

plan skip_all => IdempotencyClock->missing if IdempotencyClock->missing;

my $clock = IdempotencyClock->new;
my $node = $clock->start(IdempotencyNode->make(preload => 1, conf => [
		"log_statement = none", "timezone = 'UTC'", "idempotency.naptime = '100ms'" ]));
$node->safe_psql('postgres', 'CREATE DATABASE app');
$node->safe_psql('app', 'CREATE EXTENSION idempotency');
my $sql = sub { $node->safe_psql('app', $_[0]) };
my $state = sub { $sql->("SELECT state FROM idem_peek('$_[0]', '" . ($_[1] // 'default') . "')") };
my $today = $clock->now;

# Visits of the worker that begin after now.
sub visits
{
	my ($count, $when) = @_;
	my $last = $sql->('SELECT last_sweep_at FROM idem_status()');
	my $seen = 0;

	# Each is another time, whichever way the clock went.
	return within(60, "$when: the worker came by $count times", sub {
		my $now = $sql->('SELECT last_sweep_at FROM idem_status()');
		($last, $seen) = ($now, $seen + 1) if $now ne $last;
		$seen >= $count;
	});
}

# A lease of one second, and an outcome of a window of one second, are ended and pruned.
my $number = 0;
sub sweeps
{
	my ($when) = @_;
	my $key = 'swept ' . ++$number;

	$sql->("SELECT idem_claim('$key', lease => '1 s'), idem_once('$key', 'SELECT to_jsonb(1)', scope => 'brief')");
	within(30, "$when: the worker ends a lease", sub { $state->($key) eq 'unknown' });
	within(30, "$when: the worker prunes", sub { $sql->("SELECT count(*) FROM idempotency.outcome WHERE key = '$key'") eq '0' })
	  or diag($sql->('SELECT * FROM idempotency.prune_progress'));
	return;
}

$sql->(q{
	SELECT idem_scope_set('brief', dedup_window => '1 second'), idem_scope_set('day', dedup_window => '1 day'), idem_scope_set('mail', backoff => '1 hour', max_backoff => '1 day');
	SELECT idem_run_begin('agent', '4 days');
	SELECT idem_once('before', 'SELECT to_jsonb(1)', scope => 'day'), idem_once('before, forever', 'SELECT to_jsonb(1)', run => 'agent');
	SELECT idem_claim('A', lease => '30 s'), idem_claim('A, long', lease => '1 h')});
visits(2, 'today');
BAIL_OUT('the clock does not move') unless $sql->("SELECT abs(extract(epoch FROM clock_timestamp()) - $today) < 600") eq 't';
sweeps('today');

# --- a year ahead ---------------------------------------------------------------------------------------------------

$clock->step(YEAR);
visits(3, 'a year ahead');
is($sql->("SELECT round((extract(epoch FROM clock_timestamp()) - $today) / 86400)"), 365, 'a year ahead: the clock says so');
within(30, 'a year ahead: leases are over', sub { $state->('A') eq 'unknown' && $state->('A, long') eq 'unknown' });
sweeps('a year ahead');
# Claimed, finished, left open, in doubt and enqueued there.
$sql->(q{
	SELECT idem_claim('B', lease => '30 s'), idem_claim('B, open', lease => '30 min'), idem_claim('B, abandoned', lease => '30 min'), idem_claim('B, decided', lease => '30 min'), idem_claim('B, forgotten', lease => '30 min');
	SELECT idem_complete('B', '"ahead"', fence => fence) FROM idem_peek('B');
	SELECT idem_once('B, brief', 'SELECT to_jsonb(1)', scope => 'brief');
	SELECT idem_once('B, day', 'SELECT to_jsonb(2)', scope => 'day');
	SELECT idem_enqueue('B, message', 'post', '1', scope => 'mail'), idem_enqueue('B, failed', 'post', '2', scope => 'mail');
	SELECT idem_run_begin('ahead', '1 hour'), idem_once('B, run', 'SELECT to_jsonb(3)', scope => 'day', run => 'ahead')});
my %fence = map { $_ => $sql->("SELECT fence FROM idempotency.records WHERE key = '$_'") } 'B', 'B, open', 'B, abandoned', 'B, decided', 'B, forgotten';
$sql->(q{CREATE TABLE sent AS SELECT * FROM idem_dispatch('post', 2, '1 min')});
$sql->(q{SELECT idem_fail(key, 'not_applied', 'refused', scope => scope, fence => fence) FROM sent WHERE key = 'B, failed'});
my $sent = $sql->(q{SELECT fence FROM idempotency.records WHERE key = 'B, message'});

# --- right again ----------------------------------------------------------------------------------------------------

$clock->step(-(YEAR));
# C: claimed right after the jump, and never finished. How late it is swept, by the server's clock.
$sql->(q{
	CREATE TABLE swept (key text, late interval);
	CREATE FUNCTION swept() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.swept VALUES (OLD.key, clock_timestamp() - OLD.lease_expires_at); RETURN NULL; END';
	CREATE TRIGGER swept AFTER UPDATE OR DELETE ON idempotency.claim FOR EACH ROW EXECUTE FUNCTION swept();
	SELECT idem_claim('C', lease => '1 s')});
visits(10, 'right again');
within(30, 'right again: a lease is ended', sub { $state->('C') eq 'unknown' });
is($sql->(q{SELECT late BETWEEN '0 s' AND interval '200 ms' + interval '1.5 s' FROM swept WHERE key = 'C'}), 't', 'right again: within two naptimes (and a moment for a slow machine)')
  or diag($sql->('SELECT * FROM swept'));
is($sql->("SELECT abs(extract(epoch FROM clock_timestamp()) - $today) < 3600"), 't', 'right again: the clock says so');
sweeps('right again');
is($sql->(q{SELECT worker, last_error IS NULL OR last_error = '' FROM idem_status()}), 'running|t', 'right again: the worker is well');

# Alive before the jump back: held, and replayed.
is($sql->("SELECT decision FROM idem_claim('$_', lease => '1 h')"), 'in_progress', "$_: its lease is not cut short") for 'B, open', 'B, abandoned';
is($sql->(q{SELECT decision, result FROM idem_claim('B')}), 'replay|"ahead"', 'B: what was finished a year ahead replays');
is($sql->(q{SELECT decision FROM idem_claim('B, day', scope => 'day')}), 'replay', 'within any window');
is($sql->(q{SELECT decision FROM idem_claim('B, run', scope => 'day', run => 'ahead')}), 'replay', 'in a run, too');
# What the year took is in doubt, or forgotten as it should be after a year, and not half of each.
is($sql->("BEGIN; SELECT decision FROM idem_claim('$_', lease => '1 h'); ROLLBACK"), 'reconcile', "$_: what was over a year ahead is to be read") for 'A', 'A, long';
# Its owner finishes it.
is($sql->("SELECT idem_complete('B, open', '\"done\"', fence => $fence{'B, open'})"), '"done"', 'B, open: its owner completes it');
is($sql->(qq{SELECT idem_complete('B, message', '"sent"', 'mail', $sent)}), '"sent"', 'B, message: its dispatcher completes it');
# Nobody comes: an operator decides, or forgets.
is(sqlstate_of($node, 'app', q{SELECT idem_resolve('B, decided', 'applied', '"by hand"', 'bank statement'::text)}), 'ID002', 'B, decided: its owner may be alive');
$sql->(q{SELECT idem_renew('B, decided', '1 ms', fence => fence) FROM idem_peek('B, decided')});
within(30, 'B, decided: an operator ends its lease', sub { $state->('B, decided') eq 'unknown' });
is($sql->(q{SELECT idem_resolve('B, decided', 'applied', '"by hand"', 'bank statement'::text)}), 'completed', 'B, decided: and decides');
is($sql->(q{SELECT decision, result FROM idem_claim('B, decided')}), 'replay|"by hand"', 'B, decided: which is its result');
is($sql->(q{SELECT idem_forget('B, forgotten', force => true)}), 'in_flight', 'B, forgotten: an operator forgets it');
is($sql->(q{SELECT decision, fence > } . $fence{'B, forgotten'} . q{ - 40000000000000 FROM idem_claim('B, forgotten', lease => '1 min')}), 'execute|t', 'B, forgotten: and it executes');
is(sqlstate_of($node, 'app', "SELECT idem_complete('B, forgotten', '1', fence => $fence{'B, forgotten'})"), 'ID003', 'B, forgotten: under another fence');
is($sql->(q{SELECT idem_forget('B')}), 'completed', 'B: can be forgotten');
is($sql->(q{SELECT decision FROM idem_claim('B', lease => '1 min')}), 'execute', 'B: and is free');
# A message that backs off a year ahead: an operator requeues it.
is($sql->(q{SELECT count(*) FROM idem_dispatch('post', 10, '1 min')}), 0, 'B, failed: backs off by the wrong clock');
$sql->(q{SELECT idem_escalate('B, failed', 'wrong clock', scope => 'mail'); SELECT idem_resolve('B, failed', 'not_applied', scope => 'mail')});
is($sql->(q{SELECT key, attempt FROM idem_dispatch('post', 10, '1 min')}), 'B, failed|2', 'B, failed: until an operator requeues it');
# A run that was begun a year ahead can be ended, and begun again.
is(sqlstate_of($node, 'app', q{SELECT idem_run_end('ahead')}), '00000', 'a run of then can be ended');
is($sql->(q{SELECT state FROM idempotency.runs WHERE run = 'ahead'}), 'ended', 'and has ended');
# The doctor tells of times that are to come.
like($sql->('SELECT string_agg(finding, $$ $$) FROM idem_doctor()'), qr/clock/, 'the doctor sees times that are to come');

# And the worker, once more, after all of this.
sweeps('at the end');
is($sql->(q{SELECT count(*) FROM idempotency.outcome WHERE key = 'B, day'}), 1, 'what is dated a year ahead was not pruned');
is(join("\n", log_matches($node, qr/\[\d+\] (ERROR|PANIC|WARNING):/)), '', 'the worker raised no error');
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
