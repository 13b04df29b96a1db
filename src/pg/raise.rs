//! The boundary between Rust and PostgreSQL's error handling, in both directions.
//!
//! Our errors leave with any SQLSTATE (pgrx knows a closed list). A user's effect leaves exactly as it raised (see
//! `exactly`), and so does any other error of PostgreSQL's: an error context callback copies the ErrorData before
//! it is flattened into a panic, and `ThrowErrorData` raises the copy again, which adds the outer frames' context. No Rust backtrace reaches a client.
//! Follows src/backend/utils/error/elog.c.

use crate::error::Error;
use cee_scape::call_with_sigsetjmp;
use pgrx::{PgSqlErrorCode, pg_sys};
use std::any::Any;
use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

// Declared here and not taken from pgrx: these run where no Rust destructor is pending, and must not be guarded.
unsafe extern "C-unwind" {
    fn CopyErrorData() -> *mut pg_sys::ErrorData;
    fn FreeErrorData(edata: *mut pg_sys::ErrorData);
    fn FlushErrorState();
    fn ReThrowError(edata: *mut pg_sys::ErrorData) -> !;
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
    /// Copied when all was said of it.
    Whole(*mut pg_sys::ErrorData),
    /// Copied before the frames outside ours had added their context.
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
    // Turning an error into C strings allocates, so it may raise too: that must not leave this frame as a panic.
    let leaving = match outcome {
        Ok(Ok(value)) => {
            if !copied.is_null() {
                // SAFETY: ours, made by CopyErrorData, and not raised again.
                unsafe { FreeErrorData(copied) };
            }
            return value;
        }
        Ok(Err(error)) => catch_unwind(|| built(&error)),
        Err(payload) => catch_unwind(AssertUnwindSafe(|| from_panic(payload, copied))),
    };
    let leaving = match leaving {
        Ok(leaving) => leaving,
        Err(again) => {
            // Its own drop must not raise either.
            std::mem::forget(again);
            Leaving::Built {
                sqlstate: make_sqlstate(b"53200"),
                message: c"an error could not be reported: out of memory".as_ptr(),
                detail: std::ptr::null(),
                hint: std::ptr::null(),
            }
        }
    };
    // SAFETY: nothing with a destructor is left on this frame.
    unsafe { leave(leaving) }
}

/// An error of PostgreSQL's on its way through Rust frames, exactly as it was raised.
struct Original(*mut pg_sys::ErrorData);

// SAFETY: a backend has one thread; a panic's payload must be Send all the same.
unsafe impl Send for Original {}

/// Calls C code that may raise any error, such as a user's effect, so that `boundary` raises the very same error
/// again. pgrx's own guard knows a closed list of SQLSTATEs and a few of the fields.
///
/// # Safety
/// `call` must hold nothing with a destructor: an error jumps over it.
pub unsafe fn exactly<T>(call: impl FnOnce() -> T) -> T {
    let mut result = MaybeUninit::uninit();
    // SAFETY: as PG_TRY and PG_CATCH in elog.h: the stacks are put back on both paths, and the error is copied to
    // where the transaction's end frees it before the error state is flushed.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        let handler = pg_sys::PG_exception_stack;
        let callbacks = pg_sys::error_context_stack;
        let jumped = call_with_sigsetjmp(false, |jump| {
            pg_sys::PG_exception_stack = std::ptr::from_ref(jump).cast_mut().cast();
            result.write(call());
            0
        });
        pg_sys::PG_exception_stack = handler;
        pg_sys::error_context_stack = callbacks;
        if jumped == 0 {
            return result.assume_init();
        }
        pg_sys::CurrentMemoryContext = long_lived_context();
        let error = CopyErrorData();
        pg_sys::CurrentMemoryContext = context;
        FlushErrorState();
        std::panic::resume_unwind(Box::new(Original(error)))
    }
}

/// Memory that outlives the statement.
unsafe fn long_lived_context() -> pg_sys::MemoryContext {
    // SAFETY: reads backend variables.
    unsafe {
        if pg_sys::TopTransactionContext.is_null() {
            pg_sys::TopMemoryContext
        } else {
            pg_sys::TopTransactionContext
        }
    }
}

/// Keeps a copy of the error that is being raised. Runs inside errfinish.
unsafe extern "C-unwind" fn remember_error(arg: *mut c_void) {
    // SAFETY: `arg` is the pointer on the frame of `boundary`; PostgreSQL calls this with an error at hand.
    unsafe {
        let copied = arg.cast::<*mut pg_sys::ErrorData>();
        let back = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = long_lived_context();
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
    let c_text = |text: Option<&str>| text.map_or(std::ptr::null(), super::text::to_c_message);
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
    let payload = match payload.downcast::<Original>() {
        Ok(original) => return Leaving::Whole(original.0),
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
            Leaving::Whole(error) => ReThrowError(error),
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
        code: PgSqlErrorCode,
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

/// As `catch_message`, and a cancel is kept too: for a worker whose own timeout it is.
pub fn catch_any_message<T>(body: impl FnOnce() -> Result<T, Error>) -> Result<T, String> {
    match catch(|| catch_message(body)) {
        Ok(result) => result,
        Err(Caught::Postgres { message, .. }) => Err(message),
        Err(Caught::Other(panic)) => std::panic::resume_unwind(panic),
    }
}

/// The message of whatever ended `body`, for a caller that undoes what it did and goes on. A cancel or a
/// termination is not for the caller to keep: it goes on.
pub fn catch_message<T>(body: impl FnOnce() -> Result<T, Error>) -> Result<T, String> {
    match catch(body) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.message()),
        Err(Caught::Postgres {
            message,
            code,
            panic,
        }) => match code {
            PgSqlErrorCode::ERRCODE_QUERY_CANCELED | PgSqlErrorCode::ERRCODE_ADMIN_SHUTDOWN => {
                std::panic::resume_unwind(panic)
            }
            _ => Err(message),
        },
        Err(Caught::Other(panic)) => Err(match panic.downcast_ref::<Error>() {
            Some(error) => error.message(),
            None => "internal error in extension idempotency".to_owned(),
        }),
    }
}
