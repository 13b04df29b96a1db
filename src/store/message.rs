//! `idempotency.message`: the outbox. A row stands here exactly as long as its key is open and a message; what
//! changes of it is only when it is due.

use super::DIGEST;
use crate::error::Error;
use crate::pg::jsonb::Jsonb;
use crate::pg::table::{Access, Compare, Definition, Direction, Mode, Row, Snapshot, Table, Type};
use idempotency_core::time::Instant;
use pgrx::pg_sys::Oid;
use std::ffi::CStr;
use std::ops::ControlFlow;

static DEFINITION: Definition = Definition {
    slot: 5,
    name: "message",
    c_name: c"message",
    columns: &[
        (c"digest", Type::Uuid),
        (c"enqueued_at", Type::Timestamp),
        (c"due_at", Type::Timestamp),
        (c"position", Type::Int8),
        (c"scope_id", Type::Int4),
        (c"enqueued_by", Type::Role),
        (c"scope", Type::Text),
        (c"key", Type::Text),
        (c"destination", Type::Text),
        (c"ordering_key", Type::Text),
        (c"run", Type::Text),
        (c"payload", Type::Jsonb),
    ],
};

const ENQUEUED_AT: usize = 1;
const DUE_AT: usize = 2;
const POSITION: usize = 3;
const SCOPE_ID: usize = 4;
const ENQUEUED_BY: usize = 5;
const SCOPE: usize = 6;
const KEY: usize = 7;
const DESTINATION: usize = 8;
const ORDERING_KEY: usize = 9;
const RUN: usize = 10;
const PAYLOAD: usize = 11;

const BY_DUE: &CStr = c"message_due_index";
const BY_ORDER: &CStr = c"message_order_index";

/// Not due until somebody decides.
pub const NEVER: Instant = Instant(i64::MAX);

/// A row.
pub struct MessageRow {
    pub enqueued_at: Instant,
    pub due_at: Instant,
    pub position: i64,
    pub scope_id: i32,
    pub enqueued_by: Oid,
    pub scope: String,
    pub key: String,
    pub destination: String,
    pub ordering_key: Option<String>,
    pub run: Option<String>,
    pub payload: Jsonb,
}

/// A message that may be due.
#[derive(Clone)]
pub struct Candidate {
    pub digest: [u8; 16],
    pub key: String,
    pub due_at: Instant,
    /// Where the row stands, in index order among equal times.
    place: (u32, u16),
}

/// How far a look over what is due has come: time, then place among equal times.
pub type Cursor = (Instant, (u32, u16));

impl Candidate {
    pub fn cursor(&self) -> Cursor {
        (self.due_at, self.place)
    }
}

/// The table, open.
pub struct Messages(Table);

impl Messages {
    pub fn open(mode: Mode) -> Result<Messages, Error> {
        Ok(Messages(Table::open(&DEFINITION, mode)?))
    }

    /// Closes it and gives its lock back.
    pub fn close(self) {
        self.0.close();
    }

    /// Closes it; its lock stays to the end of the transaction.
    pub fn keep(self) {
        self.0.keep();
    }

    /// The message of this key.
    pub fn find(&self, digest: &[u8; 16]) -> Option<MessageRow> {
        super::find(&self.0, digest, Snapshot::Now, read).flatten()
    }

    pub fn insert(&self, digest: &[u8; 16], row: &MessageRow) -> Result<(), Error> {
        self.0.insert(vec![
            (DIGEST, (*digest).into()),
            (ENQUEUED_AT, row.enqueued_at.into()),
            (DUE_AT, row.due_at.into()),
            (POSITION, row.position.into()),
            (SCOPE_ID, row.scope_id.into()),
            (ENQUEUED_BY, row.enqueued_by.into()),
            (SCOPE, row.scope.as_str().into()),
            (KEY, row.key.as_str().into()),
            (DESTINATION, row.destination.as_str().into()),
            (ORDERING_KEY, row.ordering_key.clone().into()),
            (RUN, row.run.clone().into()),
            (PAYLOAD, row.payload.into()),
        ])
    }

    /// The message is due then.
    pub fn set_due(&self, digest: &[u8; 16], due_at: Instant) -> Result<(), Error> {
        super::replace(&self.0, digest, vec![(DUE_AT, due_at.into())])
    }

    pub fn remove(&self, digest: &[u8; 16]) -> Result<(), Error> {
        super::remove(&self.0, digest)
    }

    /// Messages without ordering key that are due, in order from after `from`, at most `limit`.
    pub fn due(
        &self,
        scope_id: i32,
        destination: &str,
        now: Instant,
        from: Option<Cursor>,
        limit: usize,
    ) -> Vec<Candidate> {
        let mut found = Vec::new();
        let access = Access::Ordered {
            index: BY_DUE,
            conditions: &[
                (SCOPE_ID, Compare::Equal, scope_id.into()),
                (DESTINATION, Compare::Equal, destination.into()),
                (
                    DUE_AT,
                    Compare::AtLeast,
                    from.map_or(Instant(i64::MIN), |(due_at, _)| due_at).into(),
                ),
            ],
            direction: Direction::Forward,
        };
        self.0.scan(&access, Snapshot::Now, |row| {
            let candidate = candidate(row);
            if candidate.due_at > now || found.len() >= limit {
                return ControlFlow::Break(());
            }
            if from.is_none_or(|from| candidate.cursor() > from) {
                found.push(candidate);
            }
            ControlFlow::Continue(())
        });
        found
    }

    /// The oldest unfinished message of each ordering key after `from`, at most `limit` of them, those that are not
    /// due included. Under one MVCC snapshot: a row that is just replaced must not make its successor look oldest.
    pub fn heads(
        &self,
        scope_id: i32,
        destination: &str,
        from: Option<&str>,
        limit: usize,
    ) -> Vec<(String, Candidate)> {
        let mut heads = Vec::new();
        let mut after = from.map(str::to_owned);
        while heads.len() < limit {
            let mut conditions = vec![
                (SCOPE_ID, Compare::Equal, scope_id.into()),
                (DESTINATION, Compare::Equal, destination.into()),
            ];
            if let Some(after) = &after {
                conditions.push((ORDERING_KEY, Compare::Greater, after.as_str().into()));
            }
            let access = Access::Ordered {
                index: BY_ORDER,
                conditions: &conditions,
                direction: Direction::Forward,
            };
            let head = self.0.scan(&access, Snapshot::Latest, |row| {
                ControlFlow::Break((row.text(ORDERING_KEY).unwrap_or_default(), candidate(row)))
            });
            let Some(head) = head else { break };
            after = Some(head.0.clone());
            heads.push(head);
        }
        heads
    }

    /// The position of the newest unfinished message of an ordering key. Call under its lock.
    pub fn newest_position(
        &self,
        scope_id: i32,
        destination: &str,
        ordering_key: &str,
    ) -> Option<i64> {
        let access = Access::Ordered {
            index: BY_ORDER,
            conditions: &[
                (SCOPE_ID, Compare::Equal, scope_id.into()),
                (DESTINATION, Compare::Equal, destination.into()),
                (ORDERING_KEY, Compare::Equal, ordering_key.into()),
            ],
            direction: Direction::Backward,
        };
        self.0.scan(&access, Snapshot::Latest, |row| {
            ControlFlow::Break(row.int8(POSITION))
        })
    }
}

fn candidate(row: &Row<'_>) -> Candidate {
    Candidate {
        digest: row.uuid(DIGEST),
        key: row.text(KEY).unwrap_or_default(),
        due_at: row.instant(DUE_AT).unwrap_or(NEVER),
        place: row.place(),
    }
}

fn read(row: &Row<'_>) -> Option<MessageRow> {
    Some(MessageRow {
        enqueued_at: row.instant(ENQUEUED_AT)?,
        due_at: row.instant(DUE_AT)?,
        position: row.int8(POSITION),
        scope_id: row.int4(SCOPE_ID),
        enqueued_by: row.oid(ENQUEUED_BY).unwrap_or(Oid::INVALID),
        scope: row.text(SCOPE)?,
        key: row.text(KEY)?,
        destination: row.text(DESTINATION)?,
        ordering_key: row.text(ORDERING_KEY),
        run: row.text(RUN),
        payload: row.jsonb(PAYLOAD)?,
    })
}
