//! Why a connection in a tunnel was not carried: its log text, its metric flag, its status.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use leno_policy::connections::Unrouted;
use leno_policy::{DeniedUnread, DenyReason, NotUnderstood, RouteError, WaypointRefusal};
use leno_proxy::peers;
use leno_telemetry::metrics::ResponseFlags;

use crate::balance::Overflow;

/// Why a connection was not carried. Cheap to clone.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    /// A failure that any proxy can have with a peer or program.
    #[error(transparent)]
    Peer(#[from] peers::Failure),
    #[error("a peer's connection has no address: {0}")]
    NoAddress(Arc<io::Error>),
    #[error(
        "this waypoint's own pod {pod} is not known to the control plane after {waited:?}; is discovery connected (see \
         /healthz/ready on 15021), and are NODE_NAME, POD_NAME, POD_NAMESPACE and SERVICE_ACCOUNT its own?"
    )]
    UnknownWorkload { pod: String, waited: Duration },
    #[error(transparent)]
    NotUnderstood(Arc<NotUnderstood>),
    #[error(transparent)]
    Refused(Arc<WaypointRefusal>),
    /// A policy of the service, of the waypoint or of both.
    #[error(transparent)]
    Denied(Arc<DeniedUnread>),
    /// A policy that selects the waypoint's own pods.
    #[error(transparent)]
    OwnDenied(Arc<DenyReason>),
    #[error(transparent)]
    Route(Arc<RouteError>),
    /// What the routes for connections say.
    #[error(transparent)]
    Unrouted(Arc<Unrouted>),
    #[error("the client's first TLS message took longer than {0:?} (LENO_HEAD_TIMEOUT)")]
    SlowHello(Duration),
    #[error("no way to the destination is known")]
    NoRoute,
    #[error(
        "{0} is reached in the clear from here, but the mesh does not know it; a waypoint goes to what the mesh knows"
    )]
    Outside(SocketAddr),
    #[error("expected a CONNECT request, got {0}")]
    NotConnect(String),
    #[error(
        "{address} has {most} tunnels to this waypoint already, as many as one peer may have (LENO_MAX_TUNNELS_PER_PEER); \
         what does it need them for?"
    )]
    TooManyTunnels { address: SocketAddr, most: usize },
    #[error("the head of a request took longer than {0:?} (LENO_HEAD_TIMEOUT)")]
    SlowHead(Duration),
    #[error(
        "the client does not speak HTTP/2, which is declared for the Service's port (appProtocol, or the port's name)"
    )]
    NotHttp2,
    #[error(transparent)]
    Overflow(#[from] Overflow),
    #[error(
        "{waypoints} waypoints have sent this on to another one already: do the routes of their Services lead in a circle? \
         `leno explain` shows where each leads"
    )]
    Circle { waypoints: u32 },
    #[error("the waypoint is shutting down")]
    Stopped,
}

impl Failure {
    /// Whether another endpoint may be tried; see [`peers::Failure::may_try_another_endpoint`].
    pub(crate) fn may_try_another_endpoint(&self) -> bool {
        matches!(self, Self::Peer(failure) if failure.may_try_another_endpoint())
    }

    /// Istio's `response_flags` label of connections.
    pub(crate) fn response_flags(&self) -> ResponseFlags {
        match self {
            Self::Peer(failure) => failure.response_flags(),
            Self::Denied(_) | Self::OwnDenied(_) => ResponseFlags::Deny,
            Self::TooManyTunnels { .. } | Self::Overflow(_) => ResponseFlags::ResourceLimit,
            Self::UnknownWorkload { .. } | Self::NotUnderstood(_) => ResponseFlags::Identity,
            _ => ResponseFlags::Connect,
        }
    }

    /// The HTTP status for a peer that sent a CONNECT request.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::NotConnect(_) => StatusCode::BAD_REQUEST,
            Self::Denied(_) | Self::OwnDenied(_) => StatusCode::UNAUTHORIZED,
            Self::Circle { .. } => StatusCode::LOOP_DETECTED,
            Self::Refused(refusal) => StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::BAD_REQUEST),
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl From<Unrouted> for Failure {
    fn from(error: Unrouted) -> Self {
        Self::Unrouted(Arc::new(error))
    }
}

impl From<RouteError> for Failure {
    fn from(error: RouteError) -> Self {
        Self::Route(Arc::new(error))
    }
}
