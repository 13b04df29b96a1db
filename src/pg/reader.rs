//! Functions that a scope names: its reconciler, f(key text, args jsonb, first_claimed_at timestamptz), that gives one
//! row (verdict text, result jsonb, evidence jsonb); and run_is_alive, f(run text), that gives a boolean. Called as the
//! scope's owner, in a security-restricted operation, with a fixed search_path and a time limit, in a subtransaction: as
//! maintenance commands run the functions of indexes.
//! Follows src/backend/catalog/index.c (`reindex_index`) and src/backend/utils/misc/guc.c (nest levels).

use super::jsonb::Jsonb;
use super::spi::{self, Kind, Parameter, ResultRow};
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

/// What a function must look like that a scope names.
pub struct Shape {
    /// The policy that names it.
    policy: &'static str,
    arguments: &'static [pg_sys::Oid],
    /// The same in words.
    argument_names: &'static str,
    result: pg_sys::Oid,
    result_name: &'static str,
    hint: &'static str,
}

/// Reads the other system for a key in doubt.
pub static RECONCILER: Shape = Shape {
    policy: "reconciler",
    arguments: &[pg_sys::TEXTOID, pg_sys::JSONBOID, pg_sys::TIMESTAMPTZOID],
    argument_names: "text, jsonb, timestamptz",
    result: pg_sys::RECORDOID,
    result_name: "a row of OUT columns",
    hint: "A reconciler is a function f(key text, args jsonb, first_claimed_at timestamptz) that returns one row (verdict text, result jsonb, evidence jsonb).",
};

/// Says whether a run may still retry its operations.
pub static RUN_IS_ALIVE: Shape = Shape {
    policy: "run_is_alive",
    arguments: &[pg_sys::TEXTOID],
    argument_names: "text",
    result: pg_sys::BOOLOID,
    result_name: "a boolean",
    hint: "run_is_alive names a function f(run text) that returns boolean; NULL and errors keep the run's keys.",
};

impl Shape {
    /// The name of the function as it is kept: with its schema, quoted where needed. Refused where it does not fit or
    /// `role` may not execute it.
    pub fn checked_name(&self, name: &str, role: pg_sys::Oid) -> Result<String, Error> {
        let wrong = |sqlstate, message: String| Error::Function {
            sqlstate,
            message,
            hint: self.hint,
        };
        let policy = self.policy;
        if name.trim().is_empty() {
            return Err(Error::bad_value(
                format!("{policy} must name a function"),
                format!("idem_scope_reset(scope, '{policy}') takes it away."),
            ));
        }
        // SAFETY: catalogue look-ups; parsing a name may raise 42601 or 42602, which says what is wrong with it.
        unsafe {
            let function = self.look_up(name);
            let shown = crate::error::quoted(name);
            if function == pg_sys::InvalidOid {
                let arguments = self.argument_names;
                return Err(wrong(
                    b"42883",
                    format!("function {shown}({arguments}) does not exist"),
                ));
            }
            if pg_sys::get_func_prokind(function) != b'f' as std::ffi::c_char
                || pg_sys::get_func_rettype(function) != self.result
            {
                let result = self.result_name;
                return Err(wrong(
                    b"42804",
                    format!("function {shown} does not return {result}"),
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

    /// The function of this name with these arguments, or `InvalidOid`.
    unsafe fn look_up(&self, name: &str) -> pg_sys::Oid {
        // SAFETY: as in `checked_name`.
        unsafe {
            let c_name = text::to_c(name);
            #[cfg(feature = "pg15")]
            let names = pg_sys::stringToQualifiedNameList(c_name);
            #[cfg(not(feature = "pg15"))]
            let names = pg_sys::stringToQualifiedNameList(c_name, std::ptr::null_mut());
            let count = i32::try_from(self.arguments.len()).unwrap_or(0);
            pg_sys::LookupFuncName(names, count, self.arguments.as_ptr(), true)
        }
    }

    /// Finds the function of a kept name again and holds off its DROP to the end of the subtransaction.
    fn find_again(&self, name: &str, scope_owner: pg_sys::Oid) -> Result<(), &'static str> {
        // SAFETY: catalogue look-ups, and a lock that the subtransaction frees.
        unsafe {
            let function = self.look_up(name);
            if function == pg_sys::InvalidOid {
                return Err("the function is gone");
            }
            let mode = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
            pg_sys::LockDatabaseObject(pg_sys::ProcedureRelationId, function, 0, mode);
            if self.look_up(name) != function {
                return Err("the function was replaced just now");
            }
            may_run(function, scope_owner)
        }
    }

    /// Runs `statement`, which calls the function of this kept name, and reads its one row. An error of its own comes
    /// back as its message. It is a read: whatever else it did, its claims, settings and locks included, is undone.
    fn call<T>(
        &self,
        statement: &str,
        parameters: Vec<Parameter>,
        function: &Named<'_>,
        read: impl Fn(&ResultRow) -> T,
    ) -> Result<T, String> {
        let _asking = Asking::begin();
        let owner = function.scope_owner;
        let rows = xact::undone(|| {
            time_limit::within(function.limit_ms, function.runner, || {
                self.find_again(function.name, owner)?;
                Ok(identity::restricted_as(owner, || {
                    // SAFETY: the nest level is left here, or by the abort of the subtransaction.
                    unsafe {
                        let level = pg_sys::NewGUCNestLevel();
                        bgworker::set_local_option(c"search_path", c"pg_catalog, pg_temp");
                        let text = text::to_c(statement);
                        let text = std::ffi::CStr::from_ptr(text);
                        let rows = spi::run(text, parameters, Kind::Write, read);
                        pg_sys::AtEOXact_GUC(false, level);
                        rows
                    }
                }))
            })
        });
        match rows {
            Ended::Failed(message) => Err(message),
            Ended::InTime(Err(why)) => Err(str::to_owned(why)),
            Ended::InTime(Ok(rows)) => match <[T; 1]>::try_from(rows) {
                Ok([found]) => Ok(found),
                Err(rows) => Err(format!("{} rows instead of one", rows.len())),
            },
        }
    }
}

/// A function that a scope names, and how it is called.
pub struct Named<'a> {
    pub name: &'a str,
    pub scope_owner: pg_sys::Oid,
    pub limit_ms: i32,
    pub runner: Runner,
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

thread_local! {
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// Whether such a function runs in this session.
pub fn is_asking() -> bool {
    ASKING.get()
}

/// One runs for as long as this lives, on every path.
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

/// Asks a scope's reconciler.
pub fn reconcile(function: &Named<'_>, question: &Question) -> Result<Found, String> {
    let name = function.name;
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
    RECONCILER.call(&statement, parameters, function, |row| Found {
        verdict: row.text(1),
        result: row.jsonb(2),
        evidence: row.jsonb(3),
    })
}

/// Asks a scope whether a run is alive.
pub fn run_is_alive(function: &Named<'_>, run: &str) -> Result<Option<bool>, String> {
    let name = function.name;
    let statement = format!("SELECT {name}($1)");
    RUN_IS_ALIVE.call(&statement, vec![Parameter::text(run)], function, |row| {
        row.bool(1)
    })
}
