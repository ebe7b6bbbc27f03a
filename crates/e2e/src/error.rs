//! What can go wrong between a test and its cluster.

/// Why something could not be done on the cluster.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program could not be started.
    #[error("{program} can't be started: {source}; is it installed, and on the PATH?")]
    Start {
        /// The program as it was called.
        program: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// kubectl refused or was refused.
    #[error("kubectl {arguments}: {said}")]
    Kubectl {
        /// What it was called with.
        arguments: String,
        /// Its standard error.
        said: String,
    },
    /// `cargo xtask cluster` failed.
    #[error("cargo xtask cluster {arguments}: {said}")]
    Cluster {
        /// What it was called with.
        arguments: String,
        /// Its standard error.
        said: String,
    },
    /// `leno` failed.
    #[error("leno {arguments} ended with {code}: {said}")]
    Leno {
        /// What it was called with.
        arguments: String,
        /// Its exit status.
        code: i32,
        /// All that it printed.
        said: String,
    },
    /// kubectl or leno printed something else than it was asked for.
    #[error("{arguments} did not print JSON: {source}")]
    Json {
        /// What it was called with.
        arguments: String,
        /// Where it went wrong.
        source: serde_json::Error,
    },
    /// `LENO_KUBECONFIG` names a cluster that does not answer.
    #[error("the cluster of LENO_KUBECONFIG={kubeconfig} does not answer: {said}")]
    Silent {
        /// The file.
        kubeconfig: String,
        /// What kubectl said.
        said: String,
    },
    /// What has passed the nodes' links was not found in a capture of them.
    #[error("a capture has {word} on {seen} lines, not on {least}: did it pass these nodes' links at all?")]
    NotCaptured {
        /// What was looked for.
        word: String,
        /// On how many lines it was found.
        seen: usize,
        /// On how many it had to be.
        least: usize,
    },
    /// A capture was searched, and what came back is no number.
    #[error("the capture on {node} can't be searched: {said:?}")]
    NoCount {
        /// Where.
        node: String,
        /// What came back.
        said: String,
    },
}

impl Error {
    /// Whether trying again can help: the cluster may have been busy.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Kubectl { .. })
    }
}
