//! Asking a scope's reconciler whether a key in doubt was applied, and resolving the key with the answer.
//!
//! A session does it in one call, holding this key's lock and no other. The worker claims the key under a lease and
//! commits first: a reconciler that takes the worker down has been counted by then. `idem_claim` never asks.

use crate::engine::claim::{self, Terms, Word};
use crate::engine::finish::{self, Ending, Finished, Said};
use crate::engine::key::{Args, ScopedKey};
use crate::engine::open_claims;
use crate::engine::record::{self, Record};
use crate::engine::trail;
use crate::error::Error;
use crate::guc;
use crate::pg::jsonb::Jsonb;
use crate::pg::lock::KeyLock;
use crate::pg::reader::{self, Found, Named, Question};
use crate::pg::table::{Mode, Snapshot};
use crate::pg::time_limit::Runner;
use crate::pg::{identity, server};
use crate::policy::{self, Scope};
use crate::store::message::Messages;
use crate::store::{KeyTables, claim as claim_rows};
use idempotency_core::decide::{self, Found as DecideFound, OpenState, WasRead};
use idempotency_core::time::{Instant, Span};

/// What `idem_reconcile` answers.
pub struct Answer {
    /// What the reconciler said; none where it was not asked.
    pub verdict: Option<&'static str>,
    pub state: &'static str,
    pub result: Option<Jsonb>,
}

/// Reconciles one key for a session.
pub fn reconcile(key: &ScopedKey, args: Option<Jsonb>) -> Result<Answer, Error> {
    if reader::is_asking() {
        return Err(Error::Nested("idem_reconcile"));
    }
    let (scope, tables) = claim::enter(key)?;
    let Some(reader) = scope.reconciler() else {
        return Err(Error::NoReconciler {
            scope: key.scope.clone(),
        });
    };
    let lock = KeyLock::acquire(&key.digest);
    let record = record::probe(&tables, key, &scope, Snapshot::Now)?;
    record::require_visible(&tables, key)?;
    if args.is_some() && !claim::same_args(Args::Given(args), &scope, &record, server::now())? {
        return Err(Error::KeyReused(key.place()));
    }
    let row = match &record {
        Record::Open(row)
            if row.open.state != OpenState::Escalated
                && open_claims::transactional(&key.digest).is_none()
                && decide::in_doubt(&row.open, &scope.policy(), server::now()) =>
        {
            row
        }
        Record::Open(_) | Record::Absent | Record::Pruned(_) | Record::Finished(_) => {
            lock.release();
            tables.close();
            return Ok(not_in_doubt(&record, &scope));
        }
    };
    let question = question(key, args, row.open.first_claimed_at, row.open.message)?;
    let reconciling = Terms {
        lease: None,
        wait_us: Some(0),
        run: None,
        issued_at: None,
    };
    // The very claim that a caller would make, under the lock that we hold: whoever claims from inside the reconciler
    // is told so.
    let claimed = claim::claim(key, Args::OnRecord, &reconciling)?;
    lock.release();
    tables.close();
    if claimed.word != Word::Reconcile {
        return Err(Error::Serialization {
            place: Some(key.place()),
            detail: "The key's record changed while it was being reconciled.",
        });
    }
    let limit_ms = guc::reconcile_timeout_ms();
    let function = Named {
        name: reader,
        scope_owner: scope.owner(),
        limit_ms,
        runner: Runner::Session,
    };
    let found = reader::reconcile(&function, &question);
    let (verdict, said) = said(found, &scope);
    let finished = finish::finish(key, claimed.fence, said)?;
    Ok(Answer {
        verdict: Some(verdict),
        state: finished.state,
        result: finished.result,
    })
}

/// The reconciler was not asked: what the record says.
fn not_in_doubt(record: &Record, scope: &Scope) -> Answer {
    let found = decide::effective(record.found(), &scope.policy(), server::now());
    let (state, result) = match (found, record) {
        (DecideFound::Absent | DecideFound::Pruned(_), _)
        | (_, Record::Absent | Record::Pruned(_)) => (trail::ABSENT, None),
        (_, Record::Open(row)) => (trail::open_name(row.open.state), None),
        (_, Record::Finished(row)) => (trail::finished_name(row.finished.state), row.result),
    };
    Answer {
        verdict: None,
        state,
        result,
    }
}

/// A key that the worker reconciles: claimed, with its fence.
pub struct Begun {
    key: ScopedKey,
    fence: Option<i64>,
    first_claimed_at: Instant,
    message: bool,
}

/// A key in doubt that is due, of a scope with a reconciler.
pub struct Due {
    pub key: ScopedKey,
    pub scope: std::rc::Rc<Scope>,
}

/// Keys in doubt that are due in scopes that can be asked, in digest order from after `from`, which moves on, at most
/// `limit`; and whether there may be more.
pub fn due(from: &mut [u8; 16], limit: usize) -> Result<(Vec<Due>, bool), Error> {
    let tables = KeyTables::open(Mode::Read)?;
    let (found, at_end) = claim_rows::due_unknown(&tables.claim, *from, limit, server::now());
    tables.close();
    let mut due = Vec::new();
    for (scope_id, key, digest) in found {
        *from = digest;
        if let Some(scope) = policy::by_id(scope_id)?
            .filter(|scope| scope.reconciler().is_some() && identity::role_exists(scope.owner()))
        {
            let scoped = ScopedKey {
                scope: scope.name().to_owned(),
                key,
                digest,
            };
            due.push(Due { key: scoped, scope });
        }
    }
    Ok((due, !at_end))
}

/// Claims a due key under a lease, if nobody was faster. To be committed before it is read.
pub fn begin(key: &ScopedKey, scope: &Scope, lease: Span) -> Result<Option<Begun>, Error> {
    let tables = KeyTables::open(Mode::Read)?;
    let record = record::probe(&tables, key, scope, Snapshot::Now)?;
    tables.close();
    let Record::Open(row) = &record else {
        return Ok(None);
    };
    if row.open.state != OpenState::Unknown
        || !decide::in_doubt(&row.open, &scope.policy(), server::now())
    {
        return Ok(None);
    }
    let terms = Terms {
        lease: Some(lease),
        wait_us: Some(0),
        run: None,
        issued_at: None,
    };
    let claimed = claim::claim(key, Args::OnRecord, &terms)?;
    match claimed.word {
        Word::Reconcile => Ok(Some(Begun {
            key: key.clone(),
            fence: claimed.fence,
            first_claimed_at: row.open.first_claimed_at,
            message: row.open.message,
        })),
        // It was finished and its window passed since we looked: not ours to do.
        Word::Execute => {
            finish::finish(key, claimed.fence, Ending::Released.into())?;
            Ok(None)
        }
        Word::Replay
        | Word::InProgress
        | Word::Rejected
        | Word::Expired
        | Word::Mismatch
        | Word::Queued
        | Word::Escalated => Ok(None),
    }
}

/// Reads and resolves what `begin` has claimed.
pub fn end(begun: &Begun, scope: &Scope, limit_ms: i32) -> Result<Finished, Error> {
    let Some(reader) = scope.reconciler() else {
        return finish::finish(&begun.key, begun.fence, Ending::Released.into());
    };
    let question = question(&begun.key, None, begun.first_claimed_at, begun.message)?;
    let function = Named {
        name: reader,
        scope_owner: scope.owner(),
        limit_ms,
        runner: Runner::Worker,
    };
    let found = reader::reconcile(&function, &question);
    finish::finish(&begun.key, begun.fence, said(found, scope).1)
}

/// What the reconciler is asked: with the arguments that the caller gave, else the message's payload.
fn question(
    key: &ScopedKey,
    args: Option<Jsonb>,
    first_claimed_at: Instant,
    is_message: bool,
) -> Result<Question, Error> {
    let mut args = args;
    if args.is_none() && is_message {
        let messages = Messages::open(Mode::Read)?;
        args = messages.find(&key.digest).map(|row| row.payload);
        messages.close();
    }
    Ok(Question {
        key: key.key.clone(),
        args,
        first_claimed_at,
    })
}

/// What the answer means. No answer, and one that is none, is a read in vain.
fn said(found: Result<Found, String>, scope: &Scope) -> (&'static str, Said) {
    let in_vain = |message: &str| {
        let message: String = message.chars().take(MESSAGE_CHARS_MAX).collect();
        let said = Said {
            ending: Ending::Unknown {
                reason: Some("the reconciler gave no answer".to_owned()),
            },
            evidence: Some(Jsonb::of_member("error", &message)),
            was_read: WasRead::Yes,
        };
        (UNKNOWN, said)
    };
    let found = match found {
        Ok(found) => found,
        Err(message) => return in_vain(&message),
    };
    let limit = scope.max_result_bytes();
    for (what, value) in [("result", found.result), ("evidence", found.evidence)] {
        if value.is_some_and(|value| value.size_bytes() > limit) {
            return in_vain(&format!("its {what} has more than {limit} bytes"));
        }
    }
    let (verdict, ending) = match (found.verdict.as_deref(), found.result) {
        (Some("applied"), result) => ("applied", Ending::Completed { result }),
        (Some("rejected"), result) => {
            let reason = None;
            ("rejected", Ending::Rejected { reason, result })
        }
        (Some("not_applied"), None) => ("not_applied", Ending::NotApplied { reason: None }),
        (Some(UNKNOWN), None) => (UNKNOWN, Ending::Unknown { reason: None }),
        (Some("not_applied" | UNKNOWN), Some(_)) => {
            return in_vain("the verdict takes no result");
        }
        (Some(_), _) => {
            return in_vain("the verdict must be applied, rejected, not_applied or unknown");
        }
        (None, _) => return in_vain("the verdict is null"),
    };
    let said = Said {
        ending,
        evidence: found.evidence,
        was_read: WasRead::Yes,
    };
    (verdict, said)
}

const UNKNOWN: &str = "unknown";
/// Of an error's message, as evidence.
const MESSAGE_CHARS_MAX: usize = 1_000;
