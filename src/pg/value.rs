//! Values between Rust and SQL: one enum for arguments, result columns and table columns.

use super::jsonb::Jsonb;
use super::text;
use idempotency_core::time::Instant;
use pgrx::pg_sys;

/// One SQL value on its way out of Rust.
#[derive(Clone)]
pub enum Value {
    Null,
    Bool(bool),
    /// The one-byte type `"char"`.
    Char(u8),
    Int4(i32),
    Int8(i64),
    Timestamp(Instant),
    /// An interval of this many microseconds.
    Interval(i64),
    Text(String),
    TextArray(Vec<String>),
    Int8Array(Vec<i64>),
    Bytes(Vec<u8>),
    Uuid([u8; 16]),
    Oid(pg_sys::Oid),
    Jsonb(Jsonb),
}

impl Value {
    pub fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    /// Datum and null flag, with what is allocated in the current memory context.
    pub fn into_datum(self) -> (pg_sys::Datum, bool) {
        let datum = match self {
            Value::Null => return (pg_sys::Datum::null(), true),
            Value::Bool(value) => pg_sys::Datum::from(value),
            Value::Char(value) => pg_sys::Datum::from(value),
            Value::Int4(value) => pg_sys::Datum::from(value),
            Value::Int8(value) => pg_sys::Datum::from(value),
            Value::Timestamp(at) => pg_sys::Datum::from(at.0),
            Value::Interval(us) => interval(us),
            Value::Int8Array(numbers) => int8_array(&numbers),
            Value::Text(value) => varlena(&text::to_server(&value)),
            Value::TextArray(items) => text_array(&items),
            Value::Bytes(value) => varlena(&value),
            Value::Uuid(value) => allocated(&value),
            Value::Oid(value) => pg_sys::Datum::from(value.to_u32()),
            Value::Jsonb(value) => value.datum(),
        };
        (datum, false)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Null, Into::into)
    }
}

macro_rules! value_from {
    ($($from:ty => $variant:ident),* $(,)?) => {
        $(impl From<$from> for Value {
            fn from(value: $from) -> Value {
                Value::$variant(value)
            }
        })*
    };
}

value_from!(bool => Bool, i32 => Int4, i64 => Int8, Instant => Timestamp, String => Text, Vec<u8> => Bytes,
    [u8; 16] => Uuid, pg_sys::Oid => Oid, Jsonb => Jsonb);

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::text(value)
    }
}

fn varlena(bytes: &[u8]) -> pg_sys::Datum {
    // SAFETY: cstring_to_text_with_len copies the bytes into the current context; bytea has the same layout.
    unsafe {
        let length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
        pg_sys::Datum::from(pg_sys::cstring_to_text_with_len(
            bytes.as_ptr().cast(),
            length,
        ))
    }
}

fn text_array(items: &[String]) -> pg_sys::Datum {
    let mut elements: Vec<pg_sys::Datum> = items
        .iter()
        .map(|item| varlena(&text::to_server(item)))
        .collect();
    // SAFETY: text elements in the current context.
    unsafe {
        let count = i32::try_from(elements.len()).unwrap_or(i32::MAX);
        let align = b'i' as std::ffi::c_char;
        pg_sys::Datum::from(pg_sys::construct_array(
            elements.as_mut_ptr(),
            count,
            pg_sys::TEXTOID,
            -1,
            false,
            align,
        ))
    }
}

fn int8_array(numbers: &[i64]) -> pg_sys::Datum {
    let mut elements: Vec<pg_sys::Datum> = numbers
        .iter()
        .map(|number| pg_sys::Datum::from(*number))
        .collect();
    // SAFETY: elements by value, in the current context.
    unsafe {
        let count = i32::try_from(elements.len()).unwrap_or(i32::MAX);
        pg_sys::Datum::from(pg_sys::construct_array(
            elements.as_mut_ptr(),
            count,
            pg_sys::INT8OID,
            8,
            true,
            b'd' as std::ffi::c_char,
        ))
    }
}

/// Whole days apart, as people write them.
fn interval(us: i64) -> pg_sys::Datum {
    const DAY_US: i64 = 86_400_000_000;
    // SAFETY: room for the interval, in the current context.
    unsafe {
        let copy = pg_sys::palloc(size_of::<pg_sys::Interval>()).cast::<pg_sys::Interval>();
        copy.write(pg_sys::Interval {
            time: us % DAY_US,
            day: i32::try_from(us / DAY_US).unwrap_or(i32::MAX),
            month: 0,
        });
        pg_sys::Datum::from(copy)
    }
}

fn allocated(bytes: &[u8; 16]) -> pg_sys::Datum {
    // SAFETY: room for the bytes, in the current context.
    unsafe {
        let copy = pg_sys::palloc(bytes.len()).cast::<u8>();
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len());
        pg_sys::Datum::from(copy)
    }
}

/// Bytes of a text or bytea, detoasted.
///
/// # Safety
/// `datum` must be a varlena that lives as long as the result is used.
pub unsafe fn bytes_of<'a>(datum: pg_sys::Datum) -> &'a [u8] {
    // SAFETY: promised by the caller.
    unsafe {
        let value = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
        std::slice::from_raw_parts(
            pgrx::vardata_any(value).cast::<u8>(),
            pgrx::varsize_any_exhdr(value),
        )
    }
}

/// Text of a text datum.
///
/// # Safety
/// As `bytes_of`.
pub unsafe fn string_of(datum: pg_sys::Datum) -> String {
    // SAFETY: promised by the caller.
    text::from_server(unsafe { bytes_of(datum) }).into_owned()
}

/// Elements of an array with one dimension at most; `None` for more.
///
/// # Safety
/// `datum` must be an array of `element`, whose type has the given length, passing and alignment.
pub unsafe fn array_of(
    datum: pg_sys::Datum,
    element: Element,
) -> Option<Vec<Option<pg_sys::Datum>>> {
    // SAFETY: promised by the caller; deconstruct_array gives two arrays of `count` entries.
    unsafe {
        let array = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
        if (*array).ndim > 1 {
            return None;
        }
        let (oid, length, by_value, align) = match element {
            Element::Text => (pg_sys::TEXTOID, -1, false, b'i'),
            Element::Jsonb => (pg_sys::JSONBOID, -1, false, b'i'),
            Element::Int8 => (pg_sys::INT8OID, 8, true, b'd'),
        };
        let mut values = std::ptr::null_mut();
        let mut nulls = std::ptr::null_mut();
        let mut count = 0;
        pg_sys::deconstruct_array(
            array,
            oid,
            length,
            by_value,
            align as std::ffi::c_char,
            &raw mut values,
            &raw mut nulls,
            &raw mut count,
        );
        let count = usize::try_from(count).unwrap_or(0);
        Some(
            (0..count)
                .map(|at| {
                    if *nulls.add(at) {
                        None
                    } else {
                        Some(*values.add(at))
                    }
                })
                .collect(),
        )
    }
}

/// Element types that our functions take in arrays.
#[derive(Clone, Copy)]
pub enum Element {
    Text,
    Jsonb,
    Int8,
}
