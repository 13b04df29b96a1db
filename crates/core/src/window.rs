//! Windows: until when a finished key guards its operation, what a run adds to that, and what comes too late.

use crate::decide::{FinishedKey, FinishedState, Policy};
use crate::time::{Instant, Span};

/// What the run of a key says about its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// Nothing: the key names none, or one that nobody has begun.
    None,
    /// It may still retry its operations.
    Alive,
    /// It is over since then.
    Ended(Instant),
}

/// What a claim is told that comes after the window, while the guard remembers the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// `expired`: nothing is executed.
    Expired,
    /// It executes, and the trail says so.
    Execute,
}

/// Why a claim is told `expired`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Its record is past the window.
    WindowOver,
    /// It was issued so long ago that its record may have come and gone.
    IssuedBefore,
}

/// When and in which run an operation was first issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issued {
    /// When.
    pub at: Instant,
    /// The run that the call names, where that has lived since.
    pub run: Run,
    /// Up to when finished outcomes may have been pruned, also under a window that was shorter than it is now.
    pub pruned_until: Option<Instant>,
}

/// Never.
pub const NEVER: Instant = Instant(i64::MAX);

/// Is an instant that far back still within the span? `None` is for ever.
pub fn within(from: Instant, span: Option<Span>, now: Instant) -> bool {
    span.is_none_or(|span| now.since(from) < span.us())
}

/// From when on an outcome finished then no longer guards its key; [`NEVER`] for ever, or while the run lives.
///
/// The window counts from the finish, and again from the end of the run. A hard limit takes from what the run adds,
/// and nothing from the window.
pub fn guarded_until(finished_at: Instant, run: Run, policy: &Policy) -> Instant {
    let Some(window) = policy.window else {
        return NEVER;
    };
    let own = finished_at.after(window);
    let with_run = match run {
        Run::None => own,
        Run::Alive => NEVER,
        Run::Ended(at) => own.max(at.after(window)),
    };
    policy.hard_limit.map_or(with_run, |limit| {
        own.max(with_run.min(finished_at.after(limit)))
    })
}

/// The same of an outcome. A lease that ended is judged as before a sweep has seen it, when its run was not looked at.
pub fn outcome_guarded_until(key: &FinishedKey, policy: &Policy) -> Instant {
    let run = match key.state {
        FinishedState::LeaseExpired => Run::None,
        FinishedState::Completed | FinishedState::Rejected | FinishedState::NotApplied => key.run,
    };
    guarded_until(key.finished_at, run, policy)
}

/// Whether a record of what was done since the call was issued may have come and gone.
pub fn issued_too_long_ago(issued: &Issued, policy: &Policy, now: Instant) -> bool {
    if guarded_until(issued.at, issued.run, policy) <= now {
        return true;
    }
    // An outcome goes when it was finished, and its run ended, before the horizon.
    let kept_from = match issued.run {
        Run::None => issued.at,
        Run::Alive => NEVER,
        Run::Ended(at) => issued.at.max(at),
    };
    issued.pruned_until.is_some_and(|until| kept_from <= until)
}

/// Does an outcome of this state stand for an effect or a final answer? The others leave the operation free anyway.
pub fn is_final(state: FinishedState) -> bool {
    match state {
        FinishedState::Completed | FinishedState::Rejected => true,
        FinishedState::NotApplied | FinishedState::LeaseExpired => false,
    }
}

/// Whether a key whose window ended then is still remembered.
pub fn remembered(expired_at: Instant, policy: &Policy, now: Instant) -> bool {
    policy
        .guard
        .is_some_and(|guard| now < expired_at.after(guard))
}

/// From when on the operation can be executed again; [`NEVER`] where it cannot.
pub fn repeatable_at(key: &FinishedKey, policy: &Policy) -> Instant {
    if !is_final(key.state) {
        return key.finished_at;
    }
    free_at(outcome_guarded_until(key, policy), policy)
}

/// The same of a key of which only the end of its window is known.
pub fn free_at(expired_at: Instant, policy: &Policy) -> Instant {
    match (policy.guard, policy.late) {
        (Some(guard), Late::Expired) => expired_at.after(guard),
        (Some(_), Late::Execute) | (None, _) => expired_at,
    }
}

/// What pruning does with an outcome. It never changes what a claim is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prune {
    /// It guards its key.
    Keep,
    /// It goes.
    Go {
        /// The run of an operation that was done is alive: somebody must know.
        run_is_alive: bool,
        /// The end of the window, where it is to be remembered.
        remember: Option<Instant>,
    },
}

/// Decides whether an outcome goes.
pub fn prune(key: &FinishedKey, policy: &Policy, now: Instant) -> Prune {
    let until = outcome_guarded_until(key, policy);
    if now < until {
        return Prune::Keep;
    }
    let done = is_final(key.state);
    Prune::Go {
        run_is_alive: done && key.run == Run::Alive,
        remember: Some(until).filter(|until| done && remembered(*until, policy, now)),
    }
}

/// When a run is over that gave its last sign of life then. Signs are recorded at intervals of a sixteenth of the
/// pause, so that much is added.
pub fn run_over_at(last_seen_at: Instant, longest_pause: Span) -> Instant {
    last_seen_at
        .after(longest_pause)
        .later(longest_pause.us() / SIGNS_PER_PAUSE)
}

/// Whether a sign of life is worth recording. A clock that stepped back says nothing.
pub fn sign_is_due(last_seen_at: Instant, longest_pause: Span, now: Instant) -> bool {
    now.since(last_seen_at) >= longest_pause.us() / SIGNS_PER_PAUSE
}

/// Signs of life of a run that are recorded in its longest pause.
const SIGNS_PER_PAUSE: i64 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::EffectKind;

    const HOUR_US: i64 = 3_600_000_000;
    const FRIDAY: Instant = Instant(900_000_000_000_000);

    fn hours(count: i64) -> Option<Span> {
        Span::from_us(count * HOUR_US)
    }

    fn later(hours: i64) -> Instant {
        Instant(FRIDAY.0 + hours * HOUR_US)
    }

    fn policy() -> Policy {
        Policy {
            window: hours(24),
            hard_limit: None,
            guard: None,
            late: Late::Expired,
            provider_window: Span::from_s(1),
            kind: EffectKind::External,
            max_attempts: 1,
            max_reconciles: 1,
        }
    }

    fn completed(run: Run) -> FinishedKey {
        FinishedKey {
            state: FinishedState::Completed,
            fence: 1,
            attempt: 1,
            finished_at: FRIDAY,
            run,
        }
    }

    #[test]
    fn a_live_run_keeps_its_keys_over_the_weekend() {
        let until = |run| guarded_until(FRIDAY, run, &policy());
        assert_eq!(until(Run::None), later(24));
        assert_eq!(until(Run::Alive), NEVER);
        assert_eq!(until(Run::Ended(later(72))), later(96));
        assert_eq!(
            until(Run::Ended(later(-10))),
            later(24),
            "an end before the finish takes nothing away"
        );
    }

    #[test]
    fn a_hard_limit_cuts_what_a_run_adds_and_never_the_window() {
        let limited = |limit| Policy {
            hard_limit: hours(limit),
            ..policy()
        };
        assert_eq!(guarded_until(FRIDAY, Run::Alive, &limited(48)), later(48));
        assert_eq!(guarded_until(FRIDAY, Run::Alive, &limited(1)), later(24));
        assert_eq!(guarded_until(FRIDAY, Run::None, &limited(1)), later(24));
        let go = prune(&completed(Run::Alive), &limited(48), later(48));
        assert!(matches!(
            go,
            Prune::Go {
                run_is_alive: true,
                ..
            }
        ));
    }

    #[test]
    fn a_pruned_key_is_remembered_from_the_end_of_its_window() {
        let guarded = Policy {
            guard: hours(10),
            ..policy()
        };
        let pruned = |hour| prune(&completed(Run::None), &guarded, later(hour));
        let go = |remember| Prune::Go {
            run_is_alive: false,
            remember,
        };
        assert_eq!(pruned(23), Prune::Keep);
        assert_eq!(pruned(24), go(Some(later(24))));
        assert_eq!(pruned(34), go(None));
        let nothing_happened = FinishedKey {
            state: FinishedState::NotApplied,
            ..completed(Run::None)
        };
        assert_eq!(prune(&nothing_happened, &guarded, later(24)), go(None));
        assert_eq!(repeatable_at(&completed(Run::None), &guarded), later(34));
        assert_eq!(repeatable_at(&nothing_happened, &guarded), FRIDAY);
        let executes = Policy {
            late: Late::Execute,
            ..guarded
        };
        assert_eq!(repeatable_at(&completed(Run::None), &executes), later(24));
        assert_eq!(repeatable_at(&completed(Run::Alive), &guarded), NEVER);
    }

    #[test]
    fn for_ever_and_the_ends_of_time_do_not_wrap() {
        let for_ever = Policy {
            window: None,
            hard_limit: hours(1),
            ..policy()
        };
        assert_eq!(guarded_until(FRIDAY, Run::None, &for_ever), NEVER);
        assert_eq!(guarded_until(NEVER, Run::None, &policy()), NEVER);
        let past = guarded_until(Instant(i64::MIN), Run::None, &policy());
        assert!(past < FRIDAY);
    }

    #[test]
    fn a_run_is_over_after_its_pause_and_the_slack_of_its_signs() {
        let pause = Span::from_us(16 * HOUR_US).expect("positive");
        assert_eq!(run_over_at(FRIDAY, pause), later(17));
        assert!(!sign_is_due(FRIDAY, pause, Instant(later(1).0 - 1)));
        assert!(sign_is_due(FRIDAY, pause, later(1)));
        assert!(!sign_is_due(FRIDAY, pause, later(-1)));
    }
}
