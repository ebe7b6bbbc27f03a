//! Latency histograms, precise enough for the 99.99th percentile, and complete in the report.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2Serializer};
use serde::{Deserialize, Serialize};

/// The smallest difference that is recorded, ns.
const LOWEST: u64 = 1_000;
/// The longest latency that is recorded, ns: two minutes.
const HIGHEST: u64 = 120_000_000_000;
/// Significant decimal digits: 0.1 %.
const DIGITS: u8 = 3;

/// Collects latencies.
#[derive(Debug, Clone)]
pub struct LatencyRecorder(Histogram<u64>);

impl Default for LatencyRecorder {
    fn default() -> Self {
        Self::new()
    }
}

impl LatencyRecorder {
    /// Makes an empty one.
    #[must_use]
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(LOWEST, HIGHEST, DIGITS).expect("the constants above are valid bounds"))
    }

    /// Records one latency.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds the latencies of another recorder.
    pub fn add(&mut self, other: &Self) {
        self.0 += &other.0;
    }

    /// The figures for the outcome.
    #[must_use]
    pub fn finish(&self) -> Latency {
        let mut raw = Vec::new();
        // This fails only for histograms with more than 2^31 counts.
        let histogram = match V2Serializer::new().serialize(&self.0, &mut raw) {
            Ok(_) => BASE64.encode(raw),
            Err(_) => String::new(),
        };
        let at = |quantile: f64| self.0.value_at_quantile(quantile) as f64 / 1e3;
        Latency {
            count: self.0.len(),
            mean_us: self.0.mean() / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: self.0.max() as f64 / 1e3,
            histogram,
        }
    }
}

/// A distribution of latencies, in microseconds. All numbers are 0 when there were none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The number of latencies.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// The 90th percentile.
    pub p90_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The 99.9th percentile. Meaningless with fewer than some ten thousand requests.
    pub p999_us: f64,
    /// The maximum.
    pub max_us: f64,
    /// The whole distribution in nanoseconds: HdrHistogram's V2 encoding, in base64.
    pub histogram: String,
}

impl Latency {
    /// The recorder this came from.
    ///
    /// # Errors
    /// If the encoded distribution is damaged. The error is a text.
    pub fn recorder(&self) -> Result<LatencyRecorder, String> {
        let raw = BASE64.decode(&self.histogram).map_err(|error| error.to_string())?;
        Deserializer::new().deserialize(&mut raw.as_slice()).map(LatencyRecorder).map_err(|error| error.to_string())
    }

    /// Points (quantile, microseconds) of the percentile curve, denser towards the tail.
    #[must_use]
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let Ok(LatencyRecorder(histogram)) = self.recorder() else { return Vec::new() };
        if histogram.is_empty() {
            return Vec::new();
        }
        // Five points per halving of the remainder. Beyond 1/count there is only the maximum.
        let last = (histogram.len() as f64).log2().min(20.0);
        (0..)
            .map(|step| f64::from(step) / 5.0)
            .take_while(|&halvings| halvings <= last)
            .map(|halvings| 1.0 - (-halvings).exp2())
            .map(|quantile| (quantile, histogram.value_at_quantile(quantile) as f64 / 1e3))
            .collect()
    }
}
