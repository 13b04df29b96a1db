//! `idempotency.prune_progress`: how far pruning has come in each scope. A hint, and never needed to be right.

use crate::error::Error;
use crate::pg::table::{Access, Definition, Mode, Row, Snapshot, Table, Type};
use crate::pg::table_write::Assignments;
use crate::pg::time_limit::Runner;
use crate::store::outcome::{CURSOR_START, Cursor};
use idempotency_core::time::Instant;
use std::ops::ControlFlow;

static DEFINITION: Definition = Definition {
    slot: 9,
    name: "prune_progress",
    c_name: c"prune_progress",
    columns: &[
        (c"scope_id", Type::Int4),
        (c"pass_began_at", Type::Timestamp),
        (c"finished_at", Type::Timestamp),
        (c"place", Type::Int8),
        (c"frontier", Type::Timestamp),
        (c"at_end", Type::Bool),
        (c"skipped_from", Type::Timestamp),
        (c"retry_at", Type::Timestamp),
        (c"tombstones_from", Type::Timestamp),
    ],
};

const SCOPE_ID: usize = 0;

/// A row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// When the pass began at the first outcome.
    pub pass_began_at: Instant,
    /// The pass goes on behind this.
    pub cursor: Cursor,
    /// The farthest that any pass came.
    pub frontier: Instant,
    /// The first outcome that was due and could not be pruned in this pass.
    pub skipped_from: Option<Instant>,
    /// Not before this does a pass go back to it.
    pub retry_at: Option<Instant>,
    /// Nothing was due behind the cursor when it was written.
    pub at_end: bool,
    /// Tombstones of before this were looked at in this pass.
    pub tombstones_from: Option<Instant>,
}

impl Progress {
    /// Where the next pass begins: at what the last one could not prune, else behind the cursor.
    pub fn next_pass(self, now: Instant, runner: Runner) -> Progress {
        // Who sweeps by hand wants it now; the worker comes by all the time.
        let is_time = runner == Runner::Session || self.retry_at.is_none_or(|at| at <= now);
        let may_retry = self.at_end && is_time;
        match self.skipped_from.filter(|_| may_retry) {
            Some(finished_at) => Progress {
                cursor: Cursor {
                    finished_at,
                    ..CURSOR_START
                },
                skipped_from: None,
                retry_at: None,
                ..self
            },
            None => self,
        }
    }
}

/// The row of this scope.
pub fn find(scope_id: i32) -> Result<Option<Progress>, Error> {
    let table = Table::open(&DEFINITION, Mode::Read)?;
    let key = [(SCOPE_ID, scope_id.into())];
    let found = table.scan(&Access::PrimaryKey(&key), Snapshot::Now, |row| {
        ControlFlow::Break(read(row))
    });
    table.close();
    Ok(found)
}

/// Writes the row of this scope. Call under the lock of its pruning.
pub fn put(scope_id: i32, progress: &Progress) -> Result<(), Error> {
    let table = Table::open(&DEFINITION, Mode::Write)?;
    let key = [(SCOPE_ID, scope_id.into())];
    super::put(&table, &key, write(scope_id, progress))?;
    table.keep();
    Ok(())
}

fn read(row: &Row<'_>) -> Progress {
    let place = row.int8(3).unsigned_abs();
    Progress {
        pass_began_at: row.instant(1).unwrap_or(Instant(0)),
        cursor: Cursor {
            finished_at: row.instant(2).unwrap_or(CURSOR_START.finished_at),
            place: (
                u32::try_from(place >> 16).unwrap_or(0),
                u16::try_from(place & 0xffff).unwrap_or(0),
            ),
        },
        frontier: row.instant(4).unwrap_or(CURSOR_START.finished_at),
        at_end: row.bool(5).unwrap_or(false),
        skipped_from: row.instant(6),
        retry_at: row.instant(7),
        tombstones_from: row.instant(8),
    }
}

fn write(scope_id: i32, progress: &Progress) -> Assignments {
    let (block, offset) = progress.cursor.place;
    let place = (i64::from(block) << 16) | i64::from(offset);
    vec![
        (SCOPE_ID, scope_id.into()),
        (1, progress.pass_began_at.into()),
        (2, progress.cursor.finished_at.into()),
        (3, place.into()),
        (4, progress.frontier.into()),
        (5, progress.at_end.into()),
        (6, progress.skipped_from.into()),
        (7, progress.retry_at.into()),
        (8, progress.tombstones_from.into()),
    ]
}
