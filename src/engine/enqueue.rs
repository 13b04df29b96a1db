//! Writing a message: the intent commits with the business row, as an open key that waits for a dispatcher.
//!
//! The decisions are those of a claim. A key that an ordinary claim left in doubt becomes a message in doubt: its
//! dispatcher is told to read first. The key's lock is kept, so a duplicate waits for this commit.

use crate::engine::claim::{self, Answer, HELD_HERE, Step, Word};
use crate::engine::key::{Args, ScopedKey};
use crate::engine::open_claims;
use crate::engine::record::{self, Record};
use crate::engine::runs;
use crate::engine::wait::Patience;
use crate::error::Error;
use crate::pg::jsonb::Jsonb;
use crate::pg::lock::{self, KeyLock};
use crate::pg::table::{Mode, Snapshot};
use crate::pg::{identity, server};
use crate::policy::Scope;
use crate::stats::{self, Counter};
use crate::store::KeyTables;
use crate::store::claim::OpenRow;
use crate::store::message::{MessageRow, Messages};
use idempotency_core::decide::{self, Decision, OpenKey, OpenState, Ownership, Prior};
use idempotency_core::digest;
use idempotency_core::time::Instant;

/// What is to be sent.
pub struct Letter {
    pub destination: String,
    pub payload: Jsonb,
    pub run: Option<String>,
    pub delay_us: i64,
    pub ordering_key: Option<String>,
}

/// The answer: whether this call wrote the message, and since when it waits.
pub struct Enqueued {
    pub here: bool,
    pub answer: Answer,
}

/// Writes a message, unless its key says that it was written or done before.
pub fn enqueue(key: &ScopedKey, args: Args, letter: &Letter) -> Result<Enqueued, Error> {
    let mut lock = None;
    let mut time_is_over = false;
    let mut patience = None;
    loop {
        let (scope, tables) = claim::enter(key)?;
        let patience = *patience.get_or_insert_with(|| Patience::new(None, scope.wait_ms()));
        let step = match lock.take().or_else(|| KeyLock::try_acquire(&key.digest)) {
            Some(held) => {
                let (step, here) = with_lock(key, args, letter, &scope, tables, held)?;
                if here {
                    runs::sign_of_life(letter.run.as_deref(), &scope)?;
                    return match step {
                        Step::Answer(answer) => Ok(Enqueued { here, answer }),
                        Step::Mismatch | Step::Held(_) | Step::Leased(..) => {
                            unreachable!("what is written is answered")
                        }
                    };
                }
                step
            }
            None => {
                let step = claim::without_lock(key, args, &scope, &tables)?;
                tables.close();
                step
            }
        };
        match step {
            Step::Held(_) if !time_is_over => {
                lock = patience.lock(&key.digest);
                time_is_over = lock.is_none();
            }
            Step::Answer(answer) | Step::Held(answer) | Step::Leased(_, answer) => {
                runs::sign_of_life(letter.run.as_deref(), &scope)?;
                return Ok(Enqueued {
                    here: false,
                    answer,
                });
            }
            Step::Mismatch => {
                stats::count_at_once(scope.id(), Counter::Mismatches);
                return Err(Error::KeyReused(key.place()));
            }
        }
    }
}

/// The key's lock is ours: look, decide, and write. The second value tells whether the message was written.
fn with_lock(
    key: &ScopedKey,
    args: Args,
    letter: &Letter,
    scope: &Scope,
    tables: KeyTables,
    lock: KeyLock,
) -> Result<(Step, bool), Error> {
    let record = record::probe(&tables, key, scope, Snapshot::Now)?;
    record::require_visible(&tables, key)?;
    let now = server::now();
    let give_back = |step: Step, tables: KeyTables, lock: KeyLock| {
        lock.release();
        tables.close();
        Ok((step, false))
    };
    let held_here = || Answer {
        reason: Some(HELD_HERE.to_owned()),
        ..Answer::bare(Word::InProgress)
    };
    if let Some((own, _)) = open_claims::transactional(&key.digest) {
        let step = if args.same_as(&own.args, scope)? {
            Step::Answer(held_here())
        } else {
            Step::Mismatch
        };
        return give_back(step, tables, lock);
    }
    if !claim::same_args(args, scope, &record, now)? {
        return give_back(Step::Mismatch, tables, lock);
    }
    let waiting = match &record {
        Record::Open(row) if row.open.message => Some(Answer {
            attempt: Some(row.open.attempt),
            reason: record.last_reason(),
            claimed_at: message_time(&key.digest)?,
            ..Answer::bare(Word::Queued)
        }),
        Record::Open(_) | Record::Absent | Record::Pruned(_) | Record::Finished(_) => None,
    };
    let issued = claim::issued(key, None, letter.run.as_deref(), scope, &record, now)?;
    let decision = decide::decide(record.found(), &scope.policy(), issued, now);
    let answer = match (decision, waiting) {
        (Decision::Execute(_) | Decision::Reconcile(_) | Decision::Queued, Some(waiting)) => {
            waiting
        }
        (Decision::Execute(ownership) | Decision::Reconcile(ownership), None) => {
            let answer = write(key, args, letter, scope, &tables, &record, ownership)?;
            tables.keep();
            return Ok((Step::Answer(answer), true));
        }
        (Decision::InProgress(_), _) if open_claims::leased_here(&key.digest) => held_here(),
        (Decision::InProgress(_), waiting) => Answer {
            claimed_at: waiting.and_then(|waiting| waiting.claimed_at),
            ..Answer::bare(Word::InProgress)
        },
        (Decision::Escalated, waiting) => Answer {
            reason: record.last_reason(),
            claimed_at: waiting.and_then(|waiting| waiting.claimed_at),
            ..Answer::bare(Word::Escalated)
        },
        (Decision::Replay | Decision::Rejected, _) => match &record {
            Record::Finished(row) if decision == Decision::Rejected => {
                claim::repeated(Word::Rejected, row, scope, now)
            }
            Record::Finished(row) => claim::repeated(Word::Replay, row, scope, now),
            Record::Absent | Record::Pruned(_) | Record::Open(_) => {
                unreachable!("only a finished key is replayed")
            }
        },
        (Decision::Queued, None) => unreachable!("only a message is queued"),
        (Decision::Expired(why), _) => claim::expired(why, scope, &record, now),
    };
    give_back(Step::Answer(answer), tables, lock)
}

fn message_time(digest: &[u8; 16]) -> Result<Option<Instant>, Error> {
    let messages = Messages::open(Mode::Read)?;
    let found = messages.find(digest).map(|row| row.enqueued_at);
    messages.close();
    Ok(found)
}

/// Writes the key and its message.
fn write(
    key: &ScopedKey,
    args: Args,
    letter: &Letter,
    scope: &Scope,
    tables: &KeyTables,
    record: &Record,
    ownership: Ownership,
) -> Result<Answer, Error> {
    open_claims::require_room_for(&key.digest)?;
    claim::note_late(key, scope, record, ownership, server::now())?;
    let messages = Messages::open(Mode::Write)?;
    // Last of all locks: whoever waits here holds up nobody but later duplicates of this key.
    if let Some(ordering_key) = &letter.ordering_key {
        let digest = digest::order_digest(scope.name(), &letter.destination, ordering_key);
        if !open_claims::holds(&digest) {
            // Two locks, this key's and this one.
            open_claims::require_room(2)?;
            lock::hold_order(&digest);
            open_claims::add_lock(digest);
        }
    }
    let now = server::now();
    // What may have happened stays in doubt, with its arguments; what provably did not begins anew.
    let before = match (record, ownership.prior) {
        (Record::Open(row), Prior::Unknown | Prior::Expired) => Some(row),
        (Record::Open(_) | Record::Absent | Record::Pruned(_) | Record::Finished(_), _) => None,
    };
    let state = match ownership.prior {
        Prior::Unknown => OpenState::Unknown,
        Prior::Nothing | Prior::NotApplied | Prior::Expired => OpenState::Queued,
    };
    // As for a claim: a key in doubt stays with its run.
    let run = letter
        .run
        .clone()
        .or_else(|| before.and_then(|row| row.run.clone()));
    let due_at = Instant(now.0.saturating_add(letter.delay_us));
    let role = identity::current_role();
    let row = OpenRow {
        open: OpenKey {
            state,
            kind: ownership.kind,
            prior: ownership.prior,
            fence: ownership.fence,
            attempt: ownership.attempt - 1,
            lease_expires_at: None,
            first_claimed_at: ownership.first_claimed_at,
            message: true,
            tries: 0,
            reconciles: ownership.reconciles,
        },
        scope_id: scope.id(),
        key: key.key.clone(),
        args: match before {
            Some(row) => row.args.clone(),
            None => args.stored(scope)?,
        },
        run: run.clone(),
        reason: claim::prior_reason(record, ownership),
        prior_reason: None,
        claimed_at: now,
        claimed_by: role,
        claimed_pid: server::backend_pid(),
        application_name: server::application_name(),
        in_doubt_since: claim::in_doubt_since(before, ownership, now),
        retry_at: Some(due_at),
    };
    tables.write_open(&key.digest, &row, record.stands())?;
    let newest = letter.ordering_key.as_deref().and_then(|ordering_key| {
        messages.newest_position(scope.id(), &letter.destination, ordering_key)
    });
    let message = MessageRow {
        enqueued_at: now,
        due_at,
        position: decide::next_fence(now, newest),
        scope_id: scope.id(),
        enqueued_by: role,
        scope: scope.name().to_owned(),
        key: key.key.clone(),
        destination: letter.destination.clone(),
        ordering_key: letter.ordering_key.clone(),
        run,
        payload: letter.payload,
    };
    messages.insert(&key.digest, &message)?;
    messages.keep();
    stats::count(scope.id(), Counter::Enqueued);
    open_claims::add_lock(key.digest);
    open_claims::wake_at_commit(&key.digest);
    open_claims::wake_at_commit(&digest::destination_digest(&letter.destination));
    Ok(Answer {
        reason: row.reason,
        claimed_at: Some(now),
        ..Answer::bare(Word::Queued)
    })
}
