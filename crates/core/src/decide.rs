//! The decisions of the protocol as pure functions of what was found, the policy and the time.
//! Nothing here waits, reads or writes; the engine carries out what these functions say.

use crate::time::{Instant, Span};

/// What an expired lease means in a scope; frozen in a key from its first claim until it is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectKind {
    /// The effect is outside the database: it may have happened.
    External,
    /// The other system takes our key: the same call may be sent again within the provider's window.
    Keyed,
    /// The effect commits together with its completion: an expired lease proves that nothing happened.
    Local,
}

/// What a claim found, kept so that giving it back can restore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prior {
    /// No record, or one whose window had ended.
    Nothing,
    /// An attempt that provably had no effect.
    NotApplied,
    /// An attempt that may have had its effect: whoever claims must read the other system first.
    Unknown,
    /// A keyed attempt whose lease ended: sent again within the provider's window, else unknown.
    Expired,
}

/// State of an open key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenState {
    /// Claimed under a lease.
    InFlight,
    /// May have happened. With a lease end: the sweep has seen the lease end; without: a caller said so.
    Unknown,
}

/// An open key as the protocol needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenKey {
    /// In flight or unknown.
    pub state: OpenState,
    /// Frozen at the first claim.
    pub kind: EffectKind,
    /// What its claim found.
    pub prior: Prior,
    /// The newest fence.
    pub fence: i64,
    /// Number of the newest attempt, from 1.
    pub attempt: i32,
    /// End of the lease; `None` where a caller declared the outcome unknown.
    pub lease_expires_at: Option<Instant>,
    /// When the first attempt was claimed: the provider's window counts from here.
    pub first_claimed_at: Instant,
}

/// State of a finished key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishedState {
    /// Done; its result is replayed.
    Completed,
    /// A final failure, replayed as such.
    Rejected,
    /// Tried, and provably nothing happened.
    NotApplied,
    /// The lease of a `local` claim ended: nothing happened, and its owner may still finish.
    LeaseExpired,
}

/// A finished key as the protocol needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedKey {
    /// How it ended.
    pub state: FinishedState,
    /// The fence that finished it.
    pub fence: i64,
    /// Number of the attempt that finished it.
    pub attempt: i32,
    /// The window counts from here.
    pub finished_at: Instant,
}

/// What the two tables say of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Neither table has it.
    Absent,
    /// The claim table has it.
    Open(OpenKey),
    /// The outcome table has it.
    Finished(FinishedKey),
}

/// The policies of a scope that decisions depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long an outcome guards its key; `None` is for ever.
    pub window: Option<Span>,
    /// How long the other system remembers our key, from the first attempt (`keyed` scopes).
    pub provider_window: Span,
    /// The kind that a new key is frozen with.
    pub kind: EffectKind,
}

/// Ownership given by a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// The new fence.
    pub fence: i64,
    /// The new attempt number.
    pub attempt: i32,
    /// What the claim found.
    pub prior: Prior,
    /// The frozen kind.
    pub kind: EffectKind,
    /// When the first attempt was claimed.
    pub first_claimed_at: Instant,
}

/// The answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Do the effect.
    Execute(Ownership),
    /// Read the other system first.
    Reconcile(Ownership),
    /// Somebody holds a lease until then.
    InProgress(Instant),
    /// Done before.
    Replay,
    /// Finished with a final failure.
    Rejected,
    /// The call is older than the window: its record may be gone.
    Expired,
}

/// Fences grow with every change of owner and are compared by equality. They need no sequence: the clock
/// carries them over crash, failover and restore, the `+ 1` over a clock that steps back.
pub fn next_fence(now: Instant, previous: Option<i64>) -> i64 {
    let after_previous = previous.map_or(i64::MIN, |fence| fence.saturating_add(1));
    now.unix_us().max(after_previous)
}

/// Does an outcome finished then still guard its key?
pub fn within_window(finished_at: Instant, window: Option<Span>, now: Instant) -> bool {
    window.is_none_or(|window| now.since(finished_at) < window.us())
}

/// What is left of a record: past its window a key is free, whether or not it was swept or pruned yet.
pub fn effective(found: Found, policy: &Policy, now: Instant) -> Found {
    let free = match found {
        Found::Absent => true,
        Found::Finished(key) => !within_window(key.finished_at, policy.window, now),
        // What a sweep will make a finished key: its attempt ended, without effect, when its lease did.
        Found::Open(key) => {
            sweep(&key, now) == Sweep::LeaseExpired
                && key
                    .lease_expires_at
                    .is_some_and(|at| !within_window(at, policy.window, now))
        }
    };
    if free { Found::Absent } else { found }
}

/// Decides a claim. `issued_at` is when the caller's operation was first issued, if it says so.
/// The caller has compared the arguments and holds the key's lock.
pub fn decide(found: Found, policy: &Policy, issued_at: Option<Instant>, now: Instant) -> Decision {
    let previous_fence = match found {
        Found::Absent => None,
        Found::Open(key) => Some(key.fence),
        Found::Finished(key) => Some(key.fence),
    };
    let fence = next_fence(now, previous_fence);
    match effective(found, policy, now) {
        Found::Absent => {
            if issued_at.is_some_and(|at| !within_window(at, policy.window, now)) {
                return Decision::Expired;
            }
            let kind = policy.kind;
            Decision::Execute(Ownership {
                fence,
                attempt: 1,
                prior: Prior::Nothing,
                kind,
                first_claimed_at: now,
            })
        }
        Found::Finished(key) => match key.state {
            FinishedState::Completed => Decision::Replay,
            FinishedState::Rejected => Decision::Rejected,
            FinishedState::NotApplied | FinishedState::LeaseExpired => {
                Decision::Execute(Ownership {
                    fence,
                    attempt: key.attempt.saturating_add(1),
                    prior: Prior::NotApplied,
                    kind: policy.kind,
                    first_claimed_at: now,
                })
            }
        },
        Found::Open(key) => match lease_end(&key, now) {
            Some(at) => Decision::InProgress(at),
            None => take_over(&key, policy, fence, now),
        },
    }
}

/// The end of the lease that holds this key now; `None` where none does.
pub fn lease_end(key: &OpenKey, now: Instant) -> Option<Instant> {
    match key.state {
        OpenState::InFlight => key.lease_expires_at.filter(|at| now < *at),
        OpenState::Unknown => None,
    }
}

fn take_over(key: &OpenKey, policy: &Policy, fence: i64, now: Instant) -> Decision {
    let prior = after_lease_end(key);
    let ownership = |prior| Ownership {
        fence,
        attempt: key.attempt.saturating_add(1),
        prior,
        kind: key.kind,
        first_claimed_at: key.first_claimed_at,
    };
    match prior {
        // Nothing happened: as after a sweep, the key begins anew under today's policies.
        Prior::Nothing | Prior::NotApplied => Decision::Execute(Ownership {
            kind: policy.kind,
            first_claimed_at: now,
            ..ownership(Prior::NotApplied)
        }),
        Prior::Unknown => Decision::Reconcile(ownership(Prior::Unknown)),
        Prior::Expired
            if within_window(key.first_claimed_at, Some(policy.provider_window), now) =>
        {
            Decision::Execute(ownership(Prior::Expired))
        }
        Prior::Expired => Decision::Reconcile(ownership(Prior::Unknown)),
    }
}

/// What an open key amounts to once nobody holds a lease on it, before and after a sweep alike.
fn after_lease_end(key: &OpenKey) -> Prior {
    let declared_unknown = key.state == OpenState::Unknown && key.lease_expires_at.is_none();
    if declared_unknown || key.prior == Prior::Unknown {
        return Prior::Unknown;
    }
    match key.kind {
        EffectKind::External => Prior::Unknown,
        EffectKind::Keyed => Prior::Expired,
        EffectKind::Local => Prior::NotApplied,
    }
}

/// What a sweep makes of an open key. It never changes an answer: `decide` says the same before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Nothing is due.
    Keep,
    /// Its lease has ended and it may have happened: unknown. The lease end stays where it says more
    /// than "unknown" (a keyed call that may be sent again); `None` otherwise.
    Unknown(Option<Instant>),
    /// The lease of a local claim has ended: nothing happened.
    LeaseExpired,
}

/// Decides what a sweep does with an open key.
pub fn sweep(key: &OpenKey, now: Instant) -> Sweep {
    match key.state {
        OpenState::Unknown => Sweep::Keep,
        OpenState::InFlight if lease_end(key, now).is_some() => Sweep::Keep,
        OpenState::InFlight => match (key.prior, key.kind) {
            (Prior::Unknown, _) => Sweep::Unknown(key.lease_expires_at),
            (Prior::Nothing | Prior::NotApplied | Prior::Expired, EffectKind::Local) => {
                Sweep::LeaseExpired
            }
            (
                Prior::Nothing | Prior::NotApplied | Prior::Expired,
                EffectKind::External | EffectKind::Keyed,
            ) => Sweep::Unknown(key.lease_expires_at),
        },
    }
}

/// What is left of a key when its claim is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenBack {
    /// A first claim disappears.
    Nothing,
    /// The earlier attempt that provably had no effect.
    NotApplied,
    /// Unknown as it was found: declared (`None`), or by a lease that ended (some past instant).
    Unknown(Option<Instant>),
}

/// What `idem_release` restores.
pub fn given_back(prior: Prior, now: Instant) -> GivenBack {
    match prior {
        Prior::Nothing => GivenBack::Nothing,
        Prior::NotApplied => GivenBack::NotApplied,
        Prior::Unknown => GivenBack::Unknown(None),
        Prior::Expired => GivenBack::Unknown(Some(now)),
    }
}

/// What the verdict `not_applied` leaves. A keyed attempt says nothing of the one before it, whose lease
/// ended: that one stays open, and the provider's window keeps counting from it.
pub fn not_applied(prior: Prior, now: Instant) -> GivenBack {
    match prior {
        Prior::Nothing | Prior::NotApplied | Prior::Unknown => GivenBack::NotApplied,
        Prior::Expired => GivenBack::Unknown(Some(now)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_US: i64 = 3_600_000_000;
    const NOW: Instant = Instant(800_000_000_000_000);

    fn policy(kind: EffectKind) -> Policy {
        Policy {
            window: Span::from_us(30 * 24 * HOUR_US),
            provider_window: Span::from_us(24 * HOUR_US).expect("positive"),
            kind,
        }
    }

    fn ago(us: i64) -> Instant {
        Instant(NOW.0 - us)
    }

    fn open(kind: EffectKind, lease_expires_at: Option<Instant>) -> OpenKey {
        OpenKey {
            state: OpenState::InFlight,
            kind,
            prior: Prior::Nothing,
            fence: 7,
            attempt: 1,
            lease_expires_at,
            first_claimed_at: ago(HOUR_US),
        }
    }

    fn finished(state: FinishedState, finished_at: Instant) -> Found {
        Found::Finished(FinishedKey {
            state,
            fence: 7,
            attempt: 3,
            finished_at,
        })
    }

    fn claim(found: Found, kind: EffectKind) -> Decision {
        decide(found, &policy(kind), None, NOW)
    }

    #[test]
    fn a_lease_holds_to_its_last_microsecond() {
        let at = Instant(NOW.0 + 1);
        assert_eq!(
            claim(
                Found::Open(open(EffectKind::External, Some(at))),
                EffectKind::External
            ),
            Decision::InProgress(at)
        );
        let ended = Found::Open(open(EffectKind::External, Some(NOW)));
        assert!(matches!(
            claim(ended, EffectKind::External),
            Decision::Reconcile(_)
        ));
    }

    #[test]
    fn the_kind_is_the_one_frozen_in_the_key() {
        let external = Found::Open(open(EffectKind::External, Some(NOW)));
        assert!(matches!(
            claim(external, EffectKind::Local),
            Decision::Reconcile(_)
        ));
        let local = Found::Open(open(EffectKind::Local, Some(NOW)));
        assert!(
            matches!(claim(local, EffectKind::External), Decision::Execute(o) if o.attempt == 2)
        );
    }

    #[test]
    fn keyed_executes_again_only_while_the_provider_remembers() {
        let mut key = open(EffectKind::Keyed, Some(NOW));
        assert!(
            matches!(claim(Found::Open(key), EffectKind::Keyed), Decision::Execute(o) if o.prior == Prior::Expired)
        );
        key.first_claimed_at = ago(24 * HOUR_US);
        assert!(matches!(
            claim(Found::Open(key), EffectKind::Keyed),
            Decision::Reconcile(_)
        ));
    }

    #[test]
    fn a_keyed_attempt_without_effect_leaves_the_earlier_one_open() {
        assert_eq!(
            not_applied(Prior::Expired, NOW),
            GivenBack::Unknown(Some(NOW))
        );
        assert_eq!(not_applied(Prior::Unknown, NOW), GivenBack::NotApplied);
    }

    #[test]
    fn a_reconciler_that_dies_leaves_the_key_unknown_in_every_kind() {
        for kind in [EffectKind::External, EffectKind::Keyed, EffectKind::Local] {
            let mut key = open(kind, Some(NOW));
            key.prior = Prior::Unknown;
            assert!(matches!(
                claim(Found::Open(key), kind),
                Decision::Reconcile(_)
            ));
            assert_eq!(sweep(&key, NOW), Sweep::Unknown(Some(NOW)));
        }
    }

    #[test]
    fn finished_keys_answer_until_their_window_ends() {
        let window = 30 * 24 * HOUR_US;
        let last = finished(FinishedState::Completed, ago(window - 1));
        assert_eq!(claim(last, EffectKind::External), Decision::Replay);
        let over = finished(FinishedState::Completed, ago(window));
        assert!(
            matches!(claim(over, EffectKind::External), Decision::Execute(o) if o.attempt == 1 && o.prior == Prior::Nothing)
        );
        assert_eq!(
            claim(finished(FinishedState::Rejected, NOW), EffectKind::Local),
            Decision::Rejected
        );
        let again = claim(finished(FinishedState::NotApplied, NOW), EffectKind::Local);
        assert!(
            matches!(again, Decision::Execute(o) if o.attempt == 4 && o.prior == Prior::NotApplied)
        );
    }

    #[test]
    fn a_call_issued_before_the_window_is_expired_unless_its_record_is_there() {
        let window = 30 * 24 * HOUR_US;
        let policy = policy(EffectKind::External);
        let old = Some(ago(window));
        assert_eq!(decide(Found::Absent, &policy, old, NOW), Decision::Expired);
        assert_eq!(
            decide(
                finished(FinishedState::Completed, ago(1)),
                &policy,
                old,
                NOW
            ),
            Decision::Replay
        );
        assert_eq!(
            decide(
                finished(FinishedState::Completed, ago(window)),
                &policy,
                old,
                NOW
            ),
            Decision::Expired
        );
        let forever = Policy {
            window: None,
            ..policy
        };
        assert!(matches!(
            decide(Found::Absent, &forever, old, NOW),
            Decision::Execute(_)
        ));
    }

    #[test]
    fn fences_grow_when_the_clock_steps_back() {
        let newest = next_fence(NOW, None);
        assert_eq!(newest, NOW.unix_us());
        assert_eq!(next_fence(ago(HOUR_US), Some(newest)), newest + 1);
        assert!(newest < (1 << 53), "a fence fits a JavaScript number");
    }
}
