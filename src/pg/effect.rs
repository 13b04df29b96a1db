//! The user's effect: one SQL statement with `$1` = args, run as the caller through SPI.
//!
//! The caller's rights stay the caller's, and the text cannot change roles (SECURITY_LOCAL_USERID_CHANGE).
//! Plans are kept per text in this session. Follows src/backend/executor/spi.c.

use super::jsonb::Jsonb;
use super::{identity, raise, spi};
use crate::error::Error;
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::CString;

// Called through `exactly` alone, so without pgrx's guard.
unsafe extern "C-unwind" {
    fn SPI_prepare(
        src: *const std::ffi::c_char,
        nargs: std::ffi::c_int,
        argtypes: *mut pg_sys::Oid,
    ) -> pg_sys::SPIPlanPtr;
    fn SPI_execute_plan(
        plan: pg_sys::SPIPlanPtr,
        values: *mut pg_sys::Datum,
        nulls: *const std::ffi::c_char,
        read_only: bool,
        tcount: std::ffi::c_long,
    ) -> std::ffi::c_int;
}

/// Plans that a session keeps.
const PLANS_MAX: usize = 64;

thread_local! {
    static PLANS: RefCell<HashMap<String, Plan>> = RefCell::new(HashMap::new());
    /// Effects that are running, one inside the other. A plan may be freed only when none is.
    static RUNNING: Cell<u32> = const { Cell::new(0) };
}

#[derive(Clone, Copy)]
struct Plan(pg_sys::SPIPlanPtr);

/// What is done once.
#[derive(Clone, Copy)]
pub enum Effect<'a> {
    /// One SQL statement.
    Statement(&'a str),
    /// A function f(jsonb) returns jsonb.
    Function(pg_sys::Oid),
}

/// Runs the effect and gives back its one jsonb.
pub fn run(effect: Effect<'_>, args: Option<Jsonb>) -> Result<Option<Jsonb>, Error> {
    identity::acting_as(identity::current_role(), || match effect {
        Effect::Statement(text) => run_statement(text, args),
        Effect::Function(function) => call_function(function, args),
    })
}

fn run_statement(text: &str, args: Option<Jsonb>) -> Result<Option<Jsonb>, Error> {
    // SAFETY: SPI is connected and finished here; an error ends both with the (sub)transaction.
    unsafe {
        pg_sys::SPI_connect();
        let outermost = RUNNING.get() == 0;
        let plan = prepared(text, outermost)?;
        RUNNING.set(RUNNING.get() + 1);
        let result = execute(plan, args);
        RUNNING.set(RUNNING.get() - 1);
        pg_sys::SPI_finish();
        result
    }
}

/// Calls the very function that was found, after the check that a call in SQL would make.
fn call_function(function: pg_sys::Oid, args: Option<Jsonb>) -> Result<Option<Jsonb>, Error> {
    // SAFETY: a catalogue look-up.
    if unsafe { pg_sys::get_func_name(function) }.is_null() {
        return Err(Error::Function {
            sqlstate: b"42883",
            message: "the function was dropped while its key was claimed".to_owned(),
            hint: "Call again with a function that exists.",
        });
    }
    if !identity::may_execute(identity::current_role(), function) {
        // SAFETY: a catalogue look-up.
        let name = super::text::from_c(unsafe { pg_sys::get_func_name(function) });
        return Err(Error::Function {
            sqlstate: b"42501",
            message: format!("permission denied for function {name}"),
            hint: "idem_call runs the function as its caller, who needs EXECUTE on it.",
        });
    }
    // SAFETY: as OidFunctionCall1Coll in fmgr.c, with NULLs; the call is guarded because it may raise. It sees what
    // is committed now, as a statement of its own would.
    unsafe {
        let mut info = pg_sys::FmgrInfo::default();
        pg_sys::fmgr_info(function, &raw mut info);
        if info.fn_strict && args.is_none() {
            return Ok(None);
        }
        let bytes =
            size_of::<pg_sys::FunctionCallInfoBaseData>() + size_of::<pg_sys::NullableDatum>();
        let call = pg_sys::palloc0(bytes).cast::<pg_sys::FunctionCallInfoBaseData>();
        (*call).flinfo = &raw mut info;
        (*call).nargs = 1;
        *(*call).args.as_mut_ptr() = pg_sys::NullableDatum {
            value: args.map_or(pg_sys::Datum::null(), Jsonb::datum),
            isnull: args.is_none(),
        };
        let Some(body) = info.fn_addr else {
            return Ok(None);
        };
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let datum = raise::exactly(|| body(call));
        pg_sys::PopActiveSnapshot();
        Ok(if (*call).isnull {
            None
        } else {
            Some(Jsonb::copy_datum(datum))
        })
    }
}

/// The transaction ended, perhaps by an error inside an effect: none is running any more.
pub fn forget_running() {
    RUNNING.set(0);
}

unsafe fn prepared(text: &str, may_keep: bool) -> Result<Plan, Error> {
    if let Some(plan) = PLANS.with_borrow(|plans| plans.get(text).copied()) {
        return Ok(plan);
    }
    let Ok(c_text) = CString::new(&*super::text::to_server(text)) else {
        return Err(Error::bad_value(
            "the effect contains a NUL character",
            "Give plain SQL text.",
        ));
    };
    // SAFETY: SPI is connected; the plan lives in SPI's memory until it is kept.
    unsafe {
        let mut types = [pg_sys::JSONBOID];
        let (source, types) = (c_text.as_ptr(), types.as_mut_ptr());
        let plan = raise::exactly(|| SPI_prepare(source, 1, types));
        assert!(!plan.is_null(), "SPI_prepare refuses its arguments");
        let sources = pg_sys::SPI_plan_get_plan_sources(plan);
        let statements = if sources.is_null() {
            0
        } else {
            (*sources).length
        };
        if statements != 1 {
            return Err(Error::bad_value(
                format!("the effect must be one SQL statement, not {statements}"),
                "Join them with WITH, or put them into a function and use idem_call.",
            ));
        }
        if may_keep {
            keep(text, Plan(plan));
        }
        Ok(Plan(plan))
    }
}

unsafe fn keep(text: &str, plan: Plan) {
    // SAFETY: no effect is running, so no kept plan is in use; the map is borrowed by nobody.
    unsafe {
        let full = PLANS.with_borrow(|plans| plans.len() >= PLANS_MAX);
        if full {
            for old in PLANS.take().into_values() {
                pg_sys::SPI_freeplan(old.0);
            }
        }
        if pg_sys::SPI_keepplan(plan.0) == 0 {
            PLANS.with_borrow_mut(|plans| plans.insert(text.to_owned(), plan));
        }
    }
}

unsafe fn execute(plan: Plan, args: Option<Jsonb>) -> Result<Option<Jsonb>, Error> {
    let mut values = [args.map_or(pg_sys::Datum::null(), Jsonb::datum)];
    let nulls = [if args.is_some() { b' ' } else { b'n' } as std::ffi::c_char];
    // SAFETY: the plan has one jsonb parameter. No limit on rows: it would cut the effect short, not the answer.
    unsafe {
        let (values, nulls) = (values.as_mut_ptr(), nulls.as_ptr());
        let code = raise::exactly(|| SPI_execute_plan(plan.0, values, nulls, false, 0));
        if code == pg_sys::SPI_ERROR_TRANSACTION {
            return Err(Error::Function {
                sqlstate: b"2D000",
                message: "the effect must not begin or end a transaction".to_owned(),
                hint: "It runs inside the caller's transaction and commits with it.",
            });
        }
        if code == pg_sys::SPI_ERROR_COPY {
            return Err(Error::Function {
                sqlstate: b"0A000",
                message: "the effect must not be COPY to or from the client".to_owned(),
                hint: "Use INSERT ... RETURNING.",
            });
        }
        assert!(code >= 0, "SPI_execute_plan gave {code}");
        let table = pg_sys::SPI_tuptable;
        if table.is_null() {
            return Err(Error::NoRow);
        }
        let descriptor = (*table).tupdesc;
        if (*descriptor).natts != 1 || pg_sys::SPI_gettypeid(descriptor, 1) != pg_sys::JSONBOID {
            return Err(Error::WrongColumns {
                found: found_columns(descriptor),
            });
        }
        match pg_sys::SPI_processed {
            0 => Err(Error::NoRow),
            1 => {
                let mut is_null = false;
                let datum = pg_sys::SPI_getbinval(*(*table).vals, descriptor, 1, &raw mut is_null);
                Ok(if is_null {
                    None
                } else {
                    Some(spi::outlive(datum))
                })
            }
            _ => Err(Error::TooManyRows),
        }
    }
}

unsafe fn found_columns(descriptor: pg_sys::TupleDesc) -> String {
    // SAFETY: the descriptor of the current SPI result.
    unsafe {
        match (*descriptor).natts {
            1 => super::text::from_c(pg_sys::SPI_gettype(descriptor, 1)),
            columns => format!("{columns} columns"),
        }
    }
}

/// A function that `idem_call` may call: exactly f(jsonb) returns jsonb on the search_path.
pub struct Callable {
    /// Schema and name as `idem_key` takes them.
    pub qualified_name: String,
    pub oid: pg_sys::Oid,
}

/// Resolves a name, given as in SQL (`f` or `schema.f`, double quotes allowed).
pub fn resolve(name: &str) -> Result<Callable, Error> {
    let wrong = |sqlstate, message: String, hint| Error::Function {
        sqlstate,
        message,
        hint,
    };
    // SAFETY: catalogue look-ups; parsing a name may raise 42601 or 42602, which says what is wrong with it.
    unsafe {
        let c_name = super::text::to_c(name);
        #[cfg(feature = "pg15")]
        let names = pg_sys::stringToQualifiedNameList(c_name);
        #[cfg(not(feature = "pg15"))]
        let names = pg_sys::stringToQualifiedNameList(c_name, std::ptr::null_mut());
        let arguments = [pg_sys::JSONBOID];
        let function = pg_sys::LookupFuncName(names, 1, arguments.as_ptr(), true);
        if function == pg_sys::InvalidOid {
            return Err(wrong(
                b"42883",
                format!(
                    "function {}(jsonb) does not exist",
                    crate::error::quoted(name)
                ),
                "idem_call takes the name of a function with one jsonb argument that is on the search_path.",
            ));
        }
        if pg_sys::get_func_rettype(function) != pg_sys::JSONBOID
            || pg_sys::get_func_retset(function)
        {
            return Err(wrong(
                b"42804",
                format!(
                    "function {}(jsonb) does not return one jsonb",
                    crate::error::quoted(name)
                ),
                "idem_call takes f(jsonb) RETURNS jsonb; wrap others, or use idem_once.",
            ));
        }
        if pg_sys::get_func_prokind(function) != b'f' as std::ffi::c_char {
            return Err(wrong(
                b"42809",
                format!(
                    "{}(jsonb) is not a plain function",
                    crate::error::quoted(name)
                ),
                "Procedures, aggregates and window functions cannot be called by idem_call.",
            ));
        }
        let schema = super::text::from_c(pg_sys::get_namespace_name(pg_sys::get_func_namespace(
            function,
        )));
        let plain = super::text::from_c(pg_sys::get_func_name(function));
        Ok(Callable {
            qualified_name: format!("{schema}.{plain}"),
            oid: function,
        })
    }
}
