//! Metrics other than those of connections.

use std::sync::Arc;

use leno_model::Workload;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::connection::{OpenSocket, ReporterLabel};
use super::{DnsProtocol, Reporter, XdsTermination};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct DnsLabels {
    request_query_type: &'static str,
    request_protocol: &'static str,
    source_canonical_service: Arc<str>,
    source_canonical_revision: Arc<str>,
}

impl DnsLabels {
    pub(super) fn new(query_type: &'static str, protocol: DnsProtocol, client: Option<&Workload>) -> Self {
        Self {
            request_query_type: query_type,
            request_protocol: match protocol {
                DnsProtocol::Udp => "udp",
                DnsProtocol::Tcp => "tcp",
            },
            source_canonical_service: client.map_or_else(unknown, |client| known(&client.canonical_name)),
            source_canonical_revision: client.map_or_else(unknown, |client| known(&client.canonical_revision)),
        }
    }
}

fn unknown() -> Arc<str> {
    "unknown".into()
}

fn known(name: &Arc<str>) -> Arc<str> {
    if name.is_empty() { unknown() } else { name.clone() }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OnDemandDnsLabels {
    source_workload: Arc<str>,
    source_canonical_service: Arc<str>,
    source_canonical_revision: Arc<str>,
    source_workload_namespace: Arc<str>,
    hostname: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct UrlLabel {
    pub(super) url: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone)]
pub(super) struct Families {
    sockets_open: Family<ReporterLabel, Gauge>,
    pub(super) dns_requests: Family<DnsLabels, Counter>,
    pub(super) dns_upstream_requests: Family<DnsLabels, Counter>,
    pub(super) dns_upstream_failures: Family<DnsLabels, Counter>,
    pub(super) dns_upstream_duration: Family<DnsLabels, Histogram, fn() -> Histogram>,
    on_demand_dns: Family<OnDemandDnsLabels, Counter>,
    pub(super) xds_messages: Family<UrlLabel, Counter>,
    pub(super) xds_message_bytes: Family<UrlLabel, Counter>,
    xds_terminations: Family<ReasonLabel, Counter>,
    pub(super) active_proxies: Gauge,
    pub(super) pending_proxies: Gauge,
    pub(super) proxies_started: Counter,
    pub(super) proxies_stopped: Counter,
    pub(super) access_log_dropped: Counter,
    pub(super) spans_dropped: Counter,
    pub(super) series_overflow: Counter,
    pub(super) ejections: Counter,
    pub(super) overflows: Counter,
    pub(super) retries_refused: Counter,
}

impl Default for Families {
    fn default() -> Self {
        Self {
            dns_upstream_duration: Family::new_with_constructor(|| {
                Histogram::new([0.0005, 0.001, 0.01, 0.1, 1.0, 5.0])
            }),
            sockets_open: Family::default(),
            dns_requests: Family::default(),
            dns_upstream_requests: Family::default(),
            dns_upstream_failures: Family::default(),
            on_demand_dns: Family::default(),
            xds_messages: Family::default(),
            xds_message_bytes: Family::default(),
            xds_terminations: Family::default(),
            active_proxies: Gauge::default(),
            pending_proxies: Gauge::default(),
            proxies_started: Counter::default(),
            proxies_stopped: Counter::default(),
            access_log_dropped: Counter::default(),
            spans_dropped: Counter::default(),
            series_overflow: Counter::default(),
            ejections: Counter::default(),
            overflows: Counter::default(),
            retries_refused: Counter::default(),
        }
    }
}

impl Families {
    /// Registers everything under Istio's names; counters get `_total` when written.
    pub(super) fn register(&self, registry: &mut Registry) {
        let istio = registry.sub_registry_with_prefix("istio");
        istio.register("tcp_sockets_open", "Sockets open now", self.sockets_open.clone());
        istio.register("dns_requests", "DNS queries of pods", self.dns_requests.clone());
        istio.register("dns_upstream_requests", "DNS queries passed on", self.dns_upstream_requests.clone());
        istio.register(
            "dns_upstream_failures",
            "DNS queries passed on that got no answer",
            self.dns_upstream_failures.clone(),
        );
        istio.register(
            "dns_upstream_request_duration_seconds",
            "Seconds until a DNS query passed on was answered",
            self.dns_upstream_duration.clone(),
        );
        istio.register("on_demand_dns", "Host names resolved to reach an endpoint", self.on_demand_dns.clone());
        istio.register("xds_message", "Discovery responses received", self.xds_messages.clone());
        istio.register("xds_message_bytes", "Bytes of discovery responses received", self.xds_message_bytes.clone());
        istio.register("xds_connection_terminations", "Discovery streams ended", self.xds_terminations.clone());
        let manager = registry.sub_registry_with_prefix("workload_manager");
        manager.register("active_proxy_count", "Pods that have their listeners", self.active_proxies.clone());
        manager.register("pending_proxy_count", "Pods that wait for their listeners", self.pending_proxies.clone());
        manager.register("proxies_started", "Pods that got listeners", self.proxies_started.clone());
        manager.register("proxies_stopped", "Pods that were let go", self.proxies_stopped.clone());
        let leno = registry.sub_registry_with_prefix("leno");
        leno.register(
            "access_log_dropped_lines",
            "Access log lines dropped because the log was not written fast enough",
            self.access_log_dropped.clone(),
        );
        leno.register(
            "spans_dropped",
            "Spans that were dropped because the collector did not take them fast enough, or at all",
            self.spans_dropped.clone(),
        );
        leno.register(
            "metric_series_overflow",
            "Look-ups of label sets of connections and requests beyond the limit, counted together",
            self.series_overflow.clone(),
        );
        leno.register(
            "endpoint_ejections",
            "Endpoints that were left out for a while because they failed too often",
            self.ejections.clone(),
        );
        leno.register(
            "connection_pool_overflows",
            "Requests and connections that were refused because a DestinationRule permits no more",
            self.overflows.clone(),
        );
        leno.register(
            "retries_refused",
            "Requests that were not sent again because too many were",
            self.retries_refused.clone(),
        );
    }

    pub(super) fn socket(&self, reporter: Reporter) -> OpenSocket {
        OpenSocket::new(self.sockets_open.get_or_create_owned(&reporter.into()))
    }

    pub(super) fn on_demand_dns(&self, source: &Workload, hostname: &str) {
        let labels = OnDemandDnsLabels {
            source_workload: known(&source.workload_name),
            source_canonical_service: known(&source.canonical_name),
            source_canonical_revision: known(&source.canonical_revision),
            source_workload_namespace: known(&source.namespace),
            hostname: hostname.to_owned(),
        };
        self.on_demand_dns.get_or_create(&labels).inc();
    }

    pub(super) fn xds_terminated(&self, reason: XdsTermination) {
        let reason = match reason {
            XdsTermination::ConnectionError => "ConnectionError",
            XdsTermination::Error => "Error",
            XdsTermination::Reconnect => "Reconnect",
            XdsTermination::Complete => "Complete",
        };
        self.xds_terminations.get_or_create(&ReasonLabel { reason }).inc();
    }
}
