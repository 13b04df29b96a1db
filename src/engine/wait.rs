//! Bounded waiting: for a transaction that holds a key's lock, and for a lease.

use crate::pg::lock::KeyLock;
use crate::pg::{latch, server, shmem};
use idempotency_core::time::Instant;
use std::time::{Duration, Instant as Moment};

/// How long a caller will wait, as its `wait` argument says.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Since then, by a clock that nobody sets.
    since: Moment,
    /// So long for another transaction.
    transaction: Duration,
    /// So long for a leased claim; `None` answers at once.
    lease: Option<Duration>,
}

/// Longest single sleep: bounds how late a missed wake-up is noticed.
const POLL_MS_MAX: i64 = 250;
/// First sleep without shared memory; doubles up to the longest.
const POLL_MS_FIRST: i64 = 5;
/// Longest single sleep where a commit wakes us; COMMIT PREPARED does not.
const WOKEN_MS_MAX: i64 = 250;

impl Patience {
    /// `wait` NULL: for a transaction up to the scope's wait, not at all for a lease; else for both.
    pub fn new(wait_us: Option<i64>, scope_wait_ms: i64) -> Patience {
        let us = |us: i64| Duration::from_micros(u64::try_from(us).unwrap_or(0));
        let transaction = wait_us.unwrap_or_else(|| scope_wait_ms.saturating_mul(1_000));
        Patience {
            since: Moment::now(),
            transaction: us(transaction),
            lease: wait_us.map(us),
        }
    }

    /// Waits for the transaction that holds the key; `None` when the time is over.
    pub fn lock(self, digest: &[u8; 16]) -> Option<KeyLock> {
        let left = self.transaction.saturating_sub(self.since.elapsed());
        KeyLock::acquire_within(digest, rounded_up_ms(left))
    }

    /// Whether there is time left to wait for a lease.
    pub fn for_lease(self) -> bool {
        self.lease.is_some_and(|lease| self.since.elapsed() < lease)
    }

    /// Sleeps until the key may have changed: its owner committed, its lease ended, or a moment passed.
    /// `round` counts the sleeps so far.
    pub fn sleep(self, digest: &[u8; 16], lease_expires_at: Instant, round: u32) {
        let of_lease_us = lease_expires_at.since(server::now()).max(0);
        let of_lease = Duration::from_micros(of_lease_us.unsigned_abs());
        let left = self.lease.map_or(of_lease, |lease| {
            lease.saturating_sub(self.since.elapsed()).min(of_lease)
        });
        let left_ms = i64::from(rounded_up_ms(left)).max(1);
        let partition = shmem::partition(digest);
        if shmem::available() {
            shmem::wait(partition, left_ms.min(WOKEN_MS_MAX));
        } else {
            let poll_ms = POLL_MS_FIRST
                .saturating_mul(1 << round.min(8))
                .min(POLL_MS_MAX);
            latch::sleep(left_ms.min(poll_ms));
        }
    }
}

fn rounded_up_ms(left: Duration) -> i32 {
    i32::try_from(left.as_micros().div_ceil(1_000)).unwrap_or(i32::MAX)
}

/// Ends waiting, where `sleep` was called: this session is no longer on a waiters' list.
pub fn end() {
    if shmem::available() {
        shmem::end_wait();
    }
}
