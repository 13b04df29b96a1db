# pg_upgrade, with the library preloaded on both sides. The new server is the same PostgreSQL, or that whose programs are in the
# folder PG_UPGRADE_TO, which must have the extension, too.
#
# Claims, and what would turn them red:
# - pg_upgrade comes to its end: a worker that runs while it works and keeps a template database busy, or a column of a type that it
#   cannot carry over.
# - Every row is as it was, old keys replay, other arguments are seen, leases hold, doubt stays, messages are delivered, fences
#   grow: a digest, a hash or a lock that depends on the server.
# - The worker of the new server sweeps by itself.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Carried;
use IdempotencyNode;
use IdempotencyTools;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $old_programs = (run_command([ 'pg_config', '--bindir' ]))[0];
my $new_programs = $ENV{PG_UPGRADE_TO} // $old_programs;

plan skip_all => 'pg_upgrade is not here' unless -x "$new_programs/pg_upgrade";

my @conf = ("log_statement = none", "idempotency.naptime = '50ms'");
my $old = IdempotencyNode->start(name => 'old', preload => 1, conf => [ @conf, "idempotency.worker = off" ]);
my $sql = sub { $old->safe_psql('app', $_[0]) };

my $carried = Carried->fill($old);
# Others are upgraded beside it: a template, and one without anything of ours.
$old->safe_psql('postgres', 'CREATE DATABASE template_with TEMPLATE app IS_TEMPLATE true; CREATE DATABASE without');

my @tables = split /\n/, $sql->(q{SELECT oid::regclass FROM pg_class WHERE relnamespace = 'idempotency'::regnamespace AND relkind = 'r' ORDER BY 1});
sub content
{
	my ($node, $database) = @_;

	return join "\n", map { "$_:\n" . $node->safe_psql($database, "SELECT t::text FROM $_ AS t ORDER BY 1") } @tables;
}
my %content = map { $_ => content($old, $_) } 'app', 'template_with';

# --- pg_upgrade -----------------------------------------------------------------------------------------------------

# While it works both servers run with their worker on.
$old->append_conf('postgresql.conf', 'idempotency.worker = on');
$old->stop;
my $new = PostgreSQL::Test::Cluster->new('new', $ENV{PG_UPGRADE_TO} ? (install_path => "$new_programs/..") : ());
$new->init(extra => [ '--encoding=UTF8', '--locale=C' ]);
$new->append_conf('postgresql.conf', $_) for "shared_preload_libraries = 'idempotency'", 'max_prepared_transactions = 20', @conf;

my $log = PostgreSQL::Test::Utils::tempdir();
my ($out, $err);
chdir $log or die "no folder: $!";
my $done = IPC::Run::run([ "$new_programs/pg_upgrade", '--no-sync', '-d', $old->data_dir, '-D', $new->data_dir, '-b', $old_programs, '-B', $new_programs,
		'-s', $new->host, '-p', $old->port, '-P', $new->port ], '<', \undef, '>', \$out, '2>', \$err, IPC::Run::timeout(300));
ok($done, 'pg_upgrade comes to its end') or diag($out, $err);
like($out, qr/Upgrade Complete/, 'and says so');
BAIL_OUT('there is nothing to look at') unless $done;

# --- the new server -------------------------------------------------------------------------------------------------

# What the worker changes is looked at later.
$new->append_conf('postgresql.conf', 'idempotency.worker = off');
$new->start;
$sql = sub { $new->safe_psql('app', $_[0]) };
is(content($new, $_), $content{$_}, "$_: every row is as it was") for sort keys %content;
$carried->holds($new);
like($sql->(q{SELECT worker FROM idem_status()}), qr/^running/, 'idem_status: running');

server_log_lacks($_, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed') for $old, $new;

done_testing();
