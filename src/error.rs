//! Everything that can be raised, in one list: SQLSTATE, message, DETAIL and HINT of each.
//!
//! A message names scope and key and never arguments or results. Expected outcomes are not here: they are data.

/// Five characters of an SQLSTATE.
pub type SqlState = &'static [u8; 5];

/// Where an error happened: the names as the caller gave them.
#[derive(Clone, Debug)]
pub struct Place {
    pub scope: String,
    pub key: String,
}

impl Place {
    pub fn new(scope: &str, key: &str) -> Place {
        Place {
            scope: scope.to_owned(),
            key: key.to_owned(),
        }
    }
}

/// An error as it reaches the client.
#[derive(Clone, Debug)]
pub enum Error {
    /// The same key came with other arguments.
    KeyReused(Place),
    /// `idem_once` and `idem_call`: somebody else owns the key now.
    InProgress { place: Place, here: bool },
    /// The fence is not the newest.
    FenceLost(Place),
    /// Nothing is claimed that this call could finish.
    NoOpenClaim {
        place: Place,
        detail: &'static str,
        hint: &'static str,
    },
    /// COMMIT or PREPARE TRANSACTION with a transactional claim left open.
    LeftOpen { place: Place, others: usize },
    /// An outside effect finished in the transaction that claimed it.
    SameTransaction(Place),
    /// `idem_once` and `idem_call`: an earlier attempt may have happened.
    OutcomeUnknown(Place),
    /// `idem_once` and `idem_call`: a human has to decide.
    Escalated(Place),
    /// Somebody else holds a lease on what an operator would decide.
    HeldByLease(Place),
    /// `idem_once` and `idem_call`: finished with a final failure.
    FinalFailure(Place),
    /// A NULL where a value is needed.
    NullArgument(&'static str),
    /// A value that cannot be meant.
    BadValue { message: String, hint: String },
    /// Unknown scope and no access: one error, so that nobody learns which.
    NoAccess { scope: String, role: String },
    /// May not do this to a scope.
    NotOwner { scope: String },
    /// May not do this to all scopes.
    NotExtensionOwner(&'static str),
    /// May not finish what another role claimed.
    NotClaimant(Place),
    /// May not decide for a key without its fence.
    NotOperator(Place),
    /// `idem_once` and `idem_call`: the call comes after the window.
    Expired(Place),
    /// An open key that only `force` forgets.
    StillOpen { place: Place, state: &'static str },
    /// An open key that this transaction has claimed: nothing forgets it.
    ClaimedHere(Place),
    /// A key of a scope whose keys carry their time, and it does not.
    KeyWithoutTime { place: Place, form: &'static str },
    /// A call that was issued at a time to come.
    IssuedAhead(Place),
    /// Somebody else has begun a run of this name.
    RunTaken { run: String },
    /// There is no run of this name that the caller has begun.
    NoSuchRun { run: String },
    /// The run is over.
    RunOver { run: String },
    /// May not begin runs.
    MayNotBegin { role: String },
    /// What decides over this key was changed while it was pruned.
    Overtaken(Place),
    /// A function of a scope that would call this function, which calls functions of scopes.
    Nested(&'static str),
    /// The scope names no reconciler.
    NoReconciler { scope: String },
    /// May not create scopes.
    MayNotCreate { role: String },
    /// A function that may not be executed or does not fit.
    Function {
        sqlstate: SqlState,
        message: String,
        hint: &'static str,
    },
    /// A snapshot that cannot see what is there, or a row that changed beside us.
    Serialization {
        place: Option<Place>,
        detail: &'static str,
    },
    /// Over a limit.
    TooLarge { message: String, hint: String },
    /// A call that writes, on a standby or in a read-only transaction.
    ReadOnly { function: String, standby: bool },
    /// No such scope, told to whoever may use all of them.
    NoSuchScope { scope: String },
    /// The extension's tables are not there.
    NotInstalled,
    /// A table of ours is not as the extension made it.
    TableChanged { table: &'static str },
    /// An index that pruning needs was dropped, renamed or is invalid.
    IndexMissing { what: String },
    /// Dropping a scope while transactions that have claimed are open.
    DropBusy,
    /// A scope that still holds keys.
    ScopeInUse { scope: String },
    /// The write did not happen.
    WriteSuppressed { table: &'static str },
    /// The data of a report could not be rendered.
    Report { message: String },
    /// The effect gave no row.
    NoRow,
    /// The effect gave more than one row.
    TooManyRows,
    /// The effect's row is not one jsonb.
    WrongColumns { found: String },
}

impl Error {
    /// An argument out of range, with what to write instead.
    pub fn bad_value(message: impl Into<String>, hint: impl Into<String>) -> Error {
        Error::BadValue {
            message: message.into(),
            hint: hint.into(),
        }
    }

    /// Over a named limit.
    pub fn too_large(message: impl Into<String>, hint: impl Into<String>) -> Error {
        Error::TooLarge {
            message: message.into(),
            hint: hint.into(),
        }
    }

    pub fn sqlstate(&self) -> SqlState {
        match self {
            Error::KeyReused(_) => b"ID001",
            Error::InProgress { .. } | Error::HeldByLease(_) => b"ID002",
            Error::FenceLost(_) => b"ID003",
            Error::NoOpenClaim { .. } | Error::LeftOpen { .. } | Error::SameTransaction(_) => {
                b"ID004"
            }
            Error::OutcomeUnknown(_) | Error::Escalated(_) => b"ID005",
            Error::FinalFailure(_) => b"ID006",
            Error::Expired(_) => b"ID007",
            Error::StillOpen { .. } | Error::ClaimedHere(_) => b"55006",
            Error::NoSuchRun { .. } => b"42704",
            Error::NullArgument(_) => b"22004",
            Error::BadValue { .. } | Error::KeyWithoutTime { .. } | Error::IssuedAhead(_) => {
                b"22023"
            }
            Error::ReadOnly { .. } => b"25006",
            Error::NoAccess { .. }
            | Error::NoSuchScope { .. }
            | Error::NotOwner { .. }
            | Error::NotExtensionOwner(_)
            | Error::NotClaimant(_)
            | Error::NotOperator(_)
            | Error::MayNotCreate { .. }
            | Error::MayNotBegin { .. }
            | Error::RunTaken { .. } => b"42501",
            Error::Function { sqlstate, .. } => sqlstate,
            Error::Serialization { .. } => b"40001",
            Error::TooLarge { .. } => b"54000",
            Error::NotInstalled
            | Error::NoReconciler { .. }
            | Error::Nested(_)
            | Error::Overtaken(_)
            | Error::RunOver { .. }
            | Error::TableChanged { .. }
            | Error::IndexMissing { .. }
            | Error::WriteSuppressed { .. }
            | Error::Report { .. } => b"55000",
            Error::ScopeInUse { .. } => b"2BP01",
            Error::DropBusy => b"55P03",
            Error::NoRow => b"P0002",
            Error::TooManyRows => b"21000",
            Error::WrongColumns { .. } => b"42804",
        }
    }

    /// One line, lower case, without a full stop.
    pub fn message(&self) -> String {
        one_line(&self.text())
    }

    fn text(&self) -> String {
        match self {
            Error::KeyReused(place) => {
                format!("{} was used with different arguments", named(place))
            }
            Error::InProgress { place, .. } | Error::HeldByLease(place) => {
                format!("{} is in progress", named(place))
            }
            Error::FenceLost(place) => format!("the fence of {} is not the newest", named(place)),
            Error::NoOpenClaim { place, .. } => format!(
                "{} has no open claim that this call could finish",
                named(place)
            ),
            Error::LeftOpen { place, others: 0 } => {
                format!("{} is claimed and not finished", named(place))
            }
            Error::LeftOpen { place, others } => {
                format!(
                    "{} and {others} more are claimed and not finished",
                    named(place)
                )
            }
            Error::SameTransaction(place) => {
                format!(
                    "the leased claim of {} was made in this very transaction",
                    named(place)
                )
            }
            Error::OutcomeUnknown(place) => format!("the outcome of {} is unknown", named(place)),
            Error::Escalated(place) => format!("{} waits for a human", named(place)),
            Error::FinalFailure(place) => format!("{} was rejected before", named(place)),
            Error::NullArgument(name) => format!("{name} must not be null"),
            Error::BadValue { message, .. }
            | Error::TooLarge { message, .. }
            | Error::Function { message, .. } => message.clone(),
            Error::NoAccess { scope, role } => {
                format!(
                    "role {} may not use scope {}, or there is none",
                    quoted(role),
                    quoted(scope)
                )
            }
            Error::NotOwner { scope } => format!("must be owner of scope {}", quoted(scope)),
            Error::NotExtensionOwner(what) => {
                format!("must be owner of extension idempotency to {what}")
            }
            Error::NotClaimant(place) => format!("{} was claimed by another role", named(place)),
            Error::NotOperator(place) => {
                format!(
                    "only an operator decides for {} without its fence",
                    named(place)
                )
            }
            Error::Overtaken(place) => {
                format!(
                    "the policy or the run of {} changed meanwhile",
                    named(place)
                )
            }
            Error::Nested(function) => {
                format!("a function that a scope names must not call {function}")
            }
            Error::Expired(place) => format!("{} has expired", named(place)),
            Error::StillOpen { place, state } => format!("{} is {state}", named(place)),
            Error::ClaimedHere(place) => {
                format!("{} is claimed in this transaction", named(place))
            }
            Error::KeyWithoutTime { place, form } => {
                format!("{} is not a {form}", named(place))
            }
            Error::IssuedAhead(place) => {
                format!("{} was issued at a time to come", named(place))
            }
            Error::RunTaken { run } => format!("run {} was begun by another role", quoted(run)),
            Error::NoSuchRun { run } => {
                format!("there is no run {} that you have begun", quoted(run))
            }
            Error::RunOver { run } => format!("run {} is over", quoted(run)),
            Error::MayNotBegin { role } => {
                format!("role {} may not use any scope", quoted(role))
            }
            Error::NoReconciler { scope } => {
                format!("scope {} has no reconciler", quoted(scope))
            }
            Error::MayNotCreate { role } => format!("role {} may not create scopes", quoted(role)),
            Error::Serialization {
                place: Some(place), ..
            } => {
                format!("could not serialize access to {}", named(place))
            }
            Error::Serialization { place: None, .. } => {
                "could not serialize access to the records".to_owned()
            }
            Error::ReadOnly {
                function,
                standby: true,
            } => {
                format!("cannot execute {function} during recovery")
            }
            Error::ReadOnly {
                function,
                standby: false,
            } => {
                format!("cannot execute {function} in a read-only transaction")
            }
            Error::NoSuchScope { scope } => format!("there is no scope {}", quoted(scope)),
            Error::NotInstalled => {
                "the tables of extension idempotency are not in this database".to_owned()
            }
            Error::TableChanged { table } => {
                format!("table idempotency.{table} is not as the extension made it")
            }
            Error::IndexMissing { what } => format!("{what} is missing or invalid"),
            Error::DropBusy => "transactions that have claimed keys are open".to_owned(),
            Error::ScopeInUse { scope } => format!("scope {} still holds keys", quoted(scope)),
            Error::WriteSuppressed { table } => {
                format!("a row of idempotency.{table} was not written: a trigger suppressed it")
            }
            Error::Report { message } => format!("the report could not be rendered: {message}"),
            Error::NoRow => "the effect returned no row".to_owned(),
            Error::TooManyRows => "the effect returned more than one row".to_owned(),
            Error::WrongColumns { found } => {
                format!("the effect must return one column of type jsonb, not {found}")
            }
        }
    }

    pub fn detail(&self) -> Option<String> {
        let text = match self {
            Error::KeyReused(_) => {
                "The arguments' canonical hash differs from the one on record. Nothing was changed."
            }
            Error::FenceLost(_) => {
                "Somebody claimed or finished the key since this fence was given."
            }
            Error::NoOpenClaim { detail, .. } | Error::Serialization { detail, .. } => detail,
            Error::LeftOpen { .. } => {
                "A claim without lease lives in its transaction and must be finished there."
            }
            Error::SameTransaction(_) => {
                "The effect is outside the database: a crash before COMMIT would forget the claim and not the effect."
            }
            Error::InProgress { here: true, .. } => "It is claimed in this transaction.",
            Error::OutcomeUnknown(_) => "An earlier attempt may have had its effect.",
            Error::Escalated(_) => {
                "An earlier attempt may have had its effect, and nobody could read whether it did."
            }
            Error::HeldByLease(_) => "Its owner holds a lease that has not ended.",
            Error::NotClaimant(_) => {
                "A claim is finished by the role that made it, its members, or the scope's owner."
            }
            Error::Expired(_) => {
                "The key was finished, or its call issued, so long ago that its window is over."
            }
            Error::StillOpen { .. } | Error::ClaimedHere(_) => {
                "Whether it has its effect is not decided yet."
            }
            Error::KeyWithoutTime { .. } => {
                "The scope takes issued_at from its keys, and this one carries no time."
            }
            Error::IssuedAhead(_) => {
                "Its issued_at, or the time in its key, is more than a minute ahead of this server's clock."
            }
            Error::RunOver { .. } => {
                "It was ended, or gave no sign of life for its longest pause; keys may be gone."
            }
            Error::NotOperator(_) => "Operators of a scope are its owner and superusers.",
            Error::ScopeInUse { .. } => {
                "Dropping it would forget them, and their effects could happen again."
            }
            Error::InProgress { here: false, .. }
            | Error::FinalFailure(_)
            | Error::NullArgument(_)
            | Error::BadValue { .. }
            | Error::NoAccess { .. }
            | Error::NotOwner { .. }
            | Error::NotExtensionOwner(_)
            | Error::MayNotCreate { .. }
            | Error::MayNotBegin { .. }
            | Error::RunTaken { .. }
            | Error::NoSuchRun { .. }
            | Error::NoReconciler { .. }
            | Error::Nested(_)
            | Error::Overtaken(_)
            | Error::Function { .. }
            | Error::TooLarge { .. }
            | Error::NotInstalled
            | Error::ReadOnly { .. }
            | Error::NoSuchScope { .. }
            | Error::TableChanged { .. }
            | Error::IndexMissing { .. }
            | Error::DropBusy
            | Error::Report { .. }
            | Error::WriteSuppressed { .. }
            | Error::NoRow
            | Error::TooManyRows
            | Error::WrongColumns { .. } => return None,
        };
        Some(text.to_owned())
    }

    pub fn hint(&self) -> String {
        match self {
            Error::KeyReused(_) => {
                "Another operation needs another key. If only noise differs, leave it out with idem_scope_set(..., ignore_args => ...).".to_owned()
            }
            Error::InProgress { here: true, .. } => {
                "An effect cannot wait for the claim around it: give the inner operation a key of its own.".to_owned()
            }
            Error::InProgress { here: false, .. } => {
                "Call again later with the same key, or give a longer wait.".to_owned()
            }
            Error::FenceLost(_) => {
                "Roll this transaction back, its effect with it; do not catch this error in a savepoint. idem_claim tells what happened.".to_owned()
            }
            Error::NoOpenClaim { hint, .. } => (*hint).to_owned(),
            Error::LeftOpen { .. } => {
                "Put BEGIN and COMMIT around idem_claim and idem_complete (or idem_fail, idem_release), use idem_call or idem_once, or claim with lease => an interval.".to_owned()
            }
            Error::SameTransaction(_) => {
                "COMMIT after idem_claim and before the effect (many drivers hold a transaction open by themselves); idem_release gives the claim back if nothing was begun.".to_owned()
            }
            Error::OutcomeUnknown(_) => {
                "Claim it with idem_claim (decision reconcile), read whether it happened, then idem_complete or idem_fail.".to_owned()
            }
            Error::Escalated(_) => {
                "An operator of the scope ends this with idem_resolve; view idempotency.unresolved shows what is known.".to_owned()
            }
            Error::HeldByLease(_) => {
                "Wait for the lease to end, or let its owner finish it with its fence; idem_find tells who it is.".to_owned()
            }
            Error::FinalFailure(_) => "idem_peek shows the reason; a new operation needs a new key.".to_owned(),
            Error::NullArgument(name) => format!("Give a value for {name}."),
            Error::BadValue { hint, .. } | Error::TooLarge { hint, .. } => hint.clone(),
            Error::NoAccess { scope, role } => format!(
                "The scope's owner can run: SELECT idem_scope_grant({}, {}). A new scope is made with idem_scope_set.",
                literal(scope),
                literal(&identifier(role))
            ),
            Error::NotOwner { .. } => "Ask the scope's owner or a superuser.".to_owned(),
            Error::NotExtensionOwner(_) => {
                "Name a scope of yours, or ask a superuser.".to_owned()
            }
            Error::NotClaimant(_) => "Finish it as the role that claimed it, or as the scope's owner.".to_owned(),
            Error::NotOperator(_) => {
                "Pass fence => the fence that idem_claim or idem_dispatch returned, or ask the scope's owner.".to_owned()
            }
            Error::Overtaken(_) => "Sweep again.".to_owned(),
            Error::Nested(_) => {
                "It answers one question about one key or run, and changes nothing.".to_owned()
            }
            Error::Expired(_) => {
                "Find out what the first call did before you repeat the operation under a new key. A longer dedup_window, or run => a run that was begun, would have kept the answer.".to_owned()
            }
            Error::StillOpen { .. } => {
                "Let its owner finish it, or decide with idem_resolve; force => true forgets it all the same, and its operation could happen again.".to_owned()
            }
            Error::ClaimedHere(_) => {
                "Complete, fail or release it first, or end this transaction.".to_owned()
            }
            Error::KeyWithoutTime { form, .. } => format!(
                "Make keys of this scope as {form}, or run idem_scope_reset(scope, 'issued_at_from')."
            ),
            Error::IssuedAhead(_) => {
                "Synchronize the clocks: by as much as the caller's is ahead, a call that comes after its window is not told so.".to_owned()
            }
            Error::RunTaken { .. } => {
                "Name your run otherwise, or begin it as the role (or a member of the role) that began it.".to_owned()
            }
            Error::NoSuchRun { .. } => {
                "idem_run_begin begins it; view idempotency.runs lists yours.".to_owned()
            }
            Error::RunOver { .. } => {
                "idem_run_begin lets it live again; give it a longest_pause that covers its pauses.".to_owned()
            }
            Error::MayNotBegin { .. } => {
                "The owner of a scope grants it with idem_scope_grant.".to_owned()
            }
            Error::NoReconciler { scope } => format!(
                "Name one: SELECT idem_scope_set({}, reconciler => 'schema.function').",
                literal(scope)
            ),
            Error::MayNotCreate { role } => {
                format!("A superuser can run: GRANT CREATE ON SCHEMA idempotency TO {}.", identifier(role))
            }
            Error::Function { hint, .. } => (*hint).to_owned(),
            Error::Serialization { .. } => "The transaction might succeed if retried.".to_owned(),
            Error::ReadOnly { standby: true, .. } => {
                "Call it on the primary; idem_peek, idem_find and the views read here too.".to_owned()
            }
            Error::ReadOnly { standby: false, .. } => {
                "Use a read-write transaction; idem_peek, idem_find and the views read here too.".to_owned()
            }
            Error::NoSuchScope { scope } => format!("Make it: SELECT idem_scope_set({}).", literal(scope)),
            Error::NotInstalled => "Run CREATE EXTENSION idempotency.".to_owned(),
            Error::TableChanged { .. } => {
                "Its columns and their types must stay, and it must be a plain table and a member of the extension.".to_owned()
            }
            Error::IndexMissing { .. } => {
                "REINDEX it, or create it again as the extension's script does; keys are safe meanwhile.".to_owned()
            }
            Error::DropBusy => "Try again when they have ended; the drop waits a second and no longer, so as not to hold up others.".to_owned(),
            Error::ScopeInUse { scope } => format!(
                "Finish what is open, let the window pass (or shorten it: SELECT idem_scope_set({}, dedup_window => ...)) and CALL idempotency.sweep().",
                literal(scope)
            ),
            Error::WriteSuppressed { .. } => {
                "Make the trigger return its row: without the record the effect could happen twice.".to_owned()
            }
            Error::Report { .. } => {
                "SELECT idempotency.report_data() shows its data; ALTER EXTENSION idempotency UPDATE makes both of one version.".to_owned()
            }
            Error::NoRow => "End the effect with a row, such as RETURNING to_jsonb(...).".to_owned(),
            Error::TooManyRows => "Aggregate the rows into one, such as with jsonb_agg.".to_owned(),
            Error::WrongColumns { .. } => "Wrap the row, such as RETURNING to_jsonb(t) or jsonb_build_object(...).".to_owned(),
        }
    }
}

fn named(place: &Place) -> String {
    format!(
        "key {} in scope {}",
        quoted(&place.key),
        quoted(&place.scope)
    )
}

/// Characters of a user's text that a message shows.
const SHOWN_CHARS_MAX: usize = 1_024;

/// In double quotes; names stay readable, longer texts are cut.
pub fn quoted(name: &str) -> String {
    let cut = name.char_indices().nth(SHOWN_CHARS_MAX).map(|(at, _)| at);
    match cut {
        None => format!("\"{name}\""),
        Some(at) => format!("\"{}...\"", &name[..at]),
    }
}

/// Control characters escaped, so that a name cannot break a line of the log.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

/// An SQL identifier, quoted where it must be.
fn identifier(name: &str) -> String {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_') && name.chars().all(plain) {
        return name.to_owned();
    }
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// An SQL string literal of one line, for statements in hints.
fn literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    if text.chars().any(char::is_control) {
        format!("E'{}'", one_line(&doubled.replace('\\', "\\\\")))
    } else {
        format!("'{doubled}'")
    }
}
