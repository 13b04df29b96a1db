//! A time limit on code that is not ours: when it is over, the code is cancelled as by pg_cancel_backend, and in a
//! worker that ignores even that, the process ends.
//! Follows src/backend/utils/misc/timeout.c (user timeouts).

use super::raise::{self, Caught};
use pgrx::{PgSqlErrorCode, pg_sys};
use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

// A handler is a plain function pointer that runs in a signal handler: no guard of pgrx's around it.
unsafe extern "C-unwind" {
    fn RegisterTimeout(id: c_int, handler: unsafe extern "C-unwind" fn()) -> c_int;
    fn enable_timeout_after(id: c_int, delay_ms: c_int);
    fn disable_timeout(id: c_int, keep_indicator: bool);
}

/// `USER_TIMEOUT` of utils/timeout.h: asks for the next free place.
#[cfg(any(feature = "pg15", feature = "pg16"))]
const USER_TIMEOUT: c_int = 12;
#[cfg(any(feature = "pg17", feature = "pg18"))]
const USER_TIMEOUT: c_int = 13;

/// How long code that was cancelled may go on in a worker.
const GRACE_MS: c_int = 1_000;

static IS_OVER: AtomicBool = AtomicBool::new(false);
static PLACES: OnceLock<(c_int, c_int)> = OnceLock::new();

/// Who runs the code: a session may go on as long as its owner likes, a worker serves others too.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Runner {
    Session,
    Worker,
}

/// What came of code under a time limit.
pub enum Ended<T> {
    InTime(T),
    /// The limit, or an error: its message.
    Failed(String),
}

/// Runs `body`, which must not come here again, for `limit_ms` at most, in a subtransaction of the caller's: whatever is not `InTime` must be undone.
/// A cancel that is not ours goes on.
pub fn within<T>(limit_ms: i32, runner: Runner, body: impl FnOnce() -> T) -> Ended<T> {
    // SAFETY: registered once in this process; both are disabled on every path below.
    let (limit, last) = *PLACES.get_or_init(|| unsafe {
        (
            RegisterTimeout(USER_TIMEOUT, cancel),
            RegisterTimeout(USER_TIMEOUT, terminate),
        )
    });
    IS_OVER.store(false, Ordering::Relaxed);
    // SAFETY: as above.
    let outcome = unsafe {
        enable_timeout_after(limit, limit_ms);
        if runner == Runner::Worker {
            enable_timeout_after(last, limit_ms.saturating_add(GRACE_MS));
        }
        let outcome = raise::catch(body);
        disable_timeout(limit, false);
        disable_timeout(last, false);
        outcome
    };
    let over = IS_OVER.swap(false, Ordering::Relaxed);
    // It may have fired just as the code ended: the cancel is not for what comes after. One of the user's own that came in
    // the same moment is lost with it, as pg_cancel_backend may be at any time.
    if over {
        // SAFETY: a flag of this process.
        unsafe { pg_sys::QueryCancelPending = 0 };
    }
    match outcome {
        Ok(value) => Ended::InTime(value),
        Err(Caught::Postgres {
            code: PgSqlErrorCode::ERRCODE_QUERY_CANCELED,
            ..
        }) if over => Ended::Failed(format!("no answer within {limit_ms} ms")),
        Err(Caught::Postgres {
            code: PgSqlErrorCode::ERRCODE_QUERY_CANCELED,
            panic,
            ..
        }) => std::panic::resume_unwind(panic),
        // Not a termination: that is FATAL and passes nobody.
        Err(Caught::Postgres { message, .. }) => Ended::Failed(message),
        Err(Caught::Other(panic)) => std::panic::resume_unwind(panic),
    }
}

/// In a signal handler: only flags.
unsafe extern "C-unwind" fn cancel() {
    IS_OVER.store(true, Ordering::Relaxed);
    // SAFETY: flags of this process, as StatementCancelHandler sets them.
    unsafe {
        pg_sys::InterruptPending = 1;
        pg_sys::QueryCancelPending = 1;
    }
}

unsafe extern "C-unwind" fn terminate() {
    // SAFETY: flags of this process, as `die` sets them.
    unsafe {
        pg_sys::InterruptPending = 1;
        pg_sys::ProcDiePending = 1;
    }
}
