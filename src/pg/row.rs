//! A row of ours under a scan: its columns by the code's own numbers, copied out of PostgreSQL's memory.

use super::jsonb::Jsonb;
use super::snapshot;
use super::table::Shape;
use super::value;
use idempotency_core::time::Instant;
use pgrx::pg_sys;

/// A row under a scan.
pub struct Row<'a> {
    pub(super) tuple: pg_sys::HeapTuple,
    pub(super) values: Vec<pg_sys::Datum>,
    pub(super) nulls: Vec<bool>,
    pub(super) shape: &'a Shape,
}

impl Row<'_> {
    fn datum(&self, column: usize) -> Option<pg_sys::Datum> {
        let at = usize::try_from(self.shape.attributes[column] - 1).unwrap_or(usize::MAX);
        (!self.nulls[at]).then(|| self.values[at])
    }

    pub fn int4(&self, column: usize) -> i32 {
        self.datum(column).map_or(0, |datum| datum.value() as i32)
    }

    pub fn int8(&self, column: usize) -> i64 {
        self.datum(column).map_or(0, |datum| datum.value() as i64)
    }

    pub fn char(&self, column: usize) -> u8 {
        self.datum(column).map_or(0, |datum| datum.value() as u8)
    }

    pub fn bool(&self, column: usize) -> Option<bool> {
        self.datum(column).map(|datum| datum.value() as u8 != 0)
    }

    pub fn optional_int4(&self, column: usize) -> Option<i32> {
        self.datum(column).map(|datum| datum.value() as i32)
    }

    pub fn oid(&self, column: usize) -> Option<pg_sys::Oid> {
        self.datum(column)
            .map(|datum| pg_sys::Oid::from(datum.value() as u32))
    }

    pub fn instant(&self, column: usize) -> Option<Instant> {
        self.datum(column)
            .map(|datum| Instant(datum.value() as i64))
    }

    pub fn text(&self, column: usize) -> Option<String> {
        // SAFETY: a text column; copied out while the scan holds the row.
        self.datum(column)
            .map(|datum| unsafe { value::string_of(datum) })
    }

    pub fn bytes(&self, column: usize) -> Option<Vec<u8>> {
        // SAFETY: a bytea column; copied out while the scan holds the row.
        self.datum(column)
            .map(|datum| unsafe { value::bytes_of(datum) }.to_vec())
    }

    pub fn uuid(&self, column: usize) -> [u8; 16] {
        // SAFETY: a uuid column is 16 bytes by reference.
        self.datum(column).map_or([0; 16], |datum| unsafe {
            *datum.cast_mut_ptr::<[u8; 16]>()
        })
    }

    pub fn jsonb(&self, column: usize) -> Option<Jsonb> {
        // SAFETY: a jsonb column; copied into the current memory context.
        self.datum(column)
            .map(|datum| unsafe { Jsonb::copy_datum(datum) })
    }

    pub fn text_array(&self, column: usize) -> Vec<String> {
        // SAFETY: a text[] column.
        self.datum(column)
            .and_then(|datum| unsafe { value::array_of(datum, value::Element::Text) })
            .unwrap_or_default()
            .into_iter()
            .flatten()
            .map(|datum| unsafe { value::string_of(datum) })
            .collect()
    }

    pub fn interval_us(&self, column: usize) -> Option<i64> {
        self.datum(column).and_then(|datum| {
            // SAFETY: an interval column, by reference.
            let interval = unsafe { *datum.cast_mut_ptr::<pg_sys::Interval>() };
            idempotency_core::time::interval_us(interval.month, interval.day, interval.time)
        })
    }

    /// Whether another transaction is about to delete or replace the row, or has just done so.
    pub fn is_leaving(&self) -> bool {
        // SAFETY: the scan still holds the page that the tuple stands on.
        unsafe {
            snapshot::remover((*self.tuple).t_data).is_some_and(|xmax| {
                pg_sys::TransactionIdIsInProgress(xmax) || pg_sys::TransactionIdDidCommit(xmax)
            })
        }
    }

    /// Where the row stands: block and offset, in index order among equal keys.
    pub fn place(&self) -> (u32, u16) {
        // SAFETY: the tuple is held by the scan.
        unsafe {
            let at = (*self.tuple).t_self;
            (
                (u32::from(at.ip_blkid.bi_hi) << 16) | u32::from(at.ip_blkid.bi_lo),
                at.ip_posid,
            )
        }
    }
}
