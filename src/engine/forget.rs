//! Forgetting a key: an operator removes its record, and its operation is free from then on. An event says who did it.

use crate::engine::finish;
use crate::engine::key::ScopedKey;
use crate::engine::open_claims;
use crate::engine::record::{self, Record};
use crate::engine::trail;
use crate::error::Error;
use crate::pg::lock::KeyLock;
use crate::pg::table::{Mode, Snapshot};
use crate::policy;
use crate::store::event::Kind;
use crate::store::message::Messages;
use crate::store::{KeyTables, tombstone};

/// Removes what is known of a key; gives back the state it was in.
pub fn forget(key: &ScopedKey, force: bool) -> Result<&'static str, Error> {
    let tables = KeyTables::open(Mode::Write)?;
    let scope = policy::operated(&key.scope)?;
    let _kept = KeyLock::acquire(&key.digest);
    if open_claims::transactional(&key.digest).is_some() {
        return Err(Error::ClaimedHere(key.place()));
    }
    let record = record::probe(&tables, key, &scope, Snapshot::Now)?;
    record::require_visible(&tables, key)?;
    let state = match &record {
        Record::Absent => trail::ABSENT,
        Record::Pruned(_) => {
            let names = (trail::EXPIRED, trail::ABSENT);
            trail::of_key(Kind::Forgotten, scope.id(), key, names, None)?;
            trail::EXPIRED
        }
        Record::Finished(row) => {
            trail::of_finished(Kind::Forgotten, row, trail::ABSENT, None)?;
            trail::finished_name(row.finished.state)
        }
        Record::Open(row) => {
            let state = trail::open_name(row.open.state);
            if !force {
                let place = key.place();
                return Err(Error::StillOpen { place, state });
            }
            if row.open.message {
                let messages = Messages::open(Mode::Write)?;
                messages.remove(&key.digest)?;
                messages.keep();
            }
            let names = (state, trail::ABSENT);
            let reason = row.reason.clone();
            trail::of_open(Kind::Forgotten, row, names, reason, None)?;
            state
        }
    };
    tables.erase(&key.digest, record.stands())?;
    // One may be left of an earlier record of this key.
    tombstone::put(&key.digest, scope.id(), None)?;
    finish::keep_lock(key)?;
    open_claims::close(&key.digest);
    open_claims::wake_at_commit(&key.digest);
    tables.keep();
    Ok(state)
}
