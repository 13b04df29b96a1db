//! Arguments that several functions take, checked once.

use crate::engine::claim::Terms;
use crate::engine::key::{ScopedKey, checked_run};
use crate::error::Error;
use crate::pg::call::{Call, IntervalArgument};
use crate::policy::{self, Scope};
use idempotency_core::time::Span;

/// Shortest lease: one millisecond.
const LEASE_US_MIN: i64 = 1_000;
/// Longest window, lease, wait and delay: a hundred years of twelve 30-day months.
pub const SPAN_US_MAX: i64 = 100 * 12 * 30 * 86_400_000_000;

/// Scope and key of a call.
pub fn scoped_key(call: &Call, key: usize, scope: usize) -> Result<ScopedKey, Error> {
    let scope = policy::checked_name(call.text(scope))?;
    ScopedKey::new(&scope, call.text(key))
}

/// Lease, wait and run, three arguments in a row from index 3.
pub fn leased_terms(call: &Call, scope: &str) -> Result<Terms, Error> {
    let scope = policy::usable(scope)?;
    Ok(Terms {
        lease: call
            .interval(3)
            .map(|given| lease(given, &scope))
            .transpose()?,
        wait_us: wait_us(call.interval(4))?,
        run: checked_run(call.text(5))?,
        issued_at: None,
    })
}

/// A lease between a millisecond and the scope's `max_lease`.
pub fn lease(given: IntervalArgument, scope: &Scope) -> Result<Span, Error> {
    lease_within(given, scope.max_lease())
}

/// A lease between a millisecond and the limit.
pub fn lease_within(given: IntervalArgument, limit: Span) -> Result<Span, Error> {
    let span = match given {
        IntervalArgument::Us(us) if us >= LEASE_US_MIN => Span::from_us(us),
        IntervalArgument::Us(_) | IntervalArgument::Absurd => None,
    };
    span.filter(|span| *span <= limit).ok_or_else(|| {
        Error::bad_value(
            format!("lease must be between 1 millisecond and {}",
                limit.in_words()),
            "Give an interval with its unit, such as lease => '30 seconds'; max_lease of idem_scope_set sets the limit.",
        )
    })
}

/// A wait of zero or more, in microseconds.
pub fn wait_us(given: Option<IntervalArgument>) -> Result<Option<i64>, Error> {
    match given {
        None => Ok(None),
        Some(IntervalArgument::Us(us)) if us >= 0 => Ok(Some(us)),
        Some(IntervalArgument::Us(_) | IntervalArgument::Absurd) => Err(Error::bad_value(
            "wait must not be negative or infinite",
            "Give '0' to answer at once, an interval to wait that long, or NULL for the scope's wait.",
        )),
    }
}
