//! `idem_enqueue`, `idem_dispatch`.

use super::arguments;
use crate::engine::dispatch::{self, Delivered, ROWS_MAX, Request};
use crate::engine::enqueue::{self, Letter};
use crate::engine::key::{Args, checked_run};
use crate::error::Error;
use crate::guc;
use crate::pg::call::{Call, IntervalArgument, Reply};
use crate::pg::server;
use crate::pg::value::Value;
use crate::sql_function;
use idempotency_core::time::Span;

sql_function!(idem_enqueue, pg_finfo_idem_enqueue, enqueue_body);
sql_function!(idem_dispatch, pg_finfo_idem_dispatch, dispatch_body);

const DESTINATION_BYTES_MAX: usize = 255;
const ORDERING_KEY_BYTES_MAX: usize = 1_024;
/// Longest delay: a hundred years of twelve 30-day months.
const DELAY_US_MAX: i64 = 100 * 12 * 30 * 86_400_000_000;
/// Shortest lease: one millisecond.
const LEASE_US_MIN: i64 = 1_000;

fn enqueue_body(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_enqueue()")?;
    let key = arguments::scoped_key(call, 0, 4)?;
    let payload = call.jsonb(2).ok_or(Error::NullArgument("payload"))?;
    let limit = guc::max_payload_bytes();
    if payload.size_bytes() > limit {
        return Err(Error::too_large(
            format!(
                "the payload of key {} in scope {} has {} bytes, the limit is {limit}",
                crate::error::quoted(&key.key),
                crate::error::quoted(&key.scope),
                payload.size_bytes()
            ),
            "Send a reference instead, or raise idempotency.max_payload_bytes.",
        ));
    }
    let letter = Letter {
        destination: destination(call.text(1))?,
        payload,
        run: checked_run(call.text(5))?,
        delay_us: delay_us(call.interval(6))?,
        ordering_key: call
            .text(7)
            .map(|text| sized(text, "ordering_key", ORDERING_KEY_BYTES_MAX))
            .transpose()?,
    };
    let args = Args::Given(call.jsonb(3).or(Some(payload)));
    let enqueued = enqueue::enqueue(&key, args, &letter)?;
    let answer = enqueued.answer;
    Ok(Reply::Row(vec![
        answer.word.as_str().into(),
        enqueued.here.into(),
        answer.result.into(),
        answer.reason.into(),
        answer.claimed_at.into(),
        answer.finished_at.into(),
    ]))
}

fn destination(given: Option<String>) -> Result<String, Error> {
    let destination = given.ok_or(Error::NullArgument("destination"))?;
    sized(destination, "destination", DESTINATION_BYTES_MAX)
}

fn sized(text: String, name: &str, bytes_max: usize) -> Result<String, Error> {
    if (1..=bytes_max).contains(&text.len()) {
        return Ok(text);
    }
    Err(Error::bad_value(
        format!(
            "{name} must have 1 to {bytes_max} bytes, not {}",
            text.len()
        ),
        "A destination names a queue, such as 'payments'; an ordering_key what is sent in order, such as an account.",
    ))
}

fn delay_us(given: Option<IntervalArgument>) -> Result<i64, Error> {
    match given {
        None => Ok(0),
        Some(IntervalArgument::Us(us)) if (0..=DELAY_US_MAX).contains(&us) => Ok(us),
        Some(IntervalArgument::Us(_) | IntervalArgument::Absurd) => Err(Error::bad_value(
            "delay must be between 0 and 100 years",
            "Give an interval with its unit, such as '10 minutes'.",
        )),
    }
}

fn dispatch_body(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_dispatch()")?;
    let rows_max = call.int4(1).ok_or(Error::NullArgument("max_rows"))?;
    let rows_max = usize::try_from(rows_max)
        .ok()
        .filter(|rows| (1..=ROWS_MAX).contains(rows))
        .ok_or_else(|| {
            Error::bad_value(
                format!("max_rows must be between 1 and {ROWS_MAX}"),
                "Take as many as can be sent within the lease.",
            )
        })?;
    let lease = match call.interval(2).ok_or(Error::NullArgument("lease"))? {
        IntervalArgument::Us(us) if us >= LEASE_US_MIN => Span::from_us(us),
        IntervalArgument::Us(_) | IntervalArgument::Absurd => None,
    };
    let request = Request {
        destination: destination(call.text(0))?,
        rows_max,
        lease: lease.ok_or_else(|| {
            Error::bad_value(
                "lease must be at least 1 millisecond",
                "Give an interval with its unit, such as lease => '30 seconds'.",
            )
        })?,
        wait_us: arguments::wait_us(call.interval(3))?.unwrap_or(0),
    };
    let delivered = dispatch::dispatch(&request)?;
    Ok(Reply::Rows(delivered.into_iter().map(row).collect()))
}

fn row(delivered: Delivered) -> Vec<Value> {
    vec![
        delivered.key.key.into(),
        delivered.key.scope.into(),
        delivered.row.open.fence.into(),
        delivered.row.open.attempt.into(),
        delivered.word.as_str().into(),
        delivered.message.payload.into(),
        delivered.message.enqueued_at.into(),
        delivered.row.open.lease_expires_at.into(),
        delivered.row.prior_reason.into(),
    ]
}
