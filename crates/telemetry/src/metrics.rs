//! Metrics, with Istio's names and labels, so that its dashboards work unchanged.

mod connection;
mod families;
mod labels;
mod process;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leno_model::Workload;
use parking_lot::RwLock;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

pub use connection::{ConnectionMetrics, OpenSocket};
pub use labels::{ConnectionLabels, Reporter, ResponseFlags, SecurityPolicy};

use connection::Connections;
use families::{DnsLabels, Families, UrlLabel};

/// Default of the number of distinct label sets of connections. Each costs about 1 KiB here, and a line of 1 KiB per
/// metric in each scrape.
pub const DEFAULT_SERIES_LIMIT: usize = 20_000;

/// Content type of [`Metrics::encode`].
pub const TEXT_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Content type of [`Metrics::encode_open_metrics`].
pub const OPEN_METRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of a process. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<RwLock<Registry>>,
    connections: Arc<Connections>,
    families: Families,
}

/// Why a discovery stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum XdsTermination {
    /// The connection could not be established.
    ConnectionError,
    /// The stream broke.
    Error,
    /// The proxy chose to reconnect.
    Reconnect,
    /// The server ended it in good order.
    Complete,
}

/// Transport of a DNS query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DnsProtocol {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
}

impl Metrics {
    /// Metrics of a process that reports itself as `component` (Istio's node proxy says
    /// `ztunnel`) of version `tag`. At most `series_limit` distinct connection label sets are
    /// kept; further ones are counted together under the label value `overflow`.
    pub fn new(component: &str, tag: &str, series_limit: usize) -> Self {
        let mut registry = Registry::default();
        let families = Families::register(&mut registry);
        families.build(component, tag);
        let connections = Arc::new(Connections::new(series_limit, families.series_overflow.clone()));
        registry.register_collector(Box::new(connections.clone()));
        registry.register_collector(Box::new(process::Process));
        Self { registry: Arc::new(RwLock::new(registry)), connections, families }
    }

    /// Counts a connection as opened and hands out what counts its bytes; dropping that counts
    /// it as closed.
    pub fn connection(&self, labels: &ConnectionLabels) -> ConnectionMetrics {
        self.connections.open(labels)
    }

    /// Counts a connection that failed. One that was opened is still counted closed later.
    pub fn connection_failed(&self, labels: &ConnectionLabels, flags: ResponseFlags) {
        self.connections.failed(labels, flags);
    }

    /// Counts a socket as open until the result is dropped.
    pub fn socket(&self, reporter: Reporter) -> OpenSocket {
        self.families.socket(reporter)
    }

    /// A DNS query of `client`, if it is known who that is, arrived.
    pub fn dns_request(&self, query_type: &'static str, protocol: DnsProtocol, client: Option<&Workload>) {
        self.families.dns_requests.get_or_create(&DnsLabels::new(query_type, protocol, client)).inc();
    }

    /// A DNS query of `client` was passed on and answered, or not, after `took`.
    pub fn dns_upstream(
        &self,
        query_type: &'static str,
        protocol: DnsProtocol,
        client: Option<&Workload>,
        took: Duration,
        failed: bool,
    ) {
        let labels = DnsLabels::new(query_type, protocol, client);
        self.families.dns_upstream_requests.get_or_create(&labels).inc();
        if failed {
            self.families.dns_upstream_failures.get_or_create(&labels).inc();
        }
        self.families.dns_upstream_duration.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// A host name was resolved to reach an endpoint without an address.
    pub fn on_demand_dns(&self, source: &Workload, hostname: &str) {
        self.families.on_demand_dns(source, hostname);
    }

    /// A discovery response for `type_url` of `bytes` bytes arrived.
    pub fn xds_message(&self, type_url: &str, bytes: u64) {
        let label = UrlLabel { url: type_url.to_owned() };
        self.families.xds_messages.get_or_create(&label).inc();
        self.families.xds_message_bytes.get_or_create(&label).inc_by(bytes);
    }

    /// A discovery stream ended.
    pub fn xds_terminated(&self, reason: XdsTermination) {
        self.families.xds_terminated(reason);
    }

    /// Pods that have their listeners.
    pub fn active_proxies(&self) -> &Gauge {
        &self.families.active_proxies
    }

    /// Pods that wait for their listeners.
    pub fn pending_proxies(&self) -> &Gauge {
        &self.families.pending_proxies
    }

    /// Pods that ever got listeners.
    pub fn proxies_started(&self) -> &Counter {
        &self.families.proxies_started
    }

    /// Pods that were let go.
    pub fn proxies_stopped(&self) -> &Counter {
        &self.families.proxies_stopped
    }

    /// Access log lines that found no place and were dropped.
    pub fn access_log_dropped(&self) -> &Counter {
        &self.families.access_log_dropped
    }

    /// Gives access to the registry, for metrics of a part that nobody else shares. Names get
    /// no prefix.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.write());
    }

    /// All metrics in OpenMetrics text 1.0.
    ///
    /// # Errors
    /// Never, as memory is what is written to.
    pub fn encode_open_metrics(&self) -> Result<String, fmt::Error> {
        let mut body = String::new();
        text::encode(&mut body, &self.registry.read())?;
        Ok(body)
    }

    /// All metrics in Prometheus text 0.0.4, for scrapers that do not ask for OpenMetrics.
    ///
    /// # Errors
    /// Never, as memory is what is written to.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        Ok(to_classic(&self.encode_open_metrics()?))
    }
}

/// The two formats differ in their comments only: here, a counter's family carries the suffix
/// of its samples (else a classic parser takes the samples for untyped ones), and there is
/// neither unit nor end mark.
fn to_classic(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    let mut lines = open_metrics.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let counter = lines.peek().is_some_and(|next| next.starts_with("# TYPE ") && next.ends_with(" counter"));
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            let suffix = if counter { "_total" } else { "" };
            out.extend(["# HELP ", name, suffix, " ", help, "\n"]);
        } else if let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" counter")) {
            out.extend(["# TYPE ", name, "_total counter\n"]);
        } else if !line.starts_with("# UNIT ") && line != "# EOF" {
            out.extend([line, "\n"]);
        }
    }
    out
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
