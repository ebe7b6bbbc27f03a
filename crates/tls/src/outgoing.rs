//! The bytes that a connection has to send: sealed records, and the one that is being filled.

use std::io::IoSlice;

use crate::buffer::Buffer;
use crate::record::{Cipher, Content, HEADER, MAX_PLAIN, TRAILER};
use crate::violation::Violation;

/// Room for the records that a connection sends by itself: at most a KeyUpdate (27 bytes) and an alert (24 bytes)
/// between two records of its user.
const RESERVE: usize = 64;

/// Bytes that wait for the transport, in one buffer, so that one system call sends as many records as are ready. When
/// idle, it holds no buffer.
#[derive(Default)]
pub(crate) struct Outgoing {
    buffer: Option<Buffer>,
    /// The transport has taken everything before this offset.
    from: usize,
    /// Records are sealed up to this offset. The open one follows, if `open > 0`.
    sealed: usize,
    /// Plaintext in the open record, bytes.
    open: usize,
}

impl Outgoing {
    /// Takes as much plaintext as there is room for. Returns how much.
    pub(crate) fn push(&mut self, cipher: &mut Cipher, slices: &[IoSlice<'_>]) -> Result<usize, Violation> {
        let plain: usize = slices.iter().map(|slice| slice.len()).sum();
        self.make_room(sealed_length(plain));
        let mut taken = 0;
        for slice in slices {
            let mut rest: &[u8] = slice;
            while !rest.is_empty() {
                let room = self.room();
                let Some(buffer) = &mut self.buffer else { return Ok(taken) };
                if self.open == 0 && rest.len() >= MAX_PLAIN && room >= MAX_PLAIN {
                    let (record, after) = rest.split_at(MAX_PLAIN);
                    let end = self.sealed + HEADER + MAX_PLAIN + TRAILER;
                    cipher.seal_into(Content::Data, record, &mut buffer[self.sealed..end])?;
                    self.sealed = end;
                    rest = after;
                    taken += MAX_PLAIN;
                    continue;
                }
                let len = rest.len().min(MAX_PLAIN - self.open).min(room);
                if len == 0 {
                    return Ok(taken);
                }
                let (more, after) = rest.split_at(len);
                let at = self.sealed + HEADER + self.open;
                buffer[at..at + len].copy_from_slice(more);
                self.open += len;
                rest = after;
                taken += len;
                if self.open == MAX_PLAIN {
                    self.finish(cipher)?;
                }
            }
        }
        Ok(taken)
    }

    /// Seals the open record.
    pub(crate) fn finish(&mut self, cipher: &mut Cipher) -> Result<(), Violation> {
        if self.open > 0
            && let Some(buffer) = &mut self.buffer
        {
            let end = self.sealed + HEADER + self.open + TRAILER;
            self.open = 0;
            cipher.seal_in_place(Content::Data, &mut buffer[self.sealed..end])?;
            self.sealed = end;
        }
        Ok(())
    }

    /// Appends a record that is not data. Returns `false` if there is no room before the transport takes more.
    pub(crate) fn control(&mut self, cipher: &mut Cipher, content: Content, plain: &[u8]) -> Result<bool, Violation> {
        self.finish(cipher)?;
        let record = HEADER + plain.len() + TRAILER;
        self.make_room(record);
        let (start, end) = (self.sealed, self.sealed + record);
        match &mut self.buffer {
            Some(buffer) if end <= buffer.len() => {
                cipher.seal_into(content, plain, &mut buffer[start..end])?;
                self.sealed = end;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// What the transport takes next: sealed records only.
    pub(crate) fn sealed(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer[self.from..self.sealed])
    }

    /// The transport took `bytes`.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.from += bytes;
        if self.from == self.sealed && self.open == 0 {
            *self = Self::default();
        }
    }

    /// The plaintext for which the open record, or the next one, still has room in the buffer.
    fn room(&self) -> usize {
        let length = self.buffer.as_ref().map_or(0, |buffer| buffer.len());
        length.saturating_sub(self.sealed + HEADER + self.open + TRAILER + RESERVE)
    }

    /// Makes room for `more` sealed bytes after the existing ones, up to the size of the largest buffer.
    fn make_room(&mut self, more: usize) {
        let wanted = |used: usize| used + HEADER + TRAILER + more + RESERVE;
        let Some(buffer) = &mut self.buffer else {
            self.buffer = Some(Buffer::holding(wanted(0)));
            return;
        };
        let end = if self.open > 0 { self.sealed + HEADER + self.open } else { self.sealed };
        if wanted(end) <= buffer.len() || (buffer.is_largest() && self.from == 0) {
            return;
        }
        let used = end - self.from;
        if wanted(used) <= buffer.len() || buffer.is_largest() {
            buffer.copy_within(self.from..end, 0);
        } else {
            let mut larger = Buffer::holding(wanted(used));
            larger[..used].copy_from_slice(&buffer[self.from..end]);
            *buffer = larger;
        }
        self.sealed -= self.from;
        self.from = 0;
    }
}

/// The sealed length of `plain` bytes.
fn sealed_length(plain: usize) -> usize {
    plain + plain.div_ceil(MAX_PLAIN) * (HEADER + TRAILER)
}

#[cfg(test)]
impl Outgoing {
    pub(crate) fn is_idle(&self) -> bool {
        self.buffer.is_none()
    }
}
