//! What is told? Log, metrics, access log, spans, admin endpoint, readiness.
//!
//! Nothing here makes the data path wait. A metric update is one atomic addition, and an access log line is dropped
//! (and counted) rather than waited for.

pub mod accepting;
pub mod access_log;
pub mod admin;
mod descriptors;
mod gate;
mod host;
pub mod logging;
mod memory_limit;
pub mod metrics;
pub mod observe;
mod readiness;
pub mod spans;

pub use access_log::AccessLog;
pub use descriptors::{DescriptorLimit, descriptor_limit, raise_descriptor_limit};
pub use gate::Gate;
pub use host::one_host;
pub use memory_limit::MemoryGroup;
pub use metrics::Metrics;
pub use readiness::{Readiness, ReadyTask};

/// Why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log filter can't be understood.
    #[error(
        "{filter:?} is no log filter: {reason}; expected a level (error, warn, info, debug, trace, off) or a list such as info,leno_node=debug"
    )]
    Filter {
        /// The filter.
        filter: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Logging was set up before.
    #[error("logging is already set up in this process")]
    AlreadyInitialised,
    /// The log is gone: the process is ending.
    #[error("the log can't be changed any more; the process is ending")]
    LogGone,
    /// A thread could not be started.
    #[error("the access log's thread can't be started: {0}; is the process limit (ulimit -u, pids cgroup) reached?")]
    Thread(#[source] std::io::Error),
}

impl Error {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Thread(_))
    }
}
