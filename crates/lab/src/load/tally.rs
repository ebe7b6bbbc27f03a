//! The counters of an engine.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::histogram::LatencyRecorder;
use super::spec::HttpOutcome;
use super::undisturbed::Slices;

/// The counts.
#[derive(Default)]
pub(super) struct Tally {
    pub planned: u64,
    pub answered: u64,
    pub answered_in_time: u64,
    pub body_bytes: u64,
    pub opened: u64,
    pub errors: BTreeMap<String, u64>,
    pub latency: LatencyRecorder,
    pub lag: LatencyRecorder,
    /// For each request, when it was due and its latency. `None` in a closed loop, whose requests have no planned time.
    each: Option<Vec<(Instant, Duration)>>,
}

impl Tally {
    /// For an open loop with this many requests. Memory is allocated now, because doing so during the run would be a
    /// stall.
    pub(super) fn of_open_loop(requests: usize) -> Self {
        Self { each: Some(Vec::with_capacity(requests)), ..Self::default() }
    }

    /// Counts a request that was due, or begun, at `start` and has lasted until `now`.
    pub(super) fn record(&mut self, start: Instant, now: Instant) {
        let latency = now.saturating_duration_since(start);
        self.latency.record(latency);
        if let Some(each) = &mut self.each {
            each.push((start, latency));
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.planned += other.planned;
        self.answered += other.answered;
        self.answered_in_time += other.answered_in_time;
        self.body_bytes += other.body_bytes;
        self.opened += other.opened;
        for (reason, count) in other.errors {
            *self.errors.entry(reason).or_default() += count;
        }
        self.latency.add(&other.latency);
        self.lag.add(&other.lag);
        if let Some(more) = other.each {
            self.each.get_or_insert_default().extend(more);
        }
    }

    pub(super) fn error(&mut self, reason: &str) {
        match self.errors.get_mut(reason) {
            Some(count) => *count += 1,
            None => drop(self.errors.insert(reason.to_owned(), 1)),
        }
    }

    pub(super) fn finish(self, duration: Duration, slices: &Slices) -> HttpOutcome {
        let seconds = duration.as_secs_f64();
        HttpOutcome {
            seconds,
            planned: self.planned,
            answered: self.answered,
            achieved_per_second: self.answered_in_time as f64 / seconds,
            body_bytes: self.body_bytes,
            connections_opened: self.opened,
            errors: self.errors,
            latency: self.latency.finish(),
            undisturbed: self.each.as_deref().and_then(|each| slices.sum_up(each)),
            lag: self.lag.finish(),
        }
    }
}
