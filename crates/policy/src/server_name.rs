//! What is known of the server name that a client of TLS asks for, where its connection passes unread.

use std::fmt;

use crate::Connection;
use crate::http::{Denied, Guard, Subject};

/// The server name that the client of a connection asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ServerName {
    /// Nobody has listened, or it could not be made out.
    #[default]
    Unknown,
    /// `None` if it asks for none, or does not speak TLS.
    Known(Option<String>),
}

impl ServerName {
    /// The connection as policies see it.
    pub fn subject<'a>(&self, connection: Connection<'a>) -> Subject<'a> {
        let subject = Subject::new(connection, None);
        match self {
            Self::Unknown => subject,
            Self::Known(name) => subject.asking_for(name.as_deref()),
        }
    }

    /// The name, if there is one that is known.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Known(name) => name.as_deref(),
            Self::Unknown => None,
        }
    }

    /// Why the connection may not pass, by these policies. The name is part of it where a policy is about names.
    pub fn denied(&self, denied: Denied, guard: &Guard) -> DeniedUnread {
        DeniedUnread { denied, name: guard.needs_server_name().then(|| self.clone()) }
    }
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

/// Why a connection may not pass unread.
#[derive(Debug, Clone, thiserror::Error)]
pub struct DeniedUnread {
    denied: Denied,
    name: Option<ServerName>,
}

impl fmt::Display for DeniedUnread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.denied.fmt(f)?;
        self.name.as_ref().map_or(Ok(()), |name| write!(f, ", and {name}"))
    }
}

#[cfg(test)]
#[path = "server_name_tests.rs"]
mod tests;
