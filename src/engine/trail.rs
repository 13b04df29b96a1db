//! The trail of exceptions: one event for each step into doubt, through it and out of it.

use crate::engine::key::ScopedKey;
use crate::error::Error;
use crate::pg::jsonb::Jsonb;
use crate::pg::{identity, server};
use crate::store::claim::OpenRow;
use crate::store::event::{self, EventRow, Kind};
use crate::store::outcome::OutcomeRow;
use crate::store::run::RunRow;
use idempotency_core::decide::{FinishedState, OpenState};

pub const COMPLETED: &str = "completed";
pub const REJECTED: &str = "rejected";
pub const NOT_APPLIED: &str = "not_applied";
pub const ABSENT: &str = "absent";
/// Of a key of which only the end of its window is remembered.
pub const EXPIRED: &str = "expired";

/// A state as the views name it.
pub fn open_name(state: OpenState) -> &'static str {
    match state {
        OpenState::InFlight => "in_flight",
        OpenState::Unknown => "unknown",
        OpenState::Escalated => "escalated",
        OpenState::Queued => "queued",
    }
}

/// A state as the views name it.
pub fn finished_name(state: FinishedState) -> &'static str {
    match state {
        FinishedState::Completed => COMPLETED,
        FinishedState::Rejected => REJECTED,
        FinishedState::NotApplied | FinishedState::LeaseExpired => NOT_APPLIED,
    }
}

/// Writes what became of an open key: a step into doubt, through it or out of it, or that it was forgotten. `row` is the
/// claim that this ends or begins.
pub fn of_open(
    kind: Kind,
    row: &OpenRow,
    (from_state, to_state): (&'static str, &'static str),
    reason: Option<String>,
    evidence: Option<Jsonb>,
) -> Result<(), Error> {
    event::insert(EventRow {
        scope_id: Some(row.scope_id),
        key: Some(row.key.clone()),
        run: row.run.clone(),
        fence: Some(row.open.fence),
        attempt: Some(row.open.attempt),
        reason,
        evidence,
        ..bare(kind, from_state, to_state)
    })
}

/// Writes what became of a finished key: that it expired while its run lives, is done again, or was forgotten.
pub fn of_finished(
    kind: Kind,
    row: &OutcomeRow,
    to_state: &'static str,
    reason: Option<String>,
) -> Result<(), Error> {
    event::insert(EventRow {
        scope_id: Some(row.scope_id),
        key: Some(row.key.clone()),
        run: row.run.clone(),
        fence: Some(row.finished.fence),
        attempt: Some(row.finished.attempt),
        reason,
        ..bare(kind, finished_name(row.finished.state), to_state)
    })
}

/// Writes what became of a key of which no more is known.
pub fn of_key(
    kind: Kind,
    scope_id: i32,
    key: &ScopedKey,
    (from_state, to_state): (&'static str, &'static str),
    reason: Option<String>,
) -> Result<(), Error> {
    event::insert(EventRow {
        scope_id: Some(scope_id),
        key: Some(key.key.clone()),
        reason,
        ..bare(kind, from_state, to_state)
    })
}

/// Writes that a run fell silent.
pub fn run_silent(run: &RunRow) -> Result<(), Error> {
    event::insert(EventRow {
        run: Some(run.run.clone()),
        role: run.owner,
        reason: Some(format!(
            "no sign of life for {}",
            run.longest_pause.in_words()
        )),
        ..bare(Kind::RunSilent, "alive", "silent")
    })
}

/// An event of here and now.
fn bare(kind: Kind, from_state: &'static str, to_state: &'static str) -> EventRow {
    EventRow {
        happened_at: server::now(),
        kind,
        scope_id: None,
        key: None,
        run: None,
        from_state,
        to_state,
        fence: None,
        attempt: None,
        role: identity::current_role(),
        pid: server::backend_pid(),
        application_name: server::application_name(),
        reason: None,
        evidence: None,
    }
}
