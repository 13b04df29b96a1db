-- Databases that are not UTF-8: the same arguments hash alike, keys and results come back as they were.
\set ECHO none
\getenv abs_srcdir PG_ABS_SRCDIR
\set helpers :abs_srcdir '/include/helpers.sql'
\i :helpers
\set ECHO all

\set main_database :DBNAME
-- What UTF-8 says, to compare with.
SELECT idem_hash('{"name": "Jos\u00e9", "\u00fc": "\u00df"}') AS hash, idem_key('run', 'operation', '{"name": "Jos\u00e9"}') AS key \gset
CREATE DATABASE regress_idem_latin1 TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C';
ALTER DATABASE regress_idem_latin1 SET lc_messages = 'C';
CREATE DATABASE regress_idem_ascii TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C';
ALTER DATABASE regress_idem_ascii SET lc_messages = 'C';
\c regress_idem_latin1
SET client_encoding = 'UTF8';
CREATE EXTENSION idempotency;
SELECT getdatabaseencoding();
SELECT idem_hash('{"\u00fc": "ß", "name": "José"}') = :'hash' AS same_hash, idem_key('run', 'operation', '{"name": "José"}') = :'key' AS same_key, idem_canonical('{"name": "José"}');
SELECT decision FROM idem_claim('clé/é', '{"name": "José"}', lease => '1 minute', run => 'année');
SELECT decision FROM idem_claim('clé/é', '{"name": "Jos\u00e9"}');
SELECT idem_claim('clé/é', '{"name": "Jose"}');
SELECT idem_fail('clé/é', 'rejected', 'refusé', '{"raison": "é"}', fence => fence) FROM idem_peek('clé/é');
SELECT decision, reason, result FROM idem_claim('clé/é', '{"name": "José"}');
SELECT key, run, reason, result FROM idempotency.records;
SELECT idem_scope_set('portée', ignore_args => ARRAY['/année']);
SELECT decision FROM idem_claim('k', '{"année": 1}', 'portée', '1 minute');
SELECT decision FROM idem_claim('k', '{"année": 2}', 'portée');
SELECT result FROM idem_once('é', 'SELECT to_jsonb(''é''::text)');
-- What the encoding has no character for is PostgreSQL's clean error, whose words differ from version to version.
\set VERBOSITY sqlstate
SELECT idem_claim('k2', '"\u20ac"');
\set VERBOSITY default
\echo :SQLSTATE
SELECT idem_claim('€');
\echo :SQLSTATE
\c regress_idem_ascii
CREATE EXTENSION idempotency;
SELECT getdatabaseencoding();
-- Bytes that are UTF-8 are taken as such; other bytes are refused, and nothing is stored.
SELECT idem_hash(convert_from('\x7b226e616d65223a20224a6f73c3a9222c2022c3bc223a2022c39f227d', 'SQL_ASCII')::jsonb) = :'hash' AS same_hash;
SELECT decision FROM idem_claim('plain', '{"a": 1}', lease => '1 minute');
SELECT decision, encode(convert_to((SELECT key FROM idempotency.records WHERE key <> 'plain'), 'SQL_ASCII'), 'hex') AS key FROM idem_claim(E'cl\303\251', lease => '1 minute');
SELECT decision, encode(convert_to((SELECT key FROM idempotency.records WHERE key <> 'plain'), 'SQL_ASCII'), 'hex') AS key FROM idem_claim(E'cl\303\251', lease => '1 minute');
SELECT idem_claim(E'cl\351', lease => '1 minute');
\echo :SQLSTATE
SELECT idem_claim('k', to_jsonb(E'cl\351'::text), lease => '1 minute');
\echo :SQLSTATE
SELECT state FROM idem_peek('k');
SELECT decision FROM idem_claim('k', '1', lease => '1 minute');
-- A result is never read, only stored.
SELECT decision FROM idem_claim('r', lease => '1 minute');
SELECT idem_complete('r', to_jsonb(E'cl\351'::text), fence => fence) IS NOT NULL AS stored FROM idem_peek('r');
SELECT result = to_jsonb(E'cl\351'::text) AS replayed FROM idem_claim('r');
\c :main_database
DROP DATABASE regress_idem_latin1 WITH (FORCE);
DROP DATABASE regress_idem_ascii WITH (FORCE);
