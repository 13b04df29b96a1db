//! The sweeper: one visit to one database. It sweeps batch by batch, each its own short transaction, for a
//! bounded time, and exits: whoever wants to drop or rename the database waits no longer than that.

use crate::background_worker;
use crate::engine::sweep::{self, Pass};
use crate::pg::bgworker;
use crate::pg::server;
use crate::pg::shmem::{self, Swept};
use pgrx::pg_sys::Oid;

/// Longest visit. PostgreSQL waits 5 s for others before it gives a DROP DATABASE up.
const VISIT_US_MAX: i64 = 1_500_000;

background_worker!(idempotency_worker_main, main);

/// The life of a sweeper.
fn main(database: Oid) {
    bgworker::begin(Some(database));
    // Ours, whatever the database or role sets: short statements, no waiting, no names from elsewhere.
    bgworker::set_option(c"statement_timeout", c"10s");
    bgworker::set_option(c"lock_timeout", c"1s");
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
    while server::now().since(swept.at) < VISIT_US_MAX {
        bgworker::reload_if_asked();
        server::check_for_interrupts();
        let batch = bgworker::transaction(c"sweeping expired leases and old outcomes", || {
            if !bgworker::extension_is_here() || server::in_recovery() {
                return Ok(None);
            }
            sweep::batch(&mut pass).map(Some)
        });
        match batch {
            Ok(None) => return,
            Ok(Some(batch)) => {
                swept.leases_ended += u64::from(batch.leases_ended);
                swept.outcomes_pruned += u64::from(batch.outcomes_pruned);
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
