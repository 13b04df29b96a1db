//! REPEATABLE READ and SERIALIZABLE: may this transaction's snapshot answer for a key?
//!
//! The protocol reads what is committed now. If a version of the key's row was written or removed by a
//! transaction that is still running for our snapshot, the caller could not see the effect that the answer
//! speaks of: it must retry. One scan over all versions covers both "I cannot see what I found" and "what I can
//! see is gone", and takes no predicate locks. Follows src/backend/access/heap/heapam_visibility.c.

use super::table::{Access, Row, Snapshot, Table};
use pgrx::pg_sys;
use std::ops::ControlFlow;

/// Whether the snapshot misses a committed change of the rows that `access` finds.
pub fn misses_a_change(table: &Table, access: &Access<'_>) -> bool {
    table
        .scan(access, Snapshot::Every, |row| {
            if changed_after_snapshot(row) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .is_some()
}

fn changed_after_snapshot(row: &Row<'_>) -> bool {
    // SAFETY: the scan holds the tuple; under one snapshot per transaction GetTransactionSnapshot gives that one.
    unsafe {
        let header = (*row.tuple).t_data;
        let mask = u32::from((*header).t_infomask);
        let snapshot = pg_sys::GetTransactionSnapshot();
        let frozen = mask & pg_sys::HEAP_XMIN_FROZEN == pg_sys::HEAP_XMIN_FROZEN;
        if !frozen && committed_after((*header).t_choice.t_heap.t_xmin, snapshot) {
            return true;
        }
        remover(header).is_some_and(|xmax| committed_after(xmax, snapshot))
    }
}

/// The transaction that deleted or replaced a row version, whatever became of it; none for a mere row lock.
/// As `HeapTupleHeaderGetUpdateXid` and `HEAP_XMAX_IS_LOCKED_ONLY`.
///
/// # Safety
/// `header` must be of a tuple whose page is held.
pub(super) unsafe fn remover(header: pg_sys::HeapTupleHeader) -> Option<pg_sys::TransactionId> {
    // SAFETY: promised by the caller.
    unsafe {
        let mask = u32::from((*header).t_infomask);
        let multi = mask & pg_sys::HEAP_XMAX_IS_MULTI != 0;
        let locked_only = mask & pg_sys::HEAP_XMAX_LOCK_ONLY != 0;
        if mask & pg_sys::HEAP_XMAX_INVALID != 0 || locked_only {
            return None;
        }
        Some(if multi {
            pg_sys::HeapTupleGetUpdateXid(header)
        } else {
            (*header).t_choice.t_heap.t_xmax
        })
    }
}

unsafe fn committed_after(xid: pg_sys::TransactionId, snapshot: pg_sys::Snapshot) -> bool {
    // SAFETY: a transaction id from a tuple that the snapshot's horizon still protects.
    unsafe {
        pgrx::pg_sys::TransactionId::into_inner(xid)
            >= pg_sys::FirstNormalTransactionId.into_inner()
            && !pg_sys::TransactionIdIsCurrentTransactionId(xid)
            && pg_sys::XidInMVCCSnapshot(xid, snapshot)
            && pg_sys::TransactionIdDidCommit(xid)
    }
}
