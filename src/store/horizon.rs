//! `idempotency.prune_horizon`: up to when of each scope's outcomes may be gone. Unlike how far pruning has come it must
//! be right: it is committed with what is pruned, and part of dumps.

use crate::error::Error;
use crate::pg::table::{Access, Definition, Mode, Snapshot, Table, Type};
use idempotency_core::time::Instant;
use std::ops::ControlFlow;

static DEFINITION: Definition = Definition {
    slot: 11,
    name: "prune_horizon",
    c_name: c"prune_horizon",
    columns: &[
        (c"scope_id", Type::Int4),
        (c"finished_until", Type::Timestamp),
    ],
};

const SCOPE_ID: usize = 0;
const FINISHED_UNTIL: usize = 1;

/// Outcomes of this scope that were finished up to then may have been pruned; none where none was.
pub fn find(scope_id: i32) -> Result<Option<Instant>, Error> {
    let Some(table) = open(Mode::Read)? else {
        return Ok(None);
    };
    let key = [(SCOPE_ID, scope_id.into())];
    let found = super::look(|snapshot| {
        table.scan(&Access::PrimaryKey(&key), snapshot, |row| {
            ControlFlow::Break(row.instant(FINISHED_UNTIL))
        })
    });
    table.close();
    Ok(found.flatten())
}

/// Writes it. Call under the lock of the scope's pruning, in the transaction that prunes.
pub fn put(scope_id: i32, finished_until: Instant) -> Result<(), Error> {
    let Some(table) = open(Mode::Write)? else {
        return Ok(());
    };
    let key = [(SCOPE_ID, scope_id.into())];
    let values = vec![
        (SCOPE_ID, scope_id.into()),
        (FINISHED_UNTIL, finished_until.into()),
    ];
    super::put(&table, &key, values)?;
    table.keep();
    Ok(())
}

/// Forgets a scope.
pub fn remove(scope_id: i32) -> Result<(), Error> {
    let Some(table) = open(Mode::Write)? else {
        return Ok(());
    };
    let key = [(SCOPE_ID, scope_id.into())];
    let removed = table.scan(&Access::PrimaryKey(&key), Snapshot::Now, |row| {
        ControlFlow::Break(table.delete(row))
    });
    table.keep();
    removed.unwrap_or(Ok(()))
}

/// None where the SQL objects are still those of version 0.1.0.
fn open(mode: Mode) -> Result<Option<Table>, Error> {
    match Table::open(&DEFINITION, mode) {
        Ok(table) => Ok(Some(table)),
        Err(Error::NotInstalled) => Ok(None),
        Err(error) => Err(error),
    }
}
