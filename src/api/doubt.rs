//! `idem_resolve`, `idem_escalate`, `idem_reconcile`, `idem_forget`.

use super::arguments;
use crate::engine::finish::{self, Ending, Finished, Said};
use crate::engine::forget;
use crate::engine::key::ScopedKey;
use crate::engine::open_claims;
use crate::engine::reconcile;
use crate::error::Error;
use crate::pg::call::{Call, Reply};
use crate::pg::server;
use crate::sql_function;
use idempotency_core::decide::WasRead;

sql_function!(idem_resolve, pg_finfo_idem_resolve, resolve);
sql_function!(idem_escalate, pg_finfo_idem_escalate, escalate);
sql_function!(idem_forget, pg_finfo_idem_forget, forget);
sql_function!(idem_reconcile, pg_finfo_idem_reconcile, reconcile_body);

fn resolve(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_resolve()")?;
    let key = arguments::scoped_key(call, 0, 4)?;
    let verdict = call.text(1).ok_or(Error::NullArgument("verdict"))?;
    let result = call.jsonb(2);
    let evidence = call.evidence(3);
    let reason = evidence
        .as_ref()
        .and_then(|evidence| evidence.text.clone())
        .filter(|text| text.len() <= finish::REASON_BYTES_MAX);
    let ending = match verdict.as_str() {
        "applied" => Ending::Completed { result },
        "rejected" => Ending::Rejected { reason, result },
        "not_applied" if result.is_none() => Ending::NotApplied { reason },
        "unknown" if result.is_none() => Ending::Unknown { reason },
        "not_applied" | "unknown" => {
            return Err(Error::bad_value(
                format!("verdict {verdict} takes no result"),
                "Only applied and rejected are final answers that can be replayed with a result; what was seen goes into evidence.",
            ));
        }
        _ => {
            return Err(Error::bad_value(
                format!(
                    "verdict must be applied, rejected, not_applied or unknown, not {}",
                    crate::error::quoted(&verdict)
                ),
                "applied: it happened. rejected: a final no. not_applied: it did not happen. unknown: it could not be read.",
            ));
        }
    };
    let said = Said {
        ending,
        evidence: evidence.map(|evidence| evidence.json),
        was_read: WasRead::Yes,
    };
    let finished = by_claimant_or_operator(&key, call.int8(5), said)?;
    Ok(Reply::One(finished.state.into()))
}

fn escalate(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_escalate()")?;
    let key = arguments::scoped_key(call, 0, 3)?;
    let said = Said {
        ending: Ending::Escalated {
            reason: call.text(1),
        },
        evidence: call.evidence(2).map(|evidence| evidence.json),
        was_read: WasRead::IfToldTo,
    };
    by_claimant_or_operator(&key, call.int8(4), said)?;
    Ok(Reply::Void)
}

fn by_claimant_or_operator(
    key: &ScopedKey,
    fence: Option<i64>,
    said: Said,
) -> Result<Finished, Error> {
    if fence.is_some() || open_claims::transactional(&key.digest).is_some() {
        finish::finish(key, fence, said)
    } else {
        finish::decide_for(key, said)
    }
}

fn reconcile_body(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_reconcile()")?;
    let key = arguments::scoped_key(call, 0, 2)?;
    let answer = reconcile::reconcile(&key, call.jsonb(1))?;
    Ok(Reply::Row(vec![
        answer.verdict.into(),
        answer.state.into(),
        answer.result.into(),
    ]))
}

fn forget(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_forget()")?;
    let key = arguments::scoped_key(call, 0, 1)?;
    let state = forget::forget(&key, call.bool(2).unwrap_or(false))?;
    Ok(Reply::One(state.into()))
}
