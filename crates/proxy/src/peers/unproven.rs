//! Peers that have connected to a pod and not yet proved who they are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leno_tunnel::timers;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a peer has for its handshake whatever others do; after that it makes room for who comes. A round trip to the
/// far side of the world takes a third of it, and a handshake two.
const UNDISTURBED: Duration = Duration::from_secs(1);

/// So many may be at it at a time, of one pod: whoever opens connections and says nothing takes no more of the node's
/// descriptors and memory than that. He does not take the way into the pod either: who comes when all places are taken
/// gets the one that was taken longest, and waits for it at most until that one's [`UNDISTURBED`] time is over.
pub struct Unproven {
    most: usize,
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Default)]
struct Taken {
    /// By when they came.
    places: BTreeMap<u64, (Instant, Arc<Notify>)>,
    next: u64,
}

impl Unproven {
    /// `most` places, and one at least.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), taken: Mutex::default(), freed: Notify::new() })
    }

    /// Waits for a place.
    pub async fn place(self: &Arc<Self>) -> Place {
        loop {
            let free_at = match self.take() {
                Ok(place) => return place,
                Err(free_at) => free_at,
            };
            tokio::select! {
                () = self.freed.notified() => {}
                () = timers::sleep_until(free_at) => {}
            }
        }
    }

    /// A place, or when the next one is to be had at the latest.
    fn take(self: &Arc<Self>) -> Result<Place, Instant> {
        let mut taken = self.taken.lock();
        if taken.places.len() >= self.most
            && let Some(longest) = taken.places.first_entry()
        {
            let free_at = longest.get().0 + UNDISTURBED;
            if free_at > Instant::now() {
                return Err(free_at);
            }
            longest.remove().1.notify_one();
        }
        let turned_away = Arc::new(Notify::new());
        let number = taken.next;
        taken.next += 1;
        taken.places.insert(number, (Instant::now(), turned_away.clone()));
        Ok(Place { unproven: self.clone(), number, turned_away })
    }
}

/// Dropped, it is free.
pub struct Place {
    unproven: Arc<Unproven>,
    number: u64,
    turned_away: Arc<Notify>,
}

impl Place {
    /// Resolves once it is another's.
    pub async fn turned_away(&self) {
        self.turned_away.notified().await;
    }

    /// Of how many it is one.
    pub fn among(&self) -> usize {
        self.unproven.most
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Not if it is another's by now.
        if self.unproven.taken.lock().places.remove(&self.number).is_some() {
            self.unproven.freed.notify_one();
        }
    }
}

#[cfg(test)]
#[path = "unproven_tests.rs"]
mod tests;
