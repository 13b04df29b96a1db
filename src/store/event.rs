//! `idempotency.event`: the trail of exceptions. Written beside the change that it tells of, never changed.

use crate::error::Error;
use crate::pg::jsonb::Jsonb;
use crate::pg::table::{Definition, Mode, Table, Type};
use idempotency_core::time::Instant;
use pgrx::pg_sys::Oid;

static DEFINITION: Definition = Definition {
    slot: 6,
    name: "event",
    c_name: c"event",
    // The id has a default and is not ours to give.
    columns: &[
        (c"happened_at", Type::Timestamp),
        (c"scope_id", Type::Int4),
        (c"key", Type::Text),
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

/// A row.
pub struct EventRow {
    pub happened_at: Instant,
    pub scope_id: i32,
    pub key: String,
    pub from_state: &'static str,
    pub to_state: &'static str,
    pub fence: i64,
    pub attempt: i32,
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
        (0, row.happened_at.into()),
        (1, row.scope_id.into()),
        (2, row.key.into()),
        (3, row.from_state.into()),
        (4, row.to_state.into()),
        (5, row.fence.into()),
        (6, row.attempt.into()),
        (7, row.role.into()),
        (8, row.pid.into()),
        (9, row.application_name.into()),
        (10, row.reason.into()),
        (11, row.evidence.into()),
    ])?;
    table.keep();
    Ok(())
}
