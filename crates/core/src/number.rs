//! The canonical text of one decimal number.
//!
//! The text is that of RFC 8785, section 3.2.2.3 (ECMA-262, `Number::toString`), wherever that text, read back as a
//! decimal, equals the number. Where it does not, because the nearest double is another number, the exact value is kept
//! in plain decimal. Either way the text *is* the value: equal numbers give equal text, different numbers different text.
//!
//! Never rounds, never passes a value on as `f64`, and never needs more than one pass over the digits.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// The most digits before the decimal point: what PostgreSQL's `numeric` holds.
pub const NUMBER_WHOLE_DIGITS_MAX: usize = 131_072;

/// The most digits after the decimal point: what PostgreSQL's `numeric` holds.
pub const NUMBER_FRACTION_DIGITS_MAX: usize = 16_383;

/// Every double has a text of at most this many significant digits (ECMA-262, `Number::toString`), so that a number
/// with more never equals its RFC 8785 text.
const DOUBLE_DIGITS_MAX: usize = 17;

/// Up to this many significant digits, no two decimals share a double (C's `DBL_DIG`), within the points below.
const DOUBLE_DIGITS_EXACT: usize = 15;

/// The points (see [`Decimal::point`]) for which every decimal lies among the normal doubles.
const DOUBLE_POINTS_NORMAL: std::ops::RangeInclusive<i64> = -306..=308;

/// ECMA-262 writes a number without exponent when its point lies here (`Number::toString`, the cases -6 < n <= 21).
const PLAIN_POINTS: std::ops::RangeInclusive<i64> = -5..=21;

/// Why a text is not a number that has a canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberError {
    /// Not `-`, digits, `.` and digits, `e` and digits, of which only the first digits are required.
    Malformed,
    /// More digits than `numeric` holds before or after the decimal point.
    TooLarge,
}

impl fmt::Display for NumberError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("text is not a decimal number"),
            Self::TooLarge => write!(
                f,
                "number has more than {NUMBER_WHOLE_DIGITS_MAX} digits before or {NUMBER_FRACTION_DIGITS_MAX} digits after the decimal point"
            ),
        }
    }
}

impl std::error::Error for NumberError {}

/// The canonical text of the decimal number `text`, as PostgreSQL's `numeric_out` or a JSON document spells it.
///
/// RFC 8785, section 3.2.2.3, with the exception of DESIGN.md, "Canonical form": a number that its RFC 8785 text does
/// not equal is given exactly, in plain decimal without exponent and without trailing zeros. Borrows `text` where it is
/// canonical already. Leading zeros are accepted.
///
/// ```
/// use idempotency_core::number::canonical_number;
///
/// assert_eq!(canonical_number("4.50").unwrap(), "4.5");
/// assert_eq!(canonical_number("1E30").unwrap(), "1e+30");
/// assert_eq!(canonical_number("9007199254740993").unwrap(), "9007199254740993");
/// ```
pub fn canonical_number(text: &str) -> Result<Cow<'_, str>, NumberError> {
    let spelling = Spelling::parse(text).ok_or(NumberError::Malformed)?;
    let decimal = spelling.decimal();
    if decimal.digits() == 0 {
        return Ok(Cow::Borrowed("0"));
    }
    if !decimal.fits_numeric() {
        return Err(NumberError::TooLarge);
    }
    if !PLAIN_POINTS.contains(&decimal.point) && decimal.equals_its_double() {
        return Ok(Cow::Owned(decimal.with_exponent()));
    }
    // Inside PLAIN_POINTS the RFC 8785 text and the exact plain decimal are the same text.
    if spelling.is_canonical_plain() {
        return Ok(Cow::Borrowed(text));
    }
    Ok(Cow::Owned(decimal.plain()))
}

/// The parts of a number as it was written.
struct Spelling<'a> {
    negative: bool,
    whole: &'a str,
    fraction: &'a str,
    exponent: Option<i64>,
}

impl<'a> Spelling<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let unsigned = text.strip_prefix('-');
        let negative = unsigned.is_some();
        let (whole, mut rest) = split_digits(unsigned.unwrap_or(text))?;
        let mut fraction = "";
        if let Some(after) = rest.strip_prefix('.') {
            (fraction, rest) = split_digits(after)?;
        }
        let mut exponent = None;
        if let Some(after) = rest.strip_prefix(['e', 'E']) {
            let below_zero = after.starts_with('-');
            let (digits, end) = split_digits(after.strip_prefix(['-', '+']).unwrap_or(after))?;
            let size = exponent_size(digits);
            exponent = Some(if below_zero { -size } else { size });
            rest = end;
        }
        rest.is_empty().then_some(Self {
            negative,
            whole,
            fraction,
            exponent,
        })
    }

    /// Whether the text, if not zero, is the only plain spelling of its value: no exponent and no needless zero.
    fn is_canonical_plain(&self) -> bool {
        self.exponent.is_none()
            && (self.whole == "0" || !self.whole.starts_with('0'))
            && !self.fraction.ends_with('0')
    }

    fn decimal(&self) -> Decimal<'a> {
        let exponent = self.exponent.unwrap_or(0);
        let head = self.whole.trim_start_matches('0');
        if head.is_empty() {
            let tail = self.fraction.trim_start_matches('0');
            let zeros = self.fraction.len() - tail.len();
            return Decimal {
                negative: self.negative,
                head: "",
                tail: tail.trim_end_matches('0'),
                point: exponent - as_point(zeros),
            };
        }
        let point = as_point(head.len()) + exponent;
        let tail = self.fraction.trim_end_matches('0');
        let head = if tail.is_empty() {
            head.trim_end_matches('0')
        } else {
            head
        };
        Decimal {
            negative: self.negative,
            head,
            tail,
            point,
        }
    }
}

/// A number as its significant digits, `head` then `tail`, without zeros at either end, and the place of its decimal
/// point: the value is `0.<digits> * 10^point`. One value has exactly one such form, save for the cut between the two.
struct Decimal<'a> {
    negative: bool,
    head: &'a str,
    tail: &'a str,
    /// ECMA-262 calls this `n`.
    point: i64,
}

impl Decimal<'_> {
    /// How many significant digits there are; ECMA-262 calls this `k`. Zero has none.
    fn digits(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    fn fits_numeric(&self) -> bool {
        self.point <= as_point(NUMBER_WHOLE_DIGITS_MAX)
            && as_point(self.digits()) - self.point <= as_point(NUMBER_FRACTION_DIGITS_MAX)
    }

    /// Whether the shortest text of the nearest double, which is what RFC 8785 writes, is this very number.
    fn equals_its_double(&self) -> bool {
        let digits = self.digits();
        if digits > DOUBLE_DIGITS_MAX {
            return false;
        }
        if digits <= DOUBLE_DIGITS_EXACT && DOUBLE_POINTS_NORMAL.contains(&self.point) {
            // No other decimal of so few digits reads as the same double, so the shortest text can only be this one.
            return true;
        }
        let mut text = ShortText::new();
        let exponent = self.point - as_point(digits);
        if write!(text, "{}{}e{exponent}", self.head, self.tail).is_err() {
            return false;
        }
        let Ok(double) = text.as_str().parse::<f64>() else {
            return false;
        };
        let mut shortest = ShortText::new();
        if !double.is_finite() || write!(shortest, "{double:e}").is_err() {
            return false;
        }
        // Rust writes `d.ddde-5`: the shortest digits that read back as the double, the closest to it where several do.
        let Some((mantissa, exponent)) = shortest.as_str().split_once('e') else {
            return false;
        };
        let same_digits = mantissa
            .bytes()
            .filter(|byte| *byte != b'.')
            .eq(self.head.bytes().chain(self.tail.bytes()));
        same_digits && exponent.parse() == Ok(self.point - 1)
    }

    /// `1e+21`, `1.5e-7`: ECMA-262, `Number::toString`, the last two cases.
    fn with_exponent(&self) -> String {
        let mut text = String::with_capacity(self.digits() + "-.e-".len() + "131072".len());
        self.push_sign(&mut text);
        self.push_digits(&mut text, 0, 1);
        if self.digits() > 1 {
            text.push('.');
            self.push_digits(&mut text, 1, self.digits());
        }
        let exponent = self.point - 1;
        text.push_str(if exponent < 0 { "e-" } else { "e+" });
        text.push_str(exponent.unsigned_abs().to_string().as_str());
        text
    }

    /// The exact value without exponent.
    fn plain(&self) -> String {
        let digits = self.digits();
        // `fits_numeric` bounds both: the point by the digits before it, its distance below zero by those after it.
        let whole = usize::try_from(self.point).unwrap_or(0);
        let zeros = usize::try_from(-self.point).unwrap_or(0);
        let mut text = String::with_capacity(digits.max(whole) + zeros + "-0.".len());
        self.push_sign(&mut text);
        if whole == 0 {
            text.push_str("0.");
            push_zeros(&mut text, zeros);
            self.push_digits(&mut text, 0, digits);
        } else if whole >= digits {
            self.push_digits(&mut text, 0, digits);
            push_zeros(&mut text, whole - digits);
        } else {
            self.push_digits(&mut text, 0, whole);
            text.push('.');
            self.push_digits(&mut text, whole, digits);
        }
        text
    }

    fn push_sign(&self, text: &mut String) {
        if self.negative {
            text.push('-');
        }
    }

    /// Appends the significant digits from `from` up to `to`.
    fn push_digits(&self, text: &mut String, from: usize, to: usize) {
        let cut = self.head.len();
        text.push_str(&self.head[from.min(cut)..to.min(cut)]);
        text.push_str(&self.tail[from.max(cut) - cut..to.max(cut) - cut]);
    }
}

/// A text of bounded length on the stack, for what is written on the way to and from a double.
struct ShortText {
    bytes: [u8; Self::BYTES_MAX],
    len: usize,
}

impl ShortText {
    /// 17 digits, a point, `e`, and a signed exponent of seven digits are 27.
    const BYTES_MAX: usize = 32;

    fn new() -> Self {
        Self {
            bytes: [0; Self::BYTES_MAX],
            len: 0,
        }
    }

    fn as_str(&self) -> &str {
        // Only whole strings are appended, so this is never the empty fallback.
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl Write for ShortText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        self.bytes
            .get_mut(self.len..end)
            .ok_or(fmt::Error)?
            .copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// Splits the digits, at least one, off the start of `text`.
fn split_digits(text: &str) -> Option<(&str, &str)> {
    let len = text.bytes().take_while(u8::is_ascii_digit).count();
    (len > 0).then(|| text.split_at(len))
}

/// The size of an exponent, or of the largest that matters: it is added to text lengths, which must not overflow, and
/// is far above any text that could bring it back into the range of `numeric`.
fn exponent_size(digits: &str) -> i64 {
    const SIZE_MAX: i64 = i64::MAX / 4;
    digits.bytes().fold(0i64, |size, digit| {
        size.saturating_mul(10)
            .saturating_add(i64::from(digit - b'0'))
            .min(SIZE_MAX)
    })
}

/// A text length as a place of the decimal point. No text is longer than `isize::MAX` bytes.
fn as_point(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX / 4)
}

fn push_zeros(text: &mut String, count: usize) {
    text.extend(std::iter::repeat_n('0', count));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        canonical_number(text)
            .expect("a decimal number")
            .into_owned()
    }

    #[test]
    fn equal_values_have_one_text() {
        let spellings: [(&str, &[&str]); 9] = [
            (
                "0",
                &[
                    "0",
                    "-0",
                    "0.0",
                    "-0.000",
                    "0e5",
                    "-0E-400",
                    "0e999999999999999999999",
                    "000",
                ],
            ),
            (
                "1",
                &[
                    "1", "1.0", "1e0", "10e-1", "0.1e1", "01", "1E+0", "1.000000",
                ],
            ),
            ("100", &["100", "1E2", "100.00", "0.001e5"]),
            ("-1.5", &["-1.5", "-1.50", "-150e-2", "-0.15E1"]),
            (
                "1e+21",
                &[
                    "1e21",
                    "1000000000000000000000",
                    "1000000000000000000000.0",
                    "10e20",
                ],
            ),
            ("100000000000000000000", &["1e20", "100000000000000000000"]),
            ("0.000001", &["1e-6", "0.0000010"]),
            ("1e-7", &["0.0000001", "1E-7", "0.10e-6"]),
            (
                "9007199254740993",
                &[
                    "9007199254740993",
                    "9007199254740993.0",
                    "9007199254740993e0",
                    "9.007199254740993e15",
                ],
            ),
        ];
        for (text, spelled) in spellings {
            for spelling in spelled {
                assert_eq!(canonical(spelling), text, "{spelling}");
            }
        }
    }

    #[test]
    fn number_text_is_that_of_rfc_8785_where_it_is_exact() {
        // RFC 8785, appendix B, the samples that are equal to their text.
        for text in [
            "5e-324",
            "-5e-324",
            "1.7976931348623157e+308",
            "-1.7976931348623157e+308",
            "9007199254740992",
            "-9007199254740992",
            "295147905179352830000",
            "9.999999999999997e+22",
            "1e+23",
            "1.0000000000000001e+23",
            "999999999999999700000",
            "999999999999999900000",
            "1e+21",
            "9.999999999999997e-7",
            "0.000001",
            "333333333.3333332",
            "333333333.33333325",
            "333333333.3333333",
            "333333333.3333334",
            "333333333.33333343",
            "-0.0000033333333333333333",
            "1424953923781206.2",
            "2.2250738585072014e-308",
            "2.225073858507201e-308",
            "1e-323",
        ] {
            assert_eq!(canonical(text), text);
        }
    }

    #[test]
    fn number_that_no_double_text_equals_keeps_its_exact_value() {
        let huge = format!("1{}", "0".repeat(400));
        let tiny = format!("0.{}1", "0".repeat(399));
        for (text, exact) in [
            ("9007199254740993", "9007199254740993"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("18446744073709551615", "18446744073709551615"),
            ("333333333.33333329", "333333333.33333329"),
            ("0.10000000000000001", "0.10000000000000001"),
            ("123456789012345678901234", "123456789012345678901234"),
            ("1.00000000000000000010", "1.0000000000000000001"),
            ("1e400", &huge),
            ("1e-400", &tiny),
            ("-100e-402", &format!("-{tiny}")),
            // They read as the largest double, as zero and as the smallest double, without being its text.
            (
                "17976931348623157001e289",
                &format!("17976931348623157001{}", "0".repeat(289)),
            ),
            ("2e-324", &format!("0.{}2", "0".repeat(323))),
            ("6e-324", &format!("0.{}6", "0".repeat(323))),
        ] {
            assert_eq!(canonical(text), exact, "{text}");
        }
    }

    #[test]
    fn numbers_of_case_s01() {
        let given = [
            "-0",
            "1e21",
            "1E30",
            "1e-7",
            "4.50",
            "2e-3",
            "333333333.33333329",
            "1e-27",
        ];
        let texts = [
            "0",
            "1e+21",
            "1e+30",
            "1e-7",
            "4.5",
            "0.002",
            "333333333.33333329",
            "1e-27",
        ];
        assert_eq!(given.map(canonical), texts);
    }

    #[test]
    fn canonical_text_is_borrowed() {
        for text in [
            "0",
            "7",
            "-42",
            "1.5",
            "0.000001",
            "12345678901234567890.123",
            "-9007199254740993",
        ] {
            assert!(
                matches!(canonical_number(text), Ok(Cow::Borrowed(same)) if same == text),
                "{text}"
            );
        }
    }

    #[test]
    fn largest_numeric_is_exact() {
        let whole = "1234567890".repeat(13_107) + "12";
        let fraction = "0987654321".repeat(1_638) + "001";
        assert_eq!(
            (whole.len(), fraction.len()),
            (NUMBER_WHOLE_DIGITS_MAX, NUMBER_FRACTION_DIGITS_MAX)
        );
        let text = format!("-{whole}.{fraction}");
        assert_eq!(canonical(&text), text);
        assert_eq!(canonical(&format!("{text}000")), text);
        assert_eq!(canonical("1e131071"), format!("1{}", "0".repeat(131_071)));
        assert_eq!(canonical("1e-16383"), format!("0.{}1", "0".repeat(16_382)));
        for text in [
            "1e131072",
            "1e-16384",
            "1e999999999999999999999",
            "-1e-999999999999999999999",
        ] {
            assert_eq!(canonical_number(text), Err(NumberError::TooLarge), "{text}");
        }
    }

    #[test]
    fn other_text_is_refused() {
        let texts = [
            "",
            "-",
            "+1",
            ".5",
            "1.",
            "1.e1",
            "1e",
            "1e+",
            "1e+-1",
            "--1",
            "1 ",
            " 1",
            "1,5",
            "0x1",
            "NaN",
            "Infinity",
            "-Infinity",
            "1e1.5",
            "1.2.3",
            "１",
            "1e５",
        ];
        for text in texts {
            assert_eq!(
                canonical_number(text),
                Err(NumberError::Malformed),
                "{text:?}"
            );
        }
    }
}
