//! The document that a page is made from, as types.
//!
//! Reads leniently: a member that is missing or null is empty, one that is not known is ignored, a word that is not
//! known is kept as it is. Never judges what it reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// A struct of which every member may be missing or null.
macro_rules! lenient {
    ($($(#[$doc:meta])* struct $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => { $(
        $(#[$doc])*
        #[derive(Debug, Default, Deserialize)]
        #[serde(default)]
        pub(crate) struct $name {
            $($(#[$field_doc])* #[serde(deserialize_with = "null_as_default")] pub(crate) $field: $type,)*
        }
    )* };
}

lenient! {
    /// The whole document.
    struct Report {
        generated_at: String,
        database: String,
        version: String,
        preloaded: bool,
        worker: String,
        scopes: Vec<Scope>,
        runs: Vec<Run>,
        findings: Vec<Finding>,
    }

    /// One scope: its window, what was observed, what is open.
    struct Scope {
        scope: String,
        owner: String,
        /// None: for ever.
        window_s: Option<f64>,
        guard_s: Option<f64>,
        effect_kind: String,
        advice: Advice,
        counters: Option<BTreeMap<String, Option<i64>>>,
        counters_note: Option<String>,
        counted_since: Option<String>,
        gauges: Gauges,
        activity: Vec<Activity>,
        expiries: Vec<Expiries>,
        repeats: Vec<Repeats>,
        longest_repeat_s: Option<f64>,
        open: Vec<OpenKey>,
    }

    /// What `idem_window_advice` says.
    struct Advice {
        verdict: Verdict,
        recommended_s: Option<f64>,
        reasons: Vec<String>,
        warning: Option<String>,
    }

    /// How many there are now.
    struct Gauges {
        open_keys: i64,
        in_flight: i64,
        queued: i64,
        unknown_keys: i64,
        escalated_keys: i64,
        outcomes: i64,
        bytes: i64,
        next_expiry_at: Option<String>,
        prune_lag_s: Option<f64>,
    }

    /// What happened in the hour that begins at `at`.
    struct Activity {
        at: String,
        claims: i64,
        executes: i64,
        replays: i64,
        pruned: i64,
    }

    /// How many windows end on the day that begins at `at`.
    struct Expiries {
        at: String,
        count: i64,
    }

    /// How many repeats came so long after the first claim of their key, and later than the bucket before.
    struct Repeats {
        upto_s: f64,
        count: i64,
    }

    /// A key that is not finished.
    struct OpenKey {
        key: String,
        state: State,
        age_s: f64,
        run: Option<String>,
        holder: Option<String>,
        lease_ends_in_s: Option<f64>,
    }

    /// A run.
    struct Run {
        run: String,
        label: Option<String>,
        state: String,
        longest_pause_s: Option<f64>,
        last_seen_at: Option<String>,
        over_at: Option<String>,
    }

    /// What the doctor found.
    struct Finding {
        severity: Severity,
        finding: String,
        what: String,
        why: String,
        mend: Option<String>,
    }
}

/// Whether a window is long enough.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(from = "String")]
pub(crate) enum Verdict {
    Ok,
    Near,
    TooShort,
    #[default]
    NoEvidence,
    Other(String),
}

/// What a key waits for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub(crate) enum State {
    InFlight,
    Queued,
    Unknown,
    Escalated,
    Other(String),
}

/// How bad a finding is; the worse, the greater.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(from = "String")]
pub(crate) enum Severity {
    Ok,
    Notice,
    Other(String),
    Warning,
    Critical,
}

impl From<String> for Verdict {
    fn from(word: String) -> Self {
        match word.as_str() {
            "ok" => Self::Ok,
            "near" => Self::Near,
            "too_short" => Self::TooShort,
            "no_evidence" => Self::NoEvidence,
            _ => Self::Other(word),
        }
    }
}

impl From<String> for State {
    fn from(word: String) -> Self {
        match word.as_str() {
            "in_flight" => Self::InFlight,
            "queued" => Self::Queued,
            "unknown" => Self::Unknown,
            "escalated" => Self::Escalated,
            _ => Self::Other(word),
        }
    }
}

impl From<String> for Severity {
    fn from(word: String) -> Self {
        match word.as_str() {
            "ok" => Self::Ok,
            "notice" => Self::Notice,
            "warning" => Self::Warning,
            "critical" => Self::Critical,
            _ => Self::Other(word),
        }
    }
}

impl Default for State {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

impl Default for Severity {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

fn null_as_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(from).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_null_and_unknown_members_do_not_matter() {
        let report: Report = serde_json::from_str(
            r#"{"later": {"a": [1]}, "worker": null, "runs": null,
                "scopes": [{"window_s": null, "gauges": null, "advice": {"verdict": "novel"}, "open": [{"state": "stuck"}]}],
                "findings": [{"severity": "critical"}, {"severity": "odd"}, {}]}"#,
        )
        .expect("a document");
        assert_eq!(report.worker, "");
        assert_eq!(report.scopes[0].window_s, None);
        assert_eq!(report.scopes[0].gauges.open_keys, 0);
        assert_eq!(
            report.scopes[0].advice.verdict,
            Verdict::Other("novel".into())
        );
        assert_eq!(report.scopes[0].open[0].state, State::Other("stuck".into()));
        assert!(report.findings[0].severity > report.findings[1].severity);
        assert_eq!(report.findings[2].severity, Severity::Other(String::new()));
    }
}
