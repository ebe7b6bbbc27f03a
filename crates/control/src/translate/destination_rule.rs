//! Translates DestinationRules into what waypoints are told of services' endpoints, and says what of a rule is not honoured.
//!
//! For each Service one rule counts: one in its own namespace, or else one in the root namespace; of these, one with its host
//! name, or else the longest pattern; of those, the oldest. A waypoint serves all clients of a Service, so a rule that a client
//! wrote in its own namespace counts for nobody.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use leno_model::http::{Balancing, Ejection, EndpointPolicy, EndpointRules, HashOf, RetryBudget};
use leno_model::{Mesh, Name, PolicyName, ServiceName};
use leno_objects::{
    ClientTlsMode, ClientTlsSettings, ConnectionPoolSettings, ConsistentHash, DestinationRule, LoadBalancerSettings,
    OutlierDetection, SimpleLoadBalancer,
};

use super::index::Known;
use super::route::instead;
use super::rule_host::Host;

/// What becomes of a rule.
#[derive(Debug, Default)]
pub(super) struct Translated {
    /// `None` if it counts for no service.
    pub(super) policy: Option<EndpointPolicy>,
    /// Whether the last good version stays in force, because this one can't be followed.
    pub(super) keep_last: bool,
    pub(super) warnings: Vec<String>,
}

/// All rules, to find those that cover a host name.
pub(super) struct Rules<'a>(pub(super) Known<'a>);

impl<'a> Rules<'a> {
    /// The rule that counts for a service: one in its namespace, or else one in the root namespace; of these, the one that says
    /// most of the host; of those, the oldest.
    fn winner(&self, service: &ServiceName) -> Option<&'a DestinationRule> {
        let Known { options, store, index, .. } = self.0;
        let named = index.rules_covering(&service.hostname);
        let in_namespace = |namespace: &Name| {
            let rules = named.iter().filter(|(of, _)| of == namespace);
            let rules =
                rules.filter_map(|(of, name)| DestinationRule::get(store, of, name)).filter(|rule| counts(rule));
            let covering = rules.filter_map(|rule| {
                let host = Host::of(options, rule);
                host.covers(&service.hostname).then(|| {
                    let created = rule.metadata.creation_timestamp.map_or(SystemTime::UNIX_EPOCH, |at| at.0);
                    ((Reverse(host.strength()), created, rule.metadata.name.clone()), rule)
                })
            });
            covering.min_by(|(one, _), (other, _)| one.cmp(other)).map(|(_, rule)| rule)
        };
        in_namespace(&service.namespace).or_else(|| in_namespace(&options.root_namespace))
    }
}

/// Whether a rule is for all clients.
fn counts(rule: &DestinationRule) -> bool {
    rule.spec.workload_selector.is_none() && rule.not_understood.is_empty()
}

/// What stays in force of the last good version of a rule: what it says of services that the rule is still for, and for which
/// no other one counts by now.
pub(super) fn kept(rules: &Rules<'_>, rule: &DestinationRule, held: &EndpointPolicy) -> Option<EndpointPolicy> {
    let host = Host::of(rules.0.options, rule);
    let is_free = |service: &&ServiceName| host.covers(&service.hostname) && rules.winner(service).is_none();
    let services: Vec<ServiceName> = held.services.iter().filter(is_free).cloned().collect();
    (!services.is_empty()).then(|| EndpointPolicy { services, ..held.clone() })
}

/// Translates a rule.
pub(super) fn destination_rule(rules: &Rules<'_>, mesh: &Mesh, rule: &DestinationRule) -> Translated {
    let options = rules.0.options;
    let mut out = Translated::default();
    if !rule.not_understood.is_empty() {
        out.keep_last = true;
        let id = PolicyName { namespace: rule.metadata.namespace.clone(), name: rule.metadata.name.clone() };
        out.warnings.push(format!(
            "not understood by this version of Leno: {}; it is not followed, not even in part, and {}",
            rule.not_understood.join("; "),
            instead(mesh.endpoint_policy(&id).is_some())
        ));
        return out;
    }
    if rule.spec.workload_selector.is_some() {
        out.warnings.push(
            "spec.workloadSelector: a waypoint serves all clients, so a rule for some of them is NOT in force"
                .to_owned(),
        );
        return out;
    }
    let namespace = &rule.metadata.namespace;
    let is_root = **namespace == *options.root_namespace;
    let host = Host::of(options, rule);
    let covered = covered(mesh, namespace, &host);
    let mut elsewhere = None;
    let mut services = Vec::new();
    for service in covered {
        if service.namespace != *namespace && !is_root {
            elsewhere = elsewhere.or(Some(service));
            continue;
        }
        match rules.winner(&service) {
            Some(winner) if std::ptr::eq(winner, rule) => services.push(service),
            Some(winner) if matches!(host, Host::Exact(_)) => out.warnings.push(format!(
                "DestinationRule {}/{} counts for {}, and this one does NOT",
                winner.metadata.namespace, winner.metadata.name, service.hostname
            )),
            _ => {}
        }
    }
    if services.is_empty() {
        if let Some(service) = elsewhere {
            out.warnings.push(format!(
                "spec.host: {} belongs to namespace {}, and a waypoint serves all its clients alike: a rule in another \
                 namespace than its own or {} is NOT in force",
                service.hostname, service.namespace, options.root_namespace
            ));
        } else if out.warnings.is_empty() && matches!(host, Host::Exact(_)) {
            out.warnings.push(format!(
                "spec.host: no Service of the mesh has the host name {}, so the rule is NOT in force",
                match &host {
                    Host::Exact(host) | Host::Ending(host) => host,
                }
            ));
        }
        return out;
    }
    if services.iter().all(|service| mesh.service(service).is_none_or(|service| service.waypoint.is_none())) {
        out.warnings.push(
            "no waypoint stands before the Service, so the rule has no effect but for requests that a route of another \
             Service sends there; give the Service or its Namespace the label istio.io/use-waypoint"
                .to_owned(),
        );
    }
    let mut said = Said { warnings: &mut out.warnings };
    if !rule.spec.subsets.is_empty() {
        let names = rule.spec.subsets.iter().map(|subset| &*subset.name).collect::<Vec<_>>().join(", ");
        said.ignored("spec.subsets", &format!("nothing is sent to a subset ({names}); write a Service for each"));
    }
    if rule.spec.export_to.iter().any(|namespace| namespace != "*") {
        said.ignored("spec.exportTo", "the rule counts for all clients");
    }
    let policy = rule.spec.traffic_policy.as_deref().cloned().unwrap_or_default();
    let at = "spec.trafficPolicy";
    let mut of_all = rules_of(
        &format!("{at}."),
        policy.load_balancer.as_ref(),
        policy.connection_pool.as_ref(),
        policy.outlier_detection.as_ref(),
        &mut said,
    );
    tls(at, policy.tls.as_ref(), &mut said);
    for (field, is_there) in [("tunnel", policy.tunnel.is_some()), ("proxyProtocol", policy.proxy_protocol.is_some())] {
        if is_there {
            said.ignored(&format!("{at}.{field}"), "endpoints are reached as the mesh does it");
        }
    }
    let budget = policy.retry_budget.map(|budget| {
        if budget.budget_interval.is_some() {
            said.ignored(&format!("{at}.retryBudget.budgetInterval"), "requests that are open are counted");
        }
        RetryBudget {
            per_million: budget.percent.map_or(200_000, |percent| percent.0),
            at_least: budget.min_retry_concurrency.unwrap_or(3),
        }
    });
    of_all.retry_budget = budget;
    let mut ports = Vec::new();
    for (index, one) in policy.port_level_settings.iter().enumerate() {
        let at = format!("{at}.portLevelSettings[{index}]");
        let Some(port) = &one.port else {
            said.ignored(&at, "it names no port");
            continue;
        };
        let mut rules = rules_of(
            &format!("{at}."),
            one.load_balancer.as_ref(),
            one.connection_pool.as_ref(),
            one.outlier_detection.as_ref(),
            &mut said,
        );
        tls(&at, one.tls.as_ref(), &mut said);
        // What single ports can't say is said of all.
        rules.retry_budget = budget;
        ports.push((port.number.0, rules));
    }
    let id = PolicyName { namespace: namespace.clone(), name: rule.metadata.name.clone() };
    out.policy = Some(EndpointPolicy { id, services, rules: of_all, ports });
    out
}

/// The services whose host names a rule's host covers, in order.
fn covered(mesh: &Mesh, namespace: &Name, host: &Host) -> BTreeSet<ServiceName> {
    match host {
        Host::Exact(hostname) => {
            mesh.service_by_hostname(hostname, namespace).map(|service| service.id.clone()).into_iter().collect()
        }
        Host::Ending(_) => mesh
            .services()
            .filter(|service| host.covers(&service.id.hostname))
            .map(|service| service.id.clone())
            .collect(),
    }
}

/// What is said to a rule's author.
struct Said<'a> {
    warnings: &'a mut Vec<String>,
}

impl Said<'_> {
    fn ignored(&mut self, field: &str, instead: &str) {
        self.warnings.push(format!("{field} is ignored: {instead}"));
    }
}

fn tls(at: &str, tls: Option<&ClientTlsSettings>, said: &mut Said<'_>) {
    if let Some(tls) = tls
        && tls.mode != ClientTlsMode::IstioMutual
    {
        said.ignored(
            &format!("{at}.tls"),
            &format!(
                "mode {} would not be the mesh's; endpoints are reached by mutual TLS where they are in the mesh",
                tls.mode
            ),
        );
    }
}

fn rules_of(
    at: &str,
    load_balancer: Option<&LoadBalancerSettings>,
    connections: Option<&ConnectionPoolSettings>,
    outliers: Option<&OutlierDetection>,
    said: &mut Said<'_>,
) -> EndpointRules {
    let mut rules = EndpointRules::default();
    if let Some(it) = load_balancer {
        rules.balancing = balancing(at, it, said);
        if let Some(locality) = &it.locality_lb_setting {
            rules.anywhere = locality.enabled == Some(false);
            for (field, is_there) in [
                ("distribute", locality.distribute.is_some()),
                ("failover", locality.failover.is_some()),
                ("failoverPriority", locality.failover_priority.is_some()),
            ] {
                if is_there {
                    said.ignored(
                        &format!("{at}loadBalancer.localityLbSetting.{field}"),
                        "spec.trafficDistribution of the Service says which endpoints come first",
                    );
                }
            }
        }
        if it.warmup.is_some() || it.warmup_duration_secs.is_some() {
            said.ignored(
                &format!("{at}loadBalancer.warmup"),
                "a new endpoint is taken to need as long as the others until it has answered",
            );
        }
    }
    if let Some(it) = connections {
        limits(at, it, &mut rules, said);
    }
    rules.ejection = outliers.and_then(|it| ejection(at, it, said));
    rules
}

fn balancing(at: &str, it: &LoadBalancerSettings, said: &mut Said<'_>) -> Option<Balancing> {
    if let Some(hash) = &it.consistent_hash {
        return hash_of(at, hash, said).map(Balancing::Hash);
    }
    match it.simple? {
        SimpleLoadBalancer::Unspecified => None,
        SimpleLoadBalancer::LeastConn | SimpleLoadBalancer::LeastRequest => Some(Balancing::LeastRequest),
        SimpleLoadBalancer::RoundRobin => Some(Balancing::RoundRobin),
        SimpleLoadBalancer::Random => Some(Balancing::Random),
        SimpleLoadBalancer::Passthrough => {
            said.ignored(
                &format!("{at}loadBalancer.simple"),
                "a client of a Service names no endpoint that PASSTHROUGH could lead to",
            );
            None
        }
    }
}

fn hash_of(at: &str, hash: &ConsistentHash, said: &mut Said<'_>) -> Option<HashOf> {
    let at = format!("{at}loadBalancer.consistentHash");
    if let Some(cookie) = &hash.http_cookie {
        if cookie.ttl.is_some() || cookie.path.is_some() || cookie.attributes.is_some() {
            said.ignored(
                &format!("{at}.httpCookie.ttl, path and attributes"),
                "clients bring the cookie or are sent anywhere; none is given to them",
            );
        }
        return Some(HashOf::Cookie((*cookie.name).into()));
    }
    if let Some(header) = &hash.http_header_name {
        return Some(HashOf::Header(header.to_ascii_lowercase().into()));
    }
    if let Some(parameter) = &hash.http_query_parameter_name {
        return Some(HashOf::Query((**parameter).into()));
    }
    if hash.use_source_ip == Some(true) {
        return Some(HashOf::SourceIp);
    }
    said.ignored(&at, "it names nothing that a request has");
    None
}

fn limits(at: &str, it: &ConnectionPoolSettings, rules: &mut EndpointRules, said: &mut Said<'_>) {
    if let Some(tcp) = &it.tcp {
        let at = format!("{at}connectionPool.tcp");
        rules.max_connections = tcp.max_connections.filter(|most| *most > 0);
        rules.connect_timeout = tcp.connect_timeout.map(|it| it.0).filter(|it| !it.is_zero());
        for (field, is_there) in [
            ("idleTimeout", tcp.idle_timeout.is_some()),
            ("maxConnectionDuration", tcp.max_connection_duration.is_some()),
            ("tcpKeepalive", tcp.tcp_keepalive.is_some()),
        ] {
            if is_there {
                said.ignored(
                    &format!("{at}.{field}"),
                    "connections last as long as both ends want, and dead ones are found",
                );
            }
        }
    }
    if let Some(http) = &it.http {
        let at = format!("{at}connectionPool.http");
        rules.max_pending = http.http1_max_pending_requests.filter(|most| *most > 0);
        rules.max_requests = http.http2_max_requests.filter(|most| *most > 0);
        rules.max_requests_per_connection = http.max_requests_per_connection.filter(|most| *most > 0);
        rules.max_retries = http.max_retries;
        rules.idle_timeout = http.idle_timeout.map(|it| it.0).filter(|it| !it.is_zero());
        let upgrades = http.h2_upgrade_policy.as_deref().is_some_and(|policy| policy != "DEFAULT");
        for (field, is_there, instead) in [
            ("h2UpgradePolicy", upgrades, "the port's appProtocol says which version an endpoint speaks"),
            (
                "useClientProtocol",
                http.use_client_protocol == Some(true),
                "the client's version is kept wherever the port's appProtocol leaves it open",
            ),
            (
                "maxConcurrentStreams",
                http.max_concurrent_streams.is_some(),
                "a connection carries 100 requests at a time",
            ),
        ] {
            if is_there {
                said.ignored(&format!("{at}.{field}"), instead);
            }
        }
    }
}

/// Istio's defaults.
const CONSECUTIVE: u32 = 5;
const INTERVAL: Duration = Duration::from_secs(10);
const BASE: Duration = Duration::from_secs(30);
const MOST_PERCENT: u32 = 10;

fn ejection(at: &str, it: &OutlierDetection, said: &mut Said<'_>) -> Option<Ejection> {
    if it.consecutive_errors.is_some() {
        said.ignored(&format!("{at}outlierDetection.consecutiveErrors"), "write consecutive5xxErrors");
    }
    let threshold = |field: Option<u32>, otherwise| match field {
        None => otherwise,
        Some(0) => None,
        set => set,
    };
    let split_local = it.split_external_local_origin_errors == Some(true);
    let local = threshold(it.consecutive_local_origin_failures, Some(CONSECUTIVE));
    if !split_local && it.consecutive_local_origin_failures.is_some() {
        said.ignored(
            &format!("{at}outlierDetection.consecutiveLocalOriginFailures"),
            "it counts only with splitExternalLocalOriginErrors",
        );
    }
    Some(Ejection {
        consecutive_5xx: threshold(it.consecutive_5xx_errors, Some(CONSECUTIVE)),
        consecutive_gateway: threshold(it.consecutive_gateway_errors, None),
        consecutive_local: local.filter(|_| split_local),
        split_local,
        interval: it.interval.map_or(INTERVAL, |it| it.0).max(Duration::from_millis(1)),
        base: it.base_ejection_time.map_or(BASE, |it| it.0).max(Duration::from_millis(1)),
        max_percent: it.max_ejection_percent.unwrap_or(MOST_PERCENT).min(100),
        min_health_percent: it.min_health_percent.unwrap_or_default().min(100),
    })
}
