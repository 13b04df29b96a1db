//! The published RFC 8785 vectors (cyberphone/json-canonicalization, in `vectors/jcs` with their licence), and what the
//! canonical form must not notice: white space, order, spelling of escapes.

mod common;

use std::fs;
use std::path::PathBuf;

use common::document;
use idempotency_core::ignore::Ignore;
use serde_json::Value;

const NAMES: [&str; 6] = [
    "arrays",
    "french",
    "structures",
    "unicode",
    "values",
    "weird",
];

fn read(path: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/jcs");
    fs::read_to_string(folder.join(path)).expect("a vector file")
}

fn canonical(text: &str) -> String {
    let value: Value = serde_json::from_str(text).expect("JSON");
    document(&value).canonical(&Ignore::none())
}

/// `output`, with the one documented exception: the number that its RFC 8785 text does not equal.
fn expected(name: &str) -> String {
    let output = read(&format!("output/{name}.json"));
    match name {
        "values" => {
            assert_eq!(output.matches("333333333.3333333,").count(), 1);
            output.replace("333333333.3333333,", "333333333.33333329,")
        }
        _ => output,
    }
}

#[test]
fn published_vectors_match_byte_for_byte() {
    for name in NAMES {
        assert_eq!(
            canonical(&read(&format!("input/{name}.json"))),
            expected(name),
            "{name}"
        );
    }
}

#[test]
fn published_hexadecimal_vectors_match() {
    for name in NAMES.into_iter().filter(|name| *name != "values") {
        let hex = read(&format!("outhex/{name}.txt"));
        let bytes: Vec<u8> = hex
            .split_whitespace()
            .map(|byte| u8::from_str_radix(byte, 16).expect("a hexadecimal byte"))
            .collect();
        assert_eq!(
            canonical(&read(&format!("input/{name}.json"))).into_bytes(),
            bytes,
            "{name}"
        );
    }
}

#[test]
fn canonical_text_is_its_own_canonical_text() {
    for name in NAMES {
        assert_eq!(canonical(&expected(name)), expected(name), "{name}");
    }
}

#[test]
fn values_vector_keeps_the_number_that_rfc_8785_would_round() {
    assert_eq!(
        canonical(&read("input/values.json")),
        "{\"literals\":[null,true,false],\"numbers\":[333333333.33333329,1e+30,4.5,0.002,1e-27],\
         \"string\":\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}"
    );
}

#[test]
fn numbers_of_case_s01() {
    assert_eq!(
        canonical("[-0,1e21,1E30,1e-7,4.50,2e-3,333333333.33333329,1e-27]"),
        "[0,1e+21,1e+30,1e-7,4.5,0.002,333333333.33333329,1e-27]"
    );
}

#[test]
fn white_space_order_and_escapes_change_nothing() {
    let text = canonical(r#"{"a":"€/","b":[1,{"c":null,"😀":"é"}]}"#);
    for spelling in [
        r#" { "b" : [ 1.0 , { "\ud83d\ude00" : "\u00e9", "c" : null } ] ,"a":"\u20ac\/" } "#,
        "{\n\t\"\\u0062\":[1e0,{\"c\":null,\"😀\":\"é\"}],\r\n\"a\":\"\\u20AC/\"}",
    ] {
        assert_eq!(canonical(spelling), text);
    }
}

#[test]
fn what_differs_stays_different() {
    for (left, right) in [
        (r#"{"a":"é"}"#, r#"{"a":"e\u0301"}"#),
        (r#"["a"]"#, r#"["a "]"#),
        (r#"[1]"#, r#"["1"]"#),
        (r#"{"a":null}"#, r#"{}"#),
        (r#"[null]"#, r#"[]"#),
        (r#"[1,2]"#, r#"[2,1]"#),
        (r#"[[1],2]"#, r#"[1,[2]]"#),
        (r#"[9007199254740992]"#, r#"[9007199254740993]"#),
    ] {
        assert_ne!(canonical(left), canonical(right), "{left} {right}");
    }
}
