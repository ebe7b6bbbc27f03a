//! Errors of the stage, in words that an operator can act on.

use std::io;
use std::path::PathBuf;

/// Why the stage could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A manifest is wrong. The text starts with `file:line:column` where a position is known.
    #[error("{0}")]
    Manifest(String),
    /// Another supervisor holds the lock of this stage.
    #[error("stage {name:?} is already running (pid {pid}); stop it with `leno down{flag}`, or choose another --name",
        flag = name_flag(name))]
    AlreadyRunning {
        /// Name of the stage.
        name: String,
        /// Process id of its supervisor, or 0 if the lock file doesn't say.
        pid: i32,
    },
    /// No supervisor answers for this stage.
    #[error("stage {name:?} is not running; start it with `leno up -f DIR{flag}`{or}", flag = name_flag(name), or = choose(others))]
    NotRunning {
        /// Name of the stage.
        name: String,
        /// Names of other stages that run or have left something.
        others: Vec<String>,
    },
    /// The supervisor of this stage died, and what it made is left.
    #[error("the supervisor of stage {name:?} died; `leno down{flag}` removes what it left, then `leno up` starts it again",
        flag = name_flag(name))]
    Died {
        /// Name of the stage.
        name: String,
    },
    /// The run directory may hold what somebody else has put there.
    #[error("{} {problem}, so nothing in it can be trusted; {remedy}", .path.display())]
    RunDirectory {
        /// The directory.
        path: PathBuf,
        /// The problem.
        problem: String,
        /// What the operator should do.
        remedy: String,
    },
    /// The kernel denied a namespace.
    #[error("{0}")]
    Privilege(String),
    /// The command line makes no sense, whatever runs on this machine.
    #[error("{0}")]
    Usage(String),
    /// A name given by the user fits nothing.
    #[error("{0}")]
    NotFound(String),
    /// The supervisor refused a request; its own words.
    #[error("{0}")]
    Refused(String),
    /// A program could not be started in a pod.
    #[error("{reason}")]
    NotStarted {
        /// The exit code a shell would give: 127 if there is no such program, 126 if it can't be run.
        code: i32,
        /// Why.
        reason: String,
    },
    /// The stage did not reach the expected state in time.
    #[error("{0}")]
    Timeout(String),
    /// A signal ended it early. Nothing is left behind.
    #[error("interrupted")]
    Interrupted,
    /// An operation of the kernel failed.
    #[error("{what}: {source}")]
    Io {
        /// The attempted operation, with the object's name.
        what: String,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// A network namespace, link or rule could not be made.
    #[error("{what}: {source}")]
    Network {
        /// The attempted operation, with the object's name.
        what: String,
        /// The reason.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The control plane could not be started or refused an object.
    #[error("{what}: {source}")]
    Control {
        /// The attempted operation.
        what: String,
        /// The reason.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The other way out where there are other stages.
fn choose(others: &[String]) -> String {
    match others {
        [] => String::new(),
        others => format!(", or choose another with --name: there is {}", others.join(", ")),
    }
}

/// The option that makes a command refer to this stage.
pub(crate) fn name_flag(name: &str) -> String {
    if name == crate::names::DEFAULT_STAGE { String::new() } else { format!(" --name {name}") }
}

impl From<leno_capture::Stopped> for Error {
    fn from(_: leno_capture::Stopped) -> Self {
        Self::Refused("the stage is shutting down".to_owned())
    }
}

impl Error {
    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Timeout(_) => true,
            Self::Io { source, .. } => {
                matches!(
                    source.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::TimedOut
                )
            }
            _ => false,
        }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    pub(crate) fn network<E>(what: impl Into<String>) -> impl FnOnce(E) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let what = what.into();
        move |source| Self::Network { what, source: source.into() }
    }

    pub(crate) fn control<E>(what: impl Into<String>) -> impl FnOnce(E) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let what = what.into();
        move |source| Self::Control { what, source: source.into() }
    }

    pub(crate) fn errno(what: impl Into<String>) -> impl FnOnce(nix::errno::Errno) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source: source.into() }
    }
}
