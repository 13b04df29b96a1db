//! `idem_peek`, `idem_find`, and what the views ask.

use crate::engine::look::{self, Finding};
use crate::error::Error;
use crate::pg::call::{Call, Reply};
use crate::pg::identity;
use crate::pg::value::Value;
use crate::policy;
use crate::sql_function;

sql_function!(idem_peek, pg_finfo_idem_peek, peek);
sql_function!(idem_find, pg_finfo_idem_find, find);
sql_function!(idem_scope_usable, pg_finfo_idem_scope_usable, scope_usable);
sql_function!(
    idem_window_ends_at,
    pg_finfo_idem_window_ends_at,
    window_ends_at
);

fn peek(call: &Call) -> Result<Reply, Error> {
    let scope = policy::checked_name(call.text(1))?;
    let view = look::peek(&scope, call.text(0))?;
    Ok(Reply::Row(vec![
        view.state.into(),
        view.fence.into(),
        view.attempt.into(),
        view.result.into(),
        view.reason.into(),
        view.run.into(),
        view.claimed_by.into(),
        view.application_name.into(),
        view.claimed_at.into(),
        view.lease_expires_at.into(),
        view.finished_at.into(),
        view.window_ends_at.into(),
        view.repeatable_at.into(),
    ]))
}

fn find(call: &Call) -> Result<Reply, Error> {
    Ok(Reply::Rows(
        look::find(call.text(0))?.into_iter().map(found).collect(),
    ))
}

/// A transaction that holds the key now says more than the lease on record.
fn found(finding: Finding) -> Vec<Value> {
    let view = finding.view;
    let (held_by, application_name, pid, since) = match finding.holder {
        Some(holder) => (
            holder.role,
            holder.application_name,
            holder.pid,
            holder.since,
        ),
        None if view.finished_at.is_some() => (None, None, None, view.finished_at),
        None => (
            view.claimed_by,
            view.application_name,
            view.claimed_pid,
            view.claimed_at,
        ),
    };
    vec![
        finding.scope.into(),
        view.state.into(),
        held_by.into(),
        application_name.into(),
        pid.into(),
        since.into(),
        view.fence.into(),
        view.attempt.into(),
        view.lease_expires_at.into(),
        view.finished_at.into(),
        view.window_ends_at.into(),
        view.run.into(),
        view.reason.into(),
        view.result.into(),
    ]
}

fn scope_usable(call: &Call) -> Result<Reply, Error> {
    let usable = match call.int4(0) {
        Some(id) => policy::by_id(id)?.is_some_and(|scope| scope.may_use(identity::current_role())),
        None => false,
    };
    Ok(Reply::One(usable.into()))
}

fn window_ends_at(call: &Call) -> Result<Reply, Error> {
    let (Some(id), Some(finished_at)) = (call.int4(0), call.timestamp(1)) else {
        return Ok(Reply::One(Value::Null));
    };
    let role = identity::current_role();
    let scope = policy::by_id(id)?.filter(|scope| scope.may_use(role));
    let end = scope
        .map(|scope| look::window_ends_at(&scope, finished_at, call.text(2).as_deref()))
        .transpose()?;
    Ok(Reply::One(end.into()))
}
