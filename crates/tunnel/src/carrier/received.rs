//! The bytes of one read, on their way to their receivers.

use std::ops::Range;

use bytes::Bytes;
use leno_tls::buffer::Buffer;

use super::chunks::SLICES;

/// The bytes of one read. A receiver that needs some of them longer keeps all of them, or copies a few.
pub(super) struct Received {
    buffer: Option<Buffer>,
    frozen: Bytes,
    pub(super) length: usize,
    /// Memory in use, bytes.
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

    /// Some of the bytes, to be kept longer. A few bytes are copied. Otherwise they would keep the whole buffer alive,
    /// and a program that has stopped reading would hold a multiple of its window. With `thrifty`, bytes are also
    /// copied if much of the buffer would lie idle.
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

/// Payload of several frames for one stream, written with one system call.
#[derive(Default)]
pub(super) struct Gathered {
    pub(super) stream: u32,
    pub(super) ranges: [Range<u32>; SLICES],
    pub(super) count: usize,
}
