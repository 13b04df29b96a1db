//! The trail of exceptions: one event for each step into doubt, through it and out of it.

use crate::engine::key::ScopedKey;
use crate::error::Error;
use crate::pg::jsonb::Jsonb;
use crate::pg::{identity, server};
use crate::store::claim::OpenRow;
use crate::store::event::{self, EventRow};
use idempotency_core::decide::{FinishedState, OpenState};

pub const COMPLETED: &str = "completed";
pub const REJECTED: &str = "rejected";
pub const NOT_APPLIED: &str = "not_applied";
pub const ABSENT: &str = "absent";

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

/// Writes one step. `row` is the claim that the step ends or begins.
pub fn step(
    key: &ScopedKey,
    row: &OpenRow,
    (from_state, to_state): (&'static str, &'static str),
    reason: Option<String>,
    evidence: Option<Jsonb>,
) -> Result<(), Error> {
    event::insert(EventRow {
        happened_at: server::now(),
        scope_id: row.scope_id,
        key: key.key.clone(),
        from_state,
        to_state,
        fence: row.open.fence,
        attempt: row.open.attempt,
        role: identity::current_role(),
        pid: server::backend_pid(),
        application_name: server::application_name(),
        reason,
        evidence,
    })
}
