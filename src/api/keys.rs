//! `idem_claim`, `idem_complete`, `idem_fail`, `idem_release`, `idem_renew`.

use super::arguments;
use crate::engine::claim::{self, Answer, Terms};
use crate::engine::finish::{self, Ending};
use crate::engine::key::Args;
use crate::error::Error;
use crate::pg::call::{Call, Reply};
use crate::pg::server;
use crate::pg::value::Value;
use crate::policy;
use crate::sql_function;
use idempotency_core::time::Instant;

sql_function!(idem_claim, pg_finfo_idem_claim, claim);
sql_function!(idem_complete, pg_finfo_idem_complete, complete);
sql_function!(idem_fail, pg_finfo_idem_fail, fail);
sql_function!(idem_release, pg_finfo_idem_release, release);
sql_function!(idem_renew, pg_finfo_idem_renew, renew);

fn claim(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_claim()")?;
    let key = arguments::scoped_key(call, 0, 2)?;
    let terms = Terms {
        issued_at: call.timestamp(6).map(finite).transpose()?,
        ..arguments::leased_terms(call, &key.scope)?
    };
    let answer = claim::claim(&key, Args::Given(call.jsonb(1)), &terms)?;
    Ok(Reply::Row(columns(answer)))
}

fn finite(issued_at: Instant) -> Result<Instant, Error> {
    match issued_at.0 {
        i64::MIN | i64::MAX => Err(Error::bad_value(
            "issued_at must be finite",
            "Give the time at which the caller first issued the operation, or NULL.",
        )),
        _ => Ok(issued_at),
    }
}

/// The columns of `idem_claim`, decision first.
pub fn columns(answer: Answer) -> Vec<Value> {
    vec![
        answer.word.as_str().into(),
        answer.fence.into(),
        answer.attempt.into(),
        answer.result.into(),
        answer.reason.into(),
        answer.claimed_at.into(),
        answer.lease_expires_at.into(),
        answer.finished_at.into(),
    ]
}

fn complete(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_complete()")?;
    let key = arguments::scoped_key(call, 0, 2)?;
    let ending = Ending::Completed {
        result: call.jsonb(1),
    };
    let finished = finish::finish(&key, call.int8(3), ending.into())?;
    Ok(Reply::One(finished.result.into()))
}

fn fail(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_fail()")?;
    let key = arguments::scoped_key(call, 0, 4)?;
    let verdict = call.text(1).ok_or(Error::NullArgument("verdict"))?;
    let (reason, result) = (call.text(2), call.jsonb(3));
    let ending = match verdict.as_str() {
        "rejected" => Ending::Rejected { reason, result },
        "not_applied" if result.is_none() => Ending::NotApplied { reason },
        "unknown" if result.is_none() => Ending::Unknown { reason },
        "not_applied" | "unknown" => {
            return Err(Error::bad_value(
                format!("verdict {verdict} takes no result"),
                "Only rejected is a final answer that can be replayed with a result.",
            ));
        }
        _ => {
            return Err(Error::bad_value(
                format!(
                    "verdict must be not_applied, unknown or rejected, not {}",
                    crate::error::quoted(&verdict)
                ),
                "not_applied: provably before the effect. unknown: it may have happened. rejected: a final answer.",
            ));
        }
    };
    finish::finish(&key, call.int8(5), ending.into())?;
    Ok(Reply::Void)
}

fn release(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_release()")?;
    let key = arguments::scoped_key(call, 0, 1)?;
    finish::finish(&key, call.int8(2), Ending::Released.into())?;
    Ok(Reply::Void)
}

fn renew(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_renew()")?;
    let key = arguments::scoped_key(call, 0, 2)?;
    let scope = policy::usable(&key.scope)?;
    let lease = arguments::lease(
        call.interval(1).ok_or(Error::NullArgument("lease"))?,
        &scope,
    )?;
    let until = finish::renew(&key, call.int8(3), lease)?;
    Ok(Reply::One(until.into()))
}
