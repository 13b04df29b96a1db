//! What the tests share: the way from `serde_json` to a document, and the equality of values that the canonical form
//! must reproduce, written without any of the code under test.
#![allow(dead_code, reason = "each test program uses its own part")]

use idempotency_core::canonical::{Builder, Document};
use serde_json::Value;

/// Records `value`; its numbers keep their text (`arbitrary_precision`).
pub fn document(value: &Value) -> Document<'_> {
    let mut builder = Builder::new();
    record(value, &mut builder);
    builder.finish().expect("a value is a document")
}

fn record<'a>(value: &'a Value, builder: &mut Builder<'a>) {
    match value {
        Value::Null => builder.null(),
        Value::Bool(value) => builder.bool(*value),
        Value::Number(number) => builder.number(number.to_string()),
        Value::String(text) => builder.string(text),
        Value::Array(elements) => {
            builder.begin_array();
            elements.iter().for_each(|element| record(element, builder));
            builder.end_array();
        }
        Value::Object(members) => {
            builder.begin_object();
            for (name, value) in members {
                builder.member(name);
                record(value, builder);
            }
            builder.end_object();
        }
    }
}

/// The exact value of a decimal in plain digits without needless zeros: the schoolbook way, by moving the point.
pub fn plain(text: &str) -> String {
    let (sign, rest) = text
        .strip_prefix('-')
        .map_or(("", text), |rest| ("-", rest));
    let lower = rest.to_ascii_lowercase();
    let (mantissa, exponent) = lower.split_once('e').unwrap_or((&lower, "0"));
    let exponent: i32 = exponent.parse().expect("an exponent");
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut whole = whole.to_owned();
    let mut fraction = fraction.to_owned();
    for _ in 0..exponent {
        if fraction.is_empty() {
            fraction.push('0');
        }
        whole.push(fraction.remove(0));
    }
    for _ in exponent..0 {
        fraction.insert(0, whole.pop().unwrap_or('0'));
    }
    let whole = whole.trim_start_matches('0');
    let fraction = fraction.trim_end_matches('0');
    match (whole, fraction) {
        ("", "") => "0".to_owned(),
        (_, "") => format!("{sign}{whole}"),
        ("", _) => format!("{sign}0.{fraction}"),
        (_, _) => format!("{sign}{whole}.{fraction}"),
    }
}

/// Whether two values are equal as `jsonb` sees it: numbers by value, objects whatever their order.
pub fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => {
            plain(&left.to_string()) == plain(&right.to_string())
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|(left, right)| same(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .all(|(name, left)| right.get(name).is_some_and(|right| same(left, right)))
        }
        (left, right) => left == right,
    }
}
