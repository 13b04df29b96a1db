# A long transaction, as of a report or an idle replication slot, keeps every dead row. The tables of the extension then grow by
# what is written and by nothing else.
#
# Claims, and what would turn them red:
# - A renewal of a lease does not write its payload again, however large: a payload in the row that renewals change.
# - Most updates of open keys are HOT, so that they add no index entries: an index on a column that renewals or retries change.
# - Rows that the worker keeps for itself (how far pruning came, what was observed, signs of life) are written where something
#   changed, and not in each visit: a row of state that is updated at every round.
# - A claim of a new key reads nothing of all that: a probe that looks through a table, or by another index than the key's digest.
# - With the transaction gone, VACUUM makes all of it reusable.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use Test::More;

# Autovacuum would do what is done by hand below.
my $node = IdempotencyNode->start(preload => 1, conf => [ "log_statement = none", "idempotency.naptime = '50ms'", "autovacuum = off", "shared_buffers = 128MB" ]);
my $sql = sub { $node->safe_psql('app', $_[0]) };
my $size = sub { $sql->("SELECT pg_table_size('idempotency.$_[0]')") };
# Works, and has what it did counted before it is over.
my $work = sub { $sql->("$_[0]; SELECT pg_stat_force_next_flush()"); return };
my $counted = sub { $sql->("SELECT sum($_[1]) FROM pg_stat_user_tables WHERE schemaname = 'idempotency' AND relname ~ '^($_[0])\$'") };

sub visits
{
	my ($count, $when) = @_;
	my $last = $sql->('SELECT last_sweep_at FROM idem_status()');
	my $seen = 0;

	return within(60, "$when: $count visits of the worker", sub {
		my $now = $sql->('SELECT last_sweep_at FROM idem_status()');
		($last, $seen) = ($now, $seen + 1) if $now ne $last;
		$seen >= $count;
	});
}

$sql->(q{
	SELECT idem_scope_set('w', dedup_window => '1 hour'), idem_scope_set('local', effect_kind => 'local');
	SELECT idem_run_begin('run', '4 days'), idem_once('in the run', 'SELECT to_jsonb(1)', scope => 'w', run => 'run');
	CREATE TABLE large AS SELECT jsonb_agg(md5(n::text)) AS payload FROM generate_series(1, 26000) AS n;
	-- Each renewal commits, as those of a client do.
	CREATE PROCEDURE renew(k text, times int) LANGUAGE plpgsql AS $$
	DECLARE
		f bigint := (SELECT fence FROM idempotency.records WHERE key = k);
	BEGIN
		FOR n IN 1 .. times LOOP
			PERFORM idem_renew(k, make_interval(secs => 600 + n), 'w', f);
			COMMIT;
		END LOOP;
	END
	$$;
	CREATE PROCEDURE claim_new(prefix text, times int) LANGUAGE plpgsql AS $$
	BEGIN
		FOR n IN 1 .. times LOOP
			PERFORM idem_once(prefix || n, 'SELECT to_jsonb(1)', scope => 'w');
			COMMIT;
		END LOOP;
	END
	$$;
	CREATE PROCEDURE come_and_go(times int) LANGUAGE plpgsql AS $$
	BEGIN
		FOR n IN 1 .. times LOOP
			PERFORM idem_release('come and go ' || n % 5, 'w', (idem_claim('come and go ' || n % 5, scope => 'w', lease => '1 min')).fence);
			COMMIT;
		END LOOP;
	END
	$$});
is($sql->('SELECT octet_length(payload::text) > 900000 FROM large'), 't', 'there is a payload of about 1 MB');
$sql->(q{SELECT idem_enqueue('large', 'bank', payload, scope => 'w') FROM large});
is($sql->(q{SELECT key FROM idem_dispatch('bank', 1, '10 min')}), 'large', 'it is being delivered');
visits(3, 'before');

# --- the long transaction -------------------------------------------------------------------------------------------

my $holder = IdempotencySession->open($node, 'app');
$holder->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM idempotency.records');
my ($message_before, $claim_before) = ($size->('message'), $size->('claim'));

# Lease after lease of one message.
$work->(q{CALL renew('large', 1000)});
is($size->('message'), $message_before, '1,000 renewals write nothing of a payload of 1 MB');
cmp_ok($size->('claim') - $claim_before, '<', 1_000_000, '1,000 renewals take less than the payload once');
# Where dead ones fill the page the next version goes to another, and is not HOT.
my ($updates, $hot) = split /\|/, $sql->(q{SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'idempotency.claim'::regclass});
cmp_ok($updates, '>=', 1000, "$updates updates of open keys were counted");
cmp_ok($hot, '>=', 0.9 * $updates, "$hot of them HOT");

# --- the worker's own rows ------------------------------------------------------------------------------------------

my $own = 'prune_progress|observed|activity|run|run_sign|scope';
visits(3, 'to begin with');
my $written = $counted->($own, 'n_tup_ins + n_tup_upd + n_tup_del');
visits(60, 'with nothing to do');
cmp_ok($counted->($own, 'n_tup_ins + n_tup_upd + n_tup_del') - $written, '<=', 12, '60 visits with nothing to do write next to nothing');
$work->(q{CALL claim_new('busy ', 2000)});
visits(3, 'after 2,000 claims');
$written = $counted->($own, 'n_tup_ins + n_tup_upd + n_tup_del') - $written;
cmp_ok($written, '<=', 400, "2,000 claims made the worker write $written rows of its own");

# --- claims read no more --------------------------------------------------------------------------------------------

# The worker looks at open keys, too, which is not what is measured here.
$node->append_conf('postgresql.conf', 'idempotency.worker = off');
$node->reload;
until_true($node, 'app', q{SELECT worker LIKE 'off%' FROM idem_status()}, 'the worker is off');
until_true($node, 'app', q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'idempotency worker')}, 'and at rest');

sub entries
{
	return $sql->(q{SELECT sum(seq_tup_read) + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = 'idempotency' AND relname IN ('claim', 'outcome'))
		FROM pg_stat_user_tables WHERE schemaname = 'idempotency' AND relname IN ('claim', 'outcome')});
}
# Keys that come and go, their dead versions all kept.
$work->(q{CALL come_and_go(2000)});
my $read = entries();
$work->(q{CALL claim_new('later ', 500)});
$read = entries() - $read;
cmp_ok($read, '<=', 50, "500 claims of new keys read $read rows and index entries of others");

# --- it ends --------------------------------------------------------------------------------------------------------

$holder->quit;
$sql->('VACUUM idempotency.claim, idempotency.outcome, idempotency.message, idempotency.prune_progress, idempotency.observed, idempotency.activity, idempotency.run');
my $claim_size = $size->('claim');
$work->(q{CALL renew('large', 1000)});
cmp_ok($size->('claim'), '<=', $claim_size, 'it ends: after VACUUM 1,000 renewals more take no more room');
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
