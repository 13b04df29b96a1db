# Monitoring as a DBA installs it: Debian's prometheus postgres_exporter scrapes a server with our query file, and our
# alert rules and our dashboard find in the scrape what they ask for.
#
# Claims, and what would turn them red:
# - A member of pg_monitor is enough, and every query answers: a column that is not granted, or NULL, which becomes NaN.
# - What is scraped is what the views say: two columns changed for one another.
# - A scope may have any name: one that breaks the labels.
# - No key, run, argument, result or error text leaves the server this way: one of them as a label.
# - Two databases of one server go into one scrape: without the label datname the exporter refuses all of it.
# - Each alert fires on the trouble that it is named for, and none does on a server that is well: an expression that asks
#   for a metric or a label that is not there is silent for ever.
# - A scrape that lacks a query's metrics is an alert, too, be it of one database among several: absent() alone sees that
#   only where no database has them.
# - Runbooks that alerts link to exist; the dashboard shows all metrics and no others.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyClock;
use IdempotencyNode;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Scrape;
use Test::More;

my $folder = "$FindBin::RealBin/documents/monitoring";
my $queries = "$folder/postgres_exporter/queries.yaml";
my $rules_file = "$folder/prometheus/idempotency.rules.yml";
my @counters = qw(claims executes reconciles replays rejections in_progress mismatches takeovers fences_lost completed
  failed_not_applied failed_unknown failed_rejected released unknown escalated leases_expired late_finishes enqueued
  dispatched pruned pruned_alive late_retries);

my $node = IdempotencyNode->start(preload => 1, conf => [ "fsync = on", "idempotency.naptime = '100ms'" ]);
my $sql = sub { $node->safe_psql('app', $_[0]) };

my @scrapes;
my $scrape = sub {
	my ($server, $role, $database, @arguments) = @_;
	my $source = sprintf 'host=%s port=%s user=%s dbname=%s sslmode=disable', $server->host, $server->port, $role, $database;
	my $seen = Scrape->of($queries, $source, @arguments);
	is($seen->{status}, 200, "$role scrapes $database") or diag $seen->{text}, $seen->{log};
	push @scrapes, $seen;
	return $seen;
};

# --- the rules --------------------------------------------------------------------------------------------------------

# Written so that they can be read without a YAML parser, too: one line each.
my @rules;
for (split /\n/, slurp_file($rules_file))
{
	push @rules, { alert => $1 } if /^ +- alert: (\w+)$/;
	$rules[-1]{$1} = $2 if /^ +(expr|severity|runbook_url): (.*)$/;
}
cmp_ok(scalar @rules, '>', 10, 'the rules were read');
is(scalar(grep { !($_->{expr} && $_->{severity} && $_->{runbook_url}) } @rules), 0, 'each has an expression, a severity and a runbook');

my %anchor;
for (split /\n/, slurp_file("$FindBin::RealBin/documents/operations.md"))
{
	$anchor{ lc($1) =~ s/[^\w\- ]//gr =~ s/ /-/gr } = 1 if /^#+ (.*)$/;
}
is_deeply([ grep { !($_->{runbook_url} =~ m{^docs/operations\.md#(.*)$} && $anchor{$1}) } @rules ], [], 'each runbook is there');

# --- a server that is well --------------------------------------------------------------------------------------------

$sql->(q{
	CREATE ROLE regress_watcher LOGIN IN ROLE pg_monitor; CREATE ROLE regress_plain LOGIN;
	ALTER ROLE regress_watcher SET jit = off;
	SELECT idem_scope_set('payments');
	SELECT idem_once('SECRETKEY-1', 'SELECT $1', '{"card": "SECRETRESULT"}', 'payments');
	SELECT idem_once('SECRETKEY-1', 'SELECT $1', '{"card": "SECRETRESULT"}', 'payments');
});
$node->psql('app', q{SELECT idem_once('SECRETKEY-1', 'SELECT $1', '{"card": "SECRETOTHER"}', 'payments')});
until_true($node, 'app', q{SELECT last_sweep_at > clock_timestamp() - interval '1 minute' FROM idem_status()}, 'the worker has been here');
# Else the alert on stalled sweeps fires while a database is visited for the first time.
is($sql->(q{SELECT count(*) FROM idempotency.sweeps WHERE last_sweep_at < pg_postmaster_start_time()}), 0, 'no sweep is older than the server');

my $well = $scrape->($node, 'regress_watcher', 'app');
is_deeply($well->alerts(\@rules), {}, 'no alert where all is well');
is($well->value('pg_exporter_last_scrape_error'), 0, 'no query failed');
is($well->value('pg_exporter_user_queries_load_error'), 0, 'the query file was read');
unlike($well->{log}, qr/level=(?:error|warn)|Error running|Unexpected error|Unparseable/, 'the exporter has nothing to complain of')
  or diag $well->{log};

my %told = (claims => 2, executes => 1, replays => 1, completed => 1, mismatches => 1);
is($well->value("idempotency_${_}_total", scope => 'payments', datname => 'app'), $told{$_} // 0, "payments: $_") for @counters;
is($well->value("idempotency_$_", scope => 'payments'), 1, "payments: $_") for qw(scope_counted scope_outcomes);
is($well->value('idempotency_window_seconds', scope => 'payments'), 30 * 86_400, 'the window is in seconds');
cmp_ok($well->value('idempotency_scope_next_expiry_seconds', scope => 'payments'), '>', 29 * 86_400, 'the next expiry is ahead');
is($well->value('idempotency_scope_next_expiry_seconds', scope => 'default'), 0, 'nothing is 0, and not NaN');
is($well->value("idempotency_worker_$_"), 1, "worker: $_") for qw(preloaded running);
is($well->value("idempotency_worker_$_"), 0, "worker: $_") for qw(in_recovery last_sweep_failed leases_overdue);
is($well->value('idempotency_worker_naptime_seconds'), 0.1, 'the naptime is in seconds');
cmp_ok($well->value('idempotency_worker_last_sweep_age_seconds'), '<', 60, 'the last sweep is not long ago');
is($well->value('idempotency_doctor_findings', severity => 'ok', finding => 'ok'), 1, 'the doctor finds nothing');
is($well->value('idempotency_extension_info', version => $sql->(q{SELECT extversion FROM pg_extension WHERE extname = 'idempotency'})), 1, 'the version is a label');

my @names = $well->names;
is_deeply([ grep { $well->{type}{$_} ne (/_total$/ ? 'counter' : 'gauge') } @names ], [], 'types follow names');
my %allowed = map { $_ => 1 } qw(server datname scope severity finding version);
is_deeply([ grep { my $sample = $_; $sample->{name} =~ /^idempotency_/ && grep { !$allowed{$_} } keys %{ $sample->{label} } }
		@{ $well->{samples} } ], [], 'no label but these');
is_deeply([ grep { $_->{name} =~ /^idempotency_/ && $_->{value} =~ /nan/i } @{ $well->{samples} } ], [], 'no NaN');

# --- the dashboard ----------------------------------------------------------------------------------------------------

my $text = slurp_file("$folder/grafana/idempotency.json");
my $dashboard = decode_json($text);
my @targets = map { @{ $_->{targets} // [] } } @{ $dashboard->{panels} };
my %asked = map { $_ => 1 } map { /\b(idempotency_\w+)/g } (map { $_->{expr} } @targets),
  map { $_->{definition} // '' } @{ $dashboard->{templating}{list} };
my %scraped = map { $_ => 1 } @names;

is_deeply([ grep { !$scraped{$_} } sort keys %asked ], [], 'the dashboard asks for nothing that is not scraped');
is_deeply([ grep { !$asked{$_} } @names ], [], 'all that is scraped is on it');
is_deeply([ grep { !$scraped{$_} } map { $_->{expr} =~ /\b(idempotency_\w+)/g } @rules ], [], 'nor do the rules');
is($dashboard->{templating}{list}[0]{type}, 'datasource', 'the data source can be chosen');
is_deeply([ grep { ($_->{datasource}{uid} // '') ne '${datasource}' } @targets, grep { $_->{targets} } @{ $dashboard->{panels} } ], [], 'and is, in each panel');

# --- a server in trouble ----------------------------------------------------------------------------------------------

# What the worker has to do itself: let a key of a live run go, and meet an error.
$sql->(q{
	SELECT idem_scope_set('hard', dedup_window => '1 hour', hard_limit => '2 hours');
	SELECT idem_run_begin('SECRETRUN', '30 days', 'SECRETLABEL');
	SELECT idem_once('SECRETKEY-2', 'SELECT $1', '1', 'hard', run => 'SECRETRUN');
	UPDATE idempotency.outcome SET finished_at = now() - interval '3 hours' WHERE key = 'SECRETKEY-2';
	DELETE FROM idempotency.prune_progress;
});
until_true($node, 'app', q{SELECT pruned_alive = 1 FROM idempotency.stats WHERE scope = 'hard'}, 'a key expired while its run lives');
$sql->(q{
	CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'SECRETERROR %', OLD.key; END $$;
	CREATE TRIGGER refuse BEFORE DELETE ON idempotency.outcome FOR EACH ROW EXECUTE FUNCTION refuse();
	-- A lease is tried in each visit, so the last one has an error whenever the worker is switched off.
	CREATE TRIGGER refuse BEFORE UPDATE OR DELETE ON idempotency.claim FOR EACH ROW
	  WHEN (OLD.key = 'SECRETKEY-0' AND OLD.lease_expires_at < '2001-01-01') EXECUTE FUNCTION refuse();
	SELECT idem_scope_set('refused', effect_kind => 'external');
	SELECT idem_claim('SECRETKEY-0', scope => 'refused', lease => '1h');
	UPDATE idempotency.claim SET lease_expires_at = '2000-01-01' WHERE key = 'SECRETKEY-0';
	SELECT idem_scope_set('behind', dedup_window => '1 hour');
	SELECT idem_once('SECRETKEY-3', 'SELECT $1', '1', 'behind');
	UPDATE idempotency.outcome SET finished_at = now() - interval '5 hours' WHERE key = 'SECRETKEY-3';
	DELETE FROM idempotency.prune_progress;
});
until_true($node, 'app', q{SELECT last_error IS NOT NULL FROM idem_status()}, 'a sweep met an error');

# Then it is switched off, and the rest stays as it is put there.
$sql->(q{ALTER SYSTEM SET idempotency.worker = off});
$node->reload;
until_true($node, 'app', q{SELECT worker <> 'running' FROM idem_status()}, 'the worker is off');
until_true($node, 'app', q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type LIKE 'idempotency%' AND datname = 'app')},
	'and has left');
$sql->(q{
	DELETE FROM idempotency.prune_progress;
	SELECT idem_scope_set('external', effect_kind => 'external'), idem_scope_set('near', effect_kind => 'external'), idem_scope_set('short');
	SELECT idem_scope_set(E'odd "name" \\\\ {a="b"}');
	SELECT idem_claim('SECRETKEY-4', scope => 'external', lease => '1h');
	SELECT idem_claim('SECRETKEY-5', scope => 'external', lease => '1h');
	UPDATE idempotency.claim SET lease_expires_at = now() - interval '10 minutes' WHERE key = 'SECRETKEY-5';
	SELECT idem_enqueue('SECRETKEY-6', 'SECRETDESTINATION', '{"to": "SECRETPAYLOAD"}', scope => 'external');
	SELECT fence FROM idem_claim('SECRETKEY-7', scope => 'external', lease => '1h') \gset
	SELECT idem_escalate('SECRETKEY-7', 'SECRETREASON', '{"seen": "SECRETEVIDENCE"}'::jsonb, 'external', :fence);
	SELECT fence FROM idem_claim('SECRETKEY-8', scope => 'near', lease => '1h') \gset
	SELECT idem_fail('SECRETKEY-8', 'unknown', 'SECRETREASON', scope => 'near', fence => :fence);
	UPDATE idempotency.claim SET in_doubt_since = now() - interval '25 days' WHERE key = 'SECRETKEY-8';
	SELECT idem_run_begin('SECRETRUN2', '60 days');
	SELECT idem_once(idem_key('SECRETRUN2', 'SECRETSTEP'), 'SELECT $1', '1', 'short');
});

my $ill = $scrape->($node, 'regress_watcher', 'app');
my %expected = (
	IdempotencyExpiredAlive => ['hard'],
	IdempotencyWindowTooShort => ['short'],
	IdempotencyWindowNear => ['near'],
	IdempotencyDoctorCritical => [ 'expired_alive', 'window_too_short' ],
	IdempotencyUnknownTooLong => ['near'],
	IdempotencyEscalations => ['external'],
	IdempotencySweepFailing => ['app'],
	IdempotencyPruningBehind => ['behind'],
	IdempotencyLeasesOverdue => ['app'],
	IdempotencyWorkerNotRunning => ['app'],
);
is_deeply($ill->alerts(\@rules), \%expected, 'each alert fires where its trouble is, and nowhere else')
  or diag explain $ill->alerts(\@rules);

# As its role sees them: what a scrape reads and what a person reads are the same.
my $stats = decode_json($node->safe_psql('app', q{SELECT json_object_agg(scope, to_jsonb(s)) FROM idempotency.stats AS s}, extra_params => [ '-U', 'regress_watcher' ]));
is(scalar(keys %$stats), 9, 'all scopes are seen, whatever their names');
for my $scope (sort keys %$stats)
{
	my %metric = ((map { $_ => "idempotency_${_}_total" } @counters),
		(map { $_ => "idempotency_scope_$_" } qw(unknown_keys escalated_keys outcomes)),
		in_flight => 'idempotency_scope_in_flight_keys', queued => 'idempotency_scope_queued_keys', bytes => 'idempotency_scope_outcomes_bytes');
	is_deeply({ map { $_ => $ill->value($metric{$_}, scope => $scope) + 0 } keys %metric },
		{ map { $_ => $stats->{$scope}{$_} } keys %metric }, "scope $scope is told as it is");
}
is($ill->value("idempotency_scope_$_", scope => 'external'), 1, "external: $_") for qw(queued_keys escalated_keys);
is($ill->value('idempotency_scope_in_flight_keys', scope => 'external'), 2, 'external: in_flight_keys');
my $is_about = sub {
	my ($name, $scope, $seconds) = @_;
	my $value = $ill->value($name, defined $scope ? (scope => $scope) : ());
	return ok(abs($value - $seconds) < 120, "$name is about $seconds") || diag $value;
};
$is_about->('idempotency_scope_oldest_unknown_age_seconds', 'near', 25 * 86_400);
$is_about->('idempotency_scope_prune_lag_seconds', 'behind', 4 * 3_600);
$is_about->('idempotency_scope_oldest_open_age_seconds', 'external', 0);
$is_about->('idempotency_scope_longest_lease_seconds', 'external', 3_600);
is($ill->value('idempotency_window_recommended_seconds', scope => 'short'), 120 * 86_400, 'short: what is recommended');
is($ill->value('idempotency_doctor_findings', severity => 'warning', finding => 'worker_not_running'), 1, 'the doctor says so, too');
is_deeply([ $ill->names ], \@names, 'trouble changes no names');

# A window that never ends.
$sql->(q{SELECT idem_scope_set('short', keep_forever => true)});
is($scrape->($node, 'regress_watcher', 'app')->value('idempotency_window_seconds', scope => 'short'), 'Inf', 'a window that never ends');

# --- rights that are missing ------------------------------------------------------------------------------------------

my $blind = $scrape->($node, 'regress_plain', 'app');
is_deeply([ keys %{ $blind->alerts(\@rules) } ], ['IdempotencyNotWatched'], 'who may not look is an alert, not silence');
is($blind->value('pg_exporter_last_scrape_error'), 1, 'and the exporter says so');
$node->stop;

# --- not preloaded, two databases ---------------------------------------------------------------------------------------

my $bare = IdempotencyNode->start(name => 'bare');
$bare->safe_psql('postgres', 'CREATE ROLE regress_watcher LOGIN IN ROLE pg_monitor; CREATE DATABASE other');
$bare->safe_psql('other', q{CREATE EXTENSION idempotency; SELECT idem_once('SECRETKEY-9', 'SELECT $1', '1')});
my $both = $scrape->($bare, 'regress_watcher', 'app', '--auto-discover-databases', '--include-databases=other');
is($both->value('pg_exporter_last_scrape_error'), 0, 'two databases in one scrape');
is_deeply($both->alerts([ grep { $_->{alert} ne 'IdempotencyDoctorCritical' } @rules ]), { IdempotencyNotPreloaded => [ 'app', 'other' ] }, 'not preloaded, in both');
is($both->value('idempotency_scope_outcomes', datname => 'app'), 0, 'what is in one database');
is($both->value('idempotency_scope_outcomes', datname => 'other'), 1, 'and in the other');
is_deeply([ $both->names ], [ grep { !/_total$/ } @names ], 'gauges work, counters are left out');
is($both->value('idempotency_scope_counted', datname => 'other'), 0, 'and are said to be');

# One that lacks the metrics of two queries, beside one that has them all.
$bare->safe_psql('other', 'DROP EXTENSION idempotency CASCADE; CREATE SCHEMA elsewhere; CREATE EXTENSION idempotency SCHEMA elsewhere');
my $half = $scrape->($bare, 'regress_watcher', 'app', '--auto-discover-databases', '--include-databases=other');
is($half->value('idempotency_worker_running', datname => 'app'), 0, 'the one database is watched');
is($half->value('idempotency_worker_running', datname => 'other'), undef, 'the other is not');
is_deeply($half->alerts(\@rules)->{IdempotencyNotWatched}, ['other'], 'and that is an alert, of that database alone');
$bare->stop;

# --- a sweep that stalls --------------------------------------------------------------------------------------------------

SKIP:
{
	skip(IdempotencyClock->missing, 1) if IdempotencyClock->missing;

	my $clock = IdempotencyClock->new;
	my $late = IdempotencyNode->make(name => 'late', preload => 1, conf => [ "fsync = on", "idempotency.naptime = '100ms'" ]);
	$clock->start($late);
	$late->safe_psql('postgres', 'CREATE ROLE regress_watcher LOGIN IN ROLE pg_monitor; CREATE DATABASE app');
	$late->safe_psql('app', 'CREATE EXTENSION idempotency');
	until_true($late, 'app', q{SELECT last_sweep_at > clock_timestamp() - interval '1 minute' FROM idem_status()}, 'the worker has been here');
	my $launcher = $late->safe_psql('app', 'SELECT launcher_pid FROM idem_status()');
	kill 'STOP', $launcher or die "could not stop the launcher: $!";
	until_true($late, 'app', q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type LIKE 'idempotency%' AND datname IS NOT NULL)}, 'and has left');
	$clock->step(290);
	is_deeply($scrape->($late, 'regress_watcher', 'app')->alerts(\@rules), {}, 'late by less than five minutes');
	$clock->step(110);
	my $stalled = $scrape->($late, 'regress_watcher', 'app');
	is_deeply($stalled->alerts(\@rules), { IdempotencySweepStalled => ['app'] }, 'late by more');
	is($stalled->value('idempotency_doctor_findings', severity => 'warning', finding => 'sweep_stalled'), 1, 'the doctor says the same');
	kill 'CONT', $launcher;
	until_true($late, 'app', q{SELECT last_sweep_at > clock_timestamp() - interval '1 minute' FROM idem_status()}, 'it goes on');
	is_deeply($scrape->($late, 'regress_watcher', 'app')->alerts(\@rules), {}, 'and the alert ends');
	$late->stop;
}

# --- nothing leaks ------------------------------------------------------------------------------------------------------

is(scalar(grep { $_->{text} =~ /SECRET/ || $_->{log} =~ /SECRET/ } @scrapes), 0, 'no key, run, argument, result or error text in any scrape, nor in the exporter\'s log');

# --- Prometheus' own opinion, where it is here ----------------------------------------------------------------------------

SKIP:
{
	skip 'promtool is not here: apt-get install prometheus lets these run', 1
	  unless eval { IPC::Run::run([ 'promtool', '--version' ], '>&', \my $version) };

	command_ok([ 'promtool', 'check', 'rules', $rules_file ], 'promtool reads the rules');

	# The scrape of the server in trouble, unchanged for an hour: the same alerts fire as in our own reading.
	my $quoted = sub { my ($value) = @_; return q{'} . $value =~ s/'/''/gr . q{'}; };
	my $series = join '', map {
		my $label = $_->{label};
		sprintf "      - {series: %s, values: %s}\n",
		  $quoted->("$_->{name}\{" . join(',', map { "$_=" . encode_json([ $label->{$_} ]) =~ s/^\[|\]$//gr } sort keys %$label) . '}'),
		  $quoted->(sprintf '%.17gx60', $_->{value})
	} grep { $_->{name} =~ /^idempotency_/ } @{ $ill->{samples} };
	my $counts = join '', map {
		sprintf "          - {labels: '{alertname=\"%s\"}', value: %d}\n", $_, scalar @{ $expected{$_} }
	} sort keys %expected;
	my $test = PostgreSQL::Test::Utils::tempdir() . '/rules_test.yml';
	append_to_file($test, "rule_files: [ $rules_file ]\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n$series"
		  . "    promql_expr_test:\n      - expr: count by (alertname) (ALERTS{alertstate=\"firing\"})\n        eval_time: 59m\n        exp_samples:\n$counts");
	command_ok([ 'promtool', 'test', 'rules', $test ], 'promtool fires the same alerts');
}

done_testing();
