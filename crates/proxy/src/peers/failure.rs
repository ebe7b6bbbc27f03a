//! Failures between a proxy and a peer or a program: their log text, their metric flag, and whether another endpoint
//! may be tried.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use leno_model::HBONE_PORT;
use leno_telemetry::metrics::ResponseFlags;
use leno_tls::{CertificateError, HandshakeError};
use leno_tunnel::OpenError;

/// Why a peer or a program could not be reached or was not trusted. Cheap to clone, because everybody who waits for the
/// same tunnel gets the same failure.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Failure {
    /// The workload has no valid SPIFFE ID.
    #[error("workload {0} has names that form no SPIFFE id, so it can't prove who it is")]
    NoIdentity(String),
    /// No certificate could be obtained.
    #[error(transparent)]
    Certificate(Arc<CertificateError>),
    /// The kernel provided no socket.
    #[error(transparent)]
    Socket(Arc<leno_capture::Error>),
    /// The connection was refused, by the host or by a firewall.
    #[error("connecting to {address} failed: {source}")]
    Connect {
        /// The peer's address.
        address: SocketAddr,
        /// The kernel's error.
        source: Arc<io::Error>,
    },
    /// Nothing answered in time.
    #[error("connecting to {address} took longer than {waited:?}{}", network_policy_hint(.address))]
    ConnectTimeout {
        /// The address that was connected to.
        address: SocketAddr,
        /// How long it was waited.
        waited: Duration,
    },
    /// The TLS handshake failed, or the peer has the wrong identity.
    #[error("TLS with {address} failed: {source}")]
    Handshake {
        /// The peer's address.
        address: SocketAddr,
        /// The handshake's error.
        source: Arc<HandshakeError>,
    },
    /// The peer lost its place to others before it had proved its identity.
    #[error(
        "{address} had not proved who it is when all {most} places for that were taken ({setting}); who opens so \
         many connections and says nothing?"
    )]
    TurnedAway {
        /// The peer's address.
        address: SocketAddr,
        /// How many places there are.
        most: usize,
        /// What says so.
        setting: &'static str,
    },
    /// Its address has too many connections that prove nothing.
    #[error(
        "no place for {address}: all {most} places that this proxy has for peers which have proved nothing are taken \
         (LENO_MAX_UNPROVEN_PEERS_TOTAL), and its address has its share of them; who opens so many connections there \
         and says nothing?"
    )]
    TooManyUnproven {
        /// The peer's address.
        address: SocketAddr,
        /// The number of places.
        most: usize,
    },
    /// A certificate that proved one of the sides has expired.
    #[error(
        "{address} asked for a connection over a tunnel that proves nothing any more: {} certificate ended {} s ago. It \
         was told before to open another tunnel (GOAWAY); does its proxy heed that?",
        if *.peers { "its" } else { "this pod's own" }, .ago.as_secs()
    )]
    Expired {
        /// The address that was connected to.
        address: SocketAddr,
        /// Whether it is the peer's certificate; otherwise it is ours.
        peers: bool,
        /// How long ago it expired.
        ago: Duration,
    },
    /// A tunnel broke or could not be opened.
    #[error("tunnel to {address} failed: {reason}")]
    Tunnel {
        /// The peer's address.
        address: SocketAddr,
        /// The reason.
        reason: String,
    },
    /// An idle tunnel turned out to be dead.
    #[error(
        "{address} said nothing when a connection over an idle tunnel was asked for; its pod or node may be gone, or a \
         firewall on the way has forgotten the tunnel"
    )]
    SilentTunnel {
        /// The peer's address.
        address: SocketAddr,
    },
    /// The program gave up before its connection was established.
    #[error("{address} gave up before the connection stood: {reason}")]
    GivenUp {
        /// The program's address.
        address: SocketAddr,
        /// The reason.
        reason: String,
    },
    /// The peer refused the connection.
    #[error("{address} refused the connection: {}", status_meaning(*.status))]
    Refused {
        /// Who or where.
        address: SocketAddr,
        /// The HTTP status of the refusal.
        status: StatusCode,
    },
}

fn network_policy_hint(address: &SocketAddr) -> &'static str {
    if address.port() == HBONE_PORT { "; does a NetworkPolicy or firewall block port 15008?" } else { "" }
}

fn status_meaning(status: StatusCode) -> String {
    match status {
        StatusCode::UNAUTHORIZED => {
            "denied by its authorization policies (401); its node's access log names the policy".to_owned()
        }
        StatusCode::SERVICE_UNAVAILABLE => "its program can't be reached (503)".to_owned(),
        StatusCode::BAD_REQUEST => {
            "it does not hold the address we asked for (400); our view of the mesh may be old".to_owned()
        }
        other => format!("HTTP status {other}"),
    }
}

impl Failure {
    /// A failure of a tunnel to `address`, opened for a program at `source`.
    pub fn tunnel(address: SocketAddr, source: SocketAddr, error: OpenError<Self>) -> Self {
        match error {
            OpenError::Dial(failure) => failure,
            OpenError::Refused { status, .. } => Self::Refused { address, status },
            OpenError::Tunnel(leno_tunnel::Error::Unheard) => Self::SilentTunnel { address },
            OpenError::Tunnel(error) => Self::Tunnel { address, reason: error.to_string() },
            OpenError::Program(error) => Self::given_up(source, &error),
        }
    }

    /// The failure of a program at `address` that gave up before its connection was established.
    pub fn given_up(address: SocketAddr, error: &dyn fmt::Display) -> Self {
        Self::GivenUp { address, reason: error.to_string() }
    }

    /// Whether the connection may be tried on another endpoint, as long as none of the program's bytes can have arrived
    /// (`FirstBytes::in_doubt`), so that nothing is asked twice. A denial is final: the proxy does not look for an
    /// endpoint that has missed its policy.
    pub fn may_try_another_endpoint(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::ConnectTimeout { .. } | Self::Tunnel { .. } | Self::SilentTunnel { .. } => {
                true
            }
            Self::Handshake { source, .. } => source.is_retryable(),
            Self::Refused { status, .. } => *status != StatusCode::UNAUTHORIZED,
            _ => false,
        }
    }

    /// Whether nothing came back from the peer at all.
    pub fn is_silence(&self) -> bool {
        match self {
            Self::ConnectTimeout { .. } | Self::SilentTunnel { .. } => true,
            // The kernel's answer, after some seconds, if nobody on the link and no router knows the address.
            Self::Connect { source, .. } => {
                matches!(source.raw_os_error(), Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ETIMEDOUT))
            }
            Self::Handshake { source, .. } => matches!(**source, HandshakeError::Timeout(_)),
            _ => false,
        }
    }

    /// Whether the requested source port was in use.
    pub fn is_port_taken(&self) -> bool {
        let code = match self {
            Self::Socket(source) => source.errno(),
            Self::Connect { source, .. } => source.raw_os_error(),
            _ => None,
        };
        matches!(code, Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL))
    }

    /// Istio's `response_flags` label.
    pub fn response_flags(&self) -> ResponseFlags {
        match self {
            Self::Refused { status: StatusCode::UNAUTHORIZED, .. } => ResponseFlags::Deny,
            Self::Handshake { .. } | Self::TurnedAway { .. } | Self::Expired { .. } => ResponseFlags::TlsFailure,
            Self::TooManyUnproven { .. } => ResponseFlags::ResourceLimit,
            Self::Tunnel { .. } | Self::SilentTunnel { .. } => ResponseFlags::H2Handshake,
            Self::ConnectTimeout { address, .. } if address.port() == HBONE_PORT => ResponseFlags::NetworkPolicy,
            Self::Certificate(_) | Self::NoIdentity(_) => ResponseFlags::Identity,
            _ => ResponseFlags::Connect,
        }
    }
}
