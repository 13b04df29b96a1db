//! Properties of the canonical form over random documents and numbers, against references that share no code with it:
//! `ryu-js` for ECMA-262's `Number::toString`, and schoolbook decimals.

mod common;

use common::{document, plain, same};
use idempotency_core::ignore::Ignore;
use idempotency_core::number::canonical_number;
use proptest::prelude::*;
use serde_json::{Map, Value};

fn canonical(value: &Value) -> String {
    document(value).canonical(&Ignore::none())
}

fn canonical_text(number: &str) -> String {
    canonical_number(number).expect("a number").into_owned()
}

/// The definition, literally: the RFC 8785 text of the nearest double if it is equal, else the exact plain decimal.
fn reference_text(number: &str) -> String {
    let double: f64 = number.parse().expect("a number");
    if double.is_finite() {
        let mut buffer = ryu_js::Buffer::new();
        let text = buffer.format(double);
        if plain(text) == plain(number) {
            return text.to_owned();
        }
    }
    plain(number)
}

/// The number spelled otherwise, in one of four ways, with `zeros` more zeros than needed.
fn respelled(number: &str, way: usize, zeros: usize) -> String {
    let plain = plain(number);
    let (sign, rest) = plain
        .strip_prefix('-')
        .map_or(("", plain.as_str()), |rest| ("-", rest));
    let (whole, fraction) = rest.split_once('.').unwrap_or((rest, ""));
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        // JSON allows no zeros before another one.
        return format!("-0.{}e{way}", "0".repeat(zeros + 1));
    }
    match way {
        0 => format!("{sign}{whole}.{fraction}0{}", "0".repeat(zeros)),
        1 => format!(
            "{sign}{digits}{}e-{}",
            "0".repeat(zeros),
            fraction.len() + zeros
        ),
        2 => {
            let point = i64::try_from(digits.len() + zeros).expect("short");
            let exponent = point - i64::try_from(fraction.len()).expect("short");
            format!("{sign}0.{}{digits}E{exponent}", "0".repeat(zeros))
        }
        _ => plain,
    }
}

fn finite_double() -> impl Strategy<Value = f64> {
    any::<u64>()
        .prop_map(f64::from_bits)
        .prop_filter("finite", |double| double.is_finite())
}

fn changed_last_digit(text: String, digit: u8) -> String {
    let (mantissa, exponent) = text
        .split_once('e')
        .map_or((text.as_str(), ""), |parts| parts);
    let mut mantissa = mantissa.to_owned();
    mantissa.pop();
    mantissa.push(char::from(b'0' + digit));
    if exponent.is_empty() {
        mantissa
    } else {
        format!("{mantissa}e{exponent}")
    }
}

/// Decimals where rounding would make two numbers one.
fn number() -> impl Strategy<Value = String> {
    let near =
        |bits: u32| (-20i128..=20).prop_map(move |offset| ((1i128 << bits) + offset).to_string());
    let unsigned = prop_oneof![
        "[0-9]{1,4}",
        "(0|[1-9][0-9]{0,3})\\.[0-9]{1,3}",
        "[1-9][0-9]{13,24}",
        "[1-9][0-9]{0,20}\\.[0-9]{1,20}",
        "[1-9]\\.[0-9]{12,18}e-?[0-9]{1,2}",
        "[1-9](\\.[0-9]{1,17})?[eE][-+]?([0-9]{1,2}|2[0-9]{2}|3[0-3][0-9])",
        "(0|[1-9])(\\.[0-9]{0,2}[1-9])?e-32[0-9]",
        "17976931348623[0-9]{1,6}e29[0-9]",
        prop_oneof![near(53), near(54), near(63), near(64), near(70)],
        finite_double().prop_map(|double| format!("{:e}", double.abs())),
        finite_double().prop_map(|double| format!("{:.16e}", double.abs())),
        (finite_double(), 0u8..10)
            .prop_map(|(double, digit)| changed_last_digit(format!("{:e}", double.abs()), digit)),
        (finite_double(), 0u8..10).prop_map(|(double, digit)| changed_last_digit(
            format!("{:.17e}", double.abs()),
            digit
        )),
        (1e-9f64..1e22).prop_map(|double| double.to_string()),
    ];
    (any::<bool>(), unsigned).prop_map(|(negative, text)| {
        // JSON has no leading zeros; doubles of random bits have exponents that JSON and numeric both know.
        let text = match text.trim_start_matches('0') {
            rest if rest.starts_with(|first: char| first.is_ascii_digit()) => rest.to_owned(),
            rest => format!("0{rest}"),
        };
        if negative { format!("-{text}") } else { text }
    })
}

/// Numbers that are often equal or adjacent to each other.
fn close_numbers() -> impl Strategy<Value = (String, String)> {
    prop_oneof![
        (number(), number()),
        (number(), 0u8..10).prop_map(|(number, digit)| {
            let other = changed_last_digit(number.clone(), digit);
            (number, other)
        }),
        (finite_double(), 1u64..3).prop_map(|(double, step)| {
            let next = f64::from_bits(double.to_bits().wrapping_add(step));
            let next = if next.is_finite() { next } else { double };
            (format!("{double:e}"), format!("{next:e}"))
        }),
        (0u64..40, 0u64..40).prop_map(|(left, right)| {
            let base = (1u64 << 53) - 20;
            ((base + left).to_string(), (base + right).to_string())
        }),
        (number(), 0usize..4, 0usize..4).prop_map(|(number, way, zeros)| {
            let other = respelled(&number, way, zeros);
            (number, other)
        }),
    ]
}

fn text() -> impl Strategy<Value = String> {
    let character = prop_oneof![
        any::<char>(),
        prop::char::range('\0', '\u{7f}'),
        prop::sample::select(vec![
            '"',
            '\\',
            '/',
            '\u{7f}',
            '\u{e000}',
            '\u{ffff}',
            '\u{10000}',
            '\u{1f602}',
            'a'
        ]),
    ];
    prop::collection::vec(character, 0..6).prop_map(|characters| characters.into_iter().collect())
}

fn tree(
    leaf: impl Strategy<Value = Value> + 'static,
    name: impl Strategy<Value = String> + 'static,
) -> impl Strategy<Value = Value> {
    let name = name.boxed();
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::vec((name.clone(), inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn number_value(text: &str) -> Value {
    serde_json::from_str(text).expect("a JSON number")
}

fn any_tree() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        number().prop_map(|text| number_value(&text)),
        text().prop_map(Value::String),
    ];
    tree(leaf, text())
}

/// Trees of few names and values, so that two of them are often equal.
fn small_tree() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        prop::sample::select(vec![
            "1",
            "1.0",
            "10e-1",
            "9007199254740992",
            "9007199254740993"
        ])
        .prop_map(number_value),
        Just(Value::String("1".to_owned())),
    ];
    tree(
        leaf,
        prop::sample::select(vec!["a", "b", "*", "0", "1", ""]).prop_map(str::to_owned),
    )
}

/// The same value with its members in reverse and its numbers spelled otherwise.
fn rewritten(value: &Value, way: usize, zeros: usize) -> Value {
    match value {
        Value::Number(number) => number_value(&respelled(&number.to_string(), way, zeros)),
        Value::Array(elements) => elements
            .iter()
            .map(|element| rewritten(element, way, zeros))
            .collect(),
        Value::Object(members) => members
            .iter()
            .rev()
            .map(|(name, value)| (name.clone(), rewritten(value, way, zeros)))
            .collect(),
        Value::Null | Value::Bool(_) | Value::String(_) => value.clone(),
    }
}

/// `value` without what the pointers match, the simple way: `None` if that is all of it.
fn without(value: &Value, pointers: &[Vec<String>]) -> Option<Value> {
    if pointers.iter().any(Vec::is_empty) {
        return None;
    }
    let inside = |matches: &dyn Fn(&str) -> bool| -> Vec<Vec<String>> {
        pointers
            .iter()
            .filter(|pointer| matches(&pointer[0]))
            .map(|pointer| pointer[1..].to_vec())
            .collect()
    };
    Some(match value {
        Value::Array(elements) => (0..)
            .zip(elements)
            .filter_map(|(at, element): (usize, _)| {
                without(element, &inside(&|s| s == "*" || s == at.to_string()))
            })
            .collect(),
        Value::Object(members) => members
            .iter()
            .filter_map(|(name, value)| {
                Some((
                    name.clone(),
                    without(value, &inside(&|s| s != "*" && s == name))?,
                ))
            })
            .collect::<Map<_, _>>()
            .into(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn text_of_a_number_is_that_of_the_definition(number in number()) {
        prop_assert_eq!(canonical_text(&number), reference_text(&number));
    }

    #[test]
    fn text_of_a_double_is_that_of_ecmascript(double in finite_double()) {
        let mut buffer = ryu_js::Buffer::new();
        let text = buffer.format(double).to_owned();
        prop_assert_eq!(canonical_text(&text), text);
        prop_assert_eq!(canonical_text(&plain(&format!("{double:e}"))), reference_text(&format!("{double:e}")));
    }

    #[test]
    fn exact_expansion_of_a_double_is_kept(double in finite_double()) {
        let exact = format!("{double:.1074}");
        prop_assert_eq!(canonical_text(&exact), reference_text(&exact));
    }

    #[test]
    fn text_of_a_number_is_equal_to_it(number in number()) {
        prop_assert_eq!(plain(&canonical_text(&number)), plain(&number));
    }

    #[test]
    fn numbers_have_equal_text_if_and_only_if_they_are_equal((left, right) in close_numbers()) {
        prop_assert_eq!(canonical_text(&left) == canonical_text(&right), plain(&left) == plain(&right));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn canonical_text_reads_back_as_the_same_value(value in any_tree()) {
        let text = canonical(&value);
        let read: Value = serde_json::from_str(&text).expect("canonical text is JSON");
        prop_assert!(same(&read, &value), "{text}");
        prop_assert_eq!(canonical(&read), text);
    }

    #[test]
    fn order_and_spelling_change_nothing(value in any_tree(), way in 0usize..4, zeros in 0usize..3) {
        let other = rewritten(&value, way, zeros);
        prop_assert!(same(&other, &value));
        prop_assert_eq!(canonical(&other), canonical(&value));
    }

    #[test]
    fn names_are_sorted_by_utf_16_code_units(names in prop::collection::btree_set(text(), 0..30)) {
        let mut sorted: Vec<&String> = names.iter().collect();
        sorted.sort_by_key(|name| name.encode_utf16().collect::<Vec<u16>>());
        let value: Value = names.iter().map(|name| (name.clone(), Value::Null)).collect::<Map<_, _>>().into();
        let read: Map<String, Value> = serde_json::from_str(&canonical(&value)).expect("canonical text is JSON");
        prop_assert!(read.keys().eq(sorted));
    }

    #[test]
    fn ignored_parts_are_as_if_they_were_not_there(
        value in small_tree(),
        pointers in prop::collection::vec(
            prop::collection::vec(prop::sample::select(vec!["a", "b", "*", "0", "1", "", "-"]).prop_map(str::to_owned), 1..4),
            0..4,
        ),
    ) {
        let texts: Vec<String> = pointers.iter().map(|segments| format!("/{}", segments.join("/"))).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let ignore = Ignore::parse(&texts).expect("pointers");
        let left = without(&value, &pointers).expect("no pointer is empty");
        prop_assert_eq!(document(&value).canonical(&ignore), canonical(&left));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn values_have_equal_text_if_and_only_if_they_are_equal(left in small_tree(), right in small_tree()) {
        prop_assert_eq!(canonical(&left) == canonical(&right), same(&left, &right));
    }
}
