//! Rows in and out of our tables, one file per table. The only place that knows how rows are reached (today
//! directly, by primary key) and what their columns are.

pub mod claim;
pub mod event;
pub mod horizon;
pub mod message;
pub mod observed;
pub mod outcome;
pub mod progress;
pub mod run;
pub mod scope;
pub mod tombstone;

use crate::error::Error;
use crate::pg::table::{Access, Mode, Row, Snapshot, Table};
use crate::pg::table_write::{Assignments, BESIDE_THE_LOCK};
use crate::pg::value::Value;
use claim::OpenRow;
use outcome::OutcomeRow;
use std::ops::ControlFlow;

/// Replaces the row of this primary key, or inserts it.
fn put(table: &Table, key: &[(usize, Value)], values: Assignments) -> Result<(), Error> {
    let replaced = table.scan(&Access::PrimaryKey(key), Snapshot::Now, |old| {
        ControlFlow::Break(table.update(old, values.clone()))
    });
    match replaced {
        Some(replaced) => replaced,
        None => table.insert(values),
    }
}

/// What is committed now, and our own writes, for who does not hold the lock of the row's writers. Of a row that is not
/// there no version is found; of one that was missed, the old one. Then an MVCC snapshot knows, which takes predicate locks.
fn look<T>(look: impl Fn(Snapshot) -> Option<T>) -> Option<T> {
    look(Snapshot::Now).or_else(|| {
        look(Snapshot::Every)?;
        look(Snapshot::Latest)
    })
}

/// The digest's column in the tables that have one: their primary key.
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

/// Where a key's record stands: in one table at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    Nowhere,
    InClaim,
    InOutcome,
}

/// Writing a key's record in place of what stands. Call under the key's lock, with where it stands by a look
/// under the same lock. The only way in and out of the two tables, so a digest is in one of them at most.
impl KeyTables {
    /// The key is open from now on.
    pub fn write_open(
        &self,
        digest: &[u8; 16],
        row: &OpenRow,
        stands: Stands,
    ) -> Result<(), Error> {
        match stands {
            Stands::Nowhere => claim::insert(&self.claim, digest, row),
            Stands::InClaim => claim::replace(&self.claim, digest, row),
            Stands::InOutcome => {
                remove(&self.outcome, digest)?;
                claim::insert(&self.claim, digest, row)
            }
        }
    }

    /// The key is finished from now on.
    pub fn write_finished(
        &self,
        digest: &[u8; 16],
        row: &OutcomeRow,
        stands: Stands,
    ) -> Result<(), Error> {
        match stands {
            Stands::Nowhere => outcome::insert(&self.outcome, digest, row),
            Stands::InOutcome => outcome::replace(&self.outcome, digest, row),
            Stands::InClaim => {
                remove(&self.claim, digest)?;
                outcome::insert(&self.outcome, digest, row)
            }
        }
    }

    /// The key has no record from now on.
    pub fn erase(&self, digest: &[u8; 16], stands: Stands) -> Result<(), Error> {
        match stands {
            Stands::Nowhere => Ok(()),
            Stands::InClaim => remove(&self.claim, digest),
            Stands::InOutcome => remove(&self.outcome, digest),
        }
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

/// Writes over the key's row.
fn replace(table: &Table, digest: &[u8; 16], values: Assignments) -> Result<(), Error> {
    let mut values = Some(values);
    table
        .scan(
            &Access::PrimaryKey(&by_digest(digest)),
            Snapshot::Now,
            |old| ControlFlow::Break(table.update(old, values.take().unwrap_or_default())),
        )
        .unwrap_or(Err(Error::Serialization {
            place: None,
            detail: BESIDE_THE_LOCK,
        }))
}

/// Removes the key's row, if there is one.
fn remove(table: &Table, digest: &[u8; 16]) -> Result<(), Error> {
    table
        .scan(
            &Access::PrimaryKey(&by_digest(digest)),
            Snapshot::Now,
            |row| ControlFlow::Break(table.delete(row)),
        )
        .unwrap_or(Ok(()))
}
