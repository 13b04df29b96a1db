//! The pictures whose axis is the calendar: what happened in the last seven days by hour, and the coming days on which
//! windows end.
//!
//! An hour outside of the seven days is left out. Each picture has its numbers in words beside it.

use std::fmt::Write;

use maud::{Markup, html};

use crate::charts::percent;
use crate::model::{Activity, Expiries};
use crate::words::{Moment, count, counted};

const HOURS: usize = 7 * 24;
const HOURS_I64: i64 = HOURS as i64;
/// The height of a picture of the week.
const HEIGHT: i64 = 44;
/// The least that can be told from nothing.
const HEIGHT_MIN: i64 = 2;
const DAY_BARS_MAX: i64 = 45;
const STRIP_DAYS: i64 = 7;

/// The last seven days by hour, oldest first.
struct Week {
    first_hour: i64,
    claims: [i64; HOURS],
    executes: [i64; HOURS],
    replays: [i64; HOURS],
    pruned: [i64; HOURS],
}

impl Week {
    fn until(now: Moment, activity: &[Activity]) -> Self {
        let first_hour = now.number_of(3_600) - HOURS_I64 + 1;
        let mut week = Self {
            first_hour,
            claims: [0; HOURS],
            executes: [0; HOURS],
            replays: [0; HOURS],
            pruned: [0; HOURS],
        };
        for hour in activity {
            let at = Moment::parse(&hour.at)
                .and_then(|at| usize::try_from(at.number_of(3_600) - first_hour).ok());
            let Some(at) = at.filter(|at| *at < HOURS) else {
                continue;
            };
            for (series, number) in [
                (&mut week.claims, hour.claims),
                (&mut week.executes, hour.executes),
                (&mut week.replays, hour.replays),
                (&mut week.pruned, hour.pruned),
            ] {
                series[at] = series[at].saturating_add(number.max(0));
            }
        }
        week
    }

    /// The days that have an hour in the week: first hour within it, hours of it within it.
    fn days(&self) -> impl Iterator<Item = (usize, usize)> {
        let to_midnight = usize::try_from(24 - self.first_hour.rem_euclid(24)).unwrap_or(24);
        let starts = std::iter::once(0).chain((to_midnight..HOURS).step_by(24));
        starts.map(move |start| {
            let end = if start == 0 { to_midnight } else { start + 24 };
            (start, end.min(HOURS) - start)
        })
    }

    fn day_name(&self, hour: usize) -> String {
        Moment((self.first_hour + i64::try_from(hour).unwrap_or(0)) * 3_600).day()
    }
}

/// Claims, replays and pruned outcomes of the last seven days, each on a scale of its own.
pub(crate) fn week(activity: &[Activity], now: Option<Moment>) -> Markup {
    let latest = || {
        activity
            .iter()
            .filter_map(|hour| Moment::parse(&hour.at))
            .max()
    };
    let Some(now) = now.or_else(latest) else {
        return html! { p.none { "nothing happened in the last seven days" } };
    };
    let week = Week::until(now, activity);
    let is_empty = [&week.claims, &week.executes, &week.replays, &week.pruned]
        .iter()
        .all(|series| sum(*series) == 0);
    if is_empty {
        return html! { p.none { "nothing happened in the last seven days" } };
    }
    let executed = format!(", {} of them executed", count(sum(&week.executes)));
    html! {
        (strip(&week, "claim", &executed, &[("series claims", &week.claims), ("series executes", &week.executes)]))
        (strip(&week, "replay", "", &[("series replays", &week.replays)]))
        (strip(&week, "pruned outcome", "", &[("series pruned", &week.pruned)]))
        svg.days aria-hidden="true" height="18" {
            @for (at, (start, _)) in week.days().enumerate().skip(1) {
                text class=[(at % 2 == 0).then_some("wide")] x=(percent(of_week(start))) y="13" { (week.day_name(start)) }
            }
        }
    }
}

/// One picture: its first series also gives the scale and the words.
fn strip(week: &Week, noun: &str, more: &str, series: &[(&str, &[i64; HOURS])]) -> Markup {
    let main = series.first().map_or([0; HOURS], |(_, hours)| **hours);
    let most = series
        .iter()
        .flat_map(|(_, hours)| hours.iter().copied())
        .max()
        .unwrap_or(0);
    let words = match sum(&main) {
        0 => format!("no {noun}"),
        all => format!(
            "{}{more}; at most {} in an hour",
            counted(all, noun),
            count(most)
        ),
    };
    html! {
        p.strip { (words) }
        svg.strip role="img" aria-label={ (noun) "s by hour, last seven days" } viewBox={ "0 0 " (HOURS) " " (HEIGHT) }
            preserveAspectRatio="none" {
            @for (class, hours) in series { path class=(class) d=(steps(*hours, most)) {} }
            @for (start, hours) in week.days() {
                line x1=(start) x2=(start) y2=(HEIGHT) {}
                rect x=(start) width=(hours) height=(HEIGHT) {
                    title { (week.day_name(start)) ": " (counted(sum(&main[start..start + hours]), noun)) }
                }
            }
        }
    }
}

/// The outline of a series that keeps its value for one hour; equal hours are one step. Relative, as that is shorter.
fn steps(hours: &[i64], most: i64) -> String {
    let mut path = format!("M0 {HEIGHT}");
    let (mut from, mut last) = (0, 0);
    for (at, number) in hours.iter().enumerate() {
        let height = height(*number, most);
        if height != last {
            let _ = write!(path, "h{}v{}", at - from, last - height);
            (from, last) = (at, height);
        }
    }
    let _ = write!(path, "H{}V{HEIGHT}Z", hours.len());
    path
}

/// From 0 to [`HEIGHT`].
fn height(number: i64, most: i64) -> i64 {
    if number <= 0 || most <= 0 {
        return 0;
    }
    let height = (HEIGHT as f64 * number as f64 / most as f64).round();
    (height as i64).clamp(HEIGHT_MIN, HEIGHT)
}

fn of_week(hour: usize) -> f64 {
    100.0 * hour as f64 / HOURS as f64
}

fn sum(numbers: &[i64]) -> i64 {
    numbers
        .iter()
        .fold(0, |sum, number| sum.saturating_add(*number))
}

/// The coming days on which windows end. Many days are joined, so that at most [`DAY_BARS_MAX`] bars are drawn.
pub(crate) fn coming(expiries: &[Expiries], now: Option<Moment>) -> Markup {
    let mut days: Vec<(i64, i64)> = expiries
        .iter()
        .filter(|day| day.count > 0)
        .filter_map(|day| Some((Moment::parse(&day.at)?.number_of(86_400), day.count)))
        .collect();
    days.sort_unstable();
    let (Some(&(earliest, _)), Some(&(last, _))) = (days.first(), days.last()) else {
        return html! { p.none { "no window ends in the coming days" } };
    };
    let first = now.map_or(earliest, |now| now.number_of(86_400));
    let last = last.max(first + STRIP_DAYS - 1);
    let days_per_bar = (last - first) / DAY_BARS_MAX + 1;
    let bars = usize::try_from((last - first) / days_per_bar + 1).unwrap_or(1);
    let mut counts = vec![0_i64; bars];
    let mut overdue = 0_i64;
    for (day, number) in days {
        match usize::try_from((day - first).div_euclid(days_per_bar)) {
            Ok(at) => counts[at] = counts[at].saturating_add(number),
            Err(_) => overdue = overdue.saturating_add(number),
        }
    }
    let most = counts.iter().copied().max().unwrap_or(0);
    let unit = if days_per_bar == 1 {
        "a day".to_owned()
    } else {
        format!("{} days", count(days_per_bar))
    };
    let words = format!(
        "{} in {}; at most {} in {unit}",
        counted(sum(&counts), "window end"),
        counted(last - first + 1, "day"),
        count(most)
    );
    let name = |bar: usize| {
        Moment((first + i64::try_from(bar).unwrap_or(0) * days_per_bar) * 86_400).day()
    };
    let width = 100.0 / bars as f64;
    html! {
        p.strip { (words) @if overdue > 0 { ", " (count(overdue)) " more overdue" } }
        svg.coming role="img" aria-label="window ends by day, coming days" {
            line.base x2="100%" {}
            @for (at, number) in counts.iter().enumerate().filter(|(_, number)| **number > 0) {
                @let height = percent(100.0 * height(*number, most) as f64 / HEIGHT as f64);
                rect x=(percent(width * (at as f64 + 0.1))) width=(percent(width * 0.8)) height=(height) {
                    title { @if days_per_bar > 1 { (unit) " from " } (name(at)) ": " (count(*number)) }
                }
            }
        }
        svg.days aria-hidden="true" height="18" {
            @for (nth, at) in (0..bars).step_by(bars.div_ceil(6)).enumerate() {
                text class=[(nth % 2 == 1).then_some("wide")] x=(percent(width * at as f64)) y="13" { (name(at)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Moment {
        Moment::parse("2026-12-02T18:40:00Z").expect("a moment")
    }

    fn hour(at: &str, claims: i64) -> Activity {
        Activity {
            at: at.to_owned(),
            claims,
            ..Activity::default()
        }
    }

    #[test]
    fn week_holds_its_hours_and_no_others() {
        let activity = [
            hour("2026-12-02T18:00:00Z", 1),
            hour("2026-11-25T19:00:00Z", 2),
            hour("2026-11-25T18:00:00Z", 4),
            hour("2026-12-02T19:00:00Z", 8),
            hour("infinity", 16),
            hour("2026-12-01T12:00:00Z", -5),
        ];
        let week = Week::until(now(), &activity);
        assert_eq!(
            (week.claims[HOURS - 1], week.claims[0], sum(&week.claims)),
            (1, 2, 3)
        );
        assert_eq!(week.days().map(|(_, hours)| hours).sum::<usize>(), HOURS);
        assert_eq!(week.days().nth(1), Some((5, 24)));
        assert_eq!(week.day_name(5), "26 Nov");
    }

    #[test]
    fn equal_hours_are_one_step_and_little_is_not_nothing() {
        assert_eq!(steps(&[0, 0, 0], 0), "M0 44H3V44Z");
        assert_eq!(
            steps(&[0, 250, 250, 1_000, 1], 1_000),
            "M0 44h1v-11h2v-33h1v42H5V44Z"
        );
        assert_eq!(height(i64::MAX, 1), HEIGHT);
    }

    #[test]
    fn far_days_are_joined_and_past_ones_are_overdue() {
        let day = |at: &str| Expiries {
            at: at.to_owned(),
            count: 3,
        };
        let page = coming(
            &[
                day("9999-12-31T00:00:00Z"),
                day("2026-12-01T00:00:00Z"),
                day("2026-12-02T00:00:00Z"),
            ],
            Some(now()),
        );
        let page = page.into_string();
        assert!(
            page.contains("3 more overdue") && page.contains("6 window ends"),
            "{page}"
        );
        assert!(page.matches("<rect").count() <= DAY_BARS_MAX as usize);
        assert!(
            coming(&[], Some(now()))
                .into_string()
                .contains("no window ends")
        );
        assert!(
            coming(&[day("2026-12-01T00:00:00Z")], None)
                .into_string()
                .contains("3 window ends")
        );
    }
}
