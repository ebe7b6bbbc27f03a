//! Metrics, with Istio's names and labels, so that its dashboards work unchanged.

mod connection;
pub mod control;
mod families;
mod labels;
mod page;
mod process;
mod requests;

use std::sync::Arc;
use std::time::Duration;

use leno_model::Workload;
pub use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

pub use connection::{ConnectionMetrics, OpenSocket};
pub use labels::{ConnectionLabels, Reporter, ResponseFlags, SecurityPolicy};
pub use page::{OPEN_METRICS_CONTENT_TYPE, Page, TEXT_CONTENT_TYPE};
pub use requests::{Outcome, RequestMetrics, RequestProtocol};

use connection::Connections;
use families::{DnsLabels, Families, UrlLabel};
use requests::Requests;

/// All metrics of a proxy. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    page: Page,
    connections: Arc<Connections>,
    requests: Arc<Requests>,
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
    /// Metrics of a proxy that reports itself as `component` (Istio's node proxy says
    /// `ztunnel`) of version `tag`. At most `series_limit` distinct connection label sets are
    /// kept, and as many of requests; further ones are counted together under the label value `overflow`.
    pub fn new(component: &str, tag: &str, series_limit: usize) -> Self {
        let page = Page::new(component, tag);
        let families = Families::default();
        let connections = Arc::new(Connections::new(series_limit, families.series_overflow.clone()));
        let requests = Arc::new(Requests::new(series_limit, families.series_overflow.clone()));
        page.register(|registry| {
            families.register(registry);
            registry.register_collector(Box::new(connections.clone()));
            registry.register_collector(Box::new(requests.clone()));
        });
        Self { page, connections, requests, families }
    }

    /// What is scraped.
    pub fn page(&self) -> &Page {
        &self.page
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

    /// What counts requests with these labels and this outcome. To be kept: the look-up costs more than the counting.
    pub fn requests(
        &self,
        labels: &ConnectionLabels,
        protocol: RequestProtocol,
        outcome: Outcome,
    ) -> Arc<RequestMetrics> {
        self.requests.of(labels, protocol, outcome)
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

    /// Spans that found no place, or that the collector did not take.
    pub fn spans_dropped(&self) -> &Counter {
        &self.families.spans_dropped
    }

    /// Endpoints that were left out for a while because they failed too often.
    pub fn endpoint_ejections(&self) -> &Counter {
        &self.families.ejections
    }

    /// Requests and connections that were refused because a rule permits no more.
    pub fn connection_pool_overflows(&self) -> &Counter {
        &self.families.overflows
    }

    /// Requests that were not sent again because too many were.
    pub fn retries_refused(&self) -> &Counter {
        &self.families.retries_refused
    }

    /// Access log lines that found no place and were dropped.
    pub fn access_log_dropped(&self) -> &Counter {
        &self.families.access_log_dropped
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "metrics/requests_tests.rs"]
mod requests_tests;

#[cfg(test)]
mod dashboard_tests;
