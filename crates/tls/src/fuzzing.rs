//! Entry points for fuzzers: whatever the input, nothing may panic, and nothing may be read that was not written. Also
//! a sender for tests that follows no rule.

use std::io::IoSlice;

use rustls_pki_types::CertificateDer;
use tokio::io::ReadBuf;

use crate::TlsStream;
use crate::incoming::{Incoming, Opened};
use crate::keys::Keys;
use crate::outgoing::Outgoing;
use crate::record::{Aead, Cipher, MAX_RECORD};

/// Seals any record with the keys of an established connection, whether the protocol allows it or not.
pub struct AnyRecords {
    keys: Box<Keys>,
}

impl AnyRecords {
    /// Takes the place of `stream`.
    pub fn of<IO>(stream: TlsStream<IO>) -> (IO, Self) {
        let (io, keys) = stream.into_parts();
        (io, Self { keys })
    }

    /// Appends one record: `inner` is its content, its type, and its padding.
    pub fn seal(&mut self, inner: &[u8], out: &mut Vec<u8>) {
        out.extend(self.keys.sealing.seal_raw(inner));
    }

    /// Appends a KeyUpdate with this body. What follows is sealed with new keys.
    pub fn key_update(&mut self, request: u8, out: &mut Vec<u8>) {
        self.seal(&[24, 0, 0, 1, request, 22], out);
        // Fails only where the handshake was of another version.
        let _ = self.keys.update_sealing();
    }
}

/// The identity in a peer's certificate, given as DER.
pub fn peer_certificate(der: &[u8]) -> Option<leno_model::Identity> {
    let der = CertificateDer::from(der);
    let _ = crate::certificate::describe(&der);
    crate::verify::identity_of(&der).ok()
}

/// Handles bytes from the wire.
pub fn wire(bytes: &[u8]) {
    for with in [Aead::Aes128Gcm, Aead::Aes256Gcm] {
        let Some(mut cipher) = cipher(with) else { continue };
        assert!(receive(&mut cipher, bytes, 4096).is_empty(), "forged bytes were believed");
    }
}

/// Sends writes of the given lengths through the record layer and receives them in chunks, perhaps with one byte
/// changed. What comes out must be what went in, up to the damage.
pub fn there_and_back(writes: &[u16], chunk: u16, damage: Option<(u32, u8)>) {
    let with = if chunk & 2 == 0 { Aead::Aes256Gcm } else { Aead::Aes128Gcm };
    let (Some(mut sealing), Some(mut opening)) = (cipher(with), cipher(with)) else { return };
    let plain: Vec<u8> = (0..u16::MAX).map(|index| (index % 251) as u8).collect();
    let (mut sent, mut wire) = (Vec::new(), Vec::new());
    let mut outgoing = Outgoing::default();
    for length in writes {
        let mut rest = &plain[..usize::from(*length).min(plain.len())];
        sent.extend_from_slice(rest);
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(rest.len() / 2);
            let taken = outgoing.push(&mut sealing, &[IoSlice::new(head), IoSlice::new(tail)]).unwrap_or(0);
            rest = &rest[taken..];
            if taken == 0 || length % 3 == 0 {
                let sealed = outgoing.finish(&mut sealing);
                assert!(sealed.is_ok());
                wire.extend_from_slice(outgoing.sealed());
                outgoing.advance(outgoing.sealed().len());
            }
        }
    }
    let sealed = outgoing.finish(&mut sealing);
    assert!(sealed.is_ok());
    wire.extend_from_slice(outgoing.sealed());
    let damage = damage.filter(|(_, with)| *with != 0 && !wire.is_empty());
    if let Some((at, with)) = damage {
        let at = at as usize % wire.len();
        wire[at] ^= with;
    }
    let received = receive(&mut opening, &wire, usize::from(chunk.max(1)));
    assert!(sent.starts_with(&received), "something else came out than went in");
    assert!(damage.is_some() || sent.len() == received.len(), "something is missing");
}

/// Opens all records up to the first error.
fn receive(cipher: &mut Cipher, mut bytes: &[u8], chunk: usize) -> Vec<u8> {
    let mut received = Vec::new();
    let mut incoming = Incoming::new(&[]);
    // Room for any record, or for few.
    let mut room = vec![0; if chunk.is_multiple_of(2) { MAX_RECORD } else { 100 }];
    while !bytes.is_empty() {
        let filled = incoming.fill(
            |room| {
                let length = bytes.len().min(room.len()).min(chunk);
                room[..length].copy_from_slice(&bytes[..length]);
                length
            },
            |length| *length,
        );
        bytes = &bytes[filled..];
        loop {
            let mut out = ReadBuf::new(&mut room);
            match incoming.open(cipher, &mut out) {
                Ok(None) => break,
                Ok(Some((Opened::Data(_), _))) => {
                    received.extend_from_slice(out.filled());
                    received.extend_from_slice(incoming.plain());
                    incoming.consume(incoming.plain().len());
                }
                Ok(Some((Opened::Alert(_) | Opened::Handshake(_), _))) => {}
                Err(_) => return received,
            }
        }
    }
    received
}

fn cipher(aead: Aead) -> Option<Cipher> {
    Cipher::new(aead, &[7; 32][..aead.key_length()], &[9; 12], 0)
}
