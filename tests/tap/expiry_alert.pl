# A hard limit takes the key of a live run: a WARNING, an event, a counter, and one notification in each visit of the worker where
# the administrator names a channel. And how long events are kept.
#
# Claims, and what would turn them red:
# - Each such key is in the log once, with scope, key and run; very many are summed up: a prune that is silent, or a flood.
# - Each has its event and is counted: an alert that lives in the log alone.
# - One NOTIFY for all of one visit, from the worker: one for each key, or one for each scope. None without a channel, none
#   from idem_sweep(), none for keys whose run has ended.
# - A channel that cannot be notified does not stop the sweeping, and the log says so.
# - What is rolled back has not happened: an event or a count without its pruning.
# - Events and hourly activity go after idempotency.event_retention, by the worker, and no earlier.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdempotencyNode->start(preload => 1, conf => [
		"log_statement = none", "idempotency.naptime = '100ms'", "idempotency.worker = off", "log_line_prefix = '%m [%p] '" ]);
my $sql = sub { $node->safe_psql('app', $_[0]) };

sub set
{
	my (@lines) = @_;

	$node->append_conf('postgresql.conf', $_) for @lines;
	$node->reload;
	return;
}

sub worker
{
	my ($on_or_off, @more) = @_;

	set("idempotency.worker = $on_or_off", @more);
	until_true($node, 'app', "SELECT worker LIKE '" . ($on_or_off eq 'on' ? 'running' : 'off%') . "' FROM idem_status()", "the worker is $on_or_off");
	until_true($node, 'app', q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'idempotency worker')}, 'and at rest')
	  if $on_or_off eq 'off';
	return;
}

# Completed keys of a run, past the hard limit of their scope.
sub keys_of
{
	my ($scope, $run, @keys) = @_;

	$sql->("SELECT idem_once(k, 'SELECT to_jsonb(1)', scope => '$scope', run => '$run') FROM unnest(ARRAY[" . join(', ', map { "'" . s/'/''/gr . "'" } @keys) . "]) AS k;
		UPDATE idempotency.outcome SET finished_at = finished_at - interval '5 days' WHERE run = '$run' AND finished_at > now() - interval '1 day';
		DELETE FROM idempotency.prune_progress");
	return;
}

my $listener = IdempotencySession->open($node, 'app');
$listener->query('LISTEN idem_alert');

# What was notified since the last time: payloads. psql tells of it with the answer to a query.
sub notified
{
	my $out = $listener->query('SELECT 1');

	return join ' ', $out =~ /^Asynchronous notification "idem_alert" with payload "(.*)" received/mg;
}

# All that was sent before this came has come: a notification of our own is the last.
sub notified_until_now
{
	my $all = '';

	$sql->(q{NOTIFY idem_alert, 'now'});
	within(30, 'what was notified has come', sub { $all .= ' ' . notified(); $all =~ /\bnow\b/ });
	return $all =~ s/\bnow\b//r =~ s/^\s+|\s+$//gr;
}

sub visits
{
	my ($wanted) = @_;
	my ($visits, $last) = (0, $sql->('SELECT last_sweep_at FROM idem_status()'));

	return within(60, "$wanted visits", sub {
		my $now = $sql->('SELECT last_sweep_at FROM idem_status()');
		($visits, $last) = ($visits + 1, $now) if $now ne $last;
		$visits >= $wanted;
	});
}

my $left = q{SELECT count(*) FROM idempotency.outcome WHERE run LIKE 'alive%'};
my $warning = qr/WARNING:  .*expired while/;

$sql->(q{SELECT idem_scope_set('one', dedup_window => '1 day', hard_limit => '3 days'), idem_scope_set('two', dedup_window => '1 day', hard_limit => '3 days', guard => '30 days'),
	idem_scope_set('many', dedup_window => '1 day', hard_limit => '3 days'), idem_scope_set('none', dedup_window => '1 day');
	SELECT idem_run_begin('alive', '1 year'), idem_run_begin('alive too', '1 year'), idem_run_begin('ended', '1 year')});

# --- the log, the events, the counters, the notification ------------------------------------------------------------

keys_of('one', 'alive', 'refund 1', q{it's "2"}, "umlaut \x{c3}\x{a4}");
keys_of('two', 'alive too', 'refund 1');
keys_of('many', 'alive', map { "many-$_" } 1 .. 40);
keys_of('none', 'alive', 'stays');
keys_of('one', 'ended', 'of an ended run');
$sql->(q{SELECT idem_run_end('ended'); UPDATE idempotency.run SET ended_at = ended_at - interval '2 days' WHERE run = 'ended'});
my $log = log_position($node);
worker('on', "idempotency.notify_channel = 'idem_alert'");
within(60, 'past the hard limit, keys of live runs go', sub { $sql->($left) eq '1' }) or diag($sql->($left));
is($sql->(q{SELECT state FROM idem_peek('stays', 'none')}), 'completed', 'those of a scope without one stay');
visits(2);
my @lines = log_matches($node, $warning, $log);
is(scalar(grep { /key "refund 1" in scope "one" expired while its run "alive" lives/ } @lines), 1, 'the log names key, scope and run, once') or diag("@lines");
is(scalar(grep { /key "refund 1" in scope "two" expired while its run "alive too" lives/ } @lines), 1, 'for each key');
is(scalar(grep { /it's ""2""|it's \\?"2\\?"/ } @lines), 1, 'whatever its name') or diag("@lines");
is(scalar(grep { /in scope "many"/ } @lines), 11, 'of very many in one batch ten, and a line for the rest') or diag("@lines");
is(scalar(grep { /30 more keys in scope "many" expired while their runs live/ } @lines), 1, 'with their number');
is(scalar(grep { /ended run|stays/ } @lines), 0, 'none of an ended run');
is($sql->(q{SELECT kind, scope, run, from_state, to_state, count(*), count(DISTINCT key) FROM idempotency.events GROUP BY 1, 2, 3, 4, 5 ORDER BY scope}),
	"expired_alive|many|alive|completed|expired|40|40\nexpired_alive|one|alive|completed|expired|3|3\nexpired_alive|two|alive too|completed|expired|1|1", 'each has its event');
is($sql->(q{SELECT scope, pruned, pruned_alive FROM idempotency.stats WHERE pruned > 0 ORDER BY scope}), "many|40|40\none|4|3\ntwo|1|1", 'and is counted');
is($sql->(q{SELECT decision FROM idem_claim('refund 1', scope => 'two')}), 'expired', 'a guard remembers those, too');
my $notified = notified_until_now();
like($notified, qr/^\{"pruned_alive":44,"scopes":\["many","one","two"\]\}$/, 'one notification for all of them, in JSON') or diag($notified);

keys_of('one', 'alive', 'later');
within(30, 'another', sub { $sql->($left) eq '1' });
is(notified_until_now(), '{"pruned_alive":1,"scopes":["one"]}', 'is notified with the next visit');
visits(3);
is(notified_until_now(), '', 'visits without any notify of nothing');

# --- without a channel ----------------------------------------------------------------------------------------------

set("idempotency.notify_channel = ''");
until_true($node, 'app', q{SELECT current_setting('idempotency.notify_channel') = ''}, 'without a channel');
visits(2);
$log = log_position($node);
keys_of('one', 'alive', 'silently?');
within(30, 'without a channel: it goes', sub { $sql->($left) eq '1' });
within(10, 'without a channel: the log tells', sub { log_matches($node, qr/key "silently\?" in scope "one"/, $log) == 1 });
visits(1);
is(notified_until_now(), '', 'without a channel: nothing is notified');

# A name that is no channel.
set("idempotency.notify_channel = '" . 'x' x 70 . "'");
visits(2);
$log = log_position($node);
keys_of('one', 'alive', 'loud');
$sql->(q{SELECT idem_claim('leased', lease => '1ms')});
within(30, 'a channel that cannot be: it goes', sub { $sql->($left) eq '1' });
within(30, 'a channel that cannot be: a lease ends', sub { $sql->(q{SELECT state FROM idem_peek('leased')}) eq 'unknown' });
within(10, 'a channel that cannot be: the log says so', sub { log_matches($node, qr/\[\d+\] .*channel name too long/, $log) > 0 });
is($sql->(q{SELECT count(*) FROM idempotency.events WHERE key = 'loud'}), 1, 'a channel that cannot be: with its event');
set("idempotency.notify_channel = 'idem_alert'");
visits(2);

# --- by hand --------------------------------------------------------------------------------------------------------

worker('off');
keys_of('one', 'alive', 'by hand');
my ($before, $warned);
$before = $sql->(q{SELECT pruned_alive FROM idempotency.stats WHERE scope = 'one'});
$node->psql('app', q{BEGIN; SELECT idempotency.sweep_restart(); SELECT more FROM idem_sweep(); SELECT more FROM idem_sweep(); ROLLBACK}, stderr => \$warned);
like($warned, qr/WARNING:  key "by hand" in scope "one" expired while its run "alive" lives/, 'idem_sweep() warns its caller');
is($sql->(q{SELECT count(*) FROM idempotency.events WHERE key = 'by hand'}), 0, 'rolled back: no event');
is($sql->(q{SELECT pruned_alive FROM idempotency.stats WHERE scope = 'one'}), $before, 'rolled back: not counted');
is($sql->(q{SELECT repeatable_at < now() FROM idem_peek('by hand', 'one')}), 't', 'rolled back: expired all the same, by its scope');
is($sql->(q{SELECT count(*) FROM idempotency.outcome WHERE key = 'by hand'}), 1, 'rolled back: and there');
$node->psql('app', 'CALL idempotency.sweep()', stderr => \$warned);
like($warned, qr/WARNING:  key "by hand"/, 'CALL warns, too');
is($sql->(q{SELECT count(*) FROM idempotency.events WHERE key = 'by hand'}), 1, 'and now there is an event');
is($sql->(q{SELECT pruned_alive FROM idempotency.stats WHERE scope = 'one'}), $before + 1, 'and a count');
is(notified_until_now(), '', 'but no notification: the worker alone sends them');

# --- how long events are kept ---------------------------------------------------------------------------------------

$sql->(q{
	DELETE FROM idempotency.event;
	INSERT INTO idempotency.event (happened_at, kind, from_state, to_state, role, pid, reason)
	SELECT now() - n * interval '1 day', 'doubt', '-', '-', 'pg_monitor'::regrole, 0, n FROM generate_series(0, 200) AS n, generate_series(1, 20);
	INSERT INTO idempotency.activity SELECT 0, now() - n * interval '1 day', 1, 1, 0, 0 FROM generate_series(1, 200) AS n;
});
is($sql->('SELECT count(*) FROM idempotency.event'), 4_020, 'events, to before the retention');
worker('on');
within(30, 'events go after 90 days', sub { $sql->('SELECT max(reason::int) FROM idempotency.event WHERE kind = \'doubt\'') eq '89' })
  or diag($sql->('SELECT max(reason::int) FROM idempotency.event'));
is($sql->('SELECT count(*) FROM idempotency.event'), 1_800, 'and none before');
within(30, 'so does the activity of hours', sub { $sql->(q{SELECT count(*) FROM idempotency.activity WHERE hour < now() - interval '91 days'}) eq '0' })
  or diag($sql->('SELECT count(*), min(hour) FROM idempotency.activity'));
cmp_ok($sql->('SELECT count(*) FROM idempotency.activity'), '>=', 89, 'and none before');
set("idempotency.event_retention = '10d'");
within(30, 'a shorter retention counts at a reload', sub { $sql->('SELECT max(reason::int) FROM idempotency.event WHERE kind = \'doubt\'') eq '9' });
is($sql->('SELECT count(*) FROM idempotency.event'), 200, 'and takes no more than that');

$listener->quit;
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
