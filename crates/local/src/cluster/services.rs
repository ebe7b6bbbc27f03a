//! Virtual addresses of services on a node, for pods outside the mesh and for UDP: what
//! kube-proxy does, as nf_tables rules inside the node's namespace.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use leno_capture::NetworkNamespace;
use leno_capture::nft::{self, Batch, Chain, ChainType, Family, Hook, Protocol, Rule, Table};
use leno_model::{Mesh, Port, ServiceName, Transport};
use leno_objects::Object;
use leno_policy::ready_for_node;

use crate::cluster::addresses::NodeAddresses;

/// Name of the table in the node's namespace.
const TABLE: &str = "leno-services";

/// The ports of services that are declared now, ahead of the mesh.
pub(crate) type DeclaredPorts = BTreeSet<(ServiceName, Transport, u16)>;

/// One virtual address and port, with its endpoints.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServiceRule {
    pub address: SocketAddr,
    pub udp: bool,
    /// Empty: connections are refused at once instead of timing out.
    pub endpoints: Vec<SocketAddr>,
}

/// The ports of all declared services.
pub(crate) fn declared_ports<'a>(objects: impl Iterator<Item = &'a Object>, cluster_domain: &str) -> DeclaredPorts {
    let mut found = DeclaredPorts::new();
    for object in objects {
        let Object::Service(service) = object else { continue };
        let (namespace, name) = (&service.metadata.namespace, &service.metadata.name);
        let hostname = format!("{name}.{namespace}.svc.{cluster_domain}");
        let id = ServiceName { namespace: namespace.clone(), hostname: hostname.into() };
        for port in &service.spec.ports {
            let transport = match port.protocol {
                leno_objects::Protocol::Tcp => Transport::Tcp,
                leno_objects::Protocol::Udp => Transport::Udp,
                leno_objects::Protocol::Sctp => continue,
            };
            found.insert((id.clone(), transport, port.port.0));
        }
    }
    found
}

/// The service rules that a node should have. A port that is no longer declared has none, even if the mesh still has
/// it. Rules must go before the proxies forget a service. Otherwise the proxies would take its address for one outside
/// the mesh, and the rules would lead it into the mesh in plaintext.
pub(crate) fn plan(mesh: &Mesh, declared: &DeclaredPorts, node: &str) -> Vec<ServiceRule> {
    let mut rules = BTreeSet::new();
    for service in mesh.services() {
        let is_declared = |port: &&Port| declared.contains(&(service.id.clone(), port.transport, port.service_port));
        for port in service.ports.iter().filter(is_declared) {
            let endpoints: BTreeSet<SocketAddr> = ready_for_node(mesh, service, node)
                .filter_map(|endpoint| Some((endpoint, endpoint.target_port(port)?)))
                .flat_map(|(endpoint, port)| {
                    endpoint.workload.addresses.iter().map(move |ip| SocketAddr::new(*ip, port))
                })
                .collect();
            for ip in service.addresses.iter().map(|address| address.address) {
                rules.insert(ServiceRule {
                    address: SocketAddr::new(ip, port.service_port),
                    udp: port.transport == Transport::Udp,
                    endpoints: endpoints.iter().copied().filter(|to| to.is_ipv4() == ip.is_ipv4()).collect(),
                });
            }
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
