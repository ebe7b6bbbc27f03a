//! What is known of the server name that a client of TLS asks for.

use std::fmt;

/// The server name that the client of a connection asks for.
#[derive(Debug, Clone, Default)]
pub(crate) enum ServerName {
    /// Nobody has listened, or it could not be made out.
    #[default]
    Unknown,
    /// `None` if it asks for none, or does not speak TLS.
    Known(Option<String>),
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("the server name that the client asks for is not known"),
            Self::Known(None) => f.write_str("the client asks for no server name"),
            // Of a client's making, so with its quotes and line breaks escaped.
            Self::Known(Some(name)) => write!(f, "the client asks for server name {name:?}"),
        }
    }
}
