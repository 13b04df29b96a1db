//! The page that `idem_report()` returns: one HTML document that says how a database's keys and windows fare.
//!
//! Takes a JSON document and gives back text: knows nothing of PostgreSQL and has no clock. The page asks for nothing
//! from elsewhere and runs no script; every name, key and statement in it is escaped. It never shows arguments or
//! results, which it is not given.

mod charts;
mod model;
mod page;
mod scope;
mod timeline;
mod words;

use std::fmt;

/// Renders the page for a document as `idem_report()` makes it. Unknown members are ignored; a missing one counts as
/// empty. The page is shorter than 20 MB whatever the document: what does not fit is left out, and the page says so.
pub fn page(json: &str) -> Result<String, PageError> {
    let report = serde_json::from_str(json).map_err(|error| PageError {
        line: error.line(),
        column: error.column(),
    })?;
    Ok(page::document(&report).into_string())
}

/// The document is not JSON, or a member of it is not of its type. Says where, and never quotes what stands there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageError {
    line: usize,
    column: usize,
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column } = self;
        write!(
            f,
            "the report's document cannot be read at line {line}, column {column}"
        )
    }
}

impl std::error::Error for PageError {}
