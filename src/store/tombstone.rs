//! `idempotency.tombstone`: keys that were pruned, remembered for as long as their scope's guard says.

use super::DIGEST;
use crate::error::Error;
use crate::pg::table::{Access, Compare, Definition, Direction, Mode, Snapshot, Table, Type};
use crate::pg::value::Value;
use idempotency_core::time::Instant;
use std::ffi::CStr;
use std::ops::ControlFlow;

static DEFINITION: Definition = Definition {
    slot: 7,
    name: "tombstone",
    c_name: c"tombstone",
    columns: &[
        (c"digest", Type::Uuid),
        (c"expired_at", Type::Timestamp),
        (c"scope_id", Type::Int4),
    ],
};

const EXPIRED_AT: usize = 1;
const SCOPE_ID: usize = 2;

const BY_AGE: &CStr = c"tombstone_scope_id_expired_at_index";

/// When the window of this key ended, where that is remembered.
pub fn find(digest: &[u8; 16], snapshot: Snapshot) -> Result<Option<Instant>, Error> {
    let table = Table::open(&DEFINITION, Mode::Read)?;
    let found = super::find(&table, digest, snapshot, |row| row.instant(EXPIRED_AT));
    table.close();
    Ok(found.flatten())
}

/// Remembers, or forgets, when the window of this key ended.
pub fn put(digest: &[u8; 16], scope_id: i32, expired_at: Option<Instant>) -> Result<(), Error> {
    let table = Table::open(&DEFINITION, Mode::Write)?;
    super::remove(&table, digest)?;
    if let Some(expired_at) = expired_at {
        table.insert(vec![
            (DIGEST, Value::Uuid(*digest)),
            (EXPIRED_AT, expired_at.into()),
            (SCOPE_ID, scope_id.into()),
        ])?;
    }
    table.keep();
    Ok(())
}

/// Tombstones of a scope, oldest first, whose window ended from `from` up to `until`, at most `limit`: each with when.
pub fn expired_within(
    scope_id: i32,
    from: Instant,
    until: Instant,
    limit: usize,
) -> Result<Vec<([u8; 16], Instant)>, Error> {
    let table = Table::open(&DEFINITION, Mode::Read)?;
    let mut found = Vec::new();
    let access = Access::Ordered {
        index: BY_AGE,
        conditions: &[
            (SCOPE_ID, Compare::Equal, scope_id.into()),
            (EXPIRED_AT, Compare::AtLeast, from.into()),
            (EXPIRED_AT, Compare::AtMost, until.into()),
        ],
        direction: Direction::Forward,
    };
    table.scan(&access, Snapshot::Latest, |row| {
        match row.instant(EXPIRED_AT) {
            Some(at) if at <= until && found.len() < limit => {
                found.push((row.uuid(DIGEST), at));
                ControlFlow::Continue(())
            }
            Some(_) | None => ControlFlow::Break(()),
        }
    });
    table.close();
    Ok(found)
}
