//! Rules broken by a peer that the library can't see.

use h2::Reason;

use crate::Error;

/// The peer broke a rule. The connection ends, and the peer is sent `code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) code: Reason,
    what: &'static str,
}

impl Violation {
    pub(super) fn new(code: Reason, what: &'static str) -> Self {
        Self { code, what }
    }

    pub(crate) fn error(self) -> Error {
        Error::Protocol(self.what.into())
    }
}
