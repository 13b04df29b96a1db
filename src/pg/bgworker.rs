//! Background worker plumbing: registering the launcher, starting one worker per database, transactions of
//! their own. Follows src/test/modules/worker_spi and src/backend/postmaster/autovacuum.c.

use super::{latch, raise, server};
use crate::error::Error;
use pgrx::{pg_guard, pg_sys};
use std::ffi::{CStr, c_char};

// As function pointers for signals, which pgrx's guarded wrappers cannot be; and two that pgrx does not bind.
unsafe extern "C-unwind" {
    fn die(signal: std::ffi::c_int);
    fn SignalHandlerForConfigReload(signal: std::ffi::c_int);
    fn enable_timeout_after(id: std::ffi::c_int, delay_ms: std::ffi::c_int);
    fn disable_timeout(id: std::ffi::c_int, keep_indicator: bool);
}

/// `STATEMENT_TIMEOUT` of utils/timeout.h, the same in 15 to 18.
const STATEMENT_TIMEOUT: std::ffi::c_int = 3;

const LIBRARY: &CStr = c"idempotency";

/// Registers the launcher with the postmaster; called while preloading.
pub fn register_launcher() {
    let mut worker = describe(
        c"idempotency launcher",
        c"idempotency launcher",
        c"idempotency_launcher_main",
    );
    worker.bgw_start_time = pg_sys::BgWorkerStartTime::BgWorkerStart_RecoveryFinished;
    worker.bgw_restart_time = 5;
    // SAFETY: a whole description, copied by the call.
    unsafe { pg_sys::RegisterBackgroundWorker(&raw mut worker) };
}

fn describe(name: &CStr, kind: &CStr, function: &CStr) -> pg_sys::BackgroundWorker {
    let mut worker = pg_sys::BackgroundWorker::default();
    copy_name(&mut worker.bgw_name, name);
    copy_name(&mut worker.bgw_type, kind);
    copy_name(&mut worker.bgw_library_name, LIBRARY);
    copy_name(&mut worker.bgw_function_name, function);
    worker.bgw_flags = (pg_sys::BGWORKER_SHMEM_ACCESS
        | pg_sys::BGWORKER_BACKEND_DATABASE_CONNECTION) as std::ffi::c_int;
    worker
}

fn copy_name(field: &mut [c_char], name: &CStr) {
    for (cell, byte) in field.iter_mut().zip(name.to_bytes_with_nul()) {
        *cell = *byte as c_char;
    }
}

/// How a visit to a database ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    Done,
    NoSlot,
}

/// After this much of a visit the worker is told to end: other databases are waiting.
const VISIT_MAX: std::time::Duration = std::time::Duration::from_secs(20);
/// The end of a worker is looked for this often, should its signal be missed.
const POLL_MS: i64 = 500;

/// Waits until the worker exits, and after `VISIT_MAX` terminates it.
///
/// # Safety
/// `handle` must be of a worker that notifies this process.
unsafe fn wait_for_end(handle: *mut pg_sys::BackgroundWorkerHandle) {
    let begun = std::time::Instant::now();
    let mut told = false;
    loop {
        let mut pid = 0;
        // SAFETY: promised by the caller.
        let status = unsafe { pg_sys::GetBackgroundWorkerPid(handle, &raw mut pid) };
        if status == pg_sys::BgwHandleStatus::BGWH_STOPPED {
            return;
        }
        if !told && begun.elapsed() > VISIT_MAX {
            pgrx::log!("idempotency: the worker of a database took too long and is terminated");
            // SAFETY: as above.
            unsafe { pg_sys::TerminateBackgroundWorker(handle) };
            told = true;
        }
        latch::sleep(POLL_MS);
    }
}

/// Starts a worker for one database and waits until it exits.
pub fn visit_database(database: pg_sys::Oid) -> Visit {
    let mut worker = describe(
        c"idempotency worker",
        c"idempotency worker",
        c"idempotency_worker_main",
    );
    worker.bgw_start_time = pg_sys::BgWorkerStartTime::BgWorkerStart_RecoveryFinished;
    worker.bgw_restart_time = pg_sys::BGW_NEVER_RESTART;
    worker.bgw_main_arg = pg_sys::Datum::from(database.to_u32());
    worker.bgw_notify_pid = server::backend_pid();
    let mut handle = std::ptr::null_mut();
    // SAFETY: a whole description; the handle is ours. Waiting checks interrupts and ends with the postmaster.
    unsafe {
        if !pg_sys::RegisterDynamicBackgroundWorker(&raw mut worker, &raw mut handle) {
            return Visit::NoSlot;
        }
        wait_for_end(handle);
        pg_sys::pfree(handle.cast());
    }
    Visit::Done
}

/// Begins the life of a worker process: signals, identity, connection to one database or (None) to the
/// shared catalogues alone.
pub fn begin(database: Option<pg_sys::Oid>) {
    // SAFETY: at the start of a background worker. `die` lets SIGTERM take effect at the next interrupt check,
    // as in an ordinary backend.
    unsafe {
        server::set_signal_handler(libc_signal::SIGTERM, die);
        server::set_signal_handler(libc_signal::SIGHUP, SignalHandlerForConfigReload);
        pg_sys::BackgroundWorkerUnblockSignals();
        match database {
            Some(database) => {
                pg_sys::BackgroundWorkerInitializeConnectionByOid(database, pg_sys::InvalidOid, 0);
            }
            None => {
                pg_sys::BackgroundWorkerInitializeConnection(std::ptr::null(), std::ptr::null(), 0)
            }
        }
    }
}

mod libc_signal {
    pub const SIGHUP: i32 = 1;
    pub const SIGTERM: i32 = 15;
}

/// Reads the configuration again where SIGHUP came.
pub fn reload_if_asked() {
    // SAFETY: a flag that the signal handler sets.
    unsafe {
        if pg_sys::ConfigReloadPending != 0 {
            pg_sys::ConfigReloadPending = 0;
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
    }
}

/// Sets a setting for this process alone.
pub fn set_option(name: &CStr, value: &CStr) {
    // SAFETY: C strings; raises where the setting is unknown.
    unsafe {
        pg_sys::SetConfigOption(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_SUSET,
            pg_sys::GucSource::PGC_S_OVERRIDE,
        );
    }
}

/// Sets a setting to the end of the current nest level of settings.
///
/// # Safety
/// A nest level of the caller's must be open.
pub unsafe fn set_local_option(name: &CStr, value: &CStr) {
    // SAFETY: C strings; promised by the caller.
    unsafe {
        pg_sys::set_config_option(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_SESSION,
            pg_sys::GucAction::GUC_ACTION_SAVE,
            true,
            0,
            false,
        );
    }
}

/// Longest transaction of a worker: a DROP DATABASE waits 5 s for it.
pub const TRANSACTION_MS_MAX: std::ffi::c_int = 3_000;

/// Runs `body` in a transaction of its own with a snapshot, and says in pg_stat_activity what it does. An error
/// of any kind aborts the transaction, goes to the log and comes back as its message.
pub fn transaction<T>(
    activity: &CStr,
    body: impl FnOnce() -> Result<T, Error>,
) -> Result<T, String> {
    // SAFETY: outside any transaction; what raises is caught, and the abort cleans up behind it, as the outer
    // error handler of an ordinary backend does.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_RUNNING, activity.as_ptr());
        enable_timeout_after(STATEMENT_TIMEOUT, TRANSACTION_MS_MAX);
        let result = raise::catch_any_message(|| {
            pg_sys::StartTransactionCommand();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            let value = body()?;
            pg_sys::PopActiveSnapshot();
            pg_sys::CommitTransactionCommand();
            Ok(value)
        });
        disable_timeout(STATEMENT_TIMEOUT, false);
        if let Err(message) = &result {
            pg_sys::AbortCurrentTransaction();
            pgrx::log!("idempotency: {message}");
        }
        pg_sys::pgstat_report_stat(true);
        pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, std::ptr::null());
        result
    }
}

/// Says in pg_stat_activity what an idle process waits for.
pub fn report_idle(activity: &CStr) {
    // SAFETY: a C string.
    unsafe { pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, activity.as_ptr()) };
}

/// Says once in the log that no worker could be started.
pub fn log_no_slot() {
    pgrx::log!(
        "idempotency: no background worker slot is free, so nothing is swept; raise max_worker_processes"
    );
}

/// Whoever asks for the launcher after its end is told that there is none.
pub fn clear_launcher_pid_at_exit() {
    // SAFETY: a plain function.
    unsafe { pg_sys::before_shmem_exit(Some(launcher_exits), pg_sys::Datum::null()) };
}

#[pg_guard]
unsafe extern "C-unwind" fn launcher_exits(_code: std::ffi::c_int, _argument: pg_sys::Datum) {
    super::shmem::set_launcher_pid(0);
}

/// Databases that can be connected to, templates aside: number and name.
pub fn databases() -> Result<Vec<(pg_sys::Oid, String)>, String> {
    transaction(c"listing databases", || {
        let mut found = Vec::new();
        // SAFETY: a scan of a shared catalogue; the row is read while the scan holds it.
        unsafe {
            let relation =
                pg_sys::table_open(pg_sys::DatabaseRelationId, pg_sys::AccessShareLock as i32);
            let scan = pg_sys::systable_beginscan(
                relation,
                pg_sys::InvalidOid,
                false,
                std::ptr::null_mut(),
                0,
                std::ptr::null_mut(),
            );
            loop {
                let tuple = pg_sys::systable_getnext(scan);
                if tuple.is_null() {
                    break;
                }
                let header = (*tuple).t_data;
                let database = header
                    .cast::<u8>()
                    .add(usize::from((*header).t_hoff))
                    .cast::<pg_sys::FormData_pg_database>();
                if (*database).datallowconn
                    && !(*database).datistemplate
                    && (*database).datconnlimit != DROPPING
                {
                    // In the encoding of whatever database created it: shown, not converted.
                    let name = std::ffi::CStr::from_ptr((*database).datname.data.as_ptr());
                    let name = name.to_string_lossy().into_owned();
                    found.push(((*database).oid, name));
                }
            }
            pg_sys::systable_endscan(scan);
            pg_sys::table_close(relation, pg_sys::AccessShareLock as i32);
        }
        Ok(found)
    })
}

/// `DATCONNLIMIT_INVALID_DB`: a DROP DATABASE that was interrupted.
const DROPPING: i32 = -2;

/// Whether the extension is in this database. Then it is not dropped before this transaction ends: DROP EXTENSION locks
/// the extension before its tables, and so waits before it holds any that this transaction is still to open.
pub fn extension_is_here() -> bool {
    let look = || {
        // SAFETY: a catalogue look-up.
        unsafe { pg_sys::get_extension_oid(c"idempotency".as_ptr(), true) }
    };
    let extension = look();
    if extension == pg_sys::InvalidOid {
        return false;
    }
    let mode = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
    // SAFETY: a lock to the end of the transaction; taking it takes in what others have changed.
    unsafe { pg_sys::LockDatabaseObject(pg_sys::ExtensionRelationId, extension, 0, mode) };
    look() == extension
}

/// Makes `fn(Oid)` the main function of a background worker under a C symbol; its argument is a database.
#[macro_export]
macro_rules! background_worker {
    ($symbol:ident, $main:path) => {
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        #[::pgrx::pg_guard]
        pub extern "C-unwind" fn $symbol(argument: ::pgrx::pg_sys::Datum) {
            $main(::pgrx::pg_sys::Oid::from(argument.value() as u32));
        }
    };
}
