//! Who calls, what roles may do, and acting as another role for a moment.

use super::text;
use pgrx::pg_sys;
use std::ffi::c_int;

/// The role whose rights count now (`current_user`).
pub fn current_role() -> pg_sys::Oid {
    // SAFETY: reads a backend variable.
    unsafe { pg_sys::GetUserId() }
}

/// Whether `member` has the rights of `role`.
pub fn has_rights_of(member: pg_sys::Oid, role: pg_sys::Oid) -> bool {
    // SAFETY: catalogue look-ups; a role that is gone has no members.
    unsafe {
        member == role || pg_sys::superuser_arg(member) || pg_sys::has_privs_of_role(member, role)
    }
}

pub fn is_superuser(role: pg_sys::Oid) -> bool {
    // SAFETY: a catalogue look-up.
    unsafe { pg_sys::superuser_arg(role) }
}

/// Whether the role may see counters of everybody, as a member of pg_monitor.
pub fn monitors(role: pg_sys::Oid) -> bool {
    has_rights_of(role, pg_sys::Oid::from(pg_sys::ROLE_PG_MONITOR))
}

/// The role's name; its number where it is gone.
pub fn role_name(role: pg_sys::Oid) -> String {
    // SAFETY: null where there is no such role.
    let name = unsafe { pg_sys::GetUserNameFromId(role, true) };
    if name.is_null() {
        role.to_u32().to_string()
    } else {
        text::from_c(name)
    }
}

pub fn role_exists(role: pg_sys::Oid) -> bool {
    // SAFETY: a catalogue look-up.
    unsafe { !pg_sys::GetUserNameFromId(role, true).is_null() }
}

/// The owner of a function, if it is there.
pub fn function_owner(function: pg_sys::Oid) -> Option<pg_sys::Oid> {
    let cache = pg_sys::SysCacheIdentifier::PROCOID as c_int;
    // SAFETY: a catalogue look-up; the row is read before it is given back.
    unsafe {
        let row = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(function));
        if row.is_null() {
            return None;
        }
        let header = (*row).t_data;
        let form = header
            .cast::<u8>()
            .add(usize::from((*header).t_hoff))
            .cast::<pg_sys::FormData_pg_proc>();
        let owner = (*form).proowner;
        pg_sys::ReleaseSysCache(row);
        Some(owner)
    }
}

/// Whether the role may execute the function.
pub fn may_execute(role: pg_sys::Oid, function: pg_sys::Oid) -> bool {
    let wanted = pg_sys::AclMode::from(pg_sys::ACL_EXECUTE);
    // SAFETY: catalogue look-ups.
    unsafe {
        #[cfg(feature = "pg15")]
        let result = pg_sys::pg_proc_aclcheck(function, role, wanted);
        #[cfg(not(feature = "pg15"))]
        let result = pg_sys::object_aclcheck(pg_sys::ProcedureRelationId, function, role, wanted);
        result == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// Whether the role may create objects in schema idempotency.
pub fn may_create_scopes(role: pg_sys::Oid) -> bool {
    // SAFETY: catalogue look-ups.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"idempotency".as_ptr(), true);
        if schema == pg_sys::InvalidOid {
            return false;
        }
        let wanted = pg_sys::AclMode::from(pg_sys::ACL_CREATE);
        #[cfg(feature = "pg15")]
        let result = pg_sys::pg_namespace_aclcheck(schema, role, wanted);
        #[cfg(not(feature = "pg15"))]
        let result = pg_sys::object_aclcheck(pg_sys::NamespaceRelationId, schema, role, wanted);
        result == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// Runs `body` as `role`, without the right to change roles. Where `body` raises, the abort of the
/// (sub)transaction puts the identity back, as for SECURITY DEFINER functions.
pub fn acting_as<T>(role: pg_sys::Oid, body: impl FnOnce() -> T) -> T {
    with_context(role, pg_sys::SECURITY_LOCAL_USERID_CHANGE, body)
}

/// As `acting_as`, in a security-restricted operation: no temporary objects, no prepared statements, no cursors,
/// nothing deferred to a later moment.
pub fn restricted_as<T>(role: pg_sys::Oid, body: impl FnOnce() -> T) -> T {
    with_context(role, pg_sys::SECURITY_RESTRICTED_OPERATION, body)
}

fn with_context<T>(role: pg_sys::Oid, context: u32, body: impl FnOnce() -> T) -> T {
    let mut role_back = pg_sys::InvalidOid;
    let mut context_back: c_int = 0;
    // SAFETY: as fmgr_security_definer in fmgr.c.
    unsafe {
        pg_sys::GetUserIdAndSecContext(&raw mut role_back, &raw mut context_back);
        pg_sys::SetUserIdAndSecContext(role, context_back | context as c_int);
        let result = body();
        pg_sys::SetUserIdAndSecContext(role_back, context_back);
        result
    }
}
