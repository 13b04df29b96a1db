//! What this transaction holds: claims to finish, and keys whose lock it keeps.
//!
//! Every entry belongs to the subtransaction that made it and goes, or comes back, with it. The callbacks here
//! run while a transaction ends: they raise nothing, except before the commit, where raising refuses it.

use crate::engine::key::ScopedKey;
use crate::engine::sweep;
use crate::error::Error;
use crate::pg::xact::{Milestones, SubTransaction, current_subtransaction};
use crate::pg::{effect, shmem};
use crate::stats;
use crate::store::Stands;
use crate::store::claim::OpenRow;
use std::cell::RefCell;
use std::collections::HashMap;

#[derive(Debug)]
enum Hold {
    /// To be finished before COMMIT.
    Transactional {
        key: ScopedKey,
        row: Box<OpenRow>,
        stands: Stands,
    },
    /// A leased claim made here: an outside effect must not be finished here too.
    Leased,
    /// Only the lock is kept.
    Lock,
}

#[derive(Debug)]
struct Entry {
    digest: [u8; 16],
    hold: Hold,
    /// Where the entry before it of the same key is.
    before: Option<usize>,
    made_in: SubTransaction,
    closed_in: Option<SubTransaction>,
}

#[derive(Default)]
struct Session {
    /// As subtransactions are nested: what the innermost made comes last.
    entries: Vec<Entry>,
    /// Where the newest entry of each key is. The locks of these keys are kept.
    newest: HashMap<[u8; 16], usize>,
    /// Entries that are closed, and where: what the innermost closed comes last.
    closed: Vec<usize>,
    /// Partitions whose waiters are woken when this transaction commits.
    wake: Vec<usize>,
}

thread_local! {
    static SESSION: RefCell<Session> = RefCell::default();
}

/// Room that a session keeps for its next transaction; memory of a larger one is given back.
const KEPT_ENTRIES: usize = 64;

/// What the transaction's milestones mean here.
pub const MILESTONES: Milestones = Milestones {
    before_commit,
    committed,
    gone,
    subtransaction_committed,
    subtransaction_aborted,
};

/// Keys whose lock this transaction keeps.
fn locks_kept() -> usize {
    SESSION.with_borrow(|session| session.newest.len())
}

/// Whether this transaction has a claim of a scope to finish.
pub fn any_of_scope(scope_id: i32) -> bool {
    SESSION.with_borrow(|session| {
        session.entries.iter().any(|entry| match &entry.hold {
            Hold::Transactional { row, .. } => {
                entry.closed_in.is_none() && row.scope_id == scope_id
            }
            Hold::Leased | Hold::Lock => false,
        })
    })
}

/// Keys that this transaction may still take.
pub fn room() -> usize {
    crate::guc::max_claims_per_transaction().saturating_sub(locks_kept())
}

/// Refuses one more key, unless this transaction holds it already.
pub fn require_room_for(digest: &[u8; 16]) -> Result<(), Error> {
    if holds(digest) {
        Ok(())
    } else {
        require_room(1)
    }
}

/// Refuses what would fill the cluster's lock table.
pub fn require_room(more: usize) -> Result<(), Error> {
    let limit = crate::guc::max_claims_per_transaction();
    if locks_kept().saturating_add(more) <= limit {
        return Ok(());
    }
    Err(Error::too_large(
        format!("this transaction would hold more than {limit} keys"),
        "Commit in smaller batches. idempotency.max_claims_per_transaction sets the limit: each key needs a place in the shared lock table.",
    ))
}

/// Remembers a transactional claim, as the row that a leased one would have: nothing of it is stored yet.
/// `stands` is where the record is that the claim found.
pub fn add_transactional(key: &ScopedKey, row: OpenRow, stands: Stands) {
    let hold = Hold::Transactional {
        key: key.clone(),
        row: Box::new(row),
        stands,
    };
    add(key.digest, hold);
}

/// Remembers that this transaction made a leased claim.
pub fn add_leased(digest: [u8; 16]) {
    add(digest, Hold::Leased);
}

/// Remembers that this transaction keeps the lock of a key that it changed.
pub fn add_lock(digest: [u8; 16]) {
    add(digest, Hold::Lock);
}

fn add(digest: [u8; 16], hold: Hold) {
    let made_in = current_subtransaction();
    SESSION.with_borrow_mut(|session| {
        let before = session.newest.insert(digest, session.entries.len());
        session.entries.push(Entry {
            digest,
            hold,
            before,
            made_in,
            closed_in: None,
        });
    });
}

/// The transactional claim of this key that is still to be finished.
pub fn transactional(digest: &[u8; 16]) -> Option<(OpenRow, Stands)> {
    SESSION.with_borrow(|session| {
        session
            .open_of(digest)
            .find_map(|at| match &session.entries[at].hold {
                Hold::Transactional { row, stands, .. } => Some(((**row).clone(), *stands)),
                Hold::Leased | Hold::Lock => None,
            })
    })
}

/// Whether this transaction keeps the lock of this key.
pub fn holds(digest: &[u8; 16]) -> bool {
    SESSION.with_borrow(|session| session.newest.contains_key(digest))
}

/// Whether this transaction made a leased claim of this key that is not finished.
pub fn leased_here(digest: &[u8; 16]) -> bool {
    SESSION.with_borrow(|session| {
        session
            .open_of(digest)
            .any(|at| matches!(session.entries[at].hold, Hold::Leased))
    })
}

/// The claims of this key are finished, for as long as the current subtransaction lives.
pub fn close(digest: &[u8; 16]) {
    let here = current_subtransaction();
    SESSION.with_borrow_mut(|session| {
        let open: Vec<usize> = session.open_of(digest).collect();
        for &at in &open {
            session.entries[at].closed_in = Some(here);
        }
        session.closed.extend(open);
    });
}

/// Wakes those who wait for this key, when this transaction commits.
pub fn wake_at_commit(digest: &[u8; 16]) {
    let partition = shmem::partition(digest);
    SESSION.with_borrow_mut(|session| {
        if !session.wake.contains(&partition) {
            session.wake.push(partition);
        }
    });
}

/// Before COMMIT or PREPARE TRANSACTION: a transactional claim left open refuses it.
fn before_commit() -> Result<(), Error> {
    SESSION.with_borrow(|session| {
        let mut open = session
            .entries
            .iter()
            .filter(|entry| entry.closed_in.is_none())
            .filter_map(|entry| match &entry.hold {
                Hold::Transactional { key, .. } => Some(key.place()),
                Hold::Leased | Hold::Lock => None,
            });
        match open.next() {
            None => Ok(()),
            Some(place) => Err(Error::LeftOpen {
                place,
                others: open.count(),
            }),
        }
    })
}

/// The transaction has committed: its changes are visible.
fn committed() {
    let wake = SESSION.with_borrow_mut(|session| std::mem::take(&mut session.wake));
    for partition in wake {
        shmem::wake(partition);
    }
    stats::committed();
    forget();
}

/// The transaction is undone, or prepared and out of this session's hands.
fn gone() {
    sweep::forget_session_pass();
    forget();
}

/// The transaction is over for this session.
fn forget() {
    SESSION.with_borrow_mut(|session| {
        session.entries.clear();
        session.entries.shrink_to(KEPT_ENTRIES);
        session.newest.clear();
        session.newest.shrink_to(KEPT_ENTRIES);
        session.closed.clear();
        session.closed.shrink_to(KEPT_ENTRIES);
        session.wake.clear();
    });
    stats::forget();
    effect::forget_running();
}

/// A subtransaction became part of its parent.
fn subtransaction_committed(mine: SubTransaction, parent: SubTransaction) {
    stats::subtransaction_committed(mine, parent);
    SESSION.with_borrow_mut(|session| {
        let Session {
            entries, closed, ..
        } = session;
        for at in closed.iter().rev() {
            match &mut entries[*at].closed_in {
                Some(here) if *here == mine => *here = parent,
                _ => break,
            }
        }
        for entry in entries.iter_mut().rev() {
            if entry.made_in != mine {
                break;
            }
            entry.made_in = parent;
        }
    });
}

/// A subtransaction is undone: what it made goes, what it finished is open again.
fn subtransaction_aborted(mine: SubTransaction) {
    stats::subtransaction_aborted(mine);
    sweep::forget_session_pass();
    SESSION.with_borrow_mut(|session| {
        let Session {
            entries,
            newest,
            closed,
            ..
        } = session;
        while let Some(at) = closed.pop_if(|at| entries[*at].closed_in == Some(mine)) {
            entries[at].closed_in = None;
        }
        while let Some(entry) = entries.pop_if(|entry| entry.made_in == mine) {
            match entry.before {
                Some(before) => newest.insert(entry.digest, before),
                None => newest.remove(&entry.digest),
            };
        }
    });
}

impl Session {
    /// Where the entries of this key are that are not closed, the newest first.
    fn open_of(&self, digest: &[u8; 16]) -> impl Iterator<Item = usize> {
        let newest = self.newest.get(digest).copied();
        std::iter::successors(newest, |at| self.entries[*at].before)
            .filter(|at| self.entries[*at].closed_in.is_none())
    }
}
