# A COMMIT that waits for a standby which is not there is cancelled: its rows are seen on the primary, and are not on the node
# that is promoted. PostgreSQL loses them together; nothing of the extension makes that better or worse.
#
# Claims, and what would turn them red:
# - On the primary whoever asks again gets the first answer. After the failover the key is as it was before, with its effect: both
#   are lost together, so the next caller executes once: a record that travels another way than the effect.
# - An outside effect whose claim waits for the standby is not begun: its COMMIT does not return before the standby has it.
# - What was acknowledged is on the standby, and the extension never lowers synchronous_commit of its callers.
# - The doctor says where a server's settings are weaker than the promise.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use PostgreSQL::Test::Cluster;
use Test::More;

my $primary = IdempotencyNode->start(name => 'primary', preload => 1, allows_streaming => 1, conf => [ "idempotency.worker = off", "log_statement = none", "fsync = on" ]);
my $local = sub { $primary->safe_psql('app', "SET synchronous_commit = local;\n$_[0]") };

effect_table($primary, 'app');
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;
my $on_standby = sub { $standby->safe_psql('app', $_[0]) };

sub wait_for
{
	my ($names) = @_;

	$primary->append_conf('postgresql.conf', "synchronous_standby_names = '$names'");
	$primary->reload;
	return until_true($primary, 'postgres', "SELECT current_setting('synchronous_standby_names') = '$names'", $names eq '' ? 'commits wait for nobody' : "commits wait for $names");
}

my $finding = q{SELECT string_agg(finding, ' ' ORDER BY finding) FROM idem_doctor() WHERE finding ~ 'synchronous|fsync|full_page'};
my $once = sub { "SELECT result FROM idem_once('$_[0]', \$\$" . effect_statement("'$_[0]'", 'default') . '$$)' };

# --- with a standby that answers ------------------------------------------------------------------------------------

like($local->($finding), qr/asynchronous_standby_only/, 'the doctor says that the standby is not waited for');
wait_for('standby');
until_true($primary, 'postgres', q{SELECT sync_state = 'sync' FROM pg_stat_replication}, 'the standby is waited for');
unlike($local->($finding) // '', qr/asynchronous_standby_only/, 'the doctor has nothing to say of it');
# Without having waited for it: what was acknowledged is there.
for my $level ('on', 'remote_apply')
{
	my $session = IdempotencySession->open($primary, 'app', settings => { synchronous_commit => $level });
	my $id = $session->query($once->("acknowledged $level"));
	like($id, qr/^\d+$/, "$level: executed");
	is($session->query('SHOW synchronous_commit'), $level, "$level: synchronous_commit is as it was");
	is($session->query(qq{BEGIN; SELECT idem_claim('k $level'); SELECT idem_complete('k $level'); SELECT current_setting('synchronous_commit')}) =~ s/.*\n//sr, $level, "$level: within a transaction, too");
	$session->query('ROLLBACK');
	$session->quit;
}
is($on_standby->(q{SELECT state FROM idem_peek('acknowledged remote_apply')}), 'completed', 'what was acknowledged has been applied there');

# --- with one that does not -----------------------------------------------------------------------------------------

wait_for('ghost');
my $worker = IdempotencySession->open($primary, 'app');
my $pid = $worker->backend_pid;
$worker->send($once->('lost'));
until_true($primary, 'app', "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid", 'a commit waits for a standby');
is($local->(q{SELECT decision FROM idem_claim('lost', wait => '0')}), 'in_progress', 'its key is held meanwhile');
# An outside effect: the claim is not acknowledged, so nobody begins.
my $claimer = IdempotencySession->open($primary, 'app');
my $claimer_pid = $claimer->backend_pid;
$claimer->send(q{SELECT decision FROM idem_claim('outside', lease => '1 h')});
until_true($primary, 'app', "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $claimer_pid", 'a claim for an outside effect waits for it');
ok(!$claimer->done, 'and is not acknowledged');
# From here on the standby gets nothing.
$standby->stop('fast');
$local->("SELECT pg_cancel_backend($pid)");
my $answer = $worker->answer;
like($worker->error, qr/WARNING:  \w{5}: canceling wait for synchronous replication/, 'the wait is cancelled, with a warning');
is($local->($once->('lost')), $answer, 'on the primary the first answer is replayed');
invariant_holds($primary, 'app', 'on the primary');
# Now the primary dies, with whatever the standby did not get.
$local->($once->('later'));
$primary->stop('immediate');
$_->forget for $worker, $claimer;

# --- promoted -------------------------------------------------------------------------------------------------------

$standby->append_conf('postgresql.conf', "primary_conninfo = ''\nsynchronous_standby_names = ''");
$standby->start;
$standby->promote;
until_true($standby, 'postgres', 'SELECT NOT pg_is_in_recovery()', 'the standby is promoted');
is($on_standby->(q{SELECT state FROM idem_peek('acknowledged on')}), 'completed', 'what was acknowledged is there');
is($on_standby->(q{SELECT count(*) FROM effect WHERE key LIKE 'acknowledged %'}), 2, 'with its effects');
invariant_holds($standby, 'app', 'promoted');
is($on_standby->(q{SELECT state FROM idem_peek('later')}), 'absent', 'what was never sent is gone');
is($on_standby->(q{SELECT count(*) FROM effect WHERE key = 'later'}), 0, 'with its effect');
like($on_standby->($once->('later')), qr/^\d+$/, 'the next caller executes');
is($on_standby->(q{SELECT count(*) FROM effect WHERE key = 'later'}), 1, 'once');
invariant_holds($standby, 'app', 'executed again');

server_log_lacks($_, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed') for $primary, $standby;

done_testing();
