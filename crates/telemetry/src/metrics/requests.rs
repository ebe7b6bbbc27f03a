//! Request metrics: one look-up per kind of request, a few atomic additions per request.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};

use super::labels::{ConnectionLabels, Status};

/// The label `request_protocol`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestProtocol {
    /// HTTP.
    Http,
    /// gRPC.
    Grpc,
}

impl RequestProtocol {
    fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Outcome {
    /// HTTP status of the response.
    pub status: u16,
    /// gRPC status of the response, if it said one.
    pub grpc_status: Option<u16>,
    /// What went wrong, in Istio's letters; `-` if nothing did.
    pub flags: &'static str,
}

/// Upper ends of Istio's buckets: of milliseconds, and of bytes, alike.
const BUCKETS: [f64; 20] = [
    0.5,
    1.0,
    5.0,
    10.0,
    25.0,
    50.0,
    100.0,
    250.0,
    500.0,
    1_000.0,
    2_500.0,
    5_000.0,
    10_000.0,
    30_000.0,
    60_000.0,
    300_000.0,
    600_000.0,
    1_800_000.0,
    3_600_000.0,
    f64::INFINITY,
];

/// Counts of values, by bucket, and their sum, in thousandths.
#[derive(Debug, Default)]
struct Distribution {
    buckets: [AtomicU64; BUCKETS.len()],
    sum: AtomicU64,
}

impl Distribution {
    fn add(&self, thousandths: u64) {
        let bucket = BUCKETS.partition_point(|end| *end * 1000.0 < thousandths as f64);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum.fetch_add(thousandths, Relaxed);
    }

    fn encode(&self, mut metric: prometheus_client::encoding::MetricEncoder<'_>) -> fmt::Result {
        let mut counts = [(0.0, 0); BUCKETS.len()];
        for ((end, bucket), count) in BUCKETS.iter().zip(&self.buckets).zip(&mut counts) {
            *count = (*end, bucket.load(Relaxed));
        }
        let all = counts.iter().map(|(_, count)| count).sum();
        metric.encode_histogram::<NoLabelSet>(self.sum.load(Relaxed) as f64 / 1000.0, all, &counts, None)
    }
}

/// Counts the requests of one label set.
#[derive(Debug, Default)]
pub struct RequestMetrics {
    requests: AtomicU64,
    duration: Distribution,
    request_bytes: Distribution,
    response_bytes: Distribution,
    request_messages: AtomicU64,
    response_messages: AtomicU64,
}

impl RequestMetrics {
    /// A request has ended after `took`; so many bytes of body it had, and its response.
    pub fn ended(&self, took: Duration, request_bytes: u64, response_bytes: u64) {
        self.requests.fetch_add(1, Relaxed);
        self.duration.add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        self.request_bytes.add(request_bytes.saturating_mul(1000));
        self.response_bytes.add(response_bytes.saturating_mul(1000));
    }

    /// So many gRPC messages went from the client, and to it.
    pub fn messages(&self, request: u64, response: u64) {
        self.request_messages.fetch_add(request, Relaxed);
        self.response_messages.fetch_add(response, Relaxed);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Ended {
    As(Outcome),
    Overflow,
}

type Key = (Arc<ConnectionLabels>, RequestProtocol, Ended);

#[derive(Debug)]
pub(super) struct Requests {
    series: Mutex<HashMap<Key, Arc<RequestMetrics>, RandomState>>,
    /// Label sets are shared by their outcomes.
    labels: Mutex<HashMap<Arc<ConnectionLabels>, (), RandomState>>,
    limit: usize,
    overflow: Counter,
    told: AtomicBool,
}

impl Requests {
    pub(super) fn new(limit: usize, overflow: Counter) -> Self {
        Self { series: Mutex::default(), labels: Mutex::default(), limit, overflow, told: AtomicBool::default() }
    }

    pub(super) fn of(
        &self,
        labels: &ConnectionLabels,
        protocol: RequestProtocol,
        outcome: Outcome,
    ) -> Arc<RequestMetrics> {
        let mut all = self.series.lock();
        let shared = self.labels.lock().get_key_value(labels).map(|(shared, ())| shared.clone());
        if let Some(shared) = &shared
            && let Some(series) = all.get(&(shared.clone(), protocol, Ended::As(outcome)))
        {
            return series.clone();
        }
        let key = if all.len() < self.limit {
            let shared = shared.unwrap_or_else(|| {
                let shared = Arc::new(labels.clone());
                self.labels.lock().insert(shared.clone(), ());
                shared
            });
            (shared, protocol, Ended::As(outcome))
        } else {
            self.overflow.inc();
            if !self.told.swap(true, Relaxed) {
                tracing::warn!(
                    limit = self.limit,
                    "there are more label sets of requests than metrics keep; further ones are counted together as \"overflow\""
                );
            }
            (Arc::new(ConnectionLabels::overflow(labels.reporter())), protocol, Ended::Overflow)
        };
        all.entry(key).or_default().clone()
    }

    /// A copy of what there is, so that a slow scrape keeps no request waiting.
    fn snapshot(&self) -> Vec<(Key, Arc<RequestMetrics>)> {
        self.series.lock().iter().map(|(key, series)| (key.clone(), series.clone())).collect()
    }
}

type Family = (&'static str, &'static str);
type Messages = (Family, fn(&RequestMetrics) -> &AtomicU64);
type Distributions = (Family, fn(&RequestMetrics) -> &Distribution);

const DISTRIBUTIONS: [Distributions; 3] = [
    (("istio_request_duration_milliseconds", "How long requests took, milliseconds."), |series| &series.duration),
    (("istio_request_bytes", "Bytes of the bodies of requests."), |series| &series.request_bytes),
    (("istio_response_bytes", "Bytes of the bodies of responses."), |series| &series.response_bytes),
];

const MESSAGES: [Messages; 2] = [
    (("istio_request_messages", "gRPC messages sent by clients."), |series| &series.request_messages),
    (("istio_response_messages", "gRPC messages sent by servers."), |series| &series.response_messages),
];

impl Collector for Requests {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.snapshot();
        if all.is_empty() {
            return Ok(());
        }
        let labels = |(labels, protocol, ended): &'_ Key| {
            let (flags, status) = match ended {
                Ended::As(outcome) => (outcome.flags, Status::Known(outcome.status, outcome.grpc_status)),
                Ended::Overflow => ("overflow", Status::Overflow),
            };
            (labels.clone(), *protocol, flags, status)
        };
        let mut metric =
            encoder.encode_descriptor("istio_requests", "Requests that have ended.", None, MetricType::Counter)?;
        for (key, series) in &all {
            let (labels, protocol, flags, status) = labels(key);
            let labels = labels.of_requests(protocol.as_str(), Some(flags)).with_status(status);
            ConstCounter::new(series.requests.load(Relaxed)).encode(metric.encode_family(&labels)?)?;
        }
        for ((name, help), distribution) in DISTRIBUTIONS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
            for (key, series) in &all {
                let (labels, protocol, flags, status) = labels(key);
                let labels = labels.of_requests(protocol.as_str(), Some(flags)).with_status(status);
                distribution(series).encode(metric.encode_family(&labels)?)?;
            }
        }
        // Messages go by before it is known how the request ends, so their number has no outcome.
        let mut messages: HashMap<Arc<ConnectionLabels>, [u64; 2], RandomState> = HashMap::default();
        for ((labels, protocol, _), series) in &all {
            if *protocol == RequestProtocol::Grpc {
                let sums = messages.entry(labels.clone()).or_default();
                for (sum, (_, of)) in sums.iter_mut().zip(MESSAGES) {
                    *sum += of(series).load(Relaxed);
                }
            }
        }
        if messages.is_empty() {
            return Ok(());
        }
        for (index, ((name, help), _)) in MESSAGES.iter().enumerate() {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (labels, sums) in &messages {
                let labels = labels.of_requests(RequestProtocol::Grpc.as_str(), None);
                ConstCounter::new(sums[index]).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
