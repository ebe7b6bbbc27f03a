//! Received bytes that wait for a program.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Most chunks passed to one system call.
pub(super) const SLICES: usize = 32;

/// Chunks below this length, bytes, are copied together. A stream's window bounds only the payload that waits;
/// thousands of one-byte frames would each keep a buffer of their own.
const GATHER_BELOW: usize = 1 << 10;

/// Buffer size for copied chunks, bytes.
const GATHERED: usize = 8 << 10;

/// A queue of bytes. They have not been released to the peer, so the stream's window bounds them. An empty queue holds
/// no memory.
#[derive(Default)]
pub(super) struct Chunks {
    waiting: VecDeque<Bytes>,
    /// Copied bytes, which come after everything in `waiting`.
    gathered: BytesMut,
}

impl Chunks {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.gathered.is_empty()
    }

    /// Whether a chunk of this length should be copied rather than kept.
    pub(super) fn copies(length: usize) -> bool {
        length <= GATHER_BELOW
    }

    /// Copies a few bytes to the end.
    pub(super) fn push_copy(&mut self, bytes: &[u8]) {
        if self.is_empty() {
            self.waiting.push_back(Bytes::copy_from_slice(bytes));
            return;
        }
        if self.gathered.capacity() - self.gathered.len() < bytes.len() {
            self.seal();
            self.gathered = BytesMut::with_capacity(GATHERED.max(bytes.len()));
        }
        self.gathered.extend_from_slice(bytes);
    }

    pub(super) fn push(&mut self, bytes: Bytes) {
        self.seal();
        self.waiting.push_back(bytes);
    }

    /// Removes and returns the first chunk.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let first = match self.waiting.pop_front() {
            None if self.gathered.is_empty() => None,
            None => Some(std::mem::take(&mut self.gathered).freeze()),
            first => first,
        };
        self.forget_if_empty();
        first
    }

    /// The first chunks, for a vectored write. Returns their number.
    pub(super) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES]) -> usize {
        let gathered = Some(&self.gathered[..]).filter(|gathered| !gathered.is_empty());
        let mut count = 0;
        for (slice, chunk) in slices.iter_mut().zip(self.waiting.iter().map(|chunk| &chunk[..]).chain(gathered)) {
            *slice = IoSlice::new(chunk);
            count += 1;
        }
        count
    }

    /// Drops the first `bytes` bytes.
    pub(super) fn advance(&mut self, mut bytes: usize) {
        while let Some(chunk) = self.waiting.front_mut() {
            if bytes < chunk.len() {
                chunk.advance(bytes);
                return;
            }
            bytes -= chunk.len();
            self.waiting.pop_front();
        }
        self.gathered.advance(bytes);
        self.forget_if_empty();
    }

    fn seal(&mut self) {
        if !self.gathered.is_empty() {
            self.waiting.push_back(std::mem::take(&mut self.gathered).freeze());
        }
    }

    fn forget_if_empty(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn single_bytes_share_a_buffer() {
        let mut chunks = Chunks::default();
        for _ in 0..GATHERED {
            chunks.push_copy(&[1]);
        }
        assert!(chunks.waiting.len() <= 2, "{}", chunks.waiting.len());
        chunks.advance(GATHERED);
        assert!(chunks.is_empty());
        assert_eq!((chunks.waiting.capacity(), chunks.gathered.capacity()), (0, 0));
    }

    proptest! {
        #[test]
        fn comes_out_as_it_went_in(pushed in prop::collection::vec((1usize..3000, any::<bool>()), 1..80), step in 1usize..5000) {
            let mut chunks = Chunks::default();
            let mut expected = Vec::new();
            for (length, pop) in pushed {
                let bytes: Vec<u8> = (0..length).map(|i| (i + expected.len()) as u8).collect();
                if Chunks::copies(length) { chunks.push_copy(&bytes) } else { chunks.push(bytes.clone().into()) }
                expected.extend_from_slice(&bytes);
                if pop && let Some(chunk) = chunks.pop() {
                    prop_assert_eq!(&expected[..chunk.len()], &chunk[..]);
                    expected.drain(..chunk.len());
                }
            }
            while !chunks.is_empty() {
                let mut slices = [IoSlice::new(&[]); SLICES];
                let count = chunks.slices(&mut slices);
                let written: Vec<u8> = slices[..count].iter().flat_map(|s| s.iter().copied()).take(step).collect();
                prop_assert!(!written.is_empty());
                prop_assert_eq!(&expected[..written.len()], &written[..]);
                expected.drain(..written.len());
                let length = written.len();
                chunks.advance(length);
            }
            prop_assert!(expected.is_empty());
        }
    }
}
