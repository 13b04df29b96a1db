//! The page as a whole, from documents as `idem_report()` makes them and from such as nobody should.

use std::time::{Duration, Instant};

use idempotency_report::page;
use serde_json::{Value, json};

const ORDINARY: &str = include_str!("samples/ordinary.json");

const HOSTILE: [&str; 9] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onload='alert(1)",
    "</title></style></svg><b>",
    "שלום/\u{202e}gnp.exe",
    "👩\u{200d}🚀 paid",
    "a\n\tb\u{1}\u{7f}",
    "&lt;i&gt;",
    "]]>--><!--",
];

fn rendered(document: &Value) -> String {
    page(&document.to_string()).expect("a page")
}

/// Every string of the document that is not one of ours.
fn with_hostile_names(value: &mut Value, nth: &mut usize) {
    match value {
        Value::String(text) => {
            *nth += 1;
            *text = HOSTILE[*nth % HOSTILE.len()].to_owned();
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| with_hostile_names(item, nth)),
        Value::Object(members) => members
            .values_mut()
            .for_each(|member| with_hostile_names(member, nth)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Names of the elements that the page begins, and what stands in their tags.
fn tags(page: &str) -> impl Iterator<Item = &str> {
    page.split('<')
        .skip(1)
        .map(|rest| rest.split('>').next().unwrap_or(rest))
}

fn assert_sound(page: &str) {
    for word in ["NaN", "inf%", "\"inf\"", "-inf"] {
        assert!(!page.contains(word), "{word}");
    }
    for tag in tags(page) {
        // Values of attributes are quoted, and hold no quotation mark.
        let tag: String = tag.split('"').step_by(2).collect();
        let name = tag.split([' ', '/']).next().unwrap_or_default();
        assert!(
            !["script", "img", "i", "link", "iframe", "image", "use"].contains(&name),
            "{tag}"
        );
        assert!(!tag.contains(" on") && !tag.contains("src="), "{tag}");
    }
    for width in page
        .split("width=\"")
        .skip(1)
        .chain(page.split("height=\"").skip(1))
    {
        assert!(!width.starts_with('-'), "{}", &width[..10]);
    }
}

#[test]
fn an_empty_document_gives_a_page() {
    for document in [
        "{}",
        r#"{"scopes": null, "runs": [], "findings": [], "generated_at": null}"#,
    ] {
        let page = page(document).expect("a page");
        assert_sound(&page);
        for words in [
            "there is no scope that you may see",
            "no run is known",
            "the doctor was not asked",
            "unnamed database",
        ] {
            assert!(page.contains(words), "{words}");
        }
    }
}

#[test]
fn everything_that_is_present_is_on_the_page() {
    let page = page(ORDINARY).expect("a page");
    assert_sound(&page);
    for words in [
        "<h1><bdi>shop</bdi></h1>",
        "2026-12-02 18:40 UTC",
        "<pre>SELECT idem_scope_set('webhooks', dedup_window =&gt; '7 days');</pre>",
        ">critical</span>",
        "An outcome guards its key for <strong>90 days</strong>.",
        "For another <strong>30 days</strong> a late claim is recognised.",
        "An outcome guards its key <strong>for ever</strong>.",
        "The window: too short",
        "a repeat came 3 days 8 hours after the first claim of its key",
        "after the window a repeat executes again: this scope has no guard",
        "2 repeats</strong>",
        "guard ends 120 d",
        "window: for ever",
        "recommended 7 d",
        "longest repeat 3 d 8 h",
        "claims, ",
        "pruned outcome",
        "window ends in",
        "nothing is open",
        "no repeat was observed",
        "nothing happened in the last seven days",
        "the library is not preloaded, so nothing is counted",
        "Since 2026-10-01 00:00 UTC.",
        "backfill-17",
        "settlement of card payments",
        "<strong>silent</strong>",
    ] {
        assert!(
            page.contains(words.trim_end_matches("</strong>")),
            "{words}"
        );
    }
    let at = |words: &str| page.find(words).expect(words);
    assert!(
        at(">critical</span>") < at(">warning</span>")
            && at(">warning</span>") < at(">notice</span>")
    );
    assert!(
        at("<bdi>webhooks</bdi></h3>") < at("<bdi>payments</bdi></h3>"),
        "the worst scope is first"
    );
}

#[test]
fn whatever_users_name_is_text() {
    for begin in 0..HOSTILE.len() {
        let mut document: Value = serde_json::from_str(ORDINARY).expect("a document");
        with_hostile_names(&mut document, &mut begin.clone());
        let page = rendered(&document);
        assert_sound(&page);
        for raw in ['\u{202e}', '\u{1}', '\u{7f}'] {
            assert!(!page.contains(raw));
        }
        for text in [
            "&lt;script&gt;alert(1)&lt;/script&gt;",
            "\\u{202e}gnp.exe",
            "👩\u{200d}🚀 paid",
            "&amp;lt;i&amp;gt;",
            "a␊␉b␁␡",
        ] {
            assert!(page.contains(text), "{text}");
        }
        // The quotation marks of a name end no attribute.
        let quoted = page
            .matches("&quot;&gt;&lt;img src=x onerror=alert(1)&gt;")
            .count();
        assert_eq!(quoted, page.matches("src=x").count());
    }
}

#[test]
fn a_long_key_is_shortened_and_whole_in_its_title() {
    let key = format!("{}<{}", "k".repeat(500), "é".repeat(261));
    let page =
        rendered(&json!({"scopes": [{"open": [{"key": key, "state": "unknown", "age_s": 5}]}]}));
    assert!(page.contains(&format!("<title>{}</title>", key.replace('<', "&lt;"))));
    assert!(page.contains(&format!("{}…{}</code>", "k".repeat(43), "é".repeat(20))));
}

#[test]
fn extremes_give_finite_pictures() {
    let numbers = [
        json!(0),
        json!(-1),
        json!(1e-300),
        json!(1e308),
        json!(-1e308),
        json!(null),
    ];
    let counts = [
        json!(0),
        json!(1),
        json!(-1),
        json!(i64::MAX),
        json!(i64::MIN),
    ];
    for span in &numbers {
        for count in &counts {
            let scope = json!({
                "scope": "s", "window_s": span, "guard_s": span, "longest_repeat_s": span, "advice": {"recommended_s": span},
                "counters": {"claims": count, "new_one": count, "pruned": null},
                "gauges": {"open_keys": count, "unknown_keys": count, "escalated_keys": count, "outcomes": count, "bytes": count, "prune_lag_s": span},
                "activity": [{"at": "2026-12-02T17:00:00Z", "claims": count, "executes": count, "replays": count, "pruned": count}],
                "expiries": [{"at": "2026-12-03T00:00:00Z", "count": count}, {"at": "9999-12-31T00:00:00Z", "count": count}],
                "repeats": [{"upto_s": span, "count": count}],
                "open": [{"key": "k", "state": "in_flight", "age_s": span, "lease_ends_in_s": span}]});
            for now in ["2026-12-02T18:40:00Z", "infinity", "0001-01-01T00:00:00Z"] {
                assert_sound(&rendered(
                    &json!({"generated_at": now, "scopes": [scope, scope],
                    "runs": [{"run": "r", "longest_pause_s": span}]}),
                ));
            }
        }
    }
}

#[test]
fn what_is_not_such_a_document_is_an_error_that_does_not_quote_it() {
    let deep = "[".repeat(100_000);
    for document in [
        "",
        "null?",
        "7",
        "{",
        r#"{"scopes": "secret"}"#,
        r#"{"runs": [{"run": 7}]}"#,
        r#"{"database": "\ud800"}"#,
        &deep,
    ] {
        let error = page(document).expect_err("no page").to_string();
        assert!(
            error.starts_with("the report's document cannot be read at line "),
            "{error}"
        );
        assert!(!error.contains("secret"));
    }
}

fn scopes(number: usize, key: &str) -> Value {
    let hour = |at: usize| {
        json!({"at": format!("2026-12-{:02}T{:02}:00:00Z", 2 + at / 24, at % 24), "claims": at * 7919 % 1000,
        "executes": at * 6841 % 900, "replays": at * 31 % 100, "pruned": at * 17 % 50})
    };
    let scope = |nth: usize| {
        json!({"scope": format!("tenant-{nth}"), "window_s": 2_592_000, "longest_repeat_s": 288_000,
        "advice": {"verdict": "ok", "recommended_s": 604_800, "reasons": ["the longest repeat came 3 days 8 hours after the first claim"]},
        "gauges": {"open_keys": 50}, "counters": {"claims": 1, "executes": 1, "replays": 1, "completed": 1, "pruned": 1},
        "activity": (0..168).map(hour).collect::<Vec<_>>(),
        "expiries": (1..31).map(|day| json!({"at": format!("2026-12-{day:02}T00:00:00Z"), "count": day * 7})).collect::<Vec<_>>(),
        "repeats": (0..22).map(|power| json!({"upto_s": f64::from(1 << power), "count": 100_000 >> power})).collect::<Vec<_>>(),
        "open": (0..50).map(|nth| json!({"key": format!("{key}{nth}"), "state": "queued", "age_s": nth * 100})).collect::<Vec<_>>()})
    };
    json!({"generated_at": "2026-12-08T23:30:00Z", "scopes": (0..number).map(scope).collect::<Vec<_>>()})
}

#[test]
fn a_thousand_scopes_are_all_there_soon_and_in_bounds() {
    let document = scopes(1_000, "order/").to_string();
    let start = Instant::now();
    let page = page(&document).expect("a page");
    let seconds_max = if cfg!(debug_assertions) { 60 } else { 1 };
    assert!(
        start.elapsed() < Duration::from_secs(seconds_max),
        "{:?}",
        start.elapsed()
    );
    assert!(page.len() < 20_000_000, "{}", page.len());
    assert_eq!(page.matches("<details").count(), 1_000);
    assert!(page.contains("The oldest 5 of 50 keys"));
    assert!(!page.contains("not shown here"));
}

#[test]
fn what_does_not_fit_is_counted() {
    let mut document = scopes(1_000, &"<".repeat(1_020));
    document["findings"] = (0..2_000)
        .map(|_| json!({"severity": "warning", "what": "<".repeat(500)}))
        .collect();
    document["runs"] = (0..5_000).map(|_| json!({"run": "&".repeat(60)})).collect();
    let page = rendered(&document);
    assert!(page.len() < 20_000_000, "{}", page.len());
    for noun in ["findings", "scopes", "runs"] {
        assert!(page.contains(&format!("{noun} not shown here")), "{noun}");
    }
    assert_eq!(
        page.matches("<details").count(),
        page.matches("</details>").count()
    );
    assert!(page.ends_with("</html>"));
}
