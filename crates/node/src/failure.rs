//! Why one connection could not be carried: its log text, its metric flag, and whether another endpoint may be tried.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use leno_model::PolicyName;
use leno_policy::inbound::InboundRefusal;
use leno_policy::{DenyReason, NotUnderstood, RouteError};
use leno_proxy::mesh::MOMENT;
use leno_proxy::peers;
use leno_telemetry::metrics::ResponseFlags;

/// Why one connection could not be carried. Cheap to clone, because everybody who waited for the same tunnel gets the
/// same failure.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    /// A failure that any proxy can have with a peer or program.
    #[error(transparent)]
    Peer(#[from] peers::Failure),
    #[error(
        "the connection's original destination can't be read: {0}; did a program connect to the proxy's own port, or are the pod's rules gone?"
    )]
    OriginalDestination(Arc<io::Error>),
    #[error(
        "pod {pod} is not known to the control plane after {waited:?}; is discovery connected (see /healthz/ready on 15021)?"
    )]
    UnknownWorkload { pod: String, waited: Duration },
    #[error(
        "no control plane can be reached, and none has told which policies guard pod {pod}, which started since; nobody is let in until \
         one answers (`leno check` says what is away)"
    )]
    UntoldPolicies { pod: String },
    #[error(
        "no control plane can be reached, so nobody signs a certificate for pod {pod}, and no other pod of its service account {account} \
         is on this node, whose certificate would do; what it opens is refused until one answers (`leno check` says what is away)"
    )]
    UntoldAccount { pod: String, account: String },
    #[error(transparent)]
    NotUnderstood(Arc<NotUnderstood>),
    #[error(transparent)]
    Route(Arc<RouteError>),
    #[error("no way to the destination is known")]
    NoRoute,
    #[error(
        "pod {pod} has {most} sockets in connections already, as many as one may have (LENO_MAX_SOCKETS_PER_POD); who \
         opens so many?"
    )]
    TooManySockets { pod: String, most: usize },
    #[error(
        "{holder} has {taken} of the sockets of pod {pod}, and these run short; it gets no more while it has more than \
         its share of them, {fair} (LENO_MAX_SOCKETS_PER_POD, ulimit -n); what does it need so many for?"
    )]
    TooManyOfSource { holder: String, pod: String, taken: usize, fair: usize },
    #[error(
        "pod {pod} has {taken} sockets in connections, and what is left is kept for its own programs and for peers that \
         have proved who they are; {holder} gets none (LENO_MAX_SOCKETS_PER_POD, ulimit -n); who has so many?"
    )]
    RestIsKept { holder: String, pod: String, taken: usize },
    #[error(
        "{address} has {most} tunnels to this pod already, as many as one peer may have (LENO_MAX_TUNNELS_PER_PEER); what \
         does it need them for?"
    )]
    TooManyTunnels { address: SocketAddr, most: usize },
    #[error(
        "the network {network}/64 has {most} tunnels to this pod already, as many as its addresses may have together, a few \
         times LENO_MAX_TUNNELS_PER_PEER; what does it need them for?"
    )]
    TooManyTunnelsOfNetwork { network: IpAddr, most: usize },
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
    Cut(Denial),
    #[error("the pod left the mesh or the proxy is shutting down")]
    Stopped,
}

/// Why a policy ended a connection that had been let pass.
#[derive(Debug, Clone)]
pub(crate) struct Denial {
    reason: Arc<DenyReason>,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "closed after a policy change: {}", self.reason)
    }
}

impl Denial {
    pub(crate) fn new(reason: DenyReason) -> Self {
        Self { reason: Arc::new(reason) }
    }

    /// The policy that decided, if it was one.
    pub(crate) fn policy(&self) -> Option<&PolicyName> {
        deciding(&self.reason)
    }
}

/// The policy that denied. Where none of several allowed, there is no such one.
fn deciding(reason: &DenyReason) -> Option<&PolicyName> {
    match reason {
        DenyReason::NoAllowMatched { checked, .. } => match checked.as_slice() {
            [only] => Some(only),
            _ => None,
        },
        other => other.policy(),
    }
}

impl Failure {
    /// The policy that denied the connection, if one did.
    pub(crate) fn policy(&self) -> Option<&PolicyName> {
        match self {
            Self::Denied(reason) => deciding(reason),
            Self::Cut(denial) => denial.policy(),
            _ => None,
        }
    }

    /// Whether the connection may be tried on another endpoint; see [`peers::Failure::may_try_another_endpoint`].
    pub(crate) fn may_try_another_endpoint(&self) -> bool {
        matches!(self, Self::Peer(failure) if failure.may_try_another_endpoint())
    }

    /// Whether an endpoint has said that its program can't be reached.
    pub(crate) fn is_unreachable_program(&self) -> bool {
        matches!(self, Self::Peer(peers::Failure::Refused { status: StatusCode::SERVICE_UNAVAILABLE, .. }))
    }

    /// Istio's `response_flags` label.
    pub(crate) fn response_flags(&self) -> ResponseFlags {
        match self {
            Self::Peer(failure) => failure.response_flags(),
            Self::Denied(_) | Self::Cut(_) => ResponseFlags::Deny,
            Self::TooManySockets { .. }
            | Self::TooManyOfSource { .. }
            | Self::RestIsKept { .. }
            | Self::TooManyTunnels { .. }
            | Self::TooManyTunnelsOfNetwork { .. } => ResponseFlags::ResourceLimit,
            Self::UnknownWorkload { .. }
            | Self::UntoldPolicies { .. }
            | Self::UntoldAccount { .. }
            | Self::NotUnderstood(_) => ResponseFlags::Identity,
            _ => ResponseFlags::Connect,
        }
    }

    /// The HTTP status for a peer that sent a CONNECT request.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::NotConnect(_) => StatusCode::BAD_REQUEST,
            Self::Inbound(refusal) => StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::BAD_REQUEST),
            Self::Denied(_) | Self::Cut(_) => StatusCode::UNAUTHORIZED,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}
