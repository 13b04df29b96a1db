//! The transaction's milestones, handed to the engine: subtransactions end, the transaction is about to
//! commit, has committed, or is gone. Follows src/backend/access/transam/xact.c.

use super::raise;
use crate::error::Error;
use pgrx::pg_sys::{SubXactEvent, XactEvent};
use pgrx::{pg_guard, pg_sys};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;

/// A subtransaction of this session's current transaction; the top one is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubTransaction(u32);

/// The innermost running subtransaction.
pub fn current_subtransaction() -> SubTransaction {
    // SAFETY: reads the transaction state.
    SubTransaction(unsafe { pg_sys::GetCurrentSubTransactionId() })
}

/// Runs `body` in a subtransaction of its own. An error undoes what it did and comes back as its message, except
/// for a cancel or a termination, which goes on.
pub fn subtransaction<T>(body: impl FnOnce() -> Result<T, Error>) -> Result<T, String> {
    within_subtransaction(|| raise::catch_message(body), Result::is_ok)
}

/// Runs `body` in a subtransaction of its own that is undone in any case: only what it gives back stays.
pub fn undone<T>(body: impl FnOnce() -> T) -> T {
    within_subtransaction(body, |_| false)
}

/// The subtransaction ends on every path, also where a cancel passes through: else the whole session would be left
/// inside it. As in plpgsql's exec_stmt_block.
fn within_subtransaction<T>(body: impl FnOnce() -> T, keep: impl FnOnce(&T) -> bool) -> T {
    // SAFETY: begun and ended here; context and owner are put back after both ends.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let owner = pg_sys::CurrentResourceOwner;
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::CurrentMemoryContext = context;
        let outcome = catch_unwind(AssertUnwindSafe(body));
        if outcome.as_ref().is_ok_and(keep) {
            pg_sys::ReleaseCurrentSubTransaction();
        } else {
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
        }
        pg_sys::CurrentMemoryContext = context;
        pg_sys::CurrentResourceOwner = owner;
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// What to do at each milestone. Only `before_commit` may fail: that refuses the commit.
pub struct Milestones {
    pub before_commit: fn() -> Result<(), Error>,
    pub committed: fn(),
    /// Aborted, or prepared: out of this session's hands.
    pub gone: fn(),
    pub subtransaction_committed: fn(mine: SubTransaction, parent: SubTransaction),
    pub subtransaction_aborted: fn(mine: SubTransaction),
}

static MILESTONES: OnceLock<Milestones> = OnceLock::new();

/// Registers the milestones; called once, from `_PG_init`.
pub fn init(milestones: Milestones) {
    if MILESTONES.set(milestones).is_err() {
        return;
    }
    // SAFETY: plain functions that live as long as the library.
    unsafe {
        pg_sys::RegisterXactCallback(Some(transaction_event), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(subtransaction_event), std::ptr::null_mut());
    }
}

/// Not `pg_guard`: an error of ours must leave with its SQLSTATE, and only before the commit may one leave.
unsafe extern "C-unwind" fn transaction_event(event: XactEvent::Type, _arg: *mut std::ffi::c_void) {
    let Some(milestones) = MILESTONES.get() else {
        return;
    };
    match event {
        XactEvent::XACT_EVENT_PRE_COMMIT | XactEvent::XACT_EVENT_PRE_PREPARE => {
            // SAFETY: nothing with a destructor is on this frame.
            unsafe { raise::boundary(milestones.before_commit) }
        }
        XactEvent::XACT_EVENT_COMMIT => (milestones.committed)(),
        XactEvent::XACT_EVENT_ABORT | XactEvent::XACT_EVENT_PREPARE => (milestones.gone)(),
        _ => {}
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn subtransaction_event(
    event: SubXactEvent::Type,
    mine: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    _arg: *mut std::ffi::c_void,
) {
    let Some(milestones) = MILESTONES.get() else {
        return;
    };
    match event {
        SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => {
            (milestones.subtransaction_committed)(SubTransaction(mine), SubTransaction(parent));
        }
        SubXactEvent::SUBXACT_EVENT_ABORT_SUB => {
            (milestones.subtransaction_aborted)(SubTransaction(mine))
        }
        _ => {}
    }
}
