-- Looking at keys, and the views. All of this reads one MVCC snapshot, takes no key lock and works on a standby.

CREATE FUNCTION idempotency.scope_usable(scope_id pg_catalog.int4)
    RETURNS pg_catalog.bool LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'idem_scope_usable';
COMMENT ON FUNCTION idempotency.scope_usable(pg_catalog.int4) IS
    'may the current user use the scope with this id';

CREATE FUNCTION idempotency.window_ends_at(scope_id pg_catalog.int4, finished_at pg_catalog.timestamptz, run pg_catalog.text)
    RETURNS pg_catalog.timestamptz LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'idem_window_ends_at';
COMMENT ON FUNCTION idempotency.window_ends_at(pg_catalog.int4, pg_catalog.timestamptz, pg_catalog.text) IS
    'when an outcome of this scope and run stops guarding its key; infinity for keep_forever, and while its run lives';

CREATE VIEW idempotency.scopes WITH (security_barrier) AS
    SELECT s.name AS scope, s.owner,
           s.dedup_window, s.keep_forever, s.max_lease, s.effect_kind, s.provider_window, s.wait, s.max_result_bytes,
           r.ignore_args,
           s.max_attempts, s.backoff, s.max_backoff, s.max_reconciles, s.keep_payload, s.reconciler,
           s.hard_limit, s.run_is_alive, s.guard, s.late, s.issued_at_from,
           ARRAY(SELECT g.role FROM idempotency.scope_grant AS g
                  WHERE g.scope_id OPERATOR(pg_catalog.=) s.id
                  ORDER BY g.role::pg_catalog.oid) AS granted_to,
           s.created_at
      FROM (SELECT i.id, i.name, i.owner, i.dedup_window, i.keep_forever, i.max_lease, i.effect_kind,
                   i.provider_window, i.wait, i.max_result_bytes, i.max_attempts, i.backoff, i.max_backoff,
                   i.max_reconciles, i.keep_payload, i.reconciler, i.hard_limit, i.run_is_alive, i.guard, i.late,
                   i.issued_at_from, i.args_rule, i.created_at
              FROM idempotency.scope AS i
            UNION ALL
            SELECT 0, 'default', c.relowner::pg_catalog.regrole, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                   NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL
              FROM pg_catalog.pg_class AS c
             WHERE c.oid OPERATOR(pg_catalog.=) 'idempotency.scope'::pg_catalog.regclass
               AND NOT EXISTS (SELECT FROM idempotency.scope AS d WHERE d.id OPERATOR(pg_catalog.=) 0)) AS s
      LEFT JOIN idempotency.args_rule AS r
        ON r.scope_id OPERATOR(pg_catalog.=) s.id AND r.version OPERATOR(pg_catalog.=) s.args_rule
     WHERE idempotency.scope_usable(s.id);
COMMENT ON VIEW idempotency.scopes IS 'the scopes that you may use, their policies (NULL: the default) and grants';

CREATE VIEW idempotency.records WITH (security_barrier) AS
    SELECT COALESCE(s.name, 'default') AS scope, k.key, k.state, k.attempt, k.fence, k.run,
           k.claimed_by, k.application_name, k.claimed_at, k.lease_expires_at, k.finished_at, k.window_ends_at,
           k.reason, k.result, k.payload
      FROM (SELECT c.scope_id, c.key,
                   CASE WHEN c.state OPERATOR(pg_catalog.=) 'f' THEN 'in_flight'
                        WHEN c.state OPERATOR(pg_catalog.=) 'q' THEN 'queued'
                        WHEN c.state OPERATOR(pg_catalog.=) 'e' THEN 'escalated' ELSE 'unknown' END AS state,
                   c.attempt, c.fence, c.run, c.claimed_by, c.application_name, c.claimed_at, c.lease_expires_at,
                   NULL::pg_catalog.timestamptz AS finished_at, NULL::pg_catalog.timestamptz AS window_ends_at,
                   c.reason, NULL::pg_catalog.jsonb AS result,
                   NULL::pg_catalog.jsonb AS payload
              FROM idempotency.claim AS c
            UNION ALL
            SELECT o.scope_id, o.key,
                   CASE WHEN o.state OPERATOR(pg_catalog.=) 'c' THEN 'completed'
                        WHEN o.state OPERATOR(pg_catalog.=) 'r' THEN 'rejected' ELSE 'not_applied' END,
                   o.attempt, o.fence, o.run, o.claimed_by, NULL, o.claimed_at, NULL,
                   o.finished_at, idempotency.window_ends_at(o.scope_id, o.finished_at, o.run),
                   o.reason, o.result, o.payload
              FROM idempotency.outcome AS o) AS k
      LEFT JOIN idempotency.scope AS s ON s.id OPERATOR(pg_catalog.=) k.scope_id
     WHERE idempotency.scope_usable(k.scope_id);
COMMENT ON VIEW idempotency.records IS 'every key that you may see, open and finished, in one place';

GRANT SELECT ON idempotency.scopes, idempotency.records TO PUBLIC;

CREATE FUNCTION @extschema@.idem_peek(
    key pg_catalog.text,
    scope pg_catalog.text DEFAULT 'default',
    OUT state pg_catalog.text,
    OUT fence pg_catalog.int8,
    OUT attempt pg_catalog.int4,
    OUT result pg_catalog.jsonb,
    OUT reason pg_catalog.text,
    OUT run pg_catalog.text,
    OUT claimed_by pg_catalog.regrole,
    OUT application_name pg_catalog.text,
    OUT claimed_at pg_catalog.timestamptz,
    OUT lease_expires_at pg_catalog.timestamptz,
    OUT finished_at pg_catalog.timestamptz,
    OUT window_ends_at pg_catalog.timestamptz,
    OUT repeatable_at pg_catalog.timestamptz
) LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'idem_peek';
COMMENT ON FUNCTION @extschema@.idem_peek(pg_catalog.text, pg_catalog.text) IS
    'the committed state of one key: absent, queued, in_flight, unknown, escalated, completed, rejected, not_applied, or expired where only its end is remembered. repeatable_at says when its operation can be executed again. Reads only, claims nothing';

CREATE FUNCTION @extschema@.idem_find(
    key pg_catalog.text,
    OUT scope pg_catalog.text,
    OUT state pg_catalog.text,
    OUT held_by pg_catalog.regrole,
    OUT application_name pg_catalog.text,
    OUT pid pg_catalog.int4,
    OUT since pg_catalog.timestamptz,
    OUT fence pg_catalog.int8,
    OUT attempt pg_catalog.int4,
    OUT lease_expires_at pg_catalog.timestamptz,
    OUT finished_at pg_catalog.timestamptz,
    OUT window_ends_at pg_catalog.timestamptz,
    OUT run pg_catalog.text,
    OUT reason pg_catalog.text,
    OUT result pg_catalog.jsonb
) RETURNS SETOF pg_catalog.record LANGUAGE c AS 'MODULE_PATHNAME', 'idem_find';
COMMENT ON FUNCTION @extschema@.idem_find(pg_catalog.text) IS
    'what happened to this key, in every scope that you may use: its state, who holds it (role, application_name, pid) and since when';
