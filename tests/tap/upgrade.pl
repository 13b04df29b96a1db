# ALTER EXTENSION UPDATE from each version that was released, with the library of today.
#
# Claims, and what would turn them red:
# - What was updated is what a fresh install makes: columns, definitions, comments, privileges, dump registration. A change of
#   sql/*.sql that the update script lacks.
# - The library serves the objects of the old version, before the update: sessions and databases that are not updated yet go on. A
#   table or column that is taken for granted.
# - Records from before the update behave as ever after it, in sessions that were open all the time as in new ones.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Carried;
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = IdempotencyNode->start(extension => 0, preload => 1, conf => [ "idempotency.naptime = '50ms'", "idempotency.worker = off" ]);
my $current = $node->safe_psql('app', q{SELECT default_version FROM pg_available_extensions WHERE name = 'idempotency'});
my @released = split /\n/, $node->safe_psql('app', qq{SELECT version FROM pg_available_extension_versions WHERE name = 'idempotency' AND version <> '$current' ORDER BY 1});
cmp_ok(scalar @released, '>', 0, 'there are released versions to come from');

# All that the extension's members are, in words.
my $catalogue = q{
	WITH member AS MATERIALIZED (
		SELECT d.classid, d.objid FROM pg_depend AS d JOIN pg_extension AS e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
		 WHERE e.extname = 'idempotency' AND d.deptype = 'e'),
	relation AS MATERIALIZED (
		SELECT c.* FROM member AS m JOIN pg_class AS c ON m.classid = 'pg_class'::regclass AND m.objid = c.oid),
	part (what, of, says) AS (
		SELECT 'member', i.identity, i.type FROM member AS m, pg_identify_object(m.classid, m.objid, 0) AS i
		UNION ALL SELECT 'function', p.oid::regprocedure::text, pg_get_functiondef(p.oid) || p.proacl::text
		  FROM member AS m JOIN pg_proc AS p ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid
		UNION ALL SELECT 'relation', oid::regclass::text, concat_ws(' ', relkind, relpersistence, reloptions, relacl, relrowsecurity) FROM relation
		UNION ALL SELECT 'view', oid::regclass::text, pg_get_viewdef(oid) FROM relation WHERE relkind = 'v'
		UNION ALL SELECT 'column', format('%s.%s', r.oid::regclass, a.attname), concat_ws(' ', a.attnum, format_type(a.atttypid, a.atttypmod), a.attcollation::regcollation, a.attnotnull, a.attstorage, a.attcompression, a.attacl, pg_get_expr(d.adbin, d.adrelid))
		  FROM relation AS r JOIN pg_attribute AS a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped LEFT JOIN pg_attrdef AS d ON d.adrelid = r.oid AND d.adnum = a.attnum
		UNION ALL SELECT 'constraint', c.conrelid::regclass || '.' || c.conname, pg_get_constraintdef(c.oid) FROM relation AS r JOIN pg_constraint AS c ON c.conrelid = r.oid
		UNION ALL SELECT 'index', i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid) FROM relation AS r JOIN pg_index AS i ON i.indrelid = r.oid
		UNION ALL SELECT 'trigger', t.tgrelid::regclass || '.' || t.tgname, pg_get_triggerdef(t.oid) || t.tgenabled::text FROM relation AS r JOIN pg_trigger AS t ON t.tgrelid = r.oid
		UNION ALL SELECT 'comment', i.identity || coalesce('.' || nullif(d.objsubid, 0), ''), d.description FROM member AS m JOIN pg_description AS d ON d.classoid = m.classid AND d.objoid = m.objid, pg_identify_object(m.classid, m.objid, 0) AS i
		UNION ALL SELECT 'schema', n.nspname, n.nspacl::text FROM member AS m JOIN pg_namespace AS n ON m.classid = 'pg_namespace'::regclass AND m.objid = n.oid
		UNION ALL SELECT 'dumped', c.oid::regclass::text, c.condition FROM pg_extension AS e, unnest(e.extconfig, e.extcondition) AS c (oid, condition) WHERE e.extname = 'idempotency')
	SELECT regexp_replace(what || ' ' || of || ': ' || says, '\s+', ' ', 'g') FROM part ORDER BY what, of, says};

$node->safe_psql('postgres', 'CREATE DATABASE fresh');
$node->safe_psql('fresh', 'CREATE EXTENSION idempotency');
my $fresh = $node->safe_psql('fresh', $catalogue);
cmp_ok(scalar(split /\n/, $fresh), '>', 500, 'the catalogue says something');

for my $version (@released)
{
	$node->safe_psql('postgres', 'DROP DATABASE app');
	$node->safe_psql('postgres', 'CREATE DATABASE app');
	$node->safe_psql('app', "CREATE EXTENSION idempotency VERSION '$version'");
	my $sql = sub { $node->safe_psql('app', $_[0]) };

	# --- the library of today and the objects of then -------------------------------------------------------------

	my $carried = Carried->fill($node);
	is($sql->('SELECT count(*) FROM idem_doctor() WHERE finding = \'version_mismatch\''), 1, "$version: the doctor says that an update is due");
	$sql->(q{SELECT idem_scope_set('hour', dedup_window => '1 hour'), idem_once('of then', 'SELECT to_jsonb(1)', scope => 'hour')});
	$sql->(q{UPDATE idempotency.outcome SET finished_at = finished_at - interval '2 hours' WHERE key = 'of then'});
	my $session = IdempotencySession->open($node, 'app');
	$session->query('CALL idempotency.sweep()');
	is($sql->(q{SELECT count(*) FROM idempotency.records WHERE key = 'of then'}), 0, "$version: a sweep prunes");
	my $issued = q{SELECT decision FROM idem_claim('of then', scope => 'hour', issued_at => now() - interval '3 hours', lease => '1 ms')};
	is($sql->($issued), 'expired', "$version: a call is told that it comes too late");
	is($session->query(q{SELECT decision, result FROM idem_claim('done', '{"a": "é", "b": 1.5}', 's')}), 'replay|7', "$version: an old key replays");
	# Everything but what a sweep has changed.
	my $content = sub { $sql->(q{SELECT 'c', c::text FROM idempotency.claim AS c UNION ALL SELECT 'o', o::text FROM idempotency.outcome AS o UNION ALL SELECT 's', s::text FROM idempotency.scope AS s
		UNION ALL SELECT 'm', m::text FROM idempotency.message AS m UNION ALL SELECT 'r', r::text FROM idempotency.run AS r UNION ALL SELECT 'e', e::text FROM idempotency.event AS e ORDER BY 1, 2}) };
	my $before = $content->();

	# --- the update -----------------------------------------------------------------------------------------------

	$sql->('ALTER EXTENSION idempotency UPDATE');
	is($sql->(q{SELECT extversion FROM pg_extension WHERE extname = 'idempotency'}), $current, "$version: is updated");
	$node->safe_psql('postgres', 'DROP DATABASE IF EXISTS updated');
	$node->safe_psql('postgres', 'CREATE DATABASE updated');
	$node->safe_psql('updated', "CREATE EXTENSION idempotency VERSION '$version'; ALTER EXTENSION idempotency UPDATE");
	my %updated = map { $_ => 1 } split /\n/, $node->safe_psql('updated', $catalogue);
	my %fresh = map { $_ => 1 } split /\n/, $fresh;
	is(join("\n", grep { !$updated{$_} } sort keys %fresh), '', "$version: the update makes all that an installation has");
	is(join("\n", grep { !$fresh{$_} } sort keys %updated), '', "$version: and nothing else");
	is($content->(), $before, "$version: every record is as it was");
	is($session->query(q{SELECT decision, result FROM idem_claim('done', '{"a": "é", "b": 1.5}', 's')}), 'replay|7', "$version: a session that was open goes on");
	$sql->(q{SELECT idem_scope_set('hour', dedup_window => '30 days')});
	is($sql->($issued), 'expired', "$version: what was pruned before the update is known after it");
	is($session->query(q{SELECT decision FROM idem_claim('of now', scope => 'hour', issued_at => now() - interval '1 minute', lease => '1 ms')}), 'execute', "$version: and not more than that");
	$session->quit;
	$carried->holds($node);

	$node->append_conf('postgresql.conf', 'idempotency.worker = off');
	$node->reload;
	$node->safe_psql('app', 'DROP OWNED BY regress_user, regress_owner CASCADE');
	$node->safe_psql('postgres', 'DROP DATABASE app');
	$node->safe_psql('postgres', 'DROP ROLE regress_user, regress_owner; CREATE DATABASE app');
}
server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
