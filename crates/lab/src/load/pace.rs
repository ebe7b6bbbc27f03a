//! When requests are due.

use std::time::{Duration, Instant};

use super::spec::Pace;

/// Due times of one generator's requests: request `turn` of connection `connection` is due at
/// `origin + (turn * connections + connection) / rate`. Each connection has its own series, as in wrk2 and fortio, so that
/// a connection that stalls delays its own requests and no others. In lockstep, all connections' requests of a turn are due
/// when the first one's is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    pub origin: Instant,
    /// The begin of the measured time.
    pub begin: Instant,
    /// The end of the measured time.
    pub end: Instant,
    connections: usize,
    /// Seconds between two requests of all connections. `None` in a closed loop.
    interval: Option<f64>,
    lockstep: bool,
}

impl Schedule {
    pub(super) fn new(
        origin: Instant,
        warmup: Duration,
        duration: Duration,
        connections: usize,
        pace: Pace,
        lockstep: bool,
    ) -> Self {
        let interval = match pace {
            Pace::Closed => None,
            Pace::Open { per_second } => Some(1.0 / per_second),
        };
        Self { origin, begin: origin + warmup, end: origin + warmup + duration, connections, interval, lockstep }
    }

    pub(super) fn is_open(&self) -> bool {
        self.interval.is_some()
    }

    /// When a request is due; `None` in a closed loop.
    pub(super) fn due(&self, connection: usize, turn: u64) -> Option<Instant> {
        let within = if self.lockstep { 0.0 } else { connection as f64 };
        let position = turn as f64 * self.connections as f64 + within;
        Some(self.origin + Duration::from_secs_f64(position * self.interval?))
    }

    /// Whether a request that began, or should have begun, at `start` counts.
    pub(super) fn counts(&self, start: Instant) -> bool {
        start >= self.begin && start < self.end
    }

    /// Whether something that happens `now` for a request counts. In an open loop it does if the request was due within the
    /// time, however late it is. A closed loop has no plan: there it does if it happens within the time.
    pub(super) fn counts_for(&self, start: Instant, now: Instant) -> bool {
        self.counts(if self.is_open() { start } else { now })
    }
}
