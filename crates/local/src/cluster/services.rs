//! Virtual addresses of services on a node, for pods outside the mesh and for UDP: what
//! kube-proxy does, as nf_tables rules inside the node's namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use leno_capture::NetworkNamespace;
use leno_capture::nft::{self, Batch, Chain, ChainType, Family, Hook, Protocol, Rule, Table};
use leno_model::{Endpoint, Health, HealthPolicy, LoadBalancingMode, Mesh, RoutingScope, Service, ServiceName};
use leno_objects::{IntOrString, Object, Pod};

use crate::cluster::addresses::NodeAddresses;

/// Name of the table in the node's namespace.
const TABLE: &str = "leno-services";

/// Ports of services as declared: what rules and DNS need of them beyond the mesh's model, which
/// knows neither names nor UDP.
pub(crate) type DeclaredPorts = Vec<DeclaredPort>;

/// A port of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeclaredPort {
    pub service: ServiceName,
    /// Empty if it has none.
    pub name: String,
    pub protocol: leno_objects::Protocol,
    pub port: u16,
    pub target: PortTarget,
}

impl DeclaredPort {
    /// Which port of an endpoint it leads to, if to any.
    pub(crate) fn of(&self, endpoint: &Endpoint) -> Option<u16> {
        match &self.target {
            PortTarget::Number(number) => Some(*number),
            PortTarget::Named(by_pod) => by_pod.get(&*endpoint.workload.name).copied(),
        }
    }
}

/// Where a port leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PortTarget {
    /// The same port of every endpoint.
    Number(u16),
    /// What each pod calls by that name, by pod.
    Named(BTreeMap<String, u16>),
}

/// One virtual address and port, and who serves it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServiceRule {
    pub address: SocketAddr,
    pub udp: bool,
    /// Empty: connections are refused at once instead of timing out.
    pub endpoints: Vec<SocketAddr>,
}

/// The ports of all declared services; `pods` are those that run.
pub(crate) fn declared_ports<'a>(
    objects: impl Iterator<Item = &'a Object>,
    pods: &[&Pod],
    cluster_domain: &str,
) -> DeclaredPorts {
    let mut found = DeclaredPorts::new();
    for object in objects {
        let Object::Service(service) = object else { continue };
        let (namespace, name) = (&service.metadata.namespace, &service.metadata.name);
        for port in &service.spec.ports {
            let target = match &port.target_port {
                None => PortTarget::Number(port.port.0),
                Some(IntOrString::Int(number)) => PortTarget::Number(*number),
                Some(IntOrString::String(wanted)) => {
                    let of_pod = |pod: &&&Pod| pod.metadata.namespace == *namespace;
                    let named = |pod: &&Pod| {
                        let mut ports = pod.spec.containers.iter().flat_map(|container| &container.ports);
                        let port = ports.find(|port| port.name == *wanted)?;
                        Some((pod.metadata.name.to_string(), port.container_port.0))
                    };
                    PortTarget::Named(pods.iter().filter(of_pod).filter_map(named).collect())
                }
            };
            let hostname = format!("{name}.{namespace}.svc.{cluster_domain}");
            let service = ServiceName { namespace: namespace.clone(), hostname: hostname.into() };
            let (name, protocol) = (port.name.clone(), port.protocol);
            found.push(DeclaredPort { service, name, protocol, port: port.port.0, target });
        }
    }
    found
}

/// What a node's rules should be. A port that is not declared any more has none, though the mesh
/// still has it: rules go before the proxies forget a service, or what they then take for an
/// address outside of the mesh would be led into it, in the clear.
pub(crate) fn plan(mesh: &Mesh, declared: &[DeclaredPort], node: &str) -> Vec<ServiceRule> {
    let mut rules = BTreeSet::new();
    let tcp = declared.iter().filter(|port| port.protocol == leno_objects::Protocol::Tcp);
    let tcp: BTreeSet<(&ServiceName, u16)> = tcp.map(|port| (&port.service, port.port)).collect();
    for service in mesh.services() {
        let sockets = |target: &dyn Fn(&Endpoint) -> Option<u16>| -> BTreeSet<SocketAddr> {
            eligible(mesh, service, node)
                .filter_map(|endpoint| Some((endpoint, target(endpoint)?)))
                .flat_map(|(endpoint, port)| {
                    endpoint.workload.addresses.iter().map(move |ip| SocketAddr::new(*ip, port))
                })
                .collect()
        };
        let mut add = |port: u16, udp: bool, endpoints: &BTreeSet<SocketAddr>| {
            for ip in service.addresses.iter().map(|address| address.address) {
                rules.insert(ServiceRule {
                    address: SocketAddr::new(ip, port),
                    udp,
                    endpoints: endpoints.iter().copied().filter(|to| to.is_ipv4() == ip.is_ipv4()).collect(),
                });
            }
        };
        for port in service.ports.iter().filter(|port| tcp.contains(&(&service.id, port.service_port))) {
            add(port.service_port, false, &sockets(&|endpoint| endpoint.target_port(port)));
        }
        let is_udp = |port: &&DeclaredPort| port.service == service.id && port.protocol == leno_objects::Protocol::Udp;
        for port in declared.iter().filter(is_udp) {
            add(port.port, true, &sockets(&|endpoint| port.of(endpoint)));
        }
    }
    rules.into_iter().collect()
}

/// The part of `wanted` that every proxy knows of already, if `installed` is what there was: all
/// but new addresses and ports for TCP. Rules come after the proxies know a service, as they go
/// before (see [`plan`]).
pub(crate) fn known(wanted: &[ServiceRule], installed: &[ServiceRule]) -> Vec<ServiceRule> {
    let old: BTreeSet<SocketAddr> = installed.iter().filter(|rule| !rule.udp).map(|rule| rule.address).collect();
    wanted.iter().filter(|rule| rule.udp || old.contains(&rule.address)).cloned().collect()
}

fn eligible<'a>(mesh: &'a Mesh, service: &'a Service, node: &'a str) -> impl Iterator<Item = &'a Endpoint> {
    let balancing = &service.load_balancing;
    // internalTrafficPolicy: Local.
    let local =
        balancing.mode == LoadBalancingMode::Strict && balancing.routing_preference.contains(&RoutingScope::Node);
    let all = balancing.health_policy == HealthPolicy::AllowAll;
    mesh.endpoints(&service.id).filter(move |endpoint| {
        let workload = &endpoint.workload;
        (all || workload.health == Health::Healthy) && (!local || &*workload.node == node)
    })
}

/// Puts the rules in place, all at once: a packet meets the old ones or the new ones.
///
/// # Errors
/// If the kernel refuses a rule; then the old ones stay.
pub(crate) fn install(
    namespace: &NetworkNamespace,
    node: NodeAddresses,
    rules: &[ServiceRule],
) -> leno_capture::Result<()> {
    let table = Table::new(Family::Inet, TABLE);
    let mut batch = Batch::new();
    batch.replace_table(&table);
    // Kubernetes' order: destinations are translated before routing (-100), sources after (100).
    batch.add_chain(&table, Chain::base("prerouting", ChainType::Nat, Hook::Prerouting, -100));
    batch.add_chain(&table, Chain::base("output", ChainType::Nat, Hook::Output, -100));
    batch.add_chain(&table, Chain::base("postrouting", ChainType::Nat, Hook::Postrouting, 100));
    batch.add_chain(&table, Chain::base("refuse-forwarded", ChainType::Filter, Hook::Prerouting, 0));
    batch.add_chain(&table, Chain::base("refuse-own", ChainType::Filter, Hook::Output, 0));
    batch.add_chain(&table, Chain::regular("services"));
    batch.add_chain(&table, Chain::regular("refuse"));
    for chain in ["prerouting", "output"] {
        batch.add_rule(&table, chain, Rule::new().jump("services"));
    }
    for chain in ["refuse-forwarded", "refuse-own"] {
        batch.add_rule(&table, chain, Rule::new().jump("refuse"));
    }
    let mut hairpins = BTreeSet::new();
    for rule in rules {
        let protocol = if rule.udp { Protocol::Udp } else { Protocol::Tcp };
        if rule.endpoints.is_empty() {
            batch.add_rule(&table, "refuse", Rule::new().l4proto(protocol).to(rule.address).reject());
        }
        for balanced in nft::balance(protocol, rule.address, &rule.endpoints) {
            batch.add_rule(&table, "services", balanced);
        }
        hairpins.extend(rule.endpoints.iter().map(SocketAddr::ip));
    }
    // A pod that reaches itself through a service would answer itself directly, and the answer
    // would come from the wrong address.
    for ip in hairpins {
        let own: IpAddr = if ip.is_ipv4() { node.gateway_v4().into() } else { node.gateway_v6().into() };
        batch.add_rule(&table, "postrouting", Rule::new().saddr(ip).daddr(ip).snat(SocketAddr::new(own, 0)));
    }
    batch.commit(namespace)
}

#[cfg(test)]
#[path = "services_tests.rs"]
mod tests;
