# From Friday to Monday, and to and fro: the clock of a running server is moved, and its worker prunes by it.
#
# Claims, and what would turn them red:
# - A key that was claimed with run => a live run is there on Monday, whatever its scope's window, and replays: pruning that
#   judges by finished_at alone. It goes a window after idem_run_end, and not before: a window that counts from the finish.
# - A key without a run goes when its window is over; the worker does that: a worker that waits for someone to sweep.
# - A run that nobody ends is over after its longest pause (and a sixteenth), with one event: no event, one in each visit,
#   or keys that stay for ever. Signs of life move that: a run that is judged by its beginning.
# - A jump back prunes nothing and executes nothing again; nor does the way forth: ages below zero, a place of pruning
#   that stays in the future and keeps the worker from what is due now.
# - A jump ahead that ends a run takes no key before the run's own end and a window: a window that counts from the sweep.
# - No fence is given twice to one key: a fence that is the clock alone.
# - A busy visit that the clock jumps back under ends all the same: deadlines by the wall clock. DROP DATABASE waits for it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyClock;
use IdempotencyNode;
use IdempotencyTools;
use Test::More;

plan skip_all => IdempotencyClock->missing if IdempotencyClock->missing;

use constant { HOUR => 3600, DAY => 86_400, FRIDAY => 1_893_776_400 };    # 2030-01-04 17:00, a Friday

my $clock = IdempotencyClock->new;
my $node = $clock->start(IdempotencyNode->make(preload => 1, conf => [
		"log_statement = none", "timezone = 'UTC'", "idempotency.naptime = '100ms'" ]));
$node->safe_psql('postgres', 'CREATE DATABASE app');
$node->safe_psql('app', 'CREATE EXTENSION idempotency');
my $sql = sub { $node->safe_psql($_[1] // 'app', $_[0]) };

# Waits until the worker has made a visit that began after this moment, by whatever clock.
sub visited
{
	my ($when) = @_;
	my $before = $sql->('SELECT last_sweep_at FROM idem_status()');
	my $count = 0;

	# Two: the first may have begun before.
	return within(60, "$when: the worker came by", sub {
		my $now = $sql->('SELECT last_sweep_at FROM idem_status()');
		($before, $count) = ($now, $count + 1) if $now ne $before;
		$count >= 2;
	});
}

sub clock_shows
{
	my ($epoch, $when) = @_;

	$clock->set($epoch);
	is($sql->("SELECT abs(extract(epoch FROM clock_timestamp()) - $epoch) < 30"), 't', "$when: the clock says so");
	return visited($when);
}

sub state_of { return $sql->("SELECT state FROM idem_peek('$_[0]', '" . ($_[1] // 'day') . "')"); }

# Issues a credit, or finds that it was issued: its number, and whether it was there already.
sub credit
{
	my ($key, $run) = @_;
	my $of = $run ? ", run => '$run'" : '';

	return $sql->("SELECT result, replayed FROM idem_once('$key', \$\$INSERT INTO credit VALUES ('$key') RETURNING to_jsonb(id)\$\$, '{\"amount\": 5}', 'day'$of)");
}

sub credits { return $sql->("SELECT count(*) FROM credit WHERE key = '$_[0]'"); }

my %fences;

# Claims and lets go, as a failure that changed nothing; every fence must be a new one of this key.
sub new_fence
{
	my ($key, $when) = @_;
	my ($decision, $fence) = split /\|/, $sql->("SELECT decision, fence FROM idem_claim('$key', scope => 'day', lease => '1 hour')");

	is($decision, 'execute', "$when: $key is free");
	ok(!$fences{$key}{$fence}++, "$when: its fence was never given before");
	$sql->("SELECT idem_fail('$key', 'not_applied', scope => 'day', fence => $fence)");
	return $fence;
}

$clock->set(FRIDAY);
BAIL_OUT('the clock does not move') unless $sql->(q{SELECT to_char(clock_timestamp(), 'Dy HH24:MI')}) eq 'Fri 17:00';
visited('Friday 17:00');
within(30, 'Friday: the worker has the same clock', sub { $sql->(q{SELECT last_sweep_at > '2030-01-04 17:00' FROM idem_status()}) eq 't' })
  or BAIL_OUT('the clock of the worker does not move');

# --- Friday to Monday -----------------------------------------------------------------------------------------------

$sql->(q{
	CREATE TABLE credit (key text NOT NULL, id bigserial);
	SELECT idem_scope_set('day', dedup_window => '1 day'), idem_scope_set('brief', dedup_window => '1 second');
	SELECT idem_run_begin('approval', '4 days', 'waits for somebody'), idem_run_begin('crashed', '12 hours'), idem_run_begin('busy', '16 hours')});
is(credit('kept', 'approval'), '1|f', 'Friday: a credit is issued in a run that pauses');
credit('alone');
credit('of-crashed', 'crashed');
credit('of-busy', 'busy');
my $first_fence = new_fence('retried', 'Friday');
is($sql->(q{SELECT string_agg(key || ' ' || COALESCE(window_ends_at::text, 'never'), ', ' ORDER BY key) FROM idempotency.records WHERE window_ends_at = 'infinity'}),
	'kept infinity, of-busy infinity, of-crashed infinity', 'Friday: keys of live runs have no end');

# 12 hours and a sixteenth after Friday 17:00.
clock_shows(FRIDAY + 12.5 * HOUR, 'Saturday 05:30');
is($sql->(q{SELECT state FROM idempotency.runs WHERE run = 'crashed'}), 'alive', 'a run lives to the end of its pause');
is($sql->(q{SELECT count(*) FROM idempotency.events}), 0, 'and there is no event before');
# Within the pause of the busy run, which would have been over at 10:00 without it.
credit('of-busy', 'busy');
clock_shows(FRIDAY + 13 * HOUR, 'Saturday 06:00');
within(30, 'a run that nobody ended fell silent', sub { $sql->(q{SELECT state FROM idempotency.runs WHERE run = 'crashed' AND ended_at IS NOT NULL}) eq 'silent' });
is($sql->(q{SELECT kind, run, from_state, to_state, reason FROM idempotency.events}), 'run_silent|crashed|alive|silent|no sign of life for 12 hours', 'with an event');
is($sql->(q{SELECT over_at FROM idempotency.runs WHERE run = 'crashed'}) =~ s/:\d\d\.\d+.*//r, '2030-01-05 05:45', 'its end is its last sign of life, its pause and a sixteenth');
clock_shows(FRIDAY + 20 * HOUR, 'Saturday 13:00');
is($sql->(q{SELECT state FROM idempotency.runs WHERE run = 'busy'}), 'alive', 'a sign of life moved the end of a run');

clock_shows(FRIDAY + 25 * HOUR, 'Saturday 18:00');
within(30, 'a key without a run went with its window', sub { state_of('alone') eq 'absent' });
is(state_of('kept'), 'completed', 'the key of the live run stays');
is(state_of('of-crashed'), 'completed', 'so does that of the silent one: a window after its end');
clock_shows(FRIDAY + 36.5 * HOUR, 'Sunday 05:30');
is(state_of('of-crashed'), 'completed', 'still within that');
clock_shows(FRIDAY + 37 * HOUR, 'Sunday 06:00');
within(30, 'and then it goes', sub { state_of('of-crashed') eq 'absent' });

clock_shows(FRIDAY + 64 * HOUR, 'Monday 09:00');
is(state_of('kept'), 'completed', 'the key of the live run is there');
is(credit('kept', 'approval'), '1|t', 'its retry replays');
is(credits('kept'), 1, 'and is not executed again');
is(credit('alone'), '5|f', 'a retry without a run executes again: that is what the run is for');
is(credits('alone'), 2, 'twice');
is($sql->(q{SELECT repeatable_at FROM idem_peek('kept', 'day')}), 'infinity', 'peek: never, while it lives');
$sql->(q{SELECT idem_run_end('approval')});
is($sql->(q{SELECT state FROM idempotency.runs WHERE run = 'approval'}), 'ended', 'the run ends');
is($sql->(q{SELECT repeatable_at FROM idem_peek('kept', 'day')}) =~ s/:\d\d\.\d+.*//r, '2030-01-08 09:00', 'peek: a window after that');
clock_shows(FRIDAY + 87.9 * HOUR, 'Tuesday 08:54');
is(credit('kept', 'approval'), '1|t', 'within that it replays');
clock_shows(FRIDAY + 88.1 * HOUR, 'Tuesday 09:06');
within(30, 'and then it goes, too', sub { state_of('kept') eq 'absent' });
is($sql->(q{SELECT string_agg(DISTINCT run, ', ' ORDER BY run) || ' ' || count(*) FROM idempotency.events WHERE kind = 'run_silent'}), 'busy, crashed 2', 'one event for each run that fell silent, none for the one that was ended');
is($sql->(q{SELECT count(*) FROM idempotency.events WHERE kind <> 'run_silent'}), 0, 'and no other');

# --- back and forth -------------------------------------------------------------------------------------------------

my $tuesday = FRIDAY + 88.1 * HOUR;
# At seconds of the same hour as before, by a clock that was there already: fences may not meet.
my $tuesday_fence = new_fence('retried', 'Tuesday');
cmp_ok($tuesday_fence, '>', $first_fence, 'fences grow with the days');
$sql->(q{SELECT idem_run_begin('second', '4 days')});
credit('tuesday');
credit('tuesday-run', 'second');
my $far = $sql->(q{SELECT frontier FROM idempotency.prune_progress ORDER BY frontier DESC LIMIT 1});
note("pruning came to $far");

clock_shows(FRIDAY, 'Friday again');
is($sql->(q{SELECT last_error FROM idem_status()}), '', 'the worker is well');
is(state_of($_), 'completed', "$_ is there") for 'tuesday', 'tuesday-run';
like(credit('tuesday'), qr/\|t$/, 'and replays');
like(credit('tuesday-run', 'second'), qr/\|t$/, 'so does that of the run');
is($sql->(q{SELECT state FROM idempotency.runs WHERE run = 'second'}), 'alive', 'whose run lives');
new_fence('retried', 'Friday again');
new_fence('retried', 'Friday again, once more');
# Sweeps go on: what is finished now, behind the place that pruning came to, goes when it is due.
$sql->(q{SELECT idem_once('short', 'SELECT to_jsonb(1)', scope => 'brief'), idem_once('short-too', 'SELECT to_jsonb(1)', scope => 'brief'), idem_claim('leased', lease => '100ms')});
within(60, 'Friday again: what is due now is pruned now', sub { $sql->(q{SELECT count(*) FROM idempotency.records WHERE scope = 'brief'}) eq '0' })
  or diag($sql->('SELECT * FROM idempotency.prune_progress'));
within(30, 'Friday again: a lease ends', sub { $sql->(q{SELECT state FROM idem_peek('leased')}) eq 'unknown' });
# What a DBA looks at says when the next key is due, though pruning was farther once.
is($sql->(q{SELECT next_expiry_at = (SELECT min(window_ends_at) FROM idempotency.records WHERE scope = 'day') FROM idempotency.stats WHERE scope = 'day'}), 't', 'Friday again: the statistics know what expires next')
  or diag($sql->(q{SELECT next_expiry_at, prune_lag FROM idempotency.stats WHERE scope = 'day'}));

# Forth again, minute by minute about the end of the window: not before it.
my $due = $sql->(q{SELECT extract(epoch FROM window_ends_at) FROM idem_peek('tuesday', 'day')});
for my $seconds (-HOUR, -120, -60, -10)
{
	clock_shows($due + $seconds, sprintf('%d s before the end of the window', -$seconds));
	is(state_of('tuesday'), 'completed', 'not pruned');
	$clock->step(-DAY);
}
clock_shows($due + 5, 'just after it');
within(30, 'pruned now', sub { state_of('tuesday') eq 'absent' });
is(credits('tuesday'), 1, 'executed once');
is(state_of('tuesday-run'), 'completed', 'that of the live run stays');
new_fence('retried', 'after the window');

# --- a wrong clock, for a while ---------------------------------------------------------------------------------------

# Far enough ahead to end the run, not far enough for its keys: its end, 4 days and a quarter after its last sign, and a day.
my $seen = $sql->(q{SELECT extract(epoch FROM last_seen_at) FROM idempotency.runs WHERE run = 'second'});
clock_shows($seen + 4.5 * DAY, 'days ahead');
within(30, 'the run is held to be over', sub { $sql->(q{SELECT state FROM idempotency.runs WHERE run = 'second'}) eq 'silent' });
is(state_of('tuesday-run'), 'completed', 'its key has a window from there');
clock_shows($due + 60, 'right again');
is(state_of('tuesday-run'), 'completed', 'it is still there');
like(credit('tuesday-run', 'second'), qr/\|t$/, 'and replays');
$sql->(q{SELECT idem_run_begin('second', '4 days')});
is($sql->(q{SELECT state FROM idempotency.runs WHERE run = 'second'}), 'alive', 'begun again, the run lives');
clock_shows($seen + 4.5 * DAY, 'the same day, in its time');
is(state_of('tuesday-run'), 'completed', 'the run that was begun again keeps its key');
is($sql->(q{SELECT count(*) - count(DISTINCT (kind, run, reason)) FROM idempotency.events WHERE run <> 'second'}), 0, 'no event was written twice');
is($sql->(q{SELECT string_agg(key, ', ') FROM (SELECT key FROM credit WHERE key <> 'alone' GROUP BY key HAVING count(*) > 1) AS k}), '', 'no credit was issued twice within a window or a run');

# --- a visit that the clock jumps back under ------------------------------------------------------------------------

$node->safe_psql('postgres', 'CREATE DATABASE busy');
$node->safe_psql('busy', q{CREATE EXTENSION idempotency;
	-- Not pg_sleep, which sleeps by the wall clock itself.
	CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM count(*) FROM generate_series(1, 10000); RETURN OLD; END';
	CREATE TRIGGER slowly BEFORE DELETE ON idempotency.outcome FOR EACH ROW EXECUTE FUNCTION slowly();
	INSERT INTO idempotency.outcome (digest, finished_at, fence, scope_id, attempt, args_rule, state, key)
	SELECT gen_random_uuid(), now() - interval '60 days', n, 0, 1, 0, 'c', 'old-' || n FROM generate_series(1, 40000) AS n});
until_true($node, 'postgres', q{SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'idempotency worker' AND datname = 'busy')}, 'a sweeper is at work');
$clock->step(-2 * HOUR);
my $error;
my $took = seconds_of(sub { $error = error_of($node, 'postgres', 'DROP DATABASE busy') });
is($error, '', 'DROP DATABASE succeeds while the clock jumps back under a busy sweeper');
cmp_ok($took, '<', 15, sprintf('in less than 15 s (%.1f s)', $took));
$node->safe_psql('postgres', 'DROP DATABASE IF EXISTS busy WITH (FORCE)');
visited('after that');
$clock->step(3 * HOUR);
visited('and after a jump ahead');

is(join("\n", log_matches($node, qr/\[\d+\] (ERROR|PANIC|WARNING):/)), '', 'the worker raised no error');
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
