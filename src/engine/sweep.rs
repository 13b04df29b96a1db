//! Upkeep in bounded batches: leases that ended, then outcomes past their window, scope by scope.
//!
//! A sweep never changes an answer. It only tries each key's lock, and looks and decides again under it: its
//! list of candidates is stale by then. Locked keys are skipped; cursors move on past them.

use crate::engine::key::ScopedKey;
use crate::engine::open_claims;
use crate::engine::settle::{Grounds, Site};
use crate::engine::trail;
use crate::error::Error;
use crate::guc;
use crate::pg::lock::KeyLock;
use crate::pg::table::{Mode, Snapshot};
use crate::pg::{server, xact};
use crate::policy::{self, Scope};
use crate::store::outcome::{CURSOR_START, Cursor, OutcomeRow};
use crate::store::{KeyTables, Stands, claim, outcome, scope};
use idempotency_core::decide::{
    self, FinishedKey, FinishedState, OpenKey, OpenState, Prior, Sweep,
};
use idempotency_core::time::Instant;
use std::cell::RefCell;

use super::record::LEASE_EXPIRED;

/// Where a pass over a database stands. A pass ends when everything was visited once.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    claims_from: [u8; 16],
    claims_done: bool,
    /// Scopes still to be pruned, and how far the first of them is.
    scopes: Option<Vec<(i32, Cursor)>>,
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
}

thread_local! {
    /// Where this session's own pass stands: the next `idem_sweep` goes on from here.
    static SESSION_PASS: RefCell<Pass> = RefCell::default();
}

/// One batch of this session's own pass.
pub fn session_batch() -> Result<Batch, Error> {
    // Each key's lock stays to the end of the transaction: enough is enough.
    open_claims::require_room(1)?;
    // Taken out while the batch runs: a trigger may sweep again.
    let mut pass = SESSION_PASS.take();
    let batch = batch(&mut pass, None)?;
    SESSION_PASS.replace(pass);
    Ok(batch)
}

/// What a pass did may have been undone: the next one begins anew. Raises nothing.
pub fn forget_session_pass() {
    SESSION_PASS.take();
}

/// One batch of a pass, in the current transaction; past `deadline` it handles one key and no more. Where a key
/// cannot be changed, by a DBA's trigger or constraint for one, the batch is done again key by key and that key
/// skipped: it must not keep all others.
pub fn batch(pass: &mut Pass, deadline: Option<Instant>) -> Result<Batch, Error> {
    let tables = KeyTables::open(Mode::Write)?;
    let begun = pass.clone();
    let whole = xact::subtransaction(|| step(pass, &tables, deadline, Each::Together));
    let batch = match whole {
        Ok(batch) => batch,
        Err(_) => {
            *pass = begun;
            step(pass, &tables, deadline, Each::Alone)?
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
enum Each {
    Together,
    Alone,
}

/// A kind of upkeep for one key, by its digest: whether there was anything to do.
type Change<'a> = &'a dyn Fn(&[u8; 16]) -> Result<bool, Error>;

impl Batch {
    /// Does it for one key; gives back whether the key was changed.
    fn change(&mut self, digest: &[u8; 16], each: Each, change: Change<'_>) -> Result<bool, Error> {
        // Not a key that a transaction has claimed: not even this one.
        if open_claims::transactional(digest).is_some() {
            return Ok(false);
        }
        let Some(lock) = KeyLock::try_acquire(digest) else {
            return Ok(false);
        };
        let changed = match each {
            Each::Together => change(digest)?,
            Each::Alone => match xact::subtransaction(|| change(digest)) {
                Ok(changed) => changed,
                Err(message) => {
                    self.skipped += 1;
                    self.skipped_because.get_or_insert(message);
                    false
                }
            },
        };
        if changed {
            // Where something is written the lock stays to the end of this short transaction.
            open_claims::add_lock(*digest);
        } else {
            lock.release();
        }
        Ok(changed)
    }
}

fn step(
    pass: &mut Pass,
    tables: &KeyTables,
    deadline: Option<Instant>,
    each: Each,
) -> Result<Batch, Error> {
    let room = open_claims::room();
    let limit = guc::sweep_batch_rows().min(room);
    let is_over = || deadline.is_some_and(|deadline| server::now() >= deadline);
    if pass.claims_done {
        prune(pass, tables, limit, &is_over, each)
    } else {
        end_leases(pass, tables, limit, &is_over, each)
    }
}

fn end_leases(
    pass: &mut Pass,
    tables: &KeyTables,
    limit: usize,
    is_over: &dyn Fn() -> bool,
    each: Each,
) -> Result<Batch, Error> {
    let now = server::now();
    let (digests, at_end) = claim::ended_leases(&tables.claim, pass.claims_from, limit, now);
    let mut batch = Batch {
        more: true,
        ..Batch::default()
    };
    for digest in digests {
        server::check_for_interrupts();
        pass.claims_from = digest;
        if batch.change(&digest, each, &|digest| {
            end_lease(tables, digest, server::now())
        })? {
            batch.leases_ended += 1;
        }
        if is_over() {
            return Ok(batch);
        }
    }
    pass.claims_done = at_end;
    Ok(batch)
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
    match decide::sweep(&row.open, &scope.policy(), now) {
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

fn prune(
    pass: &mut Pass,
    tables: &KeyTables,
    limit: usize,
    is_over: &dyn Fn() -> bool,
    each: Each,
) -> Result<Batch, Error> {
    let scopes = match &mut pass.scopes {
        Some(scopes) => scopes,
        None => {
            let ids = scope::ids()?;
            pass.scopes
                .insert(ids.into_iter().map(|id| (id, CURSOR_START)).collect())
        }
    };
    let mut batch = Batch::default();
    let Some((scope_id, cursor)) = scopes.last_mut() else {
        return Ok(batch);
    };
    let scope_done = match policy::by_id(*scope_id)? {
        Some(scope) => prune_scope(&scope, tables, cursor, limit, is_over, each, &mut batch)?,
        None => true,
    };
    if scope_done {
        scopes.pop();
    }
    batch.more = !scopes.is_empty();
    Ok(batch)
}

/// Whether nothing more of the scope is due.
fn prune_scope(
    scope: &Scope,
    tables: &KeyTables,
    cursor: &mut Cursor,
    limit: usize,
    is_over: &dyn Fn() -> bool,
    each: Each,
    batch: &mut Batch,
) -> Result<bool, Error> {
    let Some(window) = scope.window() else {
        return Ok(true);
    };
    let until = Instant(server::now().0.saturating_sub(window.us()));
    let due = outcome::finished_until(&tables.outcome, scope.id(), *cursor, until, limit);
    for (digest, at) in &due {
        server::check_for_interrupts();
        *cursor = *at;
        let pruned = batch.change(digest, each, &|digest| {
            let still_due =
                outcome::find(&tables.outcome, digest, Snapshot::Now).is_some_and(|row| {
                    !decide::within_window(row.finished.finished_at, Some(window), server::now())
                });
            if still_due {
                tables.erase(digest, Stands::InOutcome)?;
            }
            Ok(still_due)
        })?;
        if pruned {
            batch.outcomes_pruned += 1;
        }
        if is_over() {
            return Ok(false);
        }
    }
    Ok(due.len() < limit)
}
