//! `idem_once` and `idem_call`: claim, run the effect as the caller, complete, in one call and one transaction.
//!
//! What is no answer to "do this once" is an error here: the caller has no row to look at.

use crate::engine::claim::{self, Terms, Word};
use crate::engine::finish::{self, Ending};
use crate::engine::key::{Args, ScopedKey};
use crate::error::Error;
use crate::pg::effect::{self, Effect};
use crate::pg::jsonb::Jsonb;

/// The result, and whether it is that of an earlier call.
pub struct Once {
    pub result: Option<Jsonb>,
    pub replayed: bool,
}

/// Runs the effect once for the key.
pub fn once(
    key: &ScopedKey,
    effect: Effect<'_>,
    args: Option<Jsonb>,
    terms: &Terms,
) -> Result<Once, Error> {
    let answer = claim::claim(key, Args::Given(args), terms)?;
    match answer.word {
        Word::Execute => {
            let result = effect::run(effect, args)?;
            let ending = Ending::Completed { result };
            let finished = finish::finish(key, answer.fence, ending.into())?;
            Ok(Once {
                result: finished.result,
                replayed: false,
            })
        }
        Word::Replay => Ok(Once {
            result: answer.result,
            replayed: true,
        }),
        Word::InProgress | Word::Queued => Err(Error::InProgress {
            place: key.place(),
            here: answer.reason.as_deref() == Some(claim::HELD_HERE),
        }),
        Word::Reconcile => Err(Error::OutcomeUnknown(key.place())),
        Word::Escalated => Err(Error::Escalated(key.place())),
        Word::Rejected => Err(Error::FinalFailure(key.place())),
        Word::Mismatch => Err(Error::KeyReused(key.place())),
        Word::Expired => Err(Error::Expired(key.place())),
    }
}
