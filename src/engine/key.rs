//! A key in its scope, and the arguments of a call, checked at the edge.

use crate::error::{Error, Place};
use crate::pg::jsonb::Jsonb;
use crate::policy::Scope;
use crate::store::StoredArgs;
use idempotency_core::digest;
use idempotency_core::key::{Key, KeyError, Name, Run};

/// A key in its scope, with its digest.
#[derive(Clone, Debug)]
pub struct ScopedKey {
    pub scope: String,
    pub key: String,
    pub digest: [u8; 16],
}

impl ScopedKey {
    /// Checks the key; the scope's name has been checked.
    pub fn new(scope: &str, key: Option<String>) -> Result<ScopedKey, Error> {
        let key = key.ok_or(Error::NullArgument("key"))?;
        Key::parse(&key).map_err(|error| bad_key(&error))?;
        let digest = digest::key_digest(scope, &key);
        Ok(ScopedKey {
            scope: scope.to_owned(),
            key,
            digest,
        })
    }

    pub fn place(&self) -> Place {
        Place::new(&self.scope, &self.key)
    }
}

/// What is wrong with a key, a run or an operation.
pub fn bad_key(error: &KeyError) -> Error {
    let hint = match error {
        KeyError::Empty { name: Name::Run }
        | KeyError::TooLong {
            name: Name::Run, ..
        } => "A run names a longer piece of work in 1 to 1,024 bytes.",
        KeyError::Empty {
            name: Name::Operation,
        }
        | KeyError::TooLong {
            name: Name::Operation,
            ..
        }
        | KeyError::OperationWithSlash
        | KeyError::OperationLikeArguments => {
            "An operation names one step of a run, such as 'issue_credit', without a slash."
        }
        KeyError::Empty {
            name: Name::Key | Name::Scope,
        }
        | KeyError::TooLong {
            name: Name::Key | Name::Scope,
            ..
        } => {
            "A key names one logical operation in 1 to 1,024 bytes; idem_key(run, operation) makes one."
        }
    };
    Error::bad_value(error.to_string(), hint)
}

/// A run from an argument, checked.
pub fn checked_run(run: Option<String>) -> Result<Option<String>, Error> {
    if let Some(run) = &run {
        Run::parse(run).map_err(|error| bad_key(&error))?;
    }
    Ok(run)
}

/// The arguments of a call. SQL NULL and JSON null are different values.
#[derive(Clone, Copy)]
pub enum Args {
    Given(Option<Jsonb>),
    /// Whatever is on record: for who acts on a key without knowing them.
    OnRecord,
}

impl Args {
    /// The hash by the scope's rule of this version.
    fn hash(args: Option<Jsonb>, scope: &Scope, rule: i32) -> Result<Option<Vec<u8>>, Error> {
        let Some(args) = args else { return Ok(None) };
        let hash = digest::args_hash(&args.document()?, scope.ignore(rule));
        Ok(Some(hash.to_vec()))
    }

    /// As they are stored: hashed by the scope's newest rule.
    pub fn stored(self, scope: &Scope) -> Result<StoredArgs, Error> {
        let rule = scope.args_rule();
        let given = match self {
            Args::Given(args) => args,
            Args::OnRecord => None,
        };
        let hash = Args::hash(given, scope, rule)?;
        Ok(StoredArgs { hash, rule })
    }

    /// Whether these are the arguments on record, by the rule that made the record.
    pub fn same_as(self, stored: &StoredArgs, scope: &Scope) -> Result<bool, Error> {
        match self {
            Args::Given(args) => Ok(Args::hash(args, scope, stored.rule)? == stored.hash),
            Args::OnRecord => Ok(true),
        }
    }
}
