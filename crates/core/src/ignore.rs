//! Which parts of the arguments a scope leaves out of their hash.
//!
//! Parses the JSON Pointers (RFC 6901) of a scope's `ignore_args` and answers, step by step along a walk from the root,
//! whether what was reached is left out. Never sees a value: names and positions alone decide.

use std::fmt;

/// The most pointers in one list. What is alive at a place of the walk is a set of pointers in one `u64`.
pub const IGNORE_POINTERS_MAX: usize = 64;

/// The longest pointer.
pub const IGNORE_POINTER_BYTES_MAX: usize = 1_024;

/// The most segments in one pointer.
pub const IGNORE_SEGMENTS_MAX: usize = 32;

/// A list of JSON Pointers (RFC 6901) to what the canonical form leaves out: members and array elements.
///
/// A segment matches, in an object, the member of that name; in an array, the element at that position when it is a
/// number without leading zeros (RFC 6901, section 4). One addition: the segment `*` matches every element of an array.
/// It never matches a member, not even one that is named `*`, which therefore cannot be left out on its own: leaving out
/// too little is visible, leaving out too much is not. The segment `-` matches no element.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ignore {
    pointers: Vec<Vec<Segment>>,
}

/// The pointers, by position in their list, whose first segments match the path walked so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Alive(u64);

/// What to do with a member or an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A pointer ends here.
    LeaveOut,
    /// Keep it, and look inside with these pointers.
    Keep(Alive),
}

/// Why a list of pointers was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IgnoreError {
    /// The list has more pointers than [`IGNORE_POINTERS_MAX`].
    TooMany {
        /// How many there are.
        pointers: usize,
    },
    /// The empty pointer is the whole document: leaving it out would make all arguments equal.
    WholeDocument,
    /// RFC 6901 pointers begin with `/`.
    NoLeadingSlash {
        /// The pointer.
        pointer: String,
    },
    /// `~` is followed by neither `0` (for `~`) nor `1` (for `/`).
    BadEscape {
        /// The pointer.
        pointer: String,
    },
    /// The pointer is longer than [`IGNORE_POINTER_BYTES_MAX`].
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The pointer has more segments than [`IGNORE_SEGMENTS_MAX`].
    TooDeep {
        /// The pointer.
        pointer: String,
        /// How many there are.
        segments: usize,
    },
}

impl fmt::Display for IgnoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { pointers } => {
                write!(
                    f,
                    "list has {pointers} JSON pointers, the limit is {IGNORE_POINTERS_MAX}"
                )
            }
            Self::WholeDocument => {
                f.write_str("JSON pointer \"\" would leave out the whole document")
            }
            Self::NoLeadingSlash { pointer } => {
                write!(f, "JSON pointer \"{pointer}\" does not begin with \"/\"")
            }
            Self::BadEscape { pointer } => {
                write!(
                    f,
                    "JSON pointer \"{pointer}\" has a \"~\" that is followed by neither \"0\" nor \"1\""
                )
            }
            Self::TooLong { bytes } => {
                write!(
                    f,
                    "JSON pointer has {bytes} bytes, the limit is {IGNORE_POINTER_BYTES_MAX}"
                )
            }
            Self::TooDeep { pointer, segments } => {
                write!(
                    f,
                    "JSON pointer \"{pointer}\" has {segments} segments, the limit is {IGNORE_SEGMENTS_MAX}"
                )
            }
        }
    }
}

impl std::error::Error for IgnoreError {}

impl Ignore {
    /// Leaves nothing out.
    pub const fn none() -> Self {
        Self {
            pointers: Vec::new(),
        }
    }

    /// Parses a list of pointers. RFC 6901, sections 3 and 4.
    pub fn parse(pointers: &[&str]) -> Result<Self, IgnoreError> {
        if pointers.len() > IGNORE_POINTERS_MAX {
            return Err(IgnoreError::TooMany {
                pointers: pointers.len(),
            });
        }
        let pointers = pointers
            .iter()
            .map(|pointer| parse_pointer(pointer))
            .collect::<Result<_, _>>()?;
        Ok(Self { pointers })
    }

    /// Whether nothing is left out.
    pub fn is_empty(&self) -> bool {
        self.pointers.is_empty()
    }

    /// All pointers: what is alive at the root.
    pub(crate) fn root(&self) -> Alive {
        Alive((0..self.pointers.len()).fold(0, |alive, at| alive | 1 << at))
    }

    /// The step from an object that lies `depth` steps below the root to its member `name`.
    pub(crate) fn member(&self, alive: Alive, depth: usize, name: &str) -> Step {
        self.step(alive, depth, |segment| match segment {
            Segment::AnyElement => false,
            Segment::Name { name: wanted, .. } => **wanted == *name,
        })
    }

    /// The step from an array that lies `depth` steps below the root to its element at `position`.
    pub(crate) fn element(&self, alive: Alive, depth: usize, position: usize) -> Step {
        self.step(alive, depth, |segment| match segment {
            Segment::AnyElement => true,
            Segment::Name {
                position: wanted, ..
            } => *wanted == Some(position),
        })
    }

    #[inline]
    fn step(&self, alive: Alive, depth: usize, matches: impl Fn(&Segment) -> bool) -> Step {
        let mut rest = alive.0;
        let mut inside = 0;
        while rest != 0 {
            let at = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let pointer = &self.pointers[at];
            // A pointer stays alive only while it has segments left, so `depth` is within it.
            if matches(&pointer[depth]) {
                if pointer.len() == depth + 1 {
                    return Step::LeaveOut;
                }
                inside |= 1 << at;
            }
        }
        Step::Keep(Alive(inside))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    AnyElement,
    Name {
        name: Box<str>,
        /// The array position that the name spells, if it does.
        position: Option<usize>,
    },
}

fn parse_pointer(pointer: &str) -> Result<Vec<Segment>, IgnoreError> {
    if pointer.len() > IGNORE_POINTER_BYTES_MAX {
        return Err(IgnoreError::TooLong {
            bytes: pointer.len(),
        });
    }
    if pointer.is_empty() {
        return Err(IgnoreError::WholeDocument);
    }
    let Some(path) = pointer.strip_prefix('/') else {
        return Err(IgnoreError::NoLeadingSlash {
            pointer: pointer.to_owned(),
        });
    };
    let segments = path.split('/').count();
    if segments > IGNORE_SEGMENTS_MAX {
        return Err(IgnoreError::TooDeep {
            pointer: pointer.to_owned(),
            segments,
        });
    }
    let parsed: Option<Vec<Segment>> = path.split('/').map(parse_segment).collect();
    parsed.ok_or_else(|| IgnoreError::BadEscape {
        pointer: pointer.to_owned(),
    })
}

/// `None` for a bad escape.
fn parse_segment(escaped: &str) -> Option<Segment> {
    if escaped == "*" {
        return Some(Segment::AnyElement);
    }
    let mut pieces = escaped.split('~');
    let mut name = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (character, rest) = match piece.as_bytes().first() {
            Some(b'0') => ('~', &piece[1..]),
            Some(b'1') => ('/', &piece[1..]),
            _ => return None,
        };
        name.push(character);
        name.push_str(rest);
    }
    let position = parse_position(&name);
    Some(Segment::Name {
        name: name.into_boxed_str(),
        position,
    })
}

/// An array position has no sign and no leading zeros (RFC 6901, section 4). One that is too large for any array is none.
fn parse_position(name: &str) -> Option<usize> {
    let canonical = name == "0" || !name.starts_with('0');
    let digits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    if canonical && digits {
        name.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::Builder;

    /// `{"*":9,"a":[{"t":1,"v":2},{"t":3}],"b/c":4,"d~e":5,"":6,"0":[7,8]}` without what the pointers match.
    fn without(pointers: &[&str]) -> String {
        let mut builder = Builder::new();
        builder.begin_object();
        for (name, number) in [("*", "9"), ("b/c", "4"), ("d~e", "5"), ("", "6")] {
            builder.member(name);
            builder.number(number);
        }
        builder.member("a");
        builder.begin_array();
        builder.begin_object();
        builder.member("t");
        builder.number("1");
        builder.member("v");
        builder.number("2");
        builder.end_object();
        builder.begin_object();
        builder.member("t");
        builder.number("3");
        builder.end_object();
        builder.end_array();
        builder.member("0");
        builder.begin_array();
        builder.number("7");
        builder.number("8");
        builder.end_array();
        builder.end_object();
        let document = builder.finish().expect("a document");
        document.canonical(&Ignore::parse(pointers).expect("pointers"))
    }

    #[test]
    fn what_a_pointer_matches_is_left_out() {
        let cases: [(&[&str], &str); 13] = [
            (
                &[],
                r#"{"":6,"*":9,"0":[7,8],"a":[{"t":1,"v":2},{"t":3}],"b/c":4,"d~e":5}"#,
            ),
            (&["/a"], r#"{"":6,"*":9,"0":[7,8],"b/c":4,"d~e":5}"#),
            (
                &["/a/*/t"],
                r#"{"":6,"*":9,"0":[7,8],"a":[{"v":2},{}],"b/c":4,"d~e":5}"#,
            ),
            (
                &["/a/1"],
                r#"{"":6,"*":9,"0":[7,8],"a":[{"t":1,"v":2}],"b/c":4,"d~e":5}"#,
            ),
            (
                &["/a/0/t", "/a/*/v"],
                r#"{"":6,"*":9,"0":[7,8],"a":[{},{"t":3}],"b/c":4,"d~e":5}"#,
            ),
            (
                &["/a/*", "/0/0"],
                r#"{"":6,"*":9,"0":[8],"a":[],"b/c":4,"d~e":5}"#,
            ),
            (
                &["/0"],
                r#"{"":6,"*":9,"a":[{"t":1,"v":2},{"t":3}],"b/c":4,"d~e":5}"#,
            ),
            (
                &["/b~1c", "/d~0e"],
                r#"{"":6,"*":9,"0":[7,8],"a":[{"t":1,"v":2},{"t":3}]}"#,
            ),
            (
                &["/"],
                r#"{"*":9,"0":[7,8],"a":[{"t":1,"v":2},{"t":3}],"b/c":4,"d~e":5}"#,
            ),
            (
                &["/*"],
                r#"{"":6,"*":9,"0":[7,8],"a":[{"t":1,"v":2},{"t":3}],"b/c":4,"d~e":5}"#,
            ),
            (
                &["/*/t", "/a/t", "/a/2"],
                r#"{"":6,"*":9,"0":[7,8],"a":[{"t":1,"v":2},{"t":3}],"b/c":4,"d~e":5}"#,
            ),
            (
                &["/a/00", "/a/-", "/a/+1"],
                r#"{"":6,"*":9,"0":[7,8],"a":[{"t":1,"v":2},{"t":3}],"b/c":4,"d~e":5}"#,
            ),
            (&["/a", "/b~1c", "/d~0e", "/", "/0"], r#"{"*":9}"#),
        ];
        for (pointers, text) in cases {
            assert_eq!(without(pointers), text, "{pointers:?}");
        }
    }

    #[test]
    fn root_is_never_left_out() {
        let mut builder = Builder::new();
        builder.string("x");
        let document = builder.finish().expect("a document");
        assert_eq!(
            document.canonical(&Ignore::parse(&["/", "/*", "/0"]).expect("pointers")),
            r#""x""#
        );
    }

    #[test]
    fn bad_pointers_are_refused() {
        let owned = |pointer: &str| pointer.to_owned();
        assert_eq!(Ignore::parse(&["/a", ""]), Err(IgnoreError::WholeDocument));
        assert_eq!(
            Ignore::parse(&["a"]),
            Err(IgnoreError::NoLeadingSlash {
                pointer: owned("a")
            })
        );
        for pointer in ["/a~", "/~2", "/a/~/b", "/~~0", "/~01~"] {
            assert_eq!(
                Ignore::parse(&[pointer]),
                Err(IgnoreError::BadEscape {
                    pointer: owned(pointer)
                })
            );
        }
    }

    #[test]
    fn limits_are_exact() {
        let most = vec!["/a"; IGNORE_POINTERS_MAX];
        assert_eq!(
            Ignore::parse(&most).map(|ignore| ignore.root()),
            Ok(Alive(u64::MAX))
        );
        let more = vec!["/a"; IGNORE_POINTERS_MAX + 1];
        assert_eq!(
            Ignore::parse(&more),
            Err(IgnoreError::TooMany { pointers: 65 })
        );

        let longest = format!("/{}", "a".repeat(IGNORE_POINTER_BYTES_MAX - 1));
        assert!(Ignore::parse(&[&longest]).is_ok());
        assert_eq!(
            Ignore::parse(&[&format!("{longest}a")]),
            Err(IgnoreError::TooLong { bytes: 1_025 })
        );

        let deepest = "/a".repeat(IGNORE_SEGMENTS_MAX);
        assert!(Ignore::parse(&[&deepest]).is_ok());
        let deeper = "/a".repeat(IGNORE_SEGMENTS_MAX + 1);
        assert_eq!(
            Ignore::parse(&[&deeper]),
            Err(IgnoreError::TooDeep {
                pointer: deeper.clone(),
                segments: 33
            })
        );
    }

    #[test]
    fn pointer_64_matches_alone() {
        let names: Vec<String> = (0..IGNORE_POINTERS_MAX)
            .map(|at| format!("/n{at}"))
            .collect();
        let pointers: Vec<&str> = names.iter().map(String::as_str).collect();
        let ignore = Ignore::parse(&pointers).expect("pointers");
        assert_eq!(ignore.member(ignore.root(), 0, "n63"), Step::LeaveOut);
        assert_eq!(ignore.member(ignore.root(), 0, "n64"), Step::Keep(Alive(0)));
    }

    #[test]
    fn empty_list_is_none() {
        assert_eq!(Ignore::parse(&[]), Ok(Ignore::none()));
        assert!(Ignore::none().is_empty());
    }
}
