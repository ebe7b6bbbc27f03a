//! What an engine counts.

use std::collections::BTreeMap;
use std::time::Duration;

use super::histogram::LatencyRecorder;
use super::spec::HttpOutcome;

/// What was counted.
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
}

impl Tally {
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
    }

    pub(super) fn error(&mut self, reason: &str) {
        match self.errors.get_mut(reason) {
            Some(count) => *count += 1,
            None => drop(self.errors.insert(reason.to_owned(), 1)),
        }
    }

    pub(super) fn finish(self, duration: Duration) -> HttpOutcome {
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
            lag: self.lag.finish(),
        }
    }
}
