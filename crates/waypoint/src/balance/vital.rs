//! What is known of an endpoint.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use leno_policy::balance::{Estimate, TICKS};

/// The clock by which estimates are dated.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The ticks of a moment.
pub(super) fn ticks(at: Instant) -> u32 {
    let since = at.saturating_duration_since(*BEGINNING);
    (since.as_micros() as f64 * f64::from(TICKS) / 1e6) as u64 as u32
}

/// What is known of an endpoint.
#[derive(Debug)]
pub(crate) struct Vital {
    /// Requests and connections that it has open.
    active: AtomicU32,
    /// An [`Estimate`].
    estimate: AtomicU64,
}

impl Vital {
    /// Of one that has not answered yet.
    pub(super) fn new(took: Duration) -> Self {
        let estimate = Estimate::new(took, ticks(Instant::now()));
        Self { active: AtomicU32::new(0), estimate: AtomicU64::new(estimate.to_bits()) }
    }

    pub(super) fn begin(&self) {
        self.active.fetch_add(1, Relaxed);
    }

    pub(super) fn end(&self) {
        self.active.fetch_sub(1, Relaxed);
    }

    /// How long it takes to answer, seconds.
    pub(super) fn seconds(&self, at: u32) -> f32 {
        Estimate::from_bits(self.estimate.load(Relaxed)).seconds(at)
    }

    /// What one more request costs.
    pub(super) fn cost(&self, at: u32) -> f32 {
        self.seconds(at) * (self.active.load(Relaxed) + 1) as f32
    }

    pub(super) fn learn(&self, learn: impl Fn(Estimate) -> Estimate) {
        let change = |bits| Some(learn(Estimate::from_bits(bits)).to_bits());
        // Never refused, because every change is one.
        let _ = self.estimate.fetch_update(Relaxed, Relaxed, change);
    }
}
