//! How many requests wait for each external authoriser.
//!
//! A place is held from the question to the answer. One that is dead or slow fills its own places, and whatever more has to be
//! asked of it is refused at once: nobody who asks another one, or none, is kept waiting.

use std::collections::HashMap;
use std::sync::Arc;

use leno_model::Name;
use leno_model::http::Authorizer;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Requests that may wait for one authoriser.
pub(crate) const PLACES: usize = 512;

/// Authorisers that are remembered while nobody waits for them.
const MOST_IDLE: usize = 256;

/// An authoriser's service and port: two providers with the same one share its places.
type Key = (Name, Name, u16);

/// The places of all authorisers.
#[derive(Default)]
pub(crate) struct Authorizers {
    known: Mutex<HashMap<Key, Arc<Semaphore>>>,
}

impl Authorizers {
    /// A place; `None` if there is none left.
    pub(crate) fn place(&self, authorizer: &Authorizer) -> Option<OwnedSemaphorePermit> {
        let key = (authorizer.namespace.clone(), authorizer.hostname.clone(), authorizer.port);
        let places = {
            let mut known = self.known.lock();
            if known.len() >= MOST_IDLE && !known.contains_key(&key) {
                known.retain(|_, places| Arc::strong_count(places) > 1);
            }
            known.entry(key).or_insert_with(|| Arc::new(Semaphore::new(PLACES))).clone()
        };
        places.try_acquire_owned().ok()
    }
}
