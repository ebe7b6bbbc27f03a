//! What is known of an endpoint.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use leno_model::http::Ejection;
use leno_policy::balance::{Estimate, TICKS};
use parking_lot::Mutex;

use super::ejection::{self, Ended, InARow};

/// The clock by which all of this is dated.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The ticks of a moment.
pub(super) fn ticks(at: Instant) -> u32 {
    let since = at.saturating_duration_since(*BEGINNING);
    (since.as_micros() as f64 * f64::from(TICKS) / 1e6) as u64 as u32
}

/// The milliseconds of a moment; never 0.
pub(super) fn milliseconds(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(*BEGINNING).as_millis()).unwrap_or(u64::MAX - 1) + 1
}

/// What is known of an endpoint.
#[derive(Debug)]
pub(crate) struct Vital {
    /// Requests and connections that it has open.
    active: AtomicU32,
    /// An [`Estimate`].
    estimate: AtomicU64,
    /// Until when it is left out, milliseconds; 0 if it never was.
    out_until: AtomicU64,
    /// Whether there are failures in a row.
    failing: AtomicBool,
    failures: Mutex<Failures>,
}

#[derive(Debug, Default)]
struct Failures {
    row: InARow,
    /// How often it counts as left out.
    times: u32,
}

impl Vital {
    /// Of one that has not answered yet.
    pub(super) fn new(took: Duration) -> Self {
        let estimate = Estimate::new(took, ticks(Instant::now()));
        Self {
            active: AtomicU32::new(0),
            estimate: AtomicU64::new(estimate.to_bits()),
            out_until: AtomicU64::new(0),
            failing: AtomicBool::new(false),
            failures: Mutex::default(),
        }
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

    /// A request has ended. Returns why the endpoint is to be left out, if it is.
    pub(super) fn ended(&self, ended: Ended, rules: &Ejection) -> Option<&'static str> {
        if ended == Ended::Well && !self.failing.load(Relaxed) {
            return None;
        }
        let mut failures = self.failures.lock();
        let (row, cause) = failures.row.and(ended, rules);
        failures.row = row;
        self.failing.store(row != InARow::default(), Relaxed);
        cause
    }

    /// Whether it is left out.
    pub(super) fn is_out(&self, now: u64) -> bool {
        self.out_until.load(Relaxed) > now
    }

    /// Leaves it out. Returns until when.
    pub(super) fn leave_out(&self, rules: &Ejection, now: u64) -> u64 {
        let mut failures = self.failures.lock();
        let well_for = match self.out_until.load(Relaxed) {
            0 => Duration::ZERO,
            before => Duration::from_millis(now.saturating_sub(before)),
        };
        failures.times = ejection::times(failures.times, well_for, rules) + 1;
        let lasts = ejection::lasts(failures.times, rules).as_millis();
        let until = now.saturating_add(u64::try_from(lasts).unwrap_or(u64::MAX));
        self.out_until.store(until, Relaxed);
        until
    }
}
