//! Upkeep in bounded batches: leases that ended, then outcomes past their window, scope by scope.
//!
//! A sweep never changes an answer. It only tries each key's lock, and looks and decides again under it: its
//! list of candidates is stale by then. Locked keys are skipped; cursors move on past them.

use crate::engine::open_claims;
use crate::error::Error;
use crate::guc;
use crate::pg::lock::KeyLock;
use crate::pg::server;
use crate::pg::table::{Mode, Snapshot};
use crate::policy::{self, Scope};
use crate::store::claim::OpenRow;
use crate::store::outcome::{CURSOR_START, Cursor, OutcomeRow};
use crate::store::{KeyTables, Stands, claim, outcome, scope};
use idempotency_core::decide::{self, FinishedKey, FinishedState, OpenKey, OpenState, Sweep};
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
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch {
    pub leases_ended: u32,
    pub outcomes_pruned: u32,
    /// Whether the pass goes on.
    pub more: bool,
}

thread_local! {
    /// Where this session's own pass stands: the next `idem_sweep` goes on from here.
    static SESSION_PASS: RefCell<Pass> = RefCell::default();
}

/// One batch of this session's own pass.
pub fn session_batch() -> Result<Batch, Error> {
    // Taken out while the batch runs: a trigger may sweep again.
    let mut pass = SESSION_PASS.take();
    let batch = batch(&mut pass)?;
    SESSION_PASS.replace(pass);
    Ok(batch)
}

/// What a pass did may have been undone: the next one begins anew. Raises nothing.
pub fn forget_session_pass() {
    SESSION_PASS.take();
}

/// One batch of a pass, in the current transaction.
pub fn batch(pass: &mut Pass) -> Result<Batch, Error> {
    let limit = guc::sweep_batch_rows();
    let tables = KeyTables::open(Mode::Write)?;
    let batch = if pass.claims_done {
        prune(pass, &tables, limit)?
    } else {
        end_leases(pass, &tables, limit)?
    };
    tables.keep();
    if !batch.more {
        *pass = Pass::default();
    }
    Ok(batch)
}

fn end_leases(pass: &mut Pass, tables: &KeyTables, limit: usize) -> Result<Batch, Error> {
    let now = server::now();
    let (digests, at_end) = claim::ended_leases(&tables.claim, pass.claims_from, limit, now);
    if let Some(last) = digests.last() {
        pass.claims_from = *last;
    }
    pass.claims_done = at_end;
    let mut leases_ended = 0;
    for digest in digests {
        server::check_for_interrupts();
        // Where something is written the lock stays to the end of this short transaction.
        let Some(lock) = free_lock(&digest) else {
            continue;
        };
        if end_lease(tables, &digest, server::now())? {
            leases_ended += 1;
        } else {
            lock.release();
        }
    }
    Ok(Batch {
        leases_ended,
        outcomes_pruned: 0,
        more: true,
    })
}

/// The key's lock, if no transaction holds the key: not even this one.
fn free_lock(digest: &[u8; 16]) -> Option<KeyLock> {
    if open_claims::holds(digest) {
        None
    } else {
        KeyLock::try_acquire(digest)
    }
}

/// Whether the lease had ended; the key's state says so afterwards.
fn end_lease(tables: &KeyTables, digest: &[u8; 16], now: Instant) -> Result<bool, Error> {
    let Some(row) = claim::find(&tables.claim, digest, Snapshot::Now) else {
        return Ok(false);
    };
    match decide::sweep(&row.open, now) {
        Sweep::Keep => Ok(false),
        Sweep::Unknown(lease_expires_at) => {
            let open = OpenKey {
                state: OpenState::Unknown,
                lease_expires_at,
                ..row.open
            };
            let unknown = OpenRow {
                open,
                reason: Some(LEASE_EXPIRED.to_owned()),
                ..row
            };
            tables.write_open(digest, &unknown, Stands::InClaim)?;
            Ok(true)
        }
        Sweep::LeaseExpired => {
            let finished = FinishedKey {
                state: FinishedState::LeaseExpired,
                fence: row.open.fence,
                attempt: row.open.attempt,
                finished_at: now,
            };
            let expired = OutcomeRow {
                finished,
                scope_id: row.scope_id,
                key: row.key,
                args: row.args,
                result: None,
                reason: Some(LEASE_EXPIRED.to_owned()),
                run: row.run,
                claimed_at: Some(row.claimed_at),
                claimed_by: Some(row.claimed_by),
            };
            tables.write_finished(digest, &expired, Stands::InClaim)?;
            Ok(true)
        }
    }
}

fn prune(pass: &mut Pass, tables: &KeyTables, limit: usize) -> Result<Batch, Error> {
    let scopes = match &mut pass.scopes {
        Some(scopes) => scopes,
        None => {
            let ids = scope::ids()?;
            pass.scopes
                .insert(ids.into_iter().map(|id| (id, CURSOR_START)).collect())
        }
    };
    let mut done = Batch {
        more: true,
        ..Batch::default()
    };
    let Some((scope_id, cursor)) = scopes.last_mut() else {
        return Ok(Batch::default());
    };
    let visited = match policy::by_id(*scope_id)? {
        Some(scope) => prune_scope(&scope, tables, cursor, limit, &mut done)?,
        None => 0,
    };
    if visited < limit {
        scopes.pop();
        done.more = !scopes.is_empty();
    }
    Ok(done)
}

/// How many outcomes were visited.
fn prune_scope(
    scope: &Scope,
    tables: &KeyTables,
    cursor: &mut Cursor,
    limit: usize,
    done: &mut Batch,
) -> Result<usize, Error> {
    let Some(window) = scope.window() else {
        return Ok(0);
    };
    let until = Instant(server::now().0.saturating_sub(window.us()));
    let due = outcome::finished_until(&tables.outcome, scope.id(), *cursor, until, limit);
    for (digest, at) in &due {
        server::check_for_interrupts();
        *cursor = *at;
        let Some(lock) = free_lock(digest) else {
            continue;
        };
        let still_due = outcome::find(&tables.outcome, digest, Snapshot::Now).is_some_and(|row| {
            !decide::within_window(row.finished.finished_at, Some(window), server::now())
        });
        if still_due {
            tables.erase(digest, Stands::InOutcome)?;
            done.outcomes_pruned += 1;
        } else {
            lock.release();
        }
    }
    Ok(due.len())
}
