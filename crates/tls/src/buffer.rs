//! Buffers of the data path, recycled per thread. An idle connection holds none; a busy one gets larger ones.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use bytes::Bytes;

/// Sizes of buffers, bytes. The first suits requests. At the last, a bulk transfer no longer gains from fewer system
/// calls.
const SIZES: [usize; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];

/// What each buffer holds beyond its size, bytes: the headers and tags of the TLS records and the
/// HTTP/2 frame that carry one full read of a program's bytes (17 records at most, 22 bytes each).
/// Without it, each full read would go out in two system calls.
const SLACK: usize = 1 << 10;

/// How many buffers of each size a thread keeps for reuse: at most 2.4 MiB per thread.
const KEPT: [usize; 4] = [16, 8, 4, 8];

/// Reads up to this length are copied, so that the buffer is free again at once. Otherwise a few bytes that wait for a
/// window would keep it.
const COPY_BELOW: usize = 1 << 10;

/// After this many reads in a row that fit the next smaller size, that size is used.
const PATIENCE: u8 = 8;

thread_local! {
    static FREE: RefCell<[Vec<Vec<u8>>; 4]> = const { RefCell::new([const { Vec::new() }; 4]) };
}

/// Frees the buffers that this thread keeps for reuse.
pub fn release() {
    FREE.with_borrow_mut(|free| *free = Default::default());
}

/// A buffer on loan. It goes back to the thread that drops it. It may still hold bytes of an earlier user.
pub struct Buffer {
    bytes: Vec<u8>,
    class: u8,
}

impl Buffer {
    fn take(class: u8) -> Self {
        let kept = FREE.try_with(|free| free.borrow_mut()[usize::from(class)].pop()).ok().flatten();
        let bytes = kept.unwrap_or_else(|| vec![0; SIZES[usize::from(class)] + SLACK]);
        Self { bytes, class }
    }

    /// The smallest buffer that holds `bytes` bytes, or the largest one there is.
    pub fn holding(bytes: usize) -> Self {
        let fits = SIZES.iter().position(|size| bytes <= size + SLACK);
        Self::take(fits.unwrap_or(SIZES.len() - 1) as u8)
    }

    /// Whether there is no larger one.
    pub fn is_largest(&self) -> bool {
        usize::from(self.class) == SIZES.len() - 1
    }

    /// The first `len` bytes as `Bytes`. A few bytes are copied, so that the buffer is free at once.
    pub fn freeze(self, len: usize) -> Bytes {
        if len <= COPY_BELOW {
            Bytes::copy_from_slice(&self.bytes[..len])
        } else {
            Bytes::from_owner(Filled { buffer: self, len })
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let class = usize::from(self.class);
        let bytes = std::mem::take(&mut self.bytes);
        // Fails only while the thread ends. Then the memory is freed.
        let _ = FREE.try_with(|free| {
            let list = &mut free.borrow_mut()[class];
            if list.len() < KEPT[class] {
                list.push(bytes);
            }
        });
    }
}

struct Filled {
    buffer: Buffer,
    len: usize,
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        &self.buffer.bytes[..self.len]
    }
}

/// How much one direction of a connection reads at once. It follows the load.
#[derive(Debug, Clone, Copy)]
pub struct ReadSize {
    class: u8,
    largest: u8,
    small_reads: u8,
}

impl ReadSize {
    /// Starts with the smallest size. Never exceeds `limit` bytes (or the smallest size).
    pub fn new(limit: usize) -> Self {
        let fitting = SIZES.iter().filter(|size| **size <= limit).count();
        Self { class: 0, largest: fitting.saturating_sub(1) as u8, small_reads: 0 }
    }

    /// Bytes to read at once.
    pub fn bytes(self) -> usize {
        SIZES[usize::from(self.class)]
    }

    /// A buffer for that many bytes, with some room to spare.
    pub fn buffer(self) -> Buffer {
        Buffer::take(self.class)
    }

    /// Adapts to a read that brought `len` of `asked` bytes.
    pub fn observe(&mut self, len: usize, asked: usize) {
        // A read that was limited by other contents of the buffer counts if it was not limited by much.
        if len >= asked && 2 * asked >= self.bytes() {
            self.small_reads = 0;
            self.class = (self.class + 1).min(self.largest);
        } else if self.class > 0 && len <= SIZES[usize::from(self.class) - 1] && len < asked {
            self.small_reads += 1;
            if self.small_reads == PATIENCE {
                self.small_reads = 0;
                self.class -= 1;
            }
        } else {
            self.small_reads = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_follows_the_load() {
        let mut size = ReadSize::new(256 << 10);
        for expected in [4 << 10, 16 << 10, 64 << 10, 256 << 10, 256 << 10] {
            assert_eq!(size.bytes(), expected);
            size.observe(expected, expected);
        }
        for _ in 0..3 * usize::from(PATIENCE) {
            size.observe(10, size.bytes());
        }
        assert_eq!(size.bytes(), 4 << 10);
        size.observe(10, size.bytes());
        assert_eq!(size.bytes(), 4 << 10);
    }

    #[test]
    fn a_read_cut_by_the_window_is_no_sign_of_little_load() {
        let mut size = ReadSize::new(256 << 10);
        size.observe(4 << 10, 4 << 10);
        for _ in 0..100 {
            size.observe(100, 100);
        }
        assert_eq!(size.bytes(), 16 << 10);
    }

    #[test]
    fn limit_is_kept() {
        let mut size = ReadSize::new(64 << 10);
        for _ in 0..10 {
            size.observe(size.bytes(), size.bytes());
        }
        assert_eq!(size.bytes(), 64 << 10);
        assert_eq!(ReadSize::new(1).bytes(), 4 << 10);
    }

    #[test]
    fn buffers_are_recycled() {
        let mut size = ReadSize::new(16 << 10);
        size.observe(4 << 10, 4 << 10);
        let mut buffer = size.buffer();
        buffer[..2000].fill(7);
        let address = buffer.as_ptr();
        let bytes = buffer.freeze(2000);
        assert_eq!(bytes.as_ptr(), address);
        assert!(bytes.len() == 2000 && bytes.iter().all(|b| *b == 7));
        let part = bytes.slice(10..20);
        drop(bytes);
        assert_ne!(size.buffer().as_ptr(), address, "still in use");
        drop(part);
        let again: Vec<Buffer> = (0..2).map(|_| size.buffer()).collect();
        assert!(again.iter().any(|b| b.as_ptr() == address));
    }

    #[test]
    fn released_buffers_are_gone() {
        drop((ReadSize::new(0).buffer(), Buffer::holding(usize::MAX)));
        let kept = || FREE.with_borrow(|free| free.iter().map(Vec::len).sum::<usize>());
        assert_eq!(kept(), 2);
        release();
        assert_eq!(kept(), 0);
        drop(ReadSize::new(0).buffer());
        assert_eq!(kept(), 1);
    }

    #[test]
    fn few_bytes_do_not_pin_a_buffer() {
        let buffer = ReadSize::new(0).buffer();
        let address = buffer.as_ptr();
        let bytes = buffer.freeze(3);
        assert_ne!(bytes.as_ptr(), address);
        assert_eq!(ReadSize::new(0).buffer().as_ptr(), address);
    }
}
