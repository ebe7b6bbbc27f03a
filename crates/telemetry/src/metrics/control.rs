//! Metrics of a control plane. Those that istiod has too carry its names: `pilot_…` about discovery, `citadel_…` about
//! certificates. Its counters have no `_total` at the end of their names, so these have none either: alerts and
//! dashboards that were written for istiod find them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, LabelSetEncoder, MetricEncoder};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};

use super::Page;

/// Upper bounds of convergence times, seconds. istiod's begin at 0.1; a change usually takes less here.
const CONVERGENCE: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0];
/// Upper bounds of responses' sizes, bytes; istiod's.
const SIZES: [f64; 6] = [1.0, 1e4, 1e6, 4e6, 1e7, 4e7];

/// What a control plane counts. Clones share the counts.
#[derive(Debug, Clone)]
pub struct ControlMetrics {
    pushes: Family<TypeLabel, IstioCounter>,
    rejects: Family<TypeLabel, IstioCounter>,
    sizes: Family<TypeLabel, Histogram, fn() -> Histogram>,
    convergence: Histogram,
    requests: IstioCounter,
    issued: IstioCounter,
    authentication_failures: IstioCounter,
    malformed: IstioCounter,
    unsigned: IstioCounter,
    connections: Family<StateLabel, Gauge>,
    refused: Family<ReasonLabel, Counter>,
    bad_tokens: Counter,
}

/// What a control plane is at the time of a scrape.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ControlState {
    /// Services of the mesh.
    pub services: usize,
    /// Workloads of the mesh.
    pub workloads: usize,
    /// Authorisation policies of the mesh.
    pub policies: usize,
    /// Connected proxies.
    pub proxies: usize,
    /// How many versions of the mesh were published.
    pub versions: u64,
    /// Connected proxies that have not answered the latest version.
    pub behind: usize,
    /// Most connections there may be, by state.
    pub connection_limits: Vec<(ConnectionState, usize)>,
    /// End of the validity of the root that signs, if it can be read.
    pub root_not_after: Option<SystemTime>,
    /// End of the validity of the certificate that signs.
    pub signing_not_after: Option<SystemTime>,
}

/// Whether a connection to the control plane has shown a good token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConnectionState {
    /// The connection has shown a good token.
    Authenticated,
    /// The connection has not shown a good token yet.
    Unauthenticated,
}

impl ConnectionState {
    fn as_str(self) -> &'static str {
        match self {
            Self::Authenticated => "authenticated",
            Self::Unauthenticated => "unauthenticated",
        }
    }
}

/// What became of a certificate request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestOutcome {
    /// A certificate was issued.
    Issued,
    /// The caller showed no good token, or may not have a certificate for that identity.
    Denied,
    /// The request could not be understood.
    Malformed,
    /// It could not be signed.
    Failed,
}

impl Default for ControlMetrics {
    fn default() -> Self {
        Self {
            pushes: Family::default(),
            rejects: Family::default(),
            sizes: Family::new_with_constructor(|| Histogram::new(SIZES)),
            convergence: Histogram::new(CONVERGENCE),
            requests: IstioCounter::default(),
            issued: IstioCounter::default(),
            authentication_failures: IstioCounter::default(),
            malformed: IstioCounter::default(),
            unsigned: IstioCounter::default(),
            connections: Family::default(),
            refused: Family::default(),
            bad_tokens: Counter::default(),
        }
    }
}

impl ControlMetrics {
    /// A page of these metrics, and of what `state` returns at each scrape. `tag` is the version that runs.
    pub fn page(&self, tag: &str, state: impl Fn() -> ControlState + Send + Sync + 'static) -> Page {
        let page = Page::new("control", tag);
        page.register(|registry| {
            registry.register("pilot_xds_pushes", "Discovery responses sent", self.pushes.clone());
            registry.register(
                "pilot_total_xds_rejects",
                "Discovery responses of which a proxy refused at least one resource",
                self.rejects.clone(),
            );
            registry.register("pilot_xds_config_size_bytes", "Bytes of a discovery response", self.sizes.clone());
            registry.register(
                "pilot_proxy_convergence_time",
                "Seconds from a change of objects until a proxy has accepted what follows from it",
                self.convergence.clone(),
            );
            registry.register("citadel_server_csr_count", "Certificate requests received", self.requests.clone());
            registry.register("citadel_server_success_cert_issuance_count", "Certificates issued", self.issued.clone());
            registry.register(
                "citadel_server_authentication_failure_count",
                "Certificate requests without a good token, or for an identity that the caller may not have",
                self.authentication_failures.clone(),
            );
            registry.register(
                "citadel_server_csr_parsing_err_count",
                "Certificate requests that could not be understood",
                self.malformed.clone(),
            );
            registry.register(
                "citadel_server_csr_sign_err_count",
                "Certificate requests that could not be signed",
                self.unsigned.clone(),
            );
            registry.register(
                "leno_control_connections",
                "Connections of clients, by whether they have shown a good token",
                self.connections.clone(),
            );
            registry.register(
                "leno_control_connections_refused",
                "Connections refused or ended for want of a place or of a good token, by reason",
                self.refused.clone(),
            );
            registry.register(
                "leno_discovery_authentication_failures",
                "Discovery streams refused because they showed no good token",
                self.bad_tokens.clone(),
            );
            registry.register_collector(Box::new(AtScrape(Box::new(state))));
        });
        page
    }

    /// A response of `bytes` bytes was sent. `type_url` is the type of its resources.
    pub fn pushed(&self, type_url: &str, bytes: usize) {
        let label = TypeLabel::of(type_url);
        self.pushes.get_or_create(&label).inc();
        self.sizes.get_or_create(&label).observe(bytes as f64);
    }

    /// A proxy refused at least one resource of a response.
    pub fn rejected(&self, type_url: &str) {
        self.rejects.get_or_create(&TypeLabel::of(type_url)).inc();
    }

    /// A proxy has accepted a change this long after it was made.
    pub fn converged(&self, took: Duration) {
        self.convergence.observe(took.as_secs_f64());
    }

    /// A certificate request came.
    pub fn certificate_requested(&self) {
        self.requests.inc();
    }

    /// A certificate request was answered.
    pub fn certificate_answered(&self, outcome: RequestOutcome) {
        let counter = match outcome {
            RequestOutcome::Issued => &self.issued,
            RequestOutcome::Denied => &self.authentication_failures,
            RequestOutcome::Malformed => &self.malformed,
            RequestOutcome::Failed => &self.unsigned,
        };
        counter.inc();
    }

    /// A discovery stream showed no good token.
    pub fn discovery_denied(&self) {
        self.bad_tokens.inc();
    }

    /// Counts a connection in this state until the result is dropped.
    pub fn connection(&self, state: ConnectionState) -> Counted {
        Counted::new(&self.connections.get_or_create_owned(&StateLabel { state: state.as_str() }))
    }

    /// A connection got no place or lost it. `reason` is a word from a short list.
    pub fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&ReasonLabel { reason }).inc();
    }
}

/// Something that is counted in a gauge until it is dropped.
#[derive(Debug)]
pub struct Counted(Gauge);

impl Counted {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// A type of resources, by istiod's short name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct TypeLabel(&'static str);

impl TypeLabel {
    fn of(type_url: &str) -> Self {
        Self(match type_url.rsplit('/').next().unwrap_or_default() {
            "istio.workload.Address" | "istio.workload.Workload" => "wds",
            "istio.security.Authorization" => "wads",
            "istio.mesh.v1alpha1.ProxyConfig" => "pcds",
            // A client chooses the type, so what is unknown must not become a series each.
            _ => "other",
        })
    }
}

impl EncodeLabelSet for TypeLabel {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        [("type", self.0)].encode(encoder)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// A counter whose name does not end in `_total`. OpenMetrics has no such counter, so there its type is `unknown`.
#[derive(Debug, Clone, Default)]
struct IstioCounter(Arc<AtomicU64>);

impl IstioCounter {
    fn inc(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl TypedMetric for IstioCounter {
    const TYPE: MetricType = MetricType::Unknown;
}

impl EncodeMetric for IstioCounter {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        encoder.encode_gauge(&(self.0.load(Relaxed) as i64))
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

/// What is read when it is asked for.
struct AtScrape(Box<dyn Fn() -> ControlState + Send + Sync>);

impl fmt::Debug for AtScrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtScrape").finish_non_exhaustive()
    }
}

impl Collector for AtScrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = (self.0)();
        let now = SystemTime::now();
        let mut gauges = vec![
            ("pilot_xds", "Connected proxies.", state.proxies as i64),
            ("pilot_services", "Services of the mesh.", state.services as i64),
            ("leno_workloads", "Workloads of the mesh.", state.workloads as i64),
            ("leno_policies", "Authorisation policies of the mesh.", state.policies as i64),
            (
                "leno_proxies_behind",
                "Connected proxies that have not answered the latest version.",
                state.behind as i64,
            ),
        ];
        for (at, left, what, not_after) in [
            (
                "citadel_server_root_cert_expiry_timestamp",
                "citadel_server_root_cert_expiry_seconds",
                ["Unix time at which the root that signs expires.", "Seconds until the root that signs expires."],
                state.root_not_after,
            ),
            (
                "citadel_server_cert_chain_expiry_timestamp",
                "citadel_server_cert_chain_expiry_seconds",
                [
                    "Unix time at which the signing certificate expires.",
                    "Seconds until the signing certificate expires.",
                ],
                state.signing_not_after,
            ),
        ] {
            if let Some(not_after) = not_after {
                gauges.push((at, what[0], seconds_from(SystemTime::UNIX_EPOCH, not_after)));
                gauges.push((left, what[1], seconds_from(now, not_after)));
            }
        }
        for (name, help, value) in gauges {
            ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        let mut limits = encoder.encode_descriptor(
            "leno_control_connections_limit",
            "Most connections there may be on each address, by whether they have shown a good token.",
            None,
            MetricType::Gauge,
        )?;
        for (state, limit) in state.connection_limits {
            ConstGauge::new(limit as i64).encode(limits.encode_family(&StateLabel { state: state.as_str() })?)?;
        }
        let versions = encoder.encode_descriptor(
            "leno_published_versions",
            "Versions of the mesh that were published.",
            None,
            MetricType::Counter,
        )?;
        ConstCounter::new(state.versions).encode(versions)
    }
}

/// Negative if `to` is before `from`.
fn seconds_from(from: SystemTime, to: SystemTime) -> i64 {
    match to.duration_since(from) {
        Ok(ahead) => ahead.as_secs() as i64,
        Err(behind) => -(behind.duration().as_secs() as i64),
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
