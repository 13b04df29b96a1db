//! The lock of a key: a transaction-level heavyweight lock on its digest, so that waiting, the deadlock
//! detector, prepared transactions and pg_locks work as for any other lock.
//!
//! The tag (advisory class, this database, 64 bits of the digest, our own fourth field) is frozen for ever:
//! sessions with an older library must meet newer ones on it. Follows src/backend/storage/lmgr/lock.c.

use super::raise::{self, Caught};
use super::server;
use idempotency_core::digest;
use pgrx::PgSqlErrorCode;
use pgrx::pg_sys;
use pgrx::pg_sys::LockAcquireResult;

/// Fourth field of our tags; pg_advisory_lock uses 1 and 2.
pub const TAG_FIELD4: u16 = 0x1DE3;

/// The same of an ordering key.
const TAG_FIELD4_ORDER: u16 = 0x1DE4;

/// The same of a run, and of how far pruning has come.
const TAG_FIELD4_UPKEEP: u16 = 0x1DE5;

/// Waits for whoever enqueues under the ordering key of this digest, and holds it to the end of the transaction: the
/// order of messages is that of commits.
pub fn hold_order(digest: &[u8; 16]) {
    acquire(&tag_of(digest, TAG_FIELD4_ORDER), false);
}

/// The lock of a key, held. It stays to the end of the (sub)transaction unless `release` is called.
#[must_use]
pub struct KeyLock(pg_sys::LOCKTAG);

impl KeyLock {
    /// The lock if nobody else holds it.
    pub fn try_acquire(digest: &[u8; 16]) -> Option<KeyLock> {
        let tag = tag(digest);
        match acquire(&tag, true) {
            LockAcquireResult::LOCKACQUIRE_NOT_AVAIL => None,
            _ => Some(KeyLock(tag)),
        }
    }

    /// The lock of a run (or of a scope's pruning) if nobody else holds it.
    pub fn try_acquire_upkeep(digest: &[u8; 16]) -> Option<KeyLock> {
        let tag = tag_of(digest, TAG_FIELD4_UPKEEP);
        match acquire(&tag, true) {
            LockAcquireResult::LOCKACQUIRE_NOT_AVAIL => None,
            _ => Some(KeyLock(tag)),
        }
    }

    /// Waits for the lock of a run.
    pub fn acquire_upkeep(digest: &[u8; 16]) -> KeyLock {
        let tag = tag_of(digest, TAG_FIELD4_UPKEEP);
        acquire(&tag, false);
        KeyLock(tag)
    }

    /// Waits for the lock as for a row: to the end of its holder, `lock_timeout` or a deadlock.
    pub fn acquire(digest: &[u8; 16]) -> KeyLock {
        let tag = tag(digest);
        acquire(&tag, false);
        KeyLock(tag)
    }

    /// Waits at most `wait_ms`, or `lock_timeout` where that is shorter; `None` when the time is over.
    /// A deadlock is raised as one.
    pub fn acquire_within(digest: &[u8; 16], wait_ms: i32) -> Option<KeyLock> {
        if wait_ms <= 0 {
            return KeyLock::try_acquire(digest);
        }
        let tag = tag(digest);
        // SAFETY: the subtransaction is ended on both paths, as in plpgsql's exec_stmt_block.
        unsafe {
            let context = pg_sys::CurrentMemoryContext;
            let owner = pg_sys::CurrentResourceOwner;
            pg_sys::BeginInternalSubTransaction(std::ptr::null());
            pg_sys::CurrentMemoryContext = context;
            let outcome = within(wait_ms, || {
                acquire(&tag, false);
                // A timeout that fired just as the lock came must not come out later.
                server::check_for_interrupts();
            });
            match outcome {
                Ok(_) => {
                    pg_sys::ReleaseCurrentSubTransaction();
                    pg_sys::CurrentMemoryContext = context;
                    pg_sys::CurrentResourceOwner = owner;
                    Some(KeyLock(tag))
                }
                Err(caught) => {
                    pg_sys::RollbackAndReleaseCurrentSubTransaction();
                    pg_sys::CurrentMemoryContext = context;
                    pg_sys::CurrentResourceOwner = owner;
                    match caught {
                        Caught::Postgres {
                            code: PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE,
                            ..
                        } => None,
                        caught @ (Caught::Postgres { .. } | Caught::Other(_)) => caught.resume(),
                    }
                }
            }
        }
    }

    /// Gives the lock back before the transaction ends.
    pub fn release(self) {
        with_transaction_owner(|| {
            // SAFETY: the tag was acquired once for this value, under the same kind of owner.
            unsafe { pg_sys::LockRelease(&raw const self.0, pg_sys::ExclusiveLock as i32, false) }
        });
    }
}

/// Runs `body`, whose waits for locks end with 55P03 after `wait_ms`, or `lock_timeout` where that is shorter.
pub fn within<T>(wait_ms: i32, body: impl FnOnce() -> T) -> Result<T, Caught> {
    // SAFETY: the setting's variable is read when a wait begins, and put back on both paths.
    unsafe {
        let user_timeout_ms = pg_sys::LockTimeout;
        pg_sys::LockTimeout = if user_timeout_ms > 0 {
            wait_ms.min(user_timeout_ms)
        } else {
            wait_ms
        };
        let outcome = raise::catch(body);
        pg_sys::LockTimeout = user_timeout_ms;
        outcome
    }
}

/// The two 32-bit halves of the digest that pg_locks shows as classid and objid.
pub fn tag_fields(digest: &[u8; 16]) -> (u32, u32) {
    digest::lock_tag(digest)
}

fn tag(digest: &[u8; 16]) -> pg_sys::LOCKTAG {
    tag_of(digest, TAG_FIELD4)
}

fn tag_of(digest: &[u8; 16], field4: u16) -> pg_sys::LOCKTAG {
    let (high, low) = tag_fields(digest);
    pg_sys::LOCKTAG {
        // SAFETY: a backend variable, set before any SQL runs.
        locktag_field1: unsafe { pg_sys::MyDatabaseId }.to_u32(),
        locktag_field2: high,
        locktag_field3: low,
        locktag_field4: field4,
        locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
        locktag_lockmethodid: pg_sys::USER_LOCKMETHOD as u8,
    }
}

fn acquire(tag: &pg_sys::LOCKTAG, no_wait: bool) -> LockAcquireResult::Type {
    with_transaction_owner(|| {
        // SAFETY: a whole tag; not a session lock, so the end of the transaction frees it.
        unsafe {
            pg_sys::LockAcquire(
                &raw const *tag,
                pg_sys::ExclusiveLock as i32,
                false,
                no_wait,
            )
        }
    })
}

/// Locks belong to the (sub)transaction and not to the statement's portal: otherwise one taken in an earlier
/// statement could not be released, and a cursor's would survive ROLLBACK TO.
fn with_transaction_owner<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: CurTransactionResourceOwner is set within a transaction; where `body` raises, the abort resets
    // CurrentResourceOwner.
    unsafe {
        let back = pg_sys::CurrentResourceOwner;
        pg_sys::CurrentResourceOwner = pg_sys::CurTransactionResourceOwner;
        let result = body();
        pg_sys::CurrentResourceOwner = back;
        result
    }
}
