//! Errors between a proxy and its control plane.

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use leno_tls::HandshakeError;

/// Errors of the channel to a control plane, and of its server side.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address can't be used.
    #[error("the control plane's address {address:?} is not usable: {reason}; expected https://host:port")]
    Address {
        /// The configured address.
        address: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A header has an invalid name or value.
    #[error("the header {name:?} for the control plane is not valid; check the configured headers")]
    Header {
        /// Its name.
        name: String,
    },
    /// The connection failed.
    #[error("cannot connect to the control plane at {address}: {source}; is it running, and may this proxy reach it?")]
    Connect {
        /// The address dialled.
        address: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The control plane did not answer in time.
    #[error("the control plane at {address} did not answer within {} s; is the address right?", .after.as_secs())]
    ConnectTimeout {
        /// The address dialled.
        address: String,
        /// The limit.
        after: Duration,
    },
    /// The TLS handshake failed.
    #[error("TLS with the control plane at {address} failed: {source}")]
    Tls {
        /// The address dialled.
        address: String,
        /// Why it failed.
        #[source]
        source: HandshakeError,
    },
    /// The token that identifies this proxy can't be read.
    #[error("cannot read the token for the control plane from {}: {source}; is the token volume mounted?", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The HTTP/2 connection failed.
    #[error("the connection to the control plane at {address} failed: {reason}; does a control plane listen there?")]
    Transport {
        /// The address dialled.
        address: String,
        /// Why it failed.
        reason: String,
    },
    /// The control plane refused the request.
    #[error("the control plane refused: {message} (gRPC {code:?})")]
    Status {
        /// gRPC status.
        code: tonic::Code,
        /// The control plane's message.
        message: String,
    },
}

impl Error {
    /// Whether the same call can succeed later without a change of configuration.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Address { .. } | Self::Header { .. } => false,
            Self::Tls { source, .. } => source.is_retryable(),
            Self::Status { code, .. } => !matches!(
                code,
                tonic::Code::Unauthenticated
                    | tonic::Code::PermissionDenied
                    | tonic::Code::InvalidArgument
                    | tonic::Code::Unimplemented
            ),
            _ => true,
        }
    }
}

/// An error with its causes, for libraries whose errors don't print them. A cause whose text the error already ends
/// with is not repeated.
pub(crate) fn with_causes(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = cause.source();
    }
    text
}

/// The first cause of the given type.
pub(crate) fn cause_of<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}
