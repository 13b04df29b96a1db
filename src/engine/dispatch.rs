//! Delivering messages: those that are due, each under a lease of its own, to any number of dispatchers.
//!
//! A dispatcher only tries locks, and looks and decides again under each: its list of candidates is stale by then.
//! A message is with one dispatcher at a time because its key is claimed by one; of an ordering key only the oldest
//! unfinished message is looked at.

use crate::engine::claim::{self, Word};
use crate::engine::key::ScopedKey;
use crate::engine::open_claims;
use crate::engine::record::{self, Record};
use crate::engine::settle::{Grounds, Site};
use crate::engine::trail;
use crate::engine::wait::{self, Patience};
use crate::error::Error;
use crate::pg::lock::KeyLock;
use crate::pg::table::{Mode, Snapshot};
use crate::pg::{identity, server};
use crate::policy::{self, Scope};
use crate::stats::{self, Counter};
use crate::store::claim::OpenRow;
use crate::store::event::Kind;
use crate::store::message::{Candidate, MessageRow, Messages, NEVER};
use crate::store::{KeyTables, Stands};
use idempotency_core::backoff;
use idempotency_core::decide::{
    self, Delivery, EffectKind, OpenKey, OpenState, Ownership, Prior, Sweep,
};
use idempotency_core::digest;
use idempotency_core::time::{Instant, Span};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Messages of one `idem_dispatch`.
pub const ROWS_MAX: usize = 1_000;
/// Candidates that are read at a time.
const PAGE_ROWS: usize = 256;
/// Ordering keys that one call looks at in one scope; the next call goes on behind them.
const ORDERING_KEYS_MAX: usize = 10_000;

/// What a dispatcher asks for.
pub struct Request {
    pub destination: String,
    pub rows_max: usize,
    pub lease: Span,
    pub wait_us: i64,
    /// Scopes that the caller may use.
    pub scope_ids: Vec<i32>,
}

/// A message in a dispatcher's hands.
pub struct Delivered {
    pub key: ScopedKey,
    pub word: Word,
    pub row: OpenRow,
    pub message: MessageRow,
}

/// Places in the ordering keys that a session remembers.
const PLACES_MAX: usize = 1_000;

thread_local! {
    /// Where the last look over the ordering keys of a scope and destination ended, if not at their end.
    static PLACES: RefCell<HashMap<(i32, String), String>> = RefCell::new(HashMap::new());
}

/// Takes what is due, waiting for the first.
pub fn dispatch(request: &Request) -> Result<Vec<Delivered>, Error> {
    let patience = Patience::new(Some(request.wait_us), 0);
    let mut rounds: u32 = 0;
    loop {
        let (taken, wrote) = take(request)?;
        // What was escalated is to be committed, and its locks given back.
        if wrote || !patience.for_lease() {
            if rounds > 0 {
                wait::end();
            }
            return Ok(taken);
        }
        let destination = digest::destination_digest(&request.destination);
        patience.sleep(&destination, NEVER, rounds);
        rounds = rounds.saturating_add(1);
    }
}

/// Whether a message of the scope is due. Others may have it.
pub fn is_any_due(scope: &Scope, destination: &str) -> Result<bool, Error> {
    let messages = Messages::open(Mode::Read)?;
    let now = server::now();
    let unordered = messages.due(scope.id(), destination, now, None, 1);
    let ordered = messages.heads(scope.id(), destination, None, 1);
    messages.close();
    Ok(!unordered.is_empty() || !ordered.is_empty())
}

/// One look over the scopes that the caller may use.
struct Look<'a> {
    request: &'a Request,
    tables: &'a KeyTables,
    messages: &'a Messages,
    rows_max: usize,
    taken: Vec<Delivered>,
    /// Messages that were tried for the last time.
    escalated: usize,
}

/// What was taken, and whether anything was written.
fn take(request: &Request) -> Result<(Vec<Delivered>, bool), Error> {
    let tables = KeyTables::open(Mode::Write)?;
    let messages = Messages::open(Mode::Write)?;
    // Refused as a claim would be, instead of finding nothing for ever.
    open_claims::require_room(1)?;
    let mut look = Look {
        request,
        tables: &tables,
        messages: &messages,
        rows_max: request.rows_max.min(open_claims::room()),
        taken: Vec::new(),
        escalated: 0,
    };
    // A new draw each time: no scope and neither kind of message always comes first.
    let draw = backoff::spread(
        server::now().0.unsigned_abs() ^ u64::from(server::backend_pid().unsigned_abs()),
    );
    let mut ids = request.scope_ids.clone();
    ids.sort_by_key(|id| backoff::spread(draw ^ u64::from(id.unsigned_abs())));
    let role = identity::current_role();
    for id in ids {
        let Some(scope) = policy::by_id(id)?.filter(|scope| scope.may_use(role)) else {
            continue;
        };
        if draw.is_multiple_of(2) {
            look.unordered(&scope)?;
            look.ordered(&scope)?;
        } else {
            look.ordered(&scope)?;
            look.unordered(&scope)?;
        }
    }
    let wrote = !look.taken.is_empty() || look.escalated > 0;
    let taken = look.taken;
    if wrote {
        messages.keep();
        tables.keep();
    } else {
        messages.close();
        tables.close();
    }
    Ok((taken, wrote))
}

impl Look<'_> {
    fn is_full(&self) -> bool {
        self.taken.len() + self.escalated >= self.rows_max
    }

    fn unordered(&mut self, scope: &Rc<Scope>) -> Result<(), Error> {
        let destination = &self.request.destination;
        let mut from = None;
        while !self.is_full() {
            let now = server::now();
            let page = self
                .messages
                .due(scope.id(), destination, now, from, PAGE_ROWS);
            let Some(last) = page.last() else {
                return Ok(());
            };
            from = Some(last.cursor());
            for candidate in page {
                server::check_for_interrupts();
                if self.is_full() {
                    return Ok(());
                }
                self.try_take(scope, &candidate)?;
            }
        }
        Ok(())
    }

    /// Goes on where the last look ended, so that ordering keys behind many others, and behind busy ones, are reached; from
    /// their end to their beginning, until each was looked at once.
    fn ordered(&mut self, scope: &Rc<Scope>) -> Result<(), Error> {
        let destination = &self.request.destination;
        let place = (scope.id(), destination.clone());
        let start = PLACES.with_borrow_mut(|places| places.remove(&place));
        let mut from = start.clone();
        let mut begins_anew = start.is_some();
        let mut looked_at: usize = 0;
        while !self.is_full() && looked_at < ORDERING_KEYS_MAX {
            let page = self
                .messages
                .heads(scope.id(), destination, from.as_deref(), PAGE_ROWS);
            if page.is_empty() {
                if !begins_anew {
                    return Ok(());
                }
                begins_anew = false;
                from = None;
                continue;
            }
            let now = server::now();
            for (ordering_key, candidate) in page {
                server::check_for_interrupts();
                if self.is_full() {
                    break;
                }
                let was_looked_at = |start: &String| !begins_anew && ordering_key > *start;
                if start.as_ref().is_some_and(was_looked_at) {
                    return Ok(());
                }
                looked_at += 1;
                from = Some(ordering_key);
                if candidate.due_at <= now {
                    self.try_take(scope, &candidate)?;
                }
            }
        }
        if let Some(from) = from {
            PLACES.with_borrow_mut(|places| {
                if places.len() >= PLACES_MAX {
                    places.clear();
                }
                places.insert(place, from);
            });
        }
        Ok(())
    }

    /// Takes the message if it is still due and nobody has it.
    fn try_take(&mut self, scope: &Rc<Scope>, candidate: &Candidate) -> Result<(), Error> {
        // Not what this very transaction enqueued, claimed or finished.
        if open_claims::holds(&candidate.digest) {
            return Ok(());
        }
        let Some(lock) = KeyLock::try_acquire(&candidate.digest) else {
            return Ok(());
        };
        let key = ScopedKey {
            scope: scope.name().to_owned(),
            key: candidate.key.clone(),
            digest: candidate.digest,
        };
        let record = record::probe(self.tables, &key, scope, Snapshot::Now)?;
        let now = server::now();
        let delivery = match &record {
            Record::Open(row) if row.open.message => {
                decide::deliver(&row.open, &scope.policy(), now)
            }
            Record::Open(_) | Record::Absent | Record::Pruned(_) | Record::Finished(_) => {
                Delivery::Not
            }
        };
        let message = match delivery {
            Delivery::Not => None,
            Delivery::Execute(_) | Delivery::Reconcile(_) | Delivery::Escalate { .. } => self
                .messages
                .find(&candidate.digest)
                .filter(|message| message.due_at <= now),
        };
        let (Record::Open(row), Some(message)) = (record, message) else {
            lock.release();
            return Ok(());
        };
        let site = Site {
            key: &key,
            scope,
            tables: self.tables,
            now,
        };
        // As after a sweep, the back-off counts from the end of the lease.
        let back_off = match decide::sweep(&row.open, &scope.policy(), now) {
            Sweep::Unknown { reconciles } => Some(reconciles),
            Sweep::Requeued => Some(row.open.reconciles),
            Sweep::Keep | Sweep::LeaseExpired | Sweep::Escalated { .. } => None,
        };
        let at_rest = OpenKey {
            reconciles: back_off.unwrap_or(row.open.reconciles),
            ..row.open
        };
        if back_off.is_some() && site.retry_at(&row.open, &at_rest) > now {
            lock.release();
            return Ok(());
        }
        // A snapshot that cannot see the message leaves it to others.
        if record::require_visible(self.tables, &key).is_err() {
            lock.release();
            return Ok(());
        }
        match delivery {
            Delivery::Execute(own) => self.deliver(key, Word::Execute, own, row, message, now),
            Delivery::Reconcile(own) => self.deliver(key, Word::Reconcile, own, row, message, now),
            Delivery::Not => unreachable!("no message was looked up"),
            Delivery::Escalate { reconciles } => {
                let open = OpenKey {
                    state: OpenState::Escalated,
                    reconciles,
                    ..row.open
                };
                let grounds = Grounds {
                    reason: Some(record::LEASE_EXPIRED.to_owned()),
                    evidence: None,
                };
                let in_flight = trail::open_name(OpenState::InFlight);
                site.leave_open(in_flight, &row, Stands::InClaim, open, grounds)?;
                open_claims::add_lock(key.digest);
                self.escalated += 1;
                Ok(())
            }
        }
    }

    fn deliver(
        &mut self,
        key: ScopedKey,
        word: Word,
        own: Ownership,
        before: OpenRow,
        message: MessageRow,
        now: Instant,
    ) -> Result<(), Error> {
        let in_doubt_since = claim::in_doubt_since(Some(&before), own, now);
        let row = OpenRow {
            open: OpenKey {
                state: OpenState::InFlight,
                kind: own.kind,
                prior: own.prior,
                fence: own.fence,
                attempt: own.attempt,
                lease_expires_at: Some(now.after(self.request.lease)),
                first_claimed_at: own.first_claimed_at,
                message: true,
                tries: before.open.tries.saturating_add(1),
                reconciles: own.reconciles,
            },
            reason: None,
            prior_reason: match before.open.state {
                OpenState::InFlight => Some(record::LEASE_EXPIRED.to_owned()),
                OpenState::Unknown | OpenState::Escalated | OpenState::Queued => before.reason,
            },
            claimed_at: now,
            claimed_by: identity::current_role(),
            claimed_pid: server::backend_pid(),
            application_name: server::application_name(),
            in_doubt_since,
            retry_at: None,
            ..before
        };
        self.tables.write_open(&key.digest, &row, Stands::InClaim)?;
        if own.prior == Prior::Unknown {
            let names = (
                trail::open_name(OpenState::Unknown),
                trail::open_name(OpenState::InFlight),
            );
            trail::of_open(Kind::Doubt, &row, names, row.prior_reason.clone(), None)?;
        }
        match own.kind {
            // What is sent outlives a crash, so its claim must too, whatever synchronous_commit says.
            EffectKind::External | EffectKind::Keyed => server::force_synchronous_commit(),
            EffectKind::Local => {}
        }
        stats::count(row.scope_id, Counter::Dispatched);
        open_claims::add_leased(key.digest);
        self.taken.push(Delivered {
            key,
            word,
            row,
            message,
        });
        Ok(())
    }
}
