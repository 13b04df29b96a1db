//! Rows in and out of our tables, one file per table. The only place that knows how rows are reached (today
//! directly, by primary key) and what their columns are.

pub mod claim;
pub mod outcome;
pub mod scope;

use crate::error::Error;
use crate::pg::table::{Access, Mode, Row, Snapshot, Table};
use crate::pg::table_write::Assignments;
use crate::pg::value::Value;
use std::ops::ControlFlow;

/// The digest's column in both key tables: their primary key.
const DIGEST: usize = 0;

/// The two tables that hold keys, open.
pub struct KeyTables {
    pub claim: Table,
    pub outcome: Table,
}

impl KeyTables {
    /// Opens both. Whoever is told `execute` or writes keeps them open to the end of the transaction:
    /// released early, a concurrent index build would miss the row still to come.
    pub fn open(mode: Mode) -> Result<KeyTables, Error> {
        Ok(KeyTables {
            claim: Table::open(&claim::DEFINITION, mode)?,
            outcome: Table::open(&outcome::DEFINITION, mode)?,
        })
    }

    /// Closes both and gives their locks back.
    pub fn close(self) {
        self.claim.close();
        self.outcome.close();
    }

    /// Closes both; their locks stay to the end of the transaction.
    pub fn keep(self) {
        self.claim.keep();
        self.outcome.keep();
    }
}

/// The arguments of a key as they were stored: the hash and the rule that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredArgs {
    pub hash: Option<Vec<u8>>,
    pub rule: i32,
}

/// The way to a key's row.
pub fn by_digest(digest: &[u8; 16]) -> [(usize, Value); 1] {
    [(DIGEST, Value::Uuid(*digest))]
}

/// The key's row, read by `read`.
fn find<T>(
    table: &Table,
    digest: &[u8; 16],
    snapshot: Snapshot,
    read: fn(&Row<'_>) -> T,
) -> Option<T> {
    table.scan(&Access::PrimaryKey(&by_digest(digest)), snapshot, |row| {
        ControlFlow::Break(read(row))
    })
}

/// Writes the key's row, in place of the one that stands there. Call under the key's lock.
fn put(table: &Table, digest: &[u8; 16], write: impl Fn() -> Assignments) -> Result<(), Error> {
    table
        .scan(
            &Access::PrimaryKey(&by_digest(digest)),
            Snapshot::Now,
            |old| ControlFlow::Break(table.update(old, write())),
        )
        .unwrap_or_else(|| table.insert(write()))
}

/// Removes the key's row, if there is one. Call under the key's lock.
fn remove(table: &Table, digest: &[u8; 16]) -> Result<(), Error> {
    table
        .scan(
            &Access::PrimaryKey(&by_digest(digest)),
            Snapshot::Now,
            |row| ControlFlow::Break(table.delete(row)),
        )
        .unwrap_or(Ok(()))
}
