//! `idempotency.run`: runs that somebody has begun, and runs that a scope's `run_is_alive` found to be over.

use super::DIGEST;
use crate::error::Error;
use crate::pg::table::{Access, Definition, Mode, Row, Snapshot, Table, Type};
use crate::pg::table_write::Assignments;
use crate::pg::value::Value;
use idempotency_core::time::{Instant, Span};
use idempotency_core::window::{self, Run};
use pgrx::pg_sys::Oid;
use std::ops::ControlFlow;

static DEFINITION: Definition = Definition {
    slot: 8,
    name: "run",
    c_name: c"run",
    columns: &[
        (c"digest", Type::Uuid),
        (c"begun_at", Type::Timestamp),
        (c"seen_at", Type::Timestamp),
        (c"ended_at", Type::Timestamp),
        (c"owner", Type::Role),
        (c"scope_id", Type::Int4),
        (c"is_silent", Type::Bool),
        (c"longest_pause", Type::Interval),
        (c"run", Type::Text),
        (c"label", Type::Text),
    ],
};

/// A row.
#[derive(Clone, Debug)]
pub struct RunRow {
    pub begun_at: Instant,
    pub seen_at: Instant,
    pub ended_at: Option<Instant>,
    pub owner: Oid,
    /// Of a run that a scope's predicate found to be over.
    pub scope_id: Option<i32>,
    pub is_silent: bool,
    pub longest_pause: Span,
    pub run: String,
    pub label: Option<String>,
}

impl RunRow {
    /// When it is over unless it gives another sign of life.
    pub fn over_at(&self) -> Instant {
        window::run_over_at(self.seen_at, self.longest_pause)
    }

    /// What it says about the windows of its keys.
    pub fn standing(&self, now: Instant) -> Run {
        let silent = Some(self.over_at()).filter(|at| *at <= now);
        self.ended_at.or(silent).map_or(Run::Alive, Run::Ended)
    }
}

/// The table, open.
pub struct Runs(Table);

impl Runs {
    pub fn open(mode: Mode) -> Result<Runs, Error> {
        Table::open(&DEFINITION, mode).map(Runs)
    }

    pub fn close(self) {
        self.0.close();
    }

    pub fn keep(self) {
        self.0.keep();
    }

    /// The row of this digest.
    pub fn find(&self, digest: &[u8; 16], snapshot: Snapshot) -> Option<RunRow> {
        super::find(&self.0, digest, snapshot, read)
    }

    pub fn insert(&self, digest: &[u8; 16], row: &RunRow) -> Result<(), Error> {
        self.0.insert(write(digest, row))
    }

    /// Writes over the row of this digest.
    pub fn replace(&self, digest: &[u8; 16], row: &RunRow) -> Result<(), Error> {
        super::replace(&self.0, digest, write(digest, row))
    }

    pub fn remove(&self, digest: &[u8; 16]) -> Result<(), Error> {
        super::remove(&self.0, digest)
    }

    /// Rows in digest order from after `from`, at most `limit` of them.
    pub fn page(&self, from: [u8; 16], limit: usize) -> Vec<([u8; 16], RunRow)> {
        let mut page = Vec::new();
        self.0.scan(
            &Access::AfterPrimaryKey(DIGEST, from),
            Snapshot::Now,
            |row| {
                page.push((row.uuid(DIGEST), read(row)));
                if page.len() >= limit {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            },
        );
        page
    }
}

fn read(row: &Row<'_>) -> RunRow {
    RunRow {
        begun_at: row.instant(1).unwrap_or(Instant(0)),
        seen_at: row.instant(2).unwrap_or(Instant(0)),
        ended_at: row.instant(3),
        owner: row.oid(4).unwrap_or(Oid::INVALID),
        scope_id: row.optional_int4(5),
        is_silent: row.bool(6).unwrap_or(false),
        longest_pause: row
            .interval_us(7)
            .and_then(Span::from_us)
            .unwrap_or(Span::from_s(1)),
        run: row.text(8).unwrap_or_default(),
        label: row.text(9),
    }
}

fn write(digest: &[u8; 16], row: &RunRow) -> Assignments {
    vec![
        (DIGEST, Value::Uuid(*digest)),
        (1, row.begun_at.into()),
        (2, row.seen_at.into()),
        (3, row.ended_at.into()),
        (4, row.owner.into()),
        (5, row.scope_id.into()),
        (6, row.is_silent.into()),
        (7, Value::Interval(row.longest_pause.us())),
        (8, row.run.as_str().into()),
        (9, row.label.clone().into()),
    ]
}
