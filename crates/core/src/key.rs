//! The names a caller gives: keys, scopes, runs, operations.
//!
//! Checks their limits and composes the key of one operation of a run. Never trims, folds or normalises: names are
//! compared byte for byte, so `'a'`, `'a '` and `'A'` are three keys.

use std::fmt;

use crate::canonical::Document;
use crate::digest::texts_digest;
use crate::ignore::Ignore;

/// The longest key.
pub const KEY_BYTES_MAX: usize = 1_024;

/// The longest name of a scope.
pub const SCOPE_NAME_BYTES_MAX: usize = 255;

/// The longest name of a run.
pub const RUN_BYTES_MAX: usize = 1_024;

/// How many hexadecimal digits stand for the arguments in a key composed by [`run_operation_key`].
const ARGS_HEX_DIGITS: usize = 32;

/// What a name names, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// The caller's name for one logical operation.
    Key,
    /// The namespace of keys.
    Scope,
    /// A longer piece of work.
    Run,
    /// One operation of a run.
    Operation,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "key",
            Self::Scope => "scope",
            Self::Run => "run",
            Self::Operation => "operation",
        })
    }
}

/// Why a name was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyError {
    /// It has no bytes.
    Empty {
        /// Which name.
        name: Name,
    },
    /// It has too many bytes.
    TooLong {
        /// Which name.
        name: Name,
        /// How many there are.
        bytes: usize,
        /// How many there may be.
        bytes_max: usize,
    },
    /// The operation contains `/`, which separates it from its run.
    OperationWithSlash,
    /// The operation looks like the arguments at the end of a composed key: 32 lower-case hexadecimal digits.
    OperationLikeArguments,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { name } => write!(f, "{name} must not be empty"),
            Self::TooLong {
                name,
                bytes,
                bytes_max,
            } => write!(f, "{name} has {bytes} bytes, the limit is {bytes_max}"),
            Self::OperationWithSlash => f.write_str("operation must not contain \"/\""),
            Self::OperationLikeArguments => {
                write!(
                    f,
                    "operation must not be {ARGS_HEX_DIGITS} lower-case hexadecimal digits"
                )
            }
        }
    }
}

impl std::error::Error for KeyError {}

/// A key: 1 to [`KEY_BYTES_MAX`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key<'a>(&'a str);

impl<'a> Key<'a> {
    /// Checks the length.
    pub fn parse(text: &'a str) -> Result<Self, KeyError> {
        check_length(Name::Key, text, KEY_BYTES_MAX).map(Self)
    }

    /// The key, byte for byte as it was given.
    pub fn as_str(self) -> &'a str {
        self.0
    }
}

/// The name of a scope: 1 to [`SCOPE_NAME_BYTES_MAX`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScopeName<'a>(&'a str);

impl<'a> ScopeName<'a> {
    /// Checks the length.
    pub fn parse(text: &'a str) -> Result<Self, KeyError> {
        check_length(Name::Scope, text, SCOPE_NAME_BYTES_MAX).map(Self)
    }

    /// The name, byte for byte as it was given.
    pub fn as_str(self) -> &'a str {
        self.0
    }
}

/// The name of a run: 1 to [`RUN_BYTES_MAX`] bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run<'a>(&'a str);

impl<'a> Run<'a> {
    /// Checks the length.
    pub fn parse(text: &'a str) -> Result<Self, KeyError> {
        check_length(Name::Run, text, RUN_BYTES_MAX).map(Self)
    }

    /// The name, byte for byte as it was given.
    pub fn as_str(self) -> &'a str {
        self.0
    }
}

/// The key of one operation of a run: `<run>/<operation>` and, with arguments, `/` and 32 lower-case hexadecimal digits,
/// the first 16 bytes of SHA-256 over run, operation and canonical arguments, each after its length in bytes as a
/// big-endian `u64`. Frozen for ever.
///
/// A run may contain `/`. Different inputs still give different keys: the last segment that is not 32 hexadecimal digits
/// is the operation, which is why an operation may be neither such digits nor contain `/`.
pub fn run_operation_key(
    run: &str,
    operation: &str,
    args: Option<&Document<'_>>,
) -> Result<String, KeyError> {
    let run = Run::parse(run)?.as_str();
    check_operation(operation)?;
    let bytes =
        run.len() + "/".len() + operation.len() + args.map_or(0, |_| "/".len() + ARGS_HEX_DIGITS);
    if bytes > KEY_BYTES_MAX {
        return Err(KeyError::TooLong {
            name: Name::Key,
            bytes,
            bytes_max: KEY_BYTES_MAX,
        });
    }
    let mut key = String::with_capacity(bytes);
    key.push_str(run);
    key.push('/');
    key.push_str(operation);
    if let Some(args) = args {
        key.push('/');
        push_hex(
            &mut key,
            &texts_digest(&[run, operation, &args.canonical(&Ignore::none())]),
        );
    }
    Ok(key)
}

fn check_length(name: Name, text: &str, bytes_max: usize) -> Result<&str, KeyError> {
    match text.len() {
        0 => Err(KeyError::Empty { name }),
        bytes if bytes > bytes_max => Err(KeyError::TooLong {
            name,
            bytes,
            bytes_max,
        }),
        _ => Ok(text),
    }
}

fn check_operation(operation: &str) -> Result<(), KeyError> {
    if operation.is_empty() {
        return Err(KeyError::Empty {
            name: Name::Operation,
        });
    }
    if operation.contains('/') {
        return Err(KeyError::OperationWithSlash);
    }
    let hex = operation
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if hex && operation.len() == ARGS_HEX_DIGITS {
        return Err(KeyError::OperationLikeArguments);
    }
    Ok(())
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    const DIGITS: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)]);
        text.push(DIGITS[usize::from(byte & 0x0F)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::Builder;

    fn too_long(name: Name, bytes: usize, bytes_max: usize) -> KeyError {
        KeyError::TooLong {
            name,
            bytes,
            bytes_max,
        }
    }

    #[test]
    fn lengths_are_counted_in_bytes_and_exact() {
        let text = "é".repeat(513);
        assert_eq!(Key::parse(""), Err(KeyError::Empty { name: Name::Key }));
        assert_eq!(
            Key::parse(&text[..1_024]).map(Key::as_str),
            Ok(&text[..1_024])
        );
        assert_eq!(Key::parse(&text), Err(too_long(Name::Key, 1_026, 1_024)));

        let text = "s".repeat(256);
        assert_eq!(
            ScopeName::parse(""),
            Err(KeyError::Empty { name: Name::Scope })
        );
        assert_eq!(
            ScopeName::parse(&text[1..]).map(ScopeName::as_str),
            Ok(&text[1..])
        );
        assert_eq!(
            ScopeName::parse(&text),
            Err(too_long(Name::Scope, 256, 255))
        );

        let text = "r".repeat(1_025);
        assert_eq!(Run::parse(""), Err(KeyError::Empty { name: Name::Run }));
        assert_eq!(Run::parse(&text[1..]).map(Run::as_str), Ok(&text[1..]));
        assert_eq!(Run::parse(&text), Err(too_long(Name::Run, 1_025, 1_024)));
    }

    #[test]
    fn names_are_taken_as_they_are() {
        for text in [" ", "a ", "A", "e\u{301}", "\u{e9}", "\t"] {
            assert_eq!(Key::parse(text).map(Key::as_str), Ok(text));
        }
    }

    #[test]
    fn key_without_arguments_is_run_and_operation() {
        assert_eq!(
            run_operation_key("run-7", "charge", None).as_deref(),
            Ok("run-7/charge")
        );
        assert_eq!(run_operation_key("a/b", "c", None).as_deref(), Ok("a/b/c"));
    }

    /// From Python: `hashlib.sha256` over run, operation and canonical text, each after its length as 8 bytes.
    #[test]
    fn key_with_arguments_is_frozen() {
        let mut builder = Builder::new();
        builder.begin_object();
        builder.member("amount");
        builder.number("1.00");
        builder.end_object();
        let amount = builder.finish().expect("a document");
        let key = run_operation_key("run-7", "charge", Some(&amount));
        assert_eq!(
            key.as_deref(),
            Ok("run-7/charge/aad9647043b48ca1e2ab17cab2d6e409")
        );

        let mut builder = Builder::new();
        builder.null();
        let null = builder.finish().expect("a document");
        let key = run_operation_key("run-7", "charge", Some(&null));
        assert_eq!(
            key.as_deref(),
            Ok("run-7/charge/95176aac3961dadd5e118e33e35ea9ce")
        );

        let mut builder = Builder::new();
        builder.begin_object();
        builder.member("€");
        builder.begin_array();
        builder.number("1");
        builder.string("x");
        builder.end_array();
        builder.end_object();
        let array = builder.finish().expect("a document");
        let key = run_operation_key("a/b", "c", Some(&array));
        assert_eq!(key.as_deref(), Ok("a/b/c/582fd4e61ae0d4ae4a1599170e02ea19"));
    }

    #[test]
    fn operation_that_could_be_taken_for_something_else_is_refused() {
        let digits = "0123456789abcdef0123456789abcdef";
        for (operation, error) in [
            (
                "",
                KeyError::Empty {
                    name: Name::Operation,
                },
            ),
            ("/", KeyError::OperationWithSlash),
            ("a/b", KeyError::OperationWithSlash),
            (digits, KeyError::OperationLikeArguments),
        ] {
            assert_eq!(
                run_operation_key("run", operation, None),
                Err(error),
                "{operation}"
            );
        }
        for operation in [
            &digits[1..],
            "0123456789ABCDEF0123456789ABCDEF",
            "0123456789abcdef0123456789abcdeg",
        ] {
            assert_eq!(
                run_operation_key("run", operation, None),
                Ok(format!("run/{operation}"))
            );
        }
    }

    #[test]
    fn composed_key_is_no_longer_than_a_key() {
        let mut builder = Builder::new();
        builder.null();
        let null = builder.finish().expect("a document");
        let run = "r".repeat(1_022);
        assert_eq!(
            run_operation_key(&run, "o", None).map(|key| key.len()),
            Ok(1_024)
        );
        assert_eq!(
            run_operation_key(&run, "oo", None),
            Err(too_long(Name::Key, 1_025, 1_024))
        );
        assert_eq!(
            run_operation_key(&run[33..], "o", Some(&null)).map(|key| key.len()),
            Ok(1_024)
        );
        assert_eq!(
            run_operation_key(&run[32..], "o", Some(&null)),
            Err(too_long(Name::Key, 1_025, 1_024))
        );
        assert_eq!(
            run_operation_key("", "o", None),
            Err(KeyError::Empty { name: Name::Run })
        );
        assert_eq!(
            run_operation_key(&"r".repeat(1_025), "o", None),
            Err(too_long(Name::Run, 1_025, 1_024))
        );
    }
}
