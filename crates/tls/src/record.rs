//! The TLS 1.3 record layer (RFC 8446 §5): sealing and opening single records.
//!
//! The TLS library does the handshake and derives every key. From then on, records are sealed and opened here, in the
//! caller's buffers. The library's own record layer handles one record per read and copies each byte twice, which costs
//! a bulk transfer as much as the encryption does.

use std::ops::Range;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

use crate::violation::Violation;

/// Length of a record's header: type, version, length (RFC 8446 §5.1), bytes.
pub(crate) const HEADER: usize = 5;
/// Bytes of a sealed record besides plaintext and header: the content type and the tag, which have the same length in
/// every cipher suite of TLS 1.3.
pub(crate) const TRAILER: usize = 1 + TAG;
const TAG: usize = 16;
/// Most plaintext in a record, bytes (RFC 8446 §5.1).
pub(crate) const MAX_PLAIN: usize = 1 << 14;
/// Most payload of a sealed record, bytes (RFC 8446 §5.2).
const MAX_PAYLOAD: usize = MAX_PLAIN + 256;
/// Length of the largest record with its header, bytes.
pub(crate) const MAX_RECORD: usize = HEADER + MAX_PAYLOAD;

/// Most records under one key. AES-GCM may seal 2^24.5 full records (RFC 8446 §5.5).
pub(crate) const KEY_LIMIT: u64 = 1 << 24;

/// Content type of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Content {
    Alert = 21,
    Handshake = 22,
    Data = 23,
}

/// A content type that is not valid after the handshake.
const CHANGE_CIPHER_SPEC: u8 = 20;

/// How records are sealed (RFC 8446 §9.1, §B.4).
#[derive(Debug, Clone, Copy)]
pub(crate) enum Aead {
    Aes128Gcm,
    Aes256Gcm,
    ChaCha20Poly1305,
}

impl Aead {
    fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::Aes128Gcm => &AES_128_GCM,
            Self::Aes256Gcm => &AES_256_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }

    /// Length of its key, bytes.
    pub(crate) fn key_length(self) -> usize {
        self.algorithm().key_len()
    }
}

/// One direction's key, and how many records it has sealed or opened.
pub(crate) struct Cipher {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
}

impl Cipher {
    /// From a traffic key and its initialisation vector (RFC 8446 §7.3), under which `sequence` records were sealed
    /// already. `None` if one of them has the wrong length.
    pub(crate) fn new(aead: Aead, key: &[u8], iv: &[u8], sequence: u64) -> Option<Self> {
        let key = LessSafeKey::new(UnboundKey::new(aead.algorithm(), key).ok()?);
        Some(Self { key, iv: iv.try_into().ok()?, sequence })
    }

    /// Records sealed or opened with this key.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The next record's nonce (RFC 8446 §5.3). Each is used once: the number grows with every call, and a key is
    /// replaced long before it wraps around.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, count) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= count;
        }
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    /// Seals `record` in place. It holds room for the header, the plaintext, and room for [`TRAILER`].
    pub(crate) fn seal_in_place(&mut self, content: Content, record: &mut [u8]) -> Result<(), Violation> {
        let (header, payload) = record.split_at_mut(HEADER);
        header.copy_from_slice(&header_of(payload.len()));
        let (text, trailer) = payload.split_at_mut(payload.len() - TRAILER);
        let (nonce, aad) = (self.nonce(), Aad::from(&*header));
        let sealed = self.key.seal_in_place_scatter(nonce, aad, text, &[content as u8], trailer);
        sealed.map_err(|_| Violation::Sealing)
    }

    /// Seals `plain` into `record`, whose length is `HEADER + plain.len() + TRAILER`.
    pub(crate) fn seal_into(&mut self, content: Content, plain: &[u8], record: &mut [u8]) -> Result<(), Violation> {
        let (header, payload) = record.split_at_mut(HEADER);
        header.copy_from_slice(&header_of(payload.len()));
        let (text, trailer) = payload.split_at_mut(plain.len());
        let (nonce, aad) = (self.nonce(), Aad::from(&*header));
        let sealed = self.key.seal_out_of_place_scatter(nonce, aad, plain, text, &[content as u8], trailer);
        sealed.map_err(|_| Violation::Sealing)
    }

    /// Seals any inner plaintext; the caller chooses content type and padding. For tests of receivers.
    pub(crate) fn seal_raw(&mut self, inner: &[u8]) -> Vec<u8> {
        let mut record = header_of(inner.len() + TAG).to_vec();
        let (nonce, aad) = (self.nonce(), Aad::from(header_of(inner.len() + TAG)));
        record.extend_from_slice(inner);
        let tag = self.key.seal_in_place_separate_tag(nonce, aad, &mut record[HEADER..]);
        record.extend_from_slice(tag.expect("no record is too long for the cipher").as_ref());
        record
    }

    /// Opens `record`, which includes its header, in place. Returns the content type, and where in `record` the content
    /// is.
    pub(crate) fn open(&mut self, record: &mut [u8]) -> Result<(Content, Range<usize>), Violation> {
        let payload = &mut record[HEADER..];
        if payload.len() < TAG {
            return Err(Violation::Forged);
        }
        let aad = Aad::from(header_of(payload.len()));
        let nonce = self.nonce();
        let inner = self.key.open_in_place(nonce, aad, payload).map_err(|_| Violation::Forged)?;
        let (content, length) = content_of(inner)?;
        Ok((content, HEADER..HEADER + length))
    }

    /// Opens `record`, which includes its header, into the beginning of `out`, which has room for [`inner_length`]
    /// bytes. Returns the content type and the length of the content. After an error, the contents of `out` are
    /// undefined.
    pub(crate) fn open_into(&mut self, record: &[u8], out: &mut [u8]) -> Result<(Content, usize), Violation> {
        let Some((text, tag)) = record[HEADER..].split_last_chunk::<TAG>() else { return Err(Violation::Forged) };
        let aad = Aad::from(header_of(text.len() + TAG));
        let nonce = self.nonce();
        let inner = &mut out[..text.len()];
        self.key.open_separate_gather(nonce, aad, text, tag, inner).map_err(|_| Violation::Forged)?;
        content_of(inner)
    }
}

/// Room for opening a record of `length` bytes with its header: its plaintext, content type and padding.
pub(crate) fn inner_length(length: usize) -> usize {
    length.saturating_sub(HEADER + TAG)
}

/// Content type and length of an opened record's content.
fn content_of(inner: &[u8]) -> Result<(Content, usize), Violation> {
    if inner.len() > MAX_PLAIN + 1 {
        return Err(Violation::PlainTooLong);
    }
    // Zeros at the end are padding; the byte before them is the content type (RFC 8446 §5.4). Searched byte by byte, a
    // record full of zeros would cost more than opening it.
    let mut unpadded = inner;
    while let Some((front, last)) = unpadded.split_last_chunk()
        && *last == [0; 64]
    {
        unpadded = front;
    }
    let Some(end) = unpadded.iter().rposition(|byte| *byte != 0) else {
        return Err(Violation::NoType);
    };
    let content = match inner[end] {
        21 => Content::Alert,
        22 => Content::Handshake,
        23 => Content::Data,
        20 => return Err(Violation::SealedCipherChange),
        _ => return Err(Violation::UnknownType),
    };
    if end > MAX_PLAIN {
        return Err(Violation::PlainTooLong);
    }
    Ok((content, end))
}

/// The header of a sealed record, which is also its authenticated data (RFC 8446 §5.2).
fn header_of(payload: usize) -> [u8; HEADER] {
    let [high, low] = (payload as u16).to_be_bytes();
    [Content::Data as u8, 3, 3, high, low]
}

/// Length of the first record in `bytes` with its header; `None` while its header is incomplete. The record itself need
/// not be complete.
pub(crate) fn length_of(bytes: &[u8]) -> Result<Option<usize>, Violation> {
    let Some(&content) = bytes.first() else { return Ok(None) };
    if !(20..=24).contains(&content) {
        return Err(Violation::NoRecord);
    }
    let Some(&[_, major, _]) = bytes.first_chunk() else { return Ok(None) };
    if major != 3 {
        return Err(Violation::Version);
    }
    let Some(&[.., high, low]) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
    let payload = usize::from(u16::from_be_bytes([high, low]));
    if payload == 0 && content != Content::Data as u8 {
        return Err(Violation::Empty);
    }
    if payload > MAX_PAYLOAD {
        return Err(Violation::SealedTooLong);
    }
    Ok(Some(HEADER + payload))
}

/// Refuses a record that is not sealed. Nothing may come in plaintext after the handshake, not even a change of cipher
/// spec (RFC 8446 §5).
pub(crate) fn refuse_plain(record: &[u8]) -> Result<(), Violation> {
    match record {
        [CHANGE_CIPHER_SPEC, _, _, 0, 1, 1] => Err(Violation::CipherChange),
        [CHANGE_CIPHER_SPEC, ..] => Err(Violation::MalformedCipherChange),
        _ => Ok(()),
    }
}
