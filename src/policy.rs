//! Scopes as the protocol sees them: policies resolved to plain numbers, who may use and who operates them.
//!
//! Each session keeps the scopes that it used and reads them again when the relcache says that the tables
//! changed. Nobody learns from here whether a scope exists that they may not use.

use crate::error::Error;
use crate::guc;
use crate::pg::{identity, invalidation};
use crate::store::scope::{self, ScopeRow, StoredScope, Which};
use idempotency_core::backoff;
use idempotency_core::decide::{EffectKind, Policy};
use idempotency_core::ignore::Ignore;
use idempotency_core::issued::KeyTime;
use idempotency_core::key::ScopeName;
use idempotency_core::time::{Instant, Span};
use idempotency_core::window::Late;
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

const HOUR_US: i64 = 3_600_000_000;
/// Longest lease where the scope sets none.
const MAX_LEASE_US: i64 = HOUR_US;
/// How long the other system remembers a key where the scope sets nothing.
const PROVIDER_WINDOW_US: i64 = 24 * HOUR_US;
/// Deliveries of a message before a human is asked, where the scope sets nothing.
const MAX_ATTEMPTS: i32 = 20;
/// Reads in vain before a human is asked, where the scope sets nothing.
const MAX_RECONCILES: i32 = 5;
/// First and longest back-off where the scope sets nothing.
const BACKOFF_US: i64 = 1_000_000;
const MAX_BACKOFF_US: i64 = HOUR_US;
/// Scopes that a session keeps.
const CACHED_MAX: usize = 1_024;

/// One scope.
pub struct Scope {
    row: ScopeRow,
    granted_to: Vec<Oid>,
    rules: Vec<(i32, Ignore)>,
    no_rule: Ignore,
}

struct Cache {
    generation: u64,
    by_name: HashMap<String, Rc<Scope>>,
    by_id: HashMap<i32, Option<Rc<Scope>>>,
}

thread_local! {
    static CACHE: RefCell<Cache> =
        RefCell::new(Cache { generation: 0, by_name: HashMap::new(), by_id: HashMap::new() });
}

/// The scope of this name, for whoever may use it. Open the key tables first: their locks hold off a
/// concurrent `idem_scope_drop`.
pub fn usable(name: &str) -> Result<Rc<Scope>, Error> {
    let role = identity::current_role();
    by_name(name)?
        .filter(|scope| scope.may_use(role))
        .ok_or_else(|| no_access(name, role))
}

/// The scope of this name, for whoever operates it: its owner and superusers.
pub fn operated(name: &str) -> Result<Rc<Scope>, Error> {
    let scope = usable(name)?;
    if scope.operated_by(identity::current_role()) {
        Ok(scope)
    } else {
        Err(Error::NotOwner {
            scope: name.to_owned(),
        })
    }
}

/// The error for unknown scopes and for those without access alike.
pub fn no_access(name: &str, role: Oid) -> Error {
    if identity::is_superuser(role) {
        return Error::NoSuchScope {
            scope: name.to_owned(),
        };
    }
    Error::NoAccess {
        scope: name.to_owned(),
        role: identity::role_name(role),
    }
}

/// The scope of this name, whoever asks.
pub fn by_name(name: &str) -> Result<Option<Rc<Scope>>, Error> {
    if let Some(scope) = cached(|cache| cache.by_name.get(name).map(Rc::clone)) {
        return Ok(Some(scope));
    }
    let generation = invalidation::generation();
    let found = scope::find(Which::Name(name))?.map(|stored| Rc::new(Scope::resolve(stored)));
    if let Some(scope) = &found {
        remember(generation, |cache| {
            cache.by_name.insert(name.to_owned(), Rc::clone(scope));
        });
    }
    Ok(found)
}

/// All scopes that the current role may use.
pub fn all_usable() -> Result<Vec<Rc<Scope>>, Error> {
    let role = identity::current_role();
    let mut usable = Vec::new();
    for id in scope::ids()? {
        usable.extend(by_id(id)?.filter(|scope| scope.may_use(role)));
    }
    Ok(usable)
}

/// Whether the current role may use any scope.
pub fn may_use_any() -> Result<bool, Error> {
    let role = identity::current_role();
    for id in scope::ids()? {
        if by_id(id)?.is_some_and(|scope| scope.may_use(role)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The scope with this id, whoever asks.
pub fn by_id(id: i32) -> Result<Option<Rc<Scope>>, Error> {
    if let Some(found) = cached(|cache| cache.by_id.get(&id).cloned()) {
        return Ok(found);
    }
    let generation = invalidation::generation();
    let found = scope::find(Which::Id(id))?.map(|stored| Rc::new(Scope::resolve(stored)));
    remember(generation, |cache| {
        cache.by_id.insert(id, found.clone());
    });
    Ok(found)
}

fn cached<T>(get: impl FnOnce(&Cache) -> Option<T>) -> Option<T> {
    CACHE.with_borrow(|cache| {
        if cache.generation == invalidation::generation() {
            get(cache)
        } else {
            None
        }
    })
}

/// Keeps what was read under `generation`, unless something changed meanwhile.
fn remember(generation: u64, put: impl FnOnce(&mut Cache)) {
    if generation != invalidation::generation() {
        return;
    }
    CACHE.with_borrow_mut(|cache| {
        if cache.generation != generation || cache.by_name.len() + cache.by_id.len() >= CACHED_MAX {
            cache.by_name.clear();
            cache.by_id.clear();
            cache.generation = generation;
        }
        put(cache);
    });
}

impl Scope {
    fn resolve(stored: StoredScope) -> Scope {
        let rules = stored
            .rules
            .into_iter()
            .filter_map(|(version, pointers)| {
                let pointers: Vec<&str> = pointers.iter().map(String::as_str).collect();
                Ignore::parse(&pointers).ok().map(|rule| (version, rule))
            })
            .collect();
        Scope {
            row: stored.row,
            granted_to: stored.granted_to,
            rules,
            no_rule: Ignore::none(),
        }
    }

    pub fn id(&self) -> i32 {
        self.row.id
    }

    pub fn name(&self) -> &str {
        &self.row.name
    }

    /// May this role claim and read keys here?
    pub fn may_use(&self, role: Oid) -> bool {
        self.operated_by(role)
            || self
                .granted_to
                .iter()
                .any(|granted| *granted == Oid::INVALID || identity::has_rights_of(role, *granted))
    }

    /// May this role see what is counted here, without keys?
    pub fn may_count(&self, role: Oid) -> bool {
        self.may_use(role) || identity::monitors(role)
    }

    /// May this role change policies and finish what others claimed?
    pub fn operated_by(&self, role: Oid) -> bool {
        identity::has_rights_of(role, self.row.owner)
    }

    /// How long outcomes guard their keys; `None` is for ever.
    pub fn window(&self) -> Option<Span> {
        if self.row.keep_forever {
            return None;
        }
        Some(
            self.row
                .dedup_window_us
                .and_then(Span::from_us)
                .unwrap_or_else(guc::default_window),
        )
    }

    pub fn provider_window(&self) -> Span {
        span_or(self.row.provider_window_us, PROVIDER_WINDOW_US)
    }

    pub fn max_lease(&self) -> Span {
        span_or(self.row.max_lease_us, MAX_LEASE_US)
    }

    pub fn effect_kind(&self) -> EffectKind {
        self.row
            .effect_kind
            .as_deref()
            .and_then(effect_kind_of)
            .unwrap_or(EffectKind::External)
    }

    /// How long a claim waits for another transaction.
    pub fn wait_ms(&self) -> i64 {
        self.row
            .wait_us
            .map_or_else(|| i64::from(guc::wait_ms()), |us| us / 1_000)
    }

    pub fn max_result_bytes(&self) -> usize {
        self.row
            .max_result_bytes
            .and_then(|bytes| usize::try_from(bytes).ok())
            .unwrap_or_else(guc::max_result_bytes)
    }

    /// What `decide` needs.
    pub fn policy(&self) -> Policy {
        Policy {
            window: self.window(),
            hard_limit: self.row.hard_limit_us.and_then(Span::from_us),
            guard: self.guard(),
            late: self
                .row
                .late
                .as_deref()
                .and_then(late_of)
                .unwrap_or(Late::Expired),
            provider_window: self.provider_window(),
            kind: self.effect_kind(),
            max_attempts: self.row.max_attempts.unwrap_or(MAX_ATTEMPTS),
            max_reconciles: self.row.max_reconciles.unwrap_or(MAX_RECONCILES),
        }
    }

    /// When the key of this fence is tried again, after this many tries.
    pub fn retry_at(&self, digest: &[u8; 16], fence: i64, tries: i32, now: Instant) -> Instant {
        let first = span_or(self.row.backoff_us, BACKOFF_US);
        let most = span_or(self.row.max_backoff_us, MAX_BACKOFF_US);
        let [a, b, c, d, e, f, g, h, ..] = *digest;
        let salt = u64::from_be_bytes([a, b, c, d, e, f, g, h]) ^ fence.unsigned_abs();
        Instant(
            now.0
                .saturating_add(backoff::wait_us(first, most, tries, salt)),
        )
    }

    /// How long keys are remembered after their window.
    pub fn guard(&self) -> Option<Span> {
        self.row.guard_us.and_then(Span::from_us)
    }

    /// How keys carry the time at which they were made, where they do.
    pub fn issued_at_from(&self) -> Option<KeyTime> {
        self.row.issued_at_from.as_deref().and_then(key_time_of)
    }

    /// The function that says whether a run is alive, as its owner named it.
    pub fn run_is_alive(&self) -> Option<&str> {
        self.row.run_is_alive.as_deref()
    }

    /// Whether payloads of finished messages are kept with their outcomes.
    pub fn keeps_payload(&self) -> bool {
        self.row.keep_payload
    }

    /// The function that reads whether a key in doubt was applied, as its owner named it.
    pub fn reconciler(&self) -> Option<&str> {
        self.row.reconciler.as_deref()
    }

    pub fn owner(&self) -> Oid {
        self.row.owner
    }

    /// Version of the rule for new hashes.
    pub fn args_rule(&self) -> i32 {
        self.row.args_rule
    }

    /// The rule of this version. Version 0, and one that is not there, ignore nothing.
    pub fn ignore(&self, version: i32) -> &Ignore {
        self.rules
            .iter()
            .find(|(known, _)| *known == version)
            .map_or(&self.no_rule, |(_, rule)| rule)
    }
}

fn span_or(us: Option<i64>, default_us: i64) -> Span {
    us.and_then(Span::from_us)
        .or_else(|| Span::from_us(default_us))
        .unwrap_or(Span::from_s(1))
}

/// The kind of this name, as `idem_scope_set` takes it.
pub fn effect_kind_of(name: &str) -> Option<EffectKind> {
    match name {
        "external" => Some(EffectKind::External),
        "keyed" => Some(EffectKind::Keyed),
        "local" => Some(EffectKind::Local),
        _ => None,
    }
}

/// What a late claim is told, by the name that `idem_scope_set` takes.
pub fn late_of(name: &str) -> Option<Late> {
    match name {
        "expired" => Some(Late::Expired),
        "execute" => Some(Late::Execute),
        _ => None,
    }
}

/// How keys carry their time, by the name that `idem_scope_set` takes.
pub fn key_time_of(name: &str) -> Option<KeyTime> {
    match name {
        "uuidv7" => Some(KeyTime::Uuidv7),
        "ulid" => Some(KeyTime::Ulid),
        _ => None,
    }
}

/// A scope's name from an argument, checked.
pub fn checked_name(name: Option<String>) -> Result<String, Error> {
    let name = name.ok_or(Error::NullArgument("scope"))?;
    ScopeName::parse(&name).map_err(|error| Error::bad_value(error.to_string(), SCOPE_HINT))?;
    Ok(name)
}

const SCOPE_HINT: &str =
    "A scope's name has 1 to 255 bytes; idempotency.scopes lists those that you may use.";
