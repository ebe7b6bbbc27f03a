//! What can go wrong on the way from values to objects.

/// Why there are no objects.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of values can't be read as one.
    #[error("{origin} is not a file of values: {reason}")]
    NotValues {
        /// Where the values are from.
        origin: String,
        /// What is wrong, with its place.
        reason: String,
    },
    /// A value that is wrong in itself, or that nothing takes.
    #[error("{path}: {reason}")]
    Value {
        /// The value's name, as `--set` takes it.
        path: String,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// An assignment that is not `name=value`.
    #[error("{text:?} sets nothing; write for example --set control.replicas=2")]
    Assignment {
        /// What was written.
        text: String,
    },
    /// The chart that is part of this program is broken.
    #[error("{file} of the chart can't be rendered: {reason}; this is a defect of this program, please report it")]
    Chart {
        /// The file, below the chart's directory.
        file: &'static str,
        /// What is wrong.
        reason: String,
    },
}

impl Error {
    /// Whether the same request may succeed later: never, as nothing here depends on a cluster.
    pub fn is_retryable(&self) -> bool {
        false
    }
}
