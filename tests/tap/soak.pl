# A store in steady state: idem_once as fast as it goes, a window of two seconds, and the worker. SOAK_SECONDS (20) to lengthen.
#
# Claims, and what would turn them red:
# - Tables and indexes level off: pruning that falls behind, dead rows or index entries that nobody ever removes. The second
#   half of the soak is compared with the first.
# - Nothing is lost within its window: each client repeats keys of its own that are younger, and must find them.
# - No key is executed twice within its window: the effects say when.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencyTools;
use Test::More;
use Time::HiRes qw(time usleep);

my $seconds = $ENV{SOAK_SECONDS} || 20;
my $node = IdempotencyNode->start(preload => 1, conf => [
		"log_statement = none", "idempotency.naptime = '100ms'", "idempotency.default_window = '2s'", "fsync = off", "max_wal_size = '2GB'",
		"autovacuum_naptime = '1s'", "autovacuum_vacuum_cost_delay = 0", "synchronous_commit = off" ]);
my $sql = sub { $node->safe_psql('app', $_[0]) };

$sql->('CREATE TABLE effect (key text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())');
# Each transaction issues a key, and repeats it at once, as after a lost answer: the second must replay. Then one of a hundred keys
# that all share, which are executed again when their window is over, and never before.
my $load = load_start($node, 'app', { q{
\set n random(1, 1000000000000)
\set shared random(1, 100)
BEGIN;
SELECT idem_once('own-:n-:client_id', 'SELECT to_jsonb(1)') \gset
COMMIT;
SELECT 1 / (replayed)::int FROM idem_once('own-:n-:client_id', 'SELECT to_jsonb(1)');
SELECT idem_once('shared-:shared', $$INSERT INTO effect (key) VALUES ('shared-:shared') RETURNING to_jsonb(1)$$);
} => 1 }, clients => 4);

# Sizes, second by second.
my @samples;
my $begun = time;
my $next = $begun;
while (time - $begun < $seconds)
{
	my ($bytes, $outcomes, $executes, $pruned, $lag) = split /\|/, $sql->(q{
		SELECT pg_total_relation_size('idempotency.outcome'), (SELECT count(*) FROM idempotency.outcome), executes, pruned, extract(epoch FROM prune_lag) FROM idempotency.stats WHERE scope = 'default'});

	push @samples, { at => time - $begun, bytes => $bytes, outcomes => $outcomes, executes => $executes, pruned => $pruned, lag => $lag || 0 };
	$next += 0.5;
	usleep(1_000_000 * ($next - time)) if $next > time;
}
my $errors = load_stop($load);
unlike($errors, qr/ERROR|FATAL/, 'each repeat replayed what was done just before it');

my ($claims, $executes) = split /\|/, $sql->(q{SELECT claims, executes FROM idempotency.stats WHERE scope = 'default'});
note(sprintf('%d claims a second', $claims / $seconds));
note(sprintf('%4.1f s: %6.1f MB, %7d rows, %8d pruned, %4.1f s behind', $_->{at}, $_->{bytes} / 1e6, @$_{qw(outcomes pruned lag)})) for @samples;
cmp_ok($executes, '>', 1_000, 'enough was done to speak of a soak');

# The first quarter fills the windows; then the halves of the rest. Where the machine did more in the second, more may be there.
my @steady = grep { $_->{at} > $seconds / 4 } @samples;
my @first = @steady[ 0 .. @steady / 2 - 1 ];
my @second = @steady[ @steady / 2 .. $#steady ];
my $most = sub { my ($what, @of) = @_; my $most = 0; for (@of) { $most = $_->{$what} if $_->{$what} > $most; } return $most; };
my $rate = sub { return ($_[-1]{executes} - $_[0]{executes}) / ($_[-1]{at} - $_[0]{at}); };
my $growth = $rate->(@second) / $rate->(@first);
note(sprintf('the second half did %.2f times as much as the first', $growth));
for my $what ('bytes', 'outcomes')
{
	my ($before, $after) = ($most->($what, @first), $most->($what, @second));

	cmp_ok($after, '<', 1.5 * $before * ($growth > 1 ? $growth : 1), sprintf('%s level off: at most %d, then %d', $what, $before, $after));
}
cmp_ok($most->('lag', @second), '<', 5, sprintf('pruning is never far behind (%.1f s)', $most->('lag', @second)));
cmp_ok($samples[-1]{pruned}, '>', 0.5 * ($executes - $most->('outcomes', @second)), 'what has come has gone');

# Two seconds between two effects of one key, but for the moment from the effect to its finish, in which it is not yet counted.
is($sql->(q{SELECT count(*) FROM (SELECT at - lag(at) OVER (PARTITION BY key ORDER BY at) AS gap FROM effect) AS g WHERE gap < interval '1999 ms'}), 0,
	'no key was executed twice within its window') or diag($sql->(q{SELECT min(gap) FROM (SELECT at - lag(at) OVER (PARTITION BY key ORDER BY at) AS gap FROM effect) AS g}));
cmp_ok($sql->(q{SELECT count(*) FROM effect}), '>', 100, 'and those that all share were executed again after it');

within(30, 'without load all of it goes', sub { $sql->('SELECT count(*) FROM idempotency.outcome') eq '0' });
is($sql->('SELECT worker, last_error FROM idem_status()'), 'running|', 'the worker is well');
is(join("\n", log_matches($node, qr/\[\d+\] (ERROR|PANIC|WARNING):/)), '', 'and raised no error');
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
