//! The protocol: claim, wait, finish, sweep. Decisions come from the core crate; rows go through `store`.
//!
//! Invariants (each with the test that shows it, see ARCHITECTURE.md):
//! - a digest stands in at most one of `claim` and `outcome`;
//! - every change of a key's rows happens under its lock, kept to the end of the transaction;
//! - nothing in session memory outlives its subtransaction;
//! - no borrow of session memory is held while user code may run.

pub mod claim;
pub mod dispatch;
pub mod enqueue;
pub mod finish;
pub mod forget;
pub mod key;
pub mod look;
pub mod once;
pub mod open_claims;
pub mod prune;
pub mod reconcile;
pub mod record;
pub mod runs;
pub mod settle;
pub mod standing;
pub mod sweep;
pub mod trail;
pub mod wait;
