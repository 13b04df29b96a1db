//! The sweeper: one visit to one database. It sweeps batch by batch, each its own short transaction, for a
//! bounded time, and exits: whoever wants to drop or rename the database waits no longer than that.

use crate::background_worker;
use crate::engine::sweep::{self, Pass};
use crate::pg::bgworker;
use crate::pg::identity;
use crate::pg::server;
use crate::pg::shmem::{self, Swept};
use crate::store::scope;
use idempotency_core::time::Instant;
use pgrx::pg_sys::Oid;

/// Longest visit. PostgreSQL waits 5 s for others before it gives a DROP DATABASE up.
const VISIT_US_MAX: i64 = 1_500_000;

background_worker!(idempotency_worker_main, main);

/// The life of a sweeper.
fn main(database: Oid) {
    bgworker::begin(Some(database));
    // Ours, whatever the database or role sets: no long waits, no names from elsewhere.
    bgworker::set_option(c"lock_timeout", c"50ms");
    // A sweep that is lost in a failover is done again: no need to make a DROP DATABASE wait for a standby.
    bgworker::set_option(c"synchronous_commit", c"local");
    bgworker::set_option(c"idle_in_transaction_session_timeout", c"0");
    bgworker::set_option(c"default_transaction_isolation", c"read committed");
    bgworker::set_option(c"default_transaction_read_only", c"off");
    bgworker::set_option(c"search_path", c"pg_catalog, pg_temp");
    visit();
}

fn visit() {
    let mut swept = Swept {
        at: server::now(),
        leases_ended: 0,
        outcomes_pruned: 0,
        error: None,
    };
    let mut pass = Pass::default();
    let deadline = Instant(swept.at.0.saturating_add(VISIT_US_MAX));
    while server::now() < deadline {
        bgworker::reload_if_asked();
        server::check_for_interrupts();
        let batch = bgworker::transaction(c"sweeping expired leases and old outcomes", || {
            if !bgworker::extension_is_here() || server::in_recovery() {
                return Ok(None);
            }
            // Triggers and expressions on our tables run as their owner and no more, as under autovacuum.
            let owner = scope::tables_owner()?;
            identity::restricted_as(owner, || sweep::batch(&mut pass, Some(deadline))).map(Some)
        });
        match batch {
            Ok(None) => return,
            Ok(Some(batch)) => {
                swept.leases_ended += u64::from(batch.leases_ended);
                swept.outcomes_pruned += u64::from(batch.outcomes_pruned);
                swept.error = swept.error.take().or(batch.skipped_because);
                if !batch.more {
                    break;
                }
            }
            Err(message) => {
                swept.error = Some(message);
                break;
            }
        }
    }
    shmem::report_sweep(&Swept {
        at: server::now(),
        ..swept
    });
}
