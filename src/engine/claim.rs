//! Claiming: the lock decides who waits, the tables what is answered, `decide` what that means.
//!
//! Without the key's lock only two answers exist: a finished key within its window is replayed, and
//! `in_progress`. Whoever is told `execute` or `reconcile` keeps the lock to the end of the transaction; every
//! other caller gives it back before returning.

use crate::engine::key::{Args, ScopedKey};
use crate::engine::open_claims;
use crate::engine::record::{self, Record};
use crate::engine::runs;
use crate::engine::trail;
use crate::engine::wait::{self, Patience};
use crate::error::Error;
use crate::pg::jsonb::Jsonb;
use crate::pg::lock::KeyLock;
use crate::pg::table::{Mode, Snapshot};
use crate::pg::{identity, server};
use crate::policy::{self, Scope};
use crate::stats::{self, Counter, Observed};
use crate::store::claim::OpenRow;
use crate::store::event::Kind;
use crate::store::{KeyTables, horizon, message, outcome, tombstone};
use idempotency_core::decide::{
    self, Decision, EffectKind, FinishedKey, FinishedState, Found, OpenKey, OpenState, Ownership,
    Prior,
};
use idempotency_core::issued::{self, KeyTime};
use idempotency_core::time::{Instant, Span};
use idempotency_core::window::{self, Expiry, Issued, Run};
use std::rc::Rc;

/// Keys of one `idem_claim_many` or `idem_complete_many`.
pub const BATCH_KEYS_MAX: usize = 1_000;

/// What is asked for with each key of a call.
pub struct Terms {
    pub lease: Option<Span>,
    pub wait_us: Option<i64>,
    pub run: Option<String>,
    pub issued_at: Option<Instant>,
}

/// The word of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    Execute,
    Replay,
    InProgress,
    Reconcile,
    Rejected,
    Expired,
    Mismatch,
    Queued,
    Escalated,
}

impl Word {
    pub fn as_str(self) -> &'static str {
        match self {
            Word::Execute => "execute",
            Word::Replay => "replay",
            Word::InProgress => "in_progress",
            Word::Reconcile => "reconcile",
            Word::Rejected => "rejected",
            Word::Expired => "expired",
            Word::Mismatch => "mismatch",
            Word::Queued => "queued",
            Word::Escalated => "escalated",
        }
    }
}

/// The answer to a claim, as SQL sees it.
#[derive(Clone)]
pub struct Answer {
    pub word: Word,
    pub fence: Option<i64>,
    pub attempt: Option<i32>,
    pub result: Option<Jsonb>,
    pub reason: Option<String>,
    pub claimed_at: Option<Instant>,
    pub lease_expires_at: Option<Instant>,
    pub finished_at: Option<Instant>,
}

impl Answer {
    pub fn bare(word: Word) -> Answer {
        Answer {
            word,
            fence: None,
            attempt: None,
            result: None,
            reason: None,
            claimed_at: None,
            lease_expires_at: None,
            finished_at: None,
        }
    }
}

/// Where this same transaction holds the key: its caller must not poll for itself.
pub const HELD_HERE: &str = "claimed in this transaction";

/// One step of a claim.
pub enum Step {
    Answer(Answer),
    /// The arguments differ from those on record.
    Mismatch,
    /// Another transaction holds the key; what to say once the time is over.
    Held(Answer),
    /// A lease holds the key until then, or a message waits for its dispatcher; what to say once the time is over.
    Leased(Instant, Answer),
}

/// Claims one key.
pub fn claim(key: &ScopedKey, args: Args, terms: &Terms) -> Result<Answer, Error> {
    let (scope, tables) = enter(key)?;
    let patience = patience(&scope, terms);
    claim_waiting(key, args, terms, patience, (scope, tables))
}

/// Claims many keys: all locks first, in digest order, so that two batches never wait for each other in a
/// circle; then the answers, in the order given. Reused arguments are an answer here, not an error.
pub fn claim_many(keys: &[ScopedKey], args: &[Args], terms: &Terms) -> Result<Vec<Answer>, Error> {
    let Some(first) = keys.first() else {
        return Ok(Vec::new());
    };
    let (scope, tables) = enter(first)?;
    open_claims::require_room(keys.len())?;
    let patience = patience(&scope, terms);
    // Waiting holds no table locks.
    tables.close();
    let mut locks = lock_all(keys, &scope, patience)?;
    let mut answers = Vec::with_capacity(keys.len());
    for ((key, args), lock) in keys.iter().zip(args).zip(&mut locks) {
        let (scope, tables) = enter(key)?;
        let step = match lock.take() {
            Some(lock) => with_lock(key, *args, terms, &scope, tables, lock, None)?,
            None => {
                let step = without_lock(key, *args, &scope, &tables)?;
                tables.close();
                step
            }
        };
        let answer = match step {
            Step::Answer(answer) | Step::Held(answer) | Step::Leased(_, answer) => answer,
            Step::Mismatch => Answer::bare(Word::Mismatch),
        };
        count(&scope, &answer);
        answers.push(answer);
    }
    runs::sign_of_life(terms.run.as_deref(), &scope)?;
    Ok(answers)
}

/// Opens the tables and finds the scope, in this order: the tables' locks hold off a concurrent drop.
pub fn enter(key: &ScopedKey) -> Result<(Rc<Scope>, KeyTables), Error> {
    let tables = KeyTables::open(Mode::Write)?;
    Ok((policy::usable(&key.scope)?, tables))
}

fn patience(scope: &Scope, terms: &Terms) -> Patience {
    Patience::new(terms.wait_us, scope.wait_ms())
}

/// The locks of a batch. Where leases may be waited for, none is kept meanwhile: no key has been answered yet.
fn lock_all(
    keys: &[ScopedKey],
    scope: &Scope,
    patience: Patience,
) -> Result<Vec<Option<KeyLock>>, Error> {
    let mut rounds: u32 = 0;
    loop {
        let locks = lock_in_order(keys, patience);
        let now = server::now();
        let leased = if patience.for_lease() {
            leased_by_others(keys, scope, now)?
        } else {
            None
        };
        let Some((digest, until)) = leased else {
            if rounds > 0 {
                wait::end();
            }
            return Ok(locks);
        };
        locks.into_iter().flatten().for_each(KeyLock::release);
        patience.sleep(&digest, until, rounds);
        rounds = rounds.saturating_add(1);
    }
}

/// The first key of the batch that somebody else holds under a lease, and until when.
fn leased_by_others(
    keys: &[ScopedKey],
    scope: &Scope,
    now: Instant,
) -> Result<Option<([u8; 16], Instant)>, Error> {
    let tables = KeyTables::open(Mode::Write)?;
    let mut leased = None;
    for key in keys {
        if let Record::Open(row) = record::probe(&tables, key, scope, Snapshot::Now)?
            && let Some(until) = decide::lease_end(&row.open, now)
            && !open_claims::leased_here(&key.digest)
        {
            leased = Some((key.digest, until));
            break;
        }
    }
    tables.close();
    Ok(leased)
}

/// One lock per key, taken in digest order; none where the time was over.
fn lock_in_order(keys: &[ScopedKey], patience: Patience) -> Vec<Option<KeyLock>> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by_key(|at| keys[*at].digest);
    let mut locks: Vec<Option<KeyLock>> = keys.iter().map(|_| None).collect();
    let mut over: Option<&[u8; 16]> = None;
    for at in order {
        let digest = &keys[at].digest;
        // A key that stands twice is waited for once: its places have one answer to the wait.
        if over == Some(digest) {
            continue;
        }
        locks[at] = KeyLock::try_acquire(digest).or_else(|| patience.lock(digest));
        if locks[at].is_none() {
            over = Some(digest);
        }
    }
    locks
}

/// Claims, waiting as far as patience goes. Waiting holds neither the key's lock nor the tables'.
fn claim_waiting(
    key: &ScopedKey,
    args: Args,
    terms: &Terms,
    patience: Patience,
    entered: (Rc<Scope>, KeyTables),
) -> Result<Answer, Error> {
    let mut lock = None;
    let mut entered = Some(entered);
    let mut rounds: u32 = 0;
    let mut time_is_over = false;
    loop {
        let (scope, tables) = match entered.take() {
            Some(entered) => entered,
            None => enter(key)?,
        };
        let step = match lock.take().or_else(|| KeyLock::try_acquire(&key.digest)) {
            Some(held) => with_lock(key, args, terms, &scope, tables, held, Some(patience))?,
            None => {
                let step = without_lock(key, args, &scope, &tables)?;
                tables.close();
                step
            }
        };
        match step {
            Step::Held(_) if !time_is_over => {
                lock = patience.lock(&key.digest);
                time_is_over = lock.is_none();
            }
            Step::Leased(until, _) => {
                patience.sleep(&key.digest, until, rounds);
                rounds = rounds.saturating_add(1);
            }
            Step::Answer(answer) | Step::Held(answer) => {
                if rounds > 0 {
                    wait::end();
                }
                count(&scope, &answer);
                runs::sign_of_life(terms.run.as_deref(), &scope)?;
                return Ok(answer);
            }
            Step::Mismatch => {
                stats::count_at_once(scope.id(), Counter::Mismatches);
                return Err(Error::KeyReused(key.place()));
            }
        }
    }
}

/// Counts an answer.
fn count(scope: &Scope, answer: &Answer) {
    if answer.word == Word::Mismatch {
        return stats::count_at_once(scope.id(), Counter::Mismatches);
    }
    stats::count(scope.id(), Counter::Claims);
    let counter = match answer.word {
        Word::Execute => Counter::Executes,
        Word::Reconcile => Counter::Reconciles,
        Word::Replay => Counter::Replays,
        Word::Rejected => Counter::Rejections,
        Word::InProgress => Counter::InProgress,
        Word::Mismatch | Word::Expired | Word::Queued | Word::Escalated => return,
    };
    stats::count(scope.id(), counter);
}

fn in_progress_until(at: Instant) -> Answer {
    Answer {
        lease_expires_at: Some(at),
        ..Answer::bare(Word::InProgress)
    }
}

/// Another transaction holds the key. A finished key within its window is answered, unless that transaction takes its
/// record away; for all else wait.
pub fn without_lock(
    key: &ScopedKey,
    args: Args,
    scope: &Scope,
    tables: &KeyTables,
) -> Result<Step, Error> {
    let record = record::probe(tables, key, scope, Snapshot::Now)?;
    let held = Answer::bare(Word::InProgress);
    let now = server::now();
    if let Record::Finished(row) = &record {
        // Whoever holds the key may execute it, if its run was over when they looked, and has begun again since.
        let own = FinishedKey {
            run: Run::None,
            ..row.finished
        };
        let by_window = window::outcome_guarded_until(&own, &scope.policy()) > now;
        if !by_window || !outcome::stays(&tables.outcome, &key.digest) {
            return Ok(Step::Held(held));
        }
    }
    if !same_args(args, scope, &record, now)? {
        return Ok(Step::Mismatch);
    }
    let answer = match &record {
        Record::Finished(row) => match decide::decide(record.found(), &scope.policy(), None, now) {
            Decision::Replay => repeated(Word::Replay, row, scope, now),
            Decision::Rejected => repeated(Word::Rejected, row, scope, now),
            Decision::Execute(_)
            | Decision::Reconcile(_)
            | Decision::InProgress(_)
            | Decision::Queued
            | Decision::Escalated
            | Decision::Expired(_) => {
                return Ok(Step::Held(held));
            }
        },
        Record::Open(row) => {
            return Ok(Step::Held(
                decide::lease_end(&row.open, now).map_or(held, in_progress_until),
            ));
        }
        Record::Absent | Record::Pruned(_) => return Ok(Step::Held(held)),
    };
    record::require_visible(tables, key)?;
    Ok(Step::Answer(answer))
}

/// The key's lock is ours: look, decide, and carry out.
fn with_lock(
    key: &ScopedKey,
    args: Args,
    terms: &Terms,
    scope: &Rc<Scope>,
    tables: KeyTables,
    lock: KeyLock,
    patience: Option<Patience>,
) -> Result<Step, Error> {
    let record = record::probe(&tables, key, scope, Snapshot::Now)?;
    record::require_visible(&tables, key)?;
    let now = server::now();
    let give_back = |step: Step, tables: KeyTables, lock: KeyLock| {
        lock.release();
        tables.close();
        Ok(step)
    };
    if let Some((own, _)) = open_claims::transactional(&key.digest) {
        if !args.same_as(&own.args, scope)? {
            return give_back(Step::Mismatch, tables, lock);
        }
        let held = Answer {
            reason: Some(HELD_HERE.to_owned()),
            ..Answer::bare(Word::InProgress)
        };
        return give_back(Step::Answer(held), tables, lock);
    }
    if !same_args(args, scope, &record, now)? {
        return give_back(Step::Mismatch, tables, lock);
    }
    let issued = issued(
        key,
        terms.issued_at,
        terms.run.as_deref(),
        scope,
        &record,
        now,
    )?;
    let step = match decide::decide(record.found(), &scope.policy(), issued, now) {
        Decision::Execute(ownership) => {
            own(key, args, terms, scope, &tables, &record, ownership, now)?;
            tables.keep();
            return Ok(Step::Answer(owned(
                Word::Execute,
                terms,
                &record,
                ownership,
                now,
            )));
        }
        Decision::Reconcile(ownership) => {
            own(key, args, terms, scope, &tables, &record, ownership, now)?;
            tables.keep();
            return Ok(Step::Answer(owned(
                Word::Reconcile,
                terms,
                &record,
                ownership,
                now,
            )));
        }
        Decision::InProgress(until) if open_claims::leased_here(&key.digest) => {
            Step::Answer(Answer {
                reason: Some(HELD_HERE.to_owned()),
                ..in_progress_until(until)
            })
        }
        Decision::InProgress(until) if patience.is_some_and(|patience| patience.for_lease()) => {
            Step::Leased(until, in_progress_until(until))
        }
        Decision::InProgress(until) => Step::Answer(in_progress_until(until)),
        Decision::Queued if patience.is_some_and(|patience| patience.for_lease()) => {
            Step::Leased(message::NEVER, at_rest(Word::Queued, &record))
        }
        Decision::Queued => Step::Answer(at_rest(Word::Queued, &record)),
        Decision::Escalated => Step::Answer(at_rest(Word::Escalated, &record)),
        Decision::Expired(why) => Step::Answer(expired(why, scope, &record, now)),
        Decision::Replay | Decision::Rejected => match &record {
            Record::Finished(row) if row.finished.state == FinishedState::Rejected => {
                Step::Answer(repeated(Word::Rejected, row, scope, now))
            }
            Record::Finished(row) => Step::Answer(repeated(Word::Replay, row, scope, now)),
            Record::Absent | Record::Pruned(_) | Record::Open(_) => {
                unreachable!("only a finished key is replayed")
            }
        },
    };
    give_back(step, tables, lock)
}

/// The arguments are compared before anything else is said. What is past its window says nothing.
pub fn same_args(args: Args, scope: &Scope, record: &Record, now: Instant) -> Result<bool, Error> {
    if is_free(scope, record, now) {
        return Ok(true);
    }
    record
        .args()
        .map_or(Ok(true), |stored| args.same_as(stored, scope))
}

/// Nothing on record speaks for the key any more.
fn is_free(scope: &Scope, record: &Record, now: Instant) -> bool {
    match decide::effective(record.found(), &scope.policy(), now) {
        Found::Absent | Found::Pruned(_) => true,
        Found::Open(_) | Found::Finished(_) => false,
    }
}

/// When the operation was first issued, as the caller says, or the key where the scope takes it from there.
pub fn issued(
    key: &ScopedKey,
    given: Option<Instant>,
    run: Option<&str>,
    scope: &Scope,
    record: &Record,
    now: Instant,
) -> Result<Option<Issued>, Error> {
    let at = match (given, scope.issued_at_from()) {
        (Some(at), _) => Some(at),
        (None, None) => None,
        // A record answers for itself.
        (None, Some(_)) if !is_free(scope, record, now) => None,
        (None, Some(form)) => {
            let at = issued::of_key(&key.key, form);
            let without_time = || Error::KeyWithoutTime {
                place: key.place(),
                form: match form {
                    KeyTime::Uuidv7 => "UUID of version 7",
                    KeyTime::Ulid => "ULID",
                },
            };
            Some(at.ok_or_else(without_time)?)
        }
    };
    if let Some(at) = at
        && at.since(now) > ISSUED_AHEAD_US_MAX
    {
        return Err(Error::IssuedAhead(key.place()));
    }
    let Some(at) = at else { return Ok(None) };
    // Read after the record: whatever took that away is seen here.
    let pruned_until = if is_free(scope, record, now) {
        horizon::find(scope.id())?
    } else {
        None
    };
    Ok(Some(Issued {
        at,
        run: runs::kept_since(at, run, scope)?,
        pruned_until,
    }))
}

/// The answer to a call that comes after the window.
pub fn expired(why: Expiry, scope: &Scope, record: &Record, now: Instant) -> Answer {
    let reason = match why {
        Expiry::WindowOver => {
            stats::count_at_once(scope.id(), Counter::LateRetries);
            if let Found::Pruned(at) = decide::effective(record.found(), &scope.policy(), now) {
                let late_us = since_finish_us(scope, record, at, now);
                stats::observe_at_once(scope.id(), Observed::Late, late_us);
            }
            WINDOW_OVER
        }
        Expiry::IssuedBefore => ISSUED_BEFORE,
    };
    Answer {
        reason: Some(reason.to_owned()),
        ..Answer::bare(Word::Expired)
    }
}

/// How far a caller's clock may be ahead. By that much a call may come after its window and not be told so.
const ISSUED_AHEAD_US_MAX: i64 = 60_000_000;

/// Why a claim is told `expired`.
const WINDOW_OVER: &str = "its window is over";
const ISSUED_BEFORE: &str = "issued before the window";

/// Tells of an operation that is executed although it was done before its window ended.
pub fn note_late(
    key: &ScopedKey,
    scope: &Scope,
    record: &Record,
    ownership: Ownership,
    now: Instant,
) -> Result<(), Error> {
    if ownership.prior != Prior::Nothing {
        return Ok(());
    }
    let again = trail::open_name(OpenState::InFlight);
    let reason = || Some("executed again after its window".to_owned());
    let expired_at = match record {
        Record::Finished(row) if window::is_final(row.finished.state) => {
            if row.finished.run == Run::Alive {
                expired_alive(row)?;
                server::warn_expired_alive(&key.place(), row.run.as_deref().unwrap_or_default());
            }
            trail::of_finished(Kind::LateRetry, row, again, reason())?;
            let until = window::outcome_guarded_until(&row.finished, &scope.policy());
            // A claim that is given back leaves the key as late as it was.
            if window::remembered(until, &scope.policy(), now) {
                tombstone::put(&key.digest, scope.id(), Some(until))?;
            }
            until
        }
        Record::Pruned(at) if window::remembered(*at, &scope.policy(), now) => {
            let names = (trail::EXPIRED, again);
            trail::of_key(Kind::LateRetry, scope.id(), key, names, reason())?;
            *at
        }
        Record::Absent | Record::Open(_) | Record::Finished(_) | Record::Pruned(_) => return Ok(()),
    };
    stats::count(scope.id(), Counter::LateRetries);
    let late_us = since_finish_us(scope, record, expired_at, now);
    stats::observe(scope.id(), Observed::Late, late_us);
    Ok(())
}

/// How long after its finish a key is claimed that expired then. Of one that is only remembered the window tells.
fn since_finish_us(scope: &Scope, record: &Record, expired_at: Instant, now: Instant) -> i64 {
    match record {
        Record::Finished(row) => now.since(row.finished.finished_at),
        Record::Pruned(_) | Record::Open(_) | Record::Absent => now
            .since(expired_at)
            .saturating_add(scope.window().map_or(0, Span::us)),
    }
}

/// The alert: a key that was done expires while its run lives.
pub fn expired_alive(row: &outcome::OutcomeRow) -> Result<(), Error> {
    stats::count(row.scope_id, Counter::PrunedAlive);
    let reason = "the scope's hard_limit".to_owned();
    trail::of_finished(Kind::ExpiredAlive, row, trail::EXPIRED, Some(reason))
}

/// Takes ownership: in memory for a transactional claim, in the table for a leased one. Keeps the lock.
#[expect(clippy::too_many_arguments, reason = "what a claim knows, once")]
fn own(
    key: &ScopedKey,
    args: Args,
    terms: &Terms,
    scope: &Scope,
    tables: &KeyTables,
    record: &Record,
    ownership: Ownership,
    now: Instant,
) -> Result<(), Error> {
    open_claims::require_room_for(&key.digest)?;
    note_late(key, scope, record, ownership, now)?;
    note_takeover(scope, record, ownership);
    // A claim that begins anew has nothing to do with the row that it replaces.
    let before = match record {
        Record::Open(row) if ownership.prior != Prior::Nothing => Some(row),
        Record::Open(_) | Record::Absent | Record::Pruned(_) | Record::Finished(_) => None,
    };
    let row = OpenRow {
        open: OpenKey {
            state: OpenState::InFlight,
            kind: ownership.kind,
            prior: ownership.prior,
            fence: ownership.fence,
            attempt: ownership.attempt,
            lease_expires_at: terms.lease.map(|lease| now.after(lease)),
            first_claimed_at: ownership.first_claimed_at,
            message: before.is_some_and(|row| row.open.message),
            tries: before.map_or(0, |row| row.open.tries),
            reconciles: ownership.reconciles,
        },
        scope_id: scope.id(),
        key: key.key.clone(),
        // An open key keeps the arguments, and their rule, of its first claim.
        args: match before {
            Some(row) => row.args.clone(),
            None => args.stored(scope)?,
        },
        run: terms
            .run
            .clone()
            .or_else(|| before.and_then(|row| row.run.clone())),
        reason: None,
        prior_reason: prior_reason(record, ownership),
        claimed_at: now,
        claimed_by: identity::current_role(),
        claimed_pid: server::backend_pid(),
        application_name: server::application_name(),
        in_doubt_since: in_doubt_since(before, ownership, now),
        retry_at: None,
    };
    let Some(lease) = terms.lease else {
        open_claims::add_transactional(key, row, record.stands());
        return Ok(());
    };
    stats::observe(scope.id(), Observed::Lease, lease.us());
    tables.write_open(&key.digest, &row, record.stands())?;
    if ownership.prior == Prior::Unknown {
        let names = (
            trail::open_name(OpenState::Unknown),
            trail::open_name(OpenState::InFlight),
        );
        trail::of_open(Kind::Doubt, &row, names, row.prior_reason.clone(), None)?;
    }
    match ownership.kind {
        // The effect outlives a crash, so its claim must too, whatever synchronous_commit says.
        EffectKind::External | EffectKind::Keyed => server::force_synchronous_commit(),
        EffectKind::Local => {}
    }
    open_claims::add_leased(key.digest);
    Ok(())
}

/// Counts a claim that takes a key over from an owner whose lease ended.
fn note_takeover(scope: &Scope, record: &Record, ownership: Ownership) {
    let Record::Open(row) = record else { return };
    if ownership.prior != Prior::Nothing && row.open.lease_expires_at.is_some() {
        stats::count(scope.id(), Counter::Takeovers);
        if row.open.state == OpenState::InFlight {
            stats::count(scope.id(), Counter::LeasesExpired);
        }
    }
}

/// Why the attempt before this one ended; the same before and after a sweep.
pub fn prior_reason(record: &Record, ownership: Ownership) -> Option<String> {
    if ownership.prior == Prior::Nothing {
        None
    } else {
        record.last_reason()
    }
}

/// Since when the key is in doubt, where this claim is told to reconcile.
pub fn in_doubt_since(
    before: Option<&OpenRow>,
    ownership: Ownership,
    now: Instant,
) -> Option<Instant> {
    if ownership.prior != Prior::Unknown {
        return None;
    }
    before
        .and_then(|row| row.in_doubt_since.or(row.open.lease_expires_at))
        .or(Some(now))
}

/// What to say of a key that waits for a dispatcher or a human.
fn at_rest(word: Word, record: &Record) -> Answer {
    let Record::Open(row) = record else {
        return Answer::bare(word);
    };
    Answer {
        attempt: Some(row.open.attempt),
        reason: record.last_reason(),
        claimed_at: Some(row.claimed_at),
        ..Answer::bare(word)
    }
}

fn owned(word: Word, terms: &Terms, record: &Record, ownership: Ownership, now: Instant) -> Answer {
    Answer {
        fence: Some(ownership.fence),
        attempt: Some(ownership.attempt),
        reason: prior_reason(record, ownership),
        claimed_at: Some(now),
        lease_expires_at: terms.lease.map(|lease| now.after(lease)),
        ..Answer::bare(word)
    }
}

/// The answer to a repeat of what is finished; how long after the claim it came is counted.
pub fn repeated(word: Word, row: &outcome::OutcomeRow, scope: &Scope, now: Instant) -> Answer {
    // A key that its run keeps says nothing of the window.
    if row.finished.run == Run::None {
        let first = row.claimed_at.unwrap_or(row.finished.finished_at);
        stats::observe_at_once(scope.id(), Observed::Repeat, now.since(first));
    }
    finished(word, row)
}

fn finished(word: Word, row: &outcome::OutcomeRow) -> Answer {
    let FinishedKey {
        fence,
        attempt,
        finished_at,
        ..
    } = row.finished;
    Answer {
        fence: Some(fence),
        attempt: Some(attempt),
        result: row.result,
        reason: row.reason.clone(),
        finished_at: Some(finished_at),
        ..Answer::bare(word)
    }
}
