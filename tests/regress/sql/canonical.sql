-- idem_canonical and idem_hash: RFC 8785, and the one exception for numbers.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

-- The published vectors, byte for byte. One number is not what RFC 8785 says, as documented: it would be rounded.
\set path :abs_srcdir '/data/jcs/input/arrays.json'
\set input `cat :'path'`
\set path :abs_srcdir '/data/jcs/output/arrays.json'
\set output `cat :'path'`
SELECT idem_canonical(:'input'), idem_canonical(:'input') = :'output' AS equal;
\set path :abs_srcdir '/data/jcs/input/french.json'
\set input `cat :'path'`
\set path :abs_srcdir '/data/jcs/output/french.json'
\set output `cat :'path'`
SELECT idem_canonical(:'input'), idem_canonical(:'input') = :'output' AS equal;
\set path :abs_srcdir '/data/jcs/input/structures.json'
\set input `cat :'path'`
\set path :abs_srcdir '/data/jcs/output/structures.json'
\set output `cat :'path'`
SELECT idem_canonical(:'input'), idem_canonical(:'input') = :'output' AS equal;
\set path :abs_srcdir '/data/jcs/input/unicode.json'
\set input `cat :'path'`
\set path :abs_srcdir '/data/jcs/output/unicode.json'
\set output `cat :'path'`
SELECT idem_canonical(:'input'), idem_canonical(:'input') = :'output' AS equal;
\set path :abs_srcdir '/data/jcs/input/values.json'
\set input `cat :'path'`
\set path :abs_srcdir '/data/jcs/output/values.json'
\set output `cat :'path'`
SELECT idem_canonical(:'input'), idem_canonical(:'input') = replace(:'output', '333333333.3333333,', '333333333.33333329,') AS equal;
\set path :abs_srcdir '/data/jcs/input/weird.json'
\set input `cat :'path'`
\set path :abs_srcdir '/data/jcs/output/weird.json'
\set output `cat :'path'`
\set path :abs_srcdir '/data/jcs/outhex/weird.txt'
\set hex `cat :'path'`
SELECT idem_canonical(:'input') = :'output' AS equal, convert_to(idem_canonical(:'input'), 'UTF8') = decode(regexp_replace(:'hex', '\s', '', 'g'), 'hex') AS equal_bytes;

-- Numbers: RFC 8785 where that reads back as the same number, the exact value where it does not.
SELECT n, left(idem_canonical(n::jsonb), 40) AS first_40, length(idem_canonical(n::jsonb)) FROM unnest(ARRAY[
    '0', '-0', '-0.000', '1', '1.0', '4.50', '2e-3', '100', '1e2', '1e20', '1e21', '123456789012345680000', '1E30', '1e-6', '1e-7', '0.0000001', '1e-27', '0.1', '0.2', '0.3',
    '-1.5', '5e-324', '1.7976931348623157e308', '1e308', '1e309', '3e-324', '9007199254740991', '9007199254740992', '9007199254740993', '9223372036854775807',
    '18446744073709551615', '333333333.33333329', '0.30000000000000004', '0.300000000000000040', '0.1000000000000000055511151231257827', '1.00000000000000000001',
    '12345678901234567890.12345', '0.1234567890123456789']) AS n;
SELECT idem_canonical('[-0, 1e21, 1E30, 1e-7, 4.50, 2e-3, 333333333.33333329, 1e-27]');
-- As large as numeric gets.
SELECT length(idem_canonical('1e131071')) AS digits, length(idem_canonical('1e-16383')) AS places, length(idem_canonical((repeat('9', 131072) || '.' || repeat('9', 16383))::jsonb)) AS both;

-- Strings: the escapes of RFC 8785 and no others; nothing is normalised.
SELECT idem_canonical('"\u0001\b\t\n\u000b\f\r\u001f \"\\\/\u007f\u0080\u20ac\u2028\ud83d\ude00</script>"')
       = '"\u0001\b\t\n\u000b\f\r\u001f \"\\/' || chr(127) || chr(128) || '€' || chr(8232) || '😀</script>"' AS escapes;
SELECT idem_canonical('"\u00e9"') = idem_canonical('"é"') AS escaped, idem_canonical('"e\u0301"') <> idem_canonical('"\u00e9"') AS not_normalised;
-- White space, the order of members and the spelling of escapes never change the hash.
SELECT count(*) AS spellings, count(DISTINCT idem_hash(d::jsonb)) AS hashes FROM unnest(ARRAY[
    '{"price":"20 €","path":"a/b","😀":[1,"é"],"n":null}', '{"n":null,"\ud83d\ude00":[1,"\u00e9"],"path":"a\/b","price":"20 \u20ac"}',
    E'{ "path" :\t"\\u0061/b" ,\r\n"n":null, "price": "\\u0032\\u0030 €", "😀" : [ 1 , "é" ] }', '{"\u006e":null,"p\u0061th":"a\u002Fb","price":"20\u0020\u20AC","\uD83D\uDE00":[1,"\u00E9"]}']) AS d;
-- Members by UTF-16 code units: U+1F600 is before U+FB33, although its code point is larger.
SELECT idem_canonical('{"\ufb33": 1, "\ud83d\ude00": 2, "\u20ac": 3, "1": 4, "\r": 5, "a": 6, "aa": 7, "": 8, "B": 9}');
SELECT idem_canonical('{"b": {"d": [], "c": {}}, "a": [ {"z": null, "y": [true, false]} ]}');
SELECT idem_canonical('"x"'), idem_canonical('null'), idem_canonical('[]'), idem_canonical('{}'), idem_canonical(NULL) IS NULL AS sql_null;

-- The hash: a version byte, then sha-256 of the form.
SELECT count(*) AS documents, bool_and(idem_hash(v) = '\x01'::bytea || sha256(convert_to(idem_canonical(v), 'UTF8'))) AS hashes
  FROM unnest(ARRAY['null', '1', '"é"', '[]', '{"a": [1.50]}']::jsonb[]) AS v;
SELECT idem_hash('{"b": 1, "a": 2}'), idem_hash(NULL) IS NULL AS sql_null;

-- jsonb-equal arguments hash equal, different ones differ, and the form is equal to the document: all pairs of these.
CREATE TABLE test.document AS SELECT row_number() OVER () AS n, d::jsonb AS d FROM unnest(ARRAY[
    'null', 'true', 'false', '0', '-0', '0.0', '1', '1.0', '10e-1', '-1', '1e0', '"1"', '"true"', '"null"', '""', '" "', '[]', '{}', '[null]', '[[]]', '[{}]', '{"": null}', '{"a": null}',
    '{"a": 1}', '{"a": 1.00}', '{"a": "1"}', '{"a": [1]}', '["a", 1]', '[1, "a"]', '["a1"]', '["a", "1"]', '{"a": {"b": 1}}', '{"a": {}, "b": 1}', '{"a.b": 1}', '{"A": 1}',
    '{"a": 1, "b": 2}', '{"b": 2, "a": 1}', '{"a": 1, "a": 1}', '[1, 2]', '[2, 1]', '[[1], 2]', '[1, [2]]', '[12]', '"é"', '"e\u0301"', '"\u00e9"', '"\ud83d\ude00"', '"😀"', '"\u0001"', '"\\u0001"',
    '9007199254740992', '9007199254740993', '9007199254740992.0', '9.007199254740993e15', '0.1', '0.10', '0.1000000000000000055', '1e400', '1e-400', '2e400', '1e-401',
    '123456789012345678901234567890', '123456789012345678901234567891', '0.3', '0.30000000000000004', '0.300000000000000044']) AS d;
SELECT count(*) AS pairs, count(*) FILTER (WHERE a.d = b.d AND a.n <> b.n) AS equal_pairs,
       count(*) FILTER (WHERE (a.d = b.d) <> (idem_hash(a.d) = idem_hash(b.d))) AS wrong_hashes,
       count(*) FILTER (WHERE (a.d = b.d) <> (idem_canonical(a.d) = idem_canonical(b.d))) AS wrong_forms
  FROM test.document AS a, test.document AS b;
SELECT count(*) AS not_the_document FROM test.document WHERE idem_canonical(d)::jsonb <> d;

-- Immutable and parallel safe: usable in an index.
CREATE INDEX ON test.document (idem_hash(d), idem_canonical(d), idem_key('run', 'operation', d));
