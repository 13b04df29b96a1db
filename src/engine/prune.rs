//! Pruning: outcomes past their window, scope by scope, each scope from where the last pass over it came.
//!
//! Rows that must stay, because their run lives, are passed by once and looked at again in the next full pass: they
//! never keep those behind them, and no pass reads again what another has read. What was found is judged again under
//! the key's lock.

use crate::engine::claim;
use crate::engine::runs;
use crate::engine::sweep::{Batch, Did, Each};
use crate::error::{Error, Place};
use crate::guc;
use crate::pg::lock::KeyLock;
use crate::pg::reader::{self, Named};
use crate::pg::table::{Mode, Snapshot};
use crate::pg::time_limit::Runner;
use crate::pg::{invalidation, server, shmem};
use crate::policy::{self, Scope};
use crate::stats::{self, Counter};
use crate::store::outcome::{self, CURSOR_START, Candidate, OutcomeRow};
use crate::store::progress::{self, Progress};
use crate::store::run::{RunRow, Runs};
use crate::store::{KeyTables, Stands, horizon, scope, tombstone};
use idempotency_core::decide::FinishedKey;
use idempotency_core::digest;
use idempotency_core::time::{Instant, Span};
use idempotency_core::window::{self, Prune, Run};
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Instant as Moment;

/// After this long a pass begins at the first outcome again, for those that were locked, or stayed for their run.
const FULL_PASS_US: i64 = 600_000_000;
/// How long a predicate that used up its time is not asked.
pub const BAN_US: i64 = 60_000_000;
/// How soon a pass goes back to what could not be pruned.
const RETRY_US: i64 = 10_000_000;
/// Longest that the worker gives a predicate, whatever idempotency.reconcile_timeout says.
const WORKER_LIMIT_MS: i32 = 1_000;

/// A pass that does not prune this many times as fast as the outcomes were finished once does not keep up.
const KEEP_UP: i64 = 2;

/// Places written down in one batch.
const SAVED_MAX: usize = 64;
/// Expired keys of live runs that one batch warns of by name.
const WARNINGS_MAX: u32 = 10;

/// Where a pass over the scopes stands. Each has its turn, batch by batch.
#[derive(Clone, Debug, Default)]
pub struct Scopes {
    /// Scopes with something to do, the next one first; none before the pass has begun.
    queue: Option<VecDeque<i32>>,
    progress: HashMap<i32, Progress>,
    /// What predicates said in this pass, by scope and run; none where one could not be asked.
    alive: HashMap<(i32, String), Option<bool>>,
    /// Places written down in this batch: each keeps a lock to its end.
    saved: usize,
    /// Predicates that failed: why first, and how much time that took. After as long as one answer may take, no more are
    /// asked for in this pass.
    failed: HashMap<i32, (String, i64)>,
    /// What this pass prunes of each scope: outcomes that were finished, and whose run ended, up to then.
    until: HashMap<i32, Instant>,
    /// When this pass began to prune each scope, and from which time of its outcomes.
    begun: HashMap<i32, (Moment, Instant)>,
}

impl Scopes {
    /// A pass in which the predicates of these scopes are not asked: each has ended a worker.
    pub fn not_asking(scopes: &[i32]) -> Scopes {
        let why = |id: &i32| (*id, (NOT_ASKED.to_owned(), i64::MAX));
        Scopes {
            failed: scopes.iter().map(why).collect(),
            ..Scopes::default()
        }
    }
}

/// What is said of a predicate that used up its time.
const NOT_ASKED: &str = "it used up its time, or ended the worker, and is not asked for a minute";

/// How a pass prunes.
pub struct Terms<'a> {
    pub tables: &'a KeyTables,
    pub limit: usize,
    pub is_over: &'a dyn Fn() -> bool,
    pub each: Each,
    /// Begin at the first outcome of each scope.
    pub from_start: bool,
    pub runner: Runner,
}

/// A turn of the next scopes, until one had something to do. Whether the pass over all scopes is done.
pub fn turn(scopes: &mut Scopes, terms: &Terms<'_>, batch: &mut Batch) -> Result<bool, Error> {
    if scopes.queue.is_none() {
        scopes.queue = Some(drawn_order(scope::ids()?));
    }
    scopes.saved = 0;
    while let Some(id) = scopes.queue.as_mut().and_then(VecDeque::pop_front) {
        let handled_before = batch.handled;
        let done = match policy::by_id(id)? {
            Some(scope) => prune_scope(scopes, &scope, terms, batch)?,
            None => true,
        };
        if !done && let Some(queue) = &mut scopes.queue {
            queue.push_back(id);
        }
        if batch.handled > handled_before || scopes.saved >= SAVED_MAX || (terms.is_over)() {
            break;
        }
        server::check_for_interrupts();
    }
    batch.is_full = scopes.saved >= SAVED_MAX;
    Ok(scopes.queue.as_ref().is_none_or(VecDeque::is_empty))
}

/// Whoever comes first in one pass does not in another: time may be over before the last.
fn drawn_order(ids: Vec<i32>) -> VecDeque<i32> {
    let draw = idempotency_core::backoff::spread(server::now().0.unsigned_abs());
    let mut ids = ids;
    ids.sort_by_key(|id| idempotency_core::backoff::spread(draw ^ u64::from(id.unsigned_abs())));
    ids.into()
}

/// Whether nothing more of the scope is due.
fn prune_scope(
    scopes: &mut Scopes,
    scope: &Scope,
    terms: &Terms<'_>,
    batch: &mut Batch,
) -> Result<bool, Error> {
    let now = server::now();
    let stored = match scopes.progress.get(&scope.id()) {
        Some(progress) => Some(*progress),
        None => progress::find(scope.id())?,
    };
    let is_new_turn = !scopes.progress.contains_key(&scope.id());
    let begin = || Progress {
        pass_began_at: now,
        cursor: CURSOR_START,
        frontier: stored.map_or(CURSOR_START.finished_at, |stored| stored.frontier),
        skipped_from: None,
        retry_at: None,
        at_end: false,
        tombstones_from: None,
    };
    let mut progress = match stored {
        Some(stored) if !is_new_turn => stored,
        Some(stored) if !terms.from_start && !full_pass_is_due(&stored, now) => {
            stored.next_pass(now, terms.runner)
        }
        Some(_) | None => begin(),
    };
    let tombstones_done = prune_tombstones(scope, terms, batch, &mut progress)?;
    let window = match scope.window() {
        Some(window) if tombstones_done => window,
        // One that keeps its outcomes for ever may still have tombstones of before.
        Some(_) | None => {
            progress.at_end = tombstones_done;
            note(scopes, scope, stored, progress)?;
            return Ok(tombstones_done);
        }
    };
    let until = match scopes.until.get(&scope.id()) {
        Some(until) => *until,
        None => Instant(now.0.saturating_sub(window.us())),
    };
    let mut due = outcome::finished_until(
        &terms.tables.outcome,
        scope.id(),
        progress.cursor,
        until,
        terms.limit,
    );
    let reached_end = due.len() < terms.limit;
    // Written in the first batch of a pass; the others find it there.
    let until = move_horizon(scope, until, !due.is_empty(), now)?;
    scopes.until.insert(scope.id(), until);
    due.retain(|candidate| candidate.at.finished_at <= until);
    if let Some(first) = due.first() {
        let begun = (Moment::now(), first.at.finished_at);
        scopes.begun.entry(scope.id()).or_insert(begun);
    }
    // Asked before any key of this batch is locked.
    let asked = ask(scopes, scope, &due, terms);
    if let (Some((why, _)), Some(name)) = (scopes.failed.get(&scope.id()), scope.run_is_alive()) {
        let scope = scope.name();
        batch.skip(format!("run_is_alive of scope {scope} ({name}): {why}"));
    }
    let expired_alive = Cell::new(0_u32);
    let mut handled = 0;
    for candidate in due.iter().take(asked) {
        server::check_for_interrupts();
        progress.cursor = candidate.at;
        handled += 1;
        batch.handled += 1;
        let run = by_predicate(scopes, scope, candidate)?;
        let did = batch.change(&candidate.digest, terms.each, &|digest| {
            prune_one(scope, terms.tables, digest, run, until, &expired_alive)
        })?;
        match did {
            Did::Change => batch.outcomes_pruned += 1,
            Did::Nothing if !is_unanswered(scopes, scope, candidate) => {}
            Did::Skipped | Did::Nothing => {
                let first = candidate.at.finished_at;
                progress.skipped_from.get_or_insert(first);
            }
        }
        if (terms.is_over)() {
            break;
        }
    }
    if let Some(more) = expired_alive
        .get()
        .checked_sub(WARNINGS_MAX)
        .filter(|n| *n > 0)
    {
        server::warn(&format!(
            "{more} more keys in scope {} expired while their runs live",
            crate::error::quoted(scope.name())
        ));
    }
    if expired_alive.get() > 0 {
        let count = (scope.name().to_owned(), expired_alive.get());
        batch.expired_alive.push(count);
    }
    let done = reached_end && handled == due.len();
    progress.at_end = done;
    if done {
        // A pass from the first outcome ends no further back than the one before, if that is not still to come.
        let before = stored.map_or(CURSOR_START, |stored| stored.cursor);
        if before.finished_at <= until {
            progress.cursor = progress.cursor.max(before);
        }
        progress.frontier = progress.cursor.finished_at;
        // Visits come by more often than that: those in between do not put it off.
        if progress.skipped_from.is_some() && progress.retry_at.is_none() {
            progress.retry_at = Some(Instant(now.0.saturating_add(RETRY_US)));
        }
    } else {
        progress.frontier = progress.frontier.max(progress.cursor.finished_at);
        if let Some((begun, from)) = scopes.begun.get(&scope.id()) {
            let taken_us = i64::try_from(begun.elapsed().as_micros()).unwrap_or(i64::MAX);
            let done_us = progress.cursor.finished_at.since(*from);
            batch.falls_behind =
                batch.outcomes_pruned > 0 && done_us < taken_us.saturating_mul(KEEP_UP);
        }
    }
    batch.waits_to_retry |= progress.skipped_from.is_some();
    note(scopes, scope, stored, progress)?;
    Ok(done)
}

/// Writes down where the pass over a scope stands, where that is news.
fn note(
    scopes: &mut Scopes,
    scope: &Scope,
    stored: Option<Progress>,
    progress: Progress,
) -> Result<(), Error> {
    let is_begun = progress.cursor != CURSOR_START || progress.tombstones_from.is_some();
    if (stored.is_some() || is_begun) && stored != Some(progress) {
        save(scope, &progress)?;
        scopes.saved += 1;
    }
    scopes.progress.insert(scope.id(), progress);
    Ok(())
}

fn full_pass_is_due(stored: &Progress, now: Instant) -> bool {
    let age_us = now.since(stored.pass_began_at);
    // A clock that stepped back says nothing of what lies behind the cursor.
    age_us < 0 || (stored.at_end && age_us >= FULL_PASS_US)
}

/// Not where somebody else is just doing so.
fn save(scope: &Scope, progress: &Progress) -> Result<(), Error> {
    let pruning = digest::scope_run_digest(scope.name(), "");
    // Kept to the end of the transaction: whoever comes next sees what is written here.
    let Some(_kept) = KeyLock::try_acquire_upkeep(&pruning) else {
        return Ok(());
    };
    progress::put(scope.id(), progress)
}

/// Writes down that outcomes finished up to then may be pruned now, where any is. While somebody else begins to prune the
/// scope, no more may be than what was written down before. Gives back up to when they may.
fn move_horizon(
    scope: &Scope,
    until: Instant,
    some_are_due: bool,
    now: Instant,
) -> Result<Instant, Error> {
    // Beyond now after the clock went back: whatever is done from now on is not pruned yet.
    let lies_ahead = |at: Instant| at > now;
    let moves = |before: Option<Instant>| {
        before.is_some_and(lies_ahead) || some_are_due && before.is_none_or(|at| at < until)
    };
    let before = horizon::find(scope.id())?;
    if !moves(before) {
        return Ok(until);
    }
    let pruning = digest::scope_run_digest(scope.name(), "");
    let Some(_kept) = KeyLock::try_acquire_upkeep(&pruning) else {
        return Ok(before.unwrap_or(CURSOR_START.finished_at).min(until));
    };
    let before = horizon::find(scope.id())?;
    if moves(before) {
        let is_ahead = before.is_some_and(lies_ahead);
        horizon::put(scope.id(), if is_ahead { now } else { until })?;
    }
    Ok(until)
}

/// Prunes one outcome, if it is still due. Whether it was.
fn prune_one(
    scope: &Scope,
    tables: &KeyTables,
    digest: &[u8; 16],
    by_predicate: Option<Run>,
    until: Instant,
    expired_alive: &Cell<u32>,
) -> Result<bool, Error> {
    let Some(row) = outcome::find(&tables.outcome, digest, Snapshot::Now) else {
        return Ok(false);
    };
    let judged = judge(scope.id(), &row, by_predicate, until)?;
    let (
        Prune::Go {
            run_is_alive,
            remember,
        },
        is_guarded,
    ) = judged
    else {
        return Ok(false);
    };
    tables.erase(digest, Stands::InOutcome)?;
    // From here on claims see that it goes, and wait. One before may have been told a replay by what was committed since
    // the judgement: then it must not go.
    if judge(scope.id(), &row, by_predicate, until)? != judged {
        return Err(Error::Overtaken(Place::new(scope.name(), &row.key)));
    }
    if is_guarded {
        tombstone::put(digest, scope.id(), remember)?;
    }
    stats::count(scope.id(), Counter::Pruned);
    if run_is_alive {
        claim::expired_alive(&row)?;
        expired_alive.set(expired_alive.get() + 1);
        if expired_alive.get() <= WARNINGS_MAX {
            let place = Place::new(scope.name(), &row.key);
            server::warn_expired_alive(&place, row.run.as_deref().unwrap_or_default());
        }
    }
    Ok(true)
}

/// What is to become of an outcome, and whether its scope has a guard, by what is committed now: as at the moment at which
/// the window of those finished at `until` is over, since the horizon says no more.
fn judge(
    scope_id: i32,
    row: &OutcomeRow,
    by_predicate: Option<Run>,
    until: Instant,
) -> Result<(Prune, bool), Error> {
    let Some(scope) = fresh(scope_id)? else {
        return Ok((Prune::Keep, false));
    };
    let finished_at = row.finished.finished_at;
    let run = match by_predicate {
        Some(run) => run,
        None => runs::standing(row.run.as_deref(), finished_at, &scope, Snapshot::Now)?,
    };
    let finished = FinishedKey {
        run,
        ..row.finished
    };
    let policy = scope.policy();
    let now = server::now();
    let at = policy
        .window
        .map_or(now, |window| now.min(until.after(window)));
    let prune = window::prune(&finished, &policy, at);
    Ok((prune, scope.guard().is_some()))
}

/// The scope as it is now, and not as it was when the batch began.
fn fresh(scope_id: i32) -> Result<Option<Rc<Scope>>, Error> {
    invalidation::accept();
    policy::by_id(scope_id)
}

/// Whether everything of the scope that was remembered for long enough is gone.
fn prune_tombstones(
    scope: &Scope,
    terms: &Terms<'_>,
    batch: &mut Batch,
    progress: &mut Progress,
) -> Result<bool, Error> {
    let until = guarded_since(Some(scope));
    let from = progress.tombstones_from.unwrap_or(CURSOR_START.finished_at);
    let due = tombstone::expired_within(scope.id(), from, until, terms.limit)?;
    let mut skipped_from = None;
    for (digest, expired_at) in &due {
        server::check_for_interrupts();
        progress.tombstones_from = Some(*expired_at);
        batch.handled += 1;
        let did = batch.change(digest, terms.each, &|digest| {
            // It may be that of a later record by now, and the guard another.
            let until = guarded_since(fresh(scope.id())?.as_deref());
            let still_due = tombstone::find(digest, Snapshot::Now)?
                .is_some_and(|expired_at| expired_at <= until);
            if still_due {
                tombstone::put(digest, scope.id(), None)?;
            }
            Ok(still_due)
        })?;
        if did == Did::Skipped {
            skipped_from.get_or_insert(*expired_at);
        }
        if (terms.is_over)() {
            return Ok(false);
        }
    }
    let done = due.len() < terms.limit;
    if done && let Some((_, last)) = due.last() {
        // All of that time have been looked at. One that was held comes again, at the latest with the next full pass.
        let behind = Instant(last.0.saturating_add(1));
        progress.tombstones_from = Some(skipped_from.unwrap_or(behind));
    }
    Ok(done)
}

/// Windows that ended before this are remembered no more: without a guard none is.
fn guarded_since(scope: Option<&Scope>) -> Instant {
    let guard_us = scope.and_then(Scope::guard).map_or(0, Span::us);
    Instant(server::now().0.saturating_sub(guard_us))
}

/// Asks the scope's predicate about the runs of these outcomes, each once in a pass. Gives back how many of them can be
/// judged: time may be over before all were asked.
fn ask(scopes: &mut Scopes, scope: &Scope, due: &[Candidate], terms: &Terms<'_>) -> usize {
    let Some(name) = scope.run_is_alive() else {
        return due.len();
    };
    let limit_ms = match terms.runner {
        Runner::Worker => guc::reconcile_timeout_ms().min(WORKER_LIMIT_MS),
        Runner::Session => guc::reconcile_timeout_ms(),
    };
    let function = Named {
        name,
        scope_owner: scope.owner(),
        limit_ms,
        runner: terms.runner,
    };
    for (at, candidate) in due.iter().enumerate() {
        let Some(run) = &candidate.run else { continue };
        let question = (scope.id(), run.clone());
        if scopes.alive.contains_key(&question) {
            continue;
        }
        let failures = scopes.failed.get(&scope.id());
        let is_spent = failures.is_some_and(|(_, us)| *us >= i64::from(limit_ms) * 1_000);
        if !is_spent && at > 0 && (terms.is_over)() {
            return at;
        }
        let said = if is_spent {
            None
        } else {
            server::check_for_interrupts();
            let asked_at = Moment::now();
            // Whoever comes after a worker that this ended knows who did it.
            if terms.runner == Runner::Worker {
                shmem::note_asking(Some(scope.id()));
            }
            let said = reader::run_is_alive(&function, run);
            if terms.runner == Runner::Worker {
                shmem::note_asking(None);
            }
            said.unwrap_or_else(|why| {
                let took_us = i64::try_from(asked_at.elapsed().as_micros()).unwrap_or(i64::MAX);
                let failed = scopes.failed.entry(scope.id()).or_insert((why, 0));
                failed.1 = failed.1.saturating_add(took_us);
                // One that hangs would take a visit for each of its runs.
                if terms.runner == Runner::Worker && took_us >= i64::from(limit_ms) * 1_000 {
                    let now = server::now();
                    shmem::ban(scope.id(), now, Instant(now.0.saturating_add(BAN_US)));
                }
                None
            })
        };
        scopes.alive.insert(question, said);
    }
    due.len()
}

/// Whether the predicate was to say whether the outcome's run lives, and did not.
fn is_unanswered(scopes: &Scopes, scope: &Scope, candidate: &Candidate) -> bool {
    let question = candidate.run.clone().map(|run| (scope.id(), run));
    question.is_some_and(|question| scopes.alive.get(&question) == Some(&None))
}

/// What the scope's predicate says of the outcome's run, where that is not what is written down: alive, or nothing that
/// could be relied upon. That a run is over is written down when it is first seen since the outcome was finished: the
/// window counts from then.
fn by_predicate(
    scopes: &Scopes,
    scope: &Scope,
    candidate: &Candidate,
) -> Result<Option<Run>, Error> {
    let (Some(run), Some(_)) = (&candidate.run, scope.run_is_alive()) else {
        return Ok(None);
    };
    let said = scopes.alive.get(&(scope.id(), run.clone())).copied();
    let Some(alive) = said.flatten() else {
        return Ok(Some(Run::Alive));
    };
    let digest = digest::scope_run_digest(scope.name(), run);
    let runs = Runs::open(Mode::Write)?;
    let finished_at = candidate.at.finished_at;
    let holds = |row: &RunRow| row.ended_at.is_some_and(|at| at >= finished_at);
    let known = runs.find(&digest, Snapshot::Now);
    let is_written = match (alive, &known) {
        (true, None) => true,
        (false, Some(row)) => holds(row),
        (true, Some(_)) | (false, None) => false,
    };
    if is_written {
        runs.close();
        return Ok(alive.then_some(Run::Alive));
    }
    let Some(_kept) = KeyLock::try_acquire_upkeep(&digest) else {
        runs.close();
        return Ok(Some(Run::Alive));
    };
    let now = server::now();
    let over = RunRow {
        begun_at: now,
        seen_at: now,
        ended_at: Some(now),
        owner: scope.owner(),
        scope_id: Some(scope.id()),
        is_silent: false,
        longest_pause: Span::from_s(1),
        run: run.clone(),
        label: None,
    };
    match (alive, runs.find(&digest, Snapshot::Now)) {
        (true, Some(_)) => runs.remove(&digest)?,
        (false, None) => runs.insert(&digest, &over)?,
        (false, Some(row)) if !holds(&row) => runs.replace(&digest, &over)?,
        (true, None) | (false, Some(_)) => {}
    }
    runs.keep();
    Ok(Some(Run::Alive))
}
