//! The boundary between Rust and PostgreSQL's error handling, in both directions.
//!
//! Our errors leave with any SQLSTATE (pgrx knows a closed list). PostgreSQL's own errors, a user's effect
//! included, leave exactly as they were raised: an error context callback copies the ErrorData before it is
//! flattened into a panic, and `ThrowErrorData` raises the copy again, which adds the outer frames' context. No Rust backtrace reaches a client.
//! Follows src/backend/utils/error/elog.c.

use crate::error::Error;
use pgrx::pg_sys;
use std::any::Any;
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

// Declared here and not taken from pgrx: these run where no Rust destructor is pending, and must not be guarded.
unsafe extern "C-unwind" {
    fn CopyErrorData() -> *mut pg_sys::ErrorData;
    fn FreeErrorData(edata: *mut pg_sys::ErrorData);
    fn ThrowErrorData(edata: *mut pg_sys::ErrorData);
    fn errstart(elevel: c_int, domain: *const c_char) -> bool;
    fn errcode(sqlerrcode: c_int) -> c_int;
    fn errmsg(format: *const c_char, ...) -> c_int;
    fn errdetail(format: *const c_char, ...) -> c_int;
    fn errhint(format: *const c_char, ...) -> c_int;
    fn errfinish(filename: *const c_char, lineno: c_int, funcname: *const c_char);
}

const ERROR: c_int = pgrx::PgLogLevel::ERROR as c_int;

/// `MAKE_SQLSTATE` of elog.h.
const fn make_sqlstate(code: &[u8; 5]) -> c_int {
    let mut packed = 0;
    let mut at = 0;
    while at < 5 {
        packed |= (((code[at] as c_int) - ('0' as c_int)) & 0x3F) << (6 * at);
        at += 1;
    }
    packed
}

/// An error ready to be raised: plain pointers into PostgreSQL memory, nothing to drop.
#[derive(Clone, Copy)]
enum Leaving {
    Copied(*mut pg_sys::ErrorData),
    Built {
        sqlstate: c_int,
        message: *const c_char,
        detail: *const c_char,
        hint: *const c_char,
    },
}

/// Runs `body`, called by PostgreSQL, and turns an error of any kind into a PostgreSQL ERROR.
///
/// # Safety
/// Must be called first thing in an `extern "C-unwind"` function that holds nothing with a destructor.
pub unsafe fn boundary<T: Copy>(body: impl FnOnce() -> Result<T, Error>) -> T {
    let mut copied: *mut pg_sys::ErrorData = std::ptr::null_mut();
    // SAFETY: the callback lives on this frame and is taken off the stack before the frame ends.
    let outcome = unsafe {
        let mut remember = pg_sys::ErrorContextCallback {
            previous: pg_sys::error_context_stack,
            callback: Some(remember_error),
            arg: (&raw mut copied).cast(),
        };
        pg_sys::error_context_stack = &raw mut remember;
        let outcome = catch_unwind(AssertUnwindSafe(body));
        pg_sys::error_context_stack = remember.previous;
        outcome
    };
    let leaving = match outcome {
        Ok(Ok(value)) => {
            if !copied.is_null() {
                // SAFETY: ours, made by CopyErrorData, and not raised again.
                unsafe { FreeErrorData(copied) };
            }
            return value;
        }
        Ok(Err(error)) => built(&error),
        Err(payload) => from_panic(payload, copied),
    };
    // SAFETY: nothing with a destructor is left on this frame.
    unsafe { leave(leaving) }
}

/// Keeps a copy of the error that is being raised. Runs inside errfinish.
unsafe extern "C-unwind" fn remember_error(arg: *mut c_void) {
    // SAFETY: `arg` is the pointer on the frame of `boundary`; PostgreSQL calls this with an error at hand.
    unsafe {
        let copied = arg.cast::<*mut pg_sys::ErrorData>();
        let back = pg_sys::CurrentMemoryContext;
        let long_lived = pg_sys::TopTransactionContext;
        pg_sys::CurrentMemoryContext = if long_lived.is_null() {
            pg_sys::TopMemoryContext
        } else {
            long_lived
        };
        let error = CopyErrorData();
        pg_sys::CurrentMemoryContext = back;
        if (*error).elevel < ERROR {
            FreeErrorData(error);
            return;
        }
        if !(*copied).is_null() {
            FreeErrorData(*copied);
        }
        *copied = error;
    }
}

fn built(error: &Error) -> Leaving {
    build(
        make_sqlstate(error.sqlstate()),
        &error.message(),
        error.detail().as_deref(),
        Some(error.hint().as_str()).filter(|hint| !hint.is_empty()),
    )
}

fn build(sqlstate: c_int, message: &str, detail: Option<&str>, hint: Option<&str>) -> Leaving {
    let c_text = |text: Option<&str>| text.map_or(std::ptr::null(), super::text::to_c);
    Leaving::Built {
        sqlstate,
        message: c_text(Some(message)),
        detail: c_text(detail),
        hint: c_text(hint),
    }
}

fn from_panic(payload: Box<dyn Any + Send>, copied: *mut pg_sys::ErrorData) -> Leaving {
    use pg_sys::panic::CaughtError;
    let payload = match payload.downcast::<Error>() {
        Ok(error) => return built(&error),
        Err(payload) => payload,
    };
    match payload.downcast::<CaughtError>() {
        Ok(caught) => match *caught {
            CaughtError::PostgresError(report) | CaughtError::ErrorReport(report) => {
                // A copy of another, caught error must not take the place of this one.
                if !copied.is_null() && same_message(copied, report.message()) {
                    return Leaving::Copied(copied);
                }
                build(
                    report.sql_error_code() as c_int,
                    report.message(),
                    report.detail(),
                    report.hint(),
                )
            }
            CaughtError::RustPanic { ereport, .. } => internal(ereport.message()),
        },
        Err(payload) => match (
            payload.downcast_ref::<&str>(),
            payload.downcast_ref::<String>(),
        ) {
            (Some(text), _) => internal(text),
            (None, Some(text)) => internal(text),
            (None, None) => internal("panic without a message"),
        },
    }
}

/// A defect of ours: it must be visible as one.
fn internal(message: &str) -> Leaving {
    build(
        make_sqlstate(b"XX000"),
        &format!("internal error in extension idempotency: {message}"),
        None,
        Some("This is a bug: please report it. The transaction was rolled back."),
    )
}

fn same_message(copied: *mut pg_sys::ErrorData, message: &str) -> bool {
    // SAFETY: a copy made by CopyErrorData; its message is a C string or null.
    unsafe {
        let text = (*copied).message;
        !text.is_null() && std::ffi::CStr::from_ptr(text).to_string_lossy() == message
    }
}

/// # Safety
/// The caller's frame must hold nothing with a destructor: this jumps over it.
unsafe fn leave(leaving: Leaving) -> ! {
    // SAFETY: called by `boundary` on a plain frame; the texts are C strings in PostgreSQL memory.
    unsafe {
        match leaving {
            Leaving::Copied(error) => {
                ThrowErrorData(error);
                unreachable!("ThrowErrorData returned from an ERROR")
            }
            Leaving::Built {
                sqlstate,
                message,
                detail,
                hint,
            } => {
                errstart(ERROR, std::ptr::null());
                errcode(sqlstate);
                errmsg(c"%s".as_ptr(), message);
                if !detail.is_null() {
                    errdetail(c"%s".as_ptr(), detail);
                }
                if !hint.is_null() {
                    errhint(c"%s".as_ptr(), hint);
                }
                errfinish(c"idempotency".as_ptr(), 0, c"idempotency".as_ptr());
                unreachable!("errfinish returned from an ERROR")
            }
        }
    }
}

/// Raises from where no `Result` can be returned, such as within a scan.
pub fn now(error: Error) -> ! {
    std::panic::resume_unwind(Box::new(error))
}

/// What was caught while running something that may raise.
pub enum Caught {
    /// A PostgreSQL error with its code and message.
    Postgres {
        code: pgrx::PgSqlErrorCode,
        message: String,
        panic: Box<dyn Any + Send>,
    },
    /// Anything else.
    Other(Box<dyn Any + Send>),
}

impl Caught {
    /// Lets it go on as it was.
    pub fn resume(self) -> ! {
        match self {
            Caught::Postgres { panic, .. } | Caught::Other(panic) => {
                std::panic::resume_unwind(panic)
            }
        }
    }
}

/// Runs `body` and gives back a PostgreSQL error instead of letting it pass. Without a subtransaction of its
/// own the caller must raise again, this error or another.
pub fn catch<T>(body: impl FnOnce() -> T) -> Result<T, Caught> {
    use pg_sys::panic::CaughtError;
    catch_unwind(AssertUnwindSafe(body)).map_err(|panic| {
        match panic.downcast_ref::<CaughtError>() {
            Some(CaughtError::PostgresError(report)) => Caught::Postgres {
                code: report.sql_error_code(),
                message: report.message().to_owned(),
                panic,
            },
            Some(CaughtError::ErrorReport(_) | CaughtError::RustPanic { .. }) | None => {
                Caught::Other(panic)
            }
        }
    })
}

/// The message of whatever ended `body`, for a caller that aborts the transaction and goes on.
pub fn catch_message<T>(body: impl FnOnce() -> Result<T, Error>) -> Result<T, String> {
    match catch(body) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.message()),
        Err(Caught::Postgres { message, .. }) => Err(message),
        Err(Caught::Other(panic)) => Err(match panic.downcast_ref::<Error>() {
            Some(error) => error.message(),
            None => "internal error in extension idempotency".to_owned(),
        }),
    }
}
