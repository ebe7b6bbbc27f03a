//! Counts the bytes that a relay passes on.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Is told of all bytes that a relay passes on. *Forward* is from the relay's first argument to the second, *backward* the
/// other way. It is called on the hot path.
pub trait Meter: Send + Sync + 'static {
    /// `bytes` more were passed on from the first end to the second.
    fn forward(&self, bytes: u64);
    /// `bytes` more were passed on from the second end to the first.
    fn backward(&self, bytes: u64);
}

/// A [`Meter`] that just counts.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes from the first end to the second.
    pub forward: AtomicU64,
    /// Bytes from the second end to the first.
    pub backward: AtomicU64,
}

impl Meter for Counters {
    fn forward(&self, bytes: u64) {
        self.forward.fetch_add(bytes, Relaxed);
    }

    fn backward(&self, bytes: u64) {
        self.backward.fetch_add(bytes, Relaxed);
    }
}
