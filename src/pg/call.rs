//! How SQL enters: reading arguments, giving results, and the macro that makes a Rust function callable.

use super::jsonb::Jsonb;
use super::value::{self, Element, Value};
use super::{raise, row_type};
use crate::error::Error;
use idempotency_core::time::{Instant, interval_us};
use pgrx::pg_sys;

/// One call from SQL.
pub struct Call {
    fcinfo: pg_sys::FunctionCallInfo,
    /// The row type of a function with OUT columns, else null. Learned before anything is done: a DROP EXTENSION
    /// that this call waits for takes the function's catalogue row away.
    row_type: pg_sys::TupleDesc,
}

/// What a function gives back.
pub enum Reply {
    Void,
    One(Value),
    Row(Vec<Value>),
    Rows(Vec<Vec<Value>>),
}

/// What a caller shows for its verdict.
pub struct Evidence {
    pub json: Jsonb,
    /// Where it was given as text.
    pub text: Option<String>,
}

/// An interval argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntervalArgument {
    /// Its length in microseconds; months count 30 days.
    Us(i64),
    /// Too long to be counted, or infinite.
    Absurd,
}

impl Call {
    /// # Safety
    /// `fcinfo` must come from PostgreSQL's function manager.
    unsafe fn begin(fcinfo: pg_sys::FunctionCallInfo) -> Call {
        // SAFETY: promised by the caller. InitMaterializedSRF raises where the caller cannot take a set.
        let row_type = unsafe {
            if (*(*fcinfo).flinfo).fn_retset {
                pg_sys::InitMaterializedSRF(fcinfo, 0);
                std::ptr::null_mut()
            } else {
                row_type::of_call(fcinfo)
            }
        };
        Call { fcinfo, row_type }
    }

    fn datum(&self, index: usize) -> Option<pg_sys::Datum> {
        // SAFETY: the SQL declaration gives as many arguments as the function reads.
        unsafe {
            let argument = *(*self.fcinfo).args.as_ptr().add(index);
            (!argument.isnull).then_some(argument.value)
        }
    }

    /// What called us, if not a plain expression.
    pub(super) fn context(&self) -> pg_sys::fmNodePtr {
        // SAFETY: the call is live.
        unsafe { (*self.fcinfo).context }
    }

    pub fn text(&self, index: usize) -> Option<String> {
        // SAFETY: declared as text in SQL, here and below likewise.
        self.datum(index)
            .map(|datum| unsafe { value::string_of(datum) })
    }

    pub fn jsonb(&self, index: usize) -> Option<Jsonb> {
        // SAFETY: an argument lives to the end of the call.
        self.datum(index)
            .map(|datum| unsafe { Jsonb::from_datum(datum) })
    }

    /// An argument of any type: jsonb and json as they are, all else as the string of its text.
    pub fn evidence(&self, index: usize) -> Option<Evidence> {
        let datum = self.datum(index)?;
        let number = i32::try_from(index).unwrap_or(0);
        // SAFETY: the call's own argument, put out by the function of its own type.
        unsafe {
            let type_oid = pg_sys::get_fn_expr_argtype((*self.fcinfo).flinfo, number);
            if type_oid == pg_sys::JSONBOID {
                return Some(Evidence {
                    text: None,
                    json: Jsonb::from_datum(datum),
                });
            }
            let mut output = pg_sys::InvalidOid;
            let mut is_varlena = false;
            pg_sys::getTypeOutputInfo(type_oid, &raw mut output, &raw mut is_varlena);
            let text = super::text::from_c(pg_sys::OidOutputFunctionCall(output, datum));
            Some(if type_oid == pg_sys::JSONOID {
                Evidence {
                    json: Jsonb::parse(&text),
                    text: None,
                }
            } else {
                Evidence {
                    json: Jsonb::of_text(&text),
                    text: Some(text),
                }
            })
        }
    }

    pub fn int8(&self, index: usize) -> Option<i64> {
        self.datum(index).map(|datum| datum.value() as i64)
    }

    pub fn int4(&self, index: usize) -> Option<i32> {
        self.datum(index).map(|datum| datum.value() as i32)
    }

    pub fn bool(&self, index: usize) -> Option<bool> {
        self.datum(index).map(|datum| datum.value() as u8 != 0)
    }

    pub fn oid(&self, index: usize) -> Option<pg_sys::Oid> {
        self.datum(index)
            .map(|datum| pg_sys::Oid::from(datum.value() as u32))
    }

    pub fn timestamp(&self, index: usize) -> Option<Instant> {
        self.int8(index).map(Instant)
    }

    pub fn interval(&self, index: usize) -> Option<IntervalArgument> {
        self.datum(index).map(|datum| {
            // SAFETY: an interval is passed by reference and never toasted.
            let interval = unsafe { *datum.cast_mut_ptr::<pg_sys::Interval>() };
            interval_us(interval.month, interval.day, interval.time)
                .map_or(IntervalArgument::Absurd, IntervalArgument::Us)
        })
    }

    pub fn text_array(
        &self,
        index: usize,
        name: &'static str,
    ) -> Result<Option<Vec<Option<String>>>, Error> {
        self.array(index, name, Element::Text, |datum| unsafe {
            value::string_of(datum)
        })
    }

    pub fn jsonb_array(
        &self,
        index: usize,
        name: &'static str,
    ) -> Result<Option<Vec<Option<Jsonb>>>, Error> {
        self.array(index, name, Element::Jsonb, |datum| unsafe {
            Jsonb::from_datum(datum)
        })
    }

    pub fn int8_array(
        &self,
        index: usize,
        name: &'static str,
    ) -> Result<Option<Vec<Option<i64>>>, Error> {
        self.array(index, name, Element::Int8, |datum| datum.value() as i64)
    }

    fn array<T>(
        &self,
        index: usize,
        name: &'static str,
        element: Element,
        read: impl Fn(pg_sys::Datum) -> T,
    ) -> Result<Option<Vec<Option<T>>>, Error> {
        let Some(datum) = self.datum(index) else {
            return Ok(None);
        };
        // SAFETY: declared as an array of that element in SQL.
        match unsafe { value::array_of(datum, element) } {
            Some(items) => Ok(Some(
                items.into_iter().map(|item| item.map(&read)).collect(),
            )),
            None => Err(Error::bad_value(
                format!("{name} must be an array of one dimension"),
                "Give a plain list, such as ARRAY['a', 'b'].",
            )),
        }
    }

    fn answer(&self, reply: Reply) -> pg_sys::Datum {
        match reply {
            Reply::Void => pg_sys::Datum::null(),
            Reply::One(value) => {
                let (datum, is_null) = value.into_datum();
                // SAFETY: the call is live.
                unsafe { (*self.fcinfo).isnull = is_null };
                datum
            }
            Reply::Row(values) => self.row(values),
            Reply::Rows(rows) => self.rows(rows),
        }
    }

    fn row(&self, values: Vec<Value>) -> pg_sys::Datum {
        // SAFETY: the function is declared with OUT columns, so its result type is composite; the values match
        // it in number and type, as the tests check by calling each.
        unsafe {
            let (mut datums, mut nulls) = split(values);
            let tuple =
                pg_sys::heap_form_tuple(self.row_type, datums.as_mut_ptr(), nulls.as_mut_ptr());
            pg_sys::HeapTupleHeaderGetDatum((*tuple).t_data)
        }
    }

    fn rows(&self, rows: Vec<Vec<Value>>) -> pg_sys::Datum {
        // SAFETY: declared SETOF record with OUT columns, so `begin` has set setDesc and setResult.
        unsafe {
            let result = (*self.fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            for row in rows {
                let (mut datums, mut nulls) = split(row);
                pg_sys::tuplestore_putvalues(
                    (*result).setResult,
                    (*result).setDesc,
                    datums.as_mut_ptr(),
                    nulls.as_mut_ptr(),
                );
            }
        }
        pg_sys::Datum::null()
    }
}

fn split(values: Vec<Value>) -> (Vec<pg_sys::Datum>, Vec<bool>) {
    values.into_iter().map(Value::into_datum).unzip()
}

/// Runs a function of ours for SQL. Called by `sql_function!` alone.
///
/// # Safety
/// `fcinfo` must come from PostgreSQL's function manager.
pub unsafe fn enter(
    fcinfo: pg_sys::FunctionCallInfo,
    body: fn(&Call) -> Result<Reply, Error>,
) -> pg_sys::Datum {
    // SAFETY: nothing with a destructor is on this frame.
    unsafe {
        raise::boundary(|| {
            let call = Call::begin(fcinfo);
            body(&call).map(|reply| call.answer(reply))
        })
    }
}

/// Makes `fn(&Call) -> Result<Reply, Error>` callable from SQL under a C symbol (version 1 convention).
#[macro_export]
macro_rules! sql_function {
    ($symbol:ident, $info:ident, $body:path) => {
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $symbol(
            fcinfo: ::pgrx::pg_sys::FunctionCallInfo,
        ) -> ::pgrx::pg_sys::Datum {
            // SAFETY: called by the function manager.
            unsafe { $crate::pg::call::enter(fcinfo, $body) }
        }

        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub extern "C" fn $info() -> *const ::pgrx::pg_sys::Pg_finfo_record {
            static INFO: ::pgrx::pg_sys::Pg_finfo_record =
                ::pgrx::pg_sys::Pg_finfo_record { api_version: 1 };
            &raw const INFO
        }
    };
}
