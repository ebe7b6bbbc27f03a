//! What goes wrong between this program and an API server.

use std::time::Duration;

use http::StatusCode;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why the API server did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is not clear which cluster is meant, or how to log in there.
    #[error(
        "can't tell which cluster to use: {0}; run in a pod with a service account, or name a file with --kubeconfig"
    )]
    Configuration(#[source] Source),
    /// It could not be reached.
    #[error("the API server {server} can't be reached: {source}; {}", unreachable_hint(.source))]
    Unreachable {
        /// Its address.
        server: String,
        /// Why.
        #[source]
        source: Source,
    },
    /// It did not answer in time.
    #[error("the API server {server} did not answer within {} s ({asked}); it may be overloaded", .waited.as_secs())]
    Timeout {
        /// Its address.
        server: String,
        /// What it was asked for.
        asked: String,
        /// How long this program waited.
        waited: Duration,
    },
    /// It answered that it won't.
    #[error("the API server answered {} to {asked}: {message}{}", .status.as_u16(), hint(*.status))]
    Refused {
        /// What it was asked for.
        asked: String,
        /// The HTTP status.
        status: StatusCode,
        /// Its words.
        message: String,
        /// How long it wants to be left alone.
        retry_after: Option<Duration>,
    },
    /// A pod could not be asked through it.
    #[error("{asked}: {reason}; is the pod well (`kubectl describe pod`)?")]
    Pod {
        /// What the pod was asked for.
        asked: String,
        /// Why there is no answer.
        reason: String,
    },
    /// It answered something that this program can't read.
    #[error("the API server's answer to {asked} can't be read: {reason}; is {server} a Kubernetes API server?")]
    Malformed {
        /// Its address.
        server: String,
        /// What it was asked for.
        asked: String,
        /// Why.
        reason: String,
    },
}

fn unreachable_hint(source: &Source) -> &'static str {
    if source.to_string().contains("certificate") {
        return "the kubeconfig's certificate-authority is not this server's, its client certificate is not known there, or \
                another program answers at that address";
    }
    "is it running, and does the network let this program through?"
}

fn hint(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "; is this program's token or certificate still valid?",
        StatusCode::FORBIDDEN => {
            "; whoever asks needs that right: a person gets it from a cluster administrator, a part of Leno by `leno upgrade`"
        }
        StatusCode::TOO_MANY_REQUESTS => "; this resolves itself",
        _ => "",
    }
}

impl Error {
    /// Whether the same request can succeed later. A missing permission counts, because somebody may grant it.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Configuration(_) => false,
            Self::Unreachable { .. } | Self::Timeout { .. } | Self::Malformed { .. } | Self::Pod { .. } => true,
            Self::Refused { status, .. } => {
                status.is_server_error()
                    || matches!(
                        *status,
                        StatusCode::UNAUTHORIZED
                            | StatusCode::FORBIDDEN
                            | StatusCode::TOO_MANY_REQUESTS
                            | StatusCode::CONFLICT
                            | StatusCode::GONE
                    )
            }
        }
    }

    /// The HTTP status, if the API server answered.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// How long the API server wants to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether the API server has no such object, or no such kind of objects.
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(StatusCode::NOT_FOUND)
    }

    /// Whether the API server no longer knows the version that was asked for.
    pub fn is_expired(&self) -> bool {
        self.status() == Some(StatusCode::GONE)
    }

    /// Whether somebody else was first.
    pub fn is_conflict(&self) -> bool {
        self.status() == Some(StatusCode::CONFLICT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_no_matter_of_the_network() {
        let error =
            |source: &str| Error::Unreachable { server: "https://c".to_owned(), source: source.into() }.to_string();
        assert!(error("invalid peer certificate: UnknownIssuer").contains("certificate-authority"));
        assert!(error("Connection refused (os error 111)").ends_with("let this program through?"));
    }
}
