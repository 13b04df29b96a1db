//! `idempotency.claim`: open keys.

use super::{DIGEST, StoredArgs};
use crate::error::Error;
use crate::pg::jsonb::Jsonb;
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
        (c"is_message", Type::Bool),
        (c"tries", Type::Int4),
        (c"reconciles", Type::Int4),
        (c"in_doubt_since", Type::Timestamp),
        (c"retry_at", Type::Timestamp),
        (c"key", Type::Text),
        (c"args_hash", Type::Bytes),
        (c"run", Type::Text),
        (c"reason", Type::Text),
        (c"prior_reason", Type::Text),
        (c"application_name", Type::Text),
        (c"evidence", Type::Jsonb),
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
const IS_MESSAGE: usize = 13;
const TRIES: usize = 14;
const RECONCILES: usize = 15;
const IN_DOUBT_SINCE: usize = 16;
const RETRY_AT: usize = 17;
const KEY: usize = 18;
const ARGS_HASH: usize = 19;
const RUN: usize = 20;
const REASON: usize = 21;
const PRIOR_REASON: usize = 22;
const APPLICATION_NAME: usize = 23;
const EVIDENCE: usize = 24;

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
    /// Since when it is in doubt, through claims that were told to reconcile.
    pub in_doubt_since: Option<Instant>,
    /// Not delivered or reconciled by the worker before.
    pub retry_at: Option<Instant>,
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

/// Replaces the evidence of an open key.
pub fn set_evidence(table: &Table, digest: &[u8; 16], evidence: Jsonb) -> Result<(), Error> {
    super::replace(table, digest, vec![(EVIDENCE, evidence.into())])
}

/// Digests from after `from`, at most `limit`, whose outcome is unknown and due to be read again.
/// The second value tells whether the table was read to its end.
pub fn due_unknown(
    table: &Table,
    from: [u8; 16],
    limit: usize,
    now: Instant,
) -> (Vec<(i32, String, [u8; 16])>, bool) {
    let mut found = Vec::new();
    let full = table.scan(
        &Access::AfterPrimaryKey(DIGEST, from),
        Snapshot::Now,
        |row| {
            let due = row.instant(RETRY_AT).is_none_or(|at| at <= now);
            if row.char(STATE) == state_code(OpenState::Unknown) && due {
                let key = row.text(KEY).unwrap_or_default();
                found.push((row.int4(SCOPE_ID), key, row.uuid(DIGEST)));
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
    pub escalated: u64,
    pub queued: u64,
}

/// Counts the rows.
pub fn count(table: &Table, snapshot: Snapshot, now: Instant) -> OpenCount {
    let mut count = OpenCount::default();
    table.scan(&Access::Sequential, snapshot, |row| {
        count.open += 1;
        match state_of(row.char(STATE)) {
            OpenState::Unknown => count.unknown += 1,
            OpenState::Escalated => count.escalated += 1,
            OpenState::Queued => count.queued += 1,
            OpenState::InFlight => {
                let overdue = row.instant(LEASE_EXPIRES_AT).is_some_and(|at| at <= now);
                count.overdue += u64::from(overdue);
            }
        }
        ControlFlow::<()>::Continue(())
    });
    count
}

fn read(row: &Row<'_>) -> OpenRow {
    let claimed_at = row.instant(CLAIMED_AT).unwrap_or(Instant(0));
    OpenRow {
        open: OpenKey {
            state: state_of(row.char(STATE)),
            kind: kind_of(row.char(EFFECT_KIND)),
            prior: prior_of(row.char(PRIOR)),
            fence: row.int8(FENCE),
            attempt: row.int4(ATTEMPT),
            lease_expires_at: row.instant(LEASE_EXPIRES_AT),
            first_claimed_at: row.instant(FIRST_CLAIMED_AT).unwrap_or(claimed_at),
            message: row.bool(IS_MESSAGE).unwrap_or(false),
            tries: row.int4(TRIES),
            reconciles: row.int4(RECONCILES),
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
        in_doubt_since: row.instant(IN_DOUBT_SINCE),
        retry_at: row.instant(RETRY_AT),
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
        (IS_MESSAGE, row.open.message.into()),
        (TRIES, row.open.tries.into()),
        (RECONCILES, row.open.reconciles.into()),
        (IN_DOUBT_SINCE, row.in_doubt_since.into()),
        (RETRY_AT, row.retry_at.into()),
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
        OpenState::Escalated => b'e',
        OpenState::Queued => b'q',
    }
}

/// An unknown code is read as the state that assumes least.
fn state_of(code: u8) -> OpenState {
    match code {
        b'f' => OpenState::InFlight,
        b'e' => OpenState::Escalated,
        b'q' => OpenState::Queued,
        _ => OpenState::Unknown,
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
