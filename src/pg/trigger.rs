//! What a trigger function is told. Follows src/include/commands/trigger.h.

use super::call::Call;
use crate::error::Error;
use pgrx::pg_sys;

/// The relation whose trigger called us.
pub fn relation_of(call: &Call) -> Result<pg_sys::Oid, Error> {
    // SAFETY: the context is checked to be trigger data before it is read as such.
    unsafe {
        let context = call.context();
        if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_TriggerData {
            return Err(Error::Function {
                sqlstate: b"39P01",
                message: "scopes_changed was not called as a trigger".to_owned(),
                hint: "It belongs to the triggers of the extension's own tables.",
            });
        }
        Ok((*(*context.cast::<pg_sys::TriggerData>()).tg_relation).rd_id)
    }
}
