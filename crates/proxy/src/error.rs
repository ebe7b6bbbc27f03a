//! Errors of a proxy as a whole. Errors of one connection belong to the part that carries it.

use std::io;
use std::net::SocketAddr;

/// Why a proxy can't start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A thread or runtime could not be created.
    #[error("can't start a thread or runtime: {0}; check the process and memory limits (ulimit -u, cgroup)")]
    Runtime(#[source] io::Error),
    /// One of the proxy's own ports is in use.
    #[error("can't listen on {address} for {purpose}: {source}; is another proxy running in this network namespace?")]
    Listen {
        /// The purpose of the port.
        purpose: &'static str,
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A setting has an unusable value.
    #[error("{setting}={value:?} can't be used: {reason}")]
    Setting {
        /// Name of the environment variable.
        setting: &'static str,
        /// Its value.
        value: String,
        /// Why it can't be used.
        reason: String,
    },
    /// The signal handlers could not be installed.
    #[error("can't handle signals: {0}")]
    Signals(#[source] io::Error),
    /// The control plane's settings can't be used.
    #[error("control plane: {0}")]
    ControlPlane(String),
}

impl Error {
    /// Whether starting again without any change can help.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Runtime(_) | Self::Listen { .. })
    }
}
