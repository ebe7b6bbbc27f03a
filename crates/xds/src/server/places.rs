//! Which clients may have a connection to the control plane, and how long they may take to prove their identity.
//!
//! A connection is *unproven* until a request with a good token came on it. Unproven connections have places of their own,
//! so that clients without a token can't keep out those that have one. A proven connection keeps its place for months,
//! however many others come. Among the proven connections, each client has a share, so that one client can't keep out
//! another.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leno_telemetry::metrics::control::{ConnectionState, ControlMetrics, Counted};
use leno_telemetry::one_host;
use leno_tls::unproven::{Unproven, UnprovenPlace};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::caller::Caller;
use super::proven::{Client, Proven, ProvenPlace};
use super::refusals::Refusal;

/// How many connections there may be at a time on one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Unproven connections. When there are this many, the one that has waited longest gives way to a new one.
    pub unproven: usize,
    /// How many of them one address may have while others want places. Without competition, an address may have all,
    /// because a whole cluster's proxies may share one address.
    pub unproven_per_address: usize,
    /// Proven connections. A proxy has two. When there are this many, the client that has most gives one up to a client
    /// that has less than eight.
    pub proven: usize,
    /// Time for the TLS handshake and the first request with a valid token together.
    pub first_request: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        // After its handshake, an idle unproven connection takes some 30 KiB: 4096 take 120 MiB.
        Self { unproven: 4096, unproven_per_address: 256, proven: 16_384, first_request: Duration::from_secs(10) }
    }
}

impl Limits {
    /// These limits, or lower ones if the process may have few descriptors: an eighth of them for unproven connections,
    /// three quarters for proxies, the rest for files.
    #[must_use]
    pub fn within(self, descriptors: u64) -> Self {
        let eighth = usize::try_from(descriptors / 8).unwrap_or(usize::MAX / 8);
        Self { unproven: self.unproven.min(eighth), proven: self.proven.min(eighth * 6), ..self }
    }
}

/// The places of one listener.
pub(crate) struct Places {
    limits: Limits,
    unproven: Arc<Unproven<IpAddr>>,
    proven: Arc<Proven>,
    metrics: ControlMetrics,
}

impl Places {
    pub(crate) fn new(limits: Limits, metrics: ControlMetrics) -> Arc<Self> {
        let unproven = Unproven::new(limits.unproven, limits.unproven_per_address);
        Arc::new(Self { limits, unproven, proven: Proven::new(limits.proven), metrics })
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// A place for a connection from `peer`. Another connection may have to give it up. Waits for a second at most.
    ///
    /// # Errors
    /// If the address has more than its share.
    pub(crate) async fn take(self: &Arc<Self>, peer: IpAddr) -> Result<Place, Refusal> {
        let unproven = self.unproven.place(one_host(peer)).await.map_err(|_| Refusal::Share)?;
        Ok(Place {
            places: self.clone(),
            unproven,
            counted: Mutex::new(self.metrics.connection(ConnectionState::Unauthenticated)),
            proven: OnceLock::new(),
            gave_way: Arc::default(),
        })
    }
}

/// A connection's place. Dropping it frees it.
pub(crate) struct Place {
    places: Arc<Places>,
    unproven: UnprovenPlace<IpAddr>,
    /// Keeps it counted in its state. Locked while it proves itself, because two requests can come at once.
    counted: Mutex<Counted>,
    proven: OnceLock<ProvenPlace>,
    /// Notified when the proven place is given to another connection.
    gave_way: Arc<Notify>,
}

impl Place {
    /// Makes this a proven connection of `caller`. Later callers on it change nothing.
    ///
    /// # Errors
    /// If there are too many proven connections, or another connection has got the place by now.
    pub(crate) fn prove(&self, caller: &Caller) -> Result<(), Refusal> {
        let mut counted = self.counted.lock();
        if self.proven.get().is_some() {
            return Ok(());
        }
        if !self.unproven.is_held() {
            return Err(Refusal::GaveWay);
        }
        let proven = self.places.proven.take(Client::of(caller), self.gave_way.clone()).map_err(|_| {
            self.places.metrics.refused(Refusal::Full.word());
            Refusal::Full
        })?;
        if !self.unproven.leave() {
            return Err(Refusal::GaveWay);
        }
        *counted = self.places.metrics.connection(ConnectionState::Authenticated);
        self.proven.set(proven).map_err(|_| Refusal::GaveWay)
    }

    /// Resolves when the connection must end although its peer has not ended it.
    pub(crate) async fn lost(&self, deadline: Instant) -> Refusal {
        tokio::select! {
            biased;
            () = self.unproven.gave_way() => Refusal::GaveWay,
            () = self.gave_way.notified() => Refusal::ClientShare,
            () = tokio::time::sleep_until(deadline) => {
                if self.proven.get().is_none() {
                    return Refusal::NoRequest;
                }
                self.gave_way.notified().await;
                Refusal::ClientShare
            }
        }
    }

    /// One more discovery stream on this connection; `None` if it has as many as it may have.
    pub(crate) fn begin_stream(self: &Arc<Self>) -> Option<Stream> {
        self.proven.get()?.begin_stream().then(|| Stream(self.clone()))
    }
}

/// A discovery stream. When this is dropped, there is room for another.
pub(crate) struct Stream(Arc<Place>);

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(proven) = self.0.proven.get() {
            proven.end_stream();
        }
    }
}

#[cfg(test)]
#[path = "places_tests.rs"]
mod tests;
