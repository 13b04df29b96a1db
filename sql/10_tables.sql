-- Tables. Two hold the keys: idempotency.claim what is open, idempotency.outcome what is finished;
-- a digest stands in at most one of them. What an open key says to another system stands in
-- idempotency.message, what went wrong with keys in idempotency.event. Nothing is seeded: a restored dump never collides.

CREATE SCHEMA idempotency;
COMMENT ON SCHEMA idempotency IS 'tables and views of the idempotency extension; the functions are prefixed idem_';
GRANT USAGE ON SCHEMA idempotency TO PUBLIC;

CREATE TABLE idempotency.scope (
    id               pg_catalog.int4 NOT NULL,
    name             pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    owner            pg_catalog.regrole NOT NULL,
    dedup_window     pg_catalog.interval,
    keep_forever     pg_catalog.bool,
    max_lease        pg_catalog.interval,
    effect_kind      pg_catalog.text,
    provider_window  pg_catalog.interval,
    wait             pg_catalog.interval,
    max_result_bytes pg_catalog.int4,
    max_attempts     pg_catalog.int4,
    backoff          pg_catalog.interval,
    max_backoff      pg_catalog.interval,
    max_reconciles   pg_catalog.int4,
    keep_payload     pg_catalog.bool,
    reconciler       pg_catalog.text,
    hard_limit       pg_catalog.interval,
    run_is_alive     pg_catalog.text,
    guard            pg_catalog.interval,
    late             pg_catalog.text,
    issued_at_from   pg_catalog.text,
    args_rule        pg_catalog.int4 NOT NULL DEFAULT 0,
    created_at       pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT scope_id_pkey PRIMARY KEY (id),
    CONSTRAINT scope_name_key UNIQUE (name)
);
COMMENT ON TABLE idempotency.scope IS 'policies of each scope; NULL means the default. The scope "default" (id 0) needs no row';

CREATE TABLE idempotency.scope_grant (
    scope_id   pg_catalog.int4 NOT NULL,
    role       pg_catalog.regrole NOT NULL,
    granted_by pg_catalog.regrole NOT NULL,
    granted_at pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT scope_grant_scope_id_role_pkey PRIMARY KEY (scope_id, role)
);
COMMENT ON TABLE idempotency.scope_grant IS 'who may use a scope besides its owner and superusers';

CREATE TABLE idempotency.args_rule (
    scope_id    pg_catalog.int4 NOT NULL,
    version     pg_catalog.int4 NOT NULL,
    ignore_args pg_catalog.text[] NOT NULL,
    CONSTRAINT args_rule_scope_id_version_pkey PRIMARY KEY (scope_id, version)
);
COMMENT ON TABLE idempotency.args_rule IS 'every ignore_args a scope ever had: a key is compared by the rule that made its hash. Version 0 ignores nothing and has no row';

CREATE TABLE idempotency.claim (
    digest           pg_catalog.uuid NOT NULL,
    claimed_at       pg_catalog.timestamptz NOT NULL,
    first_claimed_at pg_catalog.timestamptz NOT NULL,
    lease_expires_at pg_catalog.timestamptz,
    fence            pg_catalog.int8 NOT NULL,
    scope_id         pg_catalog.int4 NOT NULL,
    attempt          pg_catalog.int4 NOT NULL,
    args_rule        pg_catalog.int4 NOT NULL,
    claimed_pid      pg_catalog.int4 NOT NULL,
    claimed_by       pg_catalog.regrole NOT NULL,
    state            pg_catalog."char" NOT NULL,
    effect_kind      pg_catalog."char" NOT NULL,
    prior            pg_catalog."char" NOT NULL,
    is_message       pg_catalog.bool NOT NULL,
    tries            pg_catalog.int4 NOT NULL,
    reconciles       pg_catalog.int4 NOT NULL,
    in_doubt_since   pg_catalog.timestamptz,
    retry_at         pg_catalog.timestamptz,
    key              pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    args_hash        pg_catalog.bytea,
    run              pg_catalog.text COLLATE pg_catalog."C",
    reason           pg_catalog.text,
    prior_reason     pg_catalog.text,
    application_name pg_catalog.text,
    evidence         pg_catalog.jsonb,
    CONSTRAINT claim_digest_pkey PRIMARY KEY (digest)
) WITH (fillfactor = 60);
CREATE INDEX claim_run_index ON idempotency.claim (run) WHERE (run IS NOT NULL);
COMMENT ON TABLE idempotency.claim IS 'open keys: leased claims in flight (state f), unknown outcomes (u), escalated to a human (e), messages that wait for a dispatcher (q). Read it through idempotency.records';
COMMENT ON COLUMN idempotency.claim.lease_expires_at IS 'end of the lease, also of one that has ended; NULL where its owner ended the claim';
COMMENT ON COLUMN idempotency.claim.tries IS 'deliveries of a message since it was enqueued or requeued: max_attempts counts them';
COMMENT ON COLUMN idempotency.claim.reconciles IS 'reads of the other system that gave no answer: max_reconciles counts them';
COMMENT ON COLUMN idempotency.claim.in_doubt_since IS 'since when the outcome is unknown or escalated';
COMMENT ON COLUMN idempotency.claim.retry_at IS 'not before this is it delivered or reconciled again by dispatchers and the worker';
COMMENT ON COLUMN idempotency.claim.effect_kind IS 'x external, k keyed, l local: frozen at the first claim';
COMMENT ON COLUMN idempotency.claim.prior IS 'what this claim found: - nothing, n not applied, u unknown, e a lease that had ended';

CREATE TABLE idempotency.outcome (
    digest      pg_catalog.uuid NOT NULL,
    finished_at pg_catalog.timestamptz NOT NULL,
    fence       pg_catalog.int8 NOT NULL,
    scope_id    pg_catalog.int4 NOT NULL,
    attempt     pg_catalog.int4 NOT NULL,
    args_rule   pg_catalog.int4 NOT NULL,
    state       pg_catalog."char" NOT NULL,
    key         pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    args_hash   pg_catalog.bytea,
    result      pg_catalog.jsonb,
    reason      pg_catalog.text,
    run         pg_catalog.text COLLATE pg_catalog."C",
    claimed_at  pg_catalog.timestamptz,
    claimed_by  pg_catalog.regrole,
    prior_reason pg_catalog.text,
    payload     pg_catalog.jsonb,
    CONSTRAINT outcome_digest_pkey PRIMARY KEY (digest)
);
CREATE INDEX outcome_scope_id_finished_at_index ON idempotency.outcome (scope_id, finished_at);
CREATE INDEX outcome_run_index ON idempotency.outcome (run) WHERE (run IS NOT NULL);
COMMENT ON TABLE idempotency.outcome IS 'finished keys: completed (state c), rejected (r), not applied (n), lease expired in a local scope (e). Read it through idempotency.records';
COMMENT ON COLUMN idempotency.outcome.prior_reason IS 'only where a lease expired: the reason of the attempt before, kept for its late owner';
COMMENT ON COLUMN idempotency.outcome.claimed_by IS 'who held the lease; NULL for a transactional claim';

CREATE TABLE idempotency.tombstone (
    digest     pg_catalog.uuid NOT NULL,
    expired_at pg_catalog.timestamptz NOT NULL,
    scope_id   pg_catalog.int4 NOT NULL,
    CONSTRAINT tombstone_digest_pkey PRIMARY KEY (digest)
);
CREATE INDEX tombstone_scope_id_expired_at_index ON idempotency.tombstone (scope_id, expired_at);
COMMENT ON TABLE idempotency.tombstone IS 'pruned keys of scopes with a guard: late claims are recognised by them';
COMMENT ON COLUMN idempotency.tombstone.expired_at IS 'when the window ended; the guard counts from here';

CREATE TABLE idempotency.run (
    digest        pg_catalog.uuid NOT NULL,
    begun_at      pg_catalog.timestamptz NOT NULL,
    seen_at       pg_catalog.timestamptz NOT NULL,
    ended_at      pg_catalog.timestamptz,
    owner         pg_catalog.regrole NOT NULL,
    scope_id      pg_catalog.int4,
    is_silent     pg_catalog.bool NOT NULL,
    longest_pause pg_catalog.interval NOT NULL,
    run           pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    label         pg_catalog.text,
    CONSTRAINT run_digest_pkey PRIMARY KEY (digest)
) WITH (fillfactor = 60);
COMMENT ON TABLE idempotency.run IS 'runs that keep their keys as long as they live, and, of scopes that name run_is_alive, runs that were found to be over. Read it through idempotency.runs';
COMMENT ON COLUMN idempotency.run.seen_at IS 'its last sign of life that a sweep has written here; later ones are in idempotency.run_sign';
COMMENT ON COLUMN idempotency.run.is_silent IS 'over because it gave no sign of life for its longest pause';
COMMENT ON COLUMN idempotency.run.scope_id IS 'only where run_is_alive of this scope said that it is over';

CREATE TABLE idempotency.run_sign (
    digest  pg_catalog.uuid NOT NULL,
    seen_at pg_catalog.timestamptz NOT NULL,
    pid     pg_catalog.int4 NOT NULL,
    CONSTRAINT run_sign_digest_seen_at_pid_pkey PRIMARY KEY (digest, seen_at, pid)
);
COMMENT ON TABLE idempotency.run_sign IS 'signs of life of runs since a sweep has written the last one into idempotency.run. Only ever inserted: nobody waits for anybody, and who rolls back takes no sign of others along';

CREATE TABLE idempotency.prune_progress (
    scope_id      pg_catalog.int4 NOT NULL,
    pass_began_at pg_catalog.timestamptz NOT NULL,
    finished_at   pg_catalog.timestamptz NOT NULL,
    place         pg_catalog.int8 NOT NULL,
    frontier      pg_catalog.timestamptz NOT NULL,
    skipped_from  pg_catalog.timestamptz,
    retry_at      pg_catalog.timestamptz,
    at_end        pg_catalog.bool NOT NULL,
    tombstones_from pg_catalog.timestamptz,
    CONSTRAINT prune_progress_scope_id_pkey PRIMARY KEY (scope_id)
) WITH (fillfactor = 60);
COMMENT ON TABLE idempotency.prune_progress IS 'how far pruning has come in each scope, so that no pass reads again what the one before has read';
COMMENT ON COLUMN idempotency.prune_progress.finished_at IS 'the pass goes on from outcomes of this time, and behind this place among equal times';
COMMENT ON COLUMN idempotency.prune_progress.skipped_from IS 'the first outcome that was due and could not be pruned; a pass after retry_at goes on from here';
COMMENT ON COLUMN idempotency.prune_progress.frontier IS 'the farthest that any pass came';
COMMENT ON COLUMN idempotency.prune_progress.tombstones_from IS 'the pass goes on from tombstones that expired then';

CREATE TABLE idempotency.observed (
    scope_id        pg_catalog.int4 NOT NULL,
    since           pg_catalog.timestamptz NOT NULL,
    repeats         pg_catalog.int8[] NOT NULL,
    longest_repeat  pg_catalog.interval,
    longest_late    pg_catalog.interval,
    longest_unknown pg_catalog.interval,
    slowest_call    pg_catalog.interval,
    longest_lease   pg_catalog.interval,
    reset_at        pg_catalog.timestamptz,
    CONSTRAINT observed_scope_id_pkey PRIMARY KEY (scope_id)
);
COMMENT ON TABLE idempotency.observed IS 'what the worker saw of each scope, for idem_window_advice: times from a key''s first claim to a repeat, in doubling buckets from one second, and the longest of each kind';
COMMENT ON COLUMN idempotency.observed.reset_at IS 'the last idem_stats_reset: events of before have been seen to';

CREATE TABLE idempotency.activity (
    scope_id pg_catalog.int4 NOT NULL,
    hour     pg_catalog.timestamptz NOT NULL,
    claims   pg_catalog.int8 NOT NULL,
    executes pg_catalog.int8 NOT NULL,
    replays  pg_catalog.int8 NOT NULL,
    pruned   pg_catalog.int8 NOT NULL,
    CONSTRAINT activity_hour_scope_id_pkey PRIMARY KEY (hour, scope_id)
);
COMMENT ON TABLE idempotency.activity IS 'what the worker saw of each scope in each hour, for idem_report';

CREATE TABLE idempotency.message (
    digest       pg_catalog.uuid NOT NULL,
    enqueued_at  pg_catalog.timestamptz NOT NULL,
    due_at       pg_catalog.timestamptz NOT NULL,
    position     pg_catalog.int8 NOT NULL,
    scope_id     pg_catalog.int4 NOT NULL,
    enqueued_by  pg_catalog.regrole NOT NULL,
    scope        pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    key          pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    destination  pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    ordering_key pg_catalog.text COLLATE pg_catalog."C",
    run          pg_catalog.text COLLATE pg_catalog."C",
    payload      pg_catalog.jsonb NOT NULL,
    CONSTRAINT message_digest_pkey PRIMARY KEY (digest)
);
CREATE INDEX message_due_index ON idempotency.message (scope_id, destination, due_at) WHERE (ordering_key IS NULL);
CREATE INDEX message_order_index ON idempotency.message (scope_id, destination, ordering_key, position)
    WHERE (ordering_key IS NOT NULL);
COMMENT ON TABLE idempotency.message IS 'the outbox: what open keys have to say to other systems; gone when its key is finished. Complete in its INSERT, for change capture. Read it through idempotency.outbox';
COMMENT ON COLUMN idempotency.message.due_at IS 'not delivered before; infinity while a human has to decide';
COMMENT ON COLUMN idempotency.message.position IS 'order among the messages of one ordering key';

CREATE TABLE idempotency.event (
    id               pg_catalog.uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
    happened_at      pg_catalog.timestamptz NOT NULL,
    kind             pg_catalog.text NOT NULL,
    scope_id         pg_catalog.int4,
    key              pg_catalog.text COLLATE pg_catalog."C",
    run              pg_catalog.text COLLATE pg_catalog."C",
    from_state       pg_catalog.text NOT NULL,
    to_state         pg_catalog.text NOT NULL,
    fence            pg_catalog.int8,
    attempt          pg_catalog.int4,
    role             pg_catalog.regrole NOT NULL,
    pid              pg_catalog.int4 NOT NULL,
    application_name pg_catalog.text,
    reason           pg_catalog.text,
    evidence         pg_catalog.jsonb,
    CONSTRAINT event_id_pkey PRIMARY KEY (id)
);
CREATE INDEX event_happened_at_index ON idempotency.event (happened_at);
CREATE INDEX event_scope_id_key_index ON idempotency.event (scope_id, key);
COMMENT ON TABLE idempotency.event IS 'the trail of exceptions: each step into doubt, through it and out of it, keys that expired while their run lives, late claims, silent runs, forgotten keys; never an ordinary completion. Read it through idempotency.events';
COMMENT ON COLUMN idempotency.event.kind IS 'doubt, expired_alive, late_retry, run_silent or forgotten';
COMMENT ON COLUMN idempotency.event.role IS 'who did it; of run_silent, whose run it is';

CREATE TABLE idempotency.failure_kind (
    kind    pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    verdict pg_catalog.text NOT NULL,
    why     pg_catalog.text,
    CONSTRAINT failure_kind_kind_pkey PRIMARY KEY (kind),
    CONSTRAINT failure_kind_verdict_check
        CHECK (verdict OPERATOR(pg_catalog.=) ANY (ARRAY['not_applied', 'unknown', 'rejected']::pg_catalog.text[]))
);
COMMENT ON TABLE idempotency.failure_kind IS 'your own kinds of failure and their verdicts, before those that are built in; see idempotency.failure_kinds';

CREATE TABLE idempotency.prune_horizon (
    scope_id       pg_catalog.int4 NOT NULL,
    finished_until pg_catalog.timestamptz NOT NULL,
    CONSTRAINT prune_horizon_scope_id_pkey PRIMARY KEY (scope_id)
) WITH (fillfactor = 60);
COMMENT ON TABLE idempotency.prune_horizon IS 'up to when of its finishing an outcome of the scope may have been pruned, under whatever window: a call issued before then is told expired';

-- The record must survive a dump and restore. prune_progress need not: pruning then begins at the first outcome.
SELECT pg_catalog.pg_extension_config_dump('idempotency.scope', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency.scope_grant', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency.args_rule', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency.claim', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency.outcome', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency.tombstone', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency.prune_horizon', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency.run', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency.run_sign', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency.observed', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency.activity', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency.message', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency.event', '');
SELECT pg_catalog.pg_extension_config_dump('idempotency.failure_kind', '');

-- Each session keeps scopes in memory; whatever changes these three tables makes them read again.
CREATE FUNCTION idempotency.scopes_changed() RETURNS pg_catalog.trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'idem_scopes_changed';
COMMENT ON FUNCTION idempotency.scopes_changed() IS 'trigger: makes every session read the scopes again after this transaction commits';
REVOKE ALL ON FUNCTION idempotency.scopes_changed() FROM PUBLIC;
CREATE TRIGGER scope_changed AFTER INSERT OR UPDATE OR DELETE ON idempotency.scope
    FOR EACH ROW EXECUTE FUNCTION idempotency.scopes_changed();
CREATE TRIGGER scope_truncated AFTER TRUNCATE ON idempotency.scope
    FOR EACH STATEMENT EXECUTE FUNCTION idempotency.scopes_changed();
ALTER TABLE idempotency.scope ENABLE ALWAYS TRIGGER scope_changed;
ALTER TABLE idempotency.scope ENABLE ALWAYS TRIGGER scope_truncated;
CREATE TRIGGER scope_grant_changed AFTER INSERT OR UPDATE OR DELETE ON idempotency.scope_grant
    FOR EACH ROW EXECUTE FUNCTION idempotency.scopes_changed();
CREATE TRIGGER scope_grant_truncated AFTER TRUNCATE ON idempotency.scope_grant
    FOR EACH STATEMENT EXECUTE FUNCTION idempotency.scopes_changed();
ALTER TABLE idempotency.scope_grant ENABLE ALWAYS TRIGGER scope_grant_changed;
ALTER TABLE idempotency.scope_grant ENABLE ALWAYS TRIGGER scope_grant_truncated;
CREATE TRIGGER args_rule_changed AFTER INSERT OR UPDATE OR DELETE ON idempotency.args_rule
    FOR EACH ROW EXECUTE FUNCTION idempotency.scopes_changed();
CREATE TRIGGER args_rule_truncated AFTER TRUNCATE ON idempotency.args_rule
    FOR EACH STATEMENT EXECUTE FUNCTION idempotency.scopes_changed();
ALTER TABLE idempotency.args_rule ENABLE ALWAYS TRIGGER args_rule_changed;
ALTER TABLE idempotency.args_rule ENABLE ALWAYS TRIGGER args_rule_truncated;
