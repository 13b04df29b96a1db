//! `idem_claim_many`, `idem_complete_many`.

use super::{arguments, keys};
use crate::engine::claim::{self, BATCH_KEYS_MAX};
use crate::engine::finish::{self, Ending};
use crate::engine::key::{Args, ScopedKey};
use crate::error::Error;
use crate::pg::call::{Call, Reply};
use crate::pg::server;
use crate::pg::value::Value;
use crate::policy;
use crate::sql_function;

sql_function!(idem_claim_many, pg_finfo_idem_claim_many, claim_many);
sql_function!(
    idem_complete_many,
    pg_finfo_idem_complete_many,
    complete_many
);

fn claim_many(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_claim_many()")?;
    let scope_name = policy::checked_name(call.text(2))?;
    let keys = batch_keys(call, &scope_name)?;
    let args = match call.jsonb_array(1, "args")? {
        None => vec![Args::Given(None); keys.len()],
        Some(args) => same_length(
            args.into_iter().map(Args::Given).collect(),
            keys.len(),
            "args",
        )?,
    };
    let terms = arguments::leased_terms(call, &scope_name)?;
    let answers = claim::claim_many(&keys, &args, &terms)?;
    let rows = keys
        .iter()
        .zip(answers)
        .enumerate()
        .map(|(at, (key, answer))| {
            let mut row = vec![ordinal(at), key.key.as_str().into()];
            row.extend(keys::columns(answer));
            row
        });
    Ok(Reply::Rows(rows.collect()))
}

fn complete_many(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_complete_many()")?;
    let scope_name = policy::checked_name(call.text(2))?;
    let keys = batch_keys(call, &scope_name)?;
    let results = match call.jsonb_array(1, "results")? {
        None => vec![None; keys.len()],
        Some(results) => same_length(results, keys.len(), "results")?,
    };
    let fences = match call.int8_array(3, "fences")? {
        None => vec![None; keys.len()],
        Some(fences) => same_length(fences, keys.len(), "fences")?,
    };
    // In digest order, as every batch takes its locks: two batches never wait for each other in a circle.
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by_key(|at| keys[*at].digest);
    let mut rows: Vec<Vec<Value>> = vec![Vec::new(); keys.len()];
    for at in order {
        let ending = Ending::Completed {
            result: results[at],
        };
        let finished = finish::finish(&keys[at], fences[at], ending.into())?;
        rows[at] = vec![
            ordinal(at),
            keys[at].key.as_str().into(),
            finished.result.into(),
        ];
    }
    Ok(Reply::Rows(rows))
}

fn batch_keys(call: &Call, scope: &str) -> Result<Vec<ScopedKey>, Error> {
    let keys = call
        .text_array(0, "keys")?
        .ok_or(Error::NullArgument("keys"))?;
    if keys.len() > BATCH_KEYS_MAX {
        return Err(Error::too_large(
            format!(
                "{} keys in one call, the limit is {BATCH_KEYS_MAX}",
                keys.len()
            ),
            "Split the batch.",
        ));
    }
    keys.into_iter()
        .map(|key| ScopedKey::new(scope, key))
        .collect()
}

fn same_length<T>(items: Vec<T>, keys: usize, name: &str) -> Result<Vec<T>, Error> {
    if items.len() == keys {
        return Ok(items);
    }
    Err(Error::bad_value(
        format!("{name} has {} elements for {keys} keys", items.len()),
        "Give one element for each key, NULL where there is none.",
    ))
}

fn ordinal(at: usize) -> Value {
    Value::Int4(i32::try_from(at + 1).unwrap_or(i32::MAX))
}
