//! The row types of functions with OUT columns, learned once in a session.
//!
//! A row type is what PostgreSQL makes of the function's catalogue row, and holds for as long as that row is the same
//! version of itself: told by xmin and ctid, as PL/pgSQL tells it of its functions (`pl_comp.c`).

use pgrx::pg_sys;
use std::cell::RefCell;
use std::collections::HashMap;

/// Version of a catalogue row: xmin, and block and offset.
type Version = (pg_sys::TransactionId, (u32, u16));

struct Known {
    version: Version,
    /// Null where the function has no row type.
    row_type: pg_sys::TupleDesc,
}

thread_local! {
    static KNOWN: RefCell<HashMap<pg_sys::Oid, Known>> = RefCell::default();
}

/// The row type of the function that is called here, blessed, to the end of the session; null where it gives no row.
///
/// # Safety
/// `fcinfo` must come from PostgreSQL's function manager.
pub unsafe fn of_call(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::TupleDesc {
    // SAFETY: promised by the caller.
    let function = unsafe { (*(*fcinfo).flinfo).fn_oid };
    let version = version_of(function);
    let known = KNOWN.with_borrow(|known| {
        known
            .get(&function)
            .filter(|known| Some(known.version) == version)
            .map(|known| known.row_type)
    });
    if let Some(row_type) = known {
        return row_type;
    }
    // SAFETY: promised by the caller.
    let learned = unsafe { learn(fcinfo) };
    // Made again only where none is like it, as after DROP and CREATE EXTENSION, and never freed: a call further out may
    // use it.
    let known: Vec<_> =
        KNOWN.with_borrow(|known| known.values().map(|known| known.row_type).collect());
    let row_type = known
        .into_iter()
        .find(|known| same(*known, learned))
        .unwrap_or_else(|| kept(learned));
    if let Some(version) = version {
        KNOWN.with_borrow_mut(|known| known.insert(function, Known { version, row_type }));
    }
    row_type
}

fn version_of(function: pg_sys::Oid) -> Option<Version> {
    // SAFETY: a lookup in the cache of pg_proc, whose tuple is read before it is released.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::PROCOID as i32;
        let tuple = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(function));
        if tuple.is_null() {
            return None;
        }
        let xmin = (*(*tuple).t_data).t_choice.t_heap.t_xmin;
        let at = (*tuple).t_self;
        let block = (u32::from(at.ip_blkid.bi_hi) << 16) | u32::from(at.ip_blkid.bi_lo);
        pg_sys::ReleaseSysCache(tuple);
        Some((xmin, (block, at.ip_posid)))
    }
}

/// What PostgreSQL makes of it, to the end of the call.
///
/// # Safety
/// As `of_call`.
unsafe fn learn(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::TupleDesc {
    let mut row_type: pg_sys::TupleDesc = std::ptr::null_mut();
    // SAFETY: promised by the caller.
    unsafe { pg_sys::get_call_result_type(fcinfo, std::ptr::null_mut(), &raw mut row_type) };
    row_type
}

fn same(one: pg_sys::TupleDesc, other: pg_sys::TupleDesc) -> bool {
    if one.is_null() || other.is_null() {
        return one == other;
    }
    // SAFETY: both live.
    unsafe { pg_sys::equalTupleDescs(one, other) }
}

/// A copy to the end of the session.
fn kept(row_type: pg_sys::TupleDesc) -> pg_sys::TupleDesc {
    if row_type.is_null() {
        return row_type;
    }
    // SAFETY: the descriptor lives; what is made here is never freed.
    unsafe {
        let here = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
        let kept = pg_sys::BlessTupleDesc(pg_sys::CreateTupleDescCopy(row_type));
        pg_sys::MemoryContextSwitchTo(here);
        kept
    }
}
