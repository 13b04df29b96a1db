//! The background worker: a launcher without a database of its own, and one short-lived sweeper per visit.
//! Nothing that correctness needs happens here.

mod launcher;
mod sweeper;
