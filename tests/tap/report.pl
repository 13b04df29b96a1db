# The page of idem_report() in a real browser, made from what really happened in a server.
#
# Claims, and what would turn them red:
# - The page asks for nothing from the network: an address in it. A page that does ask is found out.
# - Names, keys and statements of users are text: one of them that becomes an element, or turns the text around it.
# - It fits a telephone and a desk, by day and by night: a page that scrolls sideways, text that is hard to read.
# - Who cannot see the pictures is told what they show: a picture without a label, a heading left out.
# - It tells what happened: a claim, a replay, an open key, a run or a finding that is missing.
# - Arguments and results are not in it. With a scope, only that scope is.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Browser;
use Encode qw(decode_utf8 encode_utf8);
use IdempotencyNode;
use PostgreSQL::Test::Utils;
use Test::More;

BAIL_OUT('there is no chromium: apt-get install chromium') unless Browser::program();

my $folder = PostgreSQL::Test::Utils::tempdir();

# --- what happened --------------------------------------------------------------------------------------------------

# A name as it is given in SQL, and as the page shows it whole.
my @HOSTILE = (
	[ q{'<script>document.title = "broken"</script>'} => '<script>document.title = "broken"</script>' ],
	[ q{'"><img src="http://planted.invalid/" onerror="document.title = 1">'} => '"><img src="http://planted.invalid/" onerror="document.title = 1">' ],
	[ q{'</title></svg></code><b>bold</b>'} => '</title></svg></code><b>bold</b>' ],
	[ q{'it''s &lt;plain&gt; &amp; "quoted"'} => q{it's &lt;plain&gt; &amp; "quoted"} ],
	[ q{U&'\05E9\05DC\05D5\05DD/\202Egnp.exe'} => "\x{5e9}\x{5dc}\x{5d5}\x{5dd}/\\u{202e}gnp.exe" ],
	[ q{U&'\+01F469\200D\+01F680 paid'} => "\x{1f469}\x{200d}\x{1f680} paid" ],
	[ q{E'line\nnext\ttab\x01bell\x07'} => "line\x{240a}next\x{2409}tab\x{2401}bell\x{2407}" ],
	[ q{repeat('k', 1024)} => 'k' x 1024 ],
);
my $HOSTILE_SCOPE = q{<script>document.title = "broken"</script>};

my $node = IdempotencyNode->start(preload => 1, conf => [ "log_statement = none", "idempotency.naptime = '100ms'" ]);
my $sql = sub { return $node->safe_psql('app', $_[0]) };

$sql->(q{
	SELECT idem_scope_set('payments', dedup_window => '90 days'), idem_scope_set('quiet', keep_forever => true),
	       idem_scope_set('<script>document.title = "broken"</script>', dedup_window => '1 hour');
	CREATE TABLE paid (id bigserial);
	SELECT count(r) FROM generate_series(1, 1234) AS n,
	       idem_once('order-' || n, 'INSERT INTO paid DEFAULT VALUES RETURNING to_jsonb(''result 8814''::text)',
	                 '{"card": "argument 4242"}', 'payments') AS r;
	SELECT count(r) FROM generate_series(1, 20) AS n,
	       idem_once('order-' || n, 'SELECT to_jsonb(0)', '{"card": "argument 4242"}', 'payments') AS r;
	SELECT idem_run_begin('nightly <i>run</i>', '3 days', 'settles & "pays"');
	SELECT idem_claim('of the run', scope => 'payments', lease => '30 minutes', run => 'nightly <i>run</i>');
	SELECT idem_enqueue('message', 'mail', '{"to": "argument 4242"}', scope => 'payments', delay => '1 day');
	SELECT fence FROM idem_claim('in doubt', scope => 'payments', lease => '30 minutes') \gset
	SELECT idem_fail('in doubt', 'unknown', 'timeout', scope => 'payments', fence => :fence);
});
$sql->("SELECT idem_claim($_->[0], scope => 'payments', lease => '30 minutes')") for @HOSTILE;

# --- a page ---------------------------------------------------------------------------------------------------------

sub write_page
{
	my ($name, $text) = @_;

	open(my $handle, '>:raw', "$folder/$name.html") or die "$name: $!";
	print $handle $text;
	close($handle);
	return "$folder/$name.html";
}

# Text whose contrast with what is behind it is less than WCAG 2 asks for at level AA.
my $LOW_CONTRAST = <<'END';
(() => {
	const parts = text => text.match(/[\d.]+/g).map(Number);
	const light = ([r, g, b]) => [r, g, b].map(c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
		.reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
	const behind = element => {
		for (; element; element = element.parentElement) {
			const color = parts(getComputedStyle(element).backgroundColor);
			if (color.length == 3 || color[3] == 1) return color;
		}
		return [255, 255, 255];
	};
	const low = new Set();
	for (const element of document.body.querySelectorAll('*')) {
		const own = [...element.childNodes].some(node => node.nodeType == 3 && node.data.trim());
		if (!own || element.localName == 'title') continue;
		const style = getComputedStyle(element);
		const color = element.namespaceURI.endsWith('svg') ? style.fill : style.color;
		const both = [light(parts(color)), light(behind(element))].sort((a, b) => b - a);
		const needed = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
		if ((both[0] + 0.05) / (both[1] + 0.05) < needed) low.add(element.localName + '.' + element.getAttribute('class'));
	}
	return [...low].join(' ');
})()
END

my $TOO_WIDE = 'Math.max(0, document.documentElement.scrollWidth - innerWidth)';

# Anything in the page that could run, load or lead away. The icon that a browser may ask for is none of the page's.
my $ACTIVE = <<'END';
[...document.querySelectorAll('*')].flatMap(element => [
	...['script', 'img', 'image', 'iframe', 'object', 'embed', 'link', 'form', 'base', 'video', 'audio', 'use']
		.filter(name => name == element.localName),
	...[...element.attributes].map(attribute => attribute.name + '=' + attribute.value)
		.filter(text => /^on|^(xlink:)?href=[^#]|^(src|srcset|action|background)=|^style=/.test(text))]).join(' ')
END

my $UNLABELLED = <<'END';
[...document.querySelectorAll('svg')].filter(svg => !svg.closest('[aria-hidden=true]')
	&& !(svg.getAttribute('role') == 'img' && svg.getAttribute('aria-label'))).length
END

# A level left out on the way down, or not exactly one first heading.
my $HEADINGS = <<'END';
(() => {
	const levels = [...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(heading => +heading.localName[1]);
	return levels[0] == 1 && levels.filter(level => level == 1).length == 1
		&& levels.every((level, at) => at == 0 || level <= levels[at - 1] + 1);
})()
END

sub fits_everywhere
{
	my ($browser, $page, $name) = @_;

	for my $width (360, 1280)
	{
		for my $dark (0, 1)
		{
			my $view = "$name, $width px, " . ($dark ? 'dark' : 'light');
			$browser->view($page, width => $width, dark => $dark);
			is($browser->evaluate($TOO_WIDE), 0, "$view: does not scroll sideways");
			is($browser->evaluate($LOW_CONTRAST), '', "$view: all text has contrast enough");
			is(join("\n", $browser->complaints), '', "$view: the browser complains of nothing");
			$browser->screenshot("$PostgreSQL::Test::Utils::log_path/report-$name-$width-" . ($dark ? 'dark' : 'light') . '.png');
		}
	}
	return;
}

my $report = $sql->('SELECT idem_report()');
my $page = write_page('all', $report);
my $browser = Browser->open;

fits_everywhere($browser, $page, 'all');
is($browser->evaluate($ACTIVE), '', 'nothing in the page could run or load');
is($browser->evaluate('document.querySelector("meta[http-equiv=Content-Security-Policy]").content'),
	"default-src 'none'; style-src 'unsafe-inline'", 'and its policy forbids it');
is($browser->evaluate($UNLABELLED), 0, 'every picture has a label');
ok($browser->evaluate($HEADINGS), 'headings are in order');
like($browser->evaluate('document.title'), qr/app/, 'its title names the database');
is($browser->evaluate('document.querySelectorAll("main b:not(small b), main i").length'), 0, 'no name became an element');

# The checks themselves: each sees what it is for.
isnt($browser->evaluate("document.body.style.minWidth = '3000px'; $TOO_WIDE"), 0, 'a page that is too wide is found out');
isnt($browser->evaluate("document.body.style.color = getComputedStyle(document.body).backgroundColor; $LOW_CONTRAST"), '', 'pale text is found out');
isnt($browser->evaluate("document.body.append(document.createElement('script')); $ACTIVE"), '', 'a script is found out');
is(join(' ', $browser->close), '', 'the page asked for nothing from the network');

my $planted = write_page('planted', <<'END');
<!DOCTYPE html><title>planted</title><style>@font-face { font-family: f; src: url(http://font.invalid/f) } p { font-family: f }</style>
<link rel="stylesheet" href="http://style.invalid/s"><script src="http://127.0.0.1:1/s.js"></script>
<p>text<img src="http://image.invalid/i"><iframe src="http://frame.invalid/f"></iframe>
<svg><image href="http://vector.invalid/v"/></svg>
END
$browser = Browser->open;
$browser->view($planted);
my $requested = join(' ', $browser->close);
like($requested, qr/\Q$_\E/, "a page that asks is found out: $_") for map { "http://$_.invalid/" } qw(font style image frame vector);

# --- what it tells --------------------------------------------------------------------------------------------------

$browser = Browser->open;
$browser->view($page);
my $titles = $browser->evaluate('[...document.querySelectorAll(".ages title")].map(title => title.textContent)');
for my $name (map { $_->[1] } @HOSTILE)
{
	ok(scalar(grep { $_ eq $name } @$titles), 'an open key is shown as text: ' . encode_utf8(substr($name, 0, 40)));
}
my $text = encode_utf8($browser->evaluate('document.body.innerText'));
like($text, qr/\Q$_\E/i, "it says $_") for (
	'90 days', '1 hour', 'for ever', 'nothing is open', '1,234', 'in flight', 'unknown', 'queued', 'nightly <i>run</i>', 'settles & "pays"',
	'alive', '3 d', 'UTC', $HOSTILE_SCOPE);
my %counter = (claims => '1,2\d\d', executes => '1,2\d\d', replays => '20', enqueued => '1');
like($text, qr/^\Q$_\E\s+$counter{$_}$/m, "the counter of $_") for sort keys %counter;
unlike($report, qr/\Q$_\E/, "it does not say $_") for ('argument 4242', 'result 8814');

my $findings = $sql->(q{SELECT count(*) FROM idem_doctor()});
is($browser->evaluate('document.querySelectorAll("article.finding").length'), $findings, 'all that the doctor found');
is($browser->evaluate('document.querySelectorAll("article.finding h3 .severity").length'), $findings, 'each with its severity in a word');

my $one = write_page('one', $sql->(q{SELECT idem_report('payments')}));
fits_everywhere($browser, $one, 'one');
my $scopes = $browser->evaluate('[...document.querySelectorAll("details.scope summary bdi")].map(name => name.textContent)');
is(join(' ', @$scopes), 'payments', 'with a scope, only that scope');
$browser->view($one, print => 1);
is($browser->evaluate($LOW_CONTRAST), '', 'in print, all text has contrast enough');
is(join(' ', $browser->close), '', 'nothing was asked from the network');

server_log_lacks($node, qr/ XX000|PANIC:|terminated by signal/, 'nothing crashed');

done_testing();
