//! The document as a whole: headline, findings, scopes, runs.
//!
//! The worst comes first. Each list has a share of the page's bytes: what does not fit is counted in words.

use std::cmp::Reverse;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::charts::Axis;
use crate::model::{Finding, Report, Run, Scope, Severity};
use crate::scope::{self, Attention};
use crate::words::{Moment, count, counted, moment, short, span, visible, visible_lines};

/// Together below 20 MB.
const FINDINGS_BYTES_MAX: usize = 600_000;
const OVERVIEW_BYTES_MAX: usize = 600_000;
const SCOPES_BYTES_MAX: usize = 18_000_000;
const RUNS_BYTES_MAX: usize = 600_000;

/// Open keys listed on the whole page, and at least for each scope.
const OPEN_ROWS_MAX: usize = 5_000;
const OPEN_ROWS_MIN: usize = 5;

/// So many scopes are unfolded from the beginning.
const UNFOLDED_MAX: usize = 5;

const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
const STYLE: &str = include_str!("style.css");

pub(crate) fn document(report: &Report) -> Markup {
    let now = Moment::parse(&report.generated_at);
    let mut scopes: Vec<&Scope> = report.scopes.iter().collect();
    scopes.sort_by_key(|scope| Reverse(scope::attention(scope)));
    // One axis for all scopes: bars of the same length are of the same age.
    let ages_s = scopes
        .iter()
        .flat_map(|scope| scope.open.iter().map(|key| key.age_s));
    let ages_axis = Axis::beyond(ages_s);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Idempotency report: " (short(&report.database)) ", " (moment(&report.generated_at)) }
                style { (PreEscaped(STYLE)) ".ages li:not(.axis) svg{background:" (ages_axis.background()) "}" }
            }
            body {
                (headline(report))
                main {
                    (findings(&report.findings))
                    (overview(&scopes))
                    (details(&scopes, now, ages_axis))
                    (runs(&report.runs))
                }
                footer {
                    p { "Made by idem_report() of idempotency " (short(&report.version)) ". All times are UTC. Outcomes and sizes of \
                         large tables are estimates." }
                }
            }
        }
    }
}

fn headline(report: &Report) -> Markup {
    let total = |of: fn(&Scope) -> i64| report.scopes.iter().map(of).fold(0, i64::saturating_add);
    let unknown = total(|scope| scope.gauges.unknown_keys);
    let escalated = total(|scope| scope.gauges.escalated_keys);
    let worker = if report.worker.is_empty() {
        "not known"
    } else {
        &report.worker
    };
    let scopes = i64::try_from(report.scopes.len()).unwrap_or(i64::MAX);
    let preloaded = if report.preloaded { "yes" } else { "no" };
    let facts = scope::facts(&[
        (
            "worker",
            short(worker).into_owned(),
            (worker != "running").then_some("warning"),
        ),
        ("preloaded", preloaded.to_owned(), None),
        ("scopes", count(scopes), None),
        (
            "open keys",
            count(total(|scope| scope.gauges.open_keys)),
            None,
        ),
        (
            "unknown",
            count(unknown),
            (unknown > 0).then_some("warning"),
        ),
        (
            "escalated",
            count(escalated),
            (escalated > 0).then_some("critical"),
        ),
    ]);
    html! {
        header {
            p.kind { "Idempotency report" }
            h1 { bdi { (short(if report.database.is_empty() { "unnamed database" } else { &report.database })) } }
            p { (moment(&report.generated_at)) }
            (facts)
        }
    }
}

fn findings(findings: &[Finding]) -> Markup {
    let mut findings: Vec<&Finding> = findings.iter().collect();
    findings.sort_by(|a, b| b.severity.cmp(&a.severity));
    let list = Bounded::of(
        FINDINGS_BYTES_MAX,
        &findings,
        |_, finding| html! { (one_finding(finding)) },
    );
    html! {
        section aria-labelledby="findings" {
            h2 id="findings" { "Findings" }
            @if findings.is_empty() { p.none { "the doctor was not asked" } }
            (list.shown)
            (list.left_out("finding", "SELECT * FROM idem_doctor();"))
        }
    }
}

fn one_finding(finding: &Finding) -> Markup {
    let (class, word) = match &finding.severity {
        Severity::Critical => ("critical", "critical"),
        Severity::Warning => ("warning", "warning"),
        Severity::Notice => ("notice", "notice"),
        Severity::Ok => ("ok", "ok"),
        Severity::Other(word) => ("notice", word.as_str()),
    };
    html! {
        article.finding.(class) {
            h3 { span.severity { (short(word)) } " " (visible(&finding.what)) }
            @if !finding.why.is_empty() { p { (visible_lines(&finding.why)) } }
            @if let Some(mend) = finding.mend.as_deref().filter(|mend| !mend.is_empty()) { pre { (visible_lines(mend)) } }
            @if !finding.finding.is_empty() { p.name { (short(&finding.finding)) } }
        }
    }
}

/// One line for each scope; left out where there is only one.
fn overview(scopes: &[&Scope]) -> Markup {
    let list = Bounded::of(OVERVIEW_BYTES_MAX, scopes, |at, scope| {
        let (class, verdict) = scope::verdict(&scope.advice.verdict);
        html! {
            tr {
                th scope="row" { a href={ "#scope-" (at) } { bdi { (short(&scope.scope)) } } }
                td { (scope::window(scope.window_s)) }
                td { span.verdict.(class) { (verdict) } }
                @for number in [
                    scope.gauges.open_keys, scope.gauges.unknown_keys, scope.gauges.escalated_keys, scope.gauges.outcomes,
                ] { td.number { (count(number)) } }
            }
        }
    });
    html! {
        section aria-labelledby="scopes" {
            h2 id="scopes" { "Scopes" }
            @if scopes.is_empty() { p.none { "there is no scope that you may see" } }
            @if scopes.len() > 1 {
                p { "Those that need attention come first." }
                div.scroll tabindex="0" role="region" aria-label="All scopes" {
                    table {
                        thead { tr {
                            th scope="col" { "scope" } th scope="col" { "window" } th scope="col" { "verdict" }
                            @for name in ["open", "unknown", "escalated", "outcomes"] { th.number scope="col" { (name) } }
                        } }
                        tbody { (list.shown) }
                    }
                }
                (list.left_out("scope", "SELECT * FROM idempotency.stats;"))
            }
        }
    }
}

fn details(scopes: &[&Scope], now: Option<Moment>, ages_axis: Axis) -> Markup {
    let open_max = (OPEN_ROWS_MAX / scopes.len().max(1)).max(OPEN_ROWS_MIN);
    let list = Bounded::of(SCOPES_BYTES_MAX, scopes, |at, scope| {
        let is_unfolded = at < UNFOLDED_MAX
            && (scopes.len() <= UNFOLDED_MAX || scope::attention(scope) > Attention::None);
        html! {
            details.scope id={ "scope-" (at) } open[is_unfolded] {
                summary { h3 { span { "scope" } " " bdi { (short(&scope.scope)) } } }
                (scope::body(scope, now, ages_axis, open_max))
            }
        }
    });
    html! {
        (list.shown)
        (list.left_out("scope", "SELECT idem_report('the scope');"))
    }
}

fn runs(runs: &[Run]) -> Markup {
    let list = Bounded::of(RUNS_BYTES_MAX, runs, |_, run| {
        let or_none = |at: &Option<String>| at.as_deref().map_or_else(|| "–".to_owned(), moment);
        html! {
            tr {
                th scope="row" { bdi title=[(run.run.chars().count() > 64).then(|| visible(&run.run))] { (short(&run.run)) } }
                td { @if let Some(label) = &run.label { bdi { (short(label)) } } @else { "–" } }
                td { @if run.state == "silent" { strong { "silent" } } @else { (short(&run.state)) } }
                td.number { (run.longest_pause_s.map_or_else(|| "–".to_owned(), span)) }
                td { (or_none(&run.last_seen_at)) }
                td { (or_none(&run.over_at)) }
            }
        }
    });
    html! {
        section aria-labelledby="runs" {
            h2 id="runs" { "Runs" }
            @if runs.is_empty() { p.none { "no run is known" } }
            @else {
                div.scroll tabindex="0" role="region" aria-label="All runs" {
                    table {
                        thead { tr {
                            th scope="col" { "run" } th scope="col" { "label" } th scope="col" { "state" }
                            th.number scope="col" { "longest pause" } th scope="col" { "last seen" } th scope="col" { "over" }
                        } }
                        tbody { (list.shown) }
                    }
                }
                (list.left_out("run", "SELECT * FROM idempotency.runs;"))
            }
        }
    }
}

/// As many items of a list as its share of the page holds.
struct Bounded {
    shown: Markup,
    left: usize,
}

impl Bounded {
    fn of<T>(bytes_max: usize, items: &[T], render: impl Fn(usize, &T) -> Markup) -> Self {
        let mut shown = String::new();
        for (at, item) in items.iter().enumerate() {
            let Markup { 0: item } = render(at, item);
            if shown.len() + item.len() > bytes_max {
                return Self {
                    shown: PreEscaped(shown),
                    left: items.len() - at,
                };
            }
            shown.push_str(&item);
        }
        Self {
            shown: PreEscaped(shown),
            left: 0,
        }
    }

    /// Says how many are missing, and which statement shows them.
    fn left_out(&self, noun: &str, statement: &str) -> Markup {
        let left = i64::try_from(self.left).unwrap_or(i64::MAX);
        html! {
            @if left > 0 { p.left-out { strong { (counted(left, noun)) " not shown here" } ", for want of room: " code { (statement) } } }
        }
    }
}
