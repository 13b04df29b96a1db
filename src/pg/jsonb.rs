//! A jsonb value: held by pointer within one call, walked without recursion into the core's document.
//! Follows src/backend/utils/adt/jsonb_util.c (`JsonbIterator`).

use super::text;
use crate::error::Error;
use idempotency_core::canonical::{Builder, Document};
use pgrx::pg_sys;
use pgrx::pg_sys::JsonbIteratorToken as Token;
use std::borrow::Cow;

/// A detoasted jsonb in PostgreSQL memory that outlives the current call.
#[derive(Clone, Copy)]
pub struct Jsonb(*mut pg_sys::varlena);

/// Interrupts are checked once in this many tokens.
const TOKENS_PER_INTERRUPT_CHECK: u32 = 4_096;
/// Digits of all numbers of a value, written out as decimals.
const NUMBER_BYTES_MAX: usize = 64 * 1_024 * 1_024;

impl Jsonb {
    /// # Safety
    /// `datum` must be a jsonb that lives to the end of the current call.
    pub unsafe fn from_datum(datum: pg_sys::Datum) -> Jsonb {
        // SAFETY: promised by the caller.
        Jsonb(unsafe { pg_sys::pg_detoast_datum(datum.cast_mut_ptr()) })
    }

    /// # Safety
    /// `datum` must be a jsonb; it is copied into the current memory context.
    pub unsafe fn copy_datum(datum: pg_sys::Datum) -> Jsonb {
        // SAFETY: promised by the caller.
        Jsonb(unsafe { pg_sys::pg_detoast_datum_copy(datum.cast_mut_ptr()) })
    }

    /// The object of one member with a text, in the current memory context.
    pub fn of_member(name: &str, value: &str) -> Jsonb {
        Jsonb::parse(&serde_json::json!({ name: value }).to_string())
    }

    /// The string of this text, in the current memory context.
    pub fn of_text(value: &str) -> Jsonb {
        Jsonb::parse(&serde_json::Value::from(value).to_string())
    }

    /// JSON text as jsonb; raises where it is none.
    pub fn parse(json: &str) -> Jsonb {
        // SAFETY: jsonb_in takes a C string and allocates in the current context.
        unsafe {
            let text = pg_sys::Datum::from(text::to_c(json));
            let parsed = pg_sys::OidInputFunctionCall(
                pg_sys::Oid::from(pg_sys::F_JSONB_IN),
                text.cast_mut_ptr(),
                pg_sys::InvalidOid,
                -1,
            );
            Jsonb(parsed.cast_mut_ptr())
        }
    }

    pub fn datum(self) -> pg_sys::Datum {
        pg_sys::Datum::from(self.0)
    }

    /// Bytes as stored before compression.
    pub fn size_bytes(self) -> usize {
        // SAFETY: a detoasted varlena has a four-byte header.
        unsafe { pgrx::varsize_any(self.0) }
    }

    /// The value as the core's document, whose names and strings are borrowed from it. Refused where its numbers,
    /// written out, would take more memory than any jsonb: `1e131071` is a few bytes, and 131,072 digits.
    pub fn document(&self) -> Result<Document<'_>, Error> {
        let mut number_bytes: usize = 0;
        let mut builder = Builder::new();
        let mut raw_scalar = false;
        let mut tokens: u32 = 0;
        // SAFETY: the iterator reads the detoasted value, which outlives `self`; each token's fields are read
        // only as its type says.
        unsafe {
            let container = &raw mut (*self.0.cast::<pg_sys::Jsonb>()).root;
            let mut iterator = pg_sys::JsonbIteratorInit(container);
            let mut value = pg_sys::JsonbValue::default();
            loop {
                match pg_sys::JsonbIteratorNext(&raw mut iterator, &raw mut value, false) {
                    Token::WJB_DONE => break,
                    Token::WJB_BEGIN_OBJECT => builder.begin_object(),
                    Token::WJB_END_OBJECT => builder.end_object(),
                    Token::WJB_BEGIN_ARRAY => {
                        // A scalar at the top is stored as an array of one.
                        raw_scalar = value.val.array.rawScalar;
                        if !raw_scalar {
                            builder.begin_array();
                        }
                    }
                    Token::WJB_END_ARRAY => {
                        if !raw_scalar {
                            builder.end_array();
                        }
                    }
                    Token::WJB_KEY => builder.member(string_of(&value)),
                    _ => {
                        number_bytes += scalar(&mut builder, &value);
                        if number_bytes > NUMBER_BYTES_MAX {
                            return Err(too_many_digits());
                        }
                    }
                }
                tokens = tokens.wrapping_add(1);
                if tokens.is_multiple_of(TOKENS_PER_INTERRUPT_CHECK) {
                    super::server::check_for_interrupts();
                }
            }
        }
        Ok(builder
            .finish()
            .unwrap_or_else(|error| panic!("a jsonb value is a whole document: {error}")))
    }
}

/// # Safety
/// `value` must be a string of a jsonb that outlives `'a`.
unsafe fn string_of<'a>(value: &pg_sys::JsonbValue) -> Cow<'a, str> {
    // SAFETY: a string token points into the value.
    unsafe {
        let string = value.val.string;
        let length = usize::try_from(string.len).unwrap_or(0);
        if length == 0 {
            return Cow::Borrowed("");
        }
        text::from_server(std::slice::from_raw_parts(
            string.val.cast::<u8>().cast_const(),
            length,
        ))
    }
}

fn too_many_digits() -> Error {
    Error::too_large(
        format!("the numbers of a jsonb have more than {NUMBER_BYTES_MAX} digits written out"),
        "Numbers such as 1e131071 are short in jsonb and long as decimals; pass them as strings.",
    )
}

/// Adds a scalar; gives back the length of a number.
///
/// # Safety
/// `value` must be a scalar token.
unsafe fn scalar(builder: &mut Builder<'_>, value: &pg_sys::JsonbValue) -> usize {
    use pg_sys::jbvType;
    // SAFETY: each field is read as the type says.
    unsafe {
        match value.type_ {
            jbvType::jbvNull => builder.null(),
            jbvType::jbvBool => builder.bool(value.val.boolean),
            jbvType::jbvNumeric => {
                let number = number_text(value.val.numeric);
                let length = number.len();
                builder.number(number);
                return length;
            }
            jbvType::jbvString => builder.string(string_of(value)),
            other => panic!("jsonb token of unknown type {other}"),
        }
    }
    0
}

/// The decimal text of a numeric, without trailing zeros.
///
/// # Safety
/// `numeric` must be valid.
unsafe fn number_text(numeric: pg_sys::Numeric) -> String {
    // SAFETY: gives a C string in the current context.
    unsafe {
        let text = pg_sys::numeric_normalize(numeric);
        let number = std::ffi::CStr::from_ptr(text)
            .to_string_lossy()
            .into_owned();
        pg_sys::pfree(text.cast());
        number
    }
}
