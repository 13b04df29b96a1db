//! Text between the database's encoding and Rust's UTF-8.

use pgrx::pg_sys;
use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int};

/// UTF-8 of bytes in the database's encoding; the bytes themselves where that is UTF-8.
/// Raises 22021 where they are not valid (possible in SQL_ASCII databases only).
pub fn from_server(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if bytes.is_ascii() || encoding_is_utf8() => Cow::Borrowed(text),
        Ok(_) | Err(_) => convert(
            bytes,
            pg_sys::pg_enc::PG_UTF8 as c_int,
            pg_sys::pg_server_to_any,
        ),
    }
}

/// Bytes in the database's encoding of UTF-8 text. Raises 22P05 where it has no such character.
pub fn to_server(text: &str) -> Cow<'_, [u8]> {
    if text.is_ascii() || encoding_is_utf8() {
        return Cow::Borrowed(text.as_bytes());
    }
    // SAFETY: pointer and length describe `text`; the result is a C string or the input itself.
    unsafe {
        let converted = pg_sys::pg_any_to_server(
            text.as_ptr().cast(),
            c_int::try_from(text.len()).unwrap_or(c_int::MAX),
            pg_sys::pg_enc::PG_UTF8 as c_int,
        );
        if converted.cast_const().cast() == text.as_ptr() {
            Cow::Borrowed(text.as_bytes())
        } else {
            Cow::Owned(CStr::from_ptr(converted).to_bytes().to_vec())
        }
    }
}

/// A C string in PostgreSQL memory. A NUL ends it early.
pub fn to_c(text: &str) -> *const c_char {
    to_c_bytes(&to_server(text))
}

/// As `to_c` for messages: what the database's encoding may lack becomes a question mark, and nothing is converted.
pub fn to_c_message(text: &str) -> *const c_char {
    if text.is_ascii() || encoding_is_utf8() {
        return to_c_bytes(text.as_bytes());
    }
    match super::raise::catch(|| to_server(text).into_owned()) {
        Ok(bytes) => to_c_bytes(&bytes),
        Err(_) => to_c_bytes(text.replace(|c: char| !c.is_ascii(), "?").as_bytes()),
    }
}

fn to_c_bytes(bytes: &[u8]) -> *const c_char {
    // SAFETY: room for the bytes and a NUL, in the current memory context.
    unsafe {
        let copy = pg_sys::palloc(bytes.len() + 1).cast::<u8>();
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len());
        *copy.add(bytes.len()) = 0;
        copy.cast()
    }
}

/// A Rust string of a C string that PostgreSQL owns; empty for null.
pub fn from_c(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, and PostgreSQL's strings end with NUL.
    from_server(unsafe { CStr::from_ptr(text) }.to_bytes()).into_owned()
}

fn encoding_is_utf8() -> bool {
    // SAFETY: reads a backend variable.
    unsafe { pg_sys::GetDatabaseEncoding() == pg_sys::pg_enc::PG_UTF8 as c_int }
}

fn convert(
    bytes: &[u8],
    encoding: c_int,
    with: unsafe fn(*const c_char, c_int, c_int) -> *mut c_char,
) -> Cow<'_, str> {
    // SAFETY: pointer and length describe `bytes`; pg_verify_mbstr raises 22021 for what is not UTF-8, so the
    // result is. The conversion gives a C string, or the input itself where there is nothing to convert.
    unsafe {
        let length = c_int::try_from(bytes.len()).unwrap_or(c_int::MAX);
        let converted = with(bytes.as_ptr().cast(), length, encoding);
        let result = if converted.cast_const().cast() == bytes.as_ptr() {
            bytes
        } else {
            CStr::from_ptr(converted).to_bytes()
        };
        let result_length = c_int::try_from(result.len()).unwrap_or(c_int::MAX);
        pg_sys::pg_verify_mbstr(encoding, result.as_ptr().cast(), result_length, false);
        Cow::Owned(String::from_utf8_lossy(result).into_owned())
    }
}
