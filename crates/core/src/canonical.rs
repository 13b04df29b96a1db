//! The canonical form of a JSON document: equal arguments give equal text, different arguments different text.
//!
//! Writes a recorded document by RFC 8785, with the one exception for numbers that [`crate::number`] describes. Never
//! recurses, so that no nesting exhausts the stack; never copies what is nested once per level; never normalises, trims
//! or folds a string.

use std::cmp::Ordering;

pub use crate::document::{Builder, Document, DocumentError};

use crate::document::Token;
use crate::ignore::{Alive, Ignore, Step};

/// Where canonical text goes, piece by piece: a string, a buffer, a hash.
pub trait Sink {
    /// Takes the next piece.
    fn write(&mut self, text: &str);
}

impl Sink for String {
    fn write(&mut self, text: &str) {
        self.push_str(text);
    }
}

impl Sink for Vec<u8> {
    fn write(&mut self, text: &str) {
        self.extend_from_slice(text.as_bytes());
    }
}

impl Document<'_> {
    /// The canonical text, without what `ignore` leaves out.
    pub fn canonical(&self, ignore: &Ignore) -> String {
        let mut text = String::new();
        self.write_canonical(ignore, &mut text);
        text
    }

    /// Writes the canonical text, without what `ignore` leaves out. RFC 8785, section 3.2.
    ///
    /// Takes time in proportion to the document, plus that of sorting the members of each object.
    pub fn write_canonical(&self, ignore: &Ignore, sink: &mut impl Sink) {
        let mut writer = Writer {
            tokens: self.tokens(),
            ignore,
            members: Vec::new(),
            open: Vec::new(),
        };
        let mut next = Some((0, ignore.root()));
        while let Some((at, alive)) = next {
            writer.begin_value(at, alive, sink);
            next = writer.next_value(sink);
        }
    }
}

/// The state of writing one document, on the heap instead of the call stack.
struct Writer<'d> {
    tokens: &'d [Token<'d>],
    ignore: &'d Ignore,
    /// The members that are still to come, of every open object, the next one last: name, and position of the value.
    members: Vec<(&'d str, usize)>,
    open: Vec<Open>,
}

/// A container that is being written.
struct Open {
    contents: Contents,
    /// The ignore pointers that may match inside.
    alive: Alive,
    first: bool,
}

enum Contents {
    /// The object's members are those above this position of [`Writer::members`].
    Members(usize),
    Elements {
        next: usize,
        end: usize,
        /// The array position of the next element.
        position: usize,
    },
}

impl Writer<'_> {
    /// Writes the scalar at `at`, or the beginning of the container there.
    fn begin_value(&mut self, at: usize, alive: Alive, sink: &mut impl Sink) {
        match &self.tokens[at] {
            Token::Null => sink.write("null"),
            Token::Bool(true) => sink.write("true"),
            Token::Bool(false) => sink.write("false"),
            Token::Number(canonical) => sink.write(canonical),
            Token::String(text) => write_string(text, sink),
            // A name is skipped on the way to its value.
            Token::Name(name) => write_string(name, sink),
            Token::Object { end } => {
                sink.write("{");
                let members = self.members.len();
                self.collect_members(at + 1, *end);
                self.open.push(Open {
                    contents: Contents::Members(members),
                    alive,
                    first: true,
                });
            }
            Token::Array { end } => {
                sink.write("[");
                let contents = Contents::Elements {
                    next: at + 1,
                    end: *end,
                    position: 0,
                };
                self.open.push(Open {
                    contents,
                    alive,
                    first: true,
                });
            }
        }
    }

    /// Pushes the members that lie from `at` up to `end`, so that they are popped in canonical order: RFC 8785, section
    /// 3.2.3. Of equal names the last one is popped first.
    fn collect_members(&mut self, mut at: usize, end: usize) {
        let begin = self.members.len();
        while at < end {
            if let Token::Name(name) = &self.tokens[at] {
                self.members.push((name, at + 1));
            }
            at = self.after(at + 1);
        }
        self.members[begin..].sort_unstable_by(|(left, left_at), (right, right_at)| {
            utf16_order(right, left).then(left_at.cmp(right_at))
        });
    }

    /// The position after the value at `at`.
    fn after(&self, at: usize) -> usize {
        match &self.tokens[at] {
            Token::Object { end } | Token::Array { end } => *end,
            Token::Null | Token::Bool(_) | Token::Number(_) | Token::String(_) | Token::Name(_) => {
                at + 1
            }
        }
    }

    /// Ends what is complete, and finds the next value, its separator and name written. `None` is the end.
    fn next_value(&mut self, sink: &mut impl Sink) -> Option<(usize, Alive)> {
        loop {
            let depth = self.open.len().checked_sub(1)?;
            let next = match self.open[depth].contents {
                Contents::Members(begin) => self.next_member(depth, begin, sink),
                Contents::Elements {
                    next,
                    end,
                    position,
                } => self.next_element(depth, next, end, position, sink),
            };
            if next.is_some() {
                return next;
            }
            self.open.pop();
        }
    }

    fn next_member(
        &mut self,
        depth: usize,
        begin: usize,
        sink: &mut impl Sink,
    ) -> Option<(usize, Alive)> {
        while self.members.len() > begin {
            let (name, at) = self.members.pop()?;
            while self.members.len() > begin
                && self.members.last().is_some_and(|(other, _)| *other == name)
            {
                self.members.pop();
            }
            let open = &mut self.open[depth];
            if let Step::Keep(inside) = self.ignore.member(open.alive, depth, name) {
                if !std::mem::take(&mut open.first) {
                    sink.write(",");
                }
                write_string(name, sink);
                sink.write(":");
                return Some((at, inside));
            }
        }
        sink.write("}");
        None
    }

    fn next_element(
        &mut self,
        depth: usize,
        mut at: usize,
        end: usize,
        mut position: usize,
        sink: &mut impl Sink,
    ) -> Option<(usize, Alive)> {
        while at < end {
            let next = self.after(at);
            let open = &mut self.open[depth];
            if let Step::Keep(inside) = self.ignore.element(open.alive, depth, position) {
                open.contents = Contents::Elements {
                    next,
                    end,
                    position: position + 1,
                };
                if !std::mem::take(&mut open.first) {
                    sink.write(",");
                }
                return Some((at, inside));
            }
            at = next;
            position += 1;
        }
        sink.write("]");
        None
    }
}

/// The order of RFC 8785, section 3.2.3: by UTF-16 code units, without converting to them.
///
/// It is the order of the UTF-8 bytes, which is that of the code points, except that surrogates (`U+10000` and above,
/// first bytes `F0` to `F4`) come before `U+E000` to `U+FFFF` (first bytes `EE` and `EF`).
fn utf16_order(left: &str, right: &str) -> Ordering {
    fn rank(byte: u8) -> u8 {
        if byte == 0xEE || byte == 0xEF {
            byte + 0x10
        } else {
            byte
        }
    }
    let (left, right) = (left.as_bytes(), right.as_bytes());
    match left.iter().zip(right).find(|(left, right)| left != right) {
        // Equal bytes before it: both are first bytes, or both are later bytes of characters of one length.
        Some((left, right)) => rank(*left).cmp(&rank(*right)),
        None => left.len().cmp(&right.len()),
    }
}

/// Writes a string with its quotes. RFC 8785, section 3.2.2.2: the escapes of ECMA-262, `QuoteJSONString`.
fn write_string(text: &str, sink: &mut impl Sink) {
    sink.write("\"");
    let mut written = 0;
    for (at, byte) in text.bytes().enumerate() {
        if let Some(escape) = escape(byte) {
            if written < at {
                sink.write(&text[written..at]);
            }
            sink.write(escape);
            written = at + 1;
        }
    }
    if written < text.len() {
        sink.write(&text[written..]);
    }
    sink.write("\"");
}

fn escape(byte: u8) -> Option<&'static str> {
    match byte {
        b'"' => Some("\\\""),
        b'\\' => Some("\\\\"),
        0x00..=0x1F => Some(CONTROL_ESCAPES[usize::from(byte)]),
        _ => None,
    }
}

const CONTROL_ESCAPES: [&str; 0x20] = [
    "\\u0000", "\\u0001", "\\u0002", "\\u0003", "\\u0004", "\\u0005", "\\u0006", "\\u0007", "\\b",
    "\\t", "\\n", "\\u000b", "\\f", "\\r", "\\u000e", "\\u000f", "\\u0010", "\\u0011", "\\u0012",
    "\\u0013", "\\u0014", "\\u0015", "\\u0016", "\\u0017", "\\u0018", "\\u0019", "\\u001a",
    "\\u001b", "\\u001c", "\\u001d", "\\u001e", "\\u001f",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn string_text(text: &str) -> String {
        let mut sink = String::new();
        write_string(text, &mut sink);
        sink
    }

    fn canonical(build: impl Fn(&mut Builder<'static>)) -> Result<String, DocumentError> {
        let mut builder = Builder::new();
        build(&mut builder);
        builder
            .finish()
            .map(|document| document.canonical(&Ignore::none()))
    }

    #[test]
    fn members_are_in_order_and_empty_containers_are_kept() {
        let text = canonical(|builder| {
            builder.begin_object();
            builder.member("b");
            builder.begin_array();
            builder.null();
            builder.bool(true);
            builder.bool(false);
            builder.begin_object();
            builder.end_object();
            builder.begin_array();
            builder.end_array();
            builder.end_array();
            builder.member("a");
            builder.begin_object();
            builder.member("z");
            builder.number("1.0");
            builder.member("");
            builder.string("s");
            builder.end_object();
            builder.end_object();
        });
        assert_eq!(
            text.as_deref(),
            Ok(r#"{"a":{"":"s","z":1},"b":[null,true,false,{},[]]}"#)
        );
    }

    #[test]
    fn strings_have_the_escapes_of_rfc_8785() {
        assert_eq!(string_text("\u{8}\t\n\u{c}\r\"\\/"), r#""\b\t\n\f\r\"\\/""#);
        assert_eq!(
            string_text("a\u{0}b\u{1}\u{b}\u{e}\u{1f}"),
            r#""a\u0000b\u0001\u000b\u000e\u001f""#
        );
        let literal = " ~\u{7f}\u{80}é\u{2028}\u{2029}\u{feff}\u{e000}\u{ffff}😂\u{10ffff}";
        assert_eq!(string_text(literal), format!("\"{literal}\""));
        assert_eq!(string_text("é\"é"), "\"é\\\"é\"");
    }

    #[test]
    fn every_control_character_has_its_escape() {
        for (code, escape) in (0u32..).zip(CONTROL_ESCAPES) {
            let expected = match code {
                0x08 => "\\b".to_owned(),
                0x09 => "\\t".to_owned(),
                0x0A => "\\n".to_owned(),
                0x0C => "\\f".to_owned(),
                0x0D => "\\r".to_owned(),
                _ => format!("\\u{code:04x}"),
            };
            assert_eq!(escape, expected);
        }
    }

    #[test]
    fn names_are_ordered_by_utf_16_code_units() {
        let characters = [
            "",
            "\0",
            "A",
            "a",
            "\u{7f}",
            "\u{80}",
            "\u{7ff}",
            "\u{800}",
            "\u{d7ff}",
            "\u{dfff0}",
            "\u{e000}",
            "\u{efff}",
            "\u{f000}",
            "\u{fb33}",
            "\u{ffff}",
            "\u{10000}",
            "\u{1f602}",
            "\u{40000}",
            "\u{10ffff}",
        ];
        let names: Vec<String> = characters
            .iter()
            .flat_map(|first| characters.map(|second| format!("{first}{second}")))
            .collect();
        for left in &names {
            for right in &names {
                let expected = left.encode_utf16().cmp(right.encode_utf16());
                assert_eq!(utf16_order(left, right), expected, "{left:?} {right:?}");
            }
        }
    }

    #[test]
    fn deep_documents_are_written_in_linear_time() {
        const DEPTH: usize = 5_000;
        let leaf = "x".repeat(1 << 20);
        let started = Instant::now();
        let mut builder = Builder::new();
        for _ in 0..DEPTH {
            builder.begin_object();
            builder.member("a");
        }
        builder.string(leaf.as_str());
        for _ in 0..DEPTH {
            builder.end_object();
        }
        let text = builder
            .finish()
            .expect("a document")
            .canonical(&Ignore::none());
        assert_eq!(
            text,
            format!("{}\"{leaf}\"{}", "{\"a\":".repeat(DEPTH), "}".repeat(DEPTH))
        );
        // One copy of the leaf per level would be 5 GB.
        assert!(
            started.elapsed() < Duration::from_secs(2),
            "{:?}",
            started.elapsed()
        );
    }

    #[test]
    fn no_depth_exhausts_the_stack() {
        const DEPTH: usize = 1_000_000;
        let text = canonical(|builder| {
            (0..DEPTH).for_each(|_| builder.begin_array());
            (0..DEPTH).for_each(|_| builder.end_array());
        });
        assert_eq!(text, Ok("[".repeat(DEPTH) + &"]".repeat(DEPTH)));
    }
}
