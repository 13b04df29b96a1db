//! What the views of statistics ask, and `idem_stats_reset`.

use crate::error::Error;
use crate::pg::call::{Call, Reply};
use crate::pg::counters::{self, Counts};
use crate::pg::value::Value;
use crate::pg::{identity, server};
use crate::policy;
use crate::sql_function;
use crate::store::{observed, scope};

sql_function!(idem_counters, pg_finfo_idem_counters, of_scopes);
sql_function!(
    idem_scope_countable,
    pg_finfo_idem_scope_countable,
    scope_countable
);
sql_function!(idem_window_of, pg_finfo_idem_window_of, window_of);
sql_function!(idem_counting, pg_finfo_idem_counting, counting);
sql_function!(idem_stats_reset, pg_finfo_idem_stats_reset, reset);

/// One row for each scope that is counted, none where nothing is: its id, since when, the counters, the longest of each length.
fn of_scopes(_call: &Call) -> Result<Reply, Error> {
    let role = identity::current_role();
    let number = |count: u64| Value::Int8(i64::try_from(count).unwrap_or(i64::MAX));
    let mut rows = Vec::new();
    for id in scope::ids()? {
        let Some(scope) = policy::by_id(id)?.filter(|scope| scope.may_count(role)) else {
            continue;
        };
        let (since, counts) = match counters::of_scope(scope.id()) {
            Some((since, counts)) => (Some(since), counts),
            None if counters::has_room() => (None, Counts::NONE),
            // Not counted: its columns stay NULL.
            None => continue,
        };
        let mut row = vec![id.into(), since.into()];
        row.extend(counts.counters.into_iter().map(number));
        row.extend(counts.longest_us.into_iter().map(|us| match us {
            0 => Value::Null,
            us => Value::Interval(us),
        }));
        let histogram = counts.histogram.into_iter();
        let histogram = histogram.map(|count| i64::try_from(count).unwrap_or(i64::MAX));
        row.push(Value::Int8Array(histogram.collect()));
        rows.push(row);
    }
    Ok(Reply::Rows(rows))
}

fn scope_countable(call: &Call) -> Result<Reply, Error> {
    let role = identity::current_role();
    let scope = call.int4(0).map(policy::by_id).transpose()?.flatten();
    let countable = scope.is_some_and(|scope| scope.may_count(role));
    Ok(Reply::One(countable.into()))
}

/// A scope's window; NULL where it never ends.
fn window_of(call: &Call) -> Result<Reply, Error> {
    let role = identity::current_role();
    let scope = call.int4(0).map(policy::by_id).transpose()?.flatten();
    let window = scope
        .filter(|scope| scope.may_count(role))
        .and_then(|scope| scope.window());
    Ok(Reply::One(window.map_or(Value::Null, |window| {
        Value::Interval(window.us())
    })))
}

/// Whether anything is counted: the library was preloaded.
fn counting(_call: &Call) -> Result<Reply, Error> {
    Ok(Reply::One(counters::available().into()))
}

fn reset(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_stats_reset()")?;
    let owner = scope::tables_owner()?;
    let ids = match call.text(0) {
        Some(name) => vec![policy::operated(&policy::checked_name(Some(name))?)?.id()],
        None if identity::has_rights_of(identity::current_role(), owner) => scope::ids()?,
        None => return Err(Error::NotExtensionOwner("reset all statistics")),
    };
    for id in ids {
        counters::reset(id);
        identity::acting_as(owner, || observed::reset(id, server::now()));
    }
    Ok(Reply::Void)
}
