//! `decide` and its companions against a small model of what really happened.
//!
//! One key lives through a random history. The code under test keeps rows, as the engine does; the model keeps the
//! list of attempts and asks of it, in other words, what a claimant must be told. They must agree at every step, and a
//! sweep must never change an answer.

use idempotency_core::decide::{
    self, Decision, EffectKind, FinishedKey, FinishedState, Found, GivenBack, OpenKey, OpenState,
    Ownership, Policy, Prior, Sweep, WasRead,
};
use idempotency_core::time::{Instant, Span};
use idempotency_core::window::{self, Expiry, Late, Prune, Run};
use proptest::prelude::*;

const WINDOW_US: i64 = 1_000;
const PROVIDER_WINDOW_US: i64 = 300;
const MAX_RECONCILES: i32 = 3;
const START: Instant = Instant(800_000_000_000_000);

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A claim under a lease of this length.
    Claim(i64),
    /// The last owner ends its claim, in time or late.
    Complete,
    Reject,
    NotApplied,
    Unknown,
    Release,
    Renew(i64),
    Pass(i64),
    Sweep,
    EndRun,
}

/// How an attempt stands in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// Under a lease that ends then; what the owner was told.
    Leased {
        until: Instant,
        told_to_reconcile: bool,
    },
    /// Its owner said that nobody knows.
    DeclaredUnknown,
}

/// What really happened to the key.
#[derive(Clone, Debug)]
enum Truth {
    /// Nothing that counts: never claimed, given back, or nothing happened.
    Free,
    /// Attempts of which one may have had the effect, oldest first, with the first one's time.
    Open {
        first: Instant,
        attempts: Vec<Attempt>,
        /// Reads of the other system that were promised and gave no answer; a lease that has ended meanwhile comes
        /// on top.
        in_vain: i32,
    },
    Done {
        at: Instant,
        rejected: bool,
    },
}

/// The word that a claimant must be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Execute,
    Reconcile,
    InProgress,
    Replay,
    Rejected,
    Escalated,
    Expired,
}

fn word(decision: Decision) -> Word {
    match decision {
        Decision::Execute(_) => Word::Execute,
        Decision::Reconcile(_) => Word::Reconcile,
        Decision::InProgress(_) => Word::InProgress,
        Decision::Replay => Word::Replay,
        Decision::Rejected => Word::Rejected,
        Decision::Escalated => Word::Escalated,
        Decision::Expired(Expiry::WindowOver) => Word::Expired,
        Decision::Expired(Expiry::IssuedBefore) => {
            unreachable!("no claim here says when it was issued")
        }
        Decision::Queued => unreachable!("no key here is a message"),
    }
}

/// Policies on windows, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Terms {
    in_run: bool,
    hard_limit: Option<i64>,
    guard: Option<i64>,
    late: Late,
}

/// When a key finished then is no longer answered from its record, said of hours on a clock: its window after the
/// finish, for a run's key also its window after the run, but what the run adds only up to the hard limit.
fn record_ends_at(at: i64, run: Run, terms: Terms) -> i64 {
    let own = at + WINDOW_US;
    let wanted = match run {
        Run::None => own,
        Run::Alive => i64::MAX,
        Run::Ended(end) => own.max(end.0 + WINDOW_US),
    };
    let allowed = terms.hard_limit.map_or(i64::MAX, |limit| at + limit);
    if wanted > own {
        own.max(wanted.min(allowed))
    } else {
        own
    }
}

/// The rule, said of attempts and not of rows.
fn must_be_told(truth: &Truth, kind: EffectKind, run: Run, terms: Terms, now: Instant) -> Word {
    match truth {
        Truth::Free => Word::Execute,
        Truth::Done { at, .. } if now.0 >= record_ends_at(at.0, run, terms) => {
            let end = record_ends_at(at.0, run, terms);
            match (terms.guard, terms.late) {
                (Some(guard), Late::Expired) if now.0 < end + guard => Word::Expired,
                _ => Word::Execute,
            }
        }
        Truth::Done { rejected: true, .. } => Word::Rejected,
        Truth::Done {
            rejected: false, ..
        } => Word::Replay,
        Truth::Open {
            first,
            attempts,
            in_vain,
        } => {
            let last = attempts.last().expect("an open key has an attempt");
            if let Attempt::Leased { until, .. } = last
                && now < *until
            {
                return Word::InProgress;
            }
            let read_ended = matches!(
                last,
                Attempt::Leased {
                    told_to_reconcile: true,
                    ..
                }
            );
            let in_vain = in_vain + i32::from(read_ended);
            if in_vain >= MAX_RECONCILES {
                return Word::Escalated;
            }
            let in_doubt = attempts.iter().any(|attempt| match attempt {
                Attempt::DeclaredUnknown => true,
                Attempt::Leased {
                    told_to_reconcile, ..
                } => *told_to_reconcile,
            });
            let may_send_again = now.0 - first.0 < PROVIDER_WINDOW_US;
            match kind {
                _ if in_doubt => Word::Reconcile,
                EffectKind::Local => Word::Execute,
                EffectKind::Keyed if may_send_again => Word::Execute,
                EffectKind::Keyed | EffectKind::External => Word::Reconcile,
            }
        }
    }
}

struct History {
    kind: EffectKind,
    terms: Terms,
    run: Run,
    policy: Policy,
    now: Instant,
    found: Found,
    truth: Truth,
    newest_fence: i64,
    /// Whether the last claimant has said nothing final yet.
    owner_may_speak: bool,
}

impl History {
    fn new(kind: EffectKind, terms: Terms) -> History {
        let span = |us| Span::from_us(us).expect("positive");
        let policy = Policy {
            window: Some(span(WINDOW_US)),
            hard_limit: terms.hard_limit.map(span),
            guard: terms.guard.map(span),
            late: terms.late,
            provider_window: span(PROVIDER_WINDOW_US),
            kind,
            max_attempts: 1,
            max_reconciles: MAX_RECONCILES,
        };
        History {
            kind,
            terms,
            run: if terms.in_run { Run::Alive } else { Run::None },
            policy,
            now: START,
            found: Found::Absent,
            truth: Truth::Free,
            newest_fence: 0,
            owner_may_speak: false,
        }
    }

    fn decide(&self, found: Found) -> Decision {
        decide::decide(found, &self.policy, None, self.now)
    }

    /// The record as the engine reads it now, with its run.
    fn found(&self) -> Found {
        match self.found {
            Found::Finished(key) => Found::Finished(FinishedKey {
                run: self.run,
                ..key
            }),
            found => found,
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let told = word(self.decide(self.found()));
        prop_assert_eq!(
            told,
            must_be_told(&self.truth, self.kind, self.run, self.terms, self.now),
            "{:?} {:?}",
            self.found,
            self.truth
        );
        let swept = word(self.decide(self.swept()));
        prop_assert_eq!(told, swept, "a sweep changed the answer: {:?}", self.found);
        Ok(())
    }

    /// What a sweep makes of the row.
    fn swept(&self) -> Found {
        let key = match self.found() {
            Found::Open(key) => key,
            Found::Finished(key) => {
                return match window::prune(&key, &self.policy, self.now) {
                    Prune::Keep => self.found,
                    Prune::Go { remember, .. } => remember.map_or(Found::Absent, Found::Pruned),
                };
            }
            found @ (Found::Absent | Found::Pruned(_)) => return found,
        };
        match decide::sweep(&key, &self.policy, self.now) {
            Sweep::Keep => self.found,
            Sweep::Unknown { reconciles } => Found::Open(OpenKey {
                state: OpenState::Unknown,
                reconciles,
                ..key
            }),
            Sweep::Escalated { reconciles } => Found::Open(OpenKey {
                state: OpenState::Escalated,
                reconciles,
                ..key
            }),
            Sweep::Requeued => unreachable!("no key here is a message"),
            Sweep::LeaseExpired => Found::Finished(FinishedKey {
                state: FinishedState::LeaseExpired,
                fence: key.fence,
                attempt: key.attempt,
                finished_at: key.lease_expires_at.expect("a lease has an end"),
                run: self.run,
            }),
        }
    }

    fn apply(&mut self, event: Event) -> Result<(), TestCaseError> {
        // No two transactions change one key within a microsecond: where no record is left, fences count on it.
        self.now = Instant(self.now.0 + 1);
        match event {
            Event::Pass(us) => self.now = Instant(self.now.0 + us),
            Event::Sweep => self.found = self.swept(),
            Event::EndRun if self.run == Run::Alive => self.run = Run::Ended(self.now),
            Event::EndRun => {}
            Event::Claim(lease_us) => self.claim(lease_us)?,
            Event::Complete => self.finish(FinishedState::Completed),
            Event::Reject => self.finish(FinishedState::Rejected),
            Event::NotApplied => self.give_back(true),
            Event::Release => self.give_back(false),
            Event::Unknown => self.declare_unknown(),
            Event::Renew(lease_us) => self.renew(lease_us),
        }
        Ok(())
    }

    fn claim(&mut self, lease_us: i64) -> Result<(), TestCaseError> {
        let (own, told_to_reconcile) = match self.decide(self.found()) {
            Decision::Execute(own) => (own, false),
            Decision::Reconcile(own) => (own, true),
            Decision::InProgress(_)
            | Decision::Replay
            | Decision::Rejected
            | Decision::Expired(_)
            | Decision::Queued
            | Decision::Escalated => return Ok(()),
        };
        prop_assert!(own.fence > self.newest_fence, "fences grow");
        self.newest_fence = own.fence;
        self.owner_may_speak = true;
        let Ownership {
            fence,
            attempt,
            prior,
            kind,
            first_claimed_at,
            reconciles,
        } = own;
        let until = Instant(self.now.0 + lease_us);
        self.found = Found::Open(OpenKey {
            state: OpenState::InFlight,
            kind,
            prior,
            fence,
            attempt,
            lease_expires_at: Some(until),
            first_claimed_at,
            message: false,
            tries: 0,
            reconciles,
        });
        let leased = Attempt::Leased {
            until,
            told_to_reconcile,
        };
        match &mut self.truth {
            // An ended local attempt is known to have done nothing.
            Truth::Open {
                attempts, in_vain, ..
            } if self.kind != EffectKind::Local || told_to_reconcile => {
                if let Some(
                    last @ Attempt::Leased {
                        told_to_reconcile: true,
                        ..
                    },
                ) = attempts.last_mut()
                {
                    *in_vain += 1;
                    *last = Attempt::DeclaredUnknown;
                }
                attempts.push(leased);
            }
            Truth::Free | Truth::Done { .. } | Truth::Open { .. } => {
                self.truth = Truth::Open {
                    first: self.now,
                    attempts: vec![leased],
                    in_vain: 0,
                };
            }
        }
        Ok(())
    }

    /// The claim that its last owner may still end, with a lease or without.
    fn owned(&self) -> Option<OpenKey> {
        match self.found {
            Found::Open(key) if self.owner_may_speak => Some(key),
            Found::Open(_) | Found::Finished(_) | Found::Pruned(_) | Found::Absent => None,
        }
    }

    fn declared_unknown(&self) -> bool {
        self.owned()
            .is_some_and(|key| key.state != OpenState::InFlight && key.lease_expires_at.is_none())
    }

    fn finish(&mut self, state: FinishedState) {
        let Some(key) = self.owned() else { return };
        self.found = Found::Finished(FinishedKey {
            state,
            fence: key.fence,
            attempt: key.attempt,
            finished_at: self.now,
            run: self.run,
        });
        self.truth = Truth::Done {
            at: self.now,
            rejected: state == FinishedState::Rejected,
        };
    }

    fn declare_unknown(&mut self) {
        // The same call again changes nothing.
        let Some(key) = self.owned().filter(|_| !self.declared_unknown()) else {
            return;
        };
        // What a sweep has counted is this very read.
        let key = decide::renewed(&key, self.now);
        let (left, reconciles) = decide::unknown(&key, &self.policy, WasRead::IfToldTo);
        let state = match left {
            GivenBack::Escalated => OpenState::Escalated,
            GivenBack::Unknown(None) => OpenState::Unknown,
            other => panic!("unknown left {other:?}"),
        };
        self.found = Found::Open(OpenKey {
            state,
            lease_expires_at: None,
            reconciles,
            ..key
        });
        if let Truth::Open {
            attempts, in_vain, ..
        } = &mut self.truth
        {
            if let Some(Attempt::Leased {
                told_to_reconcile: true,
                ..
            }) = attempts.last()
            {
                *in_vain += 1;
            }
            *attempts.last_mut().expect("an open key has an attempt") = Attempt::DeclaredUnknown;
        }
    }

    fn renew(&mut self, lease_us: i64) {
        let Some(key) = self.owned().filter(|_| !self.declared_unknown()) else {
            return;
        };
        let until = Instant(self.now.0 + lease_us);
        self.found = Found::Open(decide::renewed(&key, until));
        if let Truth::Open { attempts, .. } = &mut self.truth
            && let Some(Attempt::Leased { until: end, .. }) = attempts.last_mut()
        {
            *end = until;
        }
    }

    /// `tried`: the verdict `not_applied`; else the claim is released before anything was begun.
    fn give_back(&mut self, tried: bool) {
        let Some(key) = self.owned() else { return };
        if self.declared_unknown() && !tried {
            return;
        }
        self.owner_may_speak = false;
        let left = if tried {
            decide::not_applied(&key, &self.policy, self.now)
        } else {
            decide::given_back(&key, self.now)
        };
        self.found = match left {
            GivenBack::Nothing => Found::Absent,
            GivenBack::NotApplied => Found::Finished(FinishedKey {
                state: FinishedState::NotApplied,
                fence: key.fence,
                attempt: key.attempt,
                finished_at: self.now,
                run: self.run,
            }),
            GivenBack::Unknown(lease_expires_at) => Found::Open(OpenKey {
                state: OpenState::Unknown,
                lease_expires_at,
                reconciles: decide::renewed(&key, self.now).reconciles,
                ..key
            }),
            GivenBack::Queued(_) | GivenBack::Escalated => unreachable!("no key here is a message"),
        };
        let Truth::Open { attempts, .. } = &mut self.truth else {
            return;
        };
        let reconciled = matches!(
            attempts.last(),
            Some(Attempt::Leased {
                told_to_reconcile: true,
                ..
            })
        ) || key.prior == Prior::Unknown;
        attempts.pop();
        if tried && reconciled {
            // Whoever read the other system speaks for all attempts.
            self.truth = Truth::Free;
        } else if !tried && reconciled {
            // Nothing was read: as doubtful as before.
            if !attempts.contains(&Attempt::DeclaredUnknown) {
                attempts.push(Attempt::DeclaredUnknown);
            }
        } else if attempts.is_empty() {
            self.truth = Truth::Free;
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1..120_i64).prop_map(Event::Claim),
        1 => Just(Event::Complete),
        1 => Just(Event::Reject),
        2 => Just(Event::NotApplied),
        1 => Just(Event::Unknown),
        2 => Just(Event::Release),
        1 => (1..120_i64).prop_map(Event::Renew),
        4 => (0..150_i64).prop_map(Event::Pass),
        1 => Just(Event::Pass(WINDOW_US)),
        3 => Just(Event::Sweep),
        1 => Just(Event::EndRun),
    ]
}

fn kind() -> impl Strategy<Value = EffectKind> {
    prop_oneof![
        Just(EffectKind::External),
        Just(EffectKind::Keyed),
        Just(EffectKind::Local)
    ]
}

fn terms() -> impl Strategy<Value = Terms> {
    let late = prop_oneof![Just(Late::Expired), Just(Late::Execute)];
    (
        any::<bool>(),
        prop::option::of(1..4 * WINDOW_US),
        prop::option::of(1..2 * WINDOW_US),
        late,
    )
        .prop_map(|(in_run, hard_limit, guard, late)| Terms {
            in_run,
            hard_limit,
            guard,
            late,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn every_answer_is_the_one_that_the_history_asks_for(
        kind in kind(),
        terms in terms(),
        events in prop::collection::vec(event(), 1..40),
    ) {
        let mut history = History::new(kind, terms);
        history.check()?;
        for event in events {
            history.apply(event)?;
            history.check()?;
        }
    }
}
