//! The settings, each with one typed accessor. What would weaken a guarantee is not for ordinary users to set.

use idempotency_core::time::Span;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::ffi::CString;

static WAIT_MS: GucSetting<i32> = GucSetting::<i32>::new(10_000);
static DEFAULT_WINDOW_S: GucSetting<i32> = GucSetting::<i32>::new(30 * 86_400);
static MAX_RESULT_BYTES: GucSetting<i32> = GucSetting::<i32>::new(64 * 1_024);
static MAX_CLAIMS: GucSetting<i32> = GucSetting::<i32>::new(2_000);
static MAX_PAYLOAD_BYTES: GucSetting<i32> = GucSetting::<i32>::new(1_024 * 1_024);
static RECONCILE_TIMEOUT_MS: GucSetting<i32> = GucSetting::<i32>::new(5_000);
static EVENT_RETENTION_S: GucSetting<i32> = GucSetting::<i32>::new(90 * 86_400);
static NOTIFY_CHANNEL: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);
static NAPTIME_MS: GucSetting<i32> = GucSetting::<i32>::new(10_000);
static SWEEP_BATCH_ROWS: GucSetting<i32> = GucSetting::<i32>::new(1_000);
static WORKER: GucSetting<bool> = GucSetting::<bool>::new(true);
static DATABASES: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);

/// How long a claim waits for another transaction that holds its key, unless call or scope say otherwise.
pub fn wait_ms() -> i32 {
    WAIT_MS.get()
}

/// The window of scopes that set none.
pub fn default_window() -> Span {
    Span::from_s(u32::try_from(DEFAULT_WINDOW_S.get()).unwrap_or(0))
}

/// The largest result of scopes that set none.
pub fn max_result_bytes() -> usize {
    usize::try_from(MAX_RESULT_BYTES.get()).unwrap_or(0)
}

/// The largest payload of a message.
pub fn max_payload_bytes() -> usize {
    usize::try_from(MAX_PAYLOAD_BYTES.get()).unwrap_or(0)
}

/// How long a scope's reconciler may run.
pub fn reconcile_timeout_ms() -> i32 {
    RECONCILE_TIMEOUT_MS.get()
}

/// Keys whose lock one transaction may keep.
pub fn max_claims_per_transaction() -> usize {
    usize::try_from(MAX_CLAIMS.get()).unwrap_or(0)
}

/// How long events are kept.
pub fn event_retention() -> Span {
    Span::from_s(u32::try_from(EVENT_RETENTION_S.get()).unwrap_or(0))
}

/// The channel that the worker notifies of expired keys whose run lives, if any.
pub fn notify_channel() -> Option<String> {
    NOTIFY_CHANNEL
        .get()
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| !name.is_empty())
}

/// Pause of the launcher between two rounds.
pub fn naptime_ms() -> i64 {
    i64::from(NAPTIME_MS.get())
}

/// Rows that one transaction of a sweep handles.
pub fn sweep_batch_rows() -> usize {
    usize::try_from(SWEEP_BATCH_ROWS.get()).unwrap_or(1)
}

/// Whether the launcher visits databases at all.
pub fn worker_enabled() -> bool {
    WORKER.get()
}

/// Whether the launcher visits this database.
pub fn serves_database(name: &str) -> bool {
    match DATABASES.get() {
        None => true,
        Some(list) => {
            let list = list.to_string_lossy();
            let mut wanted = list
                .split(',')
                .map(str::trim)
                .filter(|entry| !entry.is_empty())
                .peekable();
            wanted.peek().is_none() || wanted.any(|entry| entry == name)
        }
    }
}

/// Defines the settings; called once, from `_PG_init`.
pub fn init() {
    GucRegistry::define_int_guc(
        c"idempotency.wait",
        c"How long a claim waits for another transaction that holds its key.",
        c"A wait argument and the scope's wait come first. Then the claim answers in_progress.",
        &WAIT_MS,
        0,
        i32::MAX,
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"idempotency.default_window",
        c"How long an outcome guards its key in scopes that set no dedup_window.",
        c"Must exceed the longest interval over which an operation may be tried again.",
        &DEFAULT_WINDOW_S,
        1,
        i32::MAX,
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_int_guc(
        c"idempotency.max_result_bytes",
        c"Largest result that is stored, in scopes that set none.",
        c"Larger ones are refused with 54000.",
        &MAX_RESULT_BYTES,
        0,
        i32::MAX,
        GucContext::Suset,
        GucFlags::UNIT_BYTE,
    );
    GucRegistry::define_int_guc(
        c"idempotency.max_payload_bytes",
        c"Largest payload of a message in the outbox.",
        c"Larger ones are refused with 54000.",
        &MAX_PAYLOAD_BYTES,
        0,
        256 * 1_024 * 1_024,
        GucContext::Suset,
        GucFlags::UNIT_BYTE,
    );
    GucRegistry::define_int_guc(
        c"idempotency.reconcile_timeout",
        c"How long a scope's reconciler may run.",
        c"After that it counts as a read without an answer.",
        &RECONCILE_TIMEOUT_MS,
        1,
        60_000,
        GucContext::Suset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"idempotency.max_claims_per_transaction",
        c"Keys that one transaction may claim or finish.",
        c"Each keeps a lock in the shared lock table to the end of its transaction; more are refused with 54000.",
        &MAX_CLAIMS,
        1,
        i32::MAX,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"idempotency.event_retention",
        c"How long events are kept.",
        c"Sweeps remove older rows of idempotency.event, and of the hourly activity.",
        &EVENT_RETENTION_S,
        1,
        i32::MAX,
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_string_guc(
        c"idempotency.notify_channel",
        c"Channel that the background worker notifies when keys expired while their run lives; empty means none.",
        c"At most one notification per visit, from the worker only.",
        &NOTIFY_CHANNEL,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"idempotency.naptime",
        c"Pause of the background worker between two rounds over the databases.",
        c"",
        &NAPTIME_MS,
        10,
        i32::MAX,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"idempotency.sweep_batch",
        c"Rows that one transaction of a sweep handles.",
        c"",
        &SWEEP_BATCH_ROWS,
        1,
        2_000,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"idempotency.worker",
        c"Whether the background worker sweeps.",
        c"Needs the library in shared_preload_libraries. Without it call idem_sweep().",
        &WORKER,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"idempotency.databases",
        c"Databases that the background worker sweeps, separated by commas; empty means all.",
        c"",
        &DATABASES,
        GucContext::Sighup,
        GucFlags::default(),
    );
    // Last: from here on an unknown idempotency.* setting is an error.
    crate::pg::server::reserve_setting_prefix(c"idempotency");
}
