//! How a node agent tells a node proxy which pods to serve: Istio's protocol between `istio-cni` and ztunnel.
//!
//! The agent listens on a unix socket that keeps packet boundaries, one protobuf message per packet. The proxy says hello, the
//! agent names every pod of the node with a descriptor of its network namespace, says that this was all, and from then on
//! reports pods as they come and go. The proxy answers each request and never speaks otherwise. [`Agent`] and [`Client`] are
//! the two ends; each works with Istio's other end.

mod agent;
mod client;
mod wire;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use agent::Agent;
pub use client::{Client, ClientStatus, PodHandler};
pub use wire::{Request, decode_hello, decode_request, decode_response};

/// The socket of Istio's agent.
pub const DEFAULT_SOCKET: &str = "/var/run/ztunnel/ztunnel.sock";

/// How long either end waits for the other's answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest message: Istio's ends read into a buffer of this many bytes and treat more as an error.
pub const MESSAGE_MAX: usize = 1024;

/// Which pod a network namespace belongs to, and with it whose identity its connections have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodInfo {
    /// Kubernetes' unique id of the pod; a restarted pod with the same name has another.
    pub uid: String,
    /// The pod's name.
    pub name: String,
    /// Its Kubernetes namespace.
    pub namespace: String,
    /// The service account it runs as.
    pub service_account: String,
}

/// Errors between agent and proxy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The agent's socket could not be set up.
    #[error("listening for node proxies on {path}: {source}{}", hint(.source))]
    Listen {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No proxy took the pod over in time.
    #[error(
        "no node proxy is connected after {waited:?}: check that the node proxy is running on this node and uses the same \
         socket; the pod will be handed over as soon as one connects"
    )]
    NoProxy {
        /// How long was waited.
        waited: Duration,
    },
    /// The proxy could not serve the pod.
    #[error("the node proxy refused pod {uid}: {reason}")]
    Refused {
        /// The pod.
        uid: String,
        /// The proxy's words.
        reason: String,
    },
    /// The other end broke the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The socket failed.
    #[error("talking over the agent's socket: {0}")]
    Io(#[from] io::Error),
    /// The other end did not answer in time.
    #[error("no answer within {0:?}: the other end hangs")]
    Timeout(Duration),
    /// The other end hung up.
    #[error("the other end closed the connection")]
    Closed,
}

impl Error {
    /// Whether the same call may succeed later without anybody changing the configuration.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Listen { source, .. } => source.kind() == io::ErrorKind::Interrupted,
            Self::Protocol(error) => !matches!(error, ProtocolError::TooLong(_)),
            Self::NoProxy { .. } | Self::Refused { .. } | Self::Io(_) | Self::Timeout(_) | Self::Closed => true,
        }
    }
}

/// A message that has no place in the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// It isn't the expected protobuf message.
    #[error("undecodable {what}: {reason}")]
    Undecodable {
        /// The expected message.
        what: &'static str,
        /// The decoder's words.
        reason: String,
    },
    /// It names no known content.
    #[error("empty {0}, or of a kind that this version doesn't know")]
    Empty(&'static str),
    /// A field that is needed is missing.
    #[error("{message} without {field}")]
    Missing {
        /// The message.
        message: &'static str,
        /// The missing field.
        field: &'static str,
    },
    /// The other end speaks another version.
    #[error("unsupported protocol version {0}: upgrade the older of agent and proxy")]
    Version(i32),
    /// The message came with the wrong number of descriptors.
    #[error("{message} came with {found} file descriptors instead of {expected}")]
    Descriptors {
        /// The message.
        message: &'static str,
        /// How many it must have.
        expected: usize,
        /// How many it had.
        found: usize,
    },
    /// The message doesn't fit the other end's buffer.
    #[error("a message of {0} bytes exceeds the protocol's limit of {MESSAGE_MAX}")]
    TooLong(usize),
    /// The message came at the wrong time.
    #[error("{0} is not allowed now")]
    Unexpected(&'static str),
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => " (another agent is listening there; stop it first)",
        io::ErrorKind::PermissionDenied => " (run as root, or choose a socket path that this user may create)",
        io::ErrorKind::NotFound => " (create the directory first)",
        _ => "",
    }
}

#[cfg(test)]
#[path = "zds_tests.rs"]
mod tests;
