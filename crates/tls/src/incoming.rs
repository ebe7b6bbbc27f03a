//! The received bytes of a connection: records, some of which are opened already.

use std::ops::Range;

use tokio::io::ReadBuf;

use crate::buffer::{Buffer, ReadSize};
use crate::record::{Cipher, Content, MAX_RECORD, inner_length, length_of, refuse_plain};
use crate::violation::Violation;

/// Most bytes read at once.
const LARGEST_READ: usize = 256 << 10;

/// Received bytes in one buffer, so that one system call brings as many records as have come. When idle, it holds no
/// buffer.
pub(crate) struct Incoming {
    buffer: Option<Buffer>,
    size: ReadSize,
    /// Opened and not handed out yet.
    plain: Range<usize>,
    /// Received and not opened yet.
    sealed: Range<usize>,
}

impl Incoming {
    /// Starts with what came after the handshake.
    pub(crate) fn new(received: &[u8]) -> Self {
        let mut incoming =
            Self { buffer: None, size: ReadSize::new(LARGEST_READ), plain: 0..0, sealed: 0..received.len() };
        if !received.is_empty() {
            let mut buffer = Buffer::holding(received.len().max(MAX_RECORD));
            // A handshake never receives more than the largest buffer holds.
            buffer[..received.len()].copy_from_slice(received);
            incoming.buffer = Some(buffer);
        }
        incoming
    }

    /// Opened bytes that have not been handed out.
    pub(crate) fn plain(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer[self.plain.clone()])
    }

    /// `bytes` opened bytes were handed out.
    pub(crate) fn consume(&mut self, bytes: usize) {
        self.plain.start += bytes;
        self.release();
    }

    /// Opens the next record if it is complete, and returns its length. Data goes to `out` if all of it fits there,
    /// which saves a copy. Otherwise it becomes [`Incoming::plain`], which must be empty. Other contents are returned
    /// as a copy.
    pub(crate) fn open(
        &mut self,
        cipher: &mut Cipher,
        out: &mut ReadBuf<'_>,
    ) -> Result<Option<(Opened, usize)>, Violation> {
        debug_assert!(self.plain.is_empty());
        let Some(buffer) = &mut self.buffer else { return Ok(None) };
        let received = &mut buffer[self.sealed.clone()];
        let Some(length) = length_of(received)?.filter(|length| *length <= received.len()) else {
            return Ok(None);
        };
        let record = &mut received[..length];
        refuse_plain(record)?;
        let start = self.sealed.start;
        self.sealed.start += length;
        let into_out = inner_length(length) <= out.remaining();
        let (content, plain, range) = if into_out {
            let room = out.initialize_unfilled_to(inner_length(length));
            let (content, plain) = cipher.open_into(record, room)?;
            (content, &room[..plain], 0..plain)
        } else {
            let (content, range) = cipher.open(record)?;
            (content, &record[range.clone()], range)
        };
        let opened = match content {
            Content::Alert => Opened::Alert(plain.to_vec()),
            Content::Handshake => Opened::Handshake(plain.to_vec()),
            Content::Data => {
                if into_out {
                    out.advance(range.len());
                } else {
                    self.plain = start + range.start..start + range.end;
                }
                Opened::Data(range.len())
            }
        };
        self.release();
        Ok(Some((opened, length)))
    }

    /// Reads once: `read` gets the free room and returns how much it filled. A connection that waits for its first
    /// bytes holds no buffer.
    pub(crate) fn fill<R>(&mut self, read: impl FnOnce(&mut [u8]) -> R, filled: impl FnOnce(&R) -> usize) -> R {
        debug_assert!(self.plain.is_empty());
        let rest = self.sealed.len();
        let mut buffer = match self.buffer.take() {
            None => self.size.buffer(),
            Some(mut buffer) if buffer.len() >= self.size.bytes().max(MAX_RECORD) => {
                buffer.copy_within(self.sealed.clone(), 0);
                buffer
            }
            // The buffer grows, or is too small for the record that has begun.
            Some(smaller) => {
                let mut buffer = Buffer::holding(self.size.bytes().max(MAX_RECORD));
                buffer[..rest].copy_from_slice(&smaller[self.sealed.clone()]);
                buffer
            }
        };
        let result = read(&mut buffer[rest..]);
        let length = filled(&result);
        if length > 0 {
            self.size.observe(length, buffer.len() - rest);
        }
        self.plain = 0..0;
        self.sealed = 0..rest + length;
        if !self.sealed.is_empty() {
            self.buffer = Some(buffer);
        }
        result
    }

    fn release(&mut self) {
        if self.plain.is_empty() && self.sealed.is_empty() {
            self.buffer = None;
        }
    }
}

/// The content of a record, from [`Incoming::open`].
pub(crate) enum Opened {
    /// This many bytes of data, possibly none.
    Data(usize),
    /// An alert's bytes.
    Alert(Vec<u8>),
    /// Bytes of handshake messages.
    Handshake(Vec<u8>),
}

impl Opened {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Data(length) => *length == 0,
            Self::Alert(bytes) | Self::Handshake(bytes) => bytes.is_empty(),
        }
    }
}

#[cfg(test)]
impl Incoming {
    pub(crate) fn is_idle(&self) -> bool {
        self.buffer.is_none()
    }
}
