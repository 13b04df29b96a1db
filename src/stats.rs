//! What is counted of each scope. Kept in this session until its transaction commits, so that nothing is counted that
//! was rolled back; only refusals, and repeats that were answered, count at once.

use crate::pg::counters::{self, Counts};
use crate::pg::xact::{SubTransaction, current_subtransaction};
use std::cell::RefCell;

/// A counter, in the order of `idempotency.counters()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    Claims,
    Executes,
    Reconciles,
    Replays,
    Rejections,
    InProgress,
    Mismatches,
    Takeovers,
    FencesLost,
    Completed,
    FailedNotApplied,
    FailedUnknown,
    FailedRejected,
    Released,
    Unknown,
    Escalated,
    LeasesExpired,
    LateFinishes,
    Enqueued,
    Dispatched,
    Pruned,
    PrunedAlive,
    LateRetries,
}

/// A length of time of which the longest is kept, in the order of `idempotency.counters()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// From a key's claim to a repeat. The first: it alone has a histogram.
    Repeat,
    /// From a key's finish to a claim after its window.
    Late,
    /// For which an outcome was unknown.
    Unknown,
    /// From a leased claim to its end.
    Call,
    /// A lease that was asked for.
    Lease,
}

const _: () = assert!(Counter::LateRetries as usize + 1 == counters::COUNTERS);
const _: () = assert!(Observed::Lease as usize + 1 == counters::LENGTHS);

struct Pending {
    made_in: SubTransaction,
    scope_id: i32,
    counts: Counts,
}

thread_local! {
    static PENDING: RefCell<Vec<Pending>> = const { RefCell::new(Vec::new()) };
}

/// Counts one, if this (sub)transaction commits.
pub fn count(scope_id: i32, counter: Counter) {
    pending(scope_id, |counts| counts.counters[counter as usize] += 1);
}

/// A length was seen, if this (sub)transaction commits.
pub fn observe(scope_id: i32, observed: Observed, us: i64) {
    pending(scope_id, |counts| counts.see(observed as usize, us));
}

/// Counts one that no rollback undoes.
pub fn count_at_once(scope_id: i32, counter: Counter) {
    let mut counts = Counts::NONE;
    counts.counters[counter as usize] = 1;
    counters::add(scope_id, &counts);
}

/// A length was seen, whatever becomes of this transaction.
pub fn observe_at_once(scope_id: i32, observed: Observed, us: i64) {
    let mut counts = Counts::NONE;
    counts.see(observed as usize, us);
    counters::add(scope_id, &counts);
}

fn pending(scope_id: i32, change: impl FnOnce(&mut Counts)) {
    if !counters::available() {
        return;
    }
    let here = current_subtransaction();
    PENDING.with_borrow_mut(|pending| {
        let known = pending
            .iter_mut()
            .rev()
            .find(|entry| entry.made_in == here && entry.scope_id == scope_id);
        match known {
            Some(entry) => change(&mut entry.counts),
            None => {
                let mut counts = Counts::NONE;
                change(&mut counts);
                pending.push(Pending {
                    made_in: here,
                    scope_id,
                    counts,
                });
            }
        }
    });
}

/// The transaction has committed. Raises nothing.
pub fn committed() {
    PENDING.with_borrow_mut(|pending| {
        for entry in pending.drain(..) {
            counters::add(entry.scope_id, &entry.counts);
        }
    });
}

/// The transaction is undone.
pub fn forget() {
    PENDING.with_borrow_mut(Vec::clear);
}

/// A subtransaction became part of its parent.
pub fn subtransaction_committed(mine: SubTransaction, parent: SubTransaction) {
    PENDING.with_borrow_mut(|pending| {
        let (merged, mut kept): (Vec<Pending>, Vec<Pending>) = std::mem::take(pending)
            .into_iter()
            .partition(|entry| entry.made_in == mine);
        for entry in merged {
            let known = kept
                .iter_mut()
                .find(|other| other.made_in == parent && other.scope_id == entry.scope_id);
            match known {
                Some(known) => known.counts.add(&entry.counts),
                None => kept.push(Pending {
                    made_in: parent,
                    ..entry
                }),
            }
        }
        *pending = kept;
    });
}

/// A subtransaction is undone.
pub fn subtransaction_aborted(mine: SubTransaction) {
    PENDING.with_borrow_mut(|pending| pending.retain(|entry| entry.made_in != mine));
}
