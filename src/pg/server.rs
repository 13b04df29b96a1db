//! Small questions to the server, and the differences between its major versions.

use super::text;
use crate::error::Error;
use idempotency_core::time::Instant;
use pgrx::pg_sys;
use std::ffi::CStr;

/// Lets a cancel, a termination or a barrier take effect; may raise.
pub fn check_for_interrupts() {
    pgrx::check_for_interrupts!();
}

/// The clock, as `clock_timestamp()`.
pub fn now() -> Instant {
    // SAFETY: reads the clock.
    Instant(unsafe { pg_sys::GetCurrentTimestamp() })
}

/// How long this process has used a processor.
pub fn cpu_time() -> std::time::Duration {
    let mut used = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills the struct; a clock that every Linux has.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut used) };
    let seconds = u64::try_from(used.tv_sec).unwrap_or(0);
    let nanoseconds = u32::try_from(used.tv_nsec).unwrap_or(0);
    std::time::Duration::new(seconds, nanoseconds)
}

/// Refuses what writes where nothing may be written: on a standby, in a read-only transaction, or inside a
/// parallel query. Direct access to tables checks none of this by itself.
pub fn require_writable(function: &'static CStr) -> Result<(), Error> {
    // SAFETY: reads the transaction's state; the last call raises, or changes nothing.
    unsafe {
        let standby = pg_sys::RecoveryInProgress();
        if standby || pg_sys::XactReadOnly {
            let function = text::from_c(function.as_ptr());
            return Err(Error::ReadOnly { function, standby });
        }
        pg_sys::PreventCommandIfParallelMode(function.as_ptr());
    }
    Ok(())
}

pub fn in_recovery() -> bool {
    // SAFETY: reads shared state.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// REPEATABLE READ or SERIALIZABLE: one snapshot for the whole transaction.
pub fn one_snapshot_per_transaction() -> bool {
    // SAFETY: reads a backend variable.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32 }
}

pub fn backend_pid() -> i32 {
    // SAFETY: reads a backend variable.
    unsafe { pg_sys::MyProcPid }
}

pub fn database() -> pg_sys::Oid {
    // SAFETY: reads a backend variable.
    unsafe { pg_sys::MyDatabaseId }
}

/// The name of this session's database.
pub fn database_name() -> String {
    // SAFETY: a C string in the current context, or null.
    text::from_c(unsafe { pg_sys::get_database_name(pg_sys::MyDatabaseId) })
}

/// The session's application_name, where it has one.
pub fn application_name() -> Option<String> {
    // SAFETY: a C string that the setting owns, copied at once.
    Some(text::from_c(unsafe { pg_sys::application_name })).filter(|name| !name.is_empty())
}

/// A WARNING to the client.
pub fn warn(message: &str) {
    pgrx::warning!("{message}");
}

/// The alert of a key that goes while its run lives: a WARNING to the client, if there is one, and to the log.
pub fn warn_expired_alive(place: &crate::error::Place, run: &str) {
    let quoted = crate::error::quoted;
    let (key, scope, run) = (quoted(&place.key), quoted(&place.scope), quoted(run));
    // One line, whatever the names are.
    warn(&crate::error::one_line(&format!(
        "key {key} in scope {scope} expired while its run {run} lives: its operation can be executed again"
    )));
}

/// Makes unknown settings under `prefix` an error.
pub fn reserve_setting_prefix(prefix: &CStr) {
    // SAFETY: a C string.
    unsafe { pg_sys::MarkGUCPrefixReserved(prefix.as_ptr()) };
}

/// This transaction's commit waits for its WAL to be on disk, whatever synchronous_commit says.
pub fn force_synchronous_commit() {
    // SAFETY: sets a flag of the transaction.
    unsafe { pg_sys::ForceSyncCommit() };
}

/// Is the extension's library being loaded by the postmaster?
pub fn preloading() -> bool {
    // SAFETY: reads a backend variable.
    unsafe { pg_sys::process_shared_preload_libraries_in_progress }
}

pub fn binary_upgrade() -> bool {
    // SAFETY: reads a backend variable.
    unsafe { pg_sys::IsBinaryUpgrade }
}

/// `pqsignal`, which is `pqsignal_be` in the backend of 18.
///
/// # Safety
/// `handler` must be fit to run at any moment.
pub unsafe fn set_signal_handler(
    signal: std::ffi::c_int,
    handler: unsafe extern "C-unwind" fn(std::ffi::c_int),
) {
    // SAFETY: promised by the caller.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        pg_sys::pqsignal(signal, Some(handler));
        #[cfg(feature = "pg18")]
        pg_sys::pqsignal_be(signal, Some(handler));
    }
}

/// The index that enforces the primary key.
///
/// # Safety
/// `relation` must be open.
pub unsafe fn primary_key_index(relation: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: promised by the caller.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        return pg_sys::RelationGetPrimaryKeyIndex(relation);
        #[cfg(feature = "pg18")]
        return pg_sys::RelationGetPrimaryKeyIndex(relation, false);
    }
}

/// `TupleDescAttr`, by attribute number from 1.
///
/// # Safety
/// `descriptor` must be valid and have that many attributes.
pub unsafe fn attribute(
    descriptor: pg_sys::TupleDesc,
    number: pg_sys::AttrNumber,
) -> *const pg_sys::FormData_pg_attribute {
    let at = usize::try_from(number - 1).unwrap_or(0);
    // SAFETY: promised by the caller; in 18 the full attributes stand behind the compact ones.
    unsafe {
        #[cfg(not(feature = "pg18"))]
        return (*descriptor).attrs.as_ptr().add(at);
        #[cfg(feature = "pg18")]
        return (*descriptor)
            .compact_attrs
            .as_ptr()
            .add(usize::try_from((*descriptor).natts).unwrap_or(0))
            .cast::<pg_sys::FormData_pg_attribute>()
            .add(at);
    }
}

/// `EvalPlanQualInit` for an executor state without a plan, as logical replication apply uses it.
///
/// # Safety
/// `estate` must be valid and outlive the result.
pub unsafe fn begin_recheck(estate: *mut pg_sys::EState) -> pg_sys::EPQState {
    let mut recheck = pg_sys::EPQState::default();
    let none = std::ptr::null_mut();
    // SAFETY: initialises the whole state, which holds no pointer to itself.
    unsafe {
        #[cfg(feature = "pg15")]
        pg_sys::EvalPlanQualInit(&raw mut recheck, estate, none, std::ptr::null_mut(), -1);
        #[cfg(not(feature = "pg15"))]
        pg_sys::EvalPlanQualInit(
            &raw mut recheck,
            estate,
            none,
            std::ptr::null_mut(),
            -1,
            std::ptr::null_mut(),
        );
    }
    recheck
}
