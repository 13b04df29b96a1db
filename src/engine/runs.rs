//! Runs: begun, touched and ended by their owners, kept alive by what happens to their keys, and asked about by
//! windows.
//!
//! A run only ever adds to windows. What it says is read where an outcome is judged, and never stored with the outcome:
//! ending, falling silent and living again apply to all its keys at once.

use crate::engine::open_claims;
use crate::error::Error;
use crate::pg::lock::KeyLock;
use crate::pg::table::{Mode, Snapshot};
use crate::pg::{identity, server};
use crate::policy::{self, Scope};
use crate::store::run::{RunRow, Runs};
use idempotency_core::digest;
use idempotency_core::time::{Instant, Span};
use idempotency_core::window::{self, Run};

/// What the run of a key says about its window, for a key of this scope that was finished then.
pub fn standing(
    run: Option<&str>,
    finished_at: Instant,
    scope: &Scope,
    snapshot: Snapshot,
) -> Result<Run, Error> {
    let (Some(run), Some(_)) = (run, scope.window()) else {
        return Ok(Run::None);
    };
    let asks_predicate = scope.run_is_alive().is_some();
    let digest = if asks_predicate {
        digest::scope_run_digest(scope.name(), run)
    } else {
        digest::run_digest(run)
    };
    let runs = Runs::open(Mode::Read)?;
    let row = runs.find(&digest, snapshot);
    runs.close();
    Ok(match row {
        // Sweeps alone ask the predicate: until one has seen, since the key was finished, that the run is over, it stays.
        Some(row) if asks_predicate && row.ended_at.is_none_or(|at| at < finished_at) => Run::Alive,
        Some(row) => row.standing(server::now()),
        None if asks_predicate => Run::Alive,
        None => Run::None,
    })
}

/// What a call that was issued then may count on: that its run has kept all that was done since.
pub fn kept_since(at: Instant, run: Option<&str>, scope: &Scope) -> Result<Run, Error> {
    // A predicate says nothing about the past.
    let (Some(run), None) = (run, scope.run_is_alive()) else {
        return Ok(Run::None);
    };
    let runs = Runs::open(Mode::Read)?;
    let row = runs.find(&digest::run_digest(run), Snapshot::Now);
    runs.close();
    let lived = row.filter(|row| row.begun_at <= at);
    Ok(lived.map_or(Run::None, |row| row.standing(server::now())))
}

/// A key of this run was claimed, finished or renewed: a sign of life, recorded at intervals, in a row of its own. It
/// takes no lock: it would be held to the end of this transaction, however long that is, and its rollback would take
/// along what others had left to it.
pub fn sign_of_life(run: Option<&str>, scope: &Scope) -> Result<(), Error> {
    let (Some(run), None) = (run, scope.run_is_alive()) else {
        return Ok(());
    };
    let digest = digest::run_digest(run);
    let runs = Runs::open(Mode::Read)?;
    let row = runs.find(&digest, Snapshot::Now);
    runs.close();
    let now = server::now();
    if row.is_some_and(|row| lives(&row, now) && sign_due(&row, now)) {
        let runs = Runs::open(Mode::Write)?;
        runs.sign(&digest, now)?;
        runs.keep();
    }
    Ok(())
}

fn lives(row: &RunRow, now: Instant) -> bool {
    row.standing(now) == Run::Alive
}

fn sign_due(row: &RunRow, now: Instant) -> bool {
    window::sign_is_due(row.seen_at, row.longest_pause, now)
}

/// Begins a run, or lets it go on; gives back when it will be over.
pub fn begin(run: &str, longest_pause: Span, label: Option<String>) -> Result<Instant, Error> {
    let role = identity::current_role();
    if !policy::may_use_any()? {
        return Err(Error::MayNotBegin {
            role: identity::role_name(role),
        });
    }
    let (runs, digest) = enter(run)?;
    let now = server::now();
    let begun = |owner, label| RunRow {
        begun_at: now,
        seen_at: now,
        ended_at: None,
        owner,
        scope_id: None,
        is_silent: false,
        longest_pause,
        run: run.to_owned(),
        label,
    };
    let row = match runs.find(&digest, Snapshot::Now) {
        None => {
            let row = begun(role, label);
            runs.insert(&digest, &row)?;
            row
        }
        Some(before) if !identity::has_rights_of(role, before.owner) => {
            return Err(Error::RunTaken {
                run: run.to_owned(),
            });
        }
        Some(before) => {
            let begun_at = if lives(&before, now) {
                before.begun_at
            } else {
                now
            };
            let row = RunRow {
                begun_at,
                ..begun(before.owner, label.or(before.label))
            };
            runs.replace(&digest, &row)?;
            row
        }
    };
    runs.keep();
    Ok(row.over_at())
}

/// A sign of life; gives back when the run will be over.
pub fn touch(run: &str) -> Result<Instant, Error> {
    let runs = Runs::open(Mode::Write)?;
    let digest = digest::run_digest(run);
    let row = own(run, runs.find(&digest, Snapshot::Now))?;
    let now = server::now();
    if !lives(&row, now) {
        return Err(Error::RunOver {
            run: run.to_owned(),
        });
    }
    runs.sign(&digest, now)?;
    runs.keep();
    Ok(window::run_over_at(now, row.longest_pause))
}

/// The run is over; again is the same as once.
pub fn end(run: &str) -> Result<(), Error> {
    let (runs, digest) = enter(run)?;
    let row = own(run, runs.find(&digest, Snapshot::Now))?;
    let now = server::now();
    if row.ended_at.is_none() || lives(&row, now) {
        let silent = !lives(&row, now);
        let ended = RunRow {
            ended_at: Some(if silent { row.over_at() } else { now }),
            is_silent: silent,
            ..row
        };
        runs.replace(&digest, &ended)?;
    }
    runs.keep();
    Ok(())
}

/// The table and the run's lock, held to the end of the transaction.
fn enter(run: &str) -> Result<(Runs, [u8; 16]), Error> {
    let runs = Runs::open(Mode::Write)?;
    let digest = digest::run_digest(run);
    if !open_claims::holds(&digest) {
        open_claims::require_room(1)?;
        let _kept = KeyLock::acquire_upkeep(&digest);
        open_claims::add_lock(digest);
    }
    Ok((runs, digest))
}

/// The run, if the caller has begun it.
fn own(run: &str, row: Option<RunRow>) -> Result<RunRow, Error> {
    let role = identity::current_role();
    row.filter(|row| identity::has_rights_of(role, row.owner))
        .ok_or_else(|| Error::NoSuchRun {
            run: run.to_owned(),
        })
}
