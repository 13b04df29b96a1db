//! Looking at keys without claiming them: one MVCC snapshot, no key lock, on a standby too.

use crate::engine::key::ScopedKey;
use crate::engine::record::{self, Record};
use crate::engine::runs;
use crate::engine::trail::{self, ABSENT};
use crate::error::Error;
use crate::pg::identity;
use crate::pg::jsonb::Jsonb;
use crate::pg::lock;
use crate::pg::server;
use crate::pg::spi::{self, Kind, Parameter};
use crate::pg::table::{Mode, Snapshot};
use crate::policy::{self, Scope};
use crate::store::{KeyTables, scope};
use idempotency_core::decide::{FinishedKey, FinishedState, OpenState};
use idempotency_core::time::Instant;
use idempotency_core::window;
use pgrx::pg_sys::Oid;

/// The committed state of a key, as `idem_peek` and `idem_find` show it.
#[derive(Clone, Default)]
pub struct View {
    pub state: &'static str,
    pub fence: Option<i64>,
    pub attempt: Option<i32>,
    pub result: Option<Jsonb>,
    pub reason: Option<String>,
    pub run: Option<String>,
    pub claimed_by: Option<Oid>,
    pub claimed_pid: Option<i32>,
    pub application_name: Option<String>,
    pub claimed_at: Option<Instant>,
    pub lease_expires_at: Option<Instant>,
    pub finished_at: Option<Instant>,
    pub window_ends_at: Option<Instant>,
    /// When its operation can be executed again; the end of time where it cannot.
    pub repeatable_at: Option<Instant>,
}

/// A session whose open transaction holds a key.
#[derive(Clone)]
pub struct Holder {
    /// None for a prepared transaction.
    pub pid: Option<i32>,
    pub role: Option<Oid>,
    pub application_name: Option<String>,
    pub since: Option<Instant>,
}

/// One line of `idem_find`.
pub struct Finding {
    pub scope: String,
    pub view: View,
    pub holder: Option<Holder>,
}

/// The end of an outcome's window; the end of time where it never ends, or while its run lives.
fn window_end(finished: &FinishedKey, scope: &Scope) -> Instant {
    // What a DBA wrote there instead of a time stays what it is.
    if finished.finished_at == Instant(i64::MIN) {
        return finished.finished_at;
    }
    window::outcome_guarded_until(finished, &scope.policy())
}

/// The same for an outcome of which only this is known.
pub fn window_ends_at(
    scope: &Scope,
    finished_at: Instant,
    run: Option<&str>,
) -> Result<Instant, Error> {
    let finished = FinishedKey {
        state: FinishedState::Completed,
        fence: 0,
        attempt: 1,
        finished_at,
        run: runs::standing(run, finished_at, scope, Snapshot::Statement)?,
    };
    Ok(window_end(&finished, scope))
}

/// The state of one key.
pub fn peek(scope_name: &str, key: Option<String>) -> Result<View, Error> {
    let key = ScopedKey::new(scope_name, key)?;
    let tables = KeyTables::open(Mode::Read)?;
    let scope = policy::usable(scope_name)?;
    let record = record::probe(&tables, &key, &scope, Snapshot::Statement)?;
    tables.close();
    Ok(view(record, &scope))
}

/// The key in every scope that the caller may use: its record, and the transactions that hold it now.
pub fn find(key: Option<String>) -> Result<Vec<Finding>, Error> {
    let role = identity::current_role();
    let key = key.ok_or(Error::NullArgument("key"))?;
    let holders = holders()?;
    let mut findings = Vec::new();
    let tables = KeyTables::open(Mode::Read)?;
    for id in scope::ids()? {
        let Some(scope) = policy::by_id(id)?.filter(|scope| scope.may_use(role)) else {
            continue;
        };
        let scoped = ScopedKey::new(scope.name(), Some(key.clone()))?;
        let mut view = view(
            record::probe(&tables, &scoped, &scope, Snapshot::Statement)?,
            &scope,
        );
        let tag = lock::tag_fields(&scoped.digest);
        let holder = holders
            .iter()
            .find(|(held, _)| *held == tag)
            .map(|(_, holder)| holder.clone());
        // Of a claim that lives in another transaction only its lock can be seen.
        if view.state == ABSENT && holder.is_some() {
            view.state = trail::open_name(OpenState::InFlight);
        }
        if view.state != ABSENT {
            findings.push(Finding {
                scope: scope.name().to_owned(),
                view,
                holder,
            });
        }
    }
    tables.close();
    Ok(findings)
}

fn view(record: Record, scope: &Scope) -> View {
    match record {
        Record::Open(row) => View {
            state: trail::open_name(row.open.state),
            fence: Some(row.open.fence),
            attempt: Some(row.open.attempt),
            reason: row.reason,
            run: row.run,
            claimed_by: Some(row.claimed_by),
            claimed_pid: Some(row.claimed_pid),
            application_name: row.application_name,
            claimed_at: Some(row.claimed_at),
            lease_expires_at: row.open.lease_expires_at,
            ..View::default()
        },
        Record::Finished(row) => View {
            state: trail::finished_name(row.finished.state),
            fence: Some(row.finished.fence),
            attempt: Some(row.finished.attempt),
            result: row.result,
            reason: row.reason,
            run: row.run,
            claimed_by: row.claimed_by,
            claimed_at: row.claimed_at,
            finished_at: Some(row.finished.finished_at),
            window_ends_at: Some(window_end(&row.finished, scope)),
            repeatable_at: Some(window::repeatable_at(&row.finished, &scope.policy())),
            ..View::default()
        },
        Record::Pruned(at) if window::remembered(at, &scope.policy(), server::now()) => View {
            state: trail::EXPIRED,
            window_ends_at: Some(at),
            repeatable_at: Some(window::free_at(at, &scope.policy())),
            ..View::default()
        },
        Record::Absent | Record::Pruned(_) => View {
            state: ABSENT,
            ..View::default()
        },
    }
}

/// The two halves of a lock tag, and who holds it.
type HeldTag = ((u32, u32), Holder);

/// The transactions that hold keys of this database now, by the two halves of the key's lock tag. Read as the
/// tables' owner, so that ordinary roles see them too; shown only for keys of scopes that the caller may use.
fn holders() -> Result<Vec<HeldTag>, Error> {
    let parameters = vec![
        Parameter::role(server::database()),
        Parameter::int4(i32::from(lock::TAG_FIELD4)),
    ];
    let text = c"SELECT l.classid, l.objid, l.pid, a.usesysid, a.application_name, a.xact_start
           FROM pg_catalog.pg_locks AS l
           LEFT JOIN pg_catalog.pg_stat_get_activity(l.pid) AS a ON true
          WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.granted
            AND l.database OPERATOR(pg_catalog.=) $1
            AND l.objsubid OPERATOR(pg_catalog.=) $2::pg_catalog.int2";
    let owner = scope::tables_owner()?;
    let half = |value: Option<Oid>| value.map_or(0, Oid::to_u32);
    Ok(identity::acting_as(owner, || {
        spi::run(text, parameters, Kind::Read, |row| {
            let holder = Holder {
                pid: row.int4(3),
                role: row.oid(4),
                application_name: row.text(5).filter(|name| !name.is_empty()),
                since: row.instant(6),
            };
            ((half(row.oid(1)), half(row.oid(2))), holder)
        })
    }))
}
