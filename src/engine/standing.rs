//! Whose claim is it, and does it stand? The look that every ending of a claim begins with.
//!
//! A transactional claim is found in this transaction's memory, a leased one by its fence: the newest fence
//! stands, late or not, and only for who claimed. Nothing here writes.

use crate::engine::key::ScopedKey;
use crate::engine::open_claims;
use crate::engine::record::{self, Record};
use crate::error::Error;
use crate::pg::table::Snapshot;
use crate::pg::{identity, server};
use crate::policy::Scope;
use crate::stats::{self, Counter};
use crate::store::claim::OpenRow;
use crate::store::outcome::OutcomeRow;
use crate::store::{KeyTables, Stands};
use idempotency_core::decide::{self, EffectKind, FinishedState, Found, OpenKey, OpenState, Prior};
use pgrx::pg_sys::Oid;

/// A claim that this call may end.
pub struct Held {
    pub row: OpenRow,
    /// Where the record is that this claim's ending writes over.
    pub stands: Stands,
    pub mode: HeldMode,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum HeldMode {
    /// Lives in this transaction.
    Transactional,
    /// Leased: may outlive this transaction.
    Leased,
    /// Nobody's: an operator decides.
    Operator,
}

/// What the look at a key gave.
pub enum Standing {
    /// The claim is the caller's.
    Held(Held),
    /// The caller has ended it without an outcome (unknown, escalated, or back to the queue), and nobody claimed since.
    Declared(Held),
    /// This very fence has ended it.
    Ended(OutcomeRow),
}

/// Finds the claim that the caller may end. Call under the key's lock.
pub fn stand(
    key: &ScopedKey,
    scope: &Scope,
    tables: &KeyTables,
    fence: Option<i64>,
) -> Result<Standing, Error> {
    if let Some((row, stands)) = open_claims::transactional(&key.digest) {
        if fence.is_some_and(|fence| fence != row.open.fence) {
            return Err(fence_lost(key, scope));
        }
        return Ok(Standing::Held(Held {
            row,
            stands,
            mode: HeldMode::Transactional,
        }));
    }
    let record = record::probe(tables, key, scope, Snapshot::Now)?;
    record::require_visible(tables, key)?;
    let effective = decide::effective(record.found(), &scope.policy(), server::now());
    let newest = match effective {
        Found::Absent | Found::Pruned(_) => return Err(nothing_open(key)),
        Found::Open(open) => open.fence,
        Found::Finished(finished) => finished.fence,
    };
    match (fence, effective) {
        (None, Found::Open(open)) => Err(needs_fence(key, open.state)),
        (None, Found::Finished(_) | Found::Absent | Found::Pruned(_)) => Err(nothing_open(key)),
        (Some(fence), _) if fence != newest => Err(fence_lost(key, scope)),
        (Some(_), _) => by_fence(key, scope, record),
    }
}

/// The fence is the newest: whose claim is it, and does it stand?
fn by_fence(key: &ScopedKey, scope: &Scope, record: Record) -> Result<Standing, Error> {
    match record {
        Record::Absent | Record::Pruned(_) => Err(nothing_open(key)),
        Record::Open(row) => {
            require_claimant(key, scope, row.claimed_by)?;
            let declared =
                row.open.state != OpenState::InFlight && row.open.lease_expires_at.is_none();
            let mode = HeldMode::Leased;
            let held = Held {
                row,
                stands: Stands::InClaim,
                mode,
            };
            Ok(if declared {
                Standing::Declared(held)
            } else {
                Standing::Held(held)
            })
        }
        Record::Finished(row) => match (row.finished.state, row.claimed_by) {
            (FinishedState::LeaseExpired, Some(role)) => {
                require_claimant(key, scope, role)?;
                Ok(Standing::Held(Held {
                    row: reopened(row, role),
                    stands: Stands::InOutcome,
                    mode: HeldMode::Leased,
                }))
            }
            (_, Some(role)) => {
                require_claimant(key, scope, role)?;
                Ok(Standing::Ended(row))
            }
            (_, None) => Ok(Standing::Ended(row)),
        },
    }
}

/// The claim that a sweep has moved to the outcomes because its lease in a local scope ended.
fn reopened(row: OutcomeRow, role: Oid) -> OpenRow {
    let claimed_at = row.claimed_at.unwrap_or(row.finished.finished_at);
    OpenRow {
        open: OpenKey {
            state: OpenState::InFlight,
            kind: EffectKind::Local,
            prior: if row.finished.attempt > 1 {
                Prior::NotApplied
            } else {
                Prior::Nothing
            },
            fence: row.finished.fence,
            attempt: row.finished.attempt,
            lease_expires_at: Some(row.finished.finished_at),
            first_claimed_at: claimed_at,
            message: false,
            tries: 0,
            reconciles: 0,
        },
        scope_id: row.scope_id,
        key: row.key,
        args: row.args,
        run: row.run,
        reason: None,
        prior_reason: row.prior_reason,
        claimed_at,
        claimed_by: role,
        claimed_pid: server::backend_pid(),
        application_name: None,
        in_doubt_since: None,
        retry_at: None,
    }
}

/// Fences can be guessed: they count only for the role that claimed, its members, and operators.
fn require_claimant(key: &ScopedKey, scope: &Scope, claimed_by: Oid) -> Result<(), Error> {
    let role = identity::current_role();
    if identity::has_rights_of(role, claimed_by) || scope.operated_by(role) {
        Ok(())
    } else {
        Err(Error::NotClaimant(key.place()))
    }
}

fn fence_lost(key: &ScopedKey, scope: &Scope) -> Error {
    stats::count_at_once(scope.id(), Counter::FencesLost);
    Error::FenceLost(key.place())
}

/// There is no claim that could be ended.
pub fn nothing_open(key: &ScopedKey) -> Error {
    Error::NoOpenClaim {
        place: key.place(),
        detail: "It was not claimed, was given back, or is finished.",
        hint: "Claim it first with idem_claim. A transactional claim must be finished in its own transaction.",
    }
}

fn needs_fence(key: &ScopedKey, state: OpenState) -> Error {
    Error::NoOpenClaim {
        place: key.place(),
        detail: match state {
            OpenState::InFlight => "It is held under a lease, and no fence was given.",
            OpenState::Unknown => "Its outcome is unknown, and no fence was given.",
            OpenState::Escalated => "It waits for a human, and no fence was given.",
            OpenState::Queued => "It waits for a dispatcher, and no fence was given.",
        },
        hint: "Pass fence => the fence that idem_claim returned.",
    }
}

/// The fence has ended its claim, in another way than now asked for.
pub fn ended_already(key: &ScopedKey) -> Error {
    Error::NoOpenClaim {
        place: key.place(),
        detail: "This fence has ended the claim already, in another way.",
        hint: "idem_peek tells how it ended.",
    }
}
