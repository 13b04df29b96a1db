//! Ending a claim: complete, fail, release; and renewing its lease.
//!
//! The last owner may finish late, after its lease ended and after a sweep, as long as nobody claimed since.

use crate::engine::key::ScopedKey;
use crate::engine::open_claims;
use crate::engine::standing::{Held, HeldMode, Standing, ended_already, stand};
use crate::error::Error;
use crate::pg::jsonb::Jsonb;
use crate::pg::lock::KeyLock;
use crate::pg::server;
use crate::pg::table::Mode;
use crate::policy::{self, Scope};
use crate::store::claim::OpenRow;
use crate::store::outcome::OutcomeRow;
use crate::store::{KeyTables, Stands};
use idempotency_core::decide::{
    self, EffectKind, FinishedKey, FinishedState, GivenBack, OpenKey, OpenState,
};
use idempotency_core::time::{Instant, Span};
use std::rc::Rc;

/// Longest reason that is stored.
const REASON_BYTES_MAX: usize = 8_192;

/// What the caller says of its claim.
#[derive(Clone)]
pub enum Ending {
    Completed {
        result: Option<Jsonb>,
    },
    Rejected {
        reason: Option<String>,
        result: Option<Jsonb>,
    },
    NotApplied {
        reason: Option<String>,
    },
    Unknown {
        reason: Option<String>,
    },
    Released,
}

/// Ends the claim of a key; gives back the stored result.
pub fn finish(key: &ScopedKey, fence: Option<i64>, ending: Ending) -> Result<Option<Jsonb>, Error> {
    let (scope, tables) = enter(key)?;
    check_size(key, &scope, &ending)?;
    let _kept = KeyLock::acquire(&key.digest);
    let result = match stand(key, &scope, &tables, fence)? {
        Standing::Held(held) => end(key, &tables, &held, ending)?,
        Standing::DeclaredUnknown(held) => match ending {
            Ending::Completed { .. } | Ending::Rejected { .. } | Ending::NotApplied { .. } => {
                end(key, &tables, &held, ending)?
            }
            Ending::Unknown { .. } => None,
            Ending::Released => return Err(ended_already(key)),
        },
        Standing::Ended(row) => same_again(key, &row, &ending)?,
    };
    keep_lock(key)?;
    tables.keep();
    Ok(result)
}

/// Lets the lease of a claim end `lease` from now; gives back when.
pub fn renew(key: &ScopedKey, fence: Option<i64>, lease: Span) -> Result<Instant, Error> {
    let (scope, tables) = enter(key)?;
    let _kept = KeyLock::acquire(&key.digest);
    let held = match stand(key, &scope, &tables, fence)? {
        Standing::Held(held) => held,
        Standing::DeclaredUnknown(_) | Standing::Ended(_) => return Err(ended_already(key)),
    };
    if held.mode == HeldMode::Transactional {
        return Err(Error::NoOpenClaim {
            place: key.place(),
            detail: "The claim lives in this transaction and has no lease.",
            hint: "Claim with lease => an interval to hold a key over several transactions.",
        });
    }
    let until = server::now().after(lease);
    let open = OpenKey {
        state: OpenState::InFlight,
        lease_expires_at: Some(until),
        ..held.row.open
    };
    let row = OpenRow {
        open,
        reason: None,
        ..held.row
    };
    // Where a sweep has moved the ended claim of a local scope, this moves it back.
    tables.write_open(&key.digest, &row, held.stands)?;
    keep_lock(key)?;
    tables.keep();
    Ok(until)
}

fn enter(key: &ScopedKey) -> Result<(Rc<Scope>, KeyTables), Error> {
    let tables = KeyTables::open(Mode::Write)?;
    Ok((policy::usable(&key.scope)?, tables))
}

/// The lock stays to the end of the transaction, and is counted once for each key.
fn keep_lock(key: &ScopedKey) -> Result<(), Error> {
    if !open_claims::holds(&key.digest) {
        open_claims::require_room(1)?;
        open_claims::add_lock(key.digest);
    }
    Ok(())
}

fn check_size(key: &ScopedKey, scope: &Scope, ending: &Ending) -> Result<(), Error> {
    let (result, reason) = match ending {
        Ending::Completed { result } => (*result, None),
        Ending::Rejected { reason, result } => (*result, reason.as_deref()),
        Ending::NotApplied { reason } | Ending::Unknown { reason } => (None, reason.as_deref()),
        Ending::Released => (None, None),
    };
    let limit = scope.max_result_bytes();
    let place = || {
        format!(
            "key {} in scope {}",
            crate::error::quoted(&key.key),
            crate::error::quoted(&key.scope)
        )
    };
    if let Some(bytes) = result.map(Jsonb::size_bytes).filter(|bytes| *bytes > limit) {
        return Err(Error::too_large(
            format!(
                "the result of {} has {bytes} bytes, the limit is {limit}",
                place()
            ),
            "Store a reference instead, or raise max_result_bytes with idem_scope_set.",
        ));
    }
    if let Some(bytes) = reason
        .map(str::len)
        .filter(|bytes| *bytes > REASON_BYTES_MAX)
    {
        return Err(Error::too_large(
            format!(
                "the reason for {} has {bytes} bytes, the limit is {REASON_BYTES_MAX}",
                place()
            ),
            "Shorten it; details belong into the result or a log.",
        ));
    }
    Ok(())
}

/// Carries the ending out.
fn end(
    key: &ScopedKey,
    tables: &KeyTables,
    held: &Held,
    ending: Ending,
) -> Result<Option<Jsonb>, Error> {
    let now = server::now();
    let open = held.row.open;
    let outcome = |state, reason, result| Outcome {
        state,
        reason,
        result,
        now,
    };
    let mut stored = None;
    match ending {
        // A transactional claim of a key without record has stored nothing.
        Ending::Released if held.stands == Stands::Nowhere => {}
        Ending::Released => {
            let found = OpenKey {
                fence: decide::next_fence(now, Some(open.fence)),
                attempt: open.attempt - 1,
                ..open
            };
            let reason = held.row.prior_reason.clone();
            let left = decide::given_back(open.prior, now);
            give_back(
                key,
                tables,
                held,
                found,
                left,
                outcome(FinishedState::NotApplied, reason, None),
            )?;
        }
        Ending::Completed { result } => {
            require_claim_committed(key, held)?;
            finish_with(
                key,
                tables,
                held,
                open,
                outcome(FinishedState::Completed, None, result),
            )?;
            stored = result;
        }
        Ending::Rejected { reason, result } => {
            require_claim_committed(key, held)?;
            finish_with(
                key,
                tables,
                held,
                open,
                outcome(FinishedState::Rejected, reason, result),
            )?;
        }
        Ending::NotApplied { reason } => {
            require_claim_committed(key, held)?;
            let left = decide::not_applied(open.prior, now);
            give_back(
                key,
                tables,
                held,
                open,
                left,
                outcome(FinishedState::NotApplied, reason, None),
            )?;
        }
        Ending::Unknown { reason } => {
            require_claim_committed(key, held)?;
            let left = GivenBack::Unknown(None);
            give_back(
                key,
                tables,
                held,
                open,
                left,
                outcome(FinishedState::NotApplied, reason, None),
            )?;
        }
    }
    open_claims::close(&key.digest);
    open_claims::wake_at_commit(&key.digest);
    Ok(stored)
}

/// An outside effect may begin only after its claim was committed: else a crash forgets the claim alone.
fn require_claim_committed(key: &ScopedKey, held: &Held) -> Result<(), Error> {
    let outside = match held.row.open.kind {
        EffectKind::External | EffectKind::Keyed => true,
        EffectKind::Local => false,
    };
    if outside && open_claims::leased_here(&key.digest) {
        return Err(Error::SameTransaction(key.place()));
    }
    Ok(())
}

/// How a key ended, or its last attempt.
struct Outcome {
    state: FinishedState,
    reason: Option<String>,
    result: Option<Jsonb>,
    now: Instant,
}

/// What is left of a key whose attempt had no effect, is unknown, or was not begun.
fn give_back(
    key: &ScopedKey,
    tables: &KeyTables,
    held: &Held,
    open: OpenKey,
    left: GivenBack,
    outcome: Outcome,
) -> Result<(), Error> {
    match left {
        GivenBack::Nothing => tables.erase(&key.digest, held.stands),
        GivenBack::NotApplied => finish_with(key, tables, held, open, outcome),
        GivenBack::Unknown(lease_expires_at) => {
            let open = OpenKey {
                state: OpenState::Unknown,
                lease_expires_at,
                ..open
            };
            let row = OpenRow {
                open,
                reason: outcome.reason,
                ..held.row.clone()
            };
            tables.write_open(&key.digest, &row, held.stands)
        }
    }
}

fn finish_with(
    key: &ScopedKey,
    tables: &KeyTables,
    held: &Held,
    open: OpenKey,
    outcome: Outcome,
) -> Result<(), Error> {
    let leased = held.mode != HeldMode::Transactional;
    let row = OutcomeRow {
        finished: FinishedKey {
            state: outcome.state,
            fence: open.fence,
            attempt: open.attempt,
            finished_at: outcome.now,
        },
        scope_id: held.row.scope_id,
        key: key.key.clone(),
        args: held.row.args.clone(),
        result: outcome.result,
        reason: outcome.reason,
        run: held.row.run.clone(),
        claimed_at: leased.then_some(held.row.claimed_at),
        claimed_by: leased.then_some(held.row.claimed_by),
        prior_reason: None,
    };
    tables.write_finished(&key.digest, &row, held.stands)
}

/// The same call again, such as after a lost acknowledgement: the stored answer. Another one is refused.
fn same_again(key: &ScopedKey, row: &OutcomeRow, ending: &Ending) -> Result<Option<Jsonb>, Error> {
    match (ending, row.finished.state) {
        (Ending::Completed { .. }, FinishedState::Completed) => Ok(row.result),
        (Ending::Rejected { .. }, FinishedState::Rejected)
        | (Ending::NotApplied { .. }, FinishedState::NotApplied) => Ok(None),
        (
            Ending::Completed { .. }
            | Ending::Rejected { .. }
            | Ending::NotApplied { .. }
            | Ending::Unknown { .. }
            | Ending::Released,
            _,
        ) => Err(ended_already(key)),
    }
}
