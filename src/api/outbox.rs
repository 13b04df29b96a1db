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
use crate::policy::{self, Scope};
use crate::sql_function;
use std::rc::Rc;

sql_function!(idem_enqueue, pg_finfo_idem_enqueue, enqueue_body);
sql_function!(idem_dispatch, pg_finfo_idem_dispatch, dispatch_body);

const DESTINATION_BYTES_MAX: usize = 255;
const ORDERING_KEY_BYTES_MAX: usize = 1_024;

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
        Some(IntervalArgument::Us(us)) if (0..=arguments::SPAN_US_MAX).contains(&us) => Ok(us),
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
    let lease = call.interval(2).ok_or(Error::NullArgument("lease"))?;
    let named = call.text_array(4, "scopes")?;
    let scopes = dispatched_scopes(named.clone())?;
    // Scopes that were not asked for must not stand in the way: those that allow no such lease are left out. A lease is
    // never cut: who sends must be able to count on it.
    let leases = scopes.iter().map(|scope| scope.max_lease());
    let limit = if named.is_some() {
        leases.min()
    } else {
        leases.max()
    };
    let Some(limit) = limit else {
        return Ok(Reply::Rows(Vec::new()));
    };
    let lease = arguments::lease_within(lease, limit)?;
    let (served, left_out): (Vec<_>, Vec<_>) =
        scopes.iter().partition(|scope| lease <= scope.max_lease());
    let request = Request {
        destination: destination(call.text(0))?,
        rows_max,
        lease,
        wait_us: arguments::wait_us(call.interval(3))?.unwrap_or(0),
        scope_ids: served.iter().map(|scope| scope.id()).collect(),
    };
    let delivered = dispatch::dispatch(&request)?;
    if delivered.is_empty() {
        for scope in left_out {
            if dispatch::is_any_due(scope, &request.destination)? {
                server::warn(&format!(
                    "messages of scope {} are left: its max_lease is {}",
                    crate::error::quoted(scope.name()),
                    scope.max_lease().in_words()
                ));
            }
        }
    }
    Ok(Reply::Rows(delivered.into_iter().map(row).collect()))
}

/// The scopes whose messages are asked for: those named, else all that the caller may use.
fn dispatched_scopes(named: Option<Vec<Option<String>>>) -> Result<Vec<Rc<Scope>>, Error> {
    match named {
        Some(names) => names
            .into_iter()
            .map(|name| policy::usable(&policy::checked_name(name)?))
            .collect(),
        None => policy::all_usable(),
    }
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
