-- Scopes: policies and who may use them.

CREATE FUNCTION @extschema@.idem_scope_set(
    scope pg_catalog.text,
    dedup_window pg_catalog.interval DEFAULT NULL,
    keep_forever pg_catalog.bool DEFAULT NULL,
    max_lease pg_catalog.interval DEFAULT NULL,
    effect_kind pg_catalog.text DEFAULT NULL,
    provider_window pg_catalog.interval DEFAULT NULL,
    wait pg_catalog.interval DEFAULT NULL,
    max_result_bytes pg_catalog.int4 DEFAULT NULL,
    ignore_args pg_catalog.text[] DEFAULT NULL,
    max_attempts pg_catalog.int4 DEFAULT NULL,
    backoff pg_catalog.interval DEFAULT NULL,
    max_backoff pg_catalog.interval DEFAULT NULL,
    max_reconciles pg_catalog.int4 DEFAULT NULL,
    keep_payload pg_catalog.bool DEFAULT NULL,
    reconciler pg_catalog.text DEFAULT NULL,
    hard_limit pg_catalog.interval DEFAULT NULL,
    run_is_alive pg_catalog.text DEFAULT NULL,
    guard pg_catalog.interval DEFAULT NULL,
    late pg_catalog.text DEFAULT NULL,
    issued_at_from pg_catalog.text DEFAULT NULL
) RETURNS pg_catalog.void LANGUAGE c AS 'MODULE_PATHNAME', 'idem_scope_set';
COMMENT ON FUNCTION @extschema@.idem_scope_set(pg_catalog.text, pg_catalog.interval, pg_catalog.bool, pg_catalog.interval, pg_catalog.text, pg_catalog.interval, pg_catalog.interval, pg_catalog.int4, pg_catalog.text[], pg_catalog.int4, pg_catalog.interval, pg_catalog.interval, pg_catalog.int4, pg_catalog.bool, pg_catalog.text, pg_catalog.interval, pg_catalog.text, pg_catalog.interval, pg_catalog.text, pg_catalog.text) IS
    'creates a scope or changes its policies; NULL keeps what it was. Creating needs CREATE on schema idempotency, changing is for the owner';

CREATE FUNCTION @extschema@.idem_scope_reset(scope pg_catalog.text, policy pg_catalog.text)
    RETURNS pg_catalog.void LANGUAGE c AS 'MODULE_PATHNAME', 'idem_scope_reset';
COMMENT ON FUNCTION @extschema@.idem_scope_reset(pg_catalog.text, pg_catalog.text) IS
    'sets one policy of a scope back to its default';

CREATE FUNCTION @extschema@.idem_scope_drop(scope pg_catalog.text)
    RETURNS pg_catalog.void LANGUAGE c AS 'MODULE_PATHNAME', 'idem_scope_drop';
COMMENT ON FUNCTION @extschema@.idem_scope_drop(pg_catalog.text) IS
    'drops a scope that holds no keys any more, its policies and grants with it';

CREATE FUNCTION @extschema@.idem_scope_grant(scope pg_catalog.text, role pg_catalog.regrole)
    RETURNS pg_catalog.void LANGUAGE c AS 'MODULE_PATHNAME', 'idem_scope_grant';
COMMENT ON FUNCTION @extschema@.idem_scope_grant(pg_catalog.text, pg_catalog.regrole) IS
    'lets a role (and its members) use a scope; for the owner of the scope';

CREATE FUNCTION @extschema@.idem_scope_revoke(scope pg_catalog.text, role pg_catalog.regrole)
    RETURNS pg_catalog.void LANGUAGE c AS 'MODULE_PATHNAME', 'idem_scope_revoke';
COMMENT ON FUNCTION @extschema@.idem_scope_revoke(pg_catalog.text, pg_catalog.regrole) IS
    'takes back what idem_scope_grant gave';

CREATE FUNCTION @extschema@.idem_guarantee(scope pg_catalog.text DEFAULT 'default')
    RETURNS pg_catalog.text LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'idem_guarantee';
COMMENT ON FUNCTION @extschema@.idem_guarantee(pg_catalog.text) IS
    'what is promised for the keys of this scope, in words, with its window';
