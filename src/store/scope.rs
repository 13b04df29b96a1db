//! `idempotency.scope`, `scope_grant` and `args_rule`: read directly for the session's cache, written through
//! SPI as the tables' owner.

use crate::error::Error;
use crate::pg::identity;
use crate::pg::lock;
use crate::pg::raise::Caught;
use crate::pg::spi::{self, Kind, Parameter};
use crate::pg::table::{Access, Definition, Mode, Row, Snapshot, Table, Type};
use crate::pg::{server, shmem};
use crate::store::horizon;
use idempotency_core::digest::key_digest;
use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::Oid;
use std::ffi::CStr;
use std::ops::ControlFlow;

static SCOPE: Definition = Definition {
    slot: 2,
    name: "scope",
    c_name: c"scope",
    columns: &[
        (c"id", Type::Int4),
        (c"name", Type::Text),
        (c"owner", Type::Role),
        (c"dedup_window", Type::Interval),
        (c"keep_forever", Type::Bool),
        (c"max_lease", Type::Interval),
        (c"effect_kind", Type::Text),
        (c"provider_window", Type::Interval),
        (c"wait", Type::Interval),
        (c"max_result_bytes", Type::Int4),
        (c"args_rule", Type::Int4),
        (c"max_attempts", Type::Int4),
        (c"backoff", Type::Interval),
        (c"max_backoff", Type::Interval),
        (c"max_reconciles", Type::Int4),
        (c"keep_payload", Type::Bool),
        (c"reconciler", Type::Text),
        (c"hard_limit", Type::Interval),
        (c"run_is_alive", Type::Text),
        (c"guard", Type::Interval),
        (c"late", Type::Text),
        (c"issued_at_from", Type::Text),
    ],
};
static GRANT: Definition = Definition {
    slot: 3,
    name: "scope_grant",
    c_name: c"scope_grant",
    columns: &[(c"scope_id", Type::Int4), (c"role", Type::Role)],
};
static RULE: Definition = Definition {
    slot: 4,
    name: "args_rule",
    c_name: c"args_rule",
    columns: &[
        (c"scope_id", Type::Int4),
        (c"version", Type::Int4),
        (c"ignore_args", Type::TextArray),
    ],
};

/// A scope as it is stored; `None` means the default.
#[derive(Clone, Debug)]
pub struct ScopeRow {
    pub id: i32,
    pub name: String,
    pub owner: Oid,
    pub dedup_window_us: Option<i64>,
    pub keep_forever: bool,
    pub max_lease_us: Option<i64>,
    pub effect_kind: Option<String>,
    pub provider_window_us: Option<i64>,
    pub wait_us: Option<i64>,
    pub max_result_bytes: Option<i32>,
    pub args_rule: i32,
    pub max_attempts: Option<i32>,
    pub backoff_us: Option<i64>,
    pub max_backoff_us: Option<i64>,
    pub max_reconciles: Option<i32>,
    pub keep_payload: bool,
    pub reconciler: Option<String>,
    pub hard_limit_us: Option<i64>,
    pub run_is_alive: Option<String>,
    pub guard_us: Option<i64>,
    pub late: Option<String>,
    pub issued_at_from: Option<String>,
}

/// All that is stored of one scope.
pub struct StoredScope {
    pub row: ScopeRow,
    pub granted_to: Vec<Oid>,
    /// Version and JSON Pointers of every rule the scope ever had.
    pub rules: Vec<(i32, Vec<String>)>,
}

const US_PER_DAY: i64 = 86_400_000_000;
/// The id of `default`, which needs no row.
pub const DEFAULT_ID: i32 = 0;
/// The name of `default`.
pub const DEFAULT_NAME: &str = "default";

/// How a scope is looked for.
#[derive(Clone, Copy)]
pub enum Which<'a> {
    Name(&'a str),
    Id(i32),
}

/// Reads a scope with its grants and rules; `default` is there without a row.
pub fn find(which: Which<'_>) -> Result<Option<StoredScope>, Error> {
    let table = Table::open(&SCOPE, Mode::Read)?;
    let stored = super::look(|snapshot| {
        let by_id;
        let access = match which {
            Which::Name(_) => Access::Sequential,
            Which::Id(id) => {
                by_id = [(0, id.into())];
                Access::PrimaryKey(&by_id)
            }
        };
        table.scan(&access, snapshot, |row| {
            let matches = match which {
                Which::Name(name) => row.text(1).as_deref() == Some(name),
                Which::Id(id) => row.int4(0) == id,
            };
            if matches {
                ControlFlow::Break(read(row))
            } else {
                ControlFlow::Continue(())
            }
        })
    });
    let is_default = match which {
        Which::Name(name) => name == DEFAULT_NAME,
        Which::Id(id) => id == DEFAULT_ID,
    };
    let owner = table.owner();
    table.close();
    let Some(row) = stored.or_else(|| is_default.then(|| default_row(owner))) else {
        return Ok(None);
    };
    let mut granted_to = Vec::new();
    visit(&GRANT, row.id, |grant| granted_to.extend(grant.oid(1)))?;
    let mut rules = Vec::new();
    visit(&RULE, row.id, |rule| {
        rules.push((rule.int4(1), rule.text_array(2)))
    })?;
    Ok(Some(StoredScope {
        row,
        granted_to,
        rules,
    }))
}

/// Ids of all scopes, `default` first.
pub fn ids() -> Result<Vec<i32>, Error> {
    let table = Table::open(&SCOPE, Mode::Read)?;
    let mut ids = vec![DEFAULT_ID];
    table.scan(&Access::Sequential, Snapshot::Now, |row| {
        if row.int4(0) != DEFAULT_ID {
            ids.push(row.int4(0));
        }
        ControlFlow::<()>::Continue(())
    });
    table.close();
    Ok(ids)
}

/// The owner of our tables: the extension's owner for all that this code does.
pub fn tables_owner() -> Result<Oid, Error> {
    let table = Table::open(&SCOPE, Mode::Read)?;
    let owner = table.owner();
    table.close();
    Ok(owner)
}

/// A policy's column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    DedupWindow,
    KeepForever,
    MaxLease,
    EffectKind,
    ProviderWindow,
    Wait,
    MaxResultBytes,
    ArgsRule,
    MaxAttempts,
    Backoff,
    MaxBackoff,
    MaxReconciles,
    KeepPayload,
    Reconciler,
    HardLimit,
    RunIsAlive,
    Guard,
    Late,
    IssuedAtFrom,
}

/// A policy's new value; `None` is its default.
#[derive(Clone, Debug)]
pub enum SettingValue {
    Default,
    Us(i64),
    Bool(bool),
    Text(String),
    Int4(i32),
}

/// Holds off everybody else who would change scopes.
pub fn lock_for_change() -> Result<(), Error> {
    execute(
        c"LOCK TABLE idempotency.scope IN SHARE ROW EXCLUSIVE MODE",
        Vec::new(),
    )
}

/// Waits for whoever has claimed and not committed, and holds off new claims of any scope. Gives up soon: those
/// who come after it in the queue would wait too.
pub fn lock_keys_for_drop() -> Result<(), Error> {
    lock_for_change()?;
    let text = c"LOCK TABLE idempotency.claim, idempotency.outcome IN SHARE MODE";
    match lock::within(DROP_WAIT_MS, || execute(text, Vec::new())) {
        Ok(result) => result,
        Err(Caught::Postgres {
            code: PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE,
            ..
        }) => Err(Error::DropBusy),
        Err(caught @ (Caught::Postgres { .. } | Caught::Other(_))) => caught.resume(),
    }
}

/// How long a drop waits for transactions that have claimed.
const DROP_WAIT_MS: i32 = 1_000;

/// Stores a new scope. Call under `lock_for_change`. Its id is drawn and never counted on from a dropped one: what
/// might be left of that must not come to mean this scope.
pub fn create(name: &str, owner: Oid) -> Result<(), Error> {
    let mut id = DEFAULT_ID;
    while id == DEFAULT_ID || find(Which::Id(id))?.is_some() {
        let drawn = key_digest(name, &server::now().0.to_string());
        id = i32::from_be_bytes([drawn[0], drawn[1], drawn[2], drawn[3]]) & i32::MAX;
    }
    execute(
        c"INSERT INTO idempotency.scope (id, name, owner) VALUES ($1, $2, $3::pg_catalog.regrole)",
        vec![
            Parameter::int4(id),
            Parameter::text(name),
            Parameter::role(owner),
        ],
    )
}

/// Gives `default` its row, which it needs once a policy of it is set. Call under `lock_for_change`.
pub fn ensure_default_row() -> Result<(), Error> {
    let owner = tables_owner()?;
    execute(
        c"INSERT INTO idempotency.scope (id, name, owner)
          VALUES (0, 'default', $1::pg_catalog.regrole) ON CONFLICT (id) DO NOTHING",
        vec![Parameter::role(owner)],
    )
}

/// Sets one policy of a scope that has a row.
pub fn set(id: i32, setting: Setting, value: SettingValue) -> Result<(), Error> {
    if setting == Setting::RunIsAlive {
        // What another function has said of runs is not what this one says.
        let text = c"DELETE FROM idempotency.run WHERE scope_id OPERATOR(pg_catalog.=) $1";
        execute(text, vec![Parameter::int4(id)])?;
        shmem::lift_ban(id);
    }
    let text = match setting {
        Setting::DedupWindow => {
            c"UPDATE idempotency.scope SET dedup_window = $2::pg_catalog.interval WHERE id OPERATOR(pg_catalog.=) $1"
        }
        Setting::KeepForever => {
            c"UPDATE idempotency.scope SET keep_forever = $2::pg_catalog.bool WHERE id OPERATOR(pg_catalog.=) $1"
        }
        Setting::MaxLease => {
            c"UPDATE idempotency.scope SET max_lease = $2::pg_catalog.interval WHERE id OPERATOR(pg_catalog.=) $1"
        }
        Setting::EffectKind => c"UPDATE idempotency.scope SET effect_kind = $2 WHERE id OPERATOR(pg_catalog.=) $1",
        Setting::ProviderWindow => {
            c"UPDATE idempotency.scope SET provider_window = $2::pg_catalog.interval WHERE id OPERATOR(pg_catalog.=) $1"
        }
        Setting::Wait => {
            c"UPDATE idempotency.scope SET wait = $2::pg_catalog.interval WHERE id OPERATOR(pg_catalog.=) $1"
        }
        Setting::MaxResultBytes => {
            c"UPDATE idempotency.scope SET max_result_bytes = $2::pg_catalog.int4 WHERE id OPERATOR(pg_catalog.=) $1"
        }
        Setting::MaxAttempts => {
            c"UPDATE idempotency.scope SET max_attempts = $2::pg_catalog.int4 WHERE id OPERATOR(pg_catalog.=) $1"
        }
        Setting::Backoff => {
            c"UPDATE idempotency.scope SET backoff = $2::pg_catalog.interval WHERE id OPERATOR(pg_catalog.=) $1"
        }
        Setting::MaxBackoff => {
            c"UPDATE idempotency.scope SET max_backoff = $2::pg_catalog.interval WHERE id OPERATOR(pg_catalog.=) $1"
        }
        Setting::MaxReconciles => {
            c"UPDATE idempotency.scope SET max_reconciles = $2::pg_catalog.int4 WHERE id OPERATOR(pg_catalog.=) $1"
        }
        Setting::KeepPayload => {
            c"UPDATE idempotency.scope SET keep_payload = $2::pg_catalog.bool WHERE id OPERATOR(pg_catalog.=) $1"
        }
        Setting::Reconciler => c"UPDATE idempotency.scope SET reconciler = $2 WHERE id OPERATOR(pg_catalog.=) $1",
        Setting::HardLimit => {
            c"UPDATE idempotency.scope SET hard_limit = $2::pg_catalog.interval WHERE id OPERATOR(pg_catalog.=) $1"
        }
        Setting::RunIsAlive => c"UPDATE idempotency.scope SET run_is_alive = $2 WHERE id OPERATOR(pg_catalog.=) $1",
        Setting::Guard => {
            c"UPDATE idempotency.scope SET guard = $2::pg_catalog.interval WHERE id OPERATOR(pg_catalog.=) $1"
        }
        Setting::Late => c"UPDATE idempotency.scope SET late = $2 WHERE id OPERATOR(pg_catalog.=) $1",
        Setting::IssuedAtFrom => c"UPDATE idempotency.scope SET issued_at_from = $2 WHERE id OPERATOR(pg_catalog.=) $1",
        Setting::ArgsRule => {
            c"UPDATE idempotency.scope SET args_rule = $2::pg_catalog.int4 WHERE id OPERATOR(pg_catalog.=) $1"
        }
    };
    let text_value = match value {
        SettingValue::Default => None,
        SettingValue::Us(us) => Some(format!(
            "{} days {} microseconds",
            us.div_euclid(US_PER_DAY),
            us.rem_euclid(US_PER_DAY)
        )),
        SettingValue::Bool(value) => Some(value.to_string()),
        SettingValue::Text(value) => Some(value),
        SettingValue::Int4(value) => Some(value.to_string()),
    };
    execute(
        text,
        vec![Parameter::int4(id), Parameter::optional_text(text_value)],
    )
}

/// The version of this rule in the scope, stored under the next one if it is new. Call under `lock_for_change`.
pub fn add_rule(id: i32, pointers: &[String]) -> Result<i32, Error> {
    let mut known = None;
    visit(&RULE, id, |rule| {
        if rule.text_array(2) == pointers {
            known = Some(rule.int4(1));
        }
    })?;
    if let Some(version) = known {
        return Ok(version);
    }
    let owner = tables_owner()?;
    let text = c"INSERT INTO idempotency.args_rule (scope_id, version, ignore_args)
          SELECT $1, COALESCE(pg_catalog.max(r.version), 0) OPERATOR(pg_catalog.+) 1, $2
            FROM idempotency.args_rule AS r WHERE r.scope_id OPERATOR(pg_catalog.=) $1
          RETURNING version";
    let parameters = vec![Parameter::int4(id), Parameter::text_array(pointers)];
    let versions = identity::acting_as(owner, || {
        spi::run(text, parameters, Kind::Write, |row| row.int4(1))
    });
    Ok(versions.into_iter().flatten().next().unwrap_or(0))
}

/// Removes a scope with all that is stored of it besides keys.
pub fn remove(id: i32) -> Result<(), Error> {
    horizon::remove(id)?;
    for text in [
        c"DELETE FROM idempotency.scope_grant WHERE scope_id OPERATOR(pg_catalog.=) $1",
        c"DELETE FROM idempotency.args_rule WHERE scope_id OPERATOR(pg_catalog.=) $1",
        c"DELETE FROM idempotency.tombstone WHERE scope_id OPERATOR(pg_catalog.=) $1",
        c"DELETE FROM idempotency.run WHERE scope_id OPERATOR(pg_catalog.=) $1",
        c"DELETE FROM idempotency.prune_progress WHERE scope_id OPERATOR(pg_catalog.=) $1",
        c"DELETE FROM idempotency.observed WHERE scope_id OPERATOR(pg_catalog.=) $1",
        c"DELETE FROM idempotency.activity WHERE scope_id OPERATOR(pg_catalog.=) $1",
        c"DELETE FROM idempotency.scope WHERE id OPERATOR(pg_catalog.=) $1",
    ] {
        execute(text, vec![Parameter::int4(id)])?;
    }
    Ok(())
}

/// Lets a role use a scope.
pub fn grant(id: i32, role: Oid, granted_by: Oid) -> Result<(), Error> {
    execute(
        c"INSERT INTO idempotency.scope_grant (scope_id, role, granted_by)
          VALUES ($1, $2::pg_catalog.regrole, $3::pg_catalog.regrole) ON CONFLICT DO NOTHING",
        vec![
            Parameter::int4(id),
            Parameter::role(role),
            Parameter::role(granted_by),
        ],
    )
}

/// Takes a grant back.
pub fn revoke(id: i32, role: Oid) -> Result<(), Error> {
    execute(
        c"DELETE FROM idempotency.scope_grant
           WHERE scope_id OPERATOR(pg_catalog.=) $1 AND role OPERATOR(pg_catalog.=) $2",
        vec![Parameter::int4(id), Parameter::role(role)],
    )
}

/// Runs a statement on these tables as their owner.
fn execute(text: &CStr, parameters: Vec<Parameter>) -> Result<(), Error> {
    let owner = tables_owner()?;
    identity::acting_as(owner, || spi::run(text, parameters, Kind::Write, |_| ()));
    Ok(())
}

fn visit(
    definition: &'static Definition,
    scope_id: i32,
    mut each: impl FnMut(&Row<'_>),
) -> Result<(), Error> {
    let table = Table::open(definition, Mode::Read)?;
    let of_scope = [(0, scope_id.into())];
    table.scan(&Access::PrimaryKey(&of_scope), Snapshot::Now, |row| {
        each(row);
        ControlFlow::<()>::Continue(())
    });
    table.close();
    Ok(())
}

fn read(row: &Row<'_>) -> ScopeRow {
    ScopeRow {
        id: row.int4(0),
        name: row.text(1).unwrap_or_default(),
        owner: row.oid(2).unwrap_or(Oid::INVALID),
        dedup_window_us: row.interval_us(3),
        keep_forever: row.bool(4).unwrap_or(false),
        max_lease_us: row.interval_us(5),
        effect_kind: row.text(6),
        provider_window_us: row.interval_us(7),
        wait_us: row.interval_us(8),
        max_result_bytes: row.optional_int4(9),
        args_rule: row.int4(10),
        max_attempts: row.optional_int4(11),
        backoff_us: row.interval_us(12),
        max_backoff_us: row.interval_us(13),
        max_reconciles: row.optional_int4(14),
        keep_payload: row.bool(15).unwrap_or(false),
        reconciler: row.text(16),
        hard_limit_us: row.interval_us(17),
        run_is_alive: row.text(18),
        guard_us: row.interval_us(19),
        late: row.text(20),
        issued_at_from: row.text(21),
    }
}

fn default_row(owner: Oid) -> ScopeRow {
    ScopeRow {
        id: DEFAULT_ID,
        name: DEFAULT_NAME.to_owned(),
        owner,
        dedup_window_us: None,
        keep_forever: false,
        max_lease_us: None,
        effect_kind: None,
        provider_window_us: None,
        wait_us: None,
        max_result_bytes: None,
        args_rule: 0,
        max_attempts: None,
        backoff_us: None,
        max_backoff_us: None,
        max_reconciles: None,
        keep_payload: false,
        reconciler: None,
        hard_limit_us: None,
        run_is_alive: None,
        guard_us: None,
        late: None,
        issued_at_from: None,
    }
}
