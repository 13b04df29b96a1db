//! `idempotency.observed` and `idempotency.activity`: what was counted in shared memory, written down by the worker, so
//! that a restart does not lose what windows are sized by.

use crate::error::Error;
use crate::guc;
use crate::pg::counters::Counts;
use crate::pg::spi::{self, Kind, Parameter};
use crate::pg::value::Value;
use crate::stats::Counter;
use idempotency_core::time::Instant;
use pgrx::pg_sys;

/// Adds what was counted of a scope since the last time. Call as the tables' owner.
pub fn add(scope_id: i32, counts: &Counts, now: Instant) -> Result<(), Error> {
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let int8 = |number: i64| Parameter {
        type_oid: pg_sys::INT8OID,
        value: Value::Int8(number),
    };
    let at = |at: Instant| Parameter {
        type_oid: pg_sys::TIMESTAMPTZOID,
        value: at.into(),
    };
    let mut parameters = vec![
        Parameter::int4(scope_id),
        at(now),
        Parameter {
            type_oid: pg_sys::INT8ARRAYOID,
            value: Value::Int8Array(counts.histogram.iter().copied().map(number).collect()),
        },
    ];
    parameters.extend(counts.longest_us.iter().map(|us| {
        Parameter {
            type_oid: pg_sys::INTERVALOID,
            value: Some(*us)
                .filter(|us| *us > 0)
                .map_or(Value::Null, Value::Interval),
        }
    }));
    spi::run(OBSERVED, parameters, Kind::Write, |_| ());
    let count = |counter: Counter| int8(number(counts.counters[counter as usize]));
    let parameters = vec![
        Parameter::int4(scope_id),
        at(now),
        count(Counter::Claims),
        count(Counter::Executes),
        count(Counter::Replays),
        count(Counter::Pruned),
    ];
    spi::run(ACTIVITY, parameters, Kind::Write, |_| ());
    let until = Instant(now.0.saturating_sub(guc::event_retention().us()));
    spi::run(ACTIVITY_PRUNED, vec![at(until)], Kind::Write, |_| ());
    Ok(())
}

const OBSERVED: &std::ffi::CStr =
    c"INSERT INTO idempotency.observed AS o (scope_id, since, repeats, longest_repeat, longest_late,
                                   longest_unknown, slowest_call, longest_lease)
      VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
      ON CONFLICT (scope_id) DO UPDATE SET
          repeats = ARRAY(SELECT COALESCE(b.before, 0) OPERATOR(pg_catalog.+) COALESCE(b.more, 0)
                            FROM ROWS FROM (pg_catalog.unnest(o.repeats), pg_catalog.unnest(EXCLUDED.repeats))
                                 WITH ORDINALITY AS b (before, more, place)
                           ORDER BY b.place),
          longest_repeat = GREATEST(o.longest_repeat, EXCLUDED.longest_repeat),
          longest_late = GREATEST(o.longest_late, EXCLUDED.longest_late),
          longest_unknown = GREATEST(o.longest_unknown, EXCLUDED.longest_unknown),
          slowest_call = GREATEST(o.slowest_call, EXCLUDED.slowest_call),
          longest_lease = GREATEST(o.longest_lease, EXCLUDED.longest_lease)";

const ACTIVITY: &std::ffi::CStr =
    c"INSERT INTO idempotency.activity AS a (scope_id, hour, claims, executes, replays, pruned)
      VALUES ($1, pg_catalog.date_trunc('hour', $2, 'UTC'), $3, $4, $5, $6)
      ON CONFLICT (hour, scope_id) DO UPDATE SET
          claims = a.claims OPERATOR(pg_catalog.+) EXCLUDED.claims,
          executes = a.executes OPERATOR(pg_catalog.+) EXCLUDED.executes,
          replays = a.replays OPERATOR(pg_catalog.+) EXCLUDED.replays,
          pruned = a.pruned OPERATOR(pg_catalog.+) EXCLUDED.pruned";

const ACTIVITY_PRUNED: &std::ffi::CStr =
    c"DELETE FROM idempotency.activity WHERE hour OPERATOR(pg_catalog.<) $1";

/// Forgets what was observed of a scope, and remembers when. Call as the tables' owner.
pub fn reset(scope_id: i32, now: Instant) {
    let at = Parameter {
        type_oid: pg_sys::TIMESTAMPTZOID,
        value: now.into(),
    };
    spi::run(
        RESET,
        vec![Parameter::int4(scope_id), at],
        Kind::Write,
        |_| (),
    );
}

const RESET: &std::ffi::CStr =
    c"INSERT INTO idempotency.observed AS o (scope_id, since, repeats, reset_at) VALUES ($1, $2, '{}', $2)
      ON CONFLICT (scope_id) DO UPDATE SET
          since = EXCLUDED.since, repeats = EXCLUDED.repeats, reset_at = EXCLUDED.reset_at, longest_repeat = NULL,
          longest_late = NULL, longest_unknown = NULL, slowest_call = NULL, longest_lease = NULL";
