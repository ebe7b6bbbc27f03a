//! Why one connection could not be carried: the words in its log line, the flag in its metric,
//! and whether another endpoint might do.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use leno_model::HBONE_PORT;
use leno_policy::inbound::InboundRefusal;
use leno_policy::{DenyReason, NotUnderstood, RouteError};
use leno_proxy::mesh::MOMENT;
use leno_telemetry::metrics::ResponseFlags;
use leno_tls::{CertificateError, HandshakeError};
use leno_tunnel::OpenError;

/// Why one connection could not be carried. Cheap to clone: everybody who waited for the same
/// tunnel is told the same.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    #[error("the connection's original destination can't be read: {0}")]
    OriginalDestination(Arc<io::Error>),
    #[error(
        "pod {pod} is not known to the control plane after {waited:?}; is discovery connected (see /healthz/ready on 15021)?"
    )]
    UnknownWorkload { pod: String, waited: Duration },
    #[error(transparent)]
    NotUnderstood(Arc<NotUnderstood>),
    #[error("workload {0} has names that form no SPIFFE id, so it can't prove who it is")]
    NoIdentity(String),
    #[error(transparent)]
    Certificate(Arc<CertificateError>),
    #[error(transparent)]
    Route(Arc<RouteError>),
    #[error("no way to the destination is known")]
    NoRoute,
    #[error(transparent)]
    Socket(Arc<leno_capture::Error>),
    #[error("connecting to {address} failed: {source}")]
    Connect { address: SocketAddr, source: Arc<io::Error> },
    #[error("connecting to {address} took longer than {waited:?}{}", network_policy_hint(.address))]
    ConnectTimeout { address: SocketAddr, waited: Duration },
    #[error("TLS with {address} failed: {source}")]
    Handshake { address: SocketAddr, source: Arc<HandshakeError> },
    #[error(
        "{address} had not proved who it is when the pod's {most} places for that were taken (LENO_MAX_UNPROVEN); who \
         opens so many connections and says nothing?"
    )]
    TurnedAway { address: SocketAddr, most: usize },
    #[error(
        "{address} asked for a connection over a tunnel that proves nothing any more: {} certificate ended {} s ago. It \
         was told before to open another tunnel (GOAWAY); does its proxy heed that?",
        if *.peers { "its" } else { "this pod's own" }, .ago.as_secs()
    )]
    Expired { address: SocketAddr, peers: bool, ago: Duration },
    #[error(
        "pod {pod} has {most} sockets in connections already, as many as one may have (LENO_MAX_SOCKETS_PER_POD); who \
         opens so many?"
    )]
    TooManySockets { pod: String, most: usize },
    #[error(
        "{all} sockets are in connections, and pod {pod} has more than its share of them, {taken}; raise the limit on open \
         files (ulimit -n), or find out who opens so many"
    )]
    NoSockets { pod: String, taken: usize, all: usize },
    #[error(
        "{address} has {most} tunnels to this pod already, as many as one peer may have (LENO_MAX_TUNNELS_PER_PEER); what \
         does it need them for?"
    )]
    TooManyTunnels { address: SocketAddr, most: usize },
    #[error("tunnel to {address} failed: {reason}")]
    Tunnel { address: SocketAddr, reason: String },
    #[error(
        "{address} said nothing when a connection over an idle tunnel was asked for; its pod or node may be gone, or a \
         firewall on the way has forgotten the tunnel"
    )]
    SilentTunnel { address: SocketAddr },
    #[error("{address} gave up before the connection stood: {reason}")]
    GivenUp { address: SocketAddr, reason: String },
    #[error("{address} refused the connection: {}", status_meaning(*.status))]
    Refused { address: SocketAddr, status: StatusCode },
    #[error("expected a CONNECT request, got {0}")]
    NotConnect(String),
    #[error(transparent)]
    Inbound(Arc<InboundRefusal>),
    #[error(
        "{0} was part of the mesh until a moment ago and belongs to nobody now; it is refused for {MOMENT:?}, lest a \
         connection meant for the mesh leave in the clear"
    )]
    JustLeft(SocketAddr),
    #[error("{0} is a port of the proxy itself")]
    ReservedPort(SocketAddr),
    #[error(
        "{0} is not an address that others may reach this pod at: neither its workload nor its network namespace has it; \
         is a route to the pod wrong, or does somebody probe?"
    )]
    NotForUs(SocketAddr),
    #[error("the workload asks for a PROXY protocol header, which this version can't write")]
    ProxyProtocol,
    #[error(transparent)]
    Denied(Arc<DenyReason>),
    #[error("{0}")]
    Cut(String),
    #[error("the pod left the mesh or the proxy is shutting down")]
    Stopped,
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
    pub(crate) fn tunnel(address: SocketAddr, source: SocketAddr, error: OpenError<Self>) -> Self {
        match error {
            OpenError::Dial(failure) => failure,
            OpenError::Refused { status, .. } => Self::Refused { address, status },
            OpenError::Tunnel(leno_tunnel::Error::Unheard) => Self::SilentTunnel { address },
            OpenError::Tunnel(error) => Self::Tunnel { address, reason: error.to_string() },
            OpenError::Program(error) => Self::given_up(source, &error),
        }
    }

    /// Of the one at `address`, before the connection stood.
    pub(crate) fn given_up(address: SocketAddr, error: &dyn fmt::Display) -> Self {
        Self::GivenUp { address, reason: error.to_string() }
    }

    /// Whether the connection may be tried on another endpoint, as long as no byte of the program's
    /// may have arrived (`FirstBytes::in_doubt`): nothing is asked twice. A denial is final: shopping around for an
    /// endpoint that forgot its policy is not ours to do.
    pub(crate) fn may_try_another_endpoint(&self) -> bool {
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
    pub(crate) fn is_silence(&self) -> bool {
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
    pub(crate) fn is_port_taken(&self) -> bool {
        let code = match self {
            Self::Socket(source) => source.errno(),
            Self::Connect { source, .. } => source.raw_os_error(),
            _ => None,
        };
        matches!(code, Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL))
    }

    /// Istio's `response_flags` label.
    pub(crate) fn response_flags(&self) -> ResponseFlags {
        match self {
            Self::Denied(_) | Self::Cut(_) | Self::Refused { status: StatusCode::UNAUTHORIZED, .. } => {
                ResponseFlags::Deny
            }
            Self::Handshake { .. } | Self::TurnedAway { .. } | Self::Expired { .. } => ResponseFlags::TlsFailure,
            Self::TooManySockets { .. } | Self::NoSockets { .. } | Self::TooManyTunnels { .. } => {
                ResponseFlags::ResourceLimit
            }
            Self::Tunnel { .. } | Self::SilentTunnel { .. } => ResponseFlags::H2Handshake,
            Self::ConnectTimeout { address, .. } if address.port() == HBONE_PORT => ResponseFlags::NetworkPolicy,
            Self::Certificate(_) | Self::NoIdentity(_) | Self::UnknownWorkload { .. } | Self::NotUnderstood(_) => {
                ResponseFlags::Identity
            }
            _ => ResponseFlags::Connect,
        }
    }

    /// The status a peer that asked by CONNECT gets.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::NotConnect(_) => StatusCode::BAD_REQUEST,
            Self::Inbound(refusal) => StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::BAD_REQUEST),
            Self::Denied(_) | Self::Cut(_) => StatusCode::UNAUTHORIZED,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}
