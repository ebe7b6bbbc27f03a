//! Errors of the lab, in words that an operator can act on.

use std::io;
use std::path::PathBuf;

/// Why a measurement could not be made. A failed measurement is never reported as zero.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name or number on the command line is not valid.
    #[error("{0}")]
    Usage(String),
    /// The description of a load or a server can't be read.
    #[error("the description of the {what} is not valid JSON of this version: {source}")]
    Spec {
        /// Whether it is a load or a server.
        what: &'static str,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The attempted operation.
        what: String,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The stage could not be set up.
    #[error("subject {subject}: {source}{}", quoted(log))]
    Stage {
        /// The subject whose stage it is.
        subject: String,
        /// Why.
        #[source]
        source: Box<leno_local::Error>,
        /// End of the log of the subject's programs, empty if there is none.
        log: String,
    },
    /// This user may not make namespaces.
    #[error("{0}")]
    Privilege(#[source] Box<leno_local::Error>),
    /// Another lab is running on this machine.
    #[error(
        "another lab is at work on this machine{}, and both would measure each other: wait until it has ended, or end it{}",
        with_pid(*pid),
        pid.map(|pid| format!(" with `kill {pid}`")).unwrap_or_default()
    )]
    AnotherLab {
        /// Its process, if it is visible from here.
        pid: Option<i32>,
    },
    /// There is a stage with the name that the lab needs.
    #[error(
        "a stage named {name:?} runs{}, and the lab needs this name for its own: it is another lab, or somebody's \
         `leno up --name {name}`; wait until it has ended, or end it with `leno down --name {name}`",
        with_pid(*pid)
    )]
    StageTaken {
        /// Name of the stage.
        name: String,
        /// Its supervisor, if it is known.
        pid: Option<i32>,
    },
    /// What a killed lab left could not be removed.
    #[error("cannot make room for the stage {name:?}, which an earlier lab may have left: {source}")]
    Leftovers {
        /// Name of the stage.
        name: String,
        /// Why.
        #[source]
        source: Box<leno_local::Error>,
    },
    /// A subject does not do its work.
    #[error("subject {subject}: {reason}{}", quoted(log))]
    Subject {
        /// The subject.
        subject: String,
        /// What it fails to do, and what to look at.
        reason: String,
        /// End of the log of the subject's programs, empty if there is none.
        log: String,
    },
    /// A load generator or server of the lab failed.
    #[error("the load of step {step} failed: {reason}")]
    Load {
        /// The step of the scenario.
        step: String,
        /// The generator's message.
        reason: String,
    },
    /// A cluster does not let the lab do something.
    #[error("{what}: {source}")]
    Cluster {
        /// The attempted operation.
        what: String,
        /// Why.
        #[source]
        source: Box<leno_kubernetes::Error>,
    },
    /// A cluster is not fit for the lab, or does not do what it should.
    #[error("{0}")]
    Unfit(String),
    /// A report could not be written.
    #[error("cannot write the report {}: {source}; choose another place for it", path.display())]
    Report {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file is not a report.
    #[error(
        "{} is no report of `leno lab run`, neither its JSON (-o json) nor its page (--report): {source}",
        path.display()
    )]
    NoReport {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The operator ended the run.
    #[error("interrupted; nothing is left behind, and nothing is reported of a run that is not complete")]
    Interrupted,
}

impl Error {
    /// Whether the command line itself is wrong.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Usage(_))
    }

    /// Whether the same call may succeed later without any change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Io { source, .. } => matches!(source.kind(), io::ErrorKind::Interrupted | io::ErrorKind::TimedOut),
            Self::Stage { source, .. } | Self::Leftovers { source, .. } => source.is_retryable(),
            Self::Cluster { source, .. } => source.is_retryable(),
            Self::Load { .. } | Self::AnotherLab { .. } | Self::StageTaken { .. } => true,
            _ => false,
        }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    pub(crate) fn cluster(what: impl Into<String>) -> impl FnOnce(leno_kubernetes::Error) -> Self {
        let what = what.into();
        move |source| Self::Cluster { what, source: Box::new(source) }
    }

    pub(crate) fn errno(what: impl Into<String>) -> impl FnOnce(nix::errno::Errno) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source: source.into() }
    }
}

fn with_pid(pid: Option<i32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

fn quoted(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("\nits log ends with:\n{log}") }
}
