//! `idem_once`, `idem_call`.

use super::arguments;
use crate::engine::claim::Terms;
use crate::engine::key::{ScopedKey, bad_key, checked_run};
use crate::engine::once::{self, Once};
use crate::error::Error;
use crate::pg::call::{Call, Reply};
use crate::pg::effect::{self, Effect};
use crate::pg::jsonb::Jsonb;
use crate::pg::server;
use crate::policy;
use crate::sql_function;
use idempotency_core::key::run_operation_key;

sql_function!(idem_once, pg_finfo_idem_once, idem_once_body);
sql_function!(idem_call, pg_finfo_idem_call, idem_call_body);

fn idem_once_body(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_once()")?;
    let key = arguments::scoped_key(call, 0, 3)?;
    let effect = call.text(1).ok_or(Error::NullArgument("effect"))?;
    let done = once::once(
        &key,
        Effect::Statement(&effect),
        call.jsonb(2),
        &terms(call)?,
    )?;
    Ok(row(done))
}

fn idem_call_body(call: &Call) -> Result<Reply, Error> {
    server::require_writable(c"idem_call()")?;
    let function = call.text(1).ok_or(Error::NullArgument("function"))?;
    let callable = effect::resolve(&function)?;
    let args = call.jsonb(2);
    let terms = terms(call)?;
    let key = match call.text(0) {
        Some(_) => arguments::scoped_key(call, 0, 3)?,
        None => {
            let run = terms.run.as_deref().ok_or_else(|| {
                Error::bad_value(
                    "idem_call needs a key or a run",
                    "Give key => the operation's name, or run => the run's: then the key is idem_key(run, function, args).",
                )
            })?;
            let document = args.as_ref().map(Jsonb::document).transpose()?;
            let key = run_operation_key(run, &callable.qualified_name, document.as_ref())
                .map_err(|error| bad_key(&error))?;
            ScopedKey::new(&policy::checked_name(call.text(3))?, Some(key))?
        }
    };
    let done = once::once(&key, Effect::Function(callable.oid), args, &terms)?;
    Ok(row(done))
}

/// `idem_once` and `idem_call` are always transactional.
fn terms(call: &Call) -> Result<Terms, Error> {
    Ok(Terms {
        lease: None,
        wait_us: arguments::wait_us(call.interval(4))?,
        run: checked_run(call.text(5))?,
        issued_at: None,
    })
}

fn row(done: Once) -> Reply {
    Reply::Row(vec![done.result.into(), done.replayed.into()])
}
