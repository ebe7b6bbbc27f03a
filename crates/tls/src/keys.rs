//! The keys of an established connection, and the messages that change them (RFC 8446 §4.6).

use crate::record::{Cipher, KEY_LIMIT};
use crate::violation::Violation;

/// Handshake messages after the handshake (RFC 8446 §4).
pub(crate) const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// A KeyUpdate that requests none in return.
pub(crate) const KEY_UPDATE_MESSAGE: [u8; 5] = [KEY_UPDATE, 0, 0, 1, 0];

/// Most KeyUpdates of a peer without data in between, whether or not they request an answer. Each costs us a key
/// derivation, and the peer almost nothing. The TLS library has the same limit.
const KEY_UPDATES: u8 = 32;

/// Longest unfinished handshake message, bytes. Only tickets are long, and they have a few hundred bytes. The TLS
/// library has the same limit.
const MESSAGE_LIMIT: usize = 0xffff;

/// A key is replaced this many records before its limit. One write seals fewer records.
const MARGIN: u64 = 64;

/// The keys of both directions, and the source of the next ones.
pub(crate) struct Keys {
    pub(crate) sealing: Cipher,
    pub(crate) opening: Cipher,
    source: Box<dyn KeySource>,
    /// The peer requested new keys from us.
    update_owed: bool,
    updates_left: u8,
    /// An incomplete handshake message.
    partial: Vec<u8>,
}

/// The rest of a handshake's state: it derives the following keys (RFC 8446 §7.2).
pub(crate) trait KeySource: Send + Sync {
    /// The cipher for what follows the KeyUpdate that we have sent.
    fn next_sealing(&mut self) -> Result<Cipher, Violation>;

    /// The cipher for what follows the KeyUpdate that was received.
    fn next_opening(&mut self) -> Result<Cipher, Violation>;

    /// A NewSessionTicket was received (RFC 8446 §4.6.1), with this body.
    fn ticket_received(&mut self, body: &[u8]) -> Result<(), Violation>;
}

impl Keys {
    pub(crate) fn new(sealing: Cipher, opening: Cipher, source: Box<dyn KeySource>) -> Self {
        Self { sealing, opening, source, update_owed: false, updates_left: KEY_UPDATES, partial: Vec::new() }
    }

    /// Whether [`KEY_UPDATE_MESSAGE`] must be sent before more data. Then [`Keys::update_sealing`] must be called.
    pub(crate) fn wants_update(&self) -> bool {
        self.update_owed || self.sealing.sequence() >= KEY_LIMIT - MARGIN
    }

    /// The KeyUpdate is sealed: the next record uses the next key.
    pub(crate) fn update_sealing(&mut self) -> Result<(), Violation> {
        self.update_owed = false;
        self.sealing = self.source.next_sealing()?;
        Ok(())
    }

    /// The peer sent data.
    pub(crate) fn data_received(&mut self) {
        self.updates_left = KEY_UPDATES;
    }

    /// Whether a handshake message is incomplete. Nothing else may come before its end (RFC 8446 §5.1).
    pub(crate) fn is_within_message(&self) -> bool {
        !self.partial.is_empty()
    }

    /// The peer sent handshake messages in one record. Returns how many were complete.
    pub(crate) fn handshake_received(&mut self, bytes: &[u8]) -> Result<u32, Violation> {
        if bytes.is_empty() {
            return Err(Violation::EmptyHandshake);
        }
        self.partial.extend_from_slice(bytes);
        let mut messages = std::mem::take(&mut self.partial);
        let mut rest = messages.as_slice();
        let mut whole = 0;
        while let Some((&[kind, high, middle, low], body)) = rest.split_first_chunk() {
            let length = u32::from_be_bytes([0, high, middle, low]) as usize;
            if length > MESSAGE_LIMIT {
                return Err(Violation::MessageTooLong);
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
        match kind {
            KEY_UPDATE => {
                let &[request] = body else { return Err(Violation::KeyUpdateLength) };
                if !is_last {
                    // What follows in this record would be under the old key.
                    return Err(Violation::KeyUpdateNotLast);
                }
                self.updates_left = self.updates_left.checked_sub(1).ok_or(Violation::TooManyKeyUpdates)?;
                match request {
                    0 => {}
                    1 => self.update_owed = true,
                    _ => return Err(Violation::KeyUpdateRequest),
                }
                self.opening = self.source.next_opening()?;
                Ok(())
            }
            NEW_SESSION_TICKET => self.source.ticket_received(body),
            _ => Err(Violation::UnexpectedMessage(kind)),
        }
    }
}

#[cfg(test)]
impl Keys {
    /// As if the peer had requested new keys.
    pub(crate) fn update_owed_for_test(&mut self) {
        self.update_owed = true;
    }
}
