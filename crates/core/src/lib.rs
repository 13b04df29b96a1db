//! The pure part of the `idempotency` extension: canonical form, digests, names, decisions, time arithmetic.
//!
//! Knows nothing of PostgreSQL, has no clock, no state and no unsafe code: what is here is tested without a server.

pub mod backoff;
pub mod canonical;
pub mod decide;
pub mod digest;
mod document;
pub mod histogram;
pub mod ignore;
pub mod issued;
pub mod key;
pub mod number;
pub mod time;
pub mod window;
