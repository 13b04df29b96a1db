-- What a failure says about the effect: its kind and the verdict for idem_fail. Where an answer leaves a doubt, the
-- verdict is unknown, and so it is for everything that is not listed. The kinds of SQLSTATEs are of an effect in another
-- database, in one transaction there.

CREATE VIEW idempotency.failure_kinds WITH (security_barrier) AS
    WITH yours AS (
        SELECT f.kind, f.verdict, f.why FROM idempotency.failure_kind AS f
    ), built_in (kind, verdict, why) AS (
        VALUES
            -- Before anything was sent.
            ('connection_refused', 'not_applied', 'no connection came about: nothing was sent'),
            ('connect_timeout', 'not_applied', 'no connection came about: nothing was sent'),
            ('dns', 'not_applied', 'the name was not found: nothing was sent'),
            ('tls_handshake', 'not_applied', 'no request is read before the handshake ends; do not use 0-RTT early data'),
            ('circuit_open', 'not_applied', 'our own circuit breaker: nothing was sent'),
            ('validation', 'rejected', 'our own check refused the request before it was sent, and will again'),
            -- Sent, or perhaps sent, and no answer that could be read.
            ('timeout', 'unknown', 'no answer in time says nothing about the work'),
            ('connection_reset', 'unknown', 'the connection may have broken after the work was done'),
            ('broken_pipe', 'unknown', 'the other side closed while we wrote: it may have read enough'),
            ('response_truncated', 'unknown', 'an answer began: the work was probably done'),
            ('lease_expired', 'unknown', 'the caller was gone before it could say what happened'),
            ('cancelled', 'unknown', 'we stopped waiting; the other side did not stop working'),
            -- HTTP: refused, and will be again.
            ('http:400', 'rejected', 'malformed for the receiver, and will be again'),
            ('http:402', 'rejected', 'the payment was refused: another try is another decision'),
            ('http:404', 'rejected', 'nothing is there to act upon; if you repeat DELETEs, list it as unknown: the first may have done it'),
            ('http:405', 'rejected', 'the method is not possible there'),
            ('http:406', 'rejected', 'no form of answer that we accept'),
            ('http:410', 'rejected', 'gone for good'),
            ('http:411', 'rejected', 'refused before the body was read: no length'),
            ('http:413', 'rejected', 'too large'),
            ('http:414', 'rejected', 'address too long'),
            ('http:415', 'rejected', 'a media type that is not taken'),
            ('http:422', 'rejected', 'understood, and refused for its contents'),
            ('http:428', 'rejected', 'refused for want of a precondition (RFC 6585): the same request will be again'),
            ('http:431', 'rejected', 'header fields too large (RFC 6585)'),
            ('http:451', 'rejected', 'refused for legal reasons'),
            -- HTTP: refused now; the same request may pass later.
            ('http:401', 'not_applied', 'refused for our credentials; passes once they are mended'),
            ('http:403', 'not_applied', 'refused for our rights; passes once they are mended'),
            ('http:407', 'not_applied', 'refused by a proxy for our credentials: not forwarded'),
            ('http:421', 'not_applied', 'a server that does not answer for this name (RFC 9110)'),
            ('http:423', 'not_applied', 'locked now (RFC 4918)'),
            ('http:424', 'not_applied', 'refused since what it depends on failed (RFC 4918)'),
            ('http:425', 'not_applied', 'refused as too early, before it was processed (RFC 8470)'),
            ('http:426', 'not_applied', 'refused over this protocol (RFC 9110); passes once ours is mended'),
            ('http:429', 'not_applied', 'too many requests: refused before the work (RFC 6585)'),
            -- HTTP: nobody knows.
            ('http:408', 'unknown', 'a server that waited for us in vain did nothing, but proxies say it after forwarding, too'),
            ('http:409', 'unknown', 'with an idempotency key, another attempt runs or has been: perhaps ours'),
            ('http:412', 'unknown', 'the precondition may fail because an earlier attempt of ours succeeded'),
            ('http:499', 'unknown', 'a proxy''s word for a client that left: the work may have gone on'),
            ('http:2xx', 'unknown', 'no failure: complete the key; if the answer makes no sense, read the other system'),
            ('http:3xx', 'unknown', '303 follows work that was done, 307 asks for it elsewhere: follow redirects, or read'),
            ('http:4xx', 'unknown', 'a refusal most likely, but not one whose meaning is agreed upon'),
            ('http:5xx', 'unknown', 'the server failed at some point, perhaps after the work; gateways say 502, 503 and 504 after forwarding'),
            -- SQLSTATE: no transaction began.
            ('sqlstate:08001', 'not_applied', 'no connection came about: nothing was sent'),
            ('sqlstate:08004', 'not_applied', 'the server refused the connection: nothing was sent'),
            ('sqlstate:28', 'not_applied', 'refused for our credentials; passes once they are mended'),
            ('sqlstate:3D', 'not_applied', 'no such database; passes once the deployment is mended'),
            ('sqlstate:53300', 'not_applied', 'too many connections: none came about'),
            ('sqlstate:57P03', 'not_applied', 'the server takes no connections now: none came about'),
            -- SQLSTATE: rolled back; the same transaction may pass later.
            ('sqlstate:0A', 'not_applied', 'rolled back: not supported; passes once the deployment is mended'),
            ('sqlstate:25', 'not_applied', 'rolled back or never begun: such as read only on a standby after a failover'),
            ('sqlstate:26', 'not_applied', 'rolled back: no such prepared statement, as behind a pooler'),
            ('sqlstate:3F', 'not_applied', 'rolled back: no such schema; passes once the deployment is mended'),
            ('sqlstate:40', 'not_applied', 'rolled back'),
            ('sqlstate:40001', 'not_applied', 'rolled back for serialization: made to be tried again'),
            ('sqlstate:40P01', 'not_applied', 'rolled back for a deadlock: made to be tried again'),
            ('sqlstate:42', 'not_applied', 'rolled back: a name, type or right is missing; passes once the deployment is mended'),
            ('sqlstate:53', 'not_applied', 'rolled back: the server was short of resources'),
            ('sqlstate:55', 'not_applied', 'rolled back: a lock or a state stood in the way'),
            ('sqlstate:57014', 'not_applied', 'rolled back: the statement was cancelled, as by statement_timeout'),
            -- SQLSTATE: rolled back, and will be again.
            ('sqlstate:21', 'rejected', 'rolled back: a wrong number of rows'),
            ('sqlstate:22', 'rejected', 'rolled back for its data, and will be again'),
            ('sqlstate:23', 'rejected', 'rolled back by a constraint, and will be again'),
            ('sqlstate:44', 'rejected', 'rolled back by a view''s check, and will be again'),
            ('sqlstate:54', 'rejected', 'rolled back: too large or too complex'),
            ('sqlstate:P0', 'rejected', 'rolled back by a function that looked at it and refused'),
            -- SQLSTATE: nobody knows.
            ('sqlstate:08', 'unknown', 'the connection broke, perhaps after COMMIT was sent'),
            ('sqlstate:23505', 'unknown', 'the row that is in the way may be our own, of an earlier attempt'),
            ('sqlstate:23P01', 'unknown', 'the row that is in the way may be our own, of an earlier attempt'),
            ('sqlstate:40003', 'unknown', 'it says so: statement completion unknown'),
            ('sqlstate:57', 'unknown', 'the server ended the session (57P01), perhaps after the commit'),
            ('sqlstate:58', 'unknown', 'an error of the system below the server, perhaps at the commit'),
            ('sqlstate:XX', 'unknown', 'an internal error: nothing it says can be relied upon'),
            -- SQLSTATE: another database that is guarded by this extension.
            ('sqlstate:ID', 'unknown', 'the key stands there in some state: read it with idem_peek'),
            ('sqlstate:ID001', 'rejected', 'another operation has this key there: ours never happened and never will'),
            ('sqlstate:ID006', 'rejected', 'it has been refused there for good')
    )
    SELECT y.kind, y.verdict, y.why, 'yours'::pg_catalog.text AS origin FROM yours AS y
    UNION ALL
    SELECT b.kind::pg_catalog.text COLLATE pg_catalog."C", b.verdict::pg_catalog.text, b.why::pg_catalog.text,
           'built in'::pg_catalog.text
      FROM built_in AS b
     WHERE NOT EXISTS (
           SELECT FROM yours AS y
            WHERE pg_catalog.translate(pg_catalog.lower(pg_catalog.btrim(y.kind, E' \t\r\n')), ' -:', '___')
                  OPERATOR(pg_catalog.=) pg_catalog.translate(pg_catalog.lower(b.kind COLLATE pg_catalog."C"), ':', '_'));
COMMENT ON VIEW idempotency.failure_kinds IS 'which verdict each kind of failure has, and why: your rows in idempotency.failure_kind, and the built-in kinds that none of yours replaces';
GRANT SELECT ON idempotency.failure_kinds TO PUBLIC;

-- The kind itself first, yours or built in, then its class, yours or built in: what is known of 409 stays known when
-- somebody lists 4xx. Case does not matter, nor whether words are parted by a blank, a hyphen, a colon or an
-- underscore. Of several rows of yours that are so the same, the most careful verdict counts.
CREATE FUNCTION @extschema@.idem_failure_kind(kind pg_catalog.text) RETURNS pg_catalog.text
    LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
    AS $$
    WITH asked AS (
        SELECT pg_catalog.translate(pg_catalog.lower(
                   pg_catalog.btrim(idem_failure_kind.kind, E' \t\r\n') COLLATE pg_catalog."C"), ' -:', '___') AS kind
         -- Longer than any name: not for functions that make copies of it.
         WHERE pg_catalog.octet_length(idem_failure_kind.kind) OPERATOR(pg_catalog.<=) 10000
    ), looked_for AS (
        SELECT a.kind, 1 AS place FROM asked AS a
        UNION ALL
        SELECT pg_catalog.left(a.kind, 6) OPERATOR(pg_catalog.||) 'xx', 2 FROM asked AS a
         WHERE a.kind OPERATOR(pg_catalog.~) '^http_[0-9]{3}$'
        UNION ALL
        SELECT pg_catalog.left(a.kind, 11), 2 FROM asked AS a
         WHERE a.kind OPERATOR(pg_catalog.~) '^sqlstate_[0-9a-z]{5}$'
    )
    SELECT COALESCE((
        SELECT k.verdict
          FROM looked_for AS l
          JOIN idempotency.failure_kinds AS k
            ON pg_catalog.translate(pg_catalog.lower(pg_catalog.btrim(k.kind, E' \t\r\n')), ' -:', '___')
               OPERATOR(pg_catalog.=) l.kind
         ORDER BY l.place, k.verdict COLLATE pg_catalog."C" DESC
         LIMIT 1), 'unknown')
    $$;
COMMENT ON FUNCTION @extschema@.idem_failure_kind(pg_catalog.text) IS
    'the verdict for idem_fail of a kind of failure: timeout, connection_refused, http:503, sqlstate:40001, or one of yours in idempotency.failure_kind. What is not known is unknown';
