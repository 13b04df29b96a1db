//! `idempotency`: effectively-once operations inside PostgreSQL.
//!
//! A table of contents: `api` is what SQL sees, `engine` the protocol, `store` the rows, `pg` the only unsafe
//! code, `worker` the upkeep. ARCHITECTURE.md is the map.

#![deny(unsafe_op_in_unsafe_fn)]

mod api;
mod engine;
mod error;
mod guc;
mod pg;
mod policy;
mod stats;
mod store;
mod worker;

::pgrx::pg_module_magic!(name, version);

::pgrx::extension_sql_file!("../sql/10_tables.sql", name = "tables", bootstrap);
::pgrx::extension_sql_file!("../sql/20_keys.sql", name = "keys", requires = ["tables"]);
::pgrx::extension_sql_file!("../sql/25_runs.sql", name = "runs", requires = ["keys"]);
::pgrx::extension_sql_file!("../sql/30_scopes.sql", name = "scopes", requires = ["runs"]);
::pgrx::extension_sql_file!(
    "../sql/40_seeing.sql",
    name = "seeing",
    requires = ["scopes"]
);
::pgrx::extension_sql_file!(
    "../sql/50_upkeep.sql",
    name = "upkeep",
    requires = ["seeing"]
);
::pgrx::extension_sql_file!("../sql/60_doubt.sql", name = "doubt", requires = ["upkeep"]);
::pgrx::extension_sql_file!(
    "../sql/70_failure_kinds.sql",
    name = "failure_kinds",
    requires = ["doubt"]
);
::pgrx::extension_sql_file!(
    "../sql/80_outbox.sql",
    name = "outbox",
    requires = ["failure_kinds"]
);

::pgrx::extension_sql_file!("../sql/85_stats.sql", name = "stats", requires = ["outbox"]);
::pgrx::extension_sql_file!(
    "../sql/90_doctor.sql",
    name = "doctor",
    requires = ["stats"]
);

::pgrx::extension_sql_file!(
    "../sql/95_report.sql",
    name = "report",
    requires = ["doctor"]
);

/// Called once when the library is loaded: by the postmaster where it is preloaded, else by the first session
/// that calls one of its functions.
#[allow(non_snake_case)]
#[::pgrx::pg_guard]
pub extern "C-unwind" fn _PG_init() {
    guc::init();
    pg::invalidation::init();
    pg::xact::init(engine::open_claims::MILESTONES);
    if pg::server::preloading() && !pg::server::binary_upgrade() {
        pg::shmem::init();
        pg::bgworker::register_launcher();
    }
}
