//! `idempotency.run` and `run_sign`: runs that somebody has begun, with their signs of life, and runs that a scope's
//! `run_is_alive` found to be over.

use super::DIGEST;
use crate::error::Error;
use crate::pg::server;
use crate::pg::table::{Access, Compare, Definition, Direction, Mode, Row, Snapshot, Table, Type};
use crate::pg::table_write::Assignments;
use crate::pg::value::Value;
use idempotency_core::time::{Instant, Span};
use idempotency_core::window::{self, Run};
use pgrx::pg_sys::Oid;
use std::ffi::CStr;
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

static SIGN: Definition = Definition {
    slot: 10,
    name: "run_sign",
    c_name: c"run_sign",
    columns: &[
        (c"digest", Type::Uuid),
        (c"seen_at", Type::Timestamp),
        (c"pid", Type::Int4),
    ],
};

const SIGN_SEEN_AT: usize = 1;
const SIGN_BY_TIME: &CStr = c"run_sign_digest_seen_at_pid_pkey";

/// A row, its signs of life taken in.
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

    /// With another sign of life.
    fn seen(self, at: Option<Instant>) -> RunRow {
        RunRow {
            seen_at: at.map_or(self.seen_at, |at| at.max(self.seen_at)),
            ..self
        }
    }

    /// What it says about the windows of its keys.
    pub fn standing(&self, now: Instant) -> Run {
        // That it fell silent was seen by some clock: a sign of life, and a clock that is right again, say otherwise.
        let ended_at = self.ended_at.filter(|_| !self.is_silent);
        let silent = Some(self.over_at()).filter(|at| *at <= now);
        ended_at.or(silent).map_or(Run::Alive, Run::Ended)
    }
}

/// Both tables, open.
pub struct Runs {
    runs: Table,
    signs: Table,
}

impl Runs {
    pub fn open(mode: Mode) -> Result<Runs, Error> {
        Ok(Runs {
            runs: Table::open(&DEFINITION, mode)?,
            signs: Table::open(&SIGN, mode)?,
        })
    }

    pub fn close(self) {
        self.runs.close();
        self.signs.close();
    }

    pub fn keep(self) {
        self.runs.keep();
        self.signs.keep();
    }

    /// The row of this digest, whether or not its lock is held.
    pub fn find(&self, digest: &[u8; 16], snapshot: Snapshot) -> Option<RunRow> {
        // Before the row, which takes them in.
        let signed_at = self.last_sign(digest, snapshot);
        let find = |snapshot| super::find(&self.runs, digest, snapshot, read);
        let row = match snapshot {
            Snapshot::Now => super::look(find),
            Snapshot::Every | Snapshot::Statement | Snapshot::Latest => find(snapshot),
        }?;
        Some(row.seen(signed_at))
    }

    fn last_sign(&self, digest: &[u8; 16], snapshot: Snapshot) -> Option<Instant> {
        let newest_first = Access::Ordered {
            index: SIGN_BY_TIME,
            conditions: &[(DIGEST, Compare::Equal, Value::Uuid(*digest))],
            direction: Direction::Backward,
        };
        let sign = self.signs.scan(&newest_first, snapshot, |sign| {
            ControlFlow::Break(sign.instant(SIGN_SEEN_AT))
        });
        sign.flatten()
    }

    pub fn insert(&self, digest: &[u8; 16], row: &RunRow) -> Result<(), Error> {
        self.runs.insert(write(digest, row))
    }

    /// Writes over the row of this digest.
    pub fn replace(&self, digest: &[u8; 16], row: &RunRow) -> Result<(), Error> {
        super::replace(&self.runs, digest, write(digest, row))
    }

    pub fn remove(&self, digest: &[u8; 16]) -> Result<(), Error> {
        super::remove(&self.runs, digest)?;
        self.remove_signs(digest).map(|_| ())
    }

    /// Records a sign of life. Waits for nobody, and nobody waits for it.
    pub fn sign(&self, digest: &[u8; 16], now: Instant) -> Result<(), Error> {
        self.signs.insert(vec![
            (DIGEST, Value::Uuid(*digest)),
            (SIGN_SEEN_AT, now.into()),
            (2, server::backend_pid().into()),
        ])
    }

    /// Removes the signs of a run that can be seen now; the row with the newest of them.
    pub fn take_signs(&self, digest: &[u8; 16], row: RunRow) -> Result<RunRow, Error> {
        Ok(row.seen(self.remove_signs(digest)?))
    }

    /// Removes them; gives back the newest.
    fn remove_signs(&self, digest: &[u8; 16]) -> Result<Option<Instant>, Error> {
        let of_run = Access::PrimaryKey(&[(DIGEST, Value::Uuid(*digest))]);
        let mut newest = None;
        let failed = self.signs.scan(&of_run, Snapshot::Now, |sign| {
            newest = newest.max(sign.instant(SIGN_SEEN_AT));
            match self.signs.delete(sign) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => ControlFlow::Break(error),
            }
        });
        failed.map_or(Ok(newest), Err)
    }

    /// Whether a run has signs that its row has not taken in.
    pub fn any_sign(&self, digest: &[u8; 16]) -> bool {
        let of_run = Access::PrimaryKey(&[(DIGEST, Value::Uuid(*digest))]);
        self.signs
            .scan(&of_run, Snapshot::Now, |_| ControlFlow::Break(()))
            .is_some()
    }

    /// Rows in digest order from after `from`, at most `limit` of them.
    pub fn page(&self, from: [u8; 16], limit: usize) -> Vec<([u8; 16], RunRow)> {
        let mut page = Vec::new();
        let access = Access::AfterPrimaryKey(DIGEST, from);
        self.runs.scan(&access, Snapshot::Now, |row| {
            page.push((row.uuid(DIGEST), read(row)));
            if page.len() >= limit {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
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
