-- Outcomes in doubt: resolved by whoever read the other system, escalated to a human, and their trail.

CREATE FUNCTION @extschema@.idem_resolve(
    key pg_catalog.text,
    verdict pg_catalog.text,
    result pg_catalog.jsonb DEFAULT NULL,
    evidence pg_catalog.anycompatible DEFAULT NULL::pg_catalog.text,
    scope pg_catalog.text DEFAULT 'default',
    fence pg_catalog.int8 DEFAULT NULL
) RETURNS pg_catalog.text LANGUAGE c AS 'MODULE_PATHNAME', 'idem_resolve';
COMMENT ON FUNCTION @extschema@.idem_resolve(pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.anycompatible, pg_catalog.text, pg_catalog.int8) IS
    'says what was found in the other system: applied (with its result), rejected, not_applied or unknown (it could not be read). With the fence of the claim that was told to reconcile, or without one as the scope''s operator. Returns the state of the key from now on';

CREATE FUNCTION @extschema@.idem_escalate(
    key pg_catalog.text,
    reason pg_catalog.text DEFAULT NULL,
    evidence pg_catalog.anycompatible DEFAULT NULL::pg_catalog.text,
    scope pg_catalog.text DEFAULT 'default',
    fence pg_catalog.int8 DEFAULT NULL
) RETURNS pg_catalog.void LANGUAGE c AS 'MODULE_PATHNAME', 'idem_escalate';
COMMENT ON FUNCTION @extschema@.idem_escalate(pg_catalog.text, pg_catalog.text, pg_catalog.anycompatible, pg_catalog.text, pg_catalog.int8) IS
    'hands a key to a human: claims answer escalated until an operator of the scope resolves it';

CREATE FUNCTION @extschema@.idem_reconcile(
    key pg_catalog.text,
    args pg_catalog.jsonb DEFAULT NULL,
    scope pg_catalog.text DEFAULT 'default',
    OUT verdict pg_catalog.text,
    OUT state pg_catalog.text,
    OUT result pg_catalog.jsonb
) LANGUAGE c AS 'MODULE_PATHNAME', 'idem_reconcile';
COMMENT ON FUNCTION @extschema@.idem_reconcile(pg_catalog.text, pg_catalog.jsonb, pg_catalog.text) IS
    'asks the scope''s reconciler whether a key in doubt was applied, and resolves it with the answer. Runs it as the scope''s owner, in a security-restricted operation, for idempotency.reconcile_timeout at most';

CREATE FUNCTION @extschema@.idem_forget(
    key pg_catalog.text,
    scope pg_catalog.text DEFAULT 'default',
    force pg_catalog.bool DEFAULT false
) RETURNS pg_catalog.text LANGUAGE c AS 'MODULE_PATHNAME', 'idem_forget';
COMMENT ON FUNCTION @extschema@.idem_forget(pg_catalog.text, pg_catalog.text, pg_catalog.bool) IS
    'for the operator of a scope: removes the record of a key, whose operation can be executed again from then on; returns the state it was in. Open keys only with force';

CREATE VIEW idempotency.unresolved WITH (security_barrier) AS
    SELECT COALESCE(s.name, 'default') AS scope, c.key,
           CASE WHEN c.state OPERATOR(pg_catalog.=) 'e' THEN 'escalated' ELSE 'unknown' END AS state,
           COALESCE(c.in_doubt_since, c.lease_expires_at, c.claimed_at) AS since,
           c.attempt, c.reconciles, c.reason, c.evidence, c.retry_at, m.destination,
           c.first_claimed_at, c.claimed_at, c.claimed_by, c.application_name, c.run, c.fence
      FROM idempotency.claim AS c
      LEFT JOIN idempotency.scope AS s ON s.id OPERATOR(pg_catalog.=) c.scope_id
      LEFT JOIN idempotency.message AS m ON m.digest OPERATOR(pg_catalog.=) c.digest
     WHERE (c.state OPERATOR(pg_catalog.=) ANY (ARRAY['u', 'e']::pg_catalog."char"[])
            OR c.state OPERATOR(pg_catalog.=) 'f'
               AND c.lease_expires_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()
               AND (c.effect_kind OPERATOR(pg_catalog.<>) 'l' OR c.prior OPERATOR(pg_catalog.=) 'u'))
       AND idempotency.scope_usable(c.scope_id)
     ORDER BY 4, 1, 2;
COMMENT ON VIEW idempotency.unresolved IS 'what nobody knows the outcome of, oldest first: unknown and escalated keys, since when, how often read in vain, the last evidence';

CREATE VIEW idempotency.events WITH (security_barrier) AS
    SELECT e.happened_at, e.kind, COALESCE(s.name, CASE WHEN e.scope_id OPERATOR(pg_catalog.=) 0 THEN 'default' END) AS scope,
           e.key, e.run, e.from_state, e.to_state, e.fence, e.attempt,
           e.role, e.pid, e.application_name, e.reason, e.evidence
      FROM idempotency.event AS e
      LEFT JOIN idempotency.scope AS s ON s.id OPERATOR(pg_catalog.=) e.scope_id
     WHERE CASE WHEN e.scope_id IS NULL THEN pg_catalog.pg_has_role(e.role::pg_catalog.oid, 'USAGE')
                ELSE idempotency.scope_usable(e.scope_id) END;
COMMENT ON VIEW idempotency.events IS 'the trail of exceptions: what happened to which key or run, when, who did it, from which state to which, with what evidence';

GRANT SELECT ON idempotency.unresolved, idempotency.events TO PUBLIC;
