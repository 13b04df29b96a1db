# Change capture: each message is complete in its INSERT into idempotency.message, as pgoutput decodes it for Debezium
# and for every other reader of logical replication.
#
# Claims, and what would turn them red:
# - One INSERT for each message, with everything that it says, a large payload too: a payload that is written later, or
#   kept elsewhere.
# - What is rolled back is not seen, a duplicate and a retry are not seen again: rows deleted and inserted anew at each try.
# - Messages of one ordering key come in the order of their commits.
# - A publication of all operations does not stand in the way of dispatchers: a table without a replica identity.
# - The columns are those of idempotency.debezium_outbox.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use IdempotencySession;
use IdempotencyTools;
use JSON::PP;
use Test::More;

my $node = IdempotencyNode->start(allows_streaming => 'logical', preload => 1, conf => [ "wal_level = logical", "idempotency.worker = off" ]);
my $sql = sub { return $node->safe_psql('app', $_[0]) };

# --- pgoutput, protocol version 1 -----------------------------------------------------------------------------------

# Reads one value off the front of $_[0].
sub byte { return unpack('C', substr($_[0], 0, 1, '')) }
sub letter { return substr($_[0], 0, 1, '') }
sub int16 { return unpack('n', substr($_[0], 0, 2, '')) }
sub int32 { return unpack('N', substr($_[0], 0, 4, '')) }
sub string { $_[0] =~ s/^([^\0]*)\0//s or die 'no string'; return $1 }

# The columns of a tuple by name; a TOASTed value that was left out is the text 'UNCHANGED'.
sub tuple
{
	my (undef, $names) = @_;
	my %row;
	my $columns = int16($_[0]);

	die "$columns columns for @$names" unless $columns == @$names;
	for my $name (@$names)
	{
		my $kind = letter($_[0]);
		if ($kind eq 't') { my $length = int32($_[0]); $row{$name} = substr($_[0], 0, $length, ''); }
		else { $row{$name} = $kind eq 'n' ? undef : 'UNCHANGED'; }
	}
	return \%row;
}

# What a slot has for a publication, in order: [ operation, relation, row ].
sub changes
{
	my ($slot, $publication) = @_;
	my (@changes, %relation);
	my $data = $sql->("SELECT encode(data, 'hex') FROM pg_logical_slot_get_binary_changes('$slot', NULL, NULL, 'proto_version', '1', 'publication_names', '$publication')");

	for my $message (map { pack('H*', $_) } split /\n/, $data)
	{
		my $kind = letter($message);
		if ($kind eq 'R')
		{
			my $oid = int32($message);
			my $name = string($message) . '.' . string($message);
			byte($message);
			my @names;
			for (1 .. int16($message))
			{
				byte($message);
				push @names, string($message);
				int32($message);
				int32($message);
			}
			$relation{$oid} = { name => $name, columns => \@names };
		}
		elsif ($kind eq 'I')
		{
			my $relation = $relation{ int32($message) };
			die 'no new tuple' unless letter($message) eq 'N';
			push @changes, [ 'INSERT', $relation->{name}, tuple($message, $relation->{columns}) ];
		}
		elsif ($kind eq 'U' || $kind eq 'D')
		{
			push @changes, [ $kind eq 'U' ? 'UPDATE' : 'DELETE', $relation{ int32($message) }{name} ];
		}
	}
	return @changes;
}

sub keys_of { return join ' ', map { $_->[2]{key} } @_ }

# --- the setting ----------------------------------------------------------------------------------------------------

$sql->(q{
	SELECT idem_scope_set('pay', backoff => '1 ms', max_backoff => '1 ms', max_attempts => 3);
	CREATE PUBLICATION outbox FOR TABLE idempotency.message (digest, enqueued_at, scope, key, destination, ordering_key, run, payload) WITH (publish = 'insert');
	CREATE PUBLICATION everything FOR TABLE idempotency.message;
	SELECT slot_name FROM pg_create_logical_replication_slot('outbox', 'pgoutput');
	SELECT slot_name FROM pg_create_logical_replication_slot('everything', 'pgoutput');
});

# Takes one message, waits for it if need be, and ends it.
sub deliver
{
	my ($end) = @_;
	my ($key, $scope, $fence) = split /\|/, $sql->(q{SELECT key, scope, fence FROM idem_dispatch('bank', 1, '1 min', '30 s')});

	$sql->(sprintf($end, "'$key'", "scope => '$scope', fence => $fence"));
	return;
}

# --- one message ----------------------------------------------------------------------------------------------------

is($sql->(q{SELECT decision, enqueued FROM idem_enqueue('pay-1', 'bank', '{"id": 1, "amount": 12345678901234567890.50, "to": "Zoë\n"}', scope => 'pay', run => 'run 1', ordering_key => 'account 7')}),
	'queued|t', 'a message is enqueued');
my $view = decode_json($sql->('SELECT to_json(d) FROM idempotency.debezium_outbox AS d'));
my @seen = changes('outbox', 'outbox');
is(scalar @seen, 1, 'one change is decoded');
is("$seen[0][0] $seen[0][1]", 'INSERT idempotency.message', 'an INSERT into the outbox');
my $row = $seen[0][2];
is($row->{key}, 'pay-1', 'with its key');
is($row->{scope}, 'pay', 'its scope by name');
is($row->{destination}, 'bank', 'its destination');
is($row->{ordering_key}, 'account 7', 'its ordering key');
is($row->{run}, 'run 1', 'its run');
is($sql->(sprintf(q{SELECT %s::jsonb = '{"id": 1, "amount": 12345678901234567890.50, "to": "Zoë\n"}'}, "\$x\$$row->{payload}\$x\$")), 't', 'its payload');
is($sql->("SELECT '$row->{enqueued_at}'::timestamptz = enqueued_at FROM idempotency.outbox WHERE key = 'pay-1'"), 't', 'and the time');
is("$row->{digest} $row->{destination} $row->{ordering_key} $row->{scope}", "$view->{id} $view->{aggregatetype} $view->{aggregateid} $view->{type}",
	'under what debezium_outbox calls id, aggregatetype, aggregateid and type');

# --- what is not seen -----------------------------------------------------------------------------------------------

$sql->(q{BEGIN; SELECT idem_enqueue('rolled back', 'bank', '1', scope => 'pay'); ROLLBACK});
$sql->(q{BEGIN; SAVEPOINT a; SELECT idem_enqueue('rolled back too', 'bank', '1', scope => 'pay'); ROLLBACK TO a; COMMIT});
is($sql->(q{SELECT decision, enqueued FROM idem_enqueue('pay-1', 'bank', '{"id": 1, "amount": 12345678901234567890.5, "to": "Zoë\n"}', scope => 'pay')}), 'queued|f', 'a duplicate');
deliver(q{SELECT idem_fail(%s, 'not_applied', 'refused', %s)});
deliver(q{SELECT idem_fail(%s, 'not_applied', 'refused', %s)});
deliver(q{SELECT idem_fail(%s, 'not_applied', 'refused', %s)});
is($sql->(q{SELECT state FROM idem_peek('pay-1', 'pay')}), 'escalated', 'three tries, no success');
is($sql->(q{SELECT idem_resolve('pay-1', 'not_applied', scope => 'pay')}), 'queued', 'requeued by an operator');
deliver(q{SELECT idem_fail(%s, 'unknown', 'reset', %s)});
deliver(q{SELECT idem_resolve(%s, 'applied', '{"receipt": 1}', %s)});
is($sql->(q{SELECT state FROM idem_peek('pay-1', 'pay')}), 'completed', 'and sent at last');
is(keys_of(changes('outbox', 'outbox')), '', 'of all that nothing is decoded');

# --- large, several, ordered ----------------------------------------------------------------------------------------

# Not compressible, so that it is TOASTed out of line.
$sql->(q{SELECT idem_enqueue('large', 'bank', (SELECT jsonb_agg(md5(n::text)) FROM generate_series(1, 20000) AS n), scope => 'pay')});
my $large = $sql->(q{SELECT md5(payload::text) FROM idempotency.message WHERE key = 'large'});
cmp_ok($sql->(q{SELECT pg_column_size(payload) FROM idempotency.message WHERE key = 'large'}), '>', 100_000, 'a large payload');
deliver(q{SELECT idem_complete(%s, '1', %s)});
@seen = changes('outbox', 'outbox');
is(keys_of(@seen), 'large', 'is decoded after the message is gone');
is($sql->("SELECT md5('$seen[0][2]{payload}'::jsonb::text)"), $large, 'as a whole');

# Two that enqueue for one ordering key: the second waits for the first to commit, so its message comes later.
my ($first, $second) = map { IdempotencySession->open($node, 'app') } 1 .. 2;
$first->query(q{BEGIN; SELECT idem_enqueue('o1', 'bank', '1', scope => 'pay', ordering_key => 'o')});
$second->send(q{BEGIN; SELECT idem_enqueue('o2', 'bank', '1', scope => 'pay', ordering_key => 'o'); COMMIT});
until_true($node, 'app', "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%o2%' AND pid <> pg_backend_pid()", 'the second waits for the first');
$first->query(q{SELECT idem_enqueue('o3', 'bank', '1', scope => 'pay', ordering_key => 'o'); COMMIT});
$second->answer;
is($second->sqlstate, '00000', 'and goes on when that has committed');
is(keys_of(changes('outbox', 'outbox')), 'o1 o3 o2', 'decoded in the order of the commits');
is($sql->(q{SELECT string_agg(key, ' ' ORDER BY position) FROM idempotency.message WHERE ordering_key = 'o'}), 'o1 o3 o2', 'which is the order of delivery');
$_->quit for $first, $second;
$sql->(q{BEGIN; SELECT idem_enqueue('t1', 'bank', 'null', scope => 'pay'), idem_enqueue('t2', 'mail', '{}', scope => 'pay', delay => '1 day'), idem_enqueue('t3', 'bank', '[]'); COMMIT});
@seen = changes('outbox', 'outbox');
is(keys_of(@seen), 't1 t2 t3', 'several in one transaction, a delayed one at once');
is(join(' ', map { $_->[2]{payload} } @seen), 'null {} []', 'whatever they say');
is(join(' ', map { defined $_->[2]{ordering_key} ? 'ordered' : 'unordered' } @seen), 'unordered unordered unordered', 'without an ordering key: NULL');

# A leased key left unknown that becomes a message is decoded when it does.
my $fence = $sql->(q{SELECT fence FROM idem_claim('was a claim', '1', 'pay', '1 min')});
$sql->(qq{SELECT idem_fail('was a claim', 'unknown', 'reset', scope => 'pay', fence => $fence)});
is(keys_of(changes('outbox', 'outbox')), '', 'a claim is no message');
$sql->(q{SELECT idem_enqueue('was a claim', 'bank', '1', scope => 'pay')});
is(keys_of(changes('outbox', 'outbox')), 'was a claim', 'until it is enqueued');

# --- everything -----------------------------------------------------------------------------------------------------

@seen = changes('everything', 'everything');
is(join(' ', map { $_->[0] } grep { $_->[0] eq 'INSERT' } @seen), join(' ', ('INSERT') x 9), 'published with all operations: each message is inserted once');
ok((grep { $_->[0] eq 'DELETE' } @seen) == 2, 'and deleted once it is finished');
is(join(' ', grep { $_ ne 'idempotency.message' } map { $_->[1] } @seen), '', 'of no other table');

server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal|panicked/, 'nothing crashed');

done_testing();
