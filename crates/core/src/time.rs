//! Instants and spans in microseconds, with checked arithmetic. Never reads a clock.

/// An instant: microseconds since 2000-01-01 00:00 UTC, as PostgreSQL's `timestamptz`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub i64);

/// Seconds between 1970-01-01 and 2000-01-01.
const POSTGRES_EPOCH_UNIX_S: i64 = 946_684_800;
const US_PER_DAY: i64 = 86_400_000_000;
/// Days of a month when an interval is turned into a span, as in PostgreSQL's `interval_cmp_value`.
const DAYS_PER_MONTH: i64 = 30;

/// The year 294277 (src/include/datatype/timestamp.h, `END_TIMESTAMP`).
const END_OF_TIMESTAMPS: i64 = 9_223_371_331_200_000_000;

impl Instant {
    /// Microseconds since 1970-01-01, the clock that fences count in.
    pub fn unix_us(self) -> i64 {
        self.0.saturating_add(POSTGRES_EPOCH_UNIX_S * 1_000_000)
    }

    /// The instant this many milliseconds after 1970-01-01.
    pub const fn from_unix_ms(ms: i64) -> Instant {
        Instant(
            ms.saturating_mul(1_000)
                .saturating_sub(POSTGRES_EPOCH_UNIX_S * 1_000_000),
        )
    }

    /// This instant moved by `span`. What is infinite stays so, and what comes after all that a timestamp can say is
    /// `infinity`.
    #[must_use]
    pub fn after(self, span: Span) -> Instant {
        self.later(span.us)
    }

    /// The same by a number of microseconds that is not negative.
    #[must_use]
    pub(crate) fn later(self, us: i64) -> Instant {
        match self.0.saturating_add(us) {
            _ if self.0 == i64::MIN => self,
            END_OF_TIMESTAMPS.. => Instant(i64::MAX),
            at => Instant(at),
        }
    }

    /// How long ago `earlier` was; negative where the clock went backwards.
    pub fn since(self, earlier: Instant) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A positive length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    us: i64,
}

impl Span {
    /// A span of this many microseconds; `None` for zero and below.
    pub const fn from_us(us: i64) -> Option<Span> {
        if us > 0 { Some(Span { us }) } else { None }
    }

    /// A span of whole seconds; zero becomes one microsecond, so a window never vanishes.
    pub const fn from_s(seconds: u32) -> Span {
        let us = seconds as i64 * 1_000_000;
        Span {
            us: if us == 0 { 1 } else { us },
        }
    }

    /// Its length in microseconds.
    pub const fn us(self) -> i64 {
        self.us
    }

    /// For people: a count of the largest unit that is whole, such as `30 days`.
    pub fn in_words(self) -> String {
        const UNITS: [(i64, &str); 5] = [
            (US_PER_DAY, "day"),
            (3_600_000_000, "hour"),
            (60_000_000, "minute"),
            (1_000_000, "second"),
            (1_000, "millisecond"),
        ];
        let whole = UNITS
            .into_iter()
            .find(|(unit_us, _)| self.us % unit_us == 0);
        let (unit_us, unit) = whole.unwrap_or((1, "microsecond"));
        let count = self.us / unit_us;
        format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
    }
}

/// An interval's fields as PostgreSQL keeps them, in microseconds: months count 30 days, days 24 hours.
/// `None` where the sum does not fit (PostgreSQL 17's infinite intervals included).
pub fn interval_us(months: i32, days: i32, us: i64) -> Option<i64> {
    if (months, days, us) == (i32::MAX, i32::MAX, i64::MAX)
        || (months, days, us) == (i32::MIN, i32::MIN, i64::MIN)
    {
        return None;
    }
    let days = i64::from(months) * DAYS_PER_MONTH + i64::from(days);
    days.checked_mul(US_PER_DAY)?.checked_add(us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_is_exact_to_the_microsecond() {
        assert_eq!(interval_us(0, 0, 1_500), Some(1_500));
        assert_eq!(interval_us(1, 1, 1), Some(31 * US_PER_DAY + 1));
        assert_eq!(interval_us(-1, 30, 7), Some(7));
    }

    #[test]
    fn absurd_intervals_do_not_wrap() {
        assert_eq!(interval_us(i32::MAX, i32::MAX, i64::MAX), None);
        assert_eq!(interval_us(i32::MIN, i32::MIN, i64::MIN), None);
        assert_eq!(interval_us(i32::MAX, 0, i64::MAX), None);
    }

    #[test]
    fn words_take_the_largest_whole_unit() {
        let words = |us| Span::from_us(us).expect("positive").in_words();
        assert_eq!(words(30 * US_PER_DAY), "30 days");
        assert_eq!(words(3_600_000_000), "1 hour");
        assert_eq!(words(90_000_000), "90 seconds");
        assert_eq!(words(1_001), "1001 microseconds");
    }

    #[test]
    fn the_end_of_time_does_not_wrap() {
        let span = Span::from_us(i64::MAX).expect("positive");
        assert_eq!(Instant(5).after(span), Instant(i64::MAX));
        assert_eq!(Instant(i64::MAX).unix_us(), i64::MAX);
        assert_eq!(Span::from_us(0), None);
    }
}
