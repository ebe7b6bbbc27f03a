//! What can go wrong with a proxy as a whole. What goes wrong with one connection is the business of who carries it.

use std::io;
use std::net::SocketAddr;

/// Why a proxy can't start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A thread or runtime could not be made.
    #[error("can't start a thread or runtime: {0}; check the process and memory limits (ulimit -u, cgroup)")]
    Runtime(#[source] io::Error),
    /// An own endpoint's port is not free.
    #[error("can't listen on {address} for {purpose}: {source}; is another proxy running in this network namespace?")]
    Listen {
        /// What for.
        purpose: &'static str,
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A setting has no usable value.
    #[error("{setting}={value:?} can't be used: {reason}")]
    Setting {
        /// Name of the environment variable.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The signal handlers could not be installed.
    #[error("can't handle signals: {0}")]
    Signals(#[source] io::Error),
    /// The control plane can't be set up as given.
    #[error("control plane: {0}")]
    ControlPlane(String),
}

impl Error {
    /// Whether starting again without a change can help.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Runtime(_) | Self::Listen { .. })
    }
}
