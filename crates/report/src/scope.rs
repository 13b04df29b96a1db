//! What the page says of one scope: its window, the advice, the pictures, the open keys, the counters.
//!
//! Judges nothing itself: verdicts and reasons are those of `idem_window_advice`.

use maud::{Markup, html};

use crate::charts::{self, Axis};
use crate::model::{Gauges, Scope, Verdict};
use crate::timeline;
use crate::words::{Moment, bytes, count, counted, moment, short, span, span_in_full, visible};

/// The counters, by what they are about. One that is not here is shown with the last group.
const COUNTER_GROUPS: [(&str, &[&str]); 5] = [
    (
        "claims",
        &[
            "claims",
            "executes",
            "reconciles",
            "replays",
            "rejections",
            "in_progress",
            "mismatches",
        ],
    ),
    (
        "finishes",
        &[
            "completed",
            "failed_not_applied",
            "failed_unknown",
            "failed_rejected",
            "released",
        ],
    ),
    (
        "leases",
        &[
            "takeovers",
            "fences_lost",
            "leases_expired",
            "late_finishes",
        ],
    ),
    (
        "doubt and outbox",
        &["unknown", "escalated", "enqueued", "dispatched"],
    ),
    ("windows", &["pruned", "pruned_alive", "late_retries"]),
];

/// How much somebody should look at a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Attention {
    None,
    Soon,
    Now,
}

pub(crate) fn attention(scope: &Scope) -> Attention {
    let of_verdict = match scope.advice.verdict {
        Verdict::TooShort => Attention::Now,
        Verdict::Near | Verdict::Other(_) => Attention::Soon,
        Verdict::Ok | Verdict::NoEvidence => Attention::None,
    };
    let of_keys = match scope.gauges {
        Gauges {
            escalated_keys: 1..,
            ..
        } => Attention::Now,
        Gauges {
            unknown_keys: 1.., ..
        } => Attention::Soon,
        _ => Attention::None,
    };
    of_verdict.max(of_keys)
}

/// A class and words for what the advice says.
pub(crate) fn verdict(verdict: &Verdict) -> (&'static str, String) {
    match verdict {
        Verdict::Ok => ("ok", "long enough".to_owned()),
        Verdict::Near => ("warning", "barely long enough".to_owned()),
        Verdict::TooShort => ("critical", "too short".to_owned()),
        Verdict::NoEvidence => ("quiet", "no evidence yet".to_owned()),
        Verdict::Other(word) => ("quiet", short(word).into_owned()),
    }
}

/// A window as people say it.
pub(crate) fn window(window_s: Option<f64>) -> String {
    window_s.map_or_else(|| "for ever".to_owned(), span_in_full)
}

/// All about a scope, below its heading.
pub(crate) fn body(scope: &Scope, now: Option<Moment>, ages_axis: Axis, open_max: usize) -> Markup {
    html! {
        p.lead { (guards(scope)) }
        (advice(scope))
        (gauges(&scope.gauges))
        figure {
            figcaption {
                h4 { "Window against observed repeats" }
                p {
                    "How long after the first claim of its key a repeat came. Both axes are logarithmic."
                    @let late = charts::late_repeats(scope);
                    @if late > 0 { strong { " " (counted(late, "repeat")) " came later than the window" } ": red." }
                }
            }
            (charts::window(scope))
        }
        div.pair {
            figure {
                figcaption { h4 { "Last seven days" } p { "By hour, in UTC." } }
                (timeline::week(&scope.activity, now))
            }
            figure {
                figcaption { h4 { "Windows that end" } p { "By day, in UTC. From then on these keys may be pruned." } }
                (timeline::coming(&scope.expiries, now))
            }
        }
        (open(scope, ages_axis, open_max))
        (counters(scope))
    }
}

fn guards(scope: &Scope) -> Markup {
    html! {
        @match scope.window_s {
            Some(window_s) => {
                "An outcome guards its key for " strong { (span_in_full(window_s)) } "."
                @if let Some(guard_s) = scope.guard_s {
                    " For another " strong { (span_in_full(guard_s)) } " a late claim is recognised."
                } @else { " After that a late claim is not recognised." }
            }
            None => { "An outcome guards its key " strong { "for ever" } "." }
        }
        @match scope.effect_kind.as_str() {
            "external" => " Effects are outside of the database.",
            "keyed" => " Effects are in a system that takes our keys.",
            "local" => " Effects are in this database.",
            "" => {}
            word => { " Kind of effect: " (short(word)) "." }
        }
        @if !scope.owner.is_empty() { " Owner: " bdi { (short(&scope.owner)) } "." }
    }
}

fn advice(scope: &Scope) -> Markup {
    let (class, words) = verdict(&scope.advice.verdict);
    html! {
        div.advice.(class) {
            p {
                strong { "The window: " (words) }
                @if let Some(recommended_s) = scope.advice.recommended_s {
                    ". Recommended: " strong { (span_in_full(recommended_s)) }
                }
                "."
            }
            @if !scope.advice.reasons.is_empty() {
                ul { @for reason in &scope.advice.reasons { li { p { (visible(reason)) } } } }
            }
            @if let Some(warning) = &scope.advice.warning { p.warning { strong { "Warning: " } (visible(warning)) } }
        }
    }
}

fn gauges(gauges: &Gauges) -> Markup {
    let next = gauges
        .next_expiry_at
        .as_deref()
        .map_or_else(|| "none".to_owned(), moment);
    let lag = gauges.prune_lag_s.map_or_else(|| "none".to_owned(), span);
    facts(&[
        ("open keys", count(gauges.open_keys), None),
        ("in flight", count(gauges.in_flight), None),
        ("queued", count(gauges.queued), None),
        (
            "unknown",
            count(gauges.unknown_keys),
            (gauges.unknown_keys > 0).then_some("warning"),
        ),
        (
            "escalated",
            count(gauges.escalated_keys),
            (gauges.escalated_keys > 0).then_some("critical"),
        ),
        ("outcomes", count(gauges.outcomes), None),
        ("size", bytes(gauges.bytes), None),
        ("next window end", next, None),
        ("pruning lags by", lag, None),
    ])
}

/// Numbers under their names; the last part is a class where one should stand out.
pub(crate) fn facts(facts: &[(&str, String, Option<&str>)]) -> Markup {
    html! { dl.facts { @for (name, value, class) in facts { div { dt { (name) } dd class=[class] { (value) } } } } }
}

fn open(scope: &Scope, axis: Axis, open_max: usize) -> Markup {
    let all = scope
        .gauges
        .open_keys
        .max(i64::try_from(scope.open.len()).unwrap_or(i64::MAX));
    let shown = scope.open.len().min(open_max);
    html! {
        section.open {
            h4 { "Open keys by age" }
            @if all == 0 { p.none { "nothing is open" } }
            @else if shown == 0 { p.none { (counted(all, "key")) " open, not listed" } }
            @else {
                p {
                    @if i64::try_from(shown) == Ok(all) { (counted(all, "key")) } @else { "The oldest " (shown) " of " (counted(all, "key")) }
                    ", on a logarithmic axis."
                }
                (charts::ages(&scope.open, axis, open_max))
            }
        }
    }
}

fn counters(scope: &Scope) -> Markup {
    let since = scope
        .counted_since
        .as_deref()
        .map(|since| format!("Since {}.", moment(since)));
    html! {
        section {
            h4 { "Counters" }
            @match &scope.counters {
                Some(counters) => {
                    @if let Some(since) = since { p { (since) } }
                    div.counters {
                        @for (at, (about, names)) in COUNTER_GROUPS.into_iter().enumerate() {
                            @let is_last = at + 1 == COUNTER_GROUPS.len();
                            table {
                                thead { tr { th scope="col" { (about) } th scope="col" { "count" } } }
                                tbody {
                                    @for name in names { @if let Some(number) = counters.get(*name) { (counter(name, *number)) } }
                                    @if is_last {
                                        @for (name, number) in counters.iter().filter(|(name, _)| !is_grouped(name)) {
                                            (counter(name, *number))
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
                None => p.none { (visible(scope.counters_note.as_deref().unwrap_or("nothing is counted"))) }
            }
        }
    }
}

fn counter(name: &str, number: Option<i64>) -> Markup {
    let words = short(name).replace('_', " ");
    html! {
        tr class=[(number == Some(0)).then_some("zero")] {
            th scope="row" { (words) }
            td { (number.map_or_else(|| "not counted".to_owned(), count)) }
        }
    }
}

fn is_grouped(name: &str) -> bool {
    COUNTER_GROUPS
        .iter()
        .any(|(_, names)| names.contains(&name))
}
