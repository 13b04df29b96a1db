//! A scope's reconciler: a function f(key text, args jsonb, first_claimed_at timestamptz) that gives one row
//! (verdict text, result jsonb, evidence jsonb). Called as the scope's owner, in a security-restricted operation, with
//! a fixed search_path and a time limit, in a subtransaction: as maintenance commands run the functions of indexes.
//! Follows src/backend/catalog/index.c (`reindex_index`) and src/backend/utils/misc/guc.c (nest levels).

use super::jsonb::Jsonb;
use super::spi::{self, Kind, Parameter};
use super::text;
use super::time_limit::{self, Ended, Runner};
use super::value::Value;
use super::{bgworker, identity, xact};
use crate::error::Error;
use idempotency_core::time::Instant;
use pgrx::pg_sys;
use std::cell::Cell;

/// What a reconciler found.
#[derive(Clone)]
pub struct Found {
    pub verdict: Option<String>,
    pub result: Option<Jsonb>,
    pub evidence: Option<Jsonb>,
}

/// What it is asked.
pub struct Question {
    pub key: String,
    pub args: Option<Jsonb>,
    pub first_claimed_at: Instant,
}

/// The name of the function as it is kept: with its schema, quoted where needed. Refused where it does not fit or
/// `role` may not execute it.
pub fn checked_name(name: &str, role: pg_sys::Oid) -> Result<String, Error> {
    let wrong = |sqlstate, message: String| Error::Function {
        sqlstate,
        message,
        hint: "A reconciler is a function f(key text, args jsonb, first_claimed_at timestamptz) that returns one row (verdict text, result jsonb, evidence jsonb).",
    };
    if name.trim().is_empty() {
        return Err(Error::bad_value(
            "reconciler must name a function",
            "idem_scope_reset(scope, 'reconciler') takes a reconciler away.",
        ));
    }
    // SAFETY: catalogue look-ups; parsing a name may raise 42601 or 42602, which says what is wrong with it.
    unsafe {
        let function = look_up(name);
        let shown = crate::error::quoted(name);
        if function == pg_sys::InvalidOid {
            return Err(wrong(
                b"42883",
                format!("function {shown}(text, jsonb, timestamptz) does not exist"),
            ));
        }
        if pg_sys::get_func_prokind(function) != b'f' as std::ffi::c_char
            || pg_sys::get_func_rettype(function) != pg_sys::RECORDOID
        {
            return Err(wrong(
                b"42804",
                format!("function {shown} does not return a row of OUT columns"),
            ));
        }
        if let Err(why) = may_run(function, role) {
            return Err(wrong(b"42501", format!("{why}: function {shown}")));
        }
        let schema = pg_sys::get_namespace_name(pg_sys::get_func_namespace(function));
        let plain = pg_sys::get_func_name(function);
        Ok(text::from_c(pg_sys::quote_qualified_identifier(
            schema, plain,
        )))
    }
}

/// The function of this name with a reconciler's arguments, or `InvalidOid`.
unsafe fn look_up(name: &str) -> pg_sys::Oid {
    // SAFETY: as in `checked_name`.
    unsafe {
        let c_name = text::to_c(name);
        #[cfg(feature = "pg15")]
        let names = pg_sys::stringToQualifiedNameList(c_name);
        #[cfg(not(feature = "pg15"))]
        let names = pg_sys::stringToQualifiedNameList(c_name, std::ptr::null_mut());
        let arguments = [pg_sys::TEXTOID, pg_sys::JSONBOID, pg_sys::TIMESTAMPTZOID];
        pg_sys::LookupFuncName(names, 3, arguments.as_ptr(), true)
    }
}

/// Whether the function may run with the rights of the scope's owner. Whoever owns it writes what it does, so its
/// owner must have those rights already: else another's function under the same name would gain them.
fn may_run(function: pg_sys::Oid, scope_owner: pg_sys::Oid) -> Result<(), &'static str> {
    if !identity::role_exists(scope_owner) {
        return Err("the scope's owner is gone");
    }
    let Some(function_owner) = identity::function_owner(function) else {
        return Err("the function is gone");
    };
    if !identity::has_rights_of(function_owner, scope_owner) {
        return Err("the function's owner lacks the rights of the scope's owner");
    }
    if !identity::may_execute(scope_owner, function) {
        return Err("the scope's owner may not execute it");
    }
    Ok(())
}

/// Finds the function of a kept name again and holds off its DROP to the end of the subtransaction.
fn find_again(name: &str, scope_owner: pg_sys::Oid) -> Result<(), &'static str> {
    // SAFETY: catalogue look-ups, and a lock that the subtransaction frees.
    unsafe {
        let function = look_up(name);
        if function == pg_sys::InvalidOid {
            return Err("the function is gone");
        }
        let mode = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        pg_sys::LockDatabaseObject(pg_sys::ProcedureRelationId, function, 0, mode);
        if look_up(name) != function {
            return Err("the function was replaced just now");
        }
        may_run(function, scope_owner)
    }
}

thread_local! {
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// Whether a reconciler runs in this session.
pub fn is_asking() -> bool {
    ASKING.get()
}

/// A reconciler runs for as long as this lives, on every path.
struct Asking;

impl Asking {
    fn begin() -> Asking {
        ASKING.set(true);
        Asking
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        ASKING.set(false);
    }
}

/// Asks the reconciler of this kept name. An error of its own comes back as its message. It is a read: whatever else
/// it did, its claims, settings and locks included, is undone.
pub fn ask(
    name: &str,
    owner: pg_sys::Oid,
    question: &Question,
    limit_ms: i32,
    runner: Runner,
) -> Result<Found, String> {
    let statement = format!(
        "SELECT r.verdict::pg_catalog.text, r.result::pg_catalog.jsonb, r.evidence::pg_catalog.jsonb FROM {name}($1, $2, $3) AS r"
    );
    let parameters = vec![
        Parameter::text(&question.key),
        Parameter {
            type_oid: pg_sys::JSONBOID,
            value: question.args.into(),
        },
        Parameter {
            type_oid: pg_sys::TIMESTAMPTZOID,
            value: Value::Timestamp(question.first_claimed_at),
        },
    ];
    let _asking = Asking::begin();
    let rows = xact::undone(|| {
        time_limit::within(limit_ms, runner, || {
            find_again(name, owner)?;
            Ok(identity::restricted_as(owner, || {
                // SAFETY: the nest level is left here, or by the abort of the subtransaction.
                unsafe {
                    let level = pg_sys::NewGUCNestLevel();
                    bgworker::set_local_option(c"search_path", c"pg_catalog, pg_temp");
                    let text = text::to_c(&statement);
                    let rows = spi::run(
                        std::ffi::CStr::from_ptr(text),
                        parameters,
                        Kind::Write,
                        |row| Found {
                            verdict: row.text(1),
                            result: row.jsonb(2),
                            evidence: row.jsonb(3),
                        },
                    );
                    pg_sys::AtEOXact_GUC(false, level);
                    rows
                }
            }))
        })
    });
    match rows {
        Ended::Failed(message) => Err(message),
        Ended::InTime(Err(why)) => Err(str::to_owned(why)),
        Ended::InTime(Ok(rows)) => match <[Found; 1]>::try_from(rows) {
            Ok([found]) => Ok(found),
            Err(rows) => Err(format!("{} rows instead of one", rows.len())),
        },
    }
}
