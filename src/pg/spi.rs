//! Statements of our own through SPI: fixed text, parameters, qualified names. Run as the role that is set.
//! Follows src/backend/executor/spi.c.

use super::jsonb::Jsonb;
use super::value::{self, Value};
use idempotency_core::time::Instant;
use pgrx::pg_sys;
use std::ffi::CStr;

/// A parameter with its type.
pub struct Parameter {
    pub type_oid: pg_sys::Oid,
    pub value: Value,
}

impl Parameter {
    pub fn text(text: &str) -> Parameter {
        Parameter {
            type_oid: pg_sys::TEXTOID,
            value: Value::text(text),
        }
    }

    pub fn int4(number: i32) -> Parameter {
        Parameter {
            type_oid: pg_sys::INT4OID,
            value: Value::Int4(number),
        }
    }

    pub fn optional_text(text: Option<String>) -> Parameter {
        Parameter {
            type_oid: pg_sys::TEXTOID,
            value: text.into(),
        }
    }

    pub fn text_array(items: &[String]) -> Parameter {
        Parameter {
            type_oid: pg_sys::TEXTARRAYOID,
            value: Value::TextArray(items.to_vec()),
        }
    }

    pub fn role(role: pg_sys::Oid) -> Parameter {
        Parameter {
            type_oid: pg_sys::OIDOID,
            value: Value::Oid(role),
        }
    }
}

/// Whether a statement may write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Runs under the statement's snapshot, also on a standby.
    Read,
    /// Takes a fresh snapshot.
    Write,
}

/// A row of a result, valid while the result is visited.
pub struct ResultRow {
    tuple: pg_sys::HeapTuple,
    descriptor: pg_sys::TupleDesc,
}

impl ResultRow {
    fn datum(&self, column: i32) -> Option<pg_sys::Datum> {
        let mut is_null = false;
        // SAFETY: the tuple and its descriptor are of one result; SPI_getbinval checks the column's number.
        let datum =
            unsafe { pg_sys::SPI_getbinval(self.tuple, self.descriptor, column, &raw mut is_null) };
        (!is_null).then_some(datum)
    }

    pub fn text(&self, column: i32) -> Option<String> {
        // SAFETY: the statement's text gives this column as text; likewise below.
        self.datum(column)
            .map(|datum| unsafe { value::string_of(datum) })
    }

    pub fn int4(&self, column: i32) -> Option<i32> {
        self.datum(column).map(|datum| datum.value() as i32)
    }

    pub fn int8(&self, column: i32) -> Option<i64> {
        self.datum(column).map(|datum| datum.value() as i64)
    }

    pub fn bool(&self, column: i32) -> Option<bool> {
        self.datum(column).map(|datum| datum.value() as u8 != 0)
    }

    pub fn oid(&self, column: i32) -> Option<pg_sys::Oid> {
        self.datum(column)
            .map(|datum| pg_sys::Oid::from(datum.value() as u32))
    }

    pub fn jsonb(&self, column: i32) -> Option<Jsonb> {
        // SAFETY: the statement's text gives this column as jsonb; SPI is connected while rows are read.
        self.datum(column).map(|datum| unsafe { outlive(datum) })
    }

    pub fn instant(&self, column: i32) -> Option<Instant> {
        self.int8(column).map(Instant)
    }
}

/// Runs one statement and reads its rows.
pub fn run<T>(
    text: &CStr,
    parameters: Vec<Parameter>,
    kind: Kind,
    read: impl Fn(&ResultRow) -> T,
) -> Vec<T> {
    let mut types: Vec<pg_sys::Oid> = parameters
        .iter()
        .map(|parameter| parameter.type_oid)
        .collect();
    let (mut values, nulls): (Vec<pg_sys::Datum>, Vec<bool>) = parameters
        .into_iter()
        .map(|parameter| parameter.value.into_datum())
        .unzip();
    let nulls: Vec<std::ffi::c_char> = nulls
        .into_iter()
        .map(|is_null| if is_null { b'n' } else { b' ' } as _)
        .collect();
    // SAFETY: text and parameters outlive the call; what `read` takes is copied before SPI_finish frees it.
    unsafe {
        pg_sys::SPI_connect();
        let code = pg_sys::SPI_execute_with_args(
            text.as_ptr(),
            i32::try_from(types.len()).unwrap_or(0),
            types.as_mut_ptr(),
            values.as_mut_ptr(),
            nulls.as_ptr(),
            kind == Kind::Read,
            0,
        );
        assert!(code >= 0, "SPI_execute_with_args gave {code}");
        let mut rows = Vec::new();
        let table = pg_sys::SPI_tuptable;
        if !table.is_null() {
            for at in 0..usize::try_from(pg_sys::SPI_processed).unwrap_or(0) {
                let row = ResultRow {
                    tuple: *(*table).vals.add(at),
                    descriptor: (*table).tupdesc,
                };
                rows.push(read(&row));
            }
        }
        pg_sys::SPI_finish();
        rows
    }
}

/// Copies a jsonb of the current SPI call to where it outlives SPI_finish.
///
/// # Safety
/// `datum` must be a jsonb and SPI connected.
pub unsafe fn outlive(datum: pg_sys::Datum) -> Jsonb {
    // SAFETY: promised by the caller; SPI_datumTransfer copies to the context that was current at SPI_connect.
    unsafe {
        let flat = pg_sys::pg_detoast_datum(datum.cast_mut_ptr());
        Jsonb::from_datum(pg_sys::SPI_datumTransfer(
            pg_sys::Datum::from(flat),
            false,
            -1,
        ))
    }
}
