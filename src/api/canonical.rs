//! `idem_canonical`, `idem_hash`, `idem_key`: pure functions of their arguments.

use crate::engine::key::bad_key;
use crate::error::Error;
use crate::pg::call::{Call, Reply};
use crate::pg::jsonb::Jsonb;
use crate::pg::value::Value;
use crate::sql_function;
use idempotency_core::digest;
use idempotency_core::ignore::Ignore;
use idempotency_core::key::run_operation_key;

sql_function!(idem_canonical, pg_finfo_idem_canonical, canonical);
sql_function!(idem_hash, pg_finfo_idem_hash, hash);
sql_function!(idem_key, pg_finfo_idem_key, key);

/// The longest text that PostgreSQL holds (`MaxAllocSize`, less its header).
const TEXT_BYTES_MAX: usize = 0x3fff_ffff - 4;

fn canonical(call: &Call) -> Result<Reply, Error> {
    let Some(args) = call.jsonb(0) else {
        return Ok(Reply::One(Value::Null));
    };
    let text = args.document()?.canonical(&Ignore::none());
    if text.len() > TEXT_BYTES_MAX {
        return Err(Error::too_large(
            format!(
                "the canonical form has {} bytes, the limit of text is {TEXT_BYTES_MAX}",
                text.len()
            ),
            "idem_hash takes arguments of this size too.",
        ));
    }
    Ok(Reply::One(Value::Text(text)))
}

fn hash(call: &Call) -> Result<Reply, Error> {
    let Some(args) = call.jsonb(0) else {
        return Ok(Reply::One(Value::Null));
    };
    let hash = digest::args_hash(&args.document()?, &Ignore::none());
    Ok(Reply::One(Value::Bytes(hash.to_vec())))
}

fn key(call: &Call) -> Result<Reply, Error> {
    let run = call.text(0).ok_or(Error::NullArgument("run"))?;
    let operation = call.text(1).ok_or(Error::NullArgument("operation"))?;
    let args = call.jsonb(2);
    let document = args.as_ref().map(Jsonb::document).transpose()?;
    let key =
        run_operation_key(&run, &operation, document.as_ref()).map_err(|error| bad_key(&error))?;
    Ok(Reply::One(Value::Text(key)))
}
