//! One read's bytes, on their way to whom they are for.

use std::ops::Range;

use bytes::Bytes;
use leno_tls::buffer::Buffer;

use super::chunks::SLICES;

/// One read's bytes. Whoever needs some of them for longer keeps all of them, or copies few.
pub(super) struct Received {
    buffer: Option<Buffer>,
    frozen: Bytes,
    pub(super) length: usize,
    /// Bytes of memory that it takes.
    capacity: usize,
}

impl Received {
    pub(super) fn new(buffer: Buffer, length: usize) -> Self {
        let capacity = buffer.len();
        Self { buffer: Some(buffer), frozen: Bytes::new(), length, capacity }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match &self.buffer {
            Some(buffer) => &buffer[..self.length],
            None => &self.frozen,
        }
    }

    /// Some of the bytes, for longer. Few of them are copied, or they would keep all of the buffer,
    /// whoever else keeps it now: a program that has stopped reading would hold a multiple of its
    /// window. `thrifty`: nor may much of it lie idle.
    pub(super) fn keep(&mut self, range: Range<usize>, thrifty: bool) -> Bytes {
        let least = if thrifty { self.capacity / 8 * 7 } else { self.capacity / 2 };
        if range.len() < least {
            return Bytes::copy_from_slice(&self.bytes()[range]);
        }
        if let Some(buffer) = self.buffer.take() {
            self.frozen = buffer.freeze(self.length);
        }
        self.frozen.slice(range)
    }
}

/// Payload of several frames that go to the same stream: one system call for all.
#[derive(Default)]
pub(super) struct Gathered {
    pub(super) stream: u32,
    pub(super) ranges: [Range<u32>; SLICES],
    pub(super) count: usize,
}
