//! The messages between commands and the supervisor on the control socket: one JSON object per line. For `exec`,
//! descriptors come with the request.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::stage::dial::NodePort;
use crate::stage::listing::Listing;
use crate::stage::plane::Explained;
use crate::stage::proxy::Upgraded;
use leno_policy::explain_request::Asked;

/// Longest line. The listing of a full stage is a few hundred kilobytes.
pub(crate) const MAX_LINE: usize = 8 * 1024 * 1024;

/// A command's request; all but `Exec`, `Signal` and `Watch` have one answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    Ps,
    /// The listing now and after each change, until the connection is closed.
    Watch,
    Scale {
        namespace: String,
        name: String,
        replicas: u32,
    },
    Logs {
        namespace: String,
        name: String,
        container: Option<String>,
    },
    /// Standard input, output and error come beside the line.
    Exec {
        namespace: String,
        name: String,
        container: Option<String>,
        argv: Vec<String>,
        /// Variables on top of the container's, such as the caller's `TERM`.
        env: Vec<(String, String)>,
    },
    /// For what `Exec` started on the same connection.
    Signal(i32),
    /// Makes this connection one to a port of a node's proxy or of the control plane, once it is answered.
    Dial {
        node: String,
        port: NodePort,
    },
    /// Runs another program as the proxy of a node.
    Upgrade {
        node: String,
        program: PathBuf,
    },
    Explain {
        source: String,
        destination: String,
        asked: Option<Asked>,
    },
    Down,
}

/// The supervisor's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Listing(Box<Listing>),
    Done,
    /// How many pods the Deployment had.
    Scaled(u32),
    Logs(Vec<LogFiles>),
    /// `Exec` runs.
    Started,
    /// The program started by `Exec` has ended, with this exit code.
    Exited(i32),
    /// `Exec` could not start its program.
    NotStarted {
        /// The exit code a shell would give.
        code: i32,
        reason: String,
    },
    Explained(Explained),
    Upgraded(Upgraded),
    /// From here on this is the connection that `Dial` asked for.
    Connected,
    Error(String),
}

/// The log file of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogFiles {
    /// The container, if lines of several must be told apart.
    pub container: Option<String>,
    /// Older part; may not exist.
    pub previous: PathBuf,
    /// Newer part, which grows.
    pub current: PathBuf,
}
