//! The client's state, for readiness, metrics and the configuration dump.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

/// The state of the connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ConnectionState {
    /// The client is connecting.
    #[default]
    Connecting,
    /// The control plane answered on this connection.
    Connected {
        /// Since when.
        since: SystemTime,
    },
    /// The client waits before its next attempt.
    Disconnected {
        /// Why the last attempt ended.
        reason: String,
        /// Whether the next attempt can help without a change of configuration.
        retryable: bool,
        /// Attempts in a row that ended like this.
        attempts: u32,
    },
}

/// The client's state, for readiness and the configuration dump.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// The connection.
    pub connection: ConnectionState,
    /// Number of resources held, per type that was answered at least once.
    pub synced: BTreeMap<&'static str, usize>,
    /// The types that it subscribes to.
    pub awaited: Vec<&'static str>,
    /// Responses in which at least one resource was refused.
    pub nacks: u64,
}

impl Status {
    /// Whether all subscribed types were answered at least once.
    pub fn is_synced(&self) -> bool {
        !self.awaited.is_empty() && self.awaited.iter().all(|type_url| self.synced.contains_key(type_url))
    }
}

/// Is told what the client does, for metrics.
pub trait Observer: Send + Sync + 'static {
    /// A response arrived: its size in bytes and the resources in it.
    fn message(&self, type_url: &str, bytes: usize, resources: usize) {
        let _ = (type_url, bytes, resources);
    }

    /// A connection ended or never came to be.
    fn terminated(&self, reason: Termination) {
        let _ = reason;
    }
}

/// Why a connection ended; the words are those of ztunnel's
/// `istio_xds_connection_terminations_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Termination {
    /// No connection came to be.
    ConnectionError,
    /// The control plane ended the stream with an error.
    GrpcError,
    /// The control plane went away or restarts.
    Reconnect,
    /// The control plane ended the stream in good order.
    Complete,
}

impl Termination {
    /// The metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConnectionError => "connection_error",
            Self::GrpcError => "grpc_error",
            Self::Reconnect => "reconnect",
            Self::Complete => "complete",
        }
    }
}

impl fmt::Display for Termination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
