//! `idem_report`: the data of one SQL function, rendered as a page by the report crate. Both as the caller.

use crate::error::Error;
use crate::pg::call::{Call, Reply};
use crate::pg::spi::{self, Kind, Parameter};
use crate::pg::value::Value;
use crate::sql_function;

sql_function!(idem_report, pg_finfo_idem_report, report);

fn report(call: &Call) -> Result<Reply, Error> {
    let text = c"SELECT idempotency.report_data($1)::pg_catalog.text";
    let parameters = vec![Parameter::optional_text(call.text(0))];
    let documents = spi::run(text, parameters, Kind::Read, |row| row.text(1));
    let document = documents.into_iter().flatten().next().unwrap_or_default();
    let page = idempotency_report::page(&document).map_err(|error| Error::Report {
        message: error.to_string(),
    })?;
    Ok(Reply::One(Value::Text(page)))
}
