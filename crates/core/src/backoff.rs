//! Exponential back-off with jitter: how long to wait before a delivery or a read is tried again.
//!
//! "Equal jitter" of M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog 2015: half of the
//! doubled delay is certain, the other half drawn, so that many that failed together do not come back together.

use crate::time::Span;

/// The wait after the `tries`-th try (from 1): `first` doubled each time, `most` at most, times 0.5 to 1 as
/// `salt` says. The same salt gives the same wait.
pub fn wait_us(first: Span, most: Span, tries: i32, salt: u64) -> i64 {
    let doublings = u32::try_from(tries.saturating_sub(1)).unwrap_or(0).min(62);
    let longest = first
        .us()
        .saturating_mul(1_i64 << doublings)
        .min(most.us())
        .max(2);
    let half = longest / 2;
    let drawn = spread(salt) % u64::try_from(half).unwrap_or(1).max(1);
    half.saturating_add(i64::try_from(drawn).unwrap_or(0))
}

/// Spreads the bits of a number, for a draw that can be repeated: the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
pub fn spread(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_most_and_stays_within_half() {
        let (first, most) = (Span::from_s(1), Span::from_s(3_600));
        for tries in 0..1_000 {
            let doubled = 1_000_000_i64 << u32::try_from(tries - 1).unwrap_or(0).min(20);
            let longest = doubled.min(most.us());
            for salt in 0..20 {
                let wait = wait_us(first, most, tries, salt);
                assert!((longest / 2..=longest).contains(&wait), "{tries} {wait}");
            }
        }
    }

    #[test]
    fn spreads_those_that_failed_together() {
        let waits: std::collections::BTreeSet<i64> = (0..100)
            .map(|salt| wait_us(Span::from_s(1), Span::from_s(60), 3, salt))
            .collect();
        assert!(waits.len() > 95);
    }
}
