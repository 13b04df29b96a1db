//! `idempotency.claim`: open keys.

use super::{DIGEST, StoredArgs};
use crate::error::Error;
use crate::pg::table::{Access, Definition, Row, Snapshot, Table, Type};
use crate::pg::table_write::Assignments;
use crate::pg::value::Value;
use idempotency_core::decide::{EffectKind, OpenKey, OpenState, Prior};
use idempotency_core::time::Instant;
use pgrx::pg_sys::Oid;
use std::ops::ControlFlow;

pub static DEFINITION: Definition = Definition {
    slot: 0,
    name: "claim",
    c_name: c"claim",
    columns: &[
        (c"digest", Type::Uuid),
        (c"claimed_at", Type::Timestamp),
        (c"first_claimed_at", Type::Timestamp),
        (c"lease_expires_at", Type::Timestamp),
        (c"fence", Type::Int8),
        (c"scope_id", Type::Int4),
        (c"attempt", Type::Int4),
        (c"args_rule", Type::Int4),
        (c"claimed_pid", Type::Int4),
        (c"claimed_by", Type::Role),
        (c"state", Type::Char),
        (c"effect_kind", Type::Char),
        (c"prior", Type::Char),
        (c"key", Type::Text),
        (c"args_hash", Type::Bytes),
        (c"run", Type::Text),
        (c"reason", Type::Text),
        (c"prior_reason", Type::Text),
        (c"application_name", Type::Text),
    ],
};

const CLAIMED_AT: usize = 1;
const FIRST_CLAIMED_AT: usize = 2;
const LEASE_EXPIRES_AT: usize = 3;
const FENCE: usize = 4;
const SCOPE_ID: usize = 5;
const ATTEMPT: usize = 6;
const ARGS_RULE: usize = 7;
const CLAIMED_PID: usize = 8;
const CLAIMED_BY: usize = 9;
const STATE: usize = 10;
const EFFECT_KIND: usize = 11;
const PRIOR: usize = 12;
const KEY: usize = 13;
const ARGS_HASH: usize = 14;
const RUN: usize = 15;
const REASON: usize = 16;
const PRIOR_REASON: usize = 17;
const APPLICATION_NAME: usize = 18;

/// A row.
#[derive(Clone, Debug)]
pub struct OpenRow {
    pub open: OpenKey,
    pub scope_id: i32,
    pub key: String,
    pub args: StoredArgs,
    pub run: Option<String>,
    pub reason: Option<String>,
    pub prior_reason: Option<String>,
    pub claimed_at: Instant,
    pub claimed_by: Oid,
    pub claimed_pid: i32,
    pub application_name: Option<String>,
}

/// The row of this key.
pub fn find(table: &Table, digest: &[u8; 16], snapshot: Snapshot) -> Option<OpenRow> {
    super::find(table, digest, snapshot, read)
}

/// Digests from after `from`, at most `limit`, whose lease has ended but whose state does not say so yet.
/// The second value tells whether the table was read to its end.
pub fn ended_leases(
    table: &Table,
    from: [u8; 16],
    limit: usize,
    now: Instant,
) -> (Vec<[u8; 16]>, bool) {
    let mut found = Vec::new();
    let full = table.scan(
        &Access::AfterPrimaryKey(DIGEST, from),
        Snapshot::Now,
        |row| {
            let ended = row.instant(LEASE_EXPIRES_AT).is_some_and(|at| at <= now);
            if row.char(STATE) == state_code(OpenState::InFlight) && ended {
                found.push(row.uuid(DIGEST));
            }
            if found.len() >= limit {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        },
    );
    (found, full.is_none())
}

/// Inserts the row.
pub(super) fn insert(table: &Table, digest: &[u8; 16], row: &OpenRow) -> Result<(), Error> {
    table.insert(write(digest, row))
}

/// Writes over the row of this key.
pub(super) fn replace(table: &Table, digest: &[u8; 16], row: &OpenRow) -> Result<(), Error> {
    super::replace(table, digest, write(digest, row))
}

/// Whether the scope has a row.
pub fn any_of_scope(table: &Table, scope_id: i32, snapshot: Snapshot) -> bool {
    let of_scope = |row: &Row<'_>| {
        if row.int4(SCOPE_ID) == scope_id {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    table
        .scan(&Access::Sequential, snapshot, of_scope)
        .is_some()
}

/// How many keys are open.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenCount {
    pub open: u64,
    /// In flight past the end of their lease.
    pub overdue: u64,
    pub unknown: u64,
}

/// Counts the rows.
pub fn count(table: &Table, snapshot: Snapshot, now: Instant) -> OpenCount {
    let mut count = OpenCount::default();
    table.scan(&Access::Sequential, snapshot, |row| {
        count.open += 1;
        if row.char(STATE) != state_code(OpenState::InFlight) {
            count.unknown += 1;
        } else if row.instant(LEASE_EXPIRES_AT).is_some_and(|at| at <= now) {
            count.overdue += 1;
        }
        ControlFlow::<()>::Continue(())
    });
    count
}

fn read(row: &Row<'_>) -> OpenRow {
    let claimed_at = row.instant(CLAIMED_AT).unwrap_or(Instant(0));
    OpenRow {
        open: OpenKey {
            state: if row.char(STATE) == b'f' {
                OpenState::InFlight
            } else {
                OpenState::Unknown
            },
            kind: kind_of(row.char(EFFECT_KIND)),
            prior: prior_of(row.char(PRIOR)),
            fence: row.int8(FENCE),
            attempt: row.int4(ATTEMPT),
            lease_expires_at: row.instant(LEASE_EXPIRES_AT),
            first_claimed_at: row.instant(FIRST_CLAIMED_AT).unwrap_or(claimed_at),
        },
        scope_id: row.int4(SCOPE_ID),
        key: row.text(KEY).unwrap_or_default(),
        args: StoredArgs {
            hash: row.bytes(ARGS_HASH),
            rule: row.int4(ARGS_RULE),
        },
        run: row.text(RUN),
        reason: row.text(REASON),
        prior_reason: row.text(PRIOR_REASON),
        claimed_at,
        claimed_by: row.oid(CLAIMED_BY).unwrap_or(Oid::INVALID),
        claimed_pid: row.int4(CLAIMED_PID),
        application_name: row.text(APPLICATION_NAME),
    }
}

fn write(digest: &[u8; 16], row: &OpenRow) -> Assignments {
    vec![
        (DIGEST, Value::Uuid(*digest)),
        (CLAIMED_AT, row.claimed_at.into()),
        (FIRST_CLAIMED_AT, row.open.first_claimed_at.into()),
        (LEASE_EXPIRES_AT, row.open.lease_expires_at.into()),
        (FENCE, row.open.fence.into()),
        (SCOPE_ID, row.scope_id.into()),
        (ATTEMPT, row.open.attempt.into()),
        (ARGS_RULE, row.args.rule.into()),
        (CLAIMED_PID, row.claimed_pid.into()),
        (CLAIMED_BY, row.claimed_by.into()),
        (STATE, Value::Char(state_code(row.open.state))),
        (EFFECT_KIND, Value::Char(kind_code(row.open.kind))),
        (PRIOR, Value::Char(prior_code(row.open.prior))),
        (KEY, row.key.as_str().into()),
        (ARGS_HASH, row.args.hash.clone().into()),
        (RUN, row.run.clone().into()),
        (REASON, row.reason.clone().into()),
        (PRIOR_REASON, row.prior_reason.clone().into()),
        (APPLICATION_NAME, row.application_name.clone().into()),
    ]
}

fn state_code(state: OpenState) -> u8 {
    match state {
        OpenState::InFlight => b'f',
        OpenState::Unknown => b'u',
    }
}

fn kind_code(kind: EffectKind) -> u8 {
    match kind {
        EffectKind::External => b'x',
        EffectKind::Keyed => b'k',
        EffectKind::Local => b'l',
    }
}

/// An unknown code is read as the kind that assumes least.
fn kind_of(code: u8) -> EffectKind {
    match code {
        b'k' => EffectKind::Keyed,
        b'l' => EffectKind::Local,
        _ => EffectKind::External,
    }
}

fn prior_code(prior: Prior) -> u8 {
    match prior {
        Prior::Nothing => b'-',
        Prior::NotApplied => b'n',
        Prior::Unknown => b'u',
        Prior::Expired => b'e',
    }
}

/// An unknown code is read as the one that assumes least.
fn prior_of(code: u8) -> Prior {
    match code {
        b'-' => Prior::Nothing,
        b'n' => Prior::NotApplied,
        b'e' => Prior::Expired,
        _ => Prior::Unknown,
    }
}
