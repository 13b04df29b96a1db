//! Lengths of time counted in doubling buckets: bounded, cheap, and exact enough to size a window by.

/// Buckets of a histogram: below one second, then doubling; the last has no upper end.
pub const BUCKETS: usize = 32;

const SECOND_US: i64 = 1_000_000;

/// The bucket of a length in microseconds.
pub fn bucket(us: i64) -> usize {
    let seconds = (us / SECOND_US).max(0).unsigned_abs();
    let doublings = u64::BITS - seconds.leading_zeros();
    usize::try_from(doublings).map_or(BUCKETS - 1, |at| at.min(BUCKETS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_double_from_a_second_on() {
        let of_s = |seconds: i64| bucket(seconds * SECOND_US);
        assert_eq!(bucket(-5), 0);
        assert_eq!(bucket(SECOND_US - 1), 0);
        assert_eq!((of_s(1), of_s(2), of_s(3), of_s(4)), (1, 2, 2, 3));
        assert_eq!(of_s(86_400), 17);
        assert_eq!(of_s(1 << 30), BUCKETS - 1);
        assert_eq!(bucket(i64::MAX), BUCKETS - 1);
    }
}
