//! What SQL sees: each function parses its arguments, calls the engine, and maps the answer.

mod arguments;
mod canonical;
mod doubt;
mod keys;
mod look;
mod many;
mod once;
mod outbox;
mod report;
mod runs;
mod scopes;
mod stats;
mod upkeep;
