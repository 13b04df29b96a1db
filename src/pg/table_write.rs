//! Writes to our own tables through the executor's calls for logical replication apply: they honour triggers,
//! constraints, expression and partial indexes, column defaults and publications that a DBA may have added.
//! Follows src/backend/executor/execReplication.c and src/backend/replication/logical/worker.c.
//!
//! Triggers and expressions run as the caller, as for any statement of the caller's.

use super::raise::{self, Caught};
use super::snapshot;
use super::table::{Row, Table};
use super::value::Value;
use crate::error::Error;
use pgrx::pg_sys;

/// New values of some of our columns, by the code's own column numbers.
pub type Assignments = Vec<(usize, Value)>;

/// Why a row is not as it was a moment ago under the same lock.
pub const BESIDE_THE_LOCK: &str =
    "The row was changed beside the key's lock, by replication or by hand.";

enum Write<'a> {
    Insert(Assignments),
    Update(&'a Row<'a>, Assignments),
    Delete(&'a Row<'a>),
}

impl Table {
    /// Inserts a row; columns that are not named get their default if they are a DBA's, else NULL.
    pub fn insert(&self, values: Assignments) -> Result<(), Error> {
        self.write(Write::Insert(values))
    }

    /// Updates the row under the scan.
    pub fn update(&self, row: &Row<'_>, values: Assignments) -> Result<(), Error> {
        self.write(Write::Update(row, values))
    }

    /// Deletes the row under the scan.
    pub fn delete(&self, row: &Row<'_>) -> Result<(), Error> {
        self.write(Write::Delete(row))
    }

    fn write(&self, write: Write<'_>) -> Result<(), Error> {
        // Under the key's lock only writers that bypass it (logical replication, a DBA's own statement) can be
        // in the way: the caller may retry.
        let written = raise::catch(|| {
            // SAFETY: this table is open for writing and the row belongs to it.
            unsafe { self.execute(write) }
        })
        .unwrap_or_else(|caught| match caught {
            Caught::Postgres { code, message, .. } if beside_the_lock(code, &message) => {
                Err(Error::Serialization {
                    place: None,
                    detail: BESIDE_THE_LOCK,
                })
            }
            caught @ (Caught::Postgres { .. } | Caught::Other(_)) => caught.resume(),
        })?;
        if written {
            Ok(())
        } else {
            Err(Error::WriteSuppressed {
                table: self.definition.name,
            })
        }
    }

    /// Whether the row was written.
    unsafe fn execute(&self, write: Write<'_>) -> Result<bool, Error> {
        // SAFETY: as execReplication.c and worker.c do it: an executor state of its own, no range table
        // (index 0), closed and freed below; where something raises, the (sub)transaction frees it.
        unsafe {
            let estate = pg_sys::CreateExecutorState();
            let descriptor = (*self.relation).rd_att;
            let target =
                pg_sys::palloc0(size_of::<pg_sys::ResultRelInfo>()).cast::<pg_sys::ResultRelInfo>();
            (*target).type_ = pg_sys::NodeTag::T_ResultRelInfo;
            pg_sys::InitResultRelInfo(target, self.relation, 0, std::ptr::null_mut(), 0);
            (*estate).es_opened_result_relations =
                pg_sys::lappend((*estate).es_opened_result_relations, target.cast());
            (*estate).es_output_cid = pg_sys::GetCurrentCommandId(true);
            if pg_sys::ActiveSnapshotSet() {
                (*estate).es_snapshot = pg_sys::GetActiveSnapshot();
            }
            pg_sys::ExecOpenIndices(target, false);
            pg_sys::AfterTriggerBeginQuery();
            let slot = pg_sys::ExecInitExtraTupleSlot(
                estate,
                descriptor,
                &raw const pg_sys::TTSOpsVirtual,
            );
            let written = match write {
                Write::Insert(values) => {
                    self.fill_new(slot, estate, values);
                    pg_sys::ExecSimpleRelationInsert(target, estate, slot);
                    placed(slot)
                }
                Write::Update(row, values) => {
                    self.fill_changed(slot, row, values);
                    let old = old_place(estate, descriptor, row);
                    let mut recheck = super::server::begin_recheck(estate);
                    pg_sys::ExecSimpleRelationUpdate(target, estate, &raw mut recheck, old, slot);
                    pg_sys::EvalPlanQualEnd(&raw mut recheck);
                    placed(slot)
                }
                Write::Delete(row) => {
                    let old = old_place(estate, descriptor, row);
                    let mut recheck = super::server::begin_recheck(estate);
                    pg_sys::ExecSimpleRelationDelete(target, estate, &raw mut recheck, old);
                    pg_sys::EvalPlanQualEnd(&raw mut recheck);
                    deleted(row)
                }
            };
            pg_sys::AfterTriggerEndQuery(estate);
            pg_sys::ExecCloseResultRelations(estate);
            pg_sys::ExecResetTupleTable((*estate).es_tupleTable, false);
            pg_sys::FreeExecutorState(estate);
            pg_sys::CommandCounterIncrement();
            Ok(written)
        }
    }

    unsafe fn fill_new(
        &self,
        slot: *mut pg_sys::TupleTableSlot,
        estate: *mut pg_sys::EState,
        values: Assignments,
    ) {
        // SAFETY: the slot has the relation's columns.
        unsafe {
            for at in 0..usize::try_from((*(*self.relation).rd_att).natts).unwrap_or(0) {
                *(*slot).tts_values.add(at) = pg_sys::Datum::null();
                *(*slot).tts_isnull.add(at) = true;
            }
            for number in &self.shape.foreign {
                if let Some((value, is_null)) = self.default_of(*number, estate) {
                    set(slot, *number, value, is_null);
                }
            }
            self.assign(slot, values);
            pg_sys::ExecStoreVirtualTuple(slot);
        }
    }

    unsafe fn fill_changed(
        &self,
        slot: *mut pg_sys::TupleTableSlot,
        row: &Row<'_>,
        values: Assignments,
    ) {
        // SAFETY: the row has the same columns, and its values live as long as the scan holds it.
        unsafe {
            for (at, (value, is_null)) in row.values.iter().zip(&row.nulls).enumerate() {
                *(*slot).tts_values.add(at) = *value;
                *(*slot).tts_isnull.add(at) = *is_null;
            }
            self.assign(slot, values);
            pg_sys::ExecStoreVirtualTuple(slot);
        }
    }

    unsafe fn assign(&self, slot: *mut pg_sys::TupleTableSlot, values: Assignments) {
        for (column, value) in values {
            let (datum, is_null) = value.into_datum();
            // SAFETY: one of our columns.
            unsafe { set(slot, self.shape.attributes[column], datum, is_null) };
        }
    }

    /// The default of a column that a DBA added, evaluated.
    unsafe fn default_of(
        &self,
        number: pg_sys::AttrNumber,
        estate: *mut pg_sys::EState,
    ) -> Option<(pg_sys::Datum, bool)> {
        // SAFETY: as slot_fill_defaults in worker.c; the expression is evaluated behind a guard because it may
        // raise.
        unsafe {
            let expression = pg_sys::build_column_default(self.relation, i32::from(number));
            if expression.is_null() {
                return None;
            }
            let planned = pg_sys::expression_planner(expression.cast());
            let state = pg_sys::ExecInitExpr(planned, std::ptr::null_mut());
            let context = pg_sys::CreateExprContext(estate);
            let evaluate = (*state).evalfunc?;
            let mut is_null = false;
            let datum =
                pg_sys::ffi::pg_guard_ffi_boundary(|| evaluate(state, context, &raw mut is_null));
            Some((datum, is_null))
        }
    }
}

unsafe fn set(
    slot: *mut pg_sys::TupleTableSlot,
    number: pg_sys::AttrNumber,
    value: pg_sys::Datum,
    is_null: bool,
) {
    // SAFETY: an attribute number of the slot's own relation.
    unsafe {
        let at = usize::try_from(number - 1).unwrap_or(0);
        *(*slot).tts_values.add(at) = value;
        *(*slot).tts_isnull.add(at) = is_null;
    }
}

/// A slot that says where the old row stands: all that update and delete need of it.
unsafe fn old_place(
    estate: *mut pg_sys::EState,
    descriptor: pg_sys::TupleDesc,
    row: &Row<'_>,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: the tuple is held by the scan.
    unsafe {
        let slot =
            pg_sys::ExecInitExtraTupleSlot(estate, descriptor, &raw const pg_sys::TTSOpsVirtual);
        (*slot).tts_tid = (*row.tuple).t_self;
        slot
    }
}

/// Whether the write gave the slot a place: a BEFORE trigger that returns NULL leaves it without.
unsafe fn placed(slot: *mut pg_sys::TupleTableSlot) -> bool {
    // SAFETY: reads the slot.
    unsafe { (*slot).tts_tid.ip_posid != 0 }
}

/// Whether this transaction has deleted the row.
unsafe fn deleted(row: &Row<'_>) -> bool {
    // SAFETY: the scan still holds the page that the tuple stands on.
    unsafe {
        snapshot::remover((*row.tuple).t_data)
            .is_some_and(|xmax| pg_sys::TransactionIdIsCurrentTransactionId(xmax))
    }
}

fn beside_the_lock(code: pgrx::PgSqlErrorCode, message: &str) -> bool {
    match code {
        pgrx::PgSqlErrorCode::ERRCODE_UNIQUE_VIOLATION => message.contains("_digest_pkey"),
        pgrx::PgSqlErrorCode::ERRCODE_INTERNAL_ERROR => message.contains("tuple concurrently"),
        _ => false,
    }
}
