//! Numbers, spans, moments and names as people read them.
//!
//! Reads no clock and no locale: times are UTC, thousands are separated by commas. A name is never shortened without a
//! mark, and none of its characters is invisible.

use std::borrow::Cow;

/// How many characters of a name are shown; a longer one keeps its beginning and its end.
pub(crate) const NAME_CHARS_MAX: usize = 64;
const NAME_TAIL_CHARS: usize = 20;

/// Longer spans are not told apart.
pub(crate) const SPAN_S_MAX: f64 = 1_000.0 * YEAR_S;
pub(crate) const DAY_S: f64 = 86_400.0;
/// As PostgreSQL counts it in `extract(epoch from interval)`.
pub(crate) const YEAR_S: f64 = 365.25 * DAY_S;

/// Seconds in a unit, its sign, its word.
const UNITS: [(f64, &str, &str); 5] = [
    (YEAR_S, "y", "year"),
    (DAY_S, "d", "day"),
    (3_600.0, "h", "hour"),
    (60.0, "min", "minute"),
    (1.0, "s", "second"),
];

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// 1234567 is `1,234,567`.
pub(crate) fn count(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::from(if number < 0 { "−" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `count(number)` with its noun, which takes an s where there is not one of it.
pub(crate) fn counted(number: i64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), plural(number == 1))
}

/// As `pg_size_pretty` would: `1,234 kB`.
pub(crate) fn bytes(number: i64) -> String {
    let mut left = number;
    for unit in ["bytes", "kB", "MB", "GB"] {
        if left.unsigned_abs() < 10 * 1_024 {
            return format!("{} {unit}", count(left));
        }
        left /= 1_024;
    }
    format!("{} TB", count(left))
}

/// At most two units that follow each other: `3 d 4 h`, `250 ms`.
pub(crate) fn span(seconds: f64) -> String {
    if seconds >= SPAN_S_MAX {
        return "over 1,000 y".to_owned();
    }
    if let Some((number, unit)) = short_span(seconds) {
        return format!(
            "{number} {}",
            if unit == "millisecond" { "ms" } else { "s" }
        );
    }
    let parts = whole_units(seconds);
    let first = parts.iter().position(|part| *part > 0).unwrap_or(4);
    let texts: Vec<String> = (first..(first + 2).min(UNITS.len()))
        .filter(|at| parts[*at] > 0)
        .map(|at| format!("{} {}", count(parts[at]), UNITS[at].1))
        .collect();
    texts.join(" ")
}

/// All units, in full: `1 day 30 minutes`.
pub(crate) fn span_in_full(seconds: f64) -> String {
    if seconds >= SPAN_S_MAX {
        return "more than 1,000 years".to_owned();
    }
    if let Some((number, unit)) = short_span(seconds) {
        return format!("{number} {unit}{}", plural(number == "1"));
    }
    let texts: Vec<String> = whole_units(seconds)
        .into_iter()
        .zip(UNITS)
        .filter(|(number, _)| *number > 0)
        .map(|(number, (_, _, word))| counted(number, word))
        .collect();
    texts.join(" ")
}

/// Below ten seconds fractions matter.
fn short_span(seconds: f64) -> Option<(String, &'static str)> {
    if seconds.is_nan() || seconds <= 0.0 {
        Some(("0".to_owned(), "second"))
    } else if seconds < 0.9995 {
        let milliseconds = (seconds * 1_000.0).round();
        let number = if milliseconds < 1.0 {
            "<1".to_owned()
        } else {
            milliseconds.to_string()
        };
        Some((number, "millisecond"))
    } else if seconds < 9.95 {
        Some((((seconds * 10.0).round() / 10.0).to_string(), "second"))
    } else {
        None
    }
}

fn whole_units(seconds: f64) -> [i64; 5] {
    let mut left = seconds.min(SPAN_S_MAX).round();
    UNITS.map(|(unit_s, _, _)| {
        let number = (left / unit_s).floor();
        left -= number * unit_s;
        // At most SPAN_S_MAX, which fits.
        number as i64
    })
}

fn plural(is_one: bool) -> &'static str {
    if is_one { "" } else { "s" }
}

/// A moment, as seconds since 1970 in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(crate) i64);

impl Moment {
    /// Reads ISO 8601 as PostgreSQL writes it: `2026-12-02T17:00:00.5+01:00`. None for anything else, infinity too.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (date, time) = text.trim().split_once(['T', ' '])?;
        let mut date = date.splitn(3, '-').map(digits);
        let (year, month, day) = (date.next()??, date.next()??, date.next()??);
        let zone_at = time.find(['Z', '+', '-']).unwrap_or(time.len());
        let (clock, zone) = time.split_at(zone_at);
        let clock = clock.split('.').next()?;
        let time_s = clock_s(clock)?;
        let offset_s = match zone.as_bytes() {
            [] | b"Z" => 0,
            [b'-', ..] => -clock_s(&zone[1..])?,
            _ => clock_s(&zone[1..])?,
        };
        let is_possible =
            (1..=9_999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
        is_possible.then(|| Self(days_of(year, month, day) * 86_400 + time_s - offset_s))
    }

    /// `2026-12-02 17:00 UTC`.
    pub(crate) fn in_full(self) -> String {
        let (year, month, day) = self.date();
        let (hour, minute) = (
            self.0.rem_euclid(86_400) / 3_600,
            self.0.rem_euclid(3_600) / 60,
        );
        format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
    }

    /// `2 Dec`.
    pub(crate) fn day(self) -> String {
        let (_, month, day) = self.date();
        let month = usize::try_from(month - 1)
            .ok()
            .and_then(|at| MONTHS.get(at));
        format!("{day} {}", month.copied().unwrap_or_default())
    }

    /// How many days or hours, counted from 1970.
    pub(crate) fn number_of(self, unit_s: i64) -> i64 {
        self.0.div_euclid(unit_s)
    }

    /// The inverse of [`days_of`]: "chrono-Compatible Low-Level Date Algorithms", H. Hinnant, `civil_from_days`.
    fn date(self) -> (i64, i64, i64) {
        let days = self.number_of(86_400) + 719_468;
        let era = days.div_euclid(146_097);
        let of_era = days.rem_euclid(146_097);
        let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        (year + era * 400 + i64::from(month <= 2), month, day)
    }
}

/// Days since 1970: "chrono-Compatible Low-Level Date Algorithms", H. Hinnant, `days_from_civil`.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year.div_euclid(400) * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// `17:30`, `17:30:05`, `1730` and `17` in seconds.
fn clock_s(text: &str) -> Option<i64> {
    let text = text.replace(':', "");
    let part = |at: usize| match text.get(at..at + 2) {
        Some(two) => digits(two),
        None if at > 0 && text.len() == at => Some(0),
        None => None,
    };
    let seconds = if text.len() > 4 { part(4)? } else { 0 };
    let minutes = if text.len() > 2 { part(2)? } else { 0 };
    (text.len() <= 6).then_some(part(0)? * 3_600 + minutes * 60 + seconds)
}

fn digits(text: &str) -> Option<i64> {
    let is_number = (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// A moment in words; what is not one is shown as it came.
pub(crate) fn moment(text: &str) -> String {
    Moment::parse(text).map_or_else(|| short(text).into_owned(), Moment::in_full)
}

/// The text with every character that could not be seen, or that turns others around, made visible.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    shown(text, |_| false)
}

/// The same for text of several lines.
pub(crate) fn visible_lines(text: &str) -> Cow<'_, str> {
    shown(text, |char| matches!(char, '\n' | '\t'))
}

/// A name: visible, and not longer than [`NAME_CHARS_MAX`].
pub(crate) fn short(name: &str) -> Cow<'_, str> {
    if !is_long(name) {
        return visible(name);
    }
    let tail_at = name
        .char_indices()
        .rev()
        .nth(NAME_TAIL_CHARS - 1)
        .map_or(0, |(at, _)| at);
    let head_at = name
        .char_indices()
        .nth(NAME_CHARS_MAX - NAME_TAIL_CHARS - 1)
        .map_or(0, |(at, _)| at);
    format!(
        "{}…{}",
        visible(&name[..head_at]),
        visible(&name[tail_at..])
    )
    .into()
}

/// Does [`short`] leave out a part of it?
pub(crate) fn is_long(name: &str) -> bool {
    name.chars().nth(NAME_CHARS_MAX).is_some()
}

fn shown(text: &str, is_plain: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(|char| is_unseen(char) && !is_plain(char)) {
        return text.into();
    }
    let mut seen = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            char if is_plain(char) || !is_unseen(char) => seen.push(char),
            // The Control Pictures block has the C0 controls in their order.
            '\0'..='\x1f' => seen.extend(char::from_u32(0x2400 + u32::from(char))),
            '\x7f' => seen.push('␡'),
            _ => seen.extend(char.escape_unicode()),
        }
    }
    seen.into()
}

/// Controls, invisible spaces and marks that change direction. Joiners are left: emoji and some scripts need them.
fn is_unseen(char: char) -> bool {
    matches!(char,
        '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_thousands_separators() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (-1_234_567, "−1,234,567"),
            (i64::MIN, "−9,223,372,036,854,775,808"),
        ] {
            assert_eq!(count(number), text);
        }
        assert_eq!(counted(1, "key"), "1 key");
        assert_eq!(counted(0, "key"), "0 keys");
    }

    #[test]
    fn bytes_are_those_of_pg_size_pretty() {
        assert_eq!(bytes(10_239), "10,239 bytes");
        assert_eq!(bytes(10_240), "10 kB");
        assert_eq!(bytes(i64::MAX), "8,388,607 TB");
    }

    #[test]
    fn spans_have_the_units_that_matter() {
        for (seconds, compact, full) in [
            (f64::NAN, "0 s", "0 seconds"),
            (-5.0, "0 s", "0 seconds"),
            (1e-9, "<1 ms", "<1 milliseconds"),
            (0.25, "250 ms", "250 milliseconds"),
            (0.9999, "1 s", "1 second"),
            (3.24, "3.2 s", "3.2 seconds"),
            (9.96, "10 s", "10 seconds"),
            (3_599.7, "1 h", "1 hour"),
            (88_200.0, "1 d", "1 day 30 minutes"),
            (273_600.0, "3 d 4 h", "3 days 4 hours"),
            (2_592_000.0, "30 d", "30 days"),
            (100.0 * YEAR_S, "100 y", "100 years"),
            (f64::MAX, "over 1,000 y", "more than 1,000 years"),
        ] {
            assert_eq!(span(seconds), compact);
            assert_eq!(span_in_full(seconds), full);
        }
    }

    #[test]
    fn moments_are_told_in_utc() {
        for (text, full) in [
            ("1970-01-01T00:00:00Z", "1970-01-01 00:00 UTC"),
            ("2026-12-02T18:40:59.999999+00:00", "2026-12-02 18:40 UTC"),
            ("2026-12-02 00:10:00+01", "2026-12-01 23:10 UTC"),
            ("2024-02-29T23:30:00-00:30", "2024-03-01 00:00 UTC"),
            ("0001-03-01T00:00:00Z", "0001-03-01 00:00 UTC"),
            ("9999-12-31T23:59:59Z", "9999-12-31 23:59 UTC"),
            ("1900-02-28T12:00:00+0530", "1900-02-28 06:30 UTC"),
        ] {
            assert_eq!(moment(text), full);
        }
        for text in [
            "",
            "infinity",
            "T",
            "2026-12-02",
            "2026-13-02T00:00:00Z",
            "2026-12-02Té",
            "x-y-zT1:2:3",
            "10000-01-01T00:00:00Z",
        ] {
            assert_eq!(Moment::parse(text), None, "{text}");
        }
        assert_eq!(moment("infinity"), "infinity");
        assert_eq!(Moment(0).day(), "1 Jan");
    }

    #[test]
    fn nothing_in_a_name_is_invisible() {
        assert_eq!(visible("a\n\0\x7f\u{202e}b"), "a␊␀␡\\u{202e}b");
        assert_eq!(visible_lines("a\n\tb\r"), "a\n\tb␍");
        assert_eq!(visible("שלום 👩‍🚀"), "שלום 👩‍🚀");
    }

    #[test]
    fn long_names_keep_both_ends() {
        let name = format!("order/{}/0001", "é".repeat(2_000));
        assert!(is_long(&name));
        assert_eq!(short(&name).chars().count(), NAME_CHARS_MAX);
        assert!(short(&name).starts_with("order/é") && short(&name).ends_with("é/0001"));
        let name = "k".repeat(NAME_CHARS_MAX);
        assert_eq!(short(&name), name);
    }
}
