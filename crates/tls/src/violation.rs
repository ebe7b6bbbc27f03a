//! What ends an established connection, and what its peer is told.

use std::io;

use crate::alert::{Alert, FATAL, PeerAlert, WARNING};

/// The rule that the peer broke, or what failed here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("what came is no TLS record")]
    NoRecord,
    #[error("a record came of another version than TLS 1.3 writes there")]
    Version,
    #[error("a record came in plain and without content")]
    Empty,
    #[error("a record came that is longer than any may be")]
    SealedTooLong,
    #[error("a record came with more content than any may have")]
    PlainTooLong,
    #[error("a record came that its sender did not seal, or that was changed on the way")]
    Forged,
    #[error("a record came without a content type")]
    NoType,
    #[error("a record came of a content type that TLS does not have")]
    UnknownType,
    #[error("a sealed change of cipher spec came")]
    SealedCipherChange,
    #[error("a change of cipher spec came after the handshake")]
    CipherChange,
    #[error("a malformed change of cipher spec came")]
    MalformedCipherChange,
    #[error("a handshake record came without content")]
    EmptyHandshake,
    #[error("a handshake message came that is longer than any may be")]
    MessageTooLong,
    /// The message's type (RFC 8446 §4).
    #[error("a handshake message of type {0} came after the handshake")]
    UnexpectedMessage(u8),
    #[error("a record of another kind came amid a handshake message")]
    Interleaved,
    #[error("a key update came of the wrong length")]
    KeyUpdateLength,
    #[error("a key update came that asks for something unknown")]
    KeyUpdateRequest,
    #[error("a handshake message came behind a key update, under the key that it ends")]
    KeyUpdateNotLast,
    #[error("too many key updates came without data in between")]
    TooManyKeyUpdates,
    #[error("too many records came without content")]
    TooManyEmpty,
    #[error("too many warnings came")]
    TooManyWarnings,
    #[error("an alert came that has {0} bytes")]
    AlertLength(usize),
    /// An alert that ends the connection, or that must not have its level.
    #[error("{alert}")]
    AlertReceived { level: u8, alert: PeerAlert },
    /// The reason is the TLS library's.
    #[error("a malformed session ticket came: {reason}")]
    Ticket { reason: Box<str>, alert: Alert },
    #[error("a record could not be sealed")]
    Sealing,
    #[error("no next key: {0}")]
    NoKey(Box<str>),
}

impl Violation {
    /// The alert for the peer. A peer that floods gets none, as in the TLS library; nor does one that has just ended
    /// the connection.
    pub(crate) fn alert(&self) -> Option<Alert> {
        match self {
            Self::NoRecord
            | Self::Version
            | Self::Empty
            | Self::MalformedCipherChange
            | Self::MessageTooLong
            | Self::KeyUpdateLength
            | Self::AlertLength(_)
            | Self::AlertReceived { level: WARNING, .. } => Some(Alert::DECODE_ERROR),
            Self::SealedTooLong | Self::PlainTooLong => Some(Alert::RECORD_OVERFLOW),
            Self::Forged => Some(Alert::BAD_RECORD_MAC),
            Self::NoType
            | Self::UnknownType
            | Self::SealedCipherChange
            | Self::CipherChange
            | Self::EmptyHandshake
            | Self::UnexpectedMessage(_)
            | Self::Interleaved
            | Self::KeyUpdateNotLast => Some(Alert::UNEXPECTED_MESSAGE),
            Self::TooManyKeyUpdates
            | Self::TooManyEmpty
            | Self::TooManyWarnings
            | Self::AlertReceived { level: FATAL, .. } => None,
            Self::KeyUpdateRequest | Self::AlertReceived { .. } => Some(Alert::ILLEGAL_PARAMETER),
            Self::Ticket { alert, .. } => Some(*alert),
            Self::Sealing | Self::NoKey(_) => Some(Alert::INTERNAL_ERROR),
        }
    }
}

/// As the error of a read or write. A peer's alert stays itself, for [`PeerAlert::of`].
impl From<Violation> for io::Error {
    fn from(violation: Violation) -> Self {
        match violation {
            Violation::AlertReceived { alert, .. } => Self::new(io::ErrorKind::ConnectionAborted, alert),
            Violation::Sealing | Violation::NoKey(_) => Self::other(violation),
            violation => Self::new(io::ErrorKind::InvalidData, violation),
        }
    }
}
