//! Log lines about connections that the listener ends, at most one a second.

use std::net::SocketAddr;

use leno_telemetry::Gate;

/// Why a connection to the control plane gets no place or loses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// All places are taken, and its address has more than its share.
    #[error("this address has its share of the connections without a token, and there is no place for more")]
    Share,
    /// Another connection needed the place.
    #[error("too many connections without a token; this one had waited longest")]
    GaveWay,
    /// It never proved its identity.
    #[error("no request with a good token came in time")]
    NoRequest,
    /// There are too many proxies.
    #[error("this control plane has as many proxies as it may have; raise --max-connections or start another one")]
    Full,
    /// Too many of this client.
    #[error("this client has more connections than any other, and others want places; who else has its token?")]
    ClientShare,
}

/// Logs refusals.
#[derive(Debug, Default)]
pub(crate) struct Refusals([Gate; 5]);

impl Refusals {
    pub(crate) fn tell(&self, refusal: Refusal, peer: SocketAddr) {
        if let Some(untold) = self.0[refusal as usize].pass() {
            tracing::warn!(%peer, reason = %refusal, untold, "control plane connection refused");
        }
    }
}
