//! The pictures whose axis is logarithmic: the window against observed repeats, and the ages of open keys.
//!
//! Coordinates along the axis are percentages, so that a picture fits any width while its text keeps its size. Every
//! number is finite, whatever the document says. A picture never says by colour alone what it says.

use maud::{Markup, html};

use crate::model::{OpenKey, Repeats, Scope, State};
use crate::words::{DAY_S, SPAN_S_MAX, YEAR_S, count, counted, is_long, short, span, visible};

const LABEL_HEIGHT: f64 = 18.0;
const BARS_HEIGHT: f64 = 120.0;
const AXIS_HEIGHT: f64 = 24.0;

/// Seconds, label, and whether it is also shown where there is little room.
const TICKS: [(f64, &str, bool); 11] = [
    (1.0, "1 s", true),
    (10.0, "10 s", false),
    (60.0, "1 min", true),
    (600.0, "10 min", false),
    (3_600.0, "1 h", true),
    (DAY_S, "1 d", true),
    (7.0 * DAY_S, "7 d", false),
    (30.0 * DAY_S, "30 d", true),
    (YEAR_S, "1 y", true),
    (10.0 * YEAR_S, "10 y", true),
    (100.0 * YEAR_S, "100 y", true),
];

/// A logarithmic axis of seconds that begins with a place for what is shorter than one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Axis {
    most_s: f64,
}

impl Axis {
    const LEAST_S: f64 = 0.5;

    /// An axis that reaches a little beyond the longest of these, and to a day at least.
    pub(crate) fn beyond(spans_s: impl Iterator<Item = f64>) -> Self {
        let longest_s = spans_s.fold(DAY_S, f64::max);
        Self {
            most_s: (longest_s * 2.0).min(SPAN_S_MAX),
        }
    }

    /// Where a span is, from 0 to 100.
    fn at(self, span_s: f64) -> f64 {
        let inside_s = span_s.max(Self::LEAST_S).min(self.most_s);
        100.0 * (inside_s / Self::LEAST_S).ln() / (self.most_s / Self::LEAST_S).ln()
    }

    fn ticks(self) -> impl Iterator<Item = Tick> {
        TICKS
            .into_iter()
            .filter(move |(tick_s, _, _)| *tick_s < self.most_s)
            .map(move |(tick_s, label, is_main)| Tick {
                x: self.at(tick_s),
                label,
                is_main,
            })
    }

    /// Lines at the main ticks, as a background: one rule for all pictures of the page that have this axis.
    pub(crate) fn background(self) -> String {
        let lines: Vec<String> = self
            .ticks()
            .filter(|tick| tick.is_main)
            .map(|tick| {
                format!(
                    "linear-gradient(var(--grid),var(--grid)) {}/1px no-repeat",
                    percent(tick.x)
                )
            })
            .collect();
        lines.join(",")
    }

    fn labels(self, y: f64) -> Markup {
        html! {
            @for tick in self.ticks() {
                text.tick.wide[!tick.is_main] x=(percent(tick.x)) y=(pixels(y)) { (tick.label) }
            }
        }
    }
}

struct Tick {
    x: f64,
    label: &'static str,
    is_main: bool,
}

/// A line with a label: an end of the window, of the guard, and so on.
struct Mark {
    at_s: f64,
    class: &'static str,
    label: String,
}

/// The window, and after how long keys were repeated.
pub(crate) fn window(scope: &Scope) -> Markup {
    let mut marks = marks(scope);
    let bars = bars(&scope.repeats);
    let axis = Axis::beyond(
        marks
            .iter()
            .map(|mark| mark.at_s)
            .filter(|at_s| at_s.is_finite())
            .chain(bars.iter().map(|bar| bar.upto_s)),
    );
    let summary = summary(scope, &marks, &bars);
    // A row for each. On the right half labels stand to the left of their lines: there the latest comes first, so that no
    // line begins above a label that it would cross.
    let lefts = marks.partition_point(|mark| axis.at(mark.at_s) <= 50.0);
    marks[lefts..].reverse();
    let top = LABEL_HEIGHT * marks.len() as f64 + 8.0;
    let bottom = top + BARS_HEIGHT;
    let most = bars.iter().map(|bar| bar.count).max().unwrap_or(0);
    let height = |count: i64| BARS_HEIGHT * decades(count) / decades(most);
    html! {
        svg class="plot" role="img" aria-label=(summary) height=(pixels(bottom + AXIS_HEIGHT)) {
            @for power in powers_of_ten(most).filter(|_| most > 0) {
                @let y = pixels(bottom - height(power));
                line x2="100%" y1=(y) y2=(y) {}
                text x="-6" y=(pixels(bottom - height(power) + 4.0)) text-anchor="end" { (compact(power)) }
            }
            line class="base" x2="100%" y1=(pixels(bottom)) y2=(pixels(bottom)) {}
            @for bar in &bars {
                @let (x, end) = (axis.at(bar.over_s), axis.at(bar.upto_s));
                rect.late[bar.is_late(scope.window_s)]
                    x=(percent(x)) width=(percent(end - x))
                    y=(pixels(bottom - height(bar.count))) height=(pixels(height(bar.count))) {
                    title { (bar.words()) }
                }
            }
            @if bars.is_empty() {
                text class="none" x="50%" y=(pixels(bottom - 12.0)) text-anchor="middle" { "no repeat was observed" }
            }
            @for (row, mark) in marks.iter().enumerate() {
                @let (x, y) = (axis.at(mark.at_s), LABEL_HEIGHT * row as f64 + 13.0);
                @let is_right = x > 50.0;
                line class=(mark.class) x1=(percent(x)) x2=(percent(x)) y1=(pixels(y - 10.0)) y2=(pixels(bottom)) {}
                text class=(mark.class) x=(percent(x)) dx=(if is_right { "-6" } else { "6" }) y=(pixels(y))
                    text-anchor=(if is_right { "end" } else { "start" }) { (mark.label) }
            }
            (axis.labels(bottom + 17.0))
        }
    }
}

/// How many repeats surely came after the window.
pub(crate) fn late_repeats(scope: &Scope) -> i64 {
    let late = bars(&scope.repeats)
        .into_iter()
        .filter(|bar| bar.is_late(scope.window_s));
    late.fold(0, |sum, bar| sum.saturating_add(bar.count))
}

/// The ends of what guards a key, in the order of time.
fn marks(scope: &Scope) -> Vec<Mark> {
    let mark = |at_s, class, label| Mark { at_s, class, label };
    let mut marks = Vec::new();
    match scope.window_s {
        Some(window_s) => {
            marks.push(mark(
                window_s,
                "mark window",
                format!("window {}", span(window_s)),
            ));
            if let Some(guard_s) = scope.guard_s.filter(|guard_s| *guard_s > 0.0) {
                let end_s = window_s + guard_s;
                marks.push(mark(
                    end_s,
                    "mark guard",
                    format!("guard ends {}", span(end_s)),
                ));
            }
        }
        None => marks.push(mark(
            f64::INFINITY,
            "mark window",
            "window: for ever".to_owned(),
        )),
    }
    if let Some(recommended_s) = scope.advice.recommended_s {
        let label = format!("recommended {}", span(recommended_s));
        marks.push(mark(recommended_s, "mark recommended", label));
    }
    if let Some(longest_s) = scope.longest_repeat_s {
        let label = format!("longest repeat {}", span(longest_s));
        marks.push(mark(longest_s, "mark longest", label));
    }
    marks.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    marks
}

struct Bar {
    over_s: f64,
    upto_s: f64,
    count: i64,
}

impl Bar {
    fn is_late(&self, window_s: Option<f64>) -> bool {
        window_s.is_some_and(|window_s| self.over_s >= window_s)
    }

    fn words(&self) -> String {
        let from = if self.over_s < 1.0 {
            "up to ".to_owned()
        } else {
            format!("{} to ", span(self.over_s))
        };
        format!(
            "{from}{}: {}",
            span(self.upto_s),
            counted(self.count, "repeat")
        )
    }
}

/// The buckets that have something in them; what is shorter than a second is one. A first bucket that stands alone
/// begins at half its end, as the others would.
fn bars(repeats: &[Repeats]) -> Vec<Bar> {
    let mut bars: Vec<Bar> = Vec::new();
    let mut over_s: Option<f64> = None;
    for Repeats { upto_s, count } in repeats {
        let upto_s = upto_s.clamp(1.0, SPAN_S_MAX);
        let from_s = over_s
            .filter(|over_s| *over_s < upto_s)
            .unwrap_or(upto_s / 2.0);
        match bars.last_mut() {
            Some(last) if last.upto_s >= upto_s => last.count = last.count.saturating_add(*count),
            _ if *count > 0 => bars.push(Bar {
                over_s: from_s,
                upto_s,
                count: *count,
            }),
            _ => {}
        }
        over_s = Some(upto_s);
    }
    bars
}

fn summary(scope: &Scope, marks: &[Mark], bars: &[Bar]) -> String {
    let labels: Vec<&str> = marks.iter().map(|mark| mark.label.as_str()).collect();
    let repeats = bars
        .iter()
        .fold(0_i64, |sum, bar| sum.saturating_add(bar.count));
    let last = bars.last().map_or(String::new(), |bar| {
        format!(", none later than {}", span(bar.upto_s))
    });
    format!(
        "Window of {} against observed repeats: {}. {}{last}.",
        short(&scope.scope),
        labels.join(", "),
        counted(repeats, "repeat")
    )
}

/// How long keys have been open, the oldest first, at most `rows_max` of them. The lines of the axis are the
/// [`Axis::background`] of these pictures.
pub(crate) fn ages(open: &[OpenKey], axis: Axis, rows_max: usize) -> Markup {
    html! {
        ol.ages {
            li.axis aria-hidden="true" { svg height="16" { (axis.labels(12.0)) } }
            @for key in &open[..open.len().min(rows_max)] { (age(key, axis)) }
        }
    }
}

fn age(key: &OpenKey, axis: Axis) -> Markup {
    let (class, state) = state(&key.state);
    let name = visible(&key.key);
    let age = span(key.age_s);
    html! {
        li class=(class) {
            code dir="auto" title=[is_long(&key.key).then_some(&name)] { (short(&key.key)) }
            svg role="img" aria-label={ (state) " for " (age) } {
                title { (name) }
                rect y="4" height="8" width=(percent(axis.at(key.age_s).max(0.5))) {}
            }
            span { (age) }
            small {
                b { (state) }
                @if let Some(ends_s) = key.lease_ends_in_s { " · " (lease(ends_s)) }
                @if let Some(holder) = &key.holder { " · " bdi { (short(holder)) } }
                @if let Some(run) = &key.run { " · run " bdi { (short(run)) } }
            }
        }
    }
}

fn state(state: &State) -> (&'static str, String) {
    match state {
        State::InFlight => ("in-flight", "in flight".to_owned()),
        State::Queued => ("queued", "queued".to_owned()),
        State::Unknown => ("unknown", "unknown".to_owned()),
        State::Escalated => ("escalated", "escalated".to_owned()),
        State::Other(word) => ("other", short(word).into_owned()),
    }
}

fn lease(ends_in_s: f64) -> String {
    if ends_in_s < 0.0 {
        format!("lease ended {} ago", span(-ends_in_s))
    } else {
        format!("lease ends in {}", span(ends_in_s))
    }
}

/// Decades that a count is high: one for 1, two for 10. A single repeat is visible beside a million.
fn decades(count: i64) -> f64 {
    (count.max(1) as f64).log10() + 1.0
}

/// At most four powers of ten up to `most`, evenly apart.
fn powers_of_ten(most: i64) -> impl Iterator<Item = i64> {
    let highest = most.checked_ilog10().unwrap_or(0);
    (0..=highest)
        .step_by(highest as usize / 4 + 1)
        .map(|power| 10_i64.pow(power))
}

/// `10k`, for an axis.
fn compact(power_of_ten: i64) -> String {
    let (unit, sign) = match power_of_ten {
        ..1_000 => (1, ""),
        1_000..1_000_000 => (1_000, "k"),
        1_000_000..1_000_000_000 => (1_000_000, "M"),
        _ => (1_000_000_000, "G"),
    };
    format!("{}{sign}", count(power_of_ten / unit))
}

/// A coordinate in percent.
pub(crate) fn percent(number: f64) -> String {
    format!("{}%", pixels(number))
}

/// A coordinate in tenths, which is finer than a screen.
fn pixels(number: f64) -> String {
    if !number.is_finite() {
        return "0".to_owned();
    }
    ((number * 10.0).round() / 10.0).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeats(buckets: &[(f64, i64)]) -> Vec<Repeats> {
        buckets
            .iter()
            .map(|&(upto_s, count)| Repeats { upto_s, count })
            .collect()
    }

    #[test]
    fn axis_holds_whatever_it_is_asked_for() {
        let axis = Axis::beyond([1e308, f64::NAN, -3.0].into_iter());
        for span_s in [
            f64::NAN,
            f64::NEG_INFINITY,
            -1.0,
            0.0,
            1.0,
            1e9,
            f64::INFINITY,
        ] {
            let at = axis.at(span_s);
            assert!((0.0..=100.0).contains(&at), "{span_s}: {at}");
        }
        let axis = Axis::beyond(std::iter::empty());
        assert!(axis.at(60.0) < axis.at(3_600.0) && axis.at(DAY_S) < 100.0);
    }

    #[test]
    fn buckets_below_a_second_are_one_and_empty_ones_none() {
        let bars = bars(&repeats(&[
            (0.1, 2),
            (0.5, 3),
            (1.0, 1),
            (2.0, 0),
            (4.0, 7),
            (f64::MAX, 1),
        ]));
        let found: Vec<(f64, f64, i64)> = bars
            .iter()
            .map(|bar| (bar.over_s, bar.upto_s, bar.count))
            .collect();
        assert_eq!(found, [(0.5, 1.0, 6), (2.0, 4.0, 7), (4.0, SPAN_S_MAX, 1)]);
    }

    #[test]
    fn counts_that_overflow_are_held_at_the_most() {
        let bars = bars(&repeats(&[(0.1, i64::MAX), (0.2, i64::MAX)]));
        assert_eq!(bars[0].count, i64::MAX);
    }

    #[test]
    fn scale_has_few_powers_of_ten() {
        assert_eq!(powers_of_ten(0).collect::<Vec<_>>(), [1]);
        assert_eq!(
            powers_of_ten(2_000).collect::<Vec<_>>(),
            [1, 10, 100, 1_000]
        );
        for most in [1, 99_999, 1_000_000, i64::MAX] {
            assert!(powers_of_ten(most).count() <= 5);
        }
    }
}
