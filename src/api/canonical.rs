//! `idem_canonical`, `idem_hash`, `idem_key`: pure functions of their arguments.

use crate::engine::key::{Args, bad_key};
use crate::error::Error;
use crate::pg::call::{Call, Reply};
use crate::pg::value::Value;
use crate::sql_function;
use idempotency_core::digest;
use idempotency_core::ignore::Ignore;
use idempotency_core::key::run_operation_key;

sql_function!(idem_canonical, pg_finfo_idem_canonical, canonical);
sql_function!(idem_hash, pg_finfo_idem_hash, hash);
sql_function!(idem_key, pg_finfo_idem_key, key);

fn canonical(call: &Call) -> Result<Reply, Error> {
    let text = call
        .jsonb(0)
        .map(|args| args.document().canonical(&Ignore::none()));
    Ok(Reply::One(text.into()))
}

fn hash(call: &Call) -> Result<Reply, Error> {
    let hash = call
        .jsonb(0)
        .map(|args| digest::args_hash(&args.document(), &Ignore::none()).to_vec());
    Ok(Reply::One(hash.into()))
}

fn key(call: &Call) -> Result<Reply, Error> {
    let run = call.text(0).ok_or(Error::NullArgument("run"))?;
    let operation = call.text(1).ok_or(Error::NullArgument("operation"))?;
    let Args(args) = Args(call.jsonb(2));
    let document = args.as_ref().map(|args| args.document());
    let key =
        run_operation_key(&run, &operation, document.as_ref()).map_err(|error| bad_key(&error))?;
    Ok(Reply::One(Value::Text(key)))
}
