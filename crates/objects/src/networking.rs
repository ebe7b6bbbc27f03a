//! Istio's DestinationRule.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, Visitor};

use super::decode::{Context, Field, object, word};
use super::meta::ObjectMeta;
use super::scalars::PortNumber;
use super::security::WorkloadSelector;

object! {
    /// How requests are spread over the endpoints of a service, and when an endpoint is left out.
    pub struct DestinationRule {
        /// Name and namespace.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// The rule.
        spec: DestinationRuleSpec = "spec" (required),
    }
    besides {
        /// The parts that were not understood and are missing here (only with [`Mode::Lenient`](crate::Mode)).
        not_understood: Vec<String>,
    }
    silent ["apiVersion", "kind", "status"]
}

object! {
    /// The contents of a DestinationRule.
    pub struct DestinationRuleSpec {
        /// The service: its host name, its name alone, or `*.` and the end of host names.
        host: String = "host" (required),
        /// What is done.
        traffic_policy: Option<Box<DestinationTrafficPolicy>> = "trafficPolicy",
        /// Parts of the endpoints.
        subsets: Vec<DestinationSubset> = "subsets",
        /// Namespaces whose clients see it.
        export_to: Vec<String> = "exportTo",
        /// The clients that it is for.
        workload_selector: Option<WorkloadSelector> = "workloadSelector",
    }
}

object! {
    /// A part of the endpoints.
    pub struct DestinationSubset {
        /// Name.
        name: String = "name" (required),
    }
    silent ["labels", "trafficPolicy"]
}

object! {
    /// What a rule says of a service's endpoints.
    pub struct DestinationTrafficPolicy {
        /// How an endpoint is chosen.
        load_balancer: Option<LoadBalancerSettings> = "loadBalancer",
        /// Limits of connections and requests.
        connection_pool: Option<ConnectionPoolSettings> = "connectionPool",
        /// When an endpoint is left out.
        outlier_detection: Option<OutlierDetection> = "outlierDetection",
        /// How clients encrypt.
        tls: Option<ClientTlsSettings> = "tls",
        /// What is said of single ports instead.
        port_level_settings: Vec<PortTrafficPolicy> = "portLevelSettings",
        /// How many requests may be sent again.
        retry_budget: Option<RetryBudget> = "retryBudget",
        /// A tunnel through another proxy.
        tunnel: Option<Anything> = "tunnel",
        /// The PROXY protocol.
        proxy_protocol: Option<Anything> = "proxyProtocol",
    }
}

object! {
    /// What a rule says of one port.
    pub struct PortTrafficPolicy {
        /// The port of the service.
        port: Option<PortSelector> = "port",
        /// How an endpoint is chosen.
        load_balancer: Option<LoadBalancerSettings> = "loadBalancer",
        /// Limits of connections and requests.
        connection_pool: Option<ConnectionPoolSettings> = "connectionPool",
        /// When an endpoint is left out.
        outlier_detection: Option<OutlierDetection> = "outlierDetection",
        /// How clients encrypt.
        tls: Option<ClientTlsSettings> = "tls",
    }
}

object! {
    /// A port of a service.
    pub struct PortSelector {
        /// Its number.
        number: PortNumber = "number" (required),
    }
}

object! {
    /// How an endpoint is chosen.
    pub struct LoadBalancerSettings {
        /// One of the simple ways.
        simple: Option<SimpleLoadBalancer> = "simple",
        /// By what the request carries.
        consistent_hash: Option<ConsistentHash> = "consistentHash",
        /// Preference for endpoints that are near.
        locality_lb_setting: Option<LocalityLoadBalancer> = "localityLbSetting",
        /// How slowly a new endpoint gets its share.
        warmup: Option<Anything> = "warmup",
        /// The same, older form.
        warmup_duration_secs: Option<Anything> = "warmupDurationSecs",
    }
}

word! {
    /// A simple way to choose an endpoint.
    pub enum SimpleLoadBalancer {
        /// The mesh's own.
        #[default]
        Unspecified = "UNSPECIFIED",
        /// As `LEAST_REQUEST`, older form.
        LeastConn = "LEAST_CONN",
        /// At random.
        Random = "RANDOM",
        /// The address that the client asked for.
        Passthrough = "PASSTHROUGH",
        /// One after the other.
        RoundRobin = "ROUND_ROBIN",
        /// The one with the least to do.
        LeastRequest = "LEAST_REQUEST",
    }
}

object! {
    /// The endpoint depends on what the request carries. One of the first four.
    pub struct ConsistentHash {
        /// A header.
        http_header_name: Option<String> = "httpHeaderName",
        /// A cookie.
        http_cookie: Option<HashCookie> = "httpCookie",
        /// The client's address.
        use_source_ip: Option<bool> = "useSourceIp",
        /// A parameter of the query.
        http_query_parameter_name: Option<String> = "httpQueryParameterName",
    }
    // How another proxy stores its table; the choice here needs none.
    silent ["ringHash", "maglev", "minimumRingSize"]
}

object! {
    /// A cookie that decides about the endpoint.
    pub struct HashCookie {
        /// Name.
        name: String = "name" (required),
        /// For which paths clients send it.
        path: Option<String> = "path",
        /// How long clients keep it, where the proxy gives it to them.
        ttl: Option<GoDuration> = "ttl",
        /// More attributes.
        attributes: Option<Anything> = "attributes",
    }
}

object! {
    /// Preference for endpoints that are near.
    pub struct LocalityLoadBalancer {
        /// Whether there is any.
        enabled: Option<bool> = "enabled",
        /// Shares by place.
        distribute: Option<Anything> = "distribute",
        /// The next place of each.
        failover: Option<Anything> = "failover",
        /// Labels in their order.
        failover_priority: Option<Anything> = "failoverPriority",
    }
}

object! {
    /// Limits of connections and requests.
    pub struct ConnectionPoolSettings {
        /// Of all connections.
        tcp: Option<TcpSettings> = "tcp",
        /// Of requests.
        http: Option<HttpSettings> = "http",
    }
}

object! {
    /// Limits of connections.
    pub struct TcpSettings {
        /// Connections to all endpoints.
        max_connections: Option<u32> = "maxConnections",
        /// How long a connect may take.
        connect_timeout: Option<GoDuration> = "connectTimeout",
        /// How long a connection is kept without bytes.
        idle_timeout: Option<GoDuration> = "idleTimeout",
        /// How old a connection may get.
        max_connection_duration: Option<GoDuration> = "maxConnectionDuration",
        /// Probes of the kernel.
        tcp_keepalive: Option<Anything> = "tcpKeepalive",
    }
}

object! {
    /// Limits of requests.
    pub struct HttpSettings {
        /// Requests that wait for a connection.
        http1_max_pending_requests: Option<u32> = "http1MaxPendingRequests",
        /// Requests that are open.
        http2_max_requests: Option<u32> = "http2MaxRequests",
        /// Requests on one connection, one after the other; 0 for any number.
        max_requests_per_connection: Option<u32> = "maxRequestsPerConnection",
        /// Requests that are being sent again.
        max_retries: Option<u32> = "maxRetries",
        /// How long a connection is kept without a request.
        idle_timeout: Option<GoDuration> = "idleTimeout",
        /// Whether HTTP/1.1 becomes HTTP/2.
        h2_upgrade_policy: Option<String> = "h2UpgradePolicy",
        /// Whether the client's version of HTTP is kept.
        use_client_protocol: Option<bool> = "useClientProtocol",
        /// Requests on one connection at the same time.
        max_concurrent_streams: Option<u32> = "maxConcurrentStreams",
    }
}

object! {
    /// When an endpoint is left out.
    pub struct OutlierDetection {
        /// The older form, which means nothing any more.
        consecutive_errors: Option<u32> = "consecutiveErrors",
        /// Whether what happens before an answer counts apart.
        split_external_local_origin_errors: Option<bool> = "splitExternalLocalOriginErrors",
        /// Failures before an answer, in a row.
        consecutive_local_origin_failures: Option<u32> = "consecutiveLocalOriginFailures",
        /// Answers 502, 503 and 504 in a row.
        consecutive_gateway_errors: Option<u32> = "consecutiveGatewayErrors",
        /// Answers 5xx in a row.
        consecutive_5xx_errors: Option<u32> = "consecutive5xxErrors",
        /// How often it is looked whether one may come back.
        interval: Option<GoDuration> = "interval",
        /// How long one is left out the first time.
        base_ejection_time: Option<GoDuration> = "baseEjectionTime",
        /// Of a hundred endpoints, how many may be left out.
        max_ejection_percent: Option<u32> = "maxEjectionPercent",
        /// Of a hundred endpoints, how many must be left for any to be left out.
        min_health_percent: Option<u32> = "minHealthPercent",
    }
}

object! {
    /// How clients encrypt.
    pub struct ClientTlsSettings {
        /// How.
        mode: ClientTlsMode = "mode",
    }
    silent [
        "clientCertificate", "privateKey", "caCertificates", "credentialName", "subjectAltNames", "sni",
        "insecureSkipVerify", "caCrl",
    ]
}

word! {
    /// How clients encrypt.
    pub enum ClientTlsMode {
        /// Not at all.
        #[default]
        Disable = "DISABLE",
        /// With TLS.
        Simple = "SIMPLE",
        /// With TLS and a certificate of their own.
        Mutual = "MUTUAL",
        /// As the mesh does.
        IstioMutual = "ISTIO_MUTUAL",
    }
}

object! {
    /// How many requests may be sent again.
    pub struct RetryBudget {
        /// Of a hundred open requests.
        percent: Option<Percent> = "percent",
        /// As many always.
        min_retry_concurrency: Option<u32> = "minRetryConcurrency",
        /// The time over which requests are counted.
        budget_interval: Option<GoDuration> = "budgetInterval",
    }
}

/// A value of any kind, of which only matters that it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Anything;

impl<'de> Field<'de> for Anything {
    fn decode<D: Deserializer<'de>>(from: D, _: &mut Context) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(from).map(|_| Self)
    }
}

/// A share, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Percent(pub u32);

impl<'de> Field<'de> for Percent {
    fn decode<D: Deserializer<'de>>(from: D, cx: &mut Context) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = f64;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number from 0 to 100")
            }
            fn visit_f64<E>(self, number: f64) -> Result<f64, E> {
                Ok(number)
            }
            fn visit_u64<E>(self, number: u64) -> Result<f64, E> {
                Ok(number as f64)
            }
            fn visit_i64<E>(self, number: i64) -> Result<f64, E> {
                Ok(number as f64)
            }
        }
        let number = from.deserialize_any(Number)?;
        if !(0.0..=100.0).contains(&number) {
            return Err(D::Error::custom(format!("{}: {number} is not a number from 0 to 100", cx.path())));
        }
        Ok(Self((number * 10_000.0).round() as u32))
    }
}

/// A duration as Istio writes it: numbers, also with a point, each with `h`, `m`, `s`, `ms`, `us` or `ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct GoDuration(pub Duration);

/// Longer than anybody waits, and short enough to add up.
const LONGEST: f64 = 1e9;

impl std::str::FromStr for GoDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a duration such as 1h30m, 1.5s or 100ms");
        let (mut rest, mut seconds) = (text, 0.0);
        if rest.is_empty() {
            return Err(bad());
        }
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
            let number: f64 = rest[..digits].parse().map_err(|_| bad())?;
            rest = &rest[digits..];
            let units =
                [("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];
            let (unit, length) = units.into_iter().find(|(unit, _)| rest.starts_with(unit)).ok_or_else(bad)?;
            seconds += number * length;
            rest = &rest[unit.len()..];
        }
        if seconds > LONGEST {
            return Err(bad());
        }
        Duration::try_from_secs_f64(seconds).map(Self).map_err(|_| bad())
    }
}

impl<'de> Field<'de> for GoDuration {
    fn decode<D: Deserializer<'de>>(from: D, cx: &mut Context) -> Result<Self, D::Error> {
        let text = String::decode(from, cx)?;
        text.parse().map_err(|why| D::Error::custom(format!("{}: {why}", cx.path())))
    }
}

#[cfg(test)]
#[path = "networking_tests.rs"]
mod tests;
