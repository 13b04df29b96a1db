//! Counters of each scope in shared memory, there only when the library was preloaded: atomics in a fixed table, found
//! by database and scope. Lost at a restart, like those of contrib/pg_stat_statements before it writes its file.

use super::{server, shmem};
use idempotency_core::histogram;
use idempotency_core::time::Instant;
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Scopes of all databases that are counted.
pub const SCOPES_MAX: usize = 1_024;
/// Counters of a scope.
pub const COUNTERS: usize = 23;
/// Lengths of time of which the longest is kept, the first of them with a histogram.
pub const LENGTHS: usize = 5;

/// A scope's counters.
#[repr(C)]
pub(super) struct Counted {
    /// Database and scope; 0 while free. Claimed by compare-and-swap.
    tag: AtomicU64,
    since: AtomicI64,
    counters: [AtomicU64; COUNTERS],
    longest_us: [AtomicI64; LENGTHS],
    histogram: [AtomicU64; histogram::BUCKETS],
    /// What of these the worker has written to the tables; it alone uses them.
    written: [AtomicU64; COUNTERS],
    histogram_written: [AtomicU64; histogram::BUCKETS],
}

/// What was counted in one transaction, or is read at one moment.
#[derive(Clone, Debug)]
pub struct Counts {
    pub counters: [u64; COUNTERS],
    pub longest_us: [i64; LENGTHS],
    pub histogram: [u64; histogram::BUCKETS],
}

impl Counts {
    pub const NONE: Counts = Counts {
        counters: [0; COUNTERS],
        longest_us: [0; LENGTHS],
        histogram: [0; histogram::BUCKETS],
    };

    /// A length of this kind was seen.
    pub fn see(&mut self, kind: usize, us: i64) {
        self.longest_us[kind] = self.longest_us[kind].max(us);
        if kind == 0 {
            self.histogram[histogram::bucket(us)] += 1;
        }
    }

    /// Whether anything was counted. What was longest is written with the next count.
    pub fn is_any(&self) -> bool {
        let mut all = self.counters.iter().chain(&self.histogram);
        all.any(|number| *number > 0)
    }

    /// Adds what another has.
    pub fn add(&mut self, other: &Counts) {
        for (here, more) in self.counters.iter_mut().zip(other.counters) {
            *here += more;
        }
        for (here, more) in self.histogram.iter_mut().zip(other.histogram) {
            *here += more;
        }
        for (here, more) in self.longest_us.iter_mut().zip(other.longest_us) {
            *here = (*here).max(more);
        }
    }
}

thread_local! {
    /// The place of the scope that this session counted last.
    static LAST: Cell<Option<(u64, usize)>> = const { Cell::new(None) };
}

/// Whether anything is counted here.
pub fn available() -> bool {
    shmem::counted().is_some()
}

fn tag_of(scope_id: i32) -> u64 {
    (u64::from(server::database().to_u32()) << 32) | u64::from(scope_id.unsigned_abs())
}

/// Adds to a scope's counters; dropped where all places are taken. Raises nothing: called after the commit.
pub fn add(scope_id: i32, counts: &Counts) {
    let Some(place) = place_of(tag_of(scope_id)) else {
        return;
    };
    for (cell, more) in place.counters.iter().zip(counts.counters) {
        if more > 0 {
            cell.fetch_add(more, Ordering::Relaxed);
        }
    }
    for (cell, us) in place.longest_us.iter().zip(counts.longest_us) {
        if us > cell.load(Ordering::Relaxed) {
            cell.fetch_max(us, Ordering::Relaxed);
        }
    }
    for (cell, more) in place.histogram.iter().zip(counts.histogram) {
        if more > 0 {
            cell.fetch_add(more, Ordering::Relaxed);
        }
    }
}

fn place_of(tag: u64) -> Option<&'static Counted> {
    let places = shmem::counted()?;
    let is_ours = |place: &Counted| place.tag.load(Ordering::Acquire) == tag;
    if let Some((last, at)) = LAST.get()
        && last == tag
        && is_ours(&places[at])
    {
        return Some(&places[at]);
    }
    let at = places
        .iter()
        .position(is_ours)
        .or_else(|| claim(places, tag))?;
    LAST.set(Some((tag, at)));
    Some(&places[at])
}

/// Takes the first free place, or the one that another session just took for this scope. Where one was freed meanwhile, a
/// scope may have two: whoever reads adds them up.
fn claim(places: &[Counted], tag: u64) -> Option<usize> {
    places.iter().position(|place| {
        let tag_now = &place.tag;
        match tag_now.compare_exchange(0, tag, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                place.since.store(server::now().0, Ordering::Relaxed);
                true
            }
            Err(taken) => taken == tag,
        }
    })
}

impl Counted {
    /// Free again, and at zero for whoever takes it next: that one may not be the only one who counts there.
    fn free(&self) {
        self.zero();
        self.tag.store(0, Ordering::Release);
    }

    fn zero(&self) {
        let all = [
            self.counters.as_slice(),
            &self.histogram,
            &self.written,
            &self.histogram_written,
        ];
        for cell in all.into_iter().flatten() {
            cell.store(0, Ordering::Relaxed);
        }
        for cell in &self.longest_us {
            cell.store(0, Ordering::Relaxed);
        }
        self.since.store(server::now().0, Ordering::Relaxed);
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts::NONE;
        for (number, cell) in counts.counters.iter_mut().zip(&self.counters) {
            *number = cell.load(Ordering::Relaxed);
        }
        for (us, cell) in counts.longest_us.iter_mut().zip(&self.longest_us) {
            *us = cell.load(Ordering::Relaxed);
        }
        for (number, cell) in counts.histogram.iter_mut().zip(&self.histogram) {
            *number = cell.load(Ordering::Relaxed);
        }
        counts
    }
}

/// The places of this database that are taken, with their scopes.
fn of_this_database() -> impl Iterator<Item = (i32, &'static Counted)> {
    let database = u64::from(server::database().to_u32());
    shmem::counted()
        .unwrap_or_default()
        .iter()
        .filter_map(move |place| {
            let tag = place.tag.load(Ordering::Acquire);
            let scope_id = i32::try_from(tag & u64::from(u32::MAX)).ok()?;
            (tag != 0 && tag >> 32 == database).then_some((scope_id, place))
        })
}

/// What was counted of a scope, and since when.
pub fn of_scope(scope_id: i32) -> Option<(Instant, Counts)> {
    let mut found: Option<(Instant, Counts)> = None;
    for (_, place) in of_this_database().filter(|(id, _)| *id == scope_id) {
        let since = Instant(place.since.load(Ordering::Relaxed));
        match &mut found {
            None => found = Some((since, place.counts())),
            Some((_, counts)) => counts.add(&place.counts()),
        }
    }
    found
}

/// Whether one more scope could be counted.
pub fn has_room() -> bool {
    let places = shmem::counted().unwrap_or_default();
    places
        .iter()
        .any(|place| place.tag.load(Ordering::Acquire) == 0)
}

/// Sets a scope's counters to zero.
pub fn reset(scope_id: i32) {
    for (_, place) in of_this_database().filter(|(id, _)| *id == scope_id) {
        place.zero();
    }
}

/// What of one place is not written down yet: a scope may have two.
pub struct Unwritten {
    pub scope_id: i32,
    pub counts: Counts,
    place: &'static Counted,
}

/// What was counted of each scope since the worker last said that it has written it down.
pub fn unwritten() -> Vec<Unwritten> {
    let mut found = Vec::new();
    for (scope_id, place) in of_this_database() {
        let mut counts = place.counts();
        for (number, cell) in counts.counters.iter_mut().zip(&place.written) {
            *number = number.saturating_sub(cell.load(Ordering::Relaxed));
        }
        for (number, cell) in counts.histogram.iter_mut().zip(&place.histogram_written) {
            *number = number.saturating_sub(cell.load(Ordering::Relaxed));
        }
        found.push(Unwritten {
            scope_id,
            counts,
            place,
        });
    }
    found
}

impl Unwritten {
    /// The worker has written this much.
    pub fn note_written(&self) {
        for (cell, more) in self.place.written.iter().zip(self.counts.counters) {
            cell.fetch_add(more, Ordering::Relaxed);
        }
        let histogram = self.place.histogram_written.iter();
        for (cell, more) in histogram.zip(self.counts.histogram) {
            cell.fetch_add(more, Ordering::Relaxed);
        }
    }
}

/// Frees the place of a scope that is gone.
pub fn forget(scope_id: i32) {
    for (_, place) in of_this_database().filter(|(id, _)| *id == scope_id) {
        place.free();
    }
}

/// Frees the places of databases that are gone.
pub(super) fn forget_other_databases(places: &[Counted], existing: &[u32]) {
    for place in places {
        let database = place.tag.load(Ordering::Acquire) >> 32;
        if database != 0 && !existing.iter().any(|oid| u64::from(*oid) == database) {
            place.free();
        }
    }
}
