//! The keys of an established connection, and the messages that change them (RFC 8446 §4.6).

use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{AlertDescription, ExtractedSecrets, HandshakeType, InvalidMessage, PeerMisbehaved};

use crate::record::{Cipher, KEY_LIMIT, Violation};

/// Handshake messages after the handshake (RFC 8446 §4).
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// A KeyUpdate that asks for none in return.
pub(crate) const KEY_UPDATE_MESSAGE: [u8; 5] = [KEY_UPDATE, 0, 0, 1, 0];

/// KeyUpdates a peer may ask for without sending data; each costs us a key derivation and a
/// record, and it nearly nothing.
const KEY_UPDATE_REQUESTS: u8 = 32;

/// Bytes of an unfinished handshake message. Tickets are the only long ones, and hold a few
/// hundred.
const MESSAGE_LIMIT: usize = 64 << 10;

/// Records before the limit at which a key is replaced: more than one write seals.
const MARGIN: u64 = 64;

/// Both directions' keys, and what makes the next ones.
pub(crate) struct Keys {
    pub(crate) sealing: Cipher,
    pub(crate) opening: Cipher,
    source: KeySource,
    /// The peer asked for new keys of ours.
    update_owed: bool,
    requests_left: u8,
    /// A handshake message that came in part.
    partial: Vec<u8>,
}

/// What the TLS library keeps of a handshake.
pub(crate) enum KeySource {
    Client(Box<KernelConnection<ClientConnectionData>>),
    Server(Box<KernelConnection<ServerConnectionData>>),
}

impl KeySource {
    fn next_sealing(&mut self) -> Result<Cipher, rustls::Error> {
        Cipher::new(match self {
            Self::Client(source) => source.update_tx_secret()?,
            Self::Server(source) => source.update_tx_secret()?,
        })
    }

    fn next_opening(&mut self) -> Result<Cipher, rustls::Error> {
        Cipher::new(match self {
            Self::Client(source) => source.update_rx_secret()?,
            Self::Server(source) => source.update_rx_secret()?,
        })
    }
}

impl Keys {
    pub(crate) fn new(secrets: ExtractedSecrets, source: KeySource) -> Result<Self, rustls::Error> {
        Ok(Self {
            sealing: Cipher::new(secrets.tx)?,
            opening: Cipher::new(secrets.rx)?,
            source,
            update_owed: false,
            requests_left: KEY_UPDATE_REQUESTS,
            partial: Vec::new(),
        })
    }

    /// Whether [`KEY_UPDATE_MESSAGE`] must be sent before more data, and then
    /// [`Keys::update_sealing`] be called.
    pub(crate) fn wants_update(&self) -> bool {
        self.update_owed || self.sealing.sequence() >= KEY_LIMIT - MARGIN
    }

    /// The KeyUpdate is sealed: the next record has the next key.
    pub(crate) fn update_sealing(&mut self) -> Result<(), rustls::Error> {
        self.update_owed = false;
        self.sealing = self.source.next_sealing()?;
        Ok(())
    }

    /// The peer sent data.
    pub(crate) fn data_received(&mut self) {
        self.requests_left = KEY_UPDATE_REQUESTS;
    }

    /// Whether a handshake message has come in part; nothing else may come before its end
    /// (RFC 8446 §5.1).
    pub(crate) fn is_within_message(&self) -> bool {
        !self.partial.is_empty()
    }

    /// The peer sent handshake messages, in one record.
    pub(crate) fn handshake_received(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        if bytes.is_empty() {
            return Err(Violation::unexpected(InvalidMessage::InvalidEmptyPayload));
        }
        self.partial.extend_from_slice(bytes);
        let mut messages = std::mem::take(&mut self.partial);
        let mut rest = messages.as_slice();
        while let Some((&[kind, high, middle, low], body)) = rest.split_first_chunk() {
            let length = u32::from_be_bytes([0, high, middle, low]) as usize;
            if length > MESSAGE_LIMIT {
                return Err(Violation::new(InvalidMessage::HandshakePayloadTooLarge, AlertDescription::DecodeError));
            }
            let Some((body, after)) = body.split_at_checked(length) else { break };
            self.message(kind, body, after.is_empty())?;
            rest = after;
        }
        let handled = messages.len() - rest.len();
        messages.drain(..handled);
        self.partial = messages;
        Ok(())
    }

    fn message(&mut self, kind: u8, body: &[u8], is_last: bool) -> Result<(), Violation> {
        match (kind, &mut self.source) {
            (KEY_UPDATE, _) => {
                let asks = match body {
                    [0] => false,
                    [1] => true,
                    _ => {
                        return Err(Violation::new(InvalidMessage::InvalidKeyUpdate, AlertDescription::DecodeError));
                    }
                };
                if !is_last {
                    // What follows in this record would be under the old key.
                    return Err(Violation::unexpected(PeerMisbehaved::KeyEpochWithPendingFragment));
                }
                if asks {
                    self.requests_left = self.requests_left.checked_sub(1).ok_or_else(|| {
                        Violation::new(PeerMisbehaved::TooManyKeyUpdateRequests, AlertDescription::UnexpectedMessage)
                    })?;
                    self.update_owed = true;
                }
                self.opening = self.source.next_opening()?;
                Ok(())
            }
            (NEW_SESSION_TICKET, KeySource::Client(source)) => source
                .handle_new_session_ticket(body)
                .map_err(|error| Violation { error, alert: Some(AlertDescription::DecodeError) }),
            _ => Err(Violation::unexpected(rustls::Error::InappropriateHandshakeMessage {
                expect_types: vec![HandshakeType::KeyUpdate],
                got_type: HandshakeType::from(kind),
            })),
        }
    }
}

#[cfg(test)]
impl Keys {
    /// As if the peer had asked for new keys.
    pub(crate) fn update_owed_for_test(&mut self) {
        self.update_owed = true;
    }
}
