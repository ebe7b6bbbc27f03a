//! Why the agent could not start.

use std::io;
use std::path::PathBuf;

/// Why the agent could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The plugin's socket.
    #[error("can't listen for the CNI plugin on {}: {source}; is another agent running on this node?", .path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The node proxy's socket.
    #[error(transparent)]
    Proxies(#[from] leno_capture::zds::Error),
    /// The node's namespace.
    #[error("can't examine the node's network: {0}")]
    Node(#[from] leno_capture::Error),
    /// What was to be removed.
    #[error("can't remove the CNI plugin: {0}")]
    Plugin(#[from] crate::install::Trouble),
    /// A directory of the agent's.
    #[error("can't make the directory {}: {source}; mount it from the node, read-write", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Whether the same call may succeed later without anybody changing the configuration.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Socket { source, .. } => source.kind() == io::ErrorKind::AddrInUse,
            Self::Proxies(error) => error.is_retryable(),
            Self::Node(error) => error.is_retryable(),
            Self::Plugin(trouble) => trouble.is_retryable(),
            Self::Directory { .. } => false,
        }
    }
}
