//! Tells when what we remember of relations is stale: one generation number, moved by relcache messages.
//!
//! The callback only counts: it may run inside almost any PostgreSQL call, so it borrows nothing.

use pgrx::{pg_guard, pg_sys};
use std::cell::Cell;

thread_local! {
    /// Moves whenever any relation we asked about may have changed.
    static GENERATION: Cell<u64> = const { Cell::new(1) };
    static WATCHED: Cell<[pg_sys::Oid; WATCHED_MAX]> = const { Cell::new([pg_sys::InvalidOid; WATCHED_MAX]) };
}

/// Tables that the extension has, with room for later ones.
pub const WATCHED_MAX: usize = 16;

/// The current generation: what was learned under another one is stale.
pub fn generation() -> u64 {
    GENERATION.get()
}

/// Takes in what other sessions have committed by now.
pub fn accept() {
    // SAFETY: allowed in a transaction.
    unsafe { pg_sys::AcceptInvalidationMessages() };
}

/// Makes messages about this relation move the generation. `slot` is the table's own number.
pub fn watch(slot: usize, relation: pg_sys::Oid) {
    let mut watched = WATCHED.get();
    watched[slot] = relation;
    WATCHED.set(watched);
}

/// Tells every session, at commit, that the content of this relation changed.
pub fn announce(relation: pg_sys::Oid) {
    // SAFETY: looks the relation up in the catalogue and queues a message.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(relation) };
}

/// Registers the callback; called once, from `_PG_init`.
pub fn init() {
    // SAFETY: the callback is a plain function that lives as long as the library.
    unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), pg_sys::Datum::null()) };
}

#[pg_guard]
unsafe extern "C-unwind" fn relation_changed(_arg: pg_sys::Datum, relation: pg_sys::Oid) {
    if relation == pg_sys::InvalidOid || WATCHED.get().contains(&relation) {
        GENERATION.set(GENERATION.get().wrapping_add(1));
    }
}
