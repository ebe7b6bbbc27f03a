//! Decides which connection carries the next stream of a key, and which caller dials if there is none.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::connection::{Connection, Permit};
use crate::{OpenError, Settings};

/// How many streams a connection carries before another one is opened to spread them ([`Settings::spread`]). Fewer are
/// hardly too much for one thread, and each connection costs a handshake.
pub(super) const FEW: usize = 8;

/// How long no caller tries to spread again after an attempt has failed. Up to 64 times as long if it fails again and
/// again, as with a peer too far away for [`SPREAD_WAIT`].
pub(super) const SPREAD_PAUSE: Duration = Duration::from_secs(10);

/// State shared by the handles of a pool, its connections and its dials.
pub(super) struct Shared<K, E> {
    pub(super) settings: Arc<Settings>,
    pub(super) keys: Mutex<HashMap<K, Entry<E>, RandomState>>,
    /// The number of connections whose task runs, whether in use or not.
    pub(super) running: watch::Sender<usize>,
}

/// What a caller that needs a stream has to do.
pub(super) enum Step<E> {
    Use(Permit),
    /// `spreading`: there is a connection with room, but another one is wanted to share the load.
    Wait {
        flight: Arc<Flight<E>>,
        spreading: bool,
    },
    Dial {
        flight: Arc<Flight<E>>,
        spreading: bool,
    },
}

/// When a connection may be taken out of use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Removal {
    Always,
    /// It carries no stream.
    Idle,
    /// It carries no stream, and another connection has room for the next one.
    Surplus,
}

impl<K, E> Shared<K, E> {
    pub(super) fn new(settings: Settings) -> Self {
        Self { settings: Arc::new(settings), keys: Mutex::default(), running: watch::Sender::new(0) }
    }
}

impl<K: Eq + Hash + Clone, E> Shared<K, E> {
    pub(super) fn next_step(&self, key: &K, newer_than: Option<Instant>, may_spread: bool) -> Step<E> {
        let mut dropped = Vec::new();
        let mut keys = self.keys.lock();
        let step = 'step: {
            let Some(entry) = keys.get_mut(key) else {
                let flight = Arc::new(Flight::default());
                keys.insert(
                    key.clone(),
                    Entry { connections: Vec::new(), flight: Some(flight.clone()), not_spreading: Pause::default() },
                );
                break 'step Step::Dial { flight, spreading: false };
            };
            let now = Instant::now();
            // The first connections with room are used, so that the others become empty. Of those that share the load, the
            // one with the fewest streams is chosen.
            let mut best: Option<usize> = None;
            let (mut index, mut sharing) = (0, 0);
            while sharing < self.settings.spread.max(1)
                && let Some(connection) = entry.connections.get(index)
            {
                if connection.is_gone() || connection.drains_by(now) {
                    dropped.push(entry.connections.swap_remove(index));
                    continue;
                }
                let usable = newer_than.is_none_or(|time| connection.created > time);
                if usable && connection.has_room() {
                    sharing += 1;
                    if best.is_none_or(|best| connection.active() < entry.connections[best].active()) {
                        best = Some(index);
                    }
                }
                index += 1;
            }
            let spreading = best.is_some();
            if let Some(best) = best.map(|best| &entry.connections[best])
                && !(may_spread && entry.should_spread(best.active(), sharing, self.settings.spread))
            {
                break 'step Step::Use(best.acquire());
            }
            match &entry.flight {
                Some(flight) => {
                    flight.waited.fetch_add(1, Relaxed);
                    Step::Wait { flight: flight.clone(), spreading }
                }
                None => Step::Dial { flight: entry.flight.insert(Arc::default()).clone(), spreading },
            }
        };
        drop(keys);
        drop(dropped);
        step
    }

    /// Ends a dial and tells the waiting callers, unless that has happened. They check the pool again, so it is changed
    /// first.
    pub(super) fn land(&self, key: &K, flight: &Arc<Flight<E>>, result: Option<Result<(), OpenError<E>>>) {
        let mut keys = self.keys.lock();
        if let Some(entry) = keys.get_mut(key)
            && entry.flight.as_ref().is_some_and(|current| Arc::ptr_eq(current, flight))
        {
            entry.flight = None;
            if entry.connections.is_empty() {
                keys.remove(key);
            }
        }
        drop(keys);
        let _ = flight.result.set(result);
        flight.landed.notify_waiters();
    }

    /// Takes a connection out of use, if `when` allows it. Streams are added under the same lock, so none can be added in
    /// between. Returns whether it is out of use now.
    pub(super) fn remove(&self, key: &K, connection: &Weak<Connection>, when: Removal) -> bool {
        let mut removed = None;
        let mut keys = self.keys.lock();
        if when != Removal::Always && connection.upgrade().is_some_and(|connection| connection.active() > 0) {
            return false;
        }
        if let Some(entry) = keys.get_mut(key) {
            if let Some(index) = entry.connections.iter().position(|c| Arc::as_ptr(c) == connection.as_ptr()) {
                let mut others = entry.connections.iter().enumerate().filter(|(other, _)| *other != index);
                if when == Removal::Surplus && !others.any(|(_, other)| other.has_room()) {
                    return false;
                }
                removed = Some(entry.connections.swap_remove(index));
            }
            if entry.connections.is_empty() && entry.flight.is_none() {
                keys.remove(key);
            }
        }
        drop(keys);
        drop(removed);
        true
    }
}

/// The connections of one key, and the dial that is under way.
pub(super) struct Entry<E> {
    pub(super) connections: Vec<Arc<Connection>>,
    pub(super) flight: Option<Arc<Flight<E>>>,
    pub(super) not_spreading: Pause,
}

impl<E> Entry<E> {
    /// Whether the next stream should wait for another connection: `sharing` of the wanted number have room, and the one with
    /// the fewest streams has `active`.
    fn should_spread(&self, active: usize, sharing: usize, wanted: usize) -> bool {
        active >= FEW
            && sharing < wanted
            && self.not_spreading.is_over()
            && match &self.flight {
                // The new connection will carry the streams that waited for it.
                Some(flight) => flight.waited.load(Relaxed) < active,
                None => self.connections.len() < wanted,
            }
    }
}

/// The pause after a failed attempt to get another connection to share the load.
#[derive(Default)]
pub(super) struct Pause {
    until: Option<Instant>,
    failures: u32,
}

impl Pause {
    /// An attempt has failed again. Each pause is twice as long as the one before.
    pub(super) fn extend(&mut self) {
        self.until = Some(Instant::now() + SPREAD_PAUSE * (1 << self.failures.min(6)));
        self.failures += 1;
    }

    fn is_over(&self) -> bool {
        self.until.is_none_or(|time| time <= Instant::now())
    }
}

/// A dial under way, until the peer of the new connection has told how many streams it allows.
pub(super) struct Flight<E> {
    pub(super) landed: Notify,
    /// How many callers chose to wait for it.
    waited: AtomicUsize,
    /// `None` inside if the caller that dialled gave up.
    pub(super) result: OnceLock<Option<Result<(), OpenError<E>>>>,
}

impl<E> Default for Flight<E> {
    fn default() -> Self {
        Self { landed: Notify::new(), waited: AtomicUsize::new(0), result: OnceLock::new() }
    }
}
