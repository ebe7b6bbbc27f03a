//! The answers of a cluster's DNS server: every name of Kubernetes' DNS-based service discovery, the same for all
//! clients.
//!
//! A pod of the mesh asks its proxy first, which answers from [`crate::dns`]. The proxy asks this server about names
//! that it doesn't know.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use leno_model::{Endpoint, Mesh, Name, Service, ServiceName, Transport};

use crate::dns::{Family, addresses_of};
use crate::endpoints::ready;

/// The meaning of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterAnswer {
    /// The name exists. Either list may be empty.
    Found {
        /// Addresses of both families.
        addresses: Vec<IpAddr>,
        /// Host names and ports of a named port.
        targets: Vec<(String, u16)>,
    },
    /// The name does not exist.
    Unknown,
}

/// The contents of a cluster's domain.
#[derive(Debug, Clone, Copy)]
pub struct ClusterDomain<'a> {
    /// The mesh as the cluster's control plane knows it, with port names.
    pub mesh: &'a Mesh,
    /// The network of the server's clients.
    pub network: &'a Name,
    /// The domain's name, such as `cluster.local`.
    pub name: &'a str,
}

/// Looks a name up. `name` is fully qualified, lower case, without the last dot.
pub fn lookup(domain: &ClusterDomain<'_>, name: &str) -> ClusterAnswer {
    let Some(rest) = name.strip_suffix(domain.name).and_then(|rest| rest.strip_suffix('.')) else {
        return ClusterAnswer::Unknown;
    };
    let labels: Vec<_> = rest.split('.').collect();
    let found = |addresses| ClusterAnswer::Found { addresses, targets: Vec::new() };
    match labels.as_slice() {
        // These names exist without records. "No such name" would make resolvers give up on all names below.
        ["svc"] | [_, "svc"] | ["pod"] | [_, "pod"] => found(Vec::new()),
        [service, namespace, "svc"] => match domain.service(namespace, service) {
            Some(service) => found(domain.addresses(service)),
            None => ClusterAnswer::Unknown,
        },
        [port, protocol, service, namespace, "svc"] => {
            let service = domain.service(namespace, service);
            match (service, port.strip_prefix('_'), protocol.strip_prefix('_').and_then(transport)) {
                (Some(service), Some(port), Some(transport)) => domain.targets(service, port, transport),
                _ => ClusterAnswer::Unknown,
            }
        }
        [endpoint, service, namespace, "svc"] => {
            let Some(service) = domain.service(namespace, service) else { return ClusterAnswer::Unknown };
            let own: Vec<_> = domain
                .mesh
                .endpoints(&service.id)
                .filter(|e| &*e.workload.name == *endpoint)
                .flat_map(|e| e.workload.addresses.iter().copied())
                .filter(|address| service.ip_families.permit(address))
                .collect();
            if own.is_empty() { ClusterAnswer::Unknown } else { found(own) }
        }
        [dashed, _, "pod"] => match dashed_address(dashed) {
            Some(address) => found(vec![address]),
            None => ClusterAnswer::Unknown,
        },
        _ => ClusterAnswer::Unknown,
    }
}

impl<'a> ClusterDomain<'a> {
    fn service(&self, namespace: &str, name: &str) -> Option<&'a Service> {
        let hostname = format!("{name}.{namespace}.svc.{}", self.name);
        let id = ServiceName { namespace: namespace.into(), hostname: hostname.into() };
        self.mesh.service(&id).map(AsRef::as_ref)
    }

    fn addresses(&self, service: &Service) -> Vec<IpAddr> {
        let of = |family| {
            let mut addresses = addresses_of(self.mesh, service, self.network, family);
            if service.addresses.is_empty() {
                // Endpoints come in no particular order. A stable order lets the caller rotate them.
                addresses.sort();
                addresses.dedup();
            }
            addresses
        };
        [of(Family::V4), of(Family::V6)].concat()
    }

    /// The SRV targets of a named port: the service's own name, or for a headless service each endpoint's.
    fn targets(&self, service: &Service, name: &str, transport: Transport) -> ClusterAnswer {
        let Some(port) = service.port_named(name, transport) else { return ClusterAnswer::Unknown };
        let hostname = &service.id.hostname;
        let targets = if service.addresses.is_empty() {
            let of = |endpoint: &Endpoint| {
                Some((format!("{}.{hostname}", endpoint.workload.name), endpoint.target_port(port)?))
            };
            ready(self.mesh, service).filter_map(of).collect()
        } else {
            vec![(hostname.to_string(), port.service_port)]
        };
        ClusterAnswer::Found { addresses: Vec::new(), targets }
    }
}

fn transport(protocol: &str) -> Option<Transport> {
    match protocol {
        "tcp" => Some(Transport::Tcp),
        "udp" => Some(Transport::Udp),
        _ => None,
    }
}

fn dashed_address(text: &str) -> Option<IpAddr> {
    text.replace('-', ".")
        .parse::<Ipv4Addr>()
        .map(IpAddr::from)
        .ok()
        .or_else(|| text.replace('-', ":").parse::<Ipv6Addr>().map(IpAddr::from).ok())
}

#[cfg(test)]
#[path = "cluster_dns_tests.rs"]
mod tests;
