//! The sweeper: one visit to one database. It sweeps batch by batch, each its own short transaction, asks the
//! reconcilers of scopes that name one, all for a bounded time, and exits: whoever wants to drop or rename the
//! database waits no longer than that.

use crate::background_worker;
use crate::engine::key::ScopedKey;
use crate::engine::prune::BAN_US;
use crate::engine::reconcile::{self, Due};
use crate::engine::sweep::{self, Pass, Place};
use crate::guc;
use crate::pg::bgworker;
use crate::pg::counters::{self, Unwritten};
use crate::pg::identity;
use crate::pg::latch;
use crate::pg::server;
use crate::pg::shmem::{self, Swept};
use crate::pg::spi::{self, Kind, Parameter};
use crate::pg::time_limit::Runner;
use crate::policy::{self, Scope};
use crate::store::{observed, scope};
use idempotency_core::backoff;
use idempotency_core::time::{Instant, Span};
use pgrx::pg_sys::Oid;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant as Moment};

/// Longest sweep of a visit. PostgreSQL waits 5 s for others before it gives a DROP DATABASE up.
const SWEEP_MAX: Duration = Duration::from_secs(1);
/// Longest rest between two batches.
const REST_MS_MAX: i64 = 200;
/// After this much of a visit no more reconcilers are asked, but for one in each visit.
const VISIT_MAX: Duration = Duration::from_millis(1_500);
/// Longest that the worker gives a reconciler, whatever idempotency.reconcile_timeout says.
const RECONCILE_MS_MAX: i32 = 2_000;
/// Longest that one scope's reconciler is asked in one visit, but for the read that takes it past this.
const SCOPE_MAX: Duration = Duration::from_millis(300);
/// Scopes that a notification names at most.
const ALERT_SCOPES_MAX: usize = 20;
/// A payload of PostgreSQL's is shorter than this.
const PAYLOAD_BYTES_MAX: usize = 8_000;
/// Keys that are read from the table at a time.
const DUE_PAGE: usize = 100;

background_worker!(idempotency_worker_main, main);

/// The life of a sweeper.
fn main(database: Oid) {
    bgworker::begin(Some(database));
    // Ours, whatever the database or role sets: no long waits, no names from elsewhere.
    bgworker::set_option(c"lock_timeout", c"50ms");
    // A sweep that is lost is done again, and claims are written through all the same: no need to wait for the disk, nor to
    // make a DROP DATABASE wait for a standby.
    bgworker::set_option(c"synchronous_commit", c"off");
    bgworker::set_option(c"idle_in_transaction_session_timeout", c"0");
    bgworker::set_option(c"default_transaction_isolation", c"read committed");
    bgworker::set_option(c"default_transaction_read_only", c"off");
    bgworker::set_option(c"search_path", c"pg_catalog, pg_temp");
    visit();
}

fn visit() {
    let begun_at = server::now();
    let mut swept = Swept {
        at: begun_at,
        duration_us: 0,
        leases_ended: 0,
        outcomes_pruned: 0,
        more: false,
        error: None,
    };
    // Databases without the extension take no place in shared memory.
    let looked = bgworker::transaction(c"looking for the extension", || {
        Ok(bgworker::extension_is_here() && !server::in_recovery())
    });
    if looked != Ok(true) {
        return;
    }
    let banned = shmem::banned(begun_at, Instant(begun_at.0.saturating_add(BAN_US)));
    let (stage, [leases_from, runs_from]) = shmem::place();
    let place = Place {
        stage,
        leases_from,
        runs_from,
    };
    let mut pass = Pass::from_place(&place, &banned);
    let mut expired_alive = BTreeMap::new();
    let mut waits_to_retry = false;
    // By a clock that nobody sets.
    let started = Moment::now();
    let deadline = started + SWEEP_MAX;
    while Moment::now() < deadline {
        bgworker::reload_if_asked();
        server::check_for_interrupts();
        let used_before = server::cpu_time();
        let batch = bgworker::transaction(c"sweeping expired leases and old outcomes", || {
            if !bgworker::extension_is_here() || server::in_recovery() {
                return Ok(None);
            }
            // Triggers and expressions on our tables run as their owner and no more, as under autovacuum.
            let owner = scope::tables_owner()?;
            let sweep = || sweep::batch(&mut pass, Some(deadline), Runner::Worker);
            identity::restricted_as(owner, sweep).map(Some)
        });
        match batch {
            // No extension here, or no longer a primary.
            Ok(None) => return,
            Ok(Some(batch)) => {
                let did_something = batch.did_something();
                swept.leases_ended += u64::from(batch.leases_ended);
                swept.outcomes_pruned += u64::from(batch.outcomes_pruned);
                swept.error = swept.error.take().or(batch.skipped_because);
                waits_to_retry |= batch.waits_to_retry;
                for (scope, count) in batch.expired_alive {
                    *expired_alive.entry(scope).or_insert(0) += count;
                }
                // What was only looked through can wait for the next round.
                swept.more = batch.more && did_something;
                let next = pass.next_place(!batch.more);
                shmem::set_place(next.stage, [next.leases_from, next.runs_from]);
                if !batch.more {
                    break;
                }
                if !batch.falls_behind {
                    rest(server::cpu_time().saturating_sub(used_before));
                }
            }
            Err(message) => {
                swept.error = Some(message);
                swept.more = false;
                break;
            }
        }
    }
    let until = started + VISIT_MAX;
    let steps = [write_down(), alert(&expired_alive), reconcile_due(until)];
    for message in steps.into_iter().filter_map(Result::err) {
        swept.error.get_or_insert(message);
    }
    let last_error = shmem::last_sweep().and_then(|last| last.error);
    if waits_to_retry && swept.error.is_none() {
        swept.error = last_error;
    } else if let Some(error) = &swept.error
        && last_error.is_none_or(|last| last != shmem::remembered(error))
    {
        log(error);
    }
    let now = server::now();
    shmem::report_sweep(&Swept {
        at: now,
        duration_us: i64::try_from(started.elapsed().as_micros()).unwrap_or(i64::MAX),
        ..swept
    });
}

/// Once for each error that lasts.
fn log(error: &str) {
    // It may be the database that is not there any more: nobody is left to be told.
    let _told = bgworker::transaction(c"telling of an error", || {
        let database = crate::error::quoted(&server::database_name());
        let line = format!("the sweep of database {database} met an error: {error}");
        server::warn(&crate::error::one_line(&line));
        Ok(())
    });
}

/// Leaves the machine to others for three times as long as the batch has used a processor, as autovacuum does with its
/// cost delay.
fn rest(used: Duration) {
    let rest_ms = i64::try_from(used.as_micros() * 3 / 1_000).unwrap_or(REST_MS_MAX);
    latch::sleep(rest_ms.min(REST_MS_MAX));
}

/// Writes down what sessions have counted since the last visit, for advice and reports.
fn write_down() -> Result<(), String> {
    let written = bgworker::transaction(c"writing down what was counted", || {
        let mut written = Vec::new();
        if !bgworker::extension_is_here() || server::in_recovery() {
            return Ok(written);
        }
        let now = server::now();
        for unwritten in counters::unwritten() {
            let (scope_id, counts) = (unwritten.scope_id, &unwritten.counts);
            if policy::by_id(scope_id)?.is_none() {
                counters::forget(scope_id);
            } else if counts.is_any() {
                let owner = scope::tables_owner()?;
                identity::restricted_as(owner, || observed::add(scope_id, counts, now))?;
                written.push(unwritten);
            }
        }
        Ok(written)
    })?;
    written.iter().for_each(Unwritten::note_written);
    Ok(())
}

/// One notification for all keys of this visit that expired while their run lives.
fn alert(expired_alive: &BTreeMap<String, u32>) -> Result<(), String> {
    let Some(channel) = guc::notify_channel().filter(|_| !expired_alive.is_empty()) else {
        return Ok(());
    };
    let count: u32 = expired_alive.values().sum();
    let payload = |names: usize| {
        let scopes: Vec<&String> = expired_alive.keys().take(names).collect();
        serde_json::json!({ "pruned_alive": count, "scopes": scopes }).to_string()
    };
    let payload = (0..=ALERT_SCOPES_MAX)
        .rev()
        .map(payload)
        .find(|payload| payload.len() < PAYLOAD_BYTES_MAX)
        .unwrap_or_default();
    bgworker::transaction(c"notifying of expired keys", || {
        let text = c"SELECT pg_catalog.pg_notify($1, $2)";
        let parameters = vec![Parameter::text(&channel), Parameter::text(&payload)];
        spi::run(text, parameters, Kind::Write, |_| ());
        Ok(())
    })
}

/// Asks the reconcilers about the keys in doubt whose time has come, one after the other, from a place that is drawn
/// anew: no key always comes first. No scope takes more than its share, and an error ends one key's turn and no more.
fn reconcile_due(until: Moment) -> Result<(), String> {
    let mut first_error = None;
    let mut spent: HashMap<i32, Duration> = HashMap::new();
    let mut from = drawn_digest();
    let begun_at = from;
    let mut wrapped = false;
    loop {
        let (due, more) = bgworker::transaction(c"looking for keys in doubt", || {
            if !bgworker::extension_is_here() || server::in_recovery() {
                return Ok((Vec::new(), false));
            }
            reconcile::due(&mut from, DUE_PAGE)
        })?;
        for Due { key, scope } in &due {
            bgworker::reload_if_asked();
            server::check_for_interrupts();
            let spent = spent.entry(scope.id()).or_default();
            if *spent >= SCOPE_MAX || (wrapped && key.digest > begun_at) {
                continue;
            }
            let asked_at = Moment::now();
            if let Err(message) = reconcile_one(key, scope) {
                first_error.get_or_insert(message);
            }
            *spent += asked_at.elapsed();
            if Moment::now() >= until {
                return first_error.map_or(Ok(()), Err);
            }
        }
        let is_over = Moment::now() >= until || (wrapped && from > begun_at);
        if is_over || (!more && wrapped) {
            return first_error.map_or(Ok(()), Err);
        }
        if !more {
            from = [0; 16];
            wrapped = true;
        }
    }
}

fn reconcile_one(key: &ScopedKey, scope: &Scope) -> Result<(), String> {
    let limit_ms = guc::reconcile_timeout_ms().min(RECONCILE_MS_MAX);
    // Longer than the read can take, the grace of a cancelled one included.
    let lease = Span::from_s(u32::try_from(limit_ms / 1_000).unwrap_or(0) + 5);
    // Committed before the reconciler runs: one that takes this process down has been counted.
    let begun = bgworker::transaction(c"claiming a key in doubt", || {
        if !bgworker::extension_is_here() {
            return Ok(None);
        }
        identity::restricted_as(scope.owner(), || reconcile::begin(key, scope, lease))
    })?;
    if let Some(begun) = begun {
        bgworker::transaction(c"reconciling a key in doubt", || {
            if bgworker::extension_is_here() {
                let end = || reconcile::end(&begun, scope, limit_ms);
                identity::restricted_as(scope.owner(), end)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Some place among the digests.
fn drawn_digest() -> [u8; 16] {
    let draw = backoff::spread(server::now().0.unsigned_abs());
    let mut digest = [0; 16];
    digest[..8].copy_from_slice(&draw.to_be_bytes());
    digest
}
