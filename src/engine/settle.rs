//! How a claim's end is written: the record, its message, and the trail. Called under the key's lock.

use crate::engine::key::ScopedKey;
use crate::engine::trail;
use crate::error::Error;
use crate::pg::jsonb::Jsonb;
use crate::pg::table::Mode;
use crate::policy::Scope;
use crate::stats::{self, Counter, Observed};
use crate::store::claim::{self, OpenRow};
use crate::store::event::Kind;
use crate::store::message::{self, Messages};
use crate::store::outcome::OutcomeRow;
use crate::store::{KeyTables, Stands};
use idempotency_core::decide::{self, OpenKey, OpenState, Prior};
use idempotency_core::time::Instant;

/// Where a change of a key happens.
pub struct Site<'a> {
    pub key: &'a ScopedKey,
    pub scope: &'a Scope,
    pub tables: &'a KeyTables,
    pub now: Instant,
}

/// Why, and what shows it.
#[derive(Clone, Default)]
pub struct Grounds {
    pub reason: Option<String>,
    pub evidence: Option<Jsonb>,
}

impl Site<'_> {
    /// The key stays open and nobody owns it: `open` says how. `before` is the claim that ends, `from` the state that
    /// it is found in.
    pub fn leave_open(
        &self,
        from: &'static str,
        before: &OpenRow,
        stands: Stands,
        open: OpenKey,
        grounds: Grounds,
    ) -> Result<(), Error> {
        let due_at = match open.state {
            OpenState::Escalated => message::NEVER,
            // What was given back, and what a human has asked for, is due at once.
            OpenState::Unknown | OpenState::Queued if before.open.tries > open.tries => self.now,
            OpenState::Queued if open.tries == 0 => self.now,
            OpenState::InFlight | OpenState::Unknown | OpenState::Queued => {
                self.retry_at(&before.open, &open)
            }
        };
        let in_doubt_since = match open.state {
            OpenState::Unknown | OpenState::Escalated => before.in_doubt_since.or(Some(self.now)),
            OpenState::InFlight | OpenState::Queued => None,
        };
        let row = OpenRow {
            open,
            reason: grounds.reason.clone(),
            in_doubt_since,
            retry_at: Some(due_at).filter(|at| *at != message::NEVER),
            ..before.clone()
        };
        self.tables.write_open(&self.key.digest, &row, stands)?;
        if before.open.state != open.state {
            match open.state {
                OpenState::Unknown => stats::count(row.scope_id, Counter::Unknown),
                OpenState::Escalated => stats::count(row.scope_id, Counter::Escalated),
                OpenState::InFlight | OpenState::Queued => {}
            }
        }
        if let Some(evidence) = grounds.evidence {
            claim::set_evidence(&self.tables.claim, &self.key.digest, evidence)?;
        }
        if open.message {
            let messages = Messages::open(Mode::Write)?;
            messages.set_due(&self.key.digest, due_at)?;
            messages.keep();
        }
        let names = (from, trail::open_name(open.state));
        self.note(&row, &before.open, names, grounds)
    }

    /// When the key is tried again: the back-off counts from the end of the lease, seen by a sweep or not, or from now.
    pub fn retry_at(&self, before: &OpenKey, open: &OpenKey) -> Instant {
        let tries = open.tries.max(open.reconciles).max(1);
        let from = before
            .lease_expires_at
            .map_or(self.now, |at| at.min(self.now));
        self.scope
            .retry_at(&self.key.digest, before.fence, tries, from)
    }

    /// The key is finished.
    pub fn finish(
        &self,
        before: &OpenRow,
        stands: Stands,
        mut outcome: OutcomeRow,
        evidence: Option<Jsonb>,
    ) -> Result<(), Error> {
        if before.open.message {
            let messages = Messages::open(Mode::Write)?;
            if self.scope.keeps_payload() {
                outcome.payload = messages.find(&self.key.digest).map(|row| row.payload);
            }
            messages.remove(&self.key.digest)?;
            messages.keep();
        }
        self.tables
            .write_finished(&self.key.digest, &outcome, stands)?;
        if let Some(since) = before.in_doubt_since {
            stats::observe(before.scope_id, Observed::Unknown, self.now.since(since));
        }
        let names = (
            self.name_of(&before.open),
            trail::finished_name(outcome.finished.state),
        );
        let grounds = Grounds {
            reason: outcome.reason,
            evidence,
        };
        self.note(before, &before.open, names, grounds)
    }

    /// What a key was until now, said as a claim would find it: a lease that has ended is no longer in flight, and a
    /// claim that lives in its transaction has changed nothing that others see.
    pub fn name_of(&self, open: &OpenKey) -> &'static str {
        let ended = decide::in_doubt(open, &self.scope.policy(), self.now);
        let of_transaction = open.lease_expires_at.is_none() && open.prior == Prior::Unknown;
        match open.state {
            OpenState::InFlight if ended || of_transaction => trail::open_name(OpenState::Unknown),
            state => trail::open_name(state),
        }
    }

    /// Ordinary steps leave no trail.
    fn note(
        &self,
        row: &OpenRow,
        before: &OpenKey,
        names: (&'static str, &'static str),
        grounds: Grounds,
    ) -> Result<(), Error> {
        let doubtful = |name: &str| {
            name == trail::open_name(OpenState::Unknown)
                || name == trail::open_name(OpenState::Escalated)
        };
        if before.prior == Prior::Unknown || doubtful(names.0) || doubtful(names.1) {
            trail::of_open(Kind::Doubt, row, names, grounds.reason, grounds.evidence)?;
        }
        Ok(())
    }
}
