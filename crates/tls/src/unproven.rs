//! Places for connections on which nobody has proved anything yet.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a connection keeps its place whatever others do, unless its source has more than its share. A round trip
/// to the far side of the world takes a third of this time, and a handshake takes two round trips.
const UNDISTURBED: Duration = Duration::from_secs(1);

/// Bounds the number of connections whose peers have not proved their identity yet. A client that opens connections and
/// sends nothing can take no more of the process's descriptors and memory than these places, and keeps nobody out:
///
/// * While there is a free place, every new connection gets one.
/// * When all are taken, a new connection from a source with less than its share gets a place at once: one of the
///   source that has most places, if that source has more than its share.
/// * If no source has more than its share, the new connection gets the place that was taken first, as soon as that was
///   taken a second ago.
/// * A new connection from a source that has its share can take a place from that source only.
///
/// `K` tells sources apart, by address for instance.
pub struct Unproven<K> {
    most: usize,
    share: usize,
    taken: Mutex<Taken<K>>,
    freed: Notify,
}

struct Taken<K> {
    /// Ordered by arrival.
    places: BTreeMap<u64, Entry<K>>,
    /// The places that each source has.
    sources: HashMap<K, BTreeSet<u64>>,
    next: u64,
}

struct Entry<K> {
    source: K,
    since: Instant,
    gave_way: Arc<Notify>,
}

/// Why there is no place yet.
enum Denied {
    /// There will be one at this time at the latest.
    Until(Instant),
    OverShare,
}

/// All places are taken, and the source has its share of them, none older than a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("all places for connections that have proved nothing are taken, and this source has its share of them")]
pub struct OverShare;

impl<K: Copy + Eq + Hash> Unproven<K> {
    /// Makes `most` places, of which a source may have `share` while others want some. Both are at least one.
    pub fn new(most: usize, share: usize) -> Arc<Self> {
        let taken = Taken { places: BTreeMap::new(), sources: HashMap::new(), next: 0 };
        Arc::new(Self { most: most.max(1), share: share.max(1), taken: Mutex::new(taken), freed: Notify::new() })
    }

    /// Places without shares: when all are taken, a new connection gets the one that was taken first.
    pub fn unshared(most: usize) -> Arc<Self> {
        Self::new(most, usize::MAX)
    }

    /// The number of places of the set that this place is of.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Waits for a place for a connection from `source`: a second at most, or longer if others wait, too.
    ///
    /// # Errors
    /// If the source has its share.
    pub async fn place(self: &Arc<Self>, source: K) -> Result<UnprovenPlace<K>, OverShare> {
        loop {
            let free_at = match self.try_place(source) {
                Ok(place) => return Ok(place),
                Err(Denied::OverShare) => return Err(OverShare),
                Err(Denied::Until(at)) => at,
            };
            tokio::select! {
                () = self.freed.notified() => {}
                () = tokio::time::sleep_until(free_at) => {}
            }
        }
    }

    fn try_place(self: &Arc<Self>, source: K) -> Result<UnprovenPlace<K>, Denied> {
        let mut taken = self.taken.lock();
        if taken.places.len() >= self.most {
            let number = taken.who_gives_way(source, self.share)?;
            if let Some(other) = taken.remove(number) {
                other.gave_way.notify_one();
            }
        }
        let number = taken.next;
        taken.next += 1;
        let gave_way = Arc::new(Notify::new());
        taken.sources.entry(source).or_default().insert(number);
        taken.places.insert(number, Entry { source, since: Instant::now(), gave_way: gave_way.clone() });
        Ok(UnprovenPlace { all: self.clone(), number, gave_way })
    }
}

impl<K: Copy + Eq + Hash> Taken<K> {
    /// Whose place the next connection from `source` gets when all are taken.
    fn who_gives_way(&self, source: K, share: usize) -> Result<u64, Denied> {
        let within_share = self.sources.get(&source).map_or(0, BTreeSet::len) < share;
        let greediest = self.sources.values().max_by_key(|places| places.len());
        if within_share
            && let Some(greediest) = greediest
            && greediest.len() > share
            && let Some(first) = greediest.first()
        {
            return Ok(*first);
        }
        let oldest = if within_share {
            self.places.first_key_value().map(|(number, _)| number)
        } else {
            self.sources.get(&source).and_then(BTreeSet::first)
        };
        let now = Instant::now();
        let Some((number, entry)) = oldest.and_then(|number| self.places.get_key_value(number)) else {
            return Err(Denied::Until(now + UNDISTURBED));
        };
        match entry.since + UNDISTURBED {
            free_at if free_at <= now => Ok(*number),
            free_at if within_share => Err(Denied::Until(free_at)),
            _ => Err(Denied::OverShare),
        }
    }

    fn remove(&mut self, number: u64) -> Option<Entry<K>> {
        let removed = self.places.remove(&number)?;
        if let Some(places) = self.sources.get_mut(&removed.source) {
            places.remove(&number);
            if places.is_empty() {
                self.sources.remove(&removed.source);
            }
        }
        Some(removed)
    }
}

/// A connection's place. It is free again when this is dropped.
pub struct UnprovenPlace<K: Copy + Eq + Hash> {
    all: Arc<Unproven<K>>,
    number: u64,
    gave_way: Arc<Notify>,
}

impl<K: Copy + Eq + Hash> UnprovenPlace<K> {
    /// Resolves when another connection has got this place.
    pub async fn gave_way(&self) {
        self.gave_way.notified().await;
    }

    /// How many places there are.
    pub fn among(&self) -> usize {
        self.all.most
    }

    /// Whether it is still this connection's.
    pub fn is_held(&self) -> bool {
        self.all.taken.lock().places.contains_key(&self.number)
    }

    /// Gives it back early. `false` if another connection has it by now.
    pub fn leave(&self) -> bool {
        let held = self.all.taken.lock().remove(self.number).is_some();
        if held {
            self.all.freed.notify_one();
        }
        held
    }
}

impl<K: Copy + Eq + Hash> Drop for UnprovenPlace<K> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
#[path = "unproven_tests.rs"]
mod tests;
