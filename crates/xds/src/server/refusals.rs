//! Log lines about connections that the listener ends, at most one a second.

use std::net::SocketAddr;

use leno_telemetry::Gate;
use leno_telemetry::metrics::control::ControlMetrics;

/// Why a connection to the control plane gets no place or loses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// All places are taken, and its address has more than its share.
    #[error(
        "all places for connections without a good token are taken, and this address has its share of them; find out \
         which client there opens so many, or raise --max-unproven-clients or --max-unproven-per-address"
    )]
    Share,
    /// Another connection needed the place.
    #[error(
        "all places for connections without a good token were taken, and this one had waited longest; find out which \
         clients open so many, or raise --max-unproven-clients"
    )]
    GaveWay,
    /// It never proved its identity.
    #[error(
        "no request with a good token came in time; is it a proxy, and can it read its token? \
         --first-request-timeout sets the time"
    )]
    NoRequest,
    /// There are too many proxies.
    #[error(
        "this control plane has as many connections of proxies as it may have; raise --max-connections or start another one"
    )]
    Full,
    /// Too many of this client.
    #[error("this client has more connections than any other, and others need places; find out who else has its token")]
    ClientShare,
}

impl Refusal {
    /// The reason in metrics.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Share => "address_share",
            Self::GaveWay => "displaced",
            Self::NoRequest => "no_token_in_time",
            Self::Full => "full",
            Self::ClientShare => "client_share",
        }
    }
}

/// Logs and counts refusals.
#[derive(Debug)]
pub(crate) struct Refusals {
    gates: [Gate; 5],
    metrics: ControlMetrics,
}

impl Refusals {
    pub(crate) fn new(metrics: ControlMetrics) -> Self {
        Self { gates: Default::default(), metrics }
    }

    pub(crate) fn tell(&self, refusal: Refusal, peer: SocketAddr) {
        self.metrics.refused(refusal.word());
        if let Some(untold) = self.gates[refusal as usize].pass() {
            tracing::warn!(%peer, reason = %refusal, untold, "control plane connection refused");
        }
    }
}
