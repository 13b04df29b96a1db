//! What the tables say of a key, and whether this transaction's snapshot may speak of it.

use crate::engine::key::ScopedKey;
use crate::engine::runs;
use crate::error::Error;
use crate::pg::table::{Access, Snapshot};
use crate::pg::{server, snapshot};
use crate::policy::Scope;
use crate::store::claim::{self, OpenRow};
use crate::store::outcome::{self, OutcomeRow};
use crate::store::{self, KeyTables, Stands, StoredArgs, tombstone};
use idempotency_core::decide::{Found, OpenState};
use idempotency_core::time::Instant;

/// The record of a key.
#[derive(Clone)]
pub enum Record {
    Absent,
    Open(OpenRow),
    /// With what its run says.
    Finished(OutcomeRow),
    /// Its outcome is gone; its window ended then.
    Pruned(Instant),
}

impl Record {
    /// What `decide` takes.
    pub fn found(&self) -> Found {
        match self {
            Record::Absent => Found::Absent,
            Record::Open(row) => Found::Open(row.open),
            Record::Finished(row) => Found::Finished(row.finished),
            Record::Pruned(expired_at) => Found::Pruned(*expired_at),
        }
    }

    /// Which table has it.
    pub fn stands(&self) -> Stands {
        match self {
            Record::Absent | Record::Pruned(_) => Stands::Nowhere,
            Record::Open(_) => Stands::InClaim,
            Record::Finished(_) => Stands::InOutcome,
        }
    }

    /// The arguments on record.
    pub fn args(&self) -> Option<&StoredArgs> {
        match self {
            Record::Absent | Record::Pruned(_) => None,
            Record::Open(row) => Some(&row.args),
            Record::Finished(row) => Some(&row.args),
        }
    }

    /// Why the last attempt ended, for a key that nobody holds.
    pub fn last_reason(&self) -> Option<String> {
        match self {
            Record::Absent | Record::Pruned(_) => None,
            Record::Open(row) => match row.open.state {
                OpenState::InFlight => Some(LEASE_EXPIRED.to_owned()),
                OpenState::Unknown | OpenState::Escalated | OpenState::Queued => row.reason.clone(),
            },
            Record::Finished(row) => row.reason.clone(),
        }
    }
}

/// Reason of an attempt whose lease ended.
pub const LEASE_EXPIRED: &str = "lease expired";

/// Reads both tables, and for a finished key its run. Without the key's lock a row that is just moving may be missed.
pub fn probe(
    tables: &KeyTables,
    key: &ScopedKey,
    scope: &Scope,
    snapshot: Snapshot,
) -> Result<Record, Error> {
    let record = match outcome::find(&tables.outcome, &key.digest, snapshot) {
        Some(mut row) => {
            let finished_at = row.finished.finished_at;
            row.finished.run = runs::standing(row.run.as_deref(), finished_at, scope, snapshot)?;
            Record::Finished(row)
        }
        None => match claim::find(&tables.claim, &key.digest, snapshot) {
            Some(row) => Record::Open(row),
            None => pruned(key, scope, snapshot)?,
        },
    };
    let stored_key = match &record {
        Record::Absent | Record::Pruned(_) => return Ok(record),
        Record::Open(row) => &row.key,
        Record::Finished(row) => &row.key,
    };
    if *stored_key == key.key {
        return Ok(record);
    }
    Err(Error::bad_value(
        format!(
            "key {} has the digest of another key",
            crate::error::quoted(&key.key)
        ),
        "Choose another key; two keys with one 128-bit digest do not occur by chance.",
    ))
}

/// Of a key without a record: whether one is remembered.
fn pruned(key: &ScopedKey, scope: &Scope, snapshot: Snapshot) -> Result<Record, Error> {
    if scope.guard().is_none() {
        return Ok(Record::Absent);
    }
    Ok(tombstone::find(&key.digest, snapshot)?.map_or(Record::Absent, Record::Pruned))
}

/// In REPEATABLE READ and SERIALIZABLE, refuses to speak of what the transaction's snapshot does not see.
pub fn require_visible(tables: &KeyTables, key: &ScopedKey) -> Result<(), Error> {
    if !server::one_snapshot_per_transaction() {
        return Ok(());
    }
    let misses = snapshot::misses_a_change(
        &tables.outcome,
        &Access::PrimaryKey(&store::by_digest(&key.digest)),
    ) || snapshot::misses_a_change(
        &tables.claim,
        &Access::PrimaryKey(&store::by_digest(&key.digest)),
    );
    if misses {
        return Err(Error::Serialization {
            place: Some(key.place()),
            detail: "The key's record changed after this transaction's snapshot was taken.",
        });
    }
    Ok(())
}
