//! Bounded waiting: for a transaction that holds a key's lock, and for a lease.

use crate::pg::lock::KeyLock;
use crate::pg::{latch, server, shmem};
use idempotency_core::time::Instant;

/// How long a caller will wait, as its `wait` argument says.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Until then for another transaction.
    transaction_until: Instant,
    /// Until then for a leased claim; `None` answers at once.
    lease_until: Option<Instant>,
}

/// Longest single sleep: bounds how late a missed wake-up is noticed.
const POLL_MS_MAX: i64 = 250;
/// First sleep without shared memory; doubles up to the longest.
const POLL_MS_FIRST: i64 = 5;
/// Longest single sleep where a commit wakes us; COMMIT PREPARED does not.
const WOKEN_MS_MAX: i64 = 250;

impl Patience {
    /// `wait` NULL: for a transaction up to the scope's wait, not at all for a lease; else for both.
    pub fn new(wait_us: Option<i64>, scope_wait_ms: i64, now: Instant) -> Patience {
        let after = |us: i64| Instant(now.0.saturating_add(us));
        match wait_us {
            None => Patience {
                transaction_until: after(scope_wait_ms.saturating_mul(1_000)),
                lease_until: None,
            },
            Some(us) => Patience {
                transaction_until: after(us),
                lease_until: Some(after(us)),
            },
        }
    }

    /// Waits for the transaction that holds the key; `None` when the time is over.
    pub fn lock(self, digest: &[u8; 16]) -> Option<KeyLock> {
        KeyLock::acquire_within(digest, rounded_up_ms(self.transaction_until, server::now()))
    }

    /// Whether there is time left to wait for a lease.
    pub fn for_lease(self, now: Instant) -> bool {
        self.lease_until.is_some_and(|until| now < until)
    }

    /// Sleeps until the key may have changed: its owner committed, its lease ended, or a moment passed.
    /// `round` counts the sleeps so far.
    pub fn sleep(self, digest: &[u8; 16], lease_expires_at: Instant, round: u32) {
        let now = server::now();
        let until = self
            .lease_until
            .map_or(lease_expires_at, |until| until.min(lease_expires_at));
        let left_ms = i64::from(rounded_up_ms(until, now)).max(1);
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

fn rounded_up_ms(until: Instant, now: Instant) -> i32 {
    let ms = until.since(now).saturating_add(999) / 1_000;
    i32::try_from(ms.max(0)).unwrap_or(i32::MAX)
}

/// Ends waiting, where `sleep` was called: this session is no longer on a waiters' list.
pub fn end() {
    if shmem::available() {
        shmem::end_wait();
    }
}
