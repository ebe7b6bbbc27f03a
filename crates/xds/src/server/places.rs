//! Who may have a connection to the control plane, and how long it may take to say who it is.
//!
//! A connection is *unproven* until a request on it came with a good token. Unproven ones have
//! places of their own, so that whoever has no token can keep nobody out who has one, and a
//! proxy that has proved itself keeps its connection for months, however many others come.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leno_telemetry::one_host;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::refusals::Refusal;

/// How long a connection keeps its place whatever others do, unless its address has more than
/// its share. A round trip to the far side of the world takes a third of it.
const UNDISTURBED: Duration = Duration::from_secs(1);

/// How many connections there may be at a time on one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections on which no request has come with a good token yet. When there are so many,
    /// the one that has waited longest gives way to who comes.
    pub unproven: usize,
    /// So many of them one address may have while others want places. An address that no other
    /// competes with may have all, for a whole cluster's proxies can be behind one.
    pub unproven_per_address: usize,
    /// Connections that have proved themselves. A proxy has two.
    pub proven: usize,
    /// Time for the TLS handshake and the first request with a good token, together.
    pub first_request: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        // An idle unproven connection after its handshake takes some 30 KiB: 4096 take 120 MiB.
        Self { unproven: 4096, unproven_per_address: 256, proven: 16_384, first_request: Duration::from_secs(10) }
    }
}

impl Limits {
    /// These limits, or less if the process may have only so many descriptors: an eighth of them
    /// for who has proved nothing, three quarters for proxies, the rest for files.
    #[must_use]
    pub fn within(self, descriptors: u64) -> Self {
        let eighth = usize::try_from(descriptors / 8).unwrap_or(usize::MAX / 8);
        Self { unproven: self.unproven.min(eighth), proven: self.proven.min(eighth * 6), ..self }
    }
}

/// The places of one listener.
pub(crate) struct Places {
    limits: Limits,
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Default)]
struct Taken {
    /// Unproven connections, ordered by arrival.
    unproven: BTreeMap<u64, Unproven>,
    /// How many of them each source has.
    sources: HashMap<IpAddr, usize>,
    proven: usize,
    next: u64,
}

struct Unproven {
    source: IpAddr,
    since: Instant,
    gave_way: Arc<Notify>,
}

/// Why there is no place.
enum Denied {
    /// There is one at this time at the latest.
    Until(Instant),
    /// The source has more than its share, all of them fresh.
    Share,
}

impl Places {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        let limits = Limits { unproven: limits.unproven.max(1), proven: limits.proven.max(1), ..limits };
        Arc::new(Self { limits, taken: Mutex::default(), freed: Notify::new() })
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// A place for a connection from `peer`, which may be another's until now. Waits for
    /// [`UNDISTURBED`] at most.
    ///
    /// # Errors
    /// If the address has more than its share.
    pub(crate) async fn take(self: &Arc<Self>, peer: IpAddr) -> Result<Place, Refusal> {
        let source = one_host(peer);
        loop {
            let free_at = match self.try_take(source) {
                Ok(place) => return Ok(place),
                Err(Denied::Share) => return Err(Refusal::Share),
                Err(Denied::Until(at)) => at,
            };
            tokio::select! {
                () = self.freed.notified() => {}
                () = tokio::time::sleep_until(free_at) => {}
            }
        }
    }

    fn try_take(self: &Arc<Self>, source: IpAddr) -> Result<Place, Denied> {
        let mut taken = self.taken.lock();
        if taken.unproven.len() >= self.limits.unproven {
            let number = taken.who_gives_way(source, self.limits.unproven_per_address)?;
            if let Some(other) = taken.remove(number) {
                other.gave_way.notify_one();
            }
        }
        let number = taken.next;
        taken.next += 1;
        let gave_way = Arc::new(Notify::new());
        *taken.sources.entry(source).or_default() += 1;
        taken.unproven.insert(number, Unproven { source, since: Instant::now(), gave_way: gave_way.clone() });
        Ok(Place { places: self.clone(), number, gave_way, proven: AtomicBool::new(false) })
    }
}

impl Taken {
    /// Whose place the next connection from `source` gets when all are taken.
    fn who_gives_way(&self, source: IpAddr, share: usize) -> Result<u64, Denied> {
        let share = share.max(1);
        let own = self.sources.get(&source).copied().unwrap_or_default();
        let greediest = self.sources.iter().max_by_key(|(_, count)| **count);
        let oldest_of = |who: IpAddr| self.unproven.iter().find(|(_, one)| one.source == who);
        if own < share
            && let Some((greediest, most)) = greediest
            && *most > share
            && let Some((number, _)) = oldest_of(*greediest)
        {
            return Ok(*number);
        }
        // An address that has its share takes from nobody but itself.
        let oldest = if own < share { self.unproven.first_key_value() } else { oldest_of(source) };
        let now = Instant::now();
        let Some((number, oldest)) = oldest else { return Err(Denied::Until(now + UNDISTURBED)) };
        match oldest.since + UNDISTURBED {
            free_at if free_at <= now => Ok(*number),
            free_at if own < share => Err(Denied::Until(free_at)),
            _ => Err(Denied::Share),
        }
    }

    fn remove(&mut self, number: u64) -> Option<Unproven> {
        let removed = self.unproven.remove(&number)?;
        if let Some(count) = self.sources.get_mut(&removed.source) {
            *count -= 1;
            if *count == 0 {
                self.sources.remove(&removed.source);
            }
        }
        Some(removed)
    }
}

/// A connection's place. Dropped, it is free.
pub(crate) struct Place {
    places: Arc<Places>,
    number: u64,
    gave_way: Arc<Notify>,
    proven: AtomicBool,
}

impl Place {
    /// From now on this connection is one of those that have proved themselves.
    ///
    /// # Errors
    /// If there are too many of those, or the place is another's by now.
    pub(crate) fn prove(&self) -> Result<(), Refusal> {
        if self.is_proven() {
            return Ok(());
        }
        let mut taken = self.places.taken.lock();
        // Two requests can come at once.
        if self.is_proven() {
            return Ok(());
        }
        if !taken.unproven.contains_key(&self.number) {
            return Err(Refusal::GaveWay);
        }
        if taken.proven >= self.places.limits.proven {
            return Err(Refusal::Full);
        }
        taken.remove(self.number);
        taken.proven += 1;
        self.proven.store(true, Ordering::Release);
        drop(taken);
        self.places.freed.notify_one();
        Ok(())
    }

    /// Resolves when the connection must end although its peer has not ended it.
    pub(crate) async fn lost(&self, deadline: Instant) -> Refusal {
        tokio::select! {
            biased;
            () = self.gave_way.notified() => return Refusal::GaveWay,
            () = tokio::time::sleep_until(deadline) => {}
        }
        if self.is_proven() {
            std::future::pending().await
        }
        Refusal::NoRequest
    }

    fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Acquire)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        if *self.proven.get_mut() {
            taken.proven -= 1;
        } else if taken.remove(self.number).is_some() {
            drop(taken);
            self.places.freed.notify_one();
        }
    }
}

#[cfg(test)]
#[path = "places_tests.rs"]
mod tests;
