//! What SQL sees: each function parses its arguments, calls the engine, and maps the answer.

mod arguments;
mod canonical;
mod keys;
mod look;
mod many;
mod once;
mod scopes;
mod upkeep;
