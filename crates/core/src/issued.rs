//! When a key was made, read from the key itself: UUID version 7 (RFC 9562) and ULID carry their time.

use crate::time::Instant;
use ulid::Ulid;
use uuid::Uuid;

/// How a key carries its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyTime {
    /// A UUID of version 7.
    Uuidv7,
    /// A ULID.
    Ulid,
}

/// The time in a key of this form; `None` where the key is no such thing.
pub fn of_key(key: &str, form: KeyTime) -> Option<Instant> {
    let unix_ms = match form {
        KeyTime::Uuidv7 => {
            let id = Uuid::try_parse(key).ok()?;
            if id.get_version_num() != 7 || id.get_variant() != uuid::Variant::RFC4122 {
                return None;
            }
            let (high, middle, _, _) = id.as_fields();
            u64::from(high) << 16 | u64::from(middle)
        }
        // 26 digits of 5 bits hold more than 128 bits: the specification refuses what overflows, the crate does not.
        KeyTime::Ulid if key > "8" => return None,
        KeyTime::Ulid => Ulid::from_string(key).ok()?.timestamp_ms(),
    };
    // 48 bits of milliseconds.
    i64::try_from(unix_ms).ok().map(Instant::from_unix_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_9562_tells_its_time() {
        // RFC 9562, appendix A.6: Tuesday, February 22, 2022 2:22:22.00 PM GMT-05:00.
        let made_at = of_key("017F22E2-79B0-7CC3-98C4-DC0C0C07398F", KeyTime::Uuidv7);
        assert_eq!(made_at, Some(Instant::from_unix_ms(1_645_557_742_000)));
    }

    #[test]
    fn the_example_of_the_ulid_specification_tells_its_time() {
        let made_at = of_key("01ARZ3NDEKTSV4RRFFQ69G5FAV", KeyTime::Ulid);
        assert_eq!(made_at, Some(Instant::from_unix_ms(1_469_922_850_259)));
        assert_eq!(of_key("01arz3ndektsv4rrffq69g5fav", KeyTime::Ulid), made_at);
    }

    #[test]
    fn what_carries_no_time_is_refused() {
        for key in [
            "",
            "order-17",
            "f47ac10b-58cc-4372-a567-0e02b2c3d479", // version 4
            "017F22E2-79B0-7CC3-18C4-DC0C0C07398F", // another variant
            "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        ] {
            assert_eq!(of_key(key, KeyTime::Uuidv7), None, "{key}");
        }
        for key in [
            "",
            "order-17",
            "81ARZ3NDEKTSV4RRFFQ69G5FAV",
            "01ARZ3NDEKTSV4RRFFQ69G5FA",
            "017F22E2-79B0-7CC3-98C4-DC0C0C07398F",
        ] {
            assert_eq!(of_key(key, KeyTime::Ulid), None, "{key}");
        }
    }
}
