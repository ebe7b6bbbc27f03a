//! Connections to peers, shared by the tunnels to the same peer.

use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::Instant;

use crate::connection::Permit;
use crate::early::FirstBytes;
use crate::timers::timeout;
use crate::{ConnectRequest, Error, OpenError, ResponseHead, Settings, Transport, TunnelStream};

mod dialling;
mod entries;

use dialling::Leader;
use entries::{Removal, Shared, Step};

/// How long a stream waits for a new connection that is to share the load, although another one has room. A handshake
/// takes milliseconds; a peer that accepts no more connections does not answer at all.
const SPREAD_WAIT: Duration = Duration::from_millis(500);

/// How many times a request may be refused unprocessed before one last attempt on a new connection. A peer may lower
/// its limit of streams while requests are on their way. If it refuses more often, it takes no more requests on this
/// connection, for example because a certificate has expired.
const REFUSALS: usize = 3;

/// How many connections may turn out to be leaving before they took the request. A proxy that restarts may still accept
/// a connection just before it hands its listener over. The next one that is dialled reaches the next proxy.
const DEPARTURES: usize = 3;

/// A pool of HBONE connections. `K` tells which tunnels may share a connection (source identity, the peer's identities,
/// the peer's address). `E` is the caller's error of setting up a transport.
///
/// A pool should belong to one data-path worker, so that its lock is never contended. Clones are handles of the same
/// pool, and any thread may use them. The lock is held for look-ups only, never over an await. For each key, at most
/// one dial is under way. Only those that need that key wait for it.
pub struct Pool<K, E> {
    shared: Arc<Shared<K, E>>,
}

/// Figures of a pool at one moment.
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
    /// Whether this caller dialled it.
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
        Self { shared: Arc::new(Shared::new(settings)) }
    }

    /// Opens a tunnel to the peer of `key`, on a connection with room or else on a new one that `dial` makes (TCP and
    /// TLS).
    ///
    /// If a kept connection turns out to be dead before the peer answered, it tries once more on a new one, because no
    /// byte of the tunnel was sent. If the peer said that it leaves and did not process the request (GOAWAY), it tries
    /// a few times, also when the connection was new. It does not if the peer was merely silent ([`Error::Unheard`]): dialling a peer
    /// that does not answer takes long, and the caller may know another endpoint. The next call makes a new connection.
    ///
    /// Dropping the future gives up, and the next waiter takes over the dial. There is no time limit except the PING's.
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

    /// As [`Pool::open`], with the program's first bytes sent before the peer has answered. It tries again only as long
    /// as the peer can't have passed those on.
    ///
    /// # Errors
    /// As [`Pool::open`]. [`FirstBytes::in_doubt`] tells whether another peer may be tried.
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
        let (mut refusals, mut departures) = (0, 0);
        let mut newer_than = None;
        loop {
            let Lease { permit, fresh } = self.lease(key, &mut dial, newer_than).await?;
            let connection = permit.connection.clone();
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
                // This one is new. Another new one is not likely to do better.
                if newer_than.is_some() {
                    return Err(error.into());
                }
                // Otherwise the next stream would be refused as well. Open streams go on.
                self.shared.remove(key, &Arc::downgrade(&connection), Removal::Always);
                newer_than = Some(Instant::now());
            } else if is_lost {
                self.shared.remove(key, &Arc::downgrade(&connection), Removal::Always);
                if error.is_unprocessed() && departures < DEPARTURES && !in_doubt() {
                    departures += 1;
                } else if fresh || newer_than.is_some() || in_doubt() {
                    return Err(error.into());
                }
                newer_than = Some(Instant::now());
            } else {
                return Err(error.into());
            }
            tracing::debug!(%error, "HBONE connection did not take the request; trying another");
        }
    }

    /// Stops using the connections whose key satisfies `gone`, including those being dialled. Open tunnels go on.
    pub fn evict(&self, mut gone: impl FnMut(&K) -> bool) {
        // Dropped after the lock is released: that may wake and run other code.
        let evicted: Vec<_> = self.shared.keys.lock().extract_if(|key, _| gone(key)).collect();
        drop(evicted);
    }

    /// Stops using all connections, and waits until each has sent what it was given and has ended. A tunnel's last
    /// bytes may still wait in its connection after the tunnel is gone. It also waits for open tunnels, so use it with
    /// a time limit.
    pub async fn close(&self) {
        self.evict(|_| true);
        // Waiting can't fail: the sender lives as long as `self`.
        let _ = self.shared.running.subscribe().wait_for(|running| *running == 0).await;
    }

    /// The figures of this moment.
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
                    // Boxed: the state of a handshake is large and rarely needed.
                    let dialling = Box::pin(leader.dial(dial()));
                    if !spreading {
                        let permit = dialling.await?;
                        return Ok(Lease { permit, fresh: true });
                    }
                    // If another connection has room, no stream depends on a peer that has not spoken yet: with TLS
                    // 1.3, not even its verdict on our certificate is known.
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

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
