//! Who is told of the bytes that are passed on.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Told of every byte that was passed on. *Forward* is from the first argument of the relay to
/// the second, *backward* the other way. Called on the hot path.
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
