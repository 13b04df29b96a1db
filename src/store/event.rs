//! `idempotency.event`: the trail of exceptions. Written beside the change that it tells of, never changed, pruned by age.

use crate::error::Error;
use crate::pg::jsonb::Jsonb;
use crate::pg::table::{Access, Compare, Definition, Direction, Mode, Snapshot, Table, Type};
use idempotency_core::time::Instant;
use pgrx::pg_sys::Oid;
use std::ffi::CStr;
use std::ops::ControlFlow;

static DEFINITION: Definition = Definition {
    slot: 6,
    name: "event",
    c_name: c"event",
    // The id has a default and is not ours to give.
    columns: &[
        (c"happened_at", Type::Timestamp),
        (c"kind", Type::Text),
        (c"scope_id", Type::Int4),
        (c"key", Type::Text),
        (c"run", Type::Text),
        (c"from_state", Type::Text),
        (c"to_state", Type::Text),
        (c"fence", Type::Int8),
        (c"attempt", Type::Int4),
        (c"role", Type::Role),
        (c"pid", Type::Int4),
        (c"application_name", Type::Text),
        (c"reason", Type::Text),
        (c"evidence", Type::Jsonb),
    ],
};

/// What an event tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A step into doubt, through it or out of it.
    Doubt,
    /// A key expired while its run lives.
    ExpiredAlive,
    /// A claim executes what was done before, after the window.
    LateRetry,
    /// A run gave no sign of life for its longest pause.
    RunSilent,
    /// An operator removed a record.
    Forgotten,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Doubt => "doubt",
            Kind::ExpiredAlive => "expired_alive",
            Kind::LateRetry => "late_retry",
            Kind::RunSilent => "run_silent",
            Kind::Forgotten => "forgotten",
        }
    }
}

/// A row.
pub struct EventRow {
    pub happened_at: Instant,
    pub kind: Kind,
    pub scope_id: Option<i32>,
    pub key: Option<String>,
    pub run: Option<String>,
    pub from_state: &'static str,
    pub to_state: &'static str,
    pub fence: Option<i64>,
    pub attempt: Option<i32>,
    pub role: Oid,
    pub pid: i32,
    pub application_name: Option<String>,
    pub reason: Option<String>,
    pub evidence: Option<Jsonb>,
}

/// Inserts the row.
pub fn insert(row: EventRow) -> Result<(), Error> {
    let table = Table::open(&DEFINITION, Mode::Write)?;
    table.insert(vec![
        (HAPPENED_AT, row.happened_at.into()),
        (1, row.kind.as_str().into()),
        (2, row.scope_id.into()),
        (3, row.key.into()),
        (4, row.run.into()),
        (5, row.from_state.into()),
        (6, row.to_state.into()),
        (7, row.fence.into()),
        (8, row.attempt.into()),
        (9, row.role.into()),
        (10, row.pid.into()),
        (11, row.application_name.into()),
        (12, row.reason.into()),
        (13, row.evidence.into()),
    ])?;
    table.keep();
    Ok(())
}

/// Removes events that happened before `until`, oldest first, at most `limit`: how many.
pub fn prune(until: Instant, limit: usize) -> Result<usize, Error> {
    let table = Table::open(&DEFINITION, Mode::Write)?;
    let mut removed = 0;
    let mut outcome = Ok(());
    let by_age = Access::Ordered {
        index: BY_AGE,
        conditions: &[(HAPPENED_AT, Compare::AtMost, until.into())],
        direction: Direction::Forward,
    };
    table.scan(&by_age, Snapshot::Now, |row| {
        let at = row.instant(HAPPENED_AT);
        let is_old = at.is_some_and(|at| at < until);
        if !is_old || removed >= limit {
            return ControlFlow::Break(());
        }
        outcome = table.delete(row);
        if outcome.is_err() {
            return ControlFlow::Break(());
        }
        removed += 1;
        ControlFlow::Continue(())
    });
    table.keep();
    outcome.map(|()| removed)
}

const HAPPENED_AT: usize = 0;

const BY_AGE: &CStr = c"event_happened_at_index";
