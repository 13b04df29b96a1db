//! The launcher: visits the databases in turn, one worker at a time, then naps. It has no database, so it holds
//! up neither DROP DATABASE nor a rename.

use crate::background_worker;
use crate::guc;
use crate::pg::bgworker::{self, Visit};
use crate::pg::shmem::{self, Trouble};
use crate::pg::{latch, server};
use pgrx::pg_sys::Oid;

background_worker!(idempotency_launcher_main, main);

/// The life of the launcher: to the end of the server, or SIGTERM.
fn main(_no_database: Oid) {
    bgworker::begin(None);
    shmem::set_launcher_pid(server::backend_pid());
    bgworker::clear_launcher_pid_at_exit();
    loop {
        bgworker::reload_if_asked();
        let more = guc::worker_enabled() && round();
        bgworker::report_idle(c"napping");
        let nap_ms = if more { NAP_MS_MIN } else { guc::naptime_ms() };
        latch::sleep(nap_ms.min(guc::naptime_ms()));
    }
}

/// Nap where work was left: whoever comes in from SIGHUP or SIGTERM is still heard.
const NAP_MS_MIN: i64 = 10;

/// Visits all databases; whether work was left in one of them.
fn round() -> bool {
    // The next round tries again.
    let Ok(databases) = bgworker::databases() else {
        return false;
    };
    let mut more = false;
    shmem::forget_other_databases(databases.iter().map(|(database, _)| *database));
    for (database, name) in databases {
        if !guc::serves_database(&name) {
            continue;
        }
        server::check_for_interrupts();
        let visit = bgworker::visit_database(database);
        let trouble = match visit {
            Visit::Done => Trouble::None,
            Visit::NoSlot => Trouble::NoSlot,
        };
        if trouble == Trouble::NoSlot && shmem::trouble() != Trouble::NoSlot {
            bgworker::log_no_slot();
        }
        shmem::set_trouble(trouble);
        if trouble == Trouble::NoSlot {
            return false;
        }
        more |= shmem::more_is_due(database);
    }
    more
}
