//! The decisions of the protocol as pure functions of what was found, the policy and the time.
//! Nothing here waits, reads or writes; the engine carries out what these functions say.

use crate::time::{Instant, Span};
use crate::window::{self, Expiry, Issued, Late, Run};

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
    /// Waits for a human.
    Escalated,
    /// A message that waits for a dispatcher. With a lease end: the lease of its last delivery has ended.
    Queued,
}

/// An open key as the protocol needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenKey {
    /// What the row says.
    pub state: OpenState,
    /// Frozen at the first claim.
    pub kind: EffectKind,
    /// What its claim found; of a queued message, what its next delivery finds.
    pub prior: Prior,
    /// The newest fence.
    pub fence: i64,
    /// Number of the newest attempt, from 1.
    pub attempt: i32,
    /// End of the lease, also of one that has ended; `None` where its owner ended the claim.
    pub lease_expires_at: Option<Instant>,
    /// When the first attempt was claimed: the provider's window counts from here.
    pub first_claimed_at: Instant,
    /// Whether it is a message of the outbox: dispatchers alone execute it, and it is never given up silently.
    pub message: bool,
    /// Deliveries of a message since it was enqueued or requeued.
    pub tries: i32,
    /// Reads of the other system that gave no answer.
    pub reconciles: i32,
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
    /// What its run says about the window.
    pub run: Run,
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
    /// Its outcome is gone; its window ended then.
    Pruned(Instant),
}

/// The policies of a scope that decisions depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long an outcome guards its key; `None` is for ever.
    pub window: Option<Span>,
    /// How long a run may keep the key of an outcome; `None` is without limit.
    pub hard_limit: Option<Span>,
    /// How long a key is remembered after its window.
    pub guard: Option<Span>,
    /// What a claim is told meanwhile.
    pub late: Late,
    /// How long the other system remembers our key, from the first attempt (`keyed` scopes).
    pub provider_window: Span,
    /// The kind that a new key is frozen with.
    pub kind: EffectKind,
    /// Deliveries of a message before a human is asked.
    pub max_attempts: i32,
    /// Reads of the other system in vain before a human is asked.
    pub max_reconciles: i32,
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
    /// Reads in vain so far.
    pub reconciles: i32,
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
    /// The call is older than the window: its record is or may be gone.
    Expired(Expiry),
    /// A message that its dispatcher has not taken yet.
    Queued,
    /// Waits for a human.
    Escalated,
}

/// Fences grow with every change of owner and are compared by equality. They need no sequence: the clock
/// carries them over crash, failover and restore, the `+ 1` over a clock that steps back.
pub fn next_fence(now: Instant, previous: Option<i64>) -> i64 {
    let after_previous = previous.map_or(i64::MIN, |fence| fence.saturating_add(1));
    now.unix_us().max(after_previous)
}

/// What is left of a record: past its window a key is free or only remembered, whether or not it was swept or pruned
/// yet.
pub fn effective(found: Found, policy: &Policy, now: Instant) -> Found {
    let after_window = |expired_at| {
        if window::remembered(expired_at, policy, now) {
            Found::Pruned(expired_at)
        } else {
            Found::Absent
        }
    };
    match found {
        Found::Absent => Found::Absent,
        Found::Pruned(expired_at) => after_window(expired_at),
        Found::Finished(key) => {
            let until = window::outcome_guarded_until(&key, policy);
            if now < until {
                found
            } else if window::is_final(key.state) {
                after_window(until)
            } else {
                Found::Absent
            }
        }
        // What a sweep will make a finished key: its attempt ended, without effect, when its lease did.
        Found::Open(key) => {
            let is_over = sweep(&key, policy, now) == Sweep::LeaseExpired
                && key
                    .lease_expires_at
                    .is_some_and(|at| !window::within(at, policy.window, now));
            if is_over { Found::Absent } else { found }
        }
    }
}

/// Decides a claim. `issued` is when the caller's operation was first issued, if it says so.
/// The caller has compared the arguments and holds the key's lock.
pub fn decide(found: Found, policy: &Policy, issued: Option<Issued>, now: Instant) -> Decision {
    let previous_fence = match found {
        Found::Absent | Found::Pruned(_) => None,
        Found::Open(key) => Some(key.fence),
        Found::Finished(key) => Some(key.fence),
    };
    let fence = next_fence(now, previous_fence);
    match effective(found, policy, now) {
        Found::Pruned(_) if policy.late == Late::Expired => Decision::Expired(Expiry::WindowOver),
        Found::Absent | Found::Pruned(_) => {
            // What was done since then would still be on record.
            if issued.is_some_and(|issued| window::issued_too_long_ago(&issued, policy, now)) {
                return Decision::Expired(Expiry::IssuedBefore);
            }
            let kind = policy.kind;
            Decision::Execute(Ownership {
                fence,
                attempt: 1,
                prior: Prior::Nothing,
                kind,
                first_claimed_at: now,
                reconciles: 0,
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
                    reconciles: 0,
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
        OpenState::Unknown | OpenState::Escalated | OpenState::Queued => None,
    }
}

/// What an open key amounts to once nobody holds a lease on it, before and after a sweep alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtRest {
    /// Nothing happened, and no message waits.
    NotApplied,
    /// A message of which nothing was sent: found so, or its delivery provably had no effect.
    Queued(Prior),
    /// A keyed attempt whose lease ended.
    Expired,
    /// May have happened.
    Unknown,
    /// A human has to decide.
    Escalated,
}

fn at_rest(key: &OpenKey, policy: &Policy) -> AtRest {
    let declared = key.lease_expires_at.is_none();
    let rest = match (key.state, key.kind) {
        (OpenState::Escalated, _) => return AtRest::Escalated,
        (OpenState::Queued, _) => return AtRest::Queued(key.prior),
        (OpenState::Unknown, _) if declared => return AtRest::Unknown,
        (OpenState::Unknown | OpenState::InFlight, _) if key.prior == Prior::Unknown => {
            AtRest::Unknown
        }
        (OpenState::Unknown | OpenState::InFlight, EffectKind::External) => AtRest::Unknown,
        (OpenState::Unknown | OpenState::InFlight, EffectKind::Keyed) => AtRest::Expired,
        (OpenState::Unknown | OpenState::InFlight, EffectKind::Local) if key.message => {
            AtRest::Queued(Prior::NotApplied)
        }
        (OpenState::Unknown | OpenState::InFlight, EffectKind::Local) => AtRest::NotApplied,
    };
    let out_of_reads = read_in_vain(key) && reconciles_at_rest(key) >= policy.max_reconciles;
    let out_of_tries =
        key.state == OpenState::InFlight && key.message && key.tries >= policy.max_attempts;
    if out_of_reads || out_of_tries {
        AtRest::Escalated
    } else {
        rest
    }
}

/// Whether the lease of a claim that was told to reconcile has ended without an answer, uncounted so far.
fn read_in_vain(key: &OpenKey) -> bool {
    key.state == OpenState::InFlight && key.prior == Prior::Unknown
}

/// Reads in vain, the one that ended with its lease included.
fn reconciles_at_rest(key: &OpenKey) -> i32 {
    key.reconciles.saturating_add(i32::from(read_in_vain(key)))
}

fn take_over(key: &OpenKey, policy: &Policy, fence: i64, now: Instant) -> Decision {
    match at_rest(key, policy) {
        AtRest::Queued(_) => Decision::Queued,
        AtRest::Escalated => Decision::Escalated,
        // Messages go out through their dispatchers alone.
        AtRest::Expired if key.message && provider_remembers(key, policy, now) => Decision::Queued,
        AtRest::NotApplied => Decision::Execute(anew(key, policy, Prior::NotApplied, fence, now)),
        AtRest::Expired if provider_remembers(key, policy, now) => {
            Decision::Execute(again(key, Prior::Expired, fence))
        }
        AtRest::Expired | AtRest::Unknown => Decision::Reconcile(again(key, Prior::Unknown, fence)),
    }
}

fn provider_remembers(key: &OpenKey, policy: &Policy, now: Instant) -> bool {
    window::within(key.first_claimed_at, Some(policy.provider_window), now)
}

/// Nothing happened so far: the key begins anew under today's policies.
fn anew(key: &OpenKey, policy: &Policy, prior: Prior, fence: i64, now: Instant) -> Ownership {
    Ownership {
        kind: policy.kind,
        first_claimed_at: now,
        ..again(key, prior, fence)
    }
}

fn again(key: &OpenKey, prior: Prior, fence: i64) -> Ownership {
    Ownership {
        fence,
        attempt: key.attempt.saturating_add(1),
        prior,
        kind: key.kind,
        first_claimed_at: key.first_claimed_at,
        reconciles: reconciles_at_rest(key),
    }
}

/// What a dispatcher does with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Somebody has it, or a human has to decide.
    Not,
    /// Send it.
    Execute(Ownership),
    /// Read the other system first.
    Reconcile(Ownership),
    /// It was tried for the last time: a human has to decide from now on.
    Escalate {
        /// Reads in vain from now on.
        reconciles: i32,
    },
}

/// Decides a delivery. Whether the message is due has been checked.
pub fn deliver(key: &OpenKey, policy: &Policy, now: Instant) -> Delivery {
    if lease_end(key, now).is_some() {
        return Delivery::Not;
    }
    let fence = next_fence(now, Some(key.fence));
    match at_rest(key, policy) {
        AtRest::Escalated if key.state == OpenState::InFlight => Delivery::Escalate {
            reconciles: reconciles_at_rest(key),
        },
        AtRest::Escalated | AtRest::NotApplied => Delivery::Not,
        AtRest::Queued(prior @ (Prior::Nothing | Prior::NotApplied)) => {
            Delivery::Execute(anew(key, policy, prior, fence, now))
        }
        // It became a message after an attempt that may have been sent: its window goes on counting from that one.
        AtRest::Queued(Prior::Expired) | AtRest::Expired
            if provider_remembers(key, policy, now) =>
        {
            Delivery::Execute(again(key, Prior::Expired, fence))
        }
        AtRest::Queued(Prior::Expired | Prior::Unknown) | AtRest::Expired | AtRest::Unknown => {
            Delivery::Reconcile(again(key, Prior::Unknown, fence))
        }
    }
}

/// Whether a key is in doubt: somebody has to read the other system, or a human to decide.
/// A claim that lives in its transaction has no lease and is not.
pub fn in_doubt(key: &OpenKey, policy: &Policy, now: Instant) -> bool {
    let held = match key.state {
        OpenState::InFlight => key.lease_expires_at.is_none_or(|at| now < at),
        OpenState::Unknown | OpenState::Escalated | OpenState::Queued => false,
    };
    !held
        && match at_rest(key, policy) {
            AtRest::Unknown | AtRest::Escalated => true,
            AtRest::Expired => !provider_remembers(key, policy, now),
            AtRest::NotApplied | AtRest::Queued(_) => false,
        }
}

/// What a sweep makes of an open key. It never changes an answer: `decide` says the same before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Nothing is due.
    Keep,
    /// Its lease has ended and it may have happened.
    Unknown {
        /// Reads in vain from now on.
        reconciles: i32,
    },
    /// The lease of a local claim has ended: nothing happened.
    LeaseExpired,
    /// The same of a message: it waits for a dispatcher again.
    Requeued,
    /// Its lease has ended for the last time.
    Escalated {
        /// Reads in vain from now on.
        reconciles: i32,
    },
}

/// Decides what a sweep does with an open key.
pub fn sweep(key: &OpenKey, policy: &Policy, now: Instant) -> Sweep {
    if key.state != OpenState::InFlight || lease_end(key, now).is_some() {
        return Sweep::Keep;
    }
    let reconciles = reconciles_at_rest(key);
    match at_rest(key, policy) {
        AtRest::NotApplied => Sweep::LeaseExpired,
        AtRest::Queued(_) => Sweep::Requeued,
        AtRest::Expired | AtRest::Unknown => Sweep::Unknown { reconciles },
        AtRest::Escalated => Sweep::Escalated { reconciles },
    }
}

/// What is left of a key when its claim ends without an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenBack {
    /// A first claim disappears.
    Nothing,
    /// An attempt that provably had no effect.
    NotApplied,
    /// In doubt: declared (`None`), or by a lease that ended (some past instant).
    Unknown(Option<Instant>),
    /// A message waits for a dispatcher again; the next delivery finds this.
    Queued(Prior),
    /// A human has to decide.
    Escalated,
}

/// What `idem_release` restores.
pub fn given_back(key: &OpenKey, now: Instant) -> GivenBack {
    match key.prior {
        Prior::Nothing | Prior::NotApplied if key.message => GivenBack::Queued(key.prior),
        Prior::Nothing => GivenBack::Nothing,
        Prior::NotApplied => GivenBack::NotApplied,
        Prior::Unknown => GivenBack::Unknown(None),
        Prior::Expired => GivenBack::Unknown(Some(now)),
    }
}

/// What the verdict `not_applied` leaves. A keyed attempt says nothing of the one before it, whose lease
/// ended: that one stays open, and the provider's window keeps counting from it.
pub fn not_applied(key: &OpenKey, policy: &Policy, now: Instant) -> GivenBack {
    if key.message && key.tries >= policy.max_attempts {
        return GivenBack::Escalated;
    }
    match key.prior {
        Prior::Expired => GivenBack::Unknown(Some(now)),
        Prior::Nothing | Prior::NotApplied | Prior::Unknown => read_as_not_applied(key),
    }
}

/// What is left where a read of the other system has shown that nothing was applied, by any attempt.
pub fn read_as_not_applied(key: &OpenKey) -> GivenBack {
    if key.message {
        GivenBack::Queued(Prior::NotApplied)
    } else {
        GivenBack::NotApplied
    }
}

/// What the verdict `unknown` leaves, and the number of reads in vain from then on.
pub fn unknown(key: &OpenKey, policy: &Policy, was_read: WasRead) -> (GivenBack, i32) {
    let in_vain = match was_read {
        WasRead::Yes => true,
        WasRead::IfToldTo => key.prior == Prior::Unknown,
    };
    let reconciles = key.reconciles.saturating_add(i32::from(in_vain));
    let out_of_reads = in_vain && reconciles >= policy.max_reconciles;
    let out_of_tries = key.message && key.tries >= policy.max_attempts;
    if key.state == OpenState::Escalated || out_of_reads || out_of_tries {
        (GivenBack::Escalated, reconciles)
    } else {
        (GivenBack::Unknown(None), reconciles)
    }
}

/// Whether a verdict `unknown` tells of a read of the other system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WasRead {
    /// The caller says so.
    Yes,
    /// Where the claim was told to reconcile.
    IfToldTo,
}

/// The key as its last owner renews it: what a sweep has counted when the lease ended is taken back.
pub fn renewed(key: &OpenKey, until: Instant) -> OpenKey {
    let swept = key.state != OpenState::InFlight && key.prior == Prior::Unknown;
    OpenKey {
        state: OpenState::InFlight,
        lease_expires_at: Some(until),
        reconciles: key.reconciles.saturating_sub(i32::from(swept)),
        ..*key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_US: i64 = 3_600_000_000;
    const NOW: Instant = Instant(800_000_000_000_000);

    fn policy(kind: EffectKind) -> Policy {
        Policy {
            hard_limit: None,
            guard: None,
            late: Late::Expired,
            window: Span::from_us(30 * 24 * HOUR_US),
            provider_window: Span::from_us(24 * HOUR_US).expect("positive"),
            kind,
            max_attempts: 3,
            max_reconciles: 2,
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
            message: false,
            tries: 0,
            reconciles: 0,
        }
    }

    fn finished(state: FinishedState, finished_at: Instant) -> Found {
        Found::Finished(FinishedKey {
            state,
            fence: 7,
            attempt: 3,
            finished_at,
            run: Run::None,
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
        let mut key = open(EffectKind::Keyed, Some(NOW));
        let policy = policy(EffectKind::Keyed);
        key.prior = Prior::Expired;
        assert_eq!(
            not_applied(&key, &policy, NOW),
            GivenBack::Unknown(Some(NOW))
        );
        key.prior = Prior::Unknown;
        assert_eq!(not_applied(&key, &policy, NOW), GivenBack::NotApplied);
    }

    #[test]
    fn a_reconciler_that_dies_leaves_the_key_unknown_in_every_kind() {
        for kind in [EffectKind::External, EffectKind::Keyed, EffectKind::Local] {
            let mut key = open(kind, Some(NOW));
            key.prior = Prior::Unknown;
            assert!(
                matches!(claim(Found::Open(key), kind), Decision::Reconcile(o) if o.reconciles == 1)
            );
            assert_eq!(
                sweep(&key, &policy(kind), NOW),
                Sweep::Unknown { reconciles: 1 }
            );
            key.reconciles = 1;
            assert_eq!(claim(Found::Open(key), kind), Decision::Escalated);
            assert_eq!(
                sweep(&key, &policy(kind), NOW),
                Sweep::Escalated { reconciles: 2 }
            );
        }
    }

    #[test]
    fn reads_in_vain_are_counted_and_end_with_a_human() {
        let mut key = open(EffectKind::External, Some(NOW));
        let policy = policy(EffectKind::External);
        let declared = GivenBack::Unknown(None);
        assert_eq!(unknown(&key, &policy, WasRead::IfToldTo), (declared, 0));
        key.prior = Prior::Unknown;
        assert_eq!(unknown(&key, &policy, WasRead::IfToldTo), (declared, 1));
        key.reconciles = 1;
        let escalated = (GivenBack::Escalated, 2);
        assert_eq!(unknown(&key, &policy, WasRead::IfToldTo), escalated);
        key.state = OpenState::Escalated;
        assert_eq!(unknown(&key, &policy, WasRead::Yes), escalated);
    }

    #[test]
    fn a_message_is_queued_until_its_tries_are_used_up() {
        let policy = policy(EffectKind::Local);
        let mut key = open(EffectKind::Local, Some(NOW));
        key.message = true;
        for tries in 1..=3 {
            key.tries = tries;
            let last = tries == 3;
            let told = if last {
                Decision::Escalated
            } else {
                Decision::Queued
            };
            assert_eq!(claim(Found::Open(key), EffectKind::Local), told);
            let left = if last {
                GivenBack::Escalated
            } else {
                GivenBack::Queued(Prior::NotApplied)
            };
            assert_eq!(not_applied(&key, &policy, NOW), left);
            let swept = if last {
                Sweep::Escalated { reconciles: 0 }
            } else {
                Sweep::Requeued
            };
            assert_eq!(sweep(&key, &policy, NOW), swept);
        }
        assert_eq!(
            deliver(&key, &policy, NOW),
            Delivery::Escalate { reconciles: 0 }
        );
    }

    #[test]
    fn enqueuing_a_keyed_call_that_may_have_been_sent_does_not_begin_its_window_anew() {
        let policy = policy(EffectKind::Keyed);
        let mut key = open(EffectKind::Keyed, None);
        (key.state, key.message, key.prior) = (OpenState::Queued, true, Prior::Expired);
        assert!(
            matches!(deliver(&key, &policy, NOW), Delivery::Execute(o) if o.first_claimed_at == key.first_claimed_at && o.prior == Prior::Expired)
        );
        key.first_claimed_at = ago(24 * HOUR_US);
        assert!(matches!(
            deliver(&key, &policy, NOW),
            Delivery::Reconcile(_)
        ));
    }

    #[test]
    fn a_message_that_may_have_been_sent_is_delivered_to_be_read() {
        let mut key = open(EffectKind::External, Some(NOW));
        key.message = true;
        let policy = policy(EffectKind::External);
        assert!(matches!(
            deliver(&key, &policy, NOW),
            Delivery::Reconcile(_)
        ));
        key.state = OpenState::Queued;
        assert!(
            matches!(deliver(&key, &policy, NOW), Delivery::Execute(o) if o.first_claimed_at == NOW)
        );
        key.state = OpenState::Escalated;
        assert_eq!(deliver(&key, &policy, NOW), Delivery::Not);
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
        let issued = |run| {
            Some(Issued {
                at: ago(window),
                run,
                pruned_until: None,
            })
        };
        let expired = Decision::Expired(Expiry::IssuedBefore);
        let told = |found, policy, run| decide(found, &policy, issued(run), NOW);
        assert_eq!(told(Found::Absent, policy, Run::None), expired);
        let within = finished(FinishedState::Completed, ago(1));
        assert_eq!(told(within, policy, Run::None), Decision::Replay);
        let over = finished(FinishedState::Completed, ago(window));
        assert_eq!(told(over, policy, Run::None), expired);
        let for_ever = Policy {
            window: None,
            ..policy
        };
        let executes = |decision| matches!(decision, Decision::Execute(_));
        assert!(executes(told(Found::Absent, for_ever, Run::None)));
        // What a live run has done would still be on record.
        assert!(executes(told(Found::Absent, policy, Run::Alive)));
        assert_eq!(
            told(Found::Absent, policy, Run::Ended(ago(window))),
            expired
        );
    }

    #[test]
    fn a_call_issued_before_what_a_shorter_window_let_go_is_expired() {
        let policy = policy(EffectKind::External);
        let told = |at, run, pruned_until| {
            let issued = Issued {
                at,
                run,
                pruned_until: Some(pruned_until),
            };
            decide(Found::Absent, &policy, Some(issued), NOW)
        };
        let expired = Decision::Expired(Expiry::IssuedBefore);
        let executes = |decision| matches!(decision, Decision::Execute(_));
        assert_eq!(told(ago(2), Run::None, ago(1)), expired);
        assert_eq!(told(ago(2), Run::None, ago(2)), expired);
        assert!(executes(told(ago(1), Run::None, ago(2))));
        // Its run has kept it.
        assert!(executes(told(ago(9), Run::Alive, ago(1))));
        assert!(executes(told(ago(9), Run::Ended(ago(1)), ago(2))));
        assert_eq!(told(ago(9), Run::Ended(ago(3)), ago(2)), expired);
    }

    #[test]
    fn a_late_claim_is_told_so_while_the_key_is_remembered() {
        let hour = Span::from_us(HOUR_US);
        let guarded = Policy {
            window: hour,
            guard: hour,
            ..policy(EffectKind::External)
        };
        let told = |found, policy| decide(found, &policy, None, NOW);
        let expired = Decision::Expired(Expiry::WindowOver);
        let over = finished(FinishedState::Completed, ago(HOUR_US));
        assert_eq!(told(over, guarded), expired);
        assert_eq!(told(Found::Pruned(NOW), guarded), expired);
        let executes = |decision| matches!(decision, Decision::Execute(own) if own.attempt == 1);
        assert!(executes(told(Found::Pruned(ago(HOUR_US)), guarded)));
        let lenient = Policy {
            late: Late::Execute,
            ..guarded
        };
        assert!(executes(told(Found::Pruned(NOW), lenient)));
        let nothing_happened = finished(FinishedState::NotApplied, ago(HOUR_US));
        assert!(executes(told(nothing_happened, guarded)));
    }

    #[test]
    fn fences_grow_when_the_clock_steps_back() {
        let newest = next_fence(NOW, None);
        assert_eq!(newest, NOW.unix_us());
        assert_eq!(next_fence(ago(HOUR_US), Some(newest)), newest + 1);
        assert!(newest < (1 << 53), "a fence fits a JavaScript number");
    }
}
