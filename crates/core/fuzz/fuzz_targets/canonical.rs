//! Fuzzes the canonical form and everything that feeds it.
//!
//! The first byte chooses how the rest is read: as JSON text, as raw builder events, as two numbers, as ignore pointers.
//! Whatever comes, nothing may panic, canonical text must be its own canonical text and mean the same, and two numbers
//! must have equal text exactly when they are equal.
#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;

use common::{document, plain, same};
use idempotency_core::canonical::{Builder, Document};
use idempotency_core::digest::args_hash;
use idempotency_core::ignore::Ignore;
use idempotency_core::key::run_operation_key;
use idempotency_core::number::canonical_number;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let Some((way, rest)) = data.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(rest) else {
        return;
    };
    match way {
        b'e' => events(text),
        b'n' => numbers(text),
        b'i' => ignored(text),
        // JSON needs no mark of its own, so that any JSON file is a seed.
        _ => json(std::str::from_utf8(data).unwrap_or(text)),
    }
});

fn json(text: &str) {
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        return;
    };
    let Some(document) = within_limits(&value).then(|| document(&value)) else {
        return;
    };
    let canonical = reads_back(&document);
    let read: Value = serde_json::from_str(&canonical).expect("canonical text is JSON");
    assert!(same(&read, &value), "{canonical}");
    let _ = run_operation_key("run", "operation", Some(&document));
}

/// The canonical text of a document, checked to be its own canonical text.
fn reads_back(document: &Document<'_>) -> String {
    let canonical = document.canonical(&Ignore::none());
    let read: Value = match serde_json::from_str(&canonical) {
        Ok(read) => read,
        // serde_json refuses more than 128 levels, the canonical form does not.
        Err(error) => {
            assert!(
                error.to_string().contains("recursion limit"),
                "{error}: {canonical}"
            );
            return canonical;
        }
    };
    let again = common::document(&read);
    assert_eq!(again.canonical(&Ignore::none()), canonical);
    assert_eq!(
        args_hash(&again, &Ignore::none()),
        args_hash(document, &Ignore::none())
    );
    canonical
}

/// Numbers beyond those of `numeric` are refused, and the reference is slow with long ones.
fn within_limits(value: &Value) -> bool {
    match value {
        Value::Number(number) => reference_is_quick(&number.to_string()),
        Value::Array(elements) => elements.iter().all(within_limits),
        Value::Object(members) => members.values().all(within_limits),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

fn reference_is_quick(number: &str) -> bool {
    let exponent = number
        .split_once(['e', 'E'])
        .map_or(Ok(0), |(_, exponent)| exponent.parse::<i32>());
    number.len() < 400 && exponent.is_ok_and(|exponent| exponent.abs() < 700)
}

/// Every character is one event, in any order.
fn events(text: &str) {
    let mut builder = Builder::new();
    for (at, event) in text.char_indices() {
        match event {
            '{' => builder.begin_object(),
            '}' => builder.end_object(),
            '[' => builder.begin_array(),
            ']' => builder.end_array(),
            '0'..='9' => builder.number(&text[at..=at]),
            '-' => builder.number(&text[at..]),
            'n' => builder.null(),
            't' => builder.bool(true),
            'a'..='z' => builder.member(&text[at..=at]),
            _ => builder.string(&text[at..]),
        }
    }
    if let Ok(document) = builder.finish() {
        reads_back(&document);
    }
}

fn numbers(text: &str) {
    let (left, right) = text.split_once(' ').unwrap_or((text, text));
    let (Ok(left_text), Ok(right_text)) = (canonical_number(left), canonical_number(right)) else {
        return;
    };
    assert_eq!(canonical_number(&left_text), Ok(left_text.clone()));
    if reference_is_quick(left) && reference_is_quick(right) {
        assert_eq!(plain(&left_text), plain(left));
        assert_eq!(left_text == right_text, plain(left) == plain(right));
    }
}

/// The first line is JSON, each further line a pointer.
fn ignored(text: &str) {
    let mut lines = text.split('\n');
    let first = lines.next().unwrap_or_default();
    let pointers: Vec<&str> = lines.collect();
    let Ok(ignore) = Ignore::parse(&pointers) else {
        return;
    };
    let Ok(value) = serde_json::from_str::<Value>(first) else {
        return;
    };
    if !within_limits(&value) {
        return;
    }
    let canonical = document(&value).canonical(&ignore);
    assert!(canonical.len() <= document(&value).canonical(&Ignore::none()).len());
    let read: Value = serde_json::from_str(&canonical).expect("what is left is JSON");
    assert_eq!(document(&read).canonical(&Ignore::none()), canonical);
}
