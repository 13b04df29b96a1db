//! `idempotency.outcome`: finished keys.

use super::{DIGEST, StoredArgs};
use crate::error::Error;
use crate::pg::jsonb::Jsonb;
use crate::pg::table::{Access, Compare, Definition, Direction, Row, Snapshot, Table, Type};
use crate::pg::table_write::Assignments;
use crate::pg::value::Value;
use idempotency_core::decide::{FinishedKey, FinishedState};
use idempotency_core::time::Instant;
use idempotency_core::window::Run;
use pgrx::pg_sys::Oid;
use std::ffi::CStr;
use std::ops::ControlFlow;

pub static DEFINITION: Definition = Definition {
    slot: 1,
    name: "outcome",
    c_name: c"outcome",
    columns: &[
        (c"digest", Type::Uuid),
        (c"finished_at", Type::Timestamp),
        (c"fence", Type::Int8),
        (c"scope_id", Type::Int4),
        (c"attempt", Type::Int4),
        (c"args_rule", Type::Int4),
        (c"state", Type::Char),
        (c"key", Type::Text),
        (c"args_hash", Type::Bytes),
        (c"result", Type::Jsonb),
        (c"reason", Type::Text),
        (c"run", Type::Text),
        (c"claimed_at", Type::Timestamp),
        (c"claimed_by", Type::Role),
        (c"prior_reason", Type::Text),
        (c"payload", Type::Jsonb),
    ],
};

const FINISHED_AT: usize = 1;
const FENCE: usize = 2;
const SCOPE_ID: usize = 3;
const ATTEMPT: usize = 4;
const ARGS_RULE: usize = 5;
const STATE: usize = 6;
const KEY: usize = 7;
const ARGS_HASH: usize = 8;
const RESULT: usize = 9;
const REASON: usize = 10;
const RUN: usize = 11;
const CLAIMED_AT: usize = 12;
const CLAIMED_BY: usize = 13;
const PRIOR_REASON: usize = 14;
const PAYLOAD: usize = 15;

const BY_RUN: &CStr = c"outcome_run_index";
const BY_AGE: &CStr = c"outcome_scope_id_finished_at_index";

/// A row.
#[derive(Clone)]
pub struct OutcomeRow {
    pub finished: FinishedKey,
    pub scope_id: i32,
    pub key: String,
    pub args: StoredArgs,
    pub result: Option<Jsonb>,
    pub reason: Option<String>,
    pub run: Option<String>,
    /// When the lease was claimed, and by whom; none for a transactional claim.
    pub claimed_at: Option<Instant>,
    pub claimed_by: Option<Oid>,
    /// Where a lease expired: the reason of the attempt before.
    pub prior_reason: Option<String>,
    /// Of a message whose scope keeps payloads.
    pub payload: Option<Jsonb>,
}

/// How far a pass over a scope's outcomes has come: time, then place among equal times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    pub finished_at: Instant,
    pub place: (u32, u16),
}

/// Before the first outcome.
pub const CURSOR_START: Cursor = Cursor {
    finished_at: Instant(i64::MIN),
    place: (0, 0),
};

/// The row of this key.
pub fn find(table: &Table, digest: &[u8; 16], snapshot: Snapshot) -> Option<OutcomeRow> {
    super::find(table, digest, snapshot, read)
}

/// Whether the row is there to stay: no transaction that has not ended removes it.
pub fn stays(table: &Table, digest: &[u8; 16]) -> bool {
    super::find(table, digest, Snapshot::Now, |row| !row.is_leaving()).unwrap_or(false)
}

/// Inserts the row.
pub(super) fn insert(table: &Table, digest: &[u8; 16], row: &OutcomeRow) -> Result<(), Error> {
    table.insert(write(digest, row))
}

/// Writes over the row of this key.
pub(super) fn replace(table: &Table, digest: &[u8; 16], row: &OutcomeRow) -> Result<(), Error> {
    super::replace(table, digest, write(digest, row))
}

/// An outcome that may be due.
pub struct Candidate {
    pub digest: [u8; 16],
    pub at: Cursor,
    pub run: Option<String>,
}

/// Outcomes of a scope finished up to `until`, in order from after `from`, at most `limit`.
pub fn finished_until(
    table: &Table,
    scope_id: i32,
    from: Cursor,
    until: Instant,
    limit: usize,
) -> Vec<Candidate> {
    let mut found = Vec::new();
    let access = Access::Ordered {
        index: BY_AGE,
        conditions: &[
            (SCOPE_ID, Compare::Equal, scope_id.into()),
            (FINISHED_AT, Compare::AtLeast, from.finished_at.into()),
        ],
        direction: Direction::Forward,
    };
    // What a scan passes by, later ones begin behind: it sees a transaction as a whole or not at all.
    table.scan(&access, Snapshot::Latest, |row| {
        let cursor = Cursor {
            finished_at: row.instant(FINISHED_AT).unwrap_or(Instant(0)),
            place: row.place(),
        };
        if cursor.finished_at > until || found.len() >= limit {
            return ControlFlow::Break(());
        }
        if cursor > from {
            found.push(Candidate {
                digest: row.uuid(DIGEST),
                at: cursor,
                run: row.text(RUN),
            });
        }
        ControlFlow::Continue(())
    });
    found
}

/// Whether an outcome names this run.
pub fn any_of_run(table: &Table, run: &str) -> bool {
    let of_run = Access::Ordered {
        index: BY_RUN,
        conditions: &[(RUN, Compare::Equal, run.into())],
        direction: Direction::Forward,
    };
    super::look(|snapshot| table.scan(&of_run, snapshot, |_| ControlFlow::Break(()))).is_some()
}

/// Whether the scope has a row.
pub fn any_of_scope(table: &Table, scope_id: i32, snapshot: Snapshot) -> bool {
    let all = Access::Ordered {
        index: BY_AGE,
        conditions: &[(SCOPE_ID, Compare::Equal, scope_id.into())],
        direction: Direction::Forward,
    };
    table
        .scan(&all, snapshot, |_| ControlFlow::Break(()))
        .is_some()
}

fn read(row: &Row<'_>) -> OutcomeRow {
    OutcomeRow {
        finished: FinishedKey {
            state: state_of(row.char(STATE)),
            fence: row.int8(FENCE),
            attempt: row.int4(ATTEMPT),
            finished_at: row.instant(FINISHED_AT).unwrap_or(Instant(0)),
            // Another table knows.
            run: Run::None,
        },
        scope_id: row.int4(SCOPE_ID),
        key: row.text(KEY).unwrap_or_default(),
        args: StoredArgs {
            hash: row.bytes(ARGS_HASH),
            rule: row.int4(ARGS_RULE),
        },
        result: row.jsonb(RESULT),
        reason: row.text(REASON),
        run: row.text(RUN),
        claimed_at: row.instant(CLAIMED_AT),
        claimed_by: row.oid(CLAIMED_BY),
        prior_reason: row.text(PRIOR_REASON),
        payload: row.jsonb(PAYLOAD),
    }
}

fn write(digest: &[u8; 16], row: &OutcomeRow) -> Assignments {
    vec![
        (DIGEST, Value::Uuid(*digest)),
        (FINISHED_AT, row.finished.finished_at.into()),
        (FENCE, row.finished.fence.into()),
        (SCOPE_ID, row.scope_id.into()),
        (ATTEMPT, row.finished.attempt.into()),
        (ARGS_RULE, row.args.rule.into()),
        (STATE, Value::Char(state_code(row.finished.state))),
        (KEY, row.key.as_str().into()),
        (ARGS_HASH, row.args.hash.clone().into()),
        (RESULT, row.result.into()),
        (REASON, row.reason.clone().into()),
        (RUN, row.run.clone().into()),
        (CLAIMED_AT, row.claimed_at.into()),
        (CLAIMED_BY, row.claimed_by.into()),
        (PRIOR_REASON, row.prior_reason.clone().into()),
        (PAYLOAD, row.payload.into()),
    ]
}

fn state_code(state: FinishedState) -> u8 {
    match state {
        FinishedState::Completed => b'c',
        FinishedState::Rejected => b'r',
        FinishedState::NotApplied => b'n',
        FinishedState::LeaseExpired => b'e',
    }
}

/// An unknown code is read as completed: nothing is executed again on a guess.
fn state_of(code: u8) -> FinishedState {
    match code {
        b'r' => FinishedState::Rejected,
        b'n' => FinishedState::NotApplied,
        b'e' => FinishedState::LeaseExpired,
        _ => FinishedState::Completed,
    }
}
