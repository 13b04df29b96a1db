//! Upkeep in bounded batches: leases that ended, outcomes past their window, runs that fell silent, old events.
//!
//! A sweep never changes an answer. It only tries each key's lock, and looks and decides again under it: its
//! list of candidates is stale by then. Locked keys are skipped; cursors move on past them.

use crate::engine::key::ScopedKey;
use crate::engine::open_claims;
use crate::engine::prune::{self, Scopes, Terms};
use crate::engine::settle::{Grounds, Site};
use crate::engine::trail;
use crate::error::Error;
use crate::guc;
use crate::pg::lock::KeyLock;
use crate::pg::table::{Mode, Snapshot};
use crate::pg::time_limit::Runner;
use crate::pg::{reader, server, xact};
use crate::policy;
use crate::stats::{self, Counter};
use crate::store::outcome::OutcomeRow;
use crate::store::run::{RunRow, Runs};
use crate::store::{KeyTables, Stands, claim, event, outcome};
use idempotency_core::decide::{
    self, FinishedKey, FinishedState, OpenKey, OpenState, Prior, Sweep,
};
use idempotency_core::digest;
use idempotency_core::time::Instant;
use idempotency_core::window::Run;
use std::cell::RefCell;

use super::record::LEASE_EXPIRED;

/// Where a pass over a database stands. A pass ends when each stage was done once, from whichever it began with.
#[derive(Clone, Debug)]
pub struct Pass {
    stage: Stage,
    /// Stages that are still to be done, this one included.
    left: usize,
    /// Leases and runs that come after these digests.
    leases_from: [u8; 16],
    runs_from: [u8; 16],
    scopes: Box<Scopes>,
    /// Prune from the first outcome of each scope, and not from where the last pass came.
    from_start: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Leases that ended.
    Leases,
    /// Outcomes and tombstones.
    Outcomes,
    /// Runs: their signs of life, those that fell silent, those that are long over.
    Runs,
    /// Events that are kept no longer.
    Events,
}

const STAGES: [Stage; 4] = [Stage::Leases, Stage::Outcomes, Stage::Runs, Stage::Events];

impl Default for Pass {
    fn default() -> Pass {
        Pass {
            stage: Stage::Leases,
            left: STAGES.len(),
            leases_from: [0; 16],
            runs_from: [0; 16],
            scopes: Box::default(),
            from_start: false,
        }
    }
}

/// Where the worker's next visit goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub stage: usize,
    pub leases_from: [u8; 16],
    pub runs_from: [u8; 16],
}

impl Pass {
    /// A pass that prunes from the first outcome of each scope.
    fn whole() -> Pass {
        Pass {
            from_start: true,
            ..Pass::default()
        }
    }

    /// A visit of the worker's; the predicates of `not_asked` are not asked.
    pub fn from_place(place: &Place, not_asked: &[i32]) -> Pass {
        Pass {
            stage: STAGES[place.stage % STAGES.len()],
            leases_from: place.leases_from,
            runs_from: place.runs_from,
            scopes: Box::new(Scopes::not_asking(not_asked)),
            ..Pass::default()
        }
    }

    /// Where the next visit goes on. After one that ran out of time: with the next stage, so that none takes all the time
    /// for ever.
    pub fn next_place(&self, is_done: bool) -> Place {
        if is_done {
            return Place::default();
        }
        Place {
            stage: (self.stage as usize + 1) % STAGES.len(),
            leases_from: self.leases_from,
            runs_from: self.runs_from,
        }
    }
}

/// What one batch did.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub leases_ended: u32,
    pub outcomes_pruned: u32,
    /// Whether the pass goes on.
    pub more: bool,
    /// Keys that could not be changed, and the first reason why.
    pub skipped: u32,
    pub skipped_because: Option<String>,
    /// Keys that an earlier pass could not change wait to be tried again: what was wrong then may be so still.
    pub waits_to_retry: bool,
    /// The scope that was pruned has more that is due, and gains on it too slowly.
    pub falls_behind: bool,
    /// Keys that went while their run lives, by the names of their scopes.
    pub expired_alive: Vec<(String, u32)>,
    /// The transaction holds as many locks as it should.
    pub(super) is_full: bool,
    /// Rows that were looked at.
    pub(super) handled: usize,
}

thread_local! {
    /// Where this session's own pass stands: the next `idem_sweep` goes on from here.
    static SESSION_PASS: RefCell<Pass> = RefCell::default();
}

/// One batch of this session's own pass.
pub fn session_batch() -> Result<Batch, Error> {
    if reader::is_asking() {
        return Err(Error::Nested("idem_sweep"));
    }
    // Each key's lock stays to the end of the transaction: enough is enough.
    open_claims::require_room(1)?;
    // Taken out while the batch runs: a trigger may sweep again.
    let mut pass = SESSION_PASS.take();
    let batch = batch(&mut pass, None, Runner::Session)?;
    SESSION_PASS.replace(pass);
    Ok(batch)
}

/// The next batch begins a pass over everything, whatever the last one has seen.
pub fn restart_session_pass() {
    SESSION_PASS.replace(Pass::whole());
}

/// What a pass did may have been undone: the next one begins anew. Raises nothing.
pub fn forget_session_pass() {
    let from_start = SESSION_PASS.with_borrow(|pass| pass.from_start);
    SESSION_PASS.replace(Pass {
        from_start,
        ..Pass::default()
    });
}

/// One batch of a pass, in the current transaction; past `deadline` it handles one key and no more. Where a key
/// cannot be changed, by a DBA's trigger or constraint for one, the batch is done again key by key and that key
/// skipped: it must not keep all others.
pub fn batch(
    pass: &mut Pass,
    deadline: Option<std::time::Instant>,
    runner: Runner,
) -> Result<Batch, Error> {
    let tables = KeyTables::open(Mode::Write)?;
    let begun = pass.clone();
    // By a clock that nobody sets.
    let is_over = || deadline.is_some_and(|deadline| std::time::Instant::now() >= deadline);
    let terms = |each, from_start| Terms {
        tables: &tables,
        limit: guc::sweep_batch_rows().min(open_claims::room()),
        is_over: &is_over,
        each,
        from_start,
        runner,
    };
    let whole = xact::subtransaction(|| step(pass, &terms(Each::Together, begun.from_start)));
    let batch = match whole {
        Ok(batch) => batch,
        Err(_) => {
            *pass = begun;
            let from_start = pass.from_start;
            step(pass, &terms(Each::Alone, from_start))?
        }
    };
    tables.keep();
    if !batch.more {
        *pass = Pass::default();
    }
    Ok(batch)
}

/// Whether the keys of a batch stand or fall together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Each {
    Together,
    Alone,
}

/// What came of the upkeep of one key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Did {
    Change,
    /// Nothing was due.
    Nothing,
    /// Somebody holds the key, or it could not be changed.
    Skipped,
}

/// A kind of upkeep for one key, by its digest: whether there was anything to do.
type Change<'a> = &'a dyn Fn(&[u8; 16]) -> Result<bool, Error>;

impl Batch {
    /// Whether there was anything to do.
    pub fn did_something(&self) -> bool {
        self.handled > 0
    }

    /// Something could not be done.
    pub(super) fn skip(&mut self, why: String) {
        self.skipped += 1;
        self.skipped_because.get_or_insert(why);
    }

    /// Does it for one key; says what came of it.
    pub(super) fn change(
        &mut self,
        digest: &[u8; 16],
        each: Each,
        change: Change<'_>,
    ) -> Result<Did, Error> {
        // Not a key that a transaction has claimed: not even this one.
        if open_claims::transactional(digest).is_some() {
            return Ok(Did::Skipped);
        }
        let Some(lock) = KeyLock::try_acquire(digest) else {
            return Ok(Did::Skipped);
        };
        let changed = match each {
            Each::Together => change(digest)?,
            Each::Alone => match xact::subtransaction(|| change(digest)) {
                Ok(changed) => changed,
                Err(message) => {
                    self.skip(message);
                    lock.release();
                    return Ok(Did::Skipped);
                }
            },
        };
        if changed {
            // Where something is written the lock stays to the end of this short transaction.
            open_claims::add_lock(*digest);
        } else {
            lock.release();
        }
        Ok(if changed { Did::Change } else { Did::Nothing })
    }
}

/// Stage after stage, until one had something to do.
fn step(pass: &mut Pass, terms: &Terms<'_>) -> Result<Batch, Error> {
    let mut batch = Batch::default();
    loop {
        let done = match pass.stage {
            Stage::Leases => end_leases(&mut pass.leases_from, terms, &mut batch)?,
            Stage::Outcomes => prune::turn(&mut pass.scopes, terms, &mut batch)?,
            Stage::Runs => end_runs(&mut pass.runs_from, terms, &mut batch)?,
            Stage::Events => prune_events(terms, &mut batch)?,
        };
        if done {
            match pass.stage {
                Stage::Leases => pass.leases_from = [0; 16],
                Stage::Runs => pass.runs_from = [0; 16],
                Stage::Outcomes | Stage::Events => {}
            }
            pass.left -= 1;
            if pass.left == 0 {
                return Ok(batch);
            }
            pass.stage = STAGES[(pass.stage as usize + 1) % STAGES.len()];
        }
        if batch.handled > 0 || batch.is_full || (terms.is_over)() {
            batch.more = true;
            return Ok(batch);
        }
    }
}

/// Whether all were visited.
fn end_leases(from: &mut [u8; 16], terms: &Terms<'_>, batch: &mut Batch) -> Result<bool, Error> {
    let now = server::now();
    let (digests, at_end) = claim::ended_leases(&terms.tables.claim, *from, terms.limit, now);
    for digest in digests {
        server::check_for_interrupts();
        *from = digest;
        batch.handled += 1;
        if batch.change(&digest, terms.each, &|digest| {
            end_lease(terms.tables, digest, server::now())
        })? == Did::Change
        {
            batch.leases_ended += 1;
        }
        if (terms.is_over)() {
            return Ok(false);
        }
    }
    Ok(at_end)
}

/// Whether the lease had ended; the key's state says so afterwards.
fn end_lease(tables: &KeyTables, digest: &[u8; 16], now: Instant) -> Result<bool, Error> {
    let Some(row) = claim::find(&tables.claim, digest, Snapshot::Now) else {
        return Ok(false);
    };
    // A scope is dropped only when it holds no keys.
    let Some(scope) = policy::by_id(row.scope_id)? else {
        return Ok(false);
    };
    let key = ScopedKey {
        scope: scope.name().to_owned(),
        key: row.key.clone(),
        digest: *digest,
    };
    let site = Site {
        key: &key,
        scope: &scope,
        tables,
        now,
    };
    let grounds = Grounds {
        reason: Some(LEASE_EXPIRED.to_owned()),
        evidence: None,
    };
    let in_flight = trail::open_name(OpenState::InFlight);
    let open = |state, reconciles| OpenKey {
        state,
        reconciles,
        ..row.open
    };
    let swept = decide::sweep(&row.open, &scope.policy(), now);
    if swept != Sweep::Keep {
        stats::count(row.scope_id, Counter::LeasesExpired);
    }
    match swept {
        Sweep::Keep => return Ok(false),
        Sweep::Unknown { reconciles } => {
            let open = open(OpenState::Unknown, reconciles);
            site.leave_open(in_flight, &row, Stands::InClaim, open, grounds)?;
        }
        Sweep::Escalated { reconciles } => {
            let open = open(OpenState::Escalated, reconciles);
            site.leave_open(in_flight, &row, Stands::InClaim, open, grounds)?;
        }
        Sweep::Requeued => {
            let queued = OpenKey {
                prior: Prior::NotApplied,
                ..open(OpenState::Queued, row.open.reconciles)
            };
            site.leave_open(in_flight, &row, Stands::InClaim, queued, grounds)?;
        }
        Sweep::LeaseExpired => {
            let finished = FinishedKey {
                state: FinishedState::LeaseExpired,
                fence: row.open.fence,
                attempt: row.open.attempt,
                finished_at: row.open.lease_expires_at.unwrap_or(now),
                run: Run::None,
            };
            let expired = OutcomeRow {
                finished,
                scope_id: row.scope_id,
                key: row.key.clone(),
                args: row.args.clone(),
                result: None,
                reason: grounds.reason,
                run: row.run.clone(),
                claimed_at: Some(row.claimed_at),
                claimed_by: Some(row.claimed_by),
                prior_reason: row.prior_reason.clone(),
                payload: None,
            };
            site.finish(&row, Stands::InClaim, expired, None)?;
        }
    }
    Ok(true)
}

/// How long a run is kept after its end at least: a key of it may still be in flight.
const RUN_SLACK_US: i64 = 86_400_000_000;

/// Takes in the signs of life of runs, marks those that gave none, and removes those that no outcome names any more.
/// Whether all were visited.
fn end_runs(from: &mut [u8; 16], terms: &Terms<'_>, batch: &mut Batch) -> Result<bool, Error> {
    let runs = Runs::open(Mode::Write)?;
    let page = runs.page(*from, terms.limit);
    let at_end = page.len() < terms.limit;
    for (digest, row) in page {
        server::check_for_interrupts();
        if (terms.is_over)() {
            runs.keep();
            return Ok(false);
        }
        *from = digest;
        if !run_is_due(&runs, terms.tables, &digest, &row)? {
            continue;
        }
        let Some(lock) = KeyLock::try_acquire_upkeep(&digest) else {
            continue;
        };
        match runs.find(&digest, Snapshot::Now) {
            Some(row) if run_is_due(&runs, terms.tables, &digest, &row)? => {
                batch.handled += 1;
                open_claims::add_lock(digest);
                end_run(&runs, &digest, row)?;
            }
            Some(_) | None => lock.release(),
        }
    }
    runs.keep();
    Ok(at_end)
}

/// Whether something is to be done about a run.
fn run_is_due(
    runs: &Runs,
    tables: &KeyTables,
    digest: &[u8; 16],
    row: &RunRow,
) -> Result<bool, Error> {
    let now = server::now();
    match row.ended_at {
        // It was found silent by a clock that was ahead.
        Some(_) if row.standing(now) == Run::Alive => Ok(true),
        Some(ended_at) => {
            Ok(now.since(ended_at) > RUN_SLACK_US
                && !outcome::any_of_run(&tables.outcome, &row.run))
        }
        None => Ok(row.standing(now) != Run::Alive || runs.any_sign(digest)),
    }
}

fn end_run(runs: &Runs, digest: &[u8; 16], row: RunRow) -> Result<(), Error> {
    let is_alive = |row: &RunRow| row.standing(server::now()) == Run::Alive;
    if row.ended_at.is_some() && !is_alive(&row) {
        return runs.remove(digest);
    }
    // One may have come since the row was read.
    let row = runs.take_signs(digest, row)?;
    if is_alive(&row) {
        let alive = RunRow {
            ended_at: None,
            is_silent: false,
            ..row
        };
        return runs.replace(digest, &alive);
    }
    let silent = RunRow {
        ended_at: Some(row.over_at()),
        is_silent: true,
        ..row
    };
    runs.replace(digest, &silent)?;
    trail::run_silent(&silent)
}

/// Whether all that are old enough are gone.
fn prune_events(terms: &Terms<'_>, batch: &mut Batch) -> Result<bool, Error> {
    // One sweeper at a time; it keeps the lock to the end of its transaction.
    let Some(_kept) = KeyLock::try_acquire_upkeep(&digest::scope_run_digest("", "events")) else {
        return Ok(true);
    };
    let until = Instant(server::now().0.saturating_sub(guc::event_retention().us()));
    let removed = event::prune(until, terms.limit)?;
    batch.handled += removed;
    Ok(removed < terms.limit)
}
