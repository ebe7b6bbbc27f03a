//! Connection metrics: one look-up per connection, one atomic add per update.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::Gauge;

use super::labels::{ConnectionLabels, Reporter, ResponseFlags};

/// All counters of one label set: one look-up serves them all.
#[derive(Debug, Default)]
struct Series {
    opened: AtomicU64,
    closed: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    failed: Mutex<Vec<(ResponseFlags, u64)>>,
}

#[derive(Debug)]
pub(super) struct Connections {
    /// Hashed for each connection, over some twenty names: seeded, so that nobody can choose names
    /// that collide, and several times as fast as the standard library's.
    series: Mutex<HashMap<Arc<ConnectionLabels>, Arc<Series>, RandomState>>,
    limit: usize,
    overflow: Counter,
}

impl Connections {
    pub(super) fn new(limit: usize, overflow: Counter) -> Self {
        Self { series: Mutex::default(), limit, overflow }
    }

    fn series(&self, labels: &ConnectionLabels) -> Arc<Series> {
        let mut all = self.series.lock();
        if let Some(series) = all.get(labels) {
            return series.clone();
        }
        let key = if all.len() < self.limit {
            labels.clone()
        } else {
            self.overflow.inc();
            ConnectionLabels::overflow(labels.reporter())
        };
        all.entry(Arc::new(key)).or_default().clone()
    }

    pub(super) fn open(&self, labels: &ConnectionLabels) -> ConnectionMetrics {
        let series = self.series(labels);
        series.opened.fetch_add(1, Relaxed);
        ConnectionMetrics { series }
    }

    pub(super) fn failed(&self, labels: &ConnectionLabels, flags: ResponseFlags) {
        let series = self.series(labels);
        let mut failed = series.failed.lock();
        match failed.iter_mut().find(|(seen, _)| *seen == flags) {
            Some((_, count)) => *count += 1,
            None => failed.push((flags, 1)),
        }
    }

    /// A copy of what there is, so that a slow scrape keeps no connection waiting.
    fn snapshot(&self) -> Vec<(Arc<ConnectionLabels>, Arc<Series>)> {
        self.series.lock().iter().map(|(labels, series)| (labels.clone(), series.clone())).collect()
    }
}

impl Collector for Connections {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        type Value = fn(&Series) -> &AtomicU64;
        let metrics: [(&str, &str, Value); 4] = [
            ("istio_tcp_connections_opened", "Connections opened.", |series| &series.opened),
            ("istio_tcp_connections_closed", "Connections closed.", |series| &series.closed),
            ("istio_tcp_received_bytes", "Bytes sent by the source, received by the destination.", |series| {
                &series.received
            }),
            ("istio_tcp_sent_bytes", "Bytes sent by the destination, received by the source.", |series| &series.sent),
        ];
        let all = self.snapshot();
        for (name, help, value) in metrics {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            // A label set that only ever failed has nothing to say here.
            for (labels, series) in all.iter().filter(|(_, series)| series.opened.load(Relaxed) > 0) {
                let labels = labels.with_flags(None);
                ConstCounter::new(value(series).load(Relaxed)).encode(metric.encode_family(&labels)?)?;
            }
        }
        let mut metric = encoder.encode_descriptor(
            "istio_tcp_connections_failed",
            "Connections that failed, by response_flags.",
            None,
            MetricType::Counter,
        )?;
        for (labels, series) in &all {
            for (flags, count) in series.failed.lock().iter() {
                let labels = labels.with_flags(Some(*flags));
                ConstCounter::new(*count).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// Counts one connection's bytes. Counted opened when made, closed when dropped.
#[derive(Debug)]
pub struct ConnectionMetrics {
    series: Arc<Series>,
}

impl ConnectionMetrics {
    /// The destination sent `bytes` more to the source.
    pub fn sent(&self, bytes: u64) {
        self.series.sent.fetch_add(bytes, Relaxed);
    }

    /// The destination received `bytes` more from the source.
    pub fn received(&self, bytes: u64) {
        self.series.received.fetch_add(bytes, Relaxed);
    }
}

impl Drop for ConnectionMetrics {
    fn drop(&mut self) {
        self.series.closed.fetch_add(1, Relaxed);
    }
}

/// A socket that counts as open until this is dropped.
#[derive(Debug)]
pub struct OpenSocket {
    gauge: Gauge,
}

impl OpenSocket {
    pub(super) fn new(gauge: Gauge) -> Self {
        gauge.inc();
        Self { gauge }
    }
}

impl Drop for OpenSocket {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

/// The label of `istio_tcp_sockets_open`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, prometheus_client::encoding::EncodeLabelSet)]
pub(super) struct ReporterLabel {
    pub(super) reporter: &'static str,
}

impl From<Reporter> for ReporterLabel {
    fn from(reporter: Reporter) -> Self {
        Self { reporter: reporter.as_str() }
    }
}
