# SMOKE: shows that the plumbing works. Replace it by real tests; nothing refers to it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use IdempotencyNode;
use Test::More;

my $node = IdempotencyNode->start(preload => 1);

is( $node->safe_psql(
		'app', q{SELECT extname FROM pg_extension WHERE extname = 'idempotency'}),
	'idempotency',
	'the extension is there');
until_true($node, 'app', q{SELECT current_setting('shared_preload_libraries') = 'idempotency'},
	'the library is preloaded');
$node->stop;
server_log_lacks($node, qr/PANIC|terminated by signal/, 'nothing crashed');

done_testing();
