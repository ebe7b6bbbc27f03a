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

/// KeyUpdates a peer may send without data in between, whether they ask for an answer or not: each
/// costs us a key derivation, and the peer nearly nothing. The TLS library's number.
const KEY_UPDATES: u8 = 32;

/// Bytes of an unfinished handshake message. Tickets are the only long ones, and hold a few
/// hundred. The TLS library's number.
const MESSAGE_LIMIT: usize = 0xffff;

/// Records before the limit at which a key is replaced: more than one write seals.
const MARGIN: u64 = 64;

/// Both directions' keys, and what makes the next ones.
pub(crate) struct Keys {
    pub(crate) sealing: Cipher,
    pub(crate) opening: Cipher,
    source: KeySource,
    /// The peer asked for new keys of ours.
    update_owed: bool,
    updates_left: u8,
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
            updates_left: KEY_UPDATES,
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
        self.updates_left = KEY_UPDATES;
    }

    /// Whether a handshake message has come in part; nothing else may come before its end
    /// (RFC 8446 §5.1).
    pub(crate) fn is_within_message(&self) -> bool {
        !self.partial.is_empty()
    }

    /// The peer sent handshake messages, in one record. Says how many were whole.
    pub(crate) fn handshake_received(&mut self, bytes: &[u8]) -> Result<u32, Violation> {
        if bytes.is_empty() {
            return Err(Violation::unexpected(InvalidMessage::InvalidEmptyPayload));
        }
        self.partial.extend_from_slice(bytes);
        let mut messages = std::mem::take(&mut self.partial);
        let mut rest = messages.as_slice();
        let mut whole = 0;
        while let Some((&[kind, high, middle, low], body)) = rest.split_first_chunk() {
            let length = u32::from_be_bytes([0, high, middle, low]) as usize;
            if length > MESSAGE_LIMIT {
                return Err(Violation::new(InvalidMessage::HandshakePayloadTooLarge, AlertDescription::DecodeError));
            }
            let Some((body, after)) = body.split_at_checked(length) else { break };
            self.message(kind, body, after.is_empty())?;
            rest = after;
            whole += 1;
        }
        let handled = messages.len() - rest.len();
        messages.drain(..handled);
        self.partial = messages;
        Ok(whole)
    }

    fn message(&mut self, kind: u8, body: &[u8], is_last: bool) -> Result<(), Violation> {
        match (kind, &mut self.source) {
            (KEY_UPDATE, _) => {
                let &[request] = body else {
                    return Err(Violation::new(InvalidMessage::InvalidKeyUpdate, AlertDescription::DecodeError));
                };
                if !is_last {
                    // What follows in this record would be under the old key.
                    return Err(Violation::unexpected(PeerMisbehaved::KeyEpochWithPendingFragment));
                }
                // Who floods is told nothing, as by the TLS library.
                self.updates_left = self
                    .updates_left
                    .checked_sub(1)
                    .ok_or_else(|| Violation { error: PeerMisbehaved::TooManyKeyUpdateRequests.into(), alert: None })?;
                match request {
                    0 => {}
                    1 => self.update_owed = true,
                    _ => {
                        let alert = AlertDescription::IllegalParameter;
                        return Err(Violation::new(InvalidMessage::InvalidKeyUpdate, alert));
                    }
                }
                self.opening = self.source.next_opening()?;
                Ok(())
            }
            (NEW_SESSION_TICKET, KeySource::Client(source)) => {
                source.handle_new_session_ticket(body).map_err(|error| match error {
                    rustls::Error::InvalidMessage(message) => Violation::new(message, message.into()),
                    error => error.into(),
                })
            }
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
