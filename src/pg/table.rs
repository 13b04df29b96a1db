//! Our own tables, opened and read directly: by primary key or in index order, under a chosen snapshot.
//!
//! Column numbers are looked up by name and kept only until the relation changes: a DBA may add columns,
//! rebuild indexes, or drop and create the extension while sessions are busy. Reads need no identity and ask
//! for no privilege: whoever calls has checked access to the scope. Follows src/backend/access/index/genam.c.

use super::invalidation;
use super::raise;
pub use super::row::Row;
use super::value::Value;
use crate::error::Error;
use pgrx::pg_sys;
use std::cell::RefCell;
use std::ffi::CStr;
use std::ops::ControlFlow;
use std::rc::Rc;

/// A table of ours and the columns that the code reads and writes, in the order of the code's own numbers.
pub struct Definition {
    /// Its place among our tables, for the cache and the invalidation callback.
    pub slot: usize,
    pub name: &'static str,
    pub c_name: &'static CStr,
    pub columns: &'static [(&'static CStr, Type)],
}

/// The type of a column: it is checked before a value is read as such.
#[derive(Clone, Copy)]
pub enum Type {
    Bool,
    Char,
    Int4,
    Int8,
    Timestamp,
    Interval,
    Text,
    TextArray,
    Bytes,
    Uuid,
    Role,
    Jsonb,
}

impl Type {
    fn oid(self) -> pg_sys::Oid {
        match self {
            Type::Bool => pg_sys::BOOLOID,
            Type::Char => pg_sys::CHAROID,
            Type::Int4 => pg_sys::INT4OID,
            Type::Int8 => pg_sys::INT8OID,
            Type::Timestamp => pg_sys::TIMESTAMPTZOID,
            Type::Interval => pg_sys::INTERVALOID,
            Type::Text => pg_sys::TEXTOID,
            Type::TextArray => pg_sys::TEXTARRAYOID,
            Type::Bytes => pg_sys::BYTEAOID,
            Type::Uuid => pg_sys::UUIDOID,
            Type::Role => pg_sys::REGROLEOID,
            Type::Jsonb => pg_sys::JSONBOID,
        }
    }
}

/// What was learned of a table in this session; stale when the generation has moved.
pub(super) struct Shape {
    generation: u64,
    relation: pg_sys::Oid,
    primary_key: pg_sys::Oid,
    /// Attribute number of each of our columns.
    pub(super) attributes: Vec<pg_sys::AttrNumber>,
    /// Columns that are not ours, neither dropped nor generated.
    pub(super) foreign: Vec<pg_sys::AttrNumber>,
}

thread_local! {
    static SHAPES: RefCell<[Option<Rc<Shape>>; invalidation::WATCHED_MAX]> =
        const { RefCell::new([const { None }; invalidation::WATCHED_MAX]) };
}

/// How strongly a table is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Read,
    Write,
}

/// Which row versions a scan sees.
#[derive(Clone, Copy)]
pub enum Snapshot {
    /// Committed at this very moment, and our own writes (`SnapshotSelf`). Takes no predicate locks. Each version is judged
    /// as the scan comes to it: of what commits meanwhile it sees a part, and of a row that is just replaced neither the new
    /// version nor the old one. Whoever relies upon a row that is not there holds the lock of its writers.
    Now,
    /// Every version, dead or alive (`SnapshotAny`).
    Every,
    /// The statement's MVCC snapshot.
    Statement,
    /// A fresh MVCC snapshot: of others whole transactions, and our own writes.
    Latest,
}

/// Which rows, by what way.
pub enum Access<'a> {
    /// By the primary key, whose columns are compared for equality.
    PrimaryKey(&'a [(usize, Value)]),
    /// The primary key of one uuid column in order, from after this value.
    AfterPrimaryKey(usize, [u8; 16]),
    /// In the order of the index of this name, where its leading columns meet the conditions.
    Ordered {
        index: &'static CStr,
        conditions: &'a [(usize, Compare, Value)],
        direction: Direction,
    },
    /// All rows.
    Sequential,
}

/// How a column is compared with a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    Equal,
    AtLeast,
    Greater,
    AtMost,
}

/// Which way an index is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
}

/// An open table. Without `keep` its lock is released when it is closed.
pub struct Table {
    pub(super) relation: pg_sys::Relation,
    pub(super) shape: Rc<Shape>,
    pub(super) definition: &'static Definition,
    mode: Mode,
}

impl Table {
    /// Opens the table by name, waiting for its lock like any statement.
    pub fn open(definition: &'static Definition, mode: Mode) -> Result<Table, Error> {
        let lock_mode = lock_mode(mode);
        loop {
            let cached = SHAPES.with_borrow(|shapes| shapes[definition.slot].clone());
            let relation_oid = match &cached {
                Some(shape) if shape.generation == invalidation::generation() => shape.relation,
                Some(_) | None => lookup(definition).ok_or(Error::NotInstalled)?,
            };
            // SAFETY: null where the relation is gone; taking the lock also takes in what others changed.
            let relation = unsafe { pg_sys::try_table_open(relation_oid, lock_mode) };
            if relation.is_null() {
                // Dropped since we looked: forget it and look by name again.
                SHAPES.with_borrow_mut(|shapes| shapes[definition.slot] = None);
                super::server::check_for_interrupts();
                continue;
            }
            if let Some(shape) = cached
                && shape.generation == invalidation::generation()
            {
                return Ok(Table {
                    relation,
                    shape,
                    definition,
                    mode,
                });
            }
            if lookup(definition) == Some(relation_oid) {
                let shape = Rc::new(learn(definition, relation)?);
                SHAPES.with_borrow_mut(|shapes| shapes[definition.slot] = Some(Rc::clone(&shape)));
                return Ok(Table {
                    relation,
                    shape,
                    definition,
                    mode,
                });
            }
            // SAFETY: opened above.
            unsafe { pg_sys::table_close(relation, lock_mode) };
        }
    }

    /// Closes the table and gives its lock back.
    pub fn close(self) {
        // SAFETY: opened with this mode and closed once.
        unsafe { pg_sys::table_close(self.relation, lock_mode(self.mode)) };
    }

    /// Closes the table; its lock stays to the end of the transaction.
    pub fn keep(self) {
        // SAFETY: opened and closed once.
        unsafe { pg_sys::table_close(self.relation, pg_sys::NoLock as i32) };
    }

    pub fn owner(&self) -> pg_sys::Oid {
        // SAFETY: the relation is open.
        unsafe { (*(*self.relation).rd_rel).relowner }
    }

    /// Visits rows until `each` breaks, and gives back what it broke with.
    pub fn scan<T>(
        &self,
        access: &Access<'_>,
        snapshot: Snapshot,
        mut each: impl FnMut(&Row<'_>) -> ControlFlow<T>,
    ) -> Option<T> {
        let mut keys = self.scan_keys(access);
        let key_count = i32::try_from(keys.len()).unwrap_or(0);
        // SAFETY: the keys name columns of this open table with the types of their values; the scan and the
        // snapshot end below, or with the (sub)transaction where something raises.
        unsafe {
            let (pointer, registered) = snapshot_pointer(snapshot);
            let ordered_index = match access {
                Access::Ordered { index, .. } => self.index_named(index),
                Access::AfterPrimaryKey(..) => self.shape.primary_key,
                Access::PrimaryKey(_) | Access::Sequential => pg_sys::InvalidOid,
            };
            let result = if ordered_index == pg_sys::InvalidOid {
                let by_key = matches!(access, Access::PrimaryKey(_));
                let scan = pg_sys::systable_beginscan(
                    self.relation,
                    self.shape.primary_key,
                    by_key,
                    pointer,
                    key_count,
                    keys.as_mut_ptr(),
                );
                let result = self.visit(&mut each, || pg_sys::systable_getnext(scan));
                pg_sys::systable_endscan(scan);
                result
            } else {
                let index = pg_sys::index_open(ordered_index, pg_sys::AccessShareLock as i32);
                let scan = pg_sys::systable_beginscan_ordered(
                    self.relation,
                    index,
                    pointer,
                    key_count,
                    keys.as_mut_ptr(),
                );
                let backward = matches!(
                    access,
                    Access::Ordered {
                        direction: Direction::Backward,
                        ..
                    }
                );
                let direction = if backward {
                    pg_sys::ScanDirection::BackwardScanDirection
                } else {
                    pg_sys::ScanDirection::ForwardScanDirection
                };
                let result = self.visit(&mut each, || {
                    pg_sys::systable_getnext_ordered(scan, direction)
                });
                pg_sys::systable_endscan_ordered(scan);
                pg_sys::index_close(index, pg_sys::AccessShareLock as i32);
                result
            };
            if registered {
                pg_sys::UnregisterSnapshot(pointer);
            }
            result
        }
    }

    fn visit<T>(
        &self,
        each: &mut impl FnMut(&Row<'_>) -> ControlFlow<T>,
        mut next: impl FnMut() -> pg_sys::HeapTuple,
    ) -> Option<T> {
        loop {
            let tuple = next();
            if tuple.is_null() {
                return None;
            }
            if let ControlFlow::Break(result) = each(&self.deform(tuple)) {
                return Some(result);
            }
        }
    }

    fn deform(&self, tuple: pg_sys::HeapTuple) -> Row<'_> {
        // SAFETY: the tuple belongs to this open relation and lives until the scan moves on; both vectors have
        // room for all attributes.
        unsafe {
            let descriptor = (*self.relation).rd_att;
            let count = usize::try_from((*descriptor).natts).unwrap_or(0);
            let mut values = vec![pg_sys::Datum::null(); count];
            let mut nulls = vec![true; count];
            pg_sys::heap_deform_tuple(tuple, descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
            Row {
                tuple,
                values,
                nulls,
                shape: &self.shape,
            }
        }
    }

    fn scan_keys(&self, access: &Access<'_>) -> Vec<pg_sys::ScanKeyData> {
        match access {
            Access::PrimaryKey(columns) => columns
                .iter()
                .map(|(column, value)| self.scan_key(*column, Compare::Equal, value))
                .collect(),
            Access::AfterPrimaryKey(column, after) => {
                vec![self.scan_key(*column, Compare::Greater, &Value::Uuid(*after))]
            }
            Access::Ordered { conditions, .. } => conditions
                .iter()
                .map(|(column, compare, value)| self.scan_key(*column, *compare, value))
                .collect(),
            Access::Sequential => Vec::new(),
        }
    }

    fn scan_key(&self, column: usize, compare: Compare, value: &Value) -> pg_sys::ScanKeyData {
        let mut key = pg_sys::ScanKeyData::default();
        let strategy = match compare {
            Compare::Equal => pg_sys::BTEqualStrategyNumber,
            Compare::AtLeast => pg_sys::BTGreaterEqualStrategyNumber,
            Compare::Greater => pg_sys::BTGreaterStrategyNumber,
            Compare::AtMost => pg_sys::BTLessEqualStrategyNumber,
        };
        // SAFETY: fills the key; the argument lives in the current memory context. Our text columns are in "C", the
        // collation that ScanKeyInit takes.
        unsafe {
            pg_sys::ScanKeyInit(
                &raw mut key,
                self.shape.attributes[column],
                strategy as u16,
                pg_sys::Oid::from(comparison(compare, value)),
                value.clone().into_datum().0,
            );
        }
        key
    }

    /// The valid index of this name on this table; raises where there is none.
    fn index_named(&self, name: &CStr) -> pg_sys::Oid {
        // SAFETY: looks a name up; the list is freed with the memory context.
        unsafe {
            let namespace = (*(*self.relation).rd_rel).relnamespace;
            let index = pg_sys::get_relname_relid(name.as_ptr(), namespace);
            let usable = pg_sys::RelationGetIndexList(self.relation);
            if pg_sys::list_member_oid(usable, index) && pg_sys::get_index_isvalid(index) {
                return index;
            }
        }
        raise::now(Error::IndexMissing {
            what: format!("index idempotency.{}", name.to_string_lossy()),
        })
    }
}

/// The function that compares with a value of this type.
fn comparison(compare: Compare, value: &Value) -> u32 {
    match (value, compare) {
        (Value::Uuid(_), Compare::Equal) => pg_sys::F_UUID_EQ,
        (Value::Uuid(_), Compare::Greater) => pg_sys::F_UUID_GT,
        (Value::Text(_), Compare::Equal) => pg_sys::F_TEXTEQ,
        (Value::Text(_), Compare::Greater) => pg_sys::F_TEXT_GT,
        (Value::Oid(_), Compare::Equal) => pg_sys::F_OIDEQ,
        (Value::Int4(_), Compare::Equal) => pg_sys::F_INT4EQ,
        (Value::Timestamp(_), Compare::AtLeast) => pg_sys::F_TIMESTAMPTZ_GE,
        (Value::Timestamp(_), Compare::AtMost) => pg_sys::F_TIMESTAMPTZ_LE,
        _ => panic!("no index of ours is read like this"),
    }
}

fn lock_mode(mode: Mode) -> pg_sys::LOCKMODE {
    match mode {
        Mode::Read => pg_sys::AccessShareLock as i32,
        Mode::Write => pg_sys::RowExclusiveLock as i32,
    }
}

fn lookup(definition: &Definition) -> Option<pg_sys::Oid> {
    // SAFETY: catalogue look-ups by C strings.
    let oid = unsafe {
        let namespace = pg_sys::get_namespace_oid(c"idempotency".as_ptr(), true);
        if namespace == pg_sys::InvalidOid {
            return None;
        }
        pg_sys::get_relname_relid(definition.c_name.as_ptr(), namespace)
    };
    (oid != pg_sys::InvalidOid).then_some(oid)
}

fn learn(definition: &Definition, relation: pg_sys::Relation) -> Result<Shape, Error> {
    // SAFETY: the relation is open and locked, so its columns stand still.
    unsafe {
        let oid = (*relation).rd_id;
        invalidation::watch(definition.slot, oid);
        // Read before learning: a message that comes meanwhile makes this shape stale at once.
        let generation = invalidation::generation();
        let changed = || Error::TableChanged {
            table: definition.name,
        };
        let extension = pg_sys::get_extension_oid(c"idempotency".as_ptr(), true);
        let member_of = pg_sys::getExtensionOfObject(pg_sys::RelationRelationId, oid);
        let plain = (*(*relation).rd_rel).relkind == pg_sys::RELKIND_RELATION as std::ffi::c_char;
        if !plain || extension == pg_sys::InvalidOid || member_of != extension {
            return Err(changed());
        }
        let mut attributes = Vec::with_capacity(definition.columns.len());
        for (column, column_type) in definition.columns {
            let attribute = pg_sys::get_attnum(oid, column.as_ptr());
            if attribute <= 0 || pg_sys::get_atttype(oid, attribute) != column_type.oid() {
                return Err(changed());
            }
            attributes.push(attribute);
        }
        let primary_key = super::server::primary_key_index(relation);
        if primary_key == pg_sys::InvalidOid {
            let what = format!("the primary key of idempotency.{}", definition.name);
            return Err(Error::IndexMissing { what });
        }
        let descriptor = (*relation).rd_att;
        let foreign = (1..=(*descriptor).natts as pg_sys::AttrNumber)
            .filter(|number| !attributes.contains(number))
            .filter(|number| {
                let attribute = super::server::attribute(descriptor, *number);
                !(*attribute).attisdropped && (*attribute).attgenerated == 0
            })
            .collect();
        Ok(Shape {
            generation,
            relation: oid,
            primary_key,
            attributes,
            foreign,
        })
    }
}

/// The snapshot's pointer and whether it must be unregistered.
unsafe fn snapshot_pointer(snapshot: Snapshot) -> (pg_sys::Snapshot, bool) {
    // SAFETY: two statics that PostgreSQL never moves; the active snapshot outlives the statement.
    unsafe {
        match snapshot {
            Snapshot::Now => (&raw mut pg_sys::SnapshotSelfData, false),
            Snapshot::Every => (&raw mut pg_sys::SnapshotAnyData, false),
            Snapshot::Statement => (pg_sys::RegisterSnapshot(pg_sys::GetActiveSnapshot()), true),
            // PostgreSQL takes no fresh snapshot while a parallel query runs.
            Snapshot::Latest if pg_sys::IsInParallelMode() => {
                (pg_sys::RegisterSnapshot(pg_sys::GetActiveSnapshot()), true)
            }
            Snapshot::Latest => (pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot()), true),
        }
    }
}
