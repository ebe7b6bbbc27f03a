//! What can go wrong between a proxy and a peer, or a program, whatever is carried: the words in its log line, the
//! flag in its metric, and whether another endpoint might do.

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

/// Why a peer or a program could not be reached, or not be believed. Cheap to clone: everybody who waited for the
/// same tunnel is told the same.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Failure {
    /// A workload can prove nothing.
    #[error("workload {0} has names that form no SPIFFE id, so it can't prove who it is")]
    NoIdentity(String),
    /// A certificate could not be had.
    #[error(transparent)]
    Certificate(Arc<CertificateError>),
    /// The kernel gave no socket.
    #[error(transparent)]
    Socket(Arc<leno_capture::Error>),
    /// Nobody, or a firewall, refused.
    #[error("connecting to {address} failed: {source}")]
    Connect {
        /// Who or where.
        address: SocketAddr,
        /// What was wrong.
        source: Arc<io::Error>,
    },
    /// Nobody answered in time.
    #[error("connecting to {address} took longer than {waited:?}{}", network_policy_hint(.address))]
    ConnectTimeout {
        /// Who or where.
        address: SocketAddr,
        /// For so long.
        waited: Duration,
    },
    /// The peer is not who it must be, or does not speak as it must.
    #[error("TLS with {address} failed: {source}")]
    Handshake {
        /// Who or where.
        address: SocketAddr,
        /// What was wrong.
        source: Arc<HandshakeError>,
    },
    /// Others took its place before it had proved anything.
    #[error(
        "{address} had not proved who it is when all {most} places for that were taken ({setting}); who opens so \
         many connections and says nothing?"
    )]
    TurnedAway {
        /// Who or where.
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
        /// Who or where.
        address: SocketAddr,
        /// How many places there are.
        most: usize,
    },
    /// What proved the two sides has ended.
    #[error(
        "{address} asked for a connection over a tunnel that proves nothing any more: {} certificate ended {} s ago. It \
         was told before to open another tunnel (GOAWAY); does its proxy heed that?",
        if *.peers { "its" } else { "this pod's own" }, .ago.as_secs()
    )]
    Expired {
        /// Who or where.
        address: SocketAddr,
        /// The peer's certificate ended, not ours.
        peers: bool,
        /// So long ago.
        ago: Duration,
    },
    /// A tunnel broke, or was not to be had.
    #[error("tunnel to {address} failed: {reason}")]
    Tunnel {
        /// Who or where.
        address: SocketAddr,
        /// What was wrong.
        reason: String,
    },
    /// An idle tunnel led nowhere.
    #[error(
        "{address} said nothing when a connection over an idle tunnel was asked for; its pod or node may be gone, or a \
         firewall on the way has forgotten the tunnel"
    )]
    SilentTunnel {
        /// Who or where.
        address: SocketAddr,
    },
    /// Whoever wanted the connection wanted it no more.
    #[error("{address} gave up before the connection stood: {reason}")]
    GivenUp {
        /// Who or where.
        address: SocketAddr,
        /// What was wrong.
        reason: String,
    },
    /// The peer said no.
    #[error("{address} refused the connection: {}", status_meaning(*.status))]
    Refused {
        /// Who or where.
        address: SocketAddr,
        /// The status it said it with.
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
    /// Of a tunnel to `address` for a program at `source`.
    pub fn tunnel(address: SocketAddr, source: SocketAddr, error: OpenError<Self>) -> Self {
        match error {
            OpenError::Dial(failure) => failure,
            OpenError::Refused { status, .. } => Self::Refused { address, status },
            OpenError::Tunnel(leno_tunnel::Error::Unheard) => Self::SilentTunnel { address },
            OpenError::Tunnel(error) => Self::Tunnel { address, reason: error.to_string() },
            OpenError::Program(error) => Self::given_up(source, &error),
        }
    }

    /// Of the one at `address`, before the connection stood.
    pub fn given_up(address: SocketAddr, error: &dyn fmt::Display) -> Self {
        Self::GivenUp { address, reason: error.to_string() }
    }

    /// Whether the connection may be tried on another endpoint, as long as no byte of the program's
    /// may have arrived (`FirstBytes::in_doubt`): nothing is asked twice. A denial is final: shopping around for an
    /// endpoint that forgot its policy is not ours to do.
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

    /// Whether nothing came back from there at all.
    pub fn is_silence(&self) -> bool {
        match self {
            Self::ConnectTimeout { .. } | Self::SilentTunnel { .. } => true,
            // What the kernel says when nobody on the link, or no router, knows where the address is; that takes it seconds.
            Self::Connect { source, .. } => {
                matches!(source.raw_os_error(), Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ETIMEDOUT))
            }
            Self::Handshake { source, .. } => matches!(**source, HandshakeError::Timeout(_)),
            _ => false,
        }
    }

    /// Whether the source port asked for was in use.
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
