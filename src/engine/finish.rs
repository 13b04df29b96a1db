//! Ending a claim: complete, fail, release; and renewing its lease.
//!
//! The last owner may finish late, after its lease ended and after a sweep, as long as nobody claimed since.

use crate::engine::key::ScopedKey;
use crate::engine::open_claims;
use crate::engine::record::{self, Record};
use crate::engine::runs;
use crate::engine::settle::{Grounds, Site};
use crate::engine::standing::{Held, HeldMode, Standing, ended_already, nothing_open, stand};
use crate::engine::trail;
use crate::error::Error;
use crate::pg::jsonb::Jsonb;
use crate::pg::lock::KeyLock;
use crate::pg::table::{Mode, Snapshot};
use crate::pg::{identity, server};
use crate::policy::{self, Scope};
use crate::stats::{self, Counter, Observed};
use crate::store::claim::OpenRow;
use crate::store::outcome::OutcomeRow;
use crate::store::{KeyTables, Stands};
use idempotency_core::decide::{
    self, EffectKind, FinishedKey, FinishedState, GivenBack, OpenKey, OpenState, Prior, Sweep,
    WasRead,
};
use idempotency_core::time::{Instant, Span};
use idempotency_core::window::Run;
use std::rc::Rc;

/// Longest reason that is stored.
pub const REASON_BYTES_MAX: usize = 8_192;

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
    Escalated {
        reason: Option<String>,
    },
    Released,
}

/// An ending with its grounds.
#[derive(Clone)]
pub struct Said {
    pub ending: Ending,
    pub evidence: Option<Jsonb>,
    /// Whether it comes from a read of the other system: then it speaks for all attempts.
    pub was_read: WasRead,
}

impl From<Ending> for Said {
    fn from(ending: Ending) -> Said {
        Said {
            ending,
            evidence: None,
            was_read: WasRead::IfToldTo,
        }
    }
}

/// What became of the key.
pub struct Finished {
    pub state: &'static str,
    /// The stored result.
    pub result: Option<Jsonb>,
}

/// Ends the claim of a key.
pub fn finish(key: &ScopedKey, fence: Option<i64>, said: Said) -> Result<Finished, Error> {
    let (scope, tables) = enter(key)?;
    check_size(key, &scope, &said)?;
    let _kept = KeyLock::acquire(&key.digest);
    let site = site(key, &scope, &tables);
    let finished = match stand(key, &scope, &tables, fence)? {
        Standing::Held(held) => end(&site, &held, said)?,
        Standing::Declared(held) => match (held.row.open.state, &said.ending) {
            // The same call again, such as after a lost acknowledgement.
            (OpenState::Unknown, Ending::Unknown { .. })
            | (OpenState::Escalated, Ending::Escalated { .. } | Ending::Unknown { .. })
            | (OpenState::Queued, Ending::NotApplied { .. }) => Finished {
                state: trail::open_name(held.row.open.state),
                result: None,
            },
            (
                OpenState::Unknown | OpenState::Escalated,
                Ending::Completed { .. } | Ending::Rejected { .. } | Ending::NotApplied { .. },
            )
            | (OpenState::Unknown, Ending::Escalated { .. }) => end(&site, &held, said)?,
            (_, _) => return Err(ended_already(key)),
        },
        Standing::Ended(row) => same_again(key, &row, &said.ending)?,
    };
    keep_lock(key)?;
    tables.keep();
    Ok(finished)
}

/// Ends a key without its fence, as an operator of its scope: what nobody holds.
pub fn decide_for(key: &ScopedKey, said: Said) -> Result<Finished, Error> {
    let (scope, tables) = enter(key)?;
    if !scope.operated_by(identity::current_role()) {
        return Err(Error::NotOperator(key.place()));
    }
    check_size(key, &scope, &said)?;
    let _kept = KeyLock::acquire(&key.digest);
    let record = record::probe(&tables, key, &scope, Snapshot::Now)?;
    record::require_visible(&tables, key)?;
    let site = site(key, &scope, &tables);
    let policy = scope.policy();
    let mut row = match record {
        Record::Open(row) if decide::lease_end(&row.open, site.now).is_some() => {
            return Err(Error::HeldByLease(key.place()));
        }
        Record::Open(row) if decide::sweep(&row.open, &policy, site.now) != Sweep::LeaseExpired => {
            row
        }
        Record::Open(_) | Record::Absent | Record::Pruned(_) | Record::Finished(_) => {
            return Err(nothing_open(key));
        }
    };
    // As a sweep would leave it.
    match decide::sweep(&row.open, &policy, site.now) {
        Sweep::Unknown { reconciles } => row.open.reconciles = reconciles,
        Sweep::Escalated { reconciles } => {
            row.open.state = OpenState::Escalated;
            row.open.reconciles = reconciles;
        }
        Sweep::Keep | Sweep::LeaseExpired | Sweep::Requeued => {}
    }
    // A decision shuts the last owner out; asking for one, or having found none, does not.
    let fence = match said.ending {
        Ending::Escalated { .. } | Ending::Unknown { .. } => row.open.fence,
        Ending::Completed { .. }
        | Ending::Rejected { .. }
        | Ending::NotApplied { .. }
        | Ending::Released => decide::next_fence(site.now, Some(row.open.fence)),
    };
    let held = Held {
        row: OpenRow {
            open: OpenKey { fence, ..row.open },
            ..row
        },
        stands: Stands::InClaim,
        mode: HeldMode::Operator,
    };
    let finished = end(&site, &held, said)?;
    keep_lock(key)?;
    tables.keep();
    Ok(finished)
}

fn site<'a>(key: &'a ScopedKey, scope: &'a Scope, tables: &'a KeyTables) -> Site<'a> {
    Site {
        key,
        scope,
        tables,
        now: server::now(),
    }
}

/// Lets the lease of a claim end `lease` from now; gives back when.
pub fn renew(key: &ScopedKey, fence: Option<i64>, lease: Span) -> Result<Instant, Error> {
    let (scope, tables) = enter(key)?;
    let _kept = KeyLock::acquire(&key.digest);
    let held = match stand(key, &scope, &tables, fence)? {
        Standing::Held(held) => held,
        Standing::Declared(_) | Standing::Ended(_) => return Err(ended_already(key)),
    };
    if held.mode == HeldMode::Transactional {
        return Err(Error::NoOpenClaim {
            place: key.place(),
            detail: "The claim lives in this transaction and has no lease.",
            hint: "Claim with lease => an interval to hold a key over several transactions.",
        });
    }
    let until = server::now().after(lease);
    let row = OpenRow {
        open: decide::renewed(&held.row.open, until),
        reason: None,
        retry_at: None,
        ..held.row
    };
    runs::sign_of_life(row.run.as_deref(), &scope)?;
    // Where a sweep has moved the ended claim of a local scope, this moves it back.
    tables.write_open(&key.digest, &row, held.stands)?;
    match row.open.kind {
        // Its owner relies on the later end: a crash must not bring the earlier one back.
        EffectKind::External | EffectKind::Keyed => server::force_synchronous_commit(),
        EffectKind::Local => {}
    }
    keep_lock(key)?;
    tables.keep();
    Ok(until)
}

fn enter(key: &ScopedKey) -> Result<(Rc<Scope>, KeyTables), Error> {
    let tables = KeyTables::open(Mode::Write)?;
    Ok((policy::usable(&key.scope)?, tables))
}

/// The lock stays to the end of the transaction, and is counted once for each key.
pub fn keep_lock(key: &ScopedKey) -> Result<(), Error> {
    if !open_claims::holds(&key.digest) {
        open_claims::require_room(1)?;
        open_claims::add_lock(key.digest);
    }
    Ok(())
}

fn check_size(key: &ScopedKey, scope: &Scope, said: &Said) -> Result<(), Error> {
    let (result, reason) = match &said.ending {
        Ending::Completed { result } => (*result, None),
        Ending::Rejected { reason, result } => (*result, reason.as_deref()),
        Ending::NotApplied { reason }
        | Ending::Unknown { reason }
        | Ending::Escalated { reason } => (None, reason.as_deref()),
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
    for (what, value) in [("result", result), ("evidence", said.evidence)] {
        if let Some(bytes) = value.map(Jsonb::size_bytes).filter(|bytes| *bytes > limit) {
            return Err(Error::too_large(
                format!(
                    "the {what} of {} has {bytes} bytes, the limit is {limit}",
                    place()
                ),
                "Store a reference instead, or raise max_result_bytes with idem_scope_set.",
            ));
        }
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

/// Counts an ending, and how long the call took.
fn count(site: &Site<'_>, held: &Held, ending: &Ending) {
    let scope = held.row.scope_id;
    stats::count(
        scope,
        match ending {
            Ending::Completed { .. } => Counter::Completed,
            Ending::Rejected { .. } => Counter::FailedRejected,
            Ending::NotApplied { .. } => Counter::FailedNotApplied,
            Ending::Unknown { .. } => Counter::FailedUnknown,
            Ending::Released => Counter::Released,
            Ending::Escalated { .. } => return,
        },
    );
    let ended_at = held.row.open.lease_expires_at;
    if let (HeldMode::Leased, Some(lease_expires_at)) = (held.mode, ended_at) {
        let took_us = site.now.since(held.row.claimed_at);
        stats::observe(scope, Observed::Call, took_us);
        if site.now >= lease_expires_at {
            stats::count(scope, Counter::LateFinishes);
        }
    }
}

/// Carries the ending out.
fn end(site: &Site<'_>, held: &Held, said: Said) -> Result<Finished, Error> {
    runs::sign_of_life(held.row.run.as_deref(), site.scope)?;
    count(site, held, &said.ending);
    let open = as_owned(held, site.now);
    let policy = site.scope.policy();
    let reading = said.was_read == WasRead::Yes;
    let mut after = open;
    let (left, reason) = match said.ending {
        Ending::Completed { result } => {
            require_claim_committed(site.key, held)?;
            return finished(
                site,
                held,
                FinishedState::Completed,
                None,
                result,
                said.evidence,
            );
        }
        Ending::Rejected { reason, result } => {
            require_claim_committed(site.key, held)?;
            let state = FinishedState::Rejected;
            return finished(site, held, state, reason, result, said.evidence);
        }
        Ending::NotApplied { reason } => {
            require_claim_committed(site.key, held)?;
            let left = match held.mode {
                // A human asks for a new start.
                HeldMode::Operator => {
                    (after.tries, after.reconciles) = (0, 0);
                    decide::read_as_not_applied(&open)
                }
                HeldMode::Leased | HeldMode::Transactional if reading => {
                    after.reconciles = 0;
                    decide::not_applied(&read(&open), &policy, site.now)
                }
                HeldMode::Leased | HeldMode::Transactional => {
                    decide::not_applied(&open, &policy, site.now)
                }
            };
            (left, reason)
        }
        Ending::Unknown { reason } => {
            require_claim_committed(site.key, held)?;
            let (left, reconciles) = decide::unknown(&open, &policy, said.was_read);
            after.reconciles = reconciles;
            // A read in vain adds no reason to the one there is.
            let known = || {
                let row = &held.row;
                row.reason.clone().or_else(|| row.prior_reason.clone())
            };
            (
                left,
                if reading {
                    reason.or_else(known)
                } else {
                    reason
                },
            )
        }
        Ending::Escalated { reason } => (GivenBack::Escalated, reason),
        Ending::Released => {
            after.fence = decide::next_fence(site.now, Some(open.fence));
            after.attempt = open.attempt - 1;
            // A claim that was told to read may have been made without a delivery: it takes no try back.
            if open.prior != Prior::Unknown {
                after.tries = (open.tries - 1).max(0);
            }
            (
                decide::given_back(&open, site.now),
                held.row.prior_reason.clone(),
            )
        }
    };
    let state = leave(site, held, after, left, reason, said.evidence)?;
    open_claims::close(&site.key.digest);
    open_claims::wake_at_commit(&site.key.digest);
    Ok(Finished {
        state,
        result: None,
    })
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

/// A claim whose owner has read the other system: what it says holds for the attempts before it too.
fn read(open: &OpenKey) -> OpenKey {
    OpenKey {
        prior: Prior::Unknown,
        ..*open
    }
}

/// The claim as its owner left it: a read that a sweep has counted as in vain is the very one that ends now.
fn as_owned(held: &Held, now: Instant) -> OpenKey {
    let open = held.row.open;
    if held.mode != HeldMode::Leased || open.lease_expires_at.is_none() {
        return open;
    }
    OpenKey {
        reconciles: decide::renewed(&open, now).reconciles,
        ..open
    }
}

/// Writes what is left of a key whose claim gave no outcome; gives back its state.
fn leave(
    site: &Site<'_>,
    held: &Held,
    after: OpenKey,
    left: GivenBack,
    reason: Option<String>,
    evidence: Option<Jsonb>,
) -> Result<&'static str, Error> {
    let (state, prior, lease_expires_at) = match left {
        // A transactional claim of a key without record has stored nothing: then there is nothing to erase.
        GivenBack::Nothing => {
            site.tables.erase(&site.key.digest, held.stands)?;
            return Ok(trail::ABSENT);
        }
        GivenBack::NotApplied => {
            let row = outcome(site, held, after, FinishedState::NotApplied, reason, None);
            site.finish(&held.row, held.stands, row, evidence)?;
            return Ok(trail::NOT_APPLIED);
        }
        GivenBack::Unknown(lease_expires_at) => (OpenState::Unknown, after.prior, lease_expires_at),
        GivenBack::Queued(prior) => (OpenState::Queued, prior, None),
        GivenBack::Escalated => (OpenState::Escalated, after.prior, None),
    };
    let open = OpenKey {
        state,
        prior,
        lease_expires_at,
        ..after
    };
    let grounds = Grounds { reason, evidence };
    let from = site.name_of(&held.row.open);
    site.leave_open(from, &held.row, held.stands, open, grounds)?;
    Ok(trail::open_name(state))
}

fn finished(
    site: &Site<'_>,
    held: &Held,
    state: FinishedState,
    reason: Option<String>,
    result: Option<Jsonb>,
    evidence: Option<Jsonb>,
) -> Result<Finished, Error> {
    let row = outcome(site, held, held.row.open, state, reason, result);
    site.finish(&held.row, held.stands, row, evidence)?;
    open_claims::close(&site.key.digest);
    open_claims::wake_at_commit(&site.key.digest);
    Ok(Finished {
        state: trail::finished_name(state),
        result,
    })
}

fn outcome(
    site: &Site<'_>,
    held: &Held,
    open: OpenKey,
    state: FinishedState,
    reason: Option<String>,
    result: Option<Jsonb>,
) -> OutcomeRow {
    let leased = held.mode != HeldMode::Transactional;
    OutcomeRow {
        finished: FinishedKey {
            state,
            fence: open.fence,
            attempt: open.attempt,
            finished_at: site.now,
            run: Run::None,
        },
        scope_id: held.row.scope_id,
        key: site.key.key.clone(),
        args: held.row.args.clone(),
        result,
        reason,
        run: held.row.run.clone(),
        claimed_at: leased.then_some(held.row.claimed_at),
        claimed_by: leased.then_some(held.row.claimed_by),
        prior_reason: None,
        payload: None,
    }
}

/// The same call again, such as after a lost acknowledgement: the stored answer. Another one is refused.
fn same_again(key: &ScopedKey, row: &OutcomeRow, ending: &Ending) -> Result<Finished, Error> {
    let (state, result) = match (ending, row.finished.state) {
        (Ending::Completed { .. }, FinishedState::Completed) => (trail::COMPLETED, row.result),
        (Ending::Rejected { .. }, FinishedState::Rejected) => (trail::REJECTED, row.result),
        (Ending::NotApplied { .. }, FinishedState::NotApplied) => (trail::NOT_APPLIED, None),
        (
            Ending::Completed { .. }
            | Ending::Rejected { .. }
            | Ending::NotApplied { .. }
            | Ending::Unknown { .. }
            | Ending::Escalated { .. }
            | Ending::Released,
            _,
        ) => return Err(ended_already(key)),
    };
    Ok(Finished { state, result })
}
