//! Merging the lines that the sample's clients print into one act's figures.

use super::claims::Phase;
use crate::sample::{Interval, Latencies};

/// The measurements of a client during an act.
#[derive(Debug, Clone)]
pub(super) struct Load {
    pub(super) requests: u64,
    pub(super) errors: u64,
    latencies: Latencies,
    last_error: Option<String>,
}

impl Load {
    pub(super) fn new() -> Self {
        Self { requests: 0, errors: 0, latencies: Latencies::new(), last_error: None }
    }

    pub(super) fn add(&mut self, interval: Interval) {
        self.requests += interval.requests;
        self.errors += interval.errors;
        for (microseconds, count) in interval.histogram_us {
            self.latencies.record_us(microseconds, count);
        }
        if interval.last_error.is_some() {
            self.last_error = interval.last_error;
        }
    }

    /// Puts the figures of the steady client into `phase`.
    pub(super) fn fill(self, phase: &mut Phase) {
        phase.requests = self.requests;
        phase.errors = self.errors;
        phase.p50_ms = self.latencies.quantile_ms(0.5);
        phase.p99_ms = self.latencies.quantile_ms(0.99);
        phase.last_error = self.last_error;
    }
}

/// The interval a line of a client's output tells, if it is one: it also says what it waits for.
pub(super) fn interval(line: &str) -> Option<Interval> {
    serde_json::from_str(line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_a_phase() {
        let line = |requests, errors, pairs: &str| {
            format!(
                r#"{{"at_ms":1,"requests":{requests},"errors":{errors},"p50_ms":1.0,"p99_ms":2.0,"histogram_us":{pairs},
                "total":{{"requests":9,"errors":0,"p50_ms":1.0,"p99_ms":2.0,"max_ms":3.0}}}}"#
            )
        };
        let mut load = Load::new();
        for text in [line(3, 0, "[[1000,2],[5000,1]]"), "waiting for http://web".to_owned(), line(2, 1, "[[9000,1]]")] {
            if let Some(interval) = interval(&text) {
                load.add(interval);
            }
        }
        let mut phase = Phase::default();
        load.fill(&mut phase);
        assert_eq!((phase.requests, phase.errors), (5, 1));
        assert!((phase.p50_ms - 1.0).abs() < 0.1 || (phase.p50_ms - 5.0).abs() < 0.1, "{}", phase.p50_ms);
        assert!((phase.p99_ms - 9.0).abs() < 0.1, "{}", phase.p99_ms);
    }
}
