//! A sleep that a cancel, a termination or the postmaster's death ends. Follows src/backend/storage/ipc/latch.c.

use super::server;
use pgrx::pg_sys;

/// Sleeps for `wait_ms` or until the latch is set, then lets interrupts take effect.
pub fn sleep(wait_ms: i64) {
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: our own latch.
    unsafe {
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            events as i32,
            wait_ms,
            pg_sys::PG_WAIT_EXTENSION,
        );
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    server::check_for_interrupts();
}
