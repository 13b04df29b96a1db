//! `idem_run_begin`, `idem_run_touch`, `idem_run_end`.

use super::arguments::SPAN_US_MAX;
use crate::engine::key::checked_run;
use crate::engine::runs;
use crate::error::Error;
use crate::pg::call::{Call, IntervalArgument, Reply};
use crate::pg::server;
use crate::pg::value::Value;
use crate::sql_function;
use idempotency_core::time::Span;
use idempotency_core::window;

sql_function!(idem_run_begin, pg_finfo_idem_run_begin, begin);
sql_function!(idem_run_touch, pg_finfo_idem_run_touch, touch);
sql_function!(idem_run_end, pg_finfo_idem_run_end, end);
sql_function!(idem_run_over_at, pg_finfo_idem_run_over_at, over_at);

/// Shortest pause: one millisecond.
const PAUSE_US_MIN: i64 = 1_000;
/// Longest label, in bytes.
const LABEL_BYTES_MAX: usize = 1_024;

fn begin(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_run_begin()")?;
    let run = run(call)?;
    let pause = match call
        .interval(1)
        .ok_or(Error::NullArgument("longest_pause"))?
    {
        IntervalArgument::Us(us) if (PAUSE_US_MIN..=SPAN_US_MAX).contains(&us) => Span::from_us(us),
        IntervalArgument::Us(_) | IntervalArgument::Absurd => None,
    };
    let pause = pause.ok_or_else(|| {
        Error::bad_value(
            "longest_pause must be between 1 millisecond and 100 years",
            "Give the longest time that the run may wait, as for an approval from Friday to Monday, such as '4 days'.",
        )
    })?;
    let label = call.text(2);
    if label.as_deref().map_or(0, str::len) > LABEL_BYTES_MAX {
        return Err(Error::bad_value(
            format!("label must have {LABEL_BYTES_MAX} bytes at most"),
            "A label says in a few words what the run is for.",
        ));
    }
    let over_at = runs::begin(&run, pause, label)?;
    Ok(Reply::One(over_at.into()))
}

fn touch(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_run_touch()")?;
    let over_at = runs::touch(&run(call)?)?;
    Ok(Reply::One(over_at.into()))
}

fn end(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_run_end()")?;
    runs::end(&run(call)?)?;
    Ok(Reply::Void)
}

fn run(call: &Call) -> Result<String, Error> {
    checked_run(call.text(0))?.ok_or(Error::NullArgument("run"))
}

/// For the view: when a run is over that was seen then.
fn over_at(call: &Call) -> Result<Reply, Error> {
    let pause = match call.interval(1) {
        Some(IntervalArgument::Us(us)) => Span::from_us(us),
        Some(IntervalArgument::Absurd) | None => None,
    };
    let over_at = call
        .timestamp(0)
        .zip(pause)
        .map(|(seen_at, pause)| window::run_over_at(seen_at, pause));
    Ok(Reply::One(over_at.map_or(Value::Null, Value::from)))
}
