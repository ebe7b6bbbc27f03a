//! Connections to peers, shared by the tunnels that go to the same one.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::client::{self, Connection, Permit, Registry};
use crate::early::FirstBytes;
use crate::timers::timeout;
use crate::{ConnectRequest, Error, OpenError, ResponseHead, Settings, Transport, TunnelStream};

/// Streams that a connection carries before another one is opened to spread them
/// ([`Settings::spread`]): fewer are hardly too much for a thread, and each connection costs a
/// handshake.
const FEW: usize = 8;

/// How long a stream waits for a connection that is to share the load, where another has room. A
/// handshake takes milliseconds; a peer that takes no more connections says nothing at all.
const SPREAD_WAIT: Duration = Duration::from_millis(500);

/// How long nobody tries again to spread after that has failed; up to 64 times as long when it
/// fails again and again, as with a peer too far away for [`SPREAD_WAIT`].
const SPREAD_PAUSE: Duration = Duration::from_secs(10);

/// How often a request may be refused unprocessed before one last attempt on a new connection: a
/// peer may lower its limit of streams while requests are on their way. More than that, and it takes
/// none on this connection any more, as when the proof that it was made with has run out.
const REFUSALS: usize = 3;

/// A pool of HBONE connections. `K` says which tunnels may share a connection (source identity,
/// peer's identities, peer's address); `E` is the caller's error of establishing a transport.
///
/// Made to be owned by one data-path worker, so that its lock is never contended; cloning gives
/// another handle to the same pool, and any thread may use it. The lock is held for a look-up
/// only, never over an await. Per key at most one dial is under way; whoever needs that key
/// waits for it, and nobody else is disturbed.
pub struct Pool<K, E> {
    shared: Arc<Shared<K, E>>,
}

struct Shared<K, E> {
    settings: Arc<Settings>,
    keys: Mutex<HashMap<K, Entry<E>, RandomState>>,
    /// Connections whose task runs, in use or not.
    running: watch::Sender<usize>,
}

struct Entry<E> {
    connections: Vec<Arc<Connection>>,
    flight: Option<Arc<Flight<E>>>,
    not_spreading: Pause,
}

impl<E> Entry<E> {
    /// Whether the next stream should be carried by a connection that is yet to come: `sharing` of
    /// the wanted number have room, and the one with the fewest streams has `active`.
    fn should_spread(&self, active: usize, sharing: usize, wanted: usize) -> bool {
        active >= FEW
            && sharing < wanted
            && self.not_spreading.is_over()
            && match &self.flight {
                // It will carry those who waited for it.
                Some(flight) => flight.waited.load(Relaxed) < active,
                None => self.connections.len() < wanted,
            }
    }
}

/// After another connection could not be had to share the load.
#[derive(Default)]
struct Pause {
    until: Option<Instant>,
    failures: u32,
}

impl Pause {
    /// It has failed once more; twice as long each time.
    fn extend(&mut self) {
        self.until = Some(Instant::now() + SPREAD_PAUSE * (1 << self.failures.min(6)));
        self.failures += 1;
    }

    fn is_over(&self) -> bool {
        self.until.is_none_or(|time| time <= Instant::now())
    }
}

/// A dial under way, until the peer of the new connection has told how many streams it allows.
struct Flight<E> {
    landed: Notify,
    /// How many chose to wait for it.
    waited: AtomicUsize,
    /// `None` if the one who dialled gave up half-way.
    result: OnceLock<Option<Result<(), OpenError<E>>>>,
}

/// Numbers of a pool at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Connections in use or kept for use.
    pub connections: usize,
    /// Streams open on them.
    pub streams: usize,
    /// Dials under way.
    pub dialling: usize,
}

struct Lease {
    permit: Permit,
    /// Dialled by this very caller.
    fresh: bool,
}

impl<K, E> Clone for Pool<K, E> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<K, E> Pool<K, E>
where
    K: Eq + Hash + Clone + Send + Sync + 'static,
    E: Clone + Send + Sync + 'static,
{
    /// An empty pool.
    pub fn new(settings: Settings) -> Self {
        let running = watch::Sender::new(0);
        Self { shared: Arc::new(Shared { settings: Arc::new(settings), keys: Mutex::default(), running }) }
    }

    /// Opens a tunnel to the peer of `key`: on a connection that has room, else on a new one
    /// that `dial` makes (TCP and TLS). If a kept connection turns out dead before the peer
    /// answered, tries once more on a new one: no byte of the tunnel was sent yet. But not if its
    /// peer was merely silent ([`Error::Unheard`]): a dial to who doesn't answer takes long, and the
    /// caller may know somebody else. Asked again, it makes a new one.
    ///
    /// Dropping the future gives up; a dial is then taken over by the next waiter. It has no
    /// time limit of its own beyond PING's.
    ///
    /// # Errors
    /// If dialling failed, the peer refused the request, or the connection was lost.
    pub async fn open<IO, D, F>(
        &self,
        key: &K,
        dial: D,
        request: ConnectRequest,
    ) -> Result<(TunnelStream, ResponseHead), OpenError<E>>
    where
        IO: Transport + 'static,
        D: FnMut() -> F,
        F: Future<Output = Result<IO, E>>,
    {
        self.open_with(key, dial, request, None).await
    }

    /// As [`Pool::open`], with what the program says before the peer has answered. Tries again
    /// only as long as the peer can't have passed that on.
    ///
    /// # Errors
    /// As [`Pool::open`]; [`FirstBytes::in_doubt`] tells whether another peer may be asked.
    pub async fn open_with<IO, D, F>(
        &self,
        key: &K,
        mut dial: D,
        request: ConnectRequest,
        mut first: Option<&mut FirstBytes<'_>>,
    ) -> Result<(TunnelStream, ResponseHead), OpenError<E>>
    where
        IO: Transport + 'static,
        D: FnMut() -> F,
        F: Future<Output = Result<IO, E>>,
    {
        let mut refusals = 0;
        let mut newer_than = None;
        loop {
            let Lease { permit, fresh } = self.lease(key, &mut dial, newer_than).await?;
            let connection = permit.connection().clone();
            let error = match permit.connect(&request, first.as_deref_mut(), &self.shared.settings).await {
                Ok(opened) => return Ok(opened),
                Err(OpenError::Tunnel(error)) => error,
                Err(other) => return Err(other),
            };
            let in_doubt = || first.as_ref().is_some_and(|first| first.in_doubt());
            let is_lost = matches!(error, Error::Lost(_) | Error::GoAway { by_peer: true, .. });
            if matches!(error, Error::Unheard)
                || is_lost && !fresh && !in_doubt() && connection.fell_silent.load(Relaxed)
            {
                self.shared.remove(key, &Arc::downgrade(&connection), Removal::Always);
                return Err(Error::Unheard.into());
            }
            if error.is_refused_stream() && refusals < REFUSALS {
                refusals += 1;
            } else if error.is_refused_stream() {
                // A new one is not likely to do better than one that is new itself.
                if newer_than.is_some() {
                    return Err(error.into());
                }
                // Otherwise whoever comes next would be refused as well. What is open on it goes on.
                self.shared.remove(key, &Arc::downgrade(&connection), Removal::Always);
                newer_than = Some(Instant::now());
            } else if is_lost {
                self.shared.remove(key, &Arc::downgrade(&connection), Removal::Always);
                if fresh || newer_than.is_some() || in_doubt() {
                    return Err(error.into());
                }
                newer_than = Some(Instant::now());
            } else {
                return Err(error.into());
            }
            tracing::debug!(%error, "HBONE connection did not take the request; trying another");
        }
    }

    /// Stops using the connections whose key satisfies `gone`, and those being dialled for such
    /// a key. Tunnels that are open on them go on.
    pub fn evict(&self, mut gone: impl FnMut(&K) -> bool) {
        // Connections are dropped after the lock: that may wake and run other code.
        let evicted: Vec<_> = self.shared.keys.lock().extract_if(|key, _| gone(key)).collect();
        drop(evicted);
    }

    /// Stops using all connections, and waits until each has sent what was given to it and has
    /// ended: what a tunnel was handed last may still wait in its connection when the tunnel is
    /// long gone. Tunnels that are open are waited for too; to be used under a time limit.
    pub async fn close(&self) {
        self.evict(|_| true);
        // The sender lives as long as `self`, so waiting can't fail.
        let _ = self.shared.running.subscribe().wait_for(|running| *running == 0).await;
    }

    /// Numbers of this moment.
    pub fn stats(&self) -> PoolStats {
        let keys = self.shared.keys.lock();
        keys.values().fold(PoolStats::default(), |stats, entry| PoolStats {
            connections: stats.connections + entry.connections.len(),
            streams: stats.streams + entry.connections.iter().map(|c| c.active()).sum::<usize>(),
            dialling: stats.dialling + usize::from(entry.flight.is_some()),
        })
    }

    async fn lease<IO, D, F>(&self, key: &K, dial: &mut D, newer_than: Option<Instant>) -> Result<Lease, OpenError<E>>
    where
        IO: Transport + 'static,
        D: FnMut() -> F,
        F: Future<Output = Result<IO, E>>,
    {
        let mut may_spread = newer_than.is_none();
        loop {
            match self.shared.next_step(key, newer_than, may_spread) {
                Step::Use(permit) => return Ok(Lease { permit, fresh: false }),
                Step::Wait { flight, spreading } => {
                    let landed = flight.landed.notified();
                    if flight.result.get().is_none() {
                        if !spreading {
                            landed.await;
                        } else if timeout(SPREAD_WAIT, landed).await.is_err() {
                            may_spread = false;
                            continue;
                        }
                    }
                    match flight.result.get() {
                        Some(Some(Err(error))) if !spreading => return Err(error.clone()),
                        result => may_spread &= matches!(result, Some(Some(Ok(())))),
                    }
                }
                Step::Dial { flight, spreading } => {
                    let leader = Leader { shared: &self.shared, key, flight: Some(flight.clone()) };
                    // Boxed: a handshake's state is large, and rarely needed.
                    let dialling = Box::pin(leader.dial(dial()));
                    if !spreading {
                        let permit = dialling.await?;
                        return Ok(Lease { permit, fresh: true });
                    }
                    // Where another has room, no stream is bet on a peer that has yet to say a
                    // word: with TLS 1.3 not even its verdict on our certificate is known.
                    let settling = async {
                        let landed = flight.landed.notified();
                        let permit = dialling.await.ok()?;
                        if flight.result.get().is_none() {
                            landed.await;
                        }
                        matches!(flight.result.get(), Some(Some(Ok(())))).then_some(permit)
                    };
                    if let Ok(Some(permit)) = timeout(SPREAD_WAIT, settling).await {
                        return Ok(Lease { permit, fresh: true });
                    }
                    may_spread = false;
                    if let Some(entry) = self.shared.keys.lock().get_mut(key) {
                        entry.not_spreading.extend();
                    }
                }
            }
        }
    }
}

enum Step<E> {
    Use(Permit),
    /// When spreading, there is a connection with room all the same.
    Wait {
        flight: Arc<Flight<E>>,
        spreading: bool,
    },
    Dial {
        flight: Arc<Flight<E>>,
        spreading: bool,
    },
}

impl<K: Eq + Hash + Clone, E> Shared<K, E> {
    fn next_step(&self, key: &K, newer_than: Option<Instant>, may_spread: bool) -> Step<E> {
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
            // The first that have room, so that others run empty; of as many as share the load, the
            // one that has least of it.
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

    /// Ends a flight and tells its waiters, unless that has happened. They look at the pool
    /// again, so it is changed first.
    fn land(&self, key: &K, flight: &Arc<Flight<E>>, result: Option<Result<(), OpenError<E>>>) {
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

    /// Takes a connection out of use, if it may be. Streams are added under the same lock, so
    /// none can come in between. Says whether it is out of use now.
    fn remove(&self, key: &K, connection: &Weak<Connection>, when: Removal) -> bool {
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

/// When a connection may be taken out of use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Removal {
    Always,
    /// It carries no stream.
    Idle,
    /// It carries none, and another has room for the next.
    Surplus,
}

impl<E> Default for Flight<E> {
    fn default() -> Self {
        Self { landed: Notify::new(), waited: AtomicUsize::new(0), result: OnceLock::new() }
    }
}

/// The one who dials; whatever becomes of it, the waiters hear.
struct Leader<'a, K: Eq + Hash + Clone, E> {
    shared: &'a Arc<Shared<K, E>>,
    key: &'a K,
    /// Until it has landed or the connection's task sees to it.
    flight: Option<Arc<Flight<E>>>,
}

impl<K, E> Leader<'_, K, E>
where
    K: Eq + Hash + Clone + Send + Sync + 'static,
    E: Clone + Send + Sync + 'static,
{
    async fn dial<IO, F>(mut self, dial: F) -> Result<Permit, OpenError<E>>
    where
        IO: Transport + 'static,
        F: Future<Output = Result<IO, E>>,
    {
        let result = match dial.await {
            Ok(io) => client::start(io, &self.shared.settings, |connection| self.publish(connection)).await,
            Err(error) => return Err(self.fail(OpenError::Dial(error))),
        };
        result.map_err(|error| self.fail(error.into()))
    }

    fn fail(&mut self, error: OpenError<E>) -> OpenError<E> {
        if let Some(flight) = self.flight.take() {
            self.shared.land(self.key, &flight, Some(Err(error.clone())));
        }
        error
    }

    /// Puts the new connection into the pool. If the key was evicted meanwhile, the entry is
    /// gone or another flight's, and the connection serves its dialler only.
    fn publish(&mut self, connection: &Arc<Connection>) -> Registration<K, E> {
        let flight = self.flight.take().unwrap_or_default();
        if let Some(entry) = self.shared.keys.lock().get_mut(self.key)
            && entry.flight.as_ref().is_some_and(|current| Arc::ptr_eq(current, &flight))
        {
            entry.connections.push(connection.clone());
        }
        self.shared.running.send_modify(|running| *running += 1);
        Registration {
            shared: Arc::downgrade(self.shared),
            key: self.key.clone(),
            connection: Arc::downgrade(connection),
            flight,
        }
    }
}

impl<K: Eq + Hash + Clone, E> Drop for Leader<'_, K, E> {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            self.shared.land(self.key, &flight, None);
        }
    }
}

/// A connection's place in the pool, as its task knows it.
struct Registration<K, E> {
    shared: Weak<Shared<K, E>>,
    key: K,
    connection: Weak<Connection>,
    flight: Arc<Flight<E>>,
}

impl<K, E> Registry for Registration<K, E>
where
    K: Eq + Hash + Clone + Send + Sync + 'static,
    E: Clone + Send + Sync + 'static,
{
    fn settled(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.land(&self.key, &self.flight, Some(Ok(())));
        }
    }

    fn release_if_idle(&self, only_if_surplus: bool) -> bool {
        let when = if only_if_surplus { Removal::Surplus } else { Removal::Idle };
        self.shared.upgrade().is_none_or(|shared| shared.remove(&self.key, &self.connection, when))
    }

    fn gone(&self, error: Option<&Error>) {
        if let Some(shared) = self.shared.upgrade() {
            shared.remove(&self.key, &self.connection, Removal::Always);
            // Has no effect on waiters of a connection that got so far as to settle.
            let error = error.cloned().unwrap_or_else(|| Error::Lost(Arc::new(io::ErrorKind::UnexpectedEof.into())));
            shared.land(&self.key, &self.flight, Some(Err(error.into())));
            shared.running.send_modify(|running| *running -= 1);
        }
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
