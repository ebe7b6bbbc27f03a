//! What ends an established connection, and what its peer is told.

use std::io;

use crate::alert::{Alert, FATAL, PeerAlert, WARNING};

/// The rule that the peer broke, or what failed here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("the peer sent bytes that are not a TLS record")]
    NoRecord,
    #[error("the peer sent a record whose header names another version than TLS 1.3 uses")]
    Version,
    #[error("the peer sent an unencrypted record without content")]
    Empty,
    #[error("the peer sent a record longer than TLS allows")]
    SealedTooLong,
    #[error("the peer sent a record with more content than TLS allows")]
    PlainTooLong,
    #[error(
        "a record failed authentication: the peer did not encrypt it with the agreed key, or it was changed on the way"
    )]
    Forged,
    #[error("the peer sent a record without a content type")]
    NoType,
    #[error("the peer sent a record of a content type that TLS does not have")]
    UnknownType,
    #[error("the peer sent an encrypted change_cipher_spec")]
    SealedCipherChange,
    #[error("the peer sent a change_cipher_spec after the handshake")]
    CipherChange,
    #[error("the peer sent a malformed change_cipher_spec")]
    MalformedCipherChange,
    #[error("the peer sent a handshake record without content")]
    EmptyHandshake,
    #[error("the peer sent a handshake message longer than TLS allows")]
    MessageTooLong,
    /// The message's type (RFC 8446 §4).
    #[error("the peer sent a handshake message of type {0} after the handshake")]
    UnexpectedMessage(u8),
    #[error("the peer sent a record of another type in the middle of a handshake message")]
    Interleaved,
    #[error("the peer sent a key update of the wrong length")]
    KeyUpdateLength,
    #[error("the peer sent a key update with an unknown request")]
    KeyUpdateRequest,
    #[error("the peer sent a handshake message after a key update, under the old key")]
    KeyUpdateNotLast,
    #[error("the peer sent too many key updates without data in between")]
    TooManyKeyUpdates,
    #[error("the peer sent too many records without content")]
    TooManyEmpty,
    #[error("the peer sent too many warnings")]
    TooManyWarnings,
    #[error("the peer sent an alert of {0} bytes; an alert has two")]
    AlertLength(usize),
    /// An alert that ends the connection, or that must not have its level.
    #[error("{alert}")]
    AlertReceived { level: u8, alert: PeerAlert },
    /// The reason is the TLS library's.
    #[error("the peer sent a malformed session ticket: {reason}")]
    Ticket { reason: Box<str>, alert: Alert },
    #[error("a record could not be encrypted")]
    Sealing,
    #[error("the next key could not be derived: {0}")]
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
