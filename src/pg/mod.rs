//! The only unsafe code: each file wraps one part of PostgreSQL's C interface behind safe functions.
//!
//! An ERROR raised by PostgreSQL travels through Rust frames as a panic until `raise` hands it back.

pub mod bgworker;
pub mod call;
pub mod counters;
pub mod effect;
pub mod identity;
pub mod invalidation;
pub mod jsonb;
pub mod latch;
pub mod lock;
pub mod raise;
pub mod reader;
mod row;
mod row_type;
pub mod server;
pub mod shmem;
pub mod snapshot;
pub mod spi;
pub mod table;
pub mod table_write;
pub mod text;
pub mod time_limit;
pub mod trigger;
pub mod value;
pub mod xact;
