//! A JSON document as the events of a walk over it.
//!
//! Keeps the events in one flat list and checks that they make a document. Never recurses, so that no nesting exhausts
//! the stack, and copies no text that its source lends.

use std::borrow::Cow;
use std::fmt;

use crate::number::{NumberError, canonical_number};

/// A JSON document, recorded by a [`Builder`] and complete by construction.
#[derive(Debug, Clone)]
pub struct Document<'a> {
    /// The document in its own order. A container is followed by what it holds, an object's value by nothing but its
    /// name before it.
    tokens: Vec<Token<'a>>,
}

/// Records a document from the events of a walk over it.
///
/// Events that do not make a document are remembered, not panicked about: [`Builder::finish`] reports the first.
#[derive(Debug, Clone, Default)]
pub struct Builder<'a> {
    tokens: Vec<Token<'a>>,
    /// The containers that have not ended, by their positions in `tokens`.
    open: Vec<(Container, usize)>,
    /// Whether the last event was a member's name.
    named: bool,
    error: Option<DocumentError>,
}

/// Why the events do not make a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentError {
    /// There was no value at all.
    Empty,
    /// An object or array was not ended.
    NotEnded,
    /// A value came after the end of the document.
    SecondValue,
    /// An object's value came without a name.
    NoName,
    /// A member's name came outside an object, or where its value was due.
    UnexpectedName,
    /// An end that does not fit what was begun last, or came where a member's value was due.
    UnexpectedEnd,
    /// The text of a number.
    Number(NumberError),
}

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("document has no value"),
            Self::NotEnded => f.write_str("document ends inside an object or array"),
            Self::SecondValue => f.write_str("document has a second value at its root"),
            Self::NoName => f.write_str("value in an object has no member name"),
            Self::UnexpectedName => f.write_str("member name stands where none can"),
            Self::UnexpectedEnd => {
                f.write_str("end does not fit the object or array that was begun last")
            }
            Self::Number(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for DocumentError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Number(error) => Some(error),
            Self::Empty
            | Self::NotEnded
            | Self::SecondValue
            | Self::NoName
            | Self::UnexpectedName
            | Self::UnexpectedEnd => None,
        }
    }
}

/// One event of the walk.
#[derive(Debug, Clone)]
pub(crate) enum Token<'a> {
    Null,
    Bool(bool),
    /// Canonical text already.
    Number(Cow<'a, str>),
    String(Cow<'a, str>),
    /// The member's value follows.
    Name(Cow<'a, str>),
    /// `end` is the position after its last token.
    Object {
        end: usize,
    },
    Array {
        end: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    Object,
    Array,
}

impl Container {
    fn token<'a>(self, end: usize) -> Token<'a> {
        match self {
            Self::Object => Token::Object { end },
            Self::Array => Token::Array { end },
        }
    }
}

impl<'a> Builder<'a> {
    /// An empty document.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins an object: members follow, then [`Builder::end_object`].
    pub fn begin_object(&mut self) {
        self.begin(Container::Object);
    }

    /// The name of the next member; its value follows. Where a name comes twice in one object, the last one wins, as in
    /// `jsonb` (which never passes on two).
    pub fn member(&mut self, name: impl Into<Cow<'a, str>>) {
        if self.innermost() == Some(Container::Object) && !self.named {
            self.named = true;
            self.tokens.push(Token::Name(name.into()));
        } else {
            self.fail(DocumentError::UnexpectedName);
        }
    }

    /// Ends the object begun last.
    pub fn end_object(&mut self) {
        self.end(Container::Object);
    }

    /// Begins an array: elements follow, then [`Builder::end_array`].
    pub fn begin_array(&mut self) {
        self.begin(Container::Array);
    }

    /// Ends the array begun last.
    pub fn end_array(&mut self) {
        self.end(Container::Array);
    }

    /// A string value.
    pub fn string(&mut self, text: impl Into<Cow<'a, str>>) {
        self.value(Token::String(text.into()));
    }

    /// A number, as PostgreSQL's `numeric_out` or a JSON document spells it. See [`canonical_number`].
    pub fn number(&mut self, text: impl Into<Cow<'a, str>>) {
        let canonical = match text.into() {
            Cow::Borrowed(text) => canonical_number(text),
            Cow::Owned(text) => match canonical_number(&text) {
                Ok(Cow::Owned(canonical)) => Ok(Cow::Owned(canonical)),
                Ok(Cow::Borrowed(canonical)) if canonical.len() == text.len() => {
                    Ok(Cow::Owned(text))
                }
                Ok(Cow::Borrowed(canonical)) => Ok(Cow::Owned(canonical.to_owned())),
                Err(error) => Err(error),
            },
        };
        match canonical {
            Ok(canonical) => self.value(Token::Number(canonical)),
            Err(error) => self.fail(DocumentError::Number(error)),
        }
    }

    /// `true` or `false`.
    pub fn bool(&mut self, value: bool) {
        self.value(Token::Bool(value));
    }

    /// A JSON null.
    pub fn null(&mut self) {
        self.value(Token::Null);
    }

    /// The document, or the first event that did not fit.
    pub fn finish(self) -> Result<Document<'a>, DocumentError> {
        match self.error {
            Some(error) => Err(error),
            None if !self.open.is_empty() => Err(DocumentError::NotEnded),
            None if self.tokens.is_empty() => Err(DocumentError::Empty),
            None => Ok(Document {
                tokens: self.tokens,
            }),
        }
    }

    fn innermost(&self) -> Option<Container> {
        self.open.last().map(|(container, _)| *container)
    }

    fn begin(&mut self, container: Container) {
        let at = self.tokens.len();
        self.value(container.token(at));
        if self.tokens.len() > at {
            self.open.push((container, at));
        }
    }

    fn end(&mut self, container: Container) {
        match self.open.pop() {
            Some((innermost, at)) if innermost == container && !self.named => {
                self.tokens[at] = container.token(self.tokens.len());
            }
            Some(_) | None => self.fail(DocumentError::UnexpectedEnd),
        }
    }

    fn value(&mut self, value: Token<'a>) {
        match self.innermost() {
            Some(Container::Object) if !self.named => self.fail(DocumentError::NoName),
            None if !self.tokens.is_empty() => self.fail(DocumentError::SecondValue),
            Some(Container::Object | Container::Array) | None => {
                self.named = false;
                self.tokens.push(value);
            }
        }
    }

    fn fail(&mut self, error: DocumentError) {
        self.error.get_or_insert(error);
    }
}

impl<'a> Document<'a> {
    /// The events, at least one: the root value.
    pub(crate) fn tokens(&self) -> &[Token<'a>] {
        &self.tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ignore::Ignore;

    type Event = fn(&mut Builder<'static>);

    fn canonical(build: impl Fn(&mut Builder<'static>)) -> Result<String, DocumentError> {
        let mut builder = Builder::new();
        build(&mut builder);
        builder
            .finish()
            .map(|document| document.canonical(&Ignore::none()))
    }

    #[test]
    fn scalars_stand_alone() {
        assert_eq!(canonical(|builder| builder.null()).as_deref(), Ok("null"));
        assert_eq!(
            canonical(|builder| builder.string("")).as_deref(),
            Ok("\"\"")
        );
        assert_eq!(
            canonical(|builder| builder.number(String::from("-0.0"))).as_deref(),
            Ok("0")
        );
        assert_eq!(
            canonical(|builder| builder.number(String::from("12"))).as_deref(),
            Ok("12")
        );
        assert_eq!(
            canonical(|builder| builder.number(String::from("1.20"))).as_deref(),
            Ok("1.2")
        );
    }

    #[test]
    fn last_member_of_equal_names_wins() {
        let text = canonical(|builder| {
            builder.begin_object();
            for number in ["1", "2", "3"] {
                builder.member("a");
                builder.begin_array();
                builder.number(number);
                builder.end_array();
                builder.member("b");
                builder.number(number);
            }
            builder.end_object();
        });
        assert_eq!(text.as_deref(), Ok(r#"{"a":[3],"b":3}"#));
    }

    #[test]
    fn events_that_make_no_document_are_reported() {
        assert_eq!(canonical(|_| {}), Err(DocumentError::Empty));
        assert_eq!(
            canonical(|builder| builder.begin_array()),
            Err(DocumentError::NotEnded)
        );
        assert_eq!(
            canonical(|builder| builder.end_array()),
            Err(DocumentError::UnexpectedEnd)
        );
        assert_eq!(
            canonical(|builder| builder.member("a")),
            Err(DocumentError::UnexpectedName)
        );
        assert_eq!(
            canonical(|builder| builder.number("1x")),
            Err(DocumentError::Number(NumberError::Malformed))
        );
        let begun: [(&[Event], DocumentError); 8] = [
            (&[Builder::null, Builder::null], DocumentError::SecondValue),
            (
                &[
                    Builder::begin_array,
                    Builder::end_array,
                    Builder::begin_array,
                ],
                DocumentError::SecondValue,
            ),
            (
                &[Builder::begin_object, Builder::null],
                DocumentError::NoName,
            ),
            (
                &[Builder::begin_object, Builder::begin_object],
                DocumentError::NoName,
            ),
            (
                &[Builder::begin_object, Builder::end_array],
                DocumentError::UnexpectedEnd,
            ),
            (
                &[
                    Builder::begin_array,
                    Builder::end_object,
                    Builder::end_object,
                ],
                DocumentError::UnexpectedEnd,
            ),
            (
                &[
                    Builder::begin_object,
                    |b| b.member("a"),
                    Builder::end_object,
                ],
                DocumentError::UnexpectedEnd,
            ),
            (
                &[Builder::begin_object, |b| b.member("a"), |b| b.member("b")],
                DocumentError::UnexpectedName,
            ),
        ];
        for (events, error) in begun {
            assert_eq!(
                canonical(|builder| events.iter().for_each(|event| event(builder))),
                Err(error)
            );
        }
    }

    #[test]
    fn text_may_be_lent_or_given() {
        let name = String::from("a");
        let mut builder = Builder::new();
        builder.begin_object();
        builder.member(name.as_str());
        builder.string(&name);
        builder.member(String::from("b"));
        builder.string(String::from("c"));
        builder.end_object();
        let document = builder.finish().expect("a document");
        assert_eq!(document.canonical(&Ignore::none()), r#"{"a":"a","b":"c"}"#);
    }
}
