//! `idem_scope_set`, `_reset`, `_drop`, `_grant`, `_revoke`, `idem_guarantee`, and the trigger that tells
//! sessions to read the scopes again.

use super::arguments::SPAN_US_MAX;
use crate::engine::open_claims;
use crate::error::Error;
use crate::pg::call::{Call, IntervalArgument, Reply};
use crate::pg::table::{Mode, Snapshot};
use crate::pg::value::Value;
use crate::pg::{identity, invalidation, reader, server, trigger};
use crate::policy::{self, Scope};
use crate::sql_function;
use crate::store::scope::{self, DEFAULT_NAME, Setting, SettingValue};
use crate::store::{KeyTables, claim, outcome};
use idempotency_core::decide::EffectKind;
use idempotency_core::ignore::Ignore;
use idempotency_core::window::Late;
use pgrx::pg_sys::Oid;
use std::rc::Rc;

sql_function!(idem_scope_set, pg_finfo_idem_scope_set, set);
sql_function!(idem_scope_reset, pg_finfo_idem_scope_reset, reset);
sql_function!(idem_scope_drop, pg_finfo_idem_scope_drop, drop_scope);
sql_function!(idem_scope_grant, pg_finfo_idem_scope_grant, grant);
sql_function!(idem_scope_revoke, pg_finfo_idem_scope_revoke, revoke);
sql_function!(idem_guarantee, pg_finfo_idem_guarantee, guarantee);
sql_function!(
    idem_scopes_changed,
    pg_finfo_idem_scopes_changed,
    scopes_changed
);

/// Largest max_attempts and max_reconciles.
const TIMES_MAX: i32 = 1_000_000;
const RESULT_BYTES_MAX: i32 = 256 * 1_024 * 1_024;

/// The policies by name, as `idem_scope_reset` takes them.
const POLICIES: [(&str, Setting); 19] = [
    ("dedup_window", Setting::DedupWindow),
    ("keep_forever", Setting::KeepForever),
    ("max_lease", Setting::MaxLease),
    ("effect_kind", Setting::EffectKind),
    ("provider_window", Setting::ProviderWindow),
    ("wait", Setting::Wait),
    ("max_result_bytes", Setting::MaxResultBytes),
    ("ignore_args", Setting::ArgsRule),
    ("max_attempts", Setting::MaxAttempts),
    ("backoff", Setting::Backoff),
    ("max_backoff", Setting::MaxBackoff),
    ("max_reconciles", Setting::MaxReconciles),
    ("keep_payload", Setting::KeepPayload),
    ("reconciler", Setting::Reconciler),
    ("hard_limit", Setting::HardLimit),
    ("run_is_alive", Setting::RunIsAlive),
    ("guard", Setting::Guard),
    ("late", Setting::Late),
    ("issued_at_from", Setting::IssuedAtFrom),
];

fn set(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_scope_set()")?;
    let name = policy::checked_name(call.text(0))?;
    let mut changes = Vec::new();
    let mut interval = |index, name, setting, zero| -> Result<(), Error> {
        if let Some(given) = call.interval(index) {
            changes.push((setting, SettingValue::Us(span(given, name, zero)?)));
        }
        Ok(())
    };
    interval(1, "dedup_window", Setting::DedupWindow, Zero::Refused)?;
    interval(3, "max_lease", Setting::MaxLease, Zero::Refused)?;
    interval(5, "provider_window", Setting::ProviderWindow, Zero::Refused)?;
    interval(6, "wait", Setting::Wait, Zero::Allowed)?;
    interval(10, "backoff", Setting::Backoff, Zero::Refused)?;
    interval(11, "max_backoff", Setting::MaxBackoff, Zero::Refused)?;
    interval(15, "hard_limit", Setting::HardLimit, Zero::Refused)?;
    interval(17, "guard", Setting::Guard, Zero::Refused)?;
    if let Some(keep) = call.bool(2) {
        changes.push((Setting::KeepForever, SettingValue::Bool(keep)));
    }
    let mut word = |index, name: &str, setting, known: &[&str], hint: &str| -> Result<(), Error> {
        if let Some(given) = call.text(index) {
            if !known.contains(&given.as_str()) {
                let (last, others) = known.split_last().unwrap_or((&"", &[]));
                let list = format!("{} or {last}", others.join(", "));
                let given = crate::error::quoted(&given);
                return Err(Error::bad_value(
                    format!("{name} must be {list}, not {given}"),
                    hint,
                ));
            }
            changes.push((setting, SettingValue::Text(given)));
        }
        Ok(())
    };
    word(
        4,
        "effect_kind",
        Setting::EffectKind,
        &["external", "keyed", "local"],
        "external: an expired lease may have happened. keyed: the other system takes our key. local: the effect commits with idem_complete.",
    )?;
    word(
        18,
        "late",
        Setting::Late,
        &["expired", "execute"],
        "expired: a claim after the window is told so while the guard remembers the key. execute: it executes, and an event is written.",
    )?;
    word(
        19,
        "issued_at_from",
        Setting::IssuedAtFrom,
        &["uuidv7", "ulid"],
        "The time in the key is then its issued_at; idem_scope_reset(scope, 'issued_at_from') takes this back.",
    )?;
    if let Some(bytes) = call.int4(7) {
        if !(0..=RESULT_BYTES_MAX).contains(&bytes) {
            return Err(Error::bad_value(
                format!("max_result_bytes must be between 0 and {RESULT_BYTES_MAX}"),
                "Large results belong elsewhere; store a reference.",
            ));
        }
        changes.push((Setting::MaxResultBytes, SettingValue::Int4(bytes)));
    }
    for (index, name, setting) in [
        (9, "max_attempts", Setting::MaxAttempts),
        (12, "max_reconciles", Setting::MaxReconciles),
    ] {
        if let Some(times) = call.int4(index) {
            if !(1..=TIMES_MAX).contains(&times) {
                return Err(Error::bad_value(
                    format!("{name} must be between 1 and {TIMES_MAX}"),
                    "After so many times a human is asked: the key is escalated.",
                ));
            }
            changes.push((setting, SettingValue::Int4(times)));
        }
    }
    if let Some(keep) = call.bool(13) {
        changes.push((Setting::KeepPayload, SettingValue::Bool(keep)));
    }
    let pointers = call
        .text_array(8, "ignore_args")?
        .map(checked_pointers)
        .transpose()?;

    scope::lock_for_change()?;
    let scope = match policy::by_name(&name)? {
        Some(scope) if scope.operated_by(identity::current_role()) => operated(&name)?,
        Some(scope) if scope.may_use(identity::current_role()) => {
            return Err(Error::NotOwner { scope: name });
        }
        Some(_) => return Err(not_yours(&name)),
        None => create(&name)?,
    };
    if let Some(pointers) = pointers {
        let version = scope::add_rule(scope.id(), &pointers)?;
        changes.push((Setting::ArgsRule, SettingValue::Int4(version)));
    }
    if let Some(name) = call.text(14) {
        let kept = reader::RECONCILER.checked_name(&name, scope.owner())?;
        changes.push((Setting::Reconciler, SettingValue::Text(kept)));
    }
    if let Some(name) = call.text(16) {
        let kept = reader::RUN_IS_ALIVE.checked_name(&name, scope.owner())?;
        changes.push((Setting::RunIsAlive, SettingValue::Text(kept)));
    }
    for (setting, value) in changes {
        scope::set(scope.id(), setting, value)?;
    }
    Ok(Reply::Void)
}

/// Somebody else's scope, and a name that may not be created, look alike to who has no right to either.
fn not_yours(name: &str) -> Error {
    let role = identity::current_role();
    if identity::may_create_scopes(role) {
        policy::no_access(name, role)
    } else {
        Error::MayNotCreate {
            role: identity::role_name(role),
        }
    }
}

fn create(name: &str) -> Result<Rc<Scope>, Error> {
    let role = identity::current_role();
    if !identity::may_create_scopes(role) {
        return Err(Error::MayNotCreate {
            role: identity::role_name(role),
        });
    }
    scope::create(name, role)?;
    policy::usable(name)
}

/// The scope for whoever operates it; `default` gets its row when it is first changed.
fn operated(name: &str) -> Result<Rc<Scope>, Error> {
    let scope = policy::operated(name)?;
    if name == DEFAULT_NAME {
        scope::ensure_default_row()?;
    }
    Ok(scope)
}

fn reset(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_scope_reset()")?;
    let name = policy::checked_name(call.text(0))?;
    let policy_name = call.text(1).ok_or(Error::NullArgument("policy"))?;
    let Some((_, setting)) = POLICIES.iter().find(|(known, _)| *known == policy_name) else {
        let known: Vec<&str> = POLICIES.iter().map(|(known, _)| *known).collect();
        return Err(Error::bad_value(
            format!("there is no policy {}", crate::error::quoted(&policy_name)),
            format!("The policies are {}.", known.join(", ")),
        ));
    };
    policy::operated(&name)?;
    scope::lock_for_change()?;
    let scope = policy::operated(&name)?;
    let value = match setting {
        Setting::ArgsRule => SettingValue::Int4(0),
        Setting::DedupWindow
        | Setting::KeepForever
        | Setting::MaxLease
        | Setting::EffectKind
        | Setting::ProviderWindow
        | Setting::Wait
        | Setting::MaxResultBytes
        | Setting::MaxAttempts
        | Setting::Backoff
        | Setting::MaxBackoff
        | Setting::MaxReconciles
        | Setting::KeepPayload
        | Setting::Reconciler
        | Setting::HardLimit
        | Setting::RunIsAlive
        | Setting::Guard
        | Setting::Late
        | Setting::IssuedAtFrom => SettingValue::Default,
    };
    scope::set(scope.id(), *setting, value)?;
    Ok(Reply::Void)
}

fn drop_scope(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_scope_drop()")?;
    let name = policy::checked_name(call.text(0))?;
    if name == DEFAULT_NAME {
        policy::operated(&name)?;
        return Err(Error::bad_value(
            "scope \"default\" cannot be dropped",
            "It is always there; idem_scope_reset sets its policies back.",
        ));
    }
    policy::operated(&name)?;
    // Waits for every claim that has begun and holds off new ones: those find the scope gone.
    scope::lock_keys_for_drop()?;
    let scope = policy::operated(&name)?;
    let tables = KeyTables::open(Mode::Read)?;
    let in_use = open_claims::any_of_scope(scope.id())
        || claim::any_of_scope(&tables.claim, scope.id(), Snapshot::Latest)
        || outcome::any_of_scope(&tables.outcome, scope.id(), Snapshot::Latest);
    tables.close();
    if in_use {
        return Err(Error::ScopeInUse { scope: name });
    }
    scope::remove(scope.id())?;
    Ok(Reply::Void)
}

fn grant(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_scope_grant()")?;
    let (scope, role) = scope_and_role(call)?;
    scope::grant(scope.id(), role, identity::current_role())?;
    Ok(Reply::Void)
}

fn revoke(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_scope_revoke()")?;
    let (scope, role) = scope_and_role(call)?;
    scope::revoke(scope.id(), role)?;
    Ok(Reply::Void)
}

/// Role 0 (`'-'::regrole`) stands for PUBLIC.
fn scope_and_role(call: &Call) -> Result<(Rc<Scope>, Oid), Error> {
    let name = policy::checked_name(call.text(0))?;
    let role = call.oid(1).ok_or(Error::NullArgument("role"))?;
    if role != Oid::INVALID && !identity::role_exists(role) {
        return Err(Error::bad_value(
            format!("there is no role with number {}", role.to_u32()),
            "Give the role's name as text: 'app'. '-' stands for PUBLIC.",
        ));
    }
    // Before the lock, so that who may not do this cannot hold it.
    policy::operated(&name)?;
    scope::lock_for_change()?;
    Ok((policy::operated(&name)?, role))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Zero {
    Allowed,
    Refused,
}

fn span(given: IntervalArgument, name: &str, zero: Zero) -> Result<i64, Error> {
    let (least, in_words) = match zero {
        Zero::Allowed => (0, "0"),
        Zero::Refused => (1_000, "1 millisecond"),
    };
    match given {
        IntervalArgument::Us(us) if (least..=SPAN_US_MAX).contains(&us) => Ok(us),
        IntervalArgument::Us(_) | IntervalArgument::Absurd => Err(Error::bad_value(
            format!("{name} must be between {in_words} and 100 years"),
            "Give an interval with its unit, such as '7 days'. A window that never ends is keep_forever => true.",
        )),
    }
}

fn checked_pointers(pointers: Vec<Option<String>>) -> Result<Vec<String>, Error> {
    let pointers: Vec<String> = pointers
        .into_iter()
        .collect::<Option<_>>()
        .ok_or(Error::NullArgument("a pointer of ignore_args"))?;
    let borrowed: Vec<&str> = pointers.iter().map(String::as_str).collect();
    Ignore::parse(&borrowed).map_err(|error| {
        Error::bad_value(
            error.to_string(),
            "ignore_args takes JSON Pointers such as '/trace_id' or '/items/*/at'; * is any element of an array.",
        )
    })?;
    Ok(pointers)
}

fn guarantee(call: &Call) -> Result<Reply, Error> {
    let name = policy::checked_name(call.text(0))?;
    let scope = policy::usable(&name)?;
    let window = match scope.window() {
        None => "for ever: its outcomes are never pruned".to_owned(),
        Some(window) => format!(
            "within the window of {}, counted from the moment a key was finished, and as long as a run lives that the key was claimed with",
            window.in_words()
        ),
    };
    let expired_lease = match scope.effect_kind() {
        EffectKind::External => "A lease that ends leaves the outcome unknown: the next claim is told to reconcile, never to execute.".to_owned(),
        EffectKind::Keyed => format!(
            "A lease that ends lets the next claim execute with the same key for {} from the first attempt, as long as the other system remembers it; later it is told to reconcile.",
            scope.provider_window().in_words()
        ),
        EffectKind::Local => "A lease that ends proves that nothing happened, provided that the effect commits together with idem_complete.".to_owned(),
    };
    let afterwards = match scope.window() {
        None => "",
        Some(_) => " After the window a key is free again and its operation can be repeated.",
    };
    let policies = scope.policy();
    let limit = policies.hard_limit.filter(|_| policies.window.is_some());
    let limit = limit.map_or(String::new(), |limit| {
        format!(" A run keeps a key for {} at most.", limit.in_words())
    });
    let guard = policies.guard.filter(|_| policies.window.is_some());
    let guard = guard.map_or(String::new(), |guard| {
        let told = match policies.late {
            Late::Expired => "told expired",
            Late::Execute => "executed, and an event says so",
        };
        format!(
            " For {} after its window a late claim is recognised and {told}.",
            guard.in_words()
        )
    });
    Ok(Reply::One(Value::Text(format!(
        "Effectively once, {window}. Scope {}: at most one effect per key; effect and record commit together; a duplicate gets the first answer. {expired_lease}{afterwards}{guard}{limit} Exactly-once delivery is not promised: callers deliver at least once, with the same key.",
        crate::error::quoted(&name)
    ))))
}

/// Trigger on the three scope tables.
fn scopes_changed(call: &Call) -> Result<Reply, Error> {
    invalidation::announce(trigger::relation_of(call)?);
    Ok(Reply::Void)
}
