//! Shared memory, there only when the library was preloaded: condition variables that wake waiters at commit,
//! and what the worker says of itself. Nothing that correctness needs.
//! Follows contrib/pg_stat_statements and src/backend/storage/lmgr/condition_variable.c.

use super::counters::{self, Counted};
use super::server;
use idempotency_core::time::Instant;
use pgrx::{pg_guard, pg_sys};
use std::ptr::addr_of_mut;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};

/// Waiters are spread over this many condition variables by their key's digest.
pub const WAKE_PARTITIONS: usize = 64;
/// Databases whose last sweep is remembered.
pub const DATABASES_MAX: usize = 64;
const ERROR_BYTES_MAX: usize = 256;
/// Scopes of a database whose predicates are not asked.
const BANNED_MAX: usize = 8;

/// Plain data in shared memory. Each field names what protects it.
#[repr(C)]
struct Shared {
    /// Own spinlocks.
    wake: [pg_sys::ConditionVariable; WAKE_PARTITIONS],
    /// Atomic; 0 while no launcher runs.
    launcher_pid: AtomicI32,
    /// Atomic, a `Trouble`.
    trouble: AtomicU32,
    /// Each a set of atomics: a reader may see one sweep's time with another's count.
    databases: [SweptDatabase; DATABASES_MAX],
    /// Each a set of atomics.
    counted: [Counted; counters::SCOPES_MAX],
}

#[repr(C)]
struct SweptDatabase {
    /// 0 while free; claimed by compare-and-swap.
    oid: AtomicU32,
    swept_at: AtomicI64,
    duration_us: AtomicI64,
    leases_ended: AtomicU64,
    outcomes_pruned: AtomicU64,
    /// 1 where the visit ended before all was done.
    more: AtomicU32,
    /// Where the next visit goes on: the stage, and two digests in halves. The one worker of this database uses them.
    stage: AtomicU32,
    digests: [AtomicU64; 4],
    /// One more than the scope whose predicate is being asked; 0 while none is.
    asking: AtomicI64,
    /// Scopes whose predicate has ended a worker, each one more than its id, and until when they are not asked.
    banned: [(AtomicI64, AtomicI64); BANNED_MAX],
    /// Bytes of the last error; written by the one worker of this database.
    error_bytes: AtomicU32,
    error: [std::sync::atomic::AtomicU8; ERROR_BYTES_MAX],
}

/// What keeps the launcher from working.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    None,
    NoSlot,
}

/// What a worker reports of its visit to a database.
pub struct Swept {
    /// When it ended.
    pub at: Instant,
    pub duration_us: i64,
    pub leases_ended: u64,
    pub outcomes_pruned: u64,
    /// Whether the visit ended before all was done.
    pub more: bool,
    pub error: Option<String>,
}

static mut SHARED: *mut Shared = std::ptr::null_mut();
static mut REQUEST_BEFORE: pg_sys::shmem_request_hook_type = None;
static mut STARTUP_BEFORE: pg_sys::shmem_startup_hook_type = None;

/// Asks for the memory; called from `_PG_init` while preloading.
pub fn init() {
    // SAFETY: single-threaded, in the postmaster.
    unsafe {
        REQUEST_BEFORE = pg_sys::shmem_request_hook;
        pg_sys::shmem_request_hook = Some(request);
        STARTUP_BEFORE = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(startup);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn request() {
    // SAFETY: called by the postmaster, where asking is allowed.
    unsafe {
        if let Some(before) = REQUEST_BEFORE {
            before();
        }
        pg_sys::RequestAddinShmemSpace(size_of::<Shared>());
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn startup() {
    // SAFETY: under AddinShmemInitLock; all-zero is a valid start for every field but the condition variables.
    unsafe {
        if let Some(before) = STARTUP_BEFORE {
            before();
        }
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(ADDIN_SHMEM_INIT_LOCK)).lock;
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let mut found = false;
        let shared =
            pg_sys::ShmemInitStruct(c"idempotency".as_ptr(), size_of::<Shared>(), &raw mut found)
                .cast::<Shared>();
        if !found {
            std::ptr::write_bytes(shared, 0, 1);
            for at in 0..WAKE_PARTITIONS {
                pg_sys::ConditionVariableInit(addr_of_mut!((*shared).wake[at]));
            }
        }
        SHARED = shared;
        pg_sys::LWLockRelease(lock);
    }
}

/// `AddinShmemInitLock`'s place among the main locks (lwlocknames.txt).
const ADDIN_SHMEM_INIT_LOCK: usize = 21;

fn shared() -> Option<&'static Shared> {
    // SAFETY: set once in the postmaster and inherited; shared memory lives as long as the server.
    unsafe { SHARED.as_ref() }
}

/// Was the library preloaded, so that shared memory is there?
pub fn available() -> bool {
    shared().is_some()
}

fn wake_variable(partition: usize) -> Option<*mut pg_sys::ConditionVariable> {
    // SAFETY: an address within the shared struct.
    unsafe {
        (!SHARED.is_null()).then(|| addr_of_mut!((*SHARED).wake[partition % WAKE_PARTITIONS]))
    }
}

/// The partition of a key's waiters.
pub fn partition(digest: &[u8; 16]) -> usize {
    usize::from(digest[15]) % WAKE_PARTITIONS
}

/// Wakes everybody who waits in this partition. Raises nothing: called after the commit.
pub fn wake(partition: usize) {
    if let Some(variable) = wake_variable(partition) {
        // SAFETY: an initialised condition variable; broadcasting only sets latches.
        unsafe { pg_sys::ConditionVariableBroadcast(variable) };
    }
}

/// Sleeps until woken or `wait_ms` have passed; checks interrupts. The first call of a wait returns at once, to
/// let the caller look again: from then on a `wake` is not missed.
pub fn wait(partition: usize, wait_ms: i64) {
    if let Some(variable) = wake_variable(partition) {
        let event = pg_sys::PG_WAIT_EXTENSION;
        // SAFETY: an initialised condition variable.
        unsafe { pg_sys::ConditionVariableTimedSleep(variable, wait_ms, event) };
    }
}

/// Leaves the list of waiters that `wait` joined.
pub fn end_wait() {
    // SAFETY: allowed at any time.
    unsafe { pg_sys::ConditionVariableCancelSleep() };
}

/// Says that the launcher runs in this process, or (0) that it stopped.
pub fn set_launcher_pid(pid: i32) {
    if let Some(shared) = shared() {
        shared.launcher_pid.store(pid, Ordering::Relaxed);
    }
}

pub fn launcher_pid() -> i32 {
    shared().map_or(0, |shared| shared.launcher_pid.load(Ordering::Relaxed))
}

pub fn set_trouble(trouble: Trouble) {
    if let Some(shared) = shared() {
        let code = match trouble {
            Trouble::None => 0,
            Trouble::NoSlot => 1,
        };
        shared.trouble.store(code, Ordering::Relaxed);
    }
}

pub fn trouble() -> Trouble {
    match shared().map_or(0, |shared| shared.trouble.load(Ordering::Relaxed)) {
        0 => Trouble::None,
        _ => Trouble::NoSlot,
    }
}

/// Remembers a visit to the current database; dropped when all places are taken.
pub fn report_sweep(swept: &Swept) {
    let Some(place) = place_of(server::database(), true) else {
        return;
    };
    let error = remembered(swept.error.as_deref().unwrap_or("")).as_bytes();
    for (cell, byte) in place.error.iter().zip(error) {
        cell.store(*byte, Ordering::Relaxed);
    }
    place
        .error_bytes
        .store(u32::try_from(error.len()).unwrap_or(0), Ordering::Relaxed);
    place
        .duration_us
        .store(swept.duration_us, Ordering::Relaxed);
    place
        .leases_ended
        .store(swept.leases_ended, Ordering::Relaxed);
    place
        .outcomes_pruned
        .store(swept.outcomes_pruned, Ordering::Relaxed);
    place.more.store(u32::from(swept.more), Ordering::Relaxed);
    place.swept_at.store(swept.at.0, Ordering::Release);
}

/// As much of an error as there is room for.
pub fn remembered(error: &str) -> &str {
    &error[..error.floor_char_boundary(ERROR_BYTES_MAX)]
}

/// The last visit to the current database.
pub fn last_sweep() -> Option<Swept> {
    let place = place_of(server::database(), false)?;
    is_visited(place).then(|| swept(place))
}

/// Where the worker's next visit to the current database goes on: the stage, and two digests.
pub fn place() -> (usize, [[u8; 16]; 2]) {
    let Some(place) = place_of(server::database(), true) else {
        return (0, [[0; 16]; 2]);
    };
    let half = |at: usize| place.digests[at].load(Ordering::Relaxed).to_be_bytes();
    let digest = |at: usize| {
        let mut digest = [0; 16];
        digest[..8].copy_from_slice(&half(at));
        digest[8..].copy_from_slice(&half(at + 1));
        digest
    };
    let stage = place.stage.load(Ordering::Relaxed) as usize;
    (stage, [digest(0), digest(2)])
}

/// Remembers where the next visit goes on.
pub fn set_place(stage: usize, digests: [[u8; 16]; 2]) {
    let Some(place) = place_of(server::database(), true) else {
        return;
    };
    let halves = digests.iter().flat_map(|digest| digest.chunks_exact(8));
    for (cell, half) in place.digests.iter().zip(halves) {
        let half = <[u8; 8]>::try_from(half).unwrap_or_default();
        cell.store(u64::from_be_bytes(half), Ordering::Relaxed);
    }
    place
        .stage
        .store(u32::try_from(stage).unwrap_or(0), Ordering::Relaxed);
}

/// A predicate of this scope is being asked by the worker, or none any more.
pub fn note_asking(scope_id: Option<i32>) {
    if let Some(place) = place_of(server::database(), true) {
        let mark = scope_id.map_or(0, |id| i64::from(id) + 1);
        place.asking.store(mark, Ordering::Relaxed);
    }
}

/// The scopes whose predicates are not to be asked now. Where a worker ended while it asked one, that one joins them
/// until then.
pub fn banned(now: Instant, until: Instant) -> Vec<i32> {
    let Some(place) = place_of(server::database(), true) else {
        return Vec::new();
    };
    let asked = place.asking.swap(0, Ordering::Relaxed);
    // One that ends later than any could was made before the clock went back.
    let is_over = |end: &AtomicI64| {
        let end = end.load(Ordering::Relaxed);
        end <= now.0 || end > until.0
    };
    if asked != 0 {
        join_banned(place, asked, now, until);
    }
    place
        .banned
        .iter()
        .filter(|(_, end)| !is_over(end))
        .filter_map(|(scope, _)| i32::try_from(scope.load(Ordering::Relaxed) - 1).ok())
        .collect()
}

fn join_banned(place: &SweptDatabase, mark: i64, now: Instant, until: Instant) {
    let is_free = |scope: &AtomicI64, end: &AtomicI64| {
        scope.load(Ordering::Relaxed) == mark || end.load(Ordering::Relaxed) <= now.0
    };
    let free = place.banned.iter().find(|(scope, end)| is_free(scope, end));
    let (scope, end) = free.unwrap_or(&place.banned[0]);
    scope.store(mark, Ordering::Relaxed);
    end.store(until.0, Ordering::Relaxed);
}

/// The predicate of this scope is not asked until then: it took all the time that it was given.
pub fn ban(scope_id: i32, now: Instant, until: Instant) {
    if let Some(place) = place_of(server::database(), true) {
        join_banned(place, i64::from(scope_id) + 1, now, until);
    }
}

/// The scope has another predicate, or none.
pub fn lift_ban(scope_id: i32) {
    let Some(place) = place_of(server::database(), false) else {
        return;
    };
    for (scope, end) in &place.banned {
        if scope.load(Ordering::Relaxed) == i64::from(scope_id) + 1 {
            end.store(0, Ordering::Relaxed);
        }
    }
}

/// Whether the last visit to this database ended before all was done.
pub fn more_is_due(database: pg_sys::Oid) -> bool {
    place_of(database, false).is_some_and(|place| place.more.load(Ordering::Relaxed) != 0)
}

/// The last visit to each database that was visited.
pub fn last_sweeps() -> Vec<(pg_sys::Oid, Swept)> {
    let Some(shared) = shared() else {
        return Vec::new();
    };
    shared
        .databases
        .iter()
        .filter_map(|place| {
            let oid = place.oid.load(Ordering::Acquire);
            (oid != 0 && is_visited(place)).then(|| (pg_sys::Oid::from(oid), swept(place)))
        })
        .collect()
}

/// Its place may be taken before its first visit has ended.
fn is_visited(place: &SweptDatabase) -> bool {
    place.swept_at.load(Ordering::Acquire) != 0
}

fn swept(place: &SweptDatabase) -> Swept {
    let at = Instant(place.swept_at.load(Ordering::Acquire));
    let error_bytes = place.error_bytes.load(Ordering::Relaxed) as usize;
    let error: Vec<u8> = place
        .error
        .iter()
        .take(error_bytes)
        .map(|cell| cell.load(Ordering::Relaxed))
        .collect();
    Swept {
        at,
        duration_us: place.duration_us.load(Ordering::Relaxed),
        leases_ended: place.leases_ended.load(Ordering::Relaxed),
        outcomes_pruned: place.outcomes_pruned.load(Ordering::Relaxed),
        more: place.more.load(Ordering::Relaxed) != 0,
        error: (!error.is_empty()).then(|| String::from_utf8_lossy(&error).into_owned()),
    }
}

/// The counters of all scopes.
pub(super) fn counted() -> Option<&'static [Counted]> {
    shared().map(|shared| shared.counted.as_slice())
}

/// Frees the places of databases that are gone. The launcher alone calls this, while no sweeper runs.
pub fn forget_other_databases(existing: impl Iterator<Item = pg_sys::Oid>) {
    let Some(shared) = shared() else { return };
    let existing: Vec<u32> = existing.map(pg_sys::Oid::to_u32).collect();
    for place in &shared.databases {
        if !existing.contains(&place.oid.load(Ordering::Acquire)) {
            place.oid.store(0, Ordering::Release);
        }
    }
    counters::forget_other_databases(&shared.counted, &existing);
}

fn place_of(database: pg_sys::Oid, claim: bool) -> Option<&'static SweptDatabase> {
    let oid = database.to_u32();
    let places = &shared()?.databases;
    if let Some(place) = places
        .iter()
        .find(|place| place.oid.load(Ordering::Acquire) == oid)
    {
        return Some(place);
    }
    if !claim {
        return None;
    }
    places.iter().find(|place| {
        place
            .oid
            .compare_exchange(0, oid, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    })
}
