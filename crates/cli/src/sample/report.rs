//! The client's measurements in the form in which it writes them: one JSON object per line.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Latencies above a minute are recorded as a minute; requests give up long before.
const LONGEST_US: u64 = 60_000_000;

/// Results of one interval, and since the start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Interval {
    /// End of the interval, in milliseconds since the Unix epoch.
    pub(crate) at_ms: u64,
    /// Requests that ended in the interval.
    pub(crate) requests: u64,
    /// The number of them that failed, including answers other than 2xx.
    pub(crate) errors: u64,
    /// Median latency of those that succeeded, from when each was due, in milliseconds.
    pub(crate) p50_ms: f64,
    /// 99th percentile of the same.
    pub(crate) p99_ms: f64,
    /// The same latencies as (microseconds, count), so that a reader can merge intervals.
    pub(crate) histogram_us: Vec<(u64, u64)>,
    /// Why the last failure failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_error: Option<String>,
    /// Everything since the start.
    pub(crate) total: Total,
}

/// Results since the start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Total {
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
}

/// Latencies to three significant digits.
#[derive(Debug, Clone)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(crate) fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_US, 3).expect("1 < LONGEST_US and 3 digits are valid bounds"))
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        self.record_us(u64::try_from(latency.as_micros()).unwrap_or(LONGEST_US), 1);
    }

    pub(crate) fn record_us(&mut self, microseconds: u64, count: u64) {
        self.0.saturating_record_n(microseconds.max(1), count);
    }

    pub(crate) fn quantile_ms(&self, quantile: f64) -> f64 {
        milliseconds(self.0.value_at_quantile(quantile))
    }

    fn max_ms(&self) -> f64 {
        milliseconds(self.0.max())
    }

    fn pairs(&self) -> Vec<(u64, u64)> {
        self.0.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value())).collect()
    }
}

fn milliseconds(microseconds: u64) -> f64 {
    // Exact: the histogram's values stay far below 2^53.
    microseconds as f64 / 1000.0
}

/// Collects results and cuts them into intervals.
#[derive(Debug)]
pub(super) struct Recorder {
    interval: Part,
    total: Part,
    last_error: Option<String>,
}

#[derive(Debug)]
struct Part {
    requests: u64,
    errors: u64,
    latencies: Latencies,
}

impl Part {
    fn new() -> Self {
        Self { requests: 0, errors: 0, latencies: Latencies::new() }
    }
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self { interval: Part::new(), total: Part::new(), last_error: None }
    }

    /// Counts one request; `latency` runs from when it was due.
    pub(super) fn record(&mut self, latency: Duration, outcome: Result<(), String>) {
        for part in [&mut self.interval, &mut self.total] {
            part.requests += 1;
            match outcome {
                Ok(()) => part.latencies.record(latency),
                Err(_) => part.errors += 1,
            }
        }
        if let Err(error) = outcome {
            self.last_error = Some(error);
        }
    }

    /// The interval that ends at `at_ms`; the next one starts empty.
    pub(super) fn cut(&mut self, at_ms: u64) -> Interval {
        let part = std::mem::replace(&mut self.interval, Part::new());
        Interval {
            at_ms,
            requests: part.requests,
            errors: part.errors,
            p50_ms: part.latencies.quantile_ms(0.5),
            p99_ms: part.latencies.quantile_ms(0.99),
            histogram_us: part.latencies.pairs(),
            last_error: self.last_error.take(),
            total: Total {
                requests: self.total.requests,
                errors: self.total.errors,
                p50_ms: self.total.latencies.quantile_ms(0.5),
                p99_ms: self.total.latencies.quantile_ms(0.99),
                max_ms: self.total.latencies.max_ms(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_merge_to_the_total() {
        let mut recorder = Recorder::new();
        let mut merged = Latencies::new();
        let mut requests = 0;
        for cut in 0..5_u64 {
            for n in 1..=100 {
                recorder.record(Duration::from_micros(cut * 1000 + n * 37), Ok(()));
            }
            let interval = recorder.cut(cut);
            requests += interval.requests;
            for (value, count) in &interval.histogram_us {
                merged.record_us(*value, *count);
            }
            assert_eq!(interval.total.requests, requests);
            assert!((merged.quantile_ms(0.99) - interval.total.p99_ms).abs() < 0.01);
        }
    }

    #[test]
    fn a_failure_is_counted_but_has_no_latency() {
        let mut recorder = Recorder::new();
        recorder.record(Duration::from_secs(1), Err("refused".to_owned()));
        recorder.record(Duration::from_millis(2), Ok(()));
        let interval = recorder.cut(0);
        assert_eq!((interval.requests, interval.errors), (2, 1));
        assert!(interval.p99_ms < 3.0);
        assert_eq!(interval.last_error.as_deref(), Some("refused"));
        assert_eq!(recorder.cut(1).last_error, None);
    }
}
