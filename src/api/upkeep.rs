//! `idem_sweep`, `idem_status`.

use crate::engine::sweep;
use crate::error::Error;
use crate::guc;
use crate::pg::call::{Call, Reply};
use crate::pg::shmem::{self, Trouble};
use crate::pg::table::{Mode, Snapshot};
use crate::pg::value::Value;
use crate::pg::{server, shmem::Swept};
use crate::sql_function;
use crate::store::{KeyTables, claim};

sql_function!(idem_sweep, pg_finfo_idem_sweep, idem_sweep_body);
sql_function!(
    idem_sweep_restart,
    pg_finfo_idem_sweep_restart,
    sweep_restart
);
sql_function!(idem_sweeps, pg_finfo_idem_sweeps, sweeps);
sql_function!(idem_status, pg_finfo_idem_status, status);

fn idem_sweep_body(_call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_sweep()")?;
    let batch = sweep::session_batch()?;
    if let Some(reason) = &batch.skipped_because {
        server::warn(&format!(
            "{} keys could not be swept: {reason}",
            batch.skipped
        ));
    }
    let count = |rows: u32| i32::try_from(rows).unwrap_or(i32::MAX);
    Ok(Reply::Row(vec![
        count(batch.leases_ended).into(),
        count(batch.outcomes_pruned).into(),
        batch.more.into(),
    ]))
}

/// The next idem_sweep of this session begins a new pass.
fn sweep_restart(_call: &Call) -> Result<Reply, Error> {
    sweep::restart_session_pass();
    Ok(Reply::Void)
}

fn status(_call: &Call) -> Result<Reply, Error> {
    let tables = KeyTables::open(Mode::Read)?;
    let open = claim::count(&tables.claim, Snapshot::Statement, server::now());
    tables.close();
    let swept = shmem::last_sweep();
    let count = |rows: u64| i64::try_from(rows).unwrap_or(i64::MAX);
    let launcher_pid = Some(shmem::launcher_pid()).filter(|pid| *pid != 0);
    let from_sweep = |get: fn(&Swept) -> u64| swept.as_ref().map(|swept| count(get(swept)));
    Ok(Reply::Row(vec![
        env!("CARGO_PKG_VERSION").into(),
        shmem::available().into(),
        worker_state(launcher_pid).into(),
        launcher_pid.into(),
        swept.as_ref().map(|swept| swept.at).into(),
        swept
            .as_ref()
            .map_or(Value::Null, |swept| Value::Interval(swept.duration_us)),
        from_sweep(|swept| swept.leases_ended).into(),
        from_sweep(|swept| swept.outcomes_pruned).into(),
        swept.as_ref().and_then(|swept| swept.error.clone()).into(),
        count(open.open).into(),
        count(open.overdue).into(),
        count(open.unknown).into(),
        count(open.escalated).into(),
        count(open.queued).into(),
    ]))
}

/// The last visit to each database, for whoever monitors the server.
fn sweeps(_call: &Call) -> Result<Reply, Error> {
    let count = |rows: u64| i64::try_from(rows).unwrap_or(i64::MAX);
    let rows = shmem::last_sweeps().into_iter().map(|(database, swept)| {
        vec![
            database.into(),
            swept.at.into(),
            Value::Interval(swept.duration_us),
            count(swept.leases_ended).into(),
            count(swept.outcomes_pruned).into(),
            swept.error.into(),
        ]
    });
    Ok(Reply::Rows(rows.collect()))
}

fn worker_state(launcher_pid: Option<i32>) -> &'static str {
    if !shmem::available() {
        return "no worker: add idempotency to shared_preload_libraries, or CALL idempotency.sweep() regularly";
    }
    if server::in_recovery() {
        return "standby: sweeping starts after promotion";
    }
    if !guc::worker_enabled() {
        return "off: idempotency.worker is off";
    }
    if !guc::serves_database(&server::database_name()) {
        return "off for this database: it is not in idempotency.databases";
    }
    match (launcher_pid, shmem::trouble()) {
        (None, _) => "no worker: the launcher does not run, raise max_worker_processes",
        (Some(_), Trouble::NoSlot) => "no worker slot: raise max_worker_processes",
        (Some(_), Trouble::None) => "running",
    }
}
