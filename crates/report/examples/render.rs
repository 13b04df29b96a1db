//! Writes the page for the document on standard input: `render <report.json >report.html`.

use std::io::{Read, Write};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut json = String::new();
    std::io::stdin().read_to_string(&mut json)?;
    std::io::stdout().write_all(idempotency_report::page(&json)?.as_bytes())?;
    Ok(())
}
