# The background worker asks a scope's reconciler about keys in doubt, and nobody who names one can harm it.
#
# Claims, and what would turn them red:
# - A key in doubt is resolved without anybody calling idem_reconcile: a worker that only sweeps.
# - The reconciler runs as the scope's owner: one that runs as the worker's own role.
# - A reconciler that never ends, even when cancelled, is ended, and the keys behind it are reached: no time limit.
# - Reads in vain end with a human: reads that are not counted.
# - A scope whose reads are slow and many does not starve another: no share for each scope.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use Test::More;

my $node = IdempotencyNode->start(preload => 1,
	conf => [ "idempotency.naptime = '100ms'", "idempotency.reconcile_timeout = '200ms'" ]);

$node->safe_psql('app', q{
	CREATE ROLE owner;
	GRANT CREATE ON SCHEMA idempotency TO owner;
	CREATE FUNCTION reader(key text, args jsonb, first_claimed_at timestamptz,
			OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE plpgsql AS $$
	BEGIN
		IF key = 'stubborn' THEN
			LOOP
				BEGIN
					PERFORM pg_sleep(60);
				EXCEPTION WHEN query_canceled THEN NULL;
				END;
			END LOOP;
		ELSIF key = 'broken' THEN
			RAISE EXCEPTION 'no answer today';
		END IF;
		verdict := 'applied';
		result := to_jsonb(current_user::text);
	END $$;
	SET ROLE owner;
	SELECT idem_scope_set('pay', reconciler => 'public.reader', backoff => '1 ms', max_backoff => '1 ms',
		max_reconciles => 2);
	SELECT idem_fail(k, 'unknown', 'timeout', scope => 'pay') FROM unnest(ARRAY['stubborn', 'broken', 'good']) AS k,
		idem_claim(k, scope => 'pay');
});

until_true($node, 'app', q{SELECT (idem_peek('good', 'pay')).result = '"owner"'},
	q{a key in doubt is resolved, by the reconciler as the scope's owner});
until_true($node, 'app', q{SELECT (idem_peek('broken', 'pay')).state = 'escalated'},
	'a reconciler that raises is asked so often and no more');
until_true($node, 'app', q{SELECT (idem_peek('stubborn', 'pay')).state = 'escalated'},
	'one that will not end is ended, and counted');
is( $node->safe_psql('app', q{SELECT count(*) FROM idempotency.unresolved WHERE state = 'escalated'}),
	'2', 'both wait for a human');

# Each of these takes longer than a scope's share of a visit, and is due again at once.
$node->safe_psql('app', q{
	CREATE FUNCTION slow(key text, args jsonb, first_claimed_at timestamptz,
			OUT verdict text, OUT result jsonb, OUT evidence jsonb) LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM pg_sleep(0.15);
		verdict := 'unknown';
	END $$;
	SET ROLE owner;
	SELECT idem_scope_set('slow', reconciler => 'public.slow', backoff => '1 ms', max_backoff => '1 ms',
		max_reconciles => 1000000);
	SELECT idem_fail('s' || n, 'unknown', scope => 'slow') FROM generate_series(1, 40) AS n,
		idem_claim('s' || n, scope => 'slow');
});
until_true($node, 'app', q{SELECT count(*) > 0 FROM idempotency.unresolved WHERE scope = 'slow' AND reconciles > 0},
	'a slow scope is read');
$node->safe_psql('app', q{
	SET ROLE owner;
	SELECT idem_fail('g' || n, 'unknown', scope => 'pay') FROM generate_series(1, 20) AS n,
		idem_claim('g' || n, scope => 'pay')});
until_true($node, 'app',
	q{SELECT count(*) = 20 FROM idempotency.records WHERE scope = 'pay' AND key ~ '^g[0-9]' AND state = 'completed'},
	'and another meanwhile');
$node->stop;
server_log_lacks($node, qr/PANIC|terminated by signal/, 'nothing crashed');

done_testing();
