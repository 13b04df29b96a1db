-- The claim protocol as users call it. Every function is VOLATILE and PARALLEL UNSAFE unless it says otherwise,
-- and none is STRICT: a NULL key is an error, never a quiet NULL.

CREATE FUNCTION @extschema@.idem_claim(
    key pg_catalog.text,
    args pg_catalog.jsonb DEFAULT NULL,
    scope pg_catalog.text DEFAULT 'default',
    lease pg_catalog.interval DEFAULT NULL,
    wait pg_catalog.interval DEFAULT NULL,
    run pg_catalog.text DEFAULT NULL,
    issued_at pg_catalog.timestamptz DEFAULT NULL,
    OUT decision pg_catalog.text,
    OUT fence pg_catalog.int8,
    OUT attempt pg_catalog.int4,
    OUT result pg_catalog.jsonb,
    OUT reason pg_catalog.text,
    OUT claimed_at pg_catalog.timestamptz,
    OUT lease_expires_at pg_catalog.timestamptz,
    OUT finished_at pg_catalog.timestamptz
) LANGUAGE c AS 'MODULE_PATHNAME', 'idem_claim';
COMMENT ON FUNCTION @extschema@.idem_claim(pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.interval, pg_catalog.interval, pg_catalog.text, pg_catalog.timestamptz) IS
    'claims a key: decision is execute, reconcile, replay, in_progress, queued, rejected, escalated or expired. Test = ''execute''. Without lease the claim lives in this transaction; with lease it may be committed';

CREATE FUNCTION @extschema@.idem_complete(
    key pg_catalog.text,
    result pg_catalog.jsonb DEFAULT NULL,
    scope pg_catalog.text DEFAULT 'default',
    fence pg_catalog.int8 DEFAULT NULL
) RETURNS pg_catalog.jsonb LANGUAGE c AS 'MODULE_PATHNAME', 'idem_complete';
COMMENT ON FUNCTION @extschema@.idem_complete(pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.int8) IS
    'finishes a claimed key with its result, which every later claim replays; returns the stored result. A leased claim needs its fence';

CREATE FUNCTION @extschema@.idem_fail(
    key pg_catalog.text,
    verdict pg_catalog.text,
    reason pg_catalog.text DEFAULT NULL,
    result pg_catalog.jsonb DEFAULT NULL,
    scope pg_catalog.text DEFAULT 'default',
    fence pg_catalog.int8 DEFAULT NULL
) RETURNS pg_catalog.void LANGUAGE c AS 'MODULE_PATHNAME', 'idem_fail';
COMMENT ON FUNCTION @extschema@.idem_fail(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.int8) IS
    'ends a claim without success: verdict not_applied (provably before the effect, the next claim executes), unknown (the next claim reconciles) or rejected (a final answer)';

CREATE FUNCTION @extschema@.idem_release(
    key pg_catalog.text,
    scope pg_catalog.text DEFAULT 'default',
    fence pg_catalog.int8 DEFAULT NULL
) RETURNS pg_catalog.void LANGUAGE c AS 'MODULE_PATHNAME', 'idem_release';
COMMENT ON FUNCTION @extschema@.idem_release(pg_catalog.text, pg_catalog.text, pg_catalog.int8) IS
    'gives a claim back because nothing was begun; restores what the claim found';

CREATE FUNCTION @extschema@.idem_renew(
    key pg_catalog.text,
    lease pg_catalog.interval,
    scope pg_catalog.text DEFAULT 'default',
    fence pg_catalog.int8 DEFAULT NULL
) RETURNS pg_catalog.timestamptz LANGUAGE c AS 'MODULE_PATHNAME', 'idem_renew';
COMMENT ON FUNCTION @extschema@.idem_renew(pg_catalog.text, pg_catalog.interval, pg_catalog.text, pg_catalog.int8) IS
    'lets the lease of a claim end this long from now; returns when. Raises ID003 where somebody else claimed since';

CREATE FUNCTION @extschema@.idem_claim_many(
    keys pg_catalog.text[],
    args pg_catalog.jsonb[] DEFAULT NULL,
    scope pg_catalog.text DEFAULT 'default',
    lease pg_catalog.interval DEFAULT NULL,
    wait pg_catalog.interval DEFAULT NULL,
    run pg_catalog.text DEFAULT NULL,
    OUT ord pg_catalog.int4,
    OUT key pg_catalog.text,
    OUT decision pg_catalog.text,
    OUT fence pg_catalog.int8,
    OUT attempt pg_catalog.int4,
    OUT result pg_catalog.jsonb,
    OUT reason pg_catalog.text,
    OUT claimed_at pg_catalog.timestamptz,
    OUT lease_expires_at pg_catalog.timestamptz,
    OUT finished_at pg_catalog.timestamptz
) RETURNS SETOF pg_catalog.record LANGUAGE c AS 'MODULE_PATHNAME', 'idem_claim_many';
COMMENT ON FUNCTION @extschema@.idem_claim_many(pg_catalog.text[], pg_catalog.jsonb[], pg_catalog.text, pg_catalog.interval, pg_catalog.interval, pg_catalog.text) IS
    'claims up to 1,000 keys in one call, a row each in the order given (ord from 1); reused arguments are the decision mismatch instead of an error';

CREATE FUNCTION @extschema@.idem_complete_many(
    keys pg_catalog.text[],
    results pg_catalog.jsonb[] DEFAULT NULL,
    scope pg_catalog.text DEFAULT 'default',
    fences pg_catalog.int8[] DEFAULT NULL,
    OUT ord pg_catalog.int4,
    OUT key pg_catalog.text,
    OUT result pg_catalog.jsonb
) RETURNS SETOF pg_catalog.record LANGUAGE c AS 'MODULE_PATHNAME', 'idem_complete_many';
COMMENT ON FUNCTION @extschema@.idem_complete_many(pg_catalog.text[], pg_catalog.jsonb[], pg_catalog.text, pg_catalog.int8[]) IS
    'finishes up to 1,000 claimed keys in one call, all or none';

CREATE FUNCTION @extschema@.idem_once(
    key pg_catalog.text,
    effect pg_catalog.text,
    args pg_catalog.jsonb DEFAULT NULL,
    scope pg_catalog.text DEFAULT 'default',
    wait pg_catalog.interval DEFAULT NULL,
    run pg_catalog.text DEFAULT NULL,
    OUT result pg_catalog.jsonb,
    OUT replayed pg_catalog.bool
) LANGUAGE c AS 'MODULE_PATHNAME', 'idem_once';
COMMENT ON FUNCTION @extschema@.idem_once(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
    'claims the key, runs one SQL statement as the caller ($1 = args; one row, one jsonb column), completes with its result: one round trip, one transaction';
REVOKE ALL ON FUNCTION @extschema@.idem_once(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.interval, pg_catalog.text) FROM PUBLIC;

CREATE FUNCTION @extschema@.idem_call(
    key pg_catalog.text,
    function pg_catalog.text,
    args pg_catalog.jsonb DEFAULT NULL,
    scope pg_catalog.text DEFAULT 'default',
    wait pg_catalog.interval DEFAULT NULL,
    run pg_catalog.text DEFAULT NULL,
    OUT result pg_catalog.jsonb,
    OUT replayed pg_catalog.bool
) LANGUAGE c AS 'MODULE_PATHNAME', 'idem_call';
COMMENT ON FUNCTION @extschema@.idem_call(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS
    'claims the key, calls the stored function f(jsonb) returns jsonb as the caller, completes with its result. With a NULL key the key is idem_key(run, function, args)';
REVOKE ALL ON FUNCTION @extschema@.idem_call(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.interval, pg_catalog.text) FROM PUBLIC;

CREATE FUNCTION @extschema@.idem_key(
    run pg_catalog.text,
    operation pg_catalog.text,
    args pg_catalog.jsonb DEFAULT NULL
) RETURNS pg_catalog.text LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'idem_key';
COMMENT ON FUNCTION @extschema@.idem_key(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb) IS
    'a key made by code: run/operation and, with args, /32 hex digits over run, operation and the canonical arguments';

CREATE FUNCTION @extschema@.idem_canonical(args pg_catalog.jsonb)
    RETURNS pg_catalog.text LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'idem_canonical';
COMMENT ON FUNCTION @extschema@.idem_canonical(pg_catalog.jsonb) IS
    'the canonical form (RFC 8785, numbers that a double would change keep their exact value); NULL for NULL';

CREATE FUNCTION @extschema@.idem_hash(args pg_catalog.jsonb)
    RETURNS pg_catalog.bytea LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'idem_hash';
COMMENT ON FUNCTION @extschema@.idem_hash(pg_catalog.jsonb) IS
    'version byte 0x01, then the sha-256 of the canonical form; NULL for NULL';
