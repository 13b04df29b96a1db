//! Rows in and out of our tables, one file per table. The only place that knows how rows are reached (today
//! directly, by primary key) and what their columns are.

pub mod claim;
pub mod outcome;
pub mod scope;

use crate::error::Error;
use crate::pg::table::{Mode, Table};

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
