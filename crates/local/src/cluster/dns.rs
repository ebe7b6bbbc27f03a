//! The cluster's DNS names: what kube-dns would answer for the services of a mesh (Kubernetes
//! DNS-based service discovery), as a pure function, and the wire format around it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, SRV};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use leno_model::{Endpoint, Health, HealthPolicy, IpFamilies, Mesh, Service};

use crate::cluster::services::DeclaredPort;

/// Seconds an answer may be kept: kube-dns' own, short enough that a replaced pod is noticed.
const TTL: u32 = 5;
/// Largest UDP answer to a client that doesn't say it takes more (RFC 1035 §4.2.1).
const PLAIN_UDP: u16 = 512;
/// Largest UDP answer at all: what passes every link unfragmented (DNS flag day 2020).
const EDNS_UDP: u16 = 1232;

/// What a name means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Addresses, endpoints and ports behind the name; some may be empty.
    Found { addresses: Vec<IpAddr>, targets: Vec<(String, u16)> },
    /// There is no such name.
    Unknown,
}

/// What there are names for.
#[derive(Clone, Copy)]
pub(crate) struct Domain<'a> {
    pub mesh: &'a Mesh,
    /// Ports with their names, which the mesh's model doesn't have.
    pub ports: &'a [DeclaredPort],
    /// Its own name, such as `cluster.local`.
    pub name: &'a str,
}

/// Looks a name up. `name` is fully qualified, lower case, without the last dot.
pub(crate) fn lookup(domain: &Domain<'_>, name: &str) -> Answer {
    let (mesh, cluster_domain) = (domain.mesh, domain.name);
    let Some(rest) = name.strip_suffix(cluster_domain).and_then(|rest| rest.strip_suffix('.')) else {
        return Answer::Unknown;
    };
    let labels: Vec<_> = rest.split('.').collect();
    let found = |addresses| Answer::Found { addresses, targets: Vec::new() };
    match labels.as_slice() {
        // An empty answer instead of "no such name" keeps resolvers from giving up on all below.
        ["svc"] | [_, "svc"] | ["pod"] | [_, "pod"] => found(Vec::new()),
        [service, namespace, "svc"] => match service_of(mesh, cluster_domain, namespace, service) {
            Some(service) => found(addresses(mesh, service)),
            None => Answer::Unknown,
        },
        [port, protocol, service, namespace, "svc"] => {
            let service = service_of(mesh, cluster_domain, namespace, service);
            match (service, port.strip_prefix('_'), protocol.strip_prefix('_')) {
                (Some(service), Some(port), Some(protocol)) if !port.is_empty() => {
                    targets(domain, service, port, protocol)
                }
                _ => Answer::Unknown,
            }
        }
        [endpoint, service, namespace, "svc"] => {
            let Some(service) = service_of(mesh, cluster_domain, namespace, service) else { return Answer::Unknown };
            let own: Vec<_> = mesh
                .endpoints(&service.id)
                .filter(|e| &*e.workload.name == *endpoint)
                .flat_map(|e| e.workload.addresses.iter().copied())
                .filter(|address| has_family(service, address))
                .collect();
            if own.is_empty() { Answer::Unknown } else { found(own) }
        }
        [dashed, _, "pod"] => match dashed_address(dashed) {
            Some(address) => found(vec![address]),
            None => Answer::Unknown,
        },
        _ => Answer::Unknown,
    }
}

fn service_of<'a>(mesh: &'a Mesh, domain: &str, namespace: &str, name: &str) -> Option<&'a Service> {
    let id = leno_model::ServiceName {
        namespace: namespace.into(),
        hostname: format!("{name}.{namespace}.svc.{domain}").into(),
    };
    mesh.service(&id).map(AsRef::as_ref)
}

/// Virtual addresses, or those of the ready endpoints of a headless service.
fn addresses(mesh: &Mesh, service: &Service) -> Vec<IpAddr> {
    if !service.addresses.is_empty() {
        let own = service.addresses.iter().map(|address| address.address);
        return own.filter(|address| has_family(service, address)).collect();
    }
    let mut found: Vec<_> = published(mesh, service)
        .flat_map(|endpoint| endpoint.workload.addresses.iter().copied())
        .filter(|address| has_family(service, address))
        .collect();
    found.sort();
    found.dedup();
    found
}

/// The endpoints of a service that clients are told of.
fn published<'a>(mesh: &'a Mesh, service: &Service) -> impl Iterator<Item = &'a Endpoint> {
    let all = service.load_balancing.health_policy == HealthPolicy::AllowAll;
    mesh.endpoints(&service.id).filter(move |endpoint| all || endpoint.workload.health == Health::Healthy)
}

/// Whether a service has addresses of this family: its endpoints may have more than it does.
fn has_family(service: &Service, address: &IpAddr) -> bool {
    match service.ip_families {
        IpFamilies::Automatic | IpFamilies::Dual => true,
        IpFamilies::Ipv4Only => address.is_ipv4(),
        IpFamilies::Ipv6Only => address.is_ipv6(),
    }
}

/// Where a named port is: on the service's own name, or, if it is headless, on each endpoint's.
fn targets(domain: &Domain<'_>, service: &Service, name: &str, protocol: &str) -> Answer {
    let is_it = |port: &&DeclaredPort| {
        port.service == service.id && port.name == name && port.protocol.as_str().eq_ignore_ascii_case(protocol)
    };
    let Some(port) = domain.ports.iter().find(is_it) else { return Answer::Unknown };
    let hostname = &service.id.hostname;
    let targets = if service.addresses.is_empty() {
        let of = |endpoint: &Endpoint| Some((format!("{}.{hostname}", endpoint.workload.name), port.of(endpoint)?));
        published(domain.mesh, service).filter_map(of).collect()
    } else {
        vec![(hostname.to_string(), port.port)]
    };
    Answer::Found { addresses: Vec::new(), targets }
}

fn dashed_address(text: &str) -> Option<IpAddr> {
    text.replace('-', ".")
        .parse::<Ipv4Addr>()
        .map(IpAddr::from)
        .ok()
        .or_else(|| text.replace('-', ":").parse::<Ipv6Addr>().map(IpAddr::from).ok())
}

/// Answers one DNS message; `None` if it isn't a question, which must not be answered lest two
/// servers talk to each other for ever. `shuffle` rotates addresses, so that clients of a
/// headless service spread. `udp` bounds the size.
pub(crate) fn respond(domain: &Domain<'_>, query: &[u8], udp: bool, shuffle: usize) -> Option<Vec<u8>> {
    let query = Message::from_vec(query).ok()?;
    if query.metadata.message_type != MessageType::Query {
        return None;
    }
    let mut response = Message::response(query.metadata.id, query.metadata.op_code);
    response.metadata.recursion_desired = query.metadata.recursion_desired;
    response.metadata.recursion_available = true;
    response.metadata.authoritative = true;
    response.metadata.response_code = match (query.metadata.op_code, query.queries.as_slice()) {
        (OpCode::Query, [question]) if question.query_class() == DNSClass::IN => {
            response.add_query(question.clone());
            let name = question.name().to_lowercase().to_ascii();
            match lookup(domain, name.trim_end_matches('.')) {
                Answer::Unknown => ResponseCode::NXDomain,
                Answer::Found { mut addresses, targets } => {
                    if let Some(by) = shuffle.checked_rem(addresses.len()) {
                        addresses.rotate_left(by);
                    }
                    response.add_answers(records(question.name(), question.query_type(), &addresses, &targets));
                    ResponseCode::NoError
                }
            }
        }
        (OpCode::Query, _) => ResponseCode::Refused,
        _ => ResponseCode::NotImp,
    };
    let limit = if query.edns.is_some() { query.max_payload().clamp(PLAIN_UDP, EDNS_UDP) } else { PLAIN_UDP };
    if query.edns.is_some() {
        let mut ours = hickory_proto::op::Edns::new();
        ours.set_max_payload(EDNS_UDP).set_version(0);
        response.set_edns(ours);
    }
    let bytes = response.to_vec().ok()?;
    if udp && bytes.len() > usize::from(limit) {
        response.answers.clear();
        response.metadata.truncation = true;
        return response.to_vec().ok();
    }
    Some(bytes)
}

fn records(name: &Name, kind: RecordType, addresses: &[IpAddr], targets: &[(String, u16)]) -> Vec<Record> {
    let mut data = Vec::new();
    for address in addresses {
        match (address, kind) {
            (IpAddr::V4(v4), RecordType::A) => data.push(RData::A(A(*v4))),
            (IpAddr::V6(v6), RecordType::AAAA) => data.push(RData::AAAA(AAAA(*v6))),
            _ => {}
        }
    }
    if kind == RecordType::SRV {
        for (target, port) in targets {
            if let Ok(target) = Name::from_ascii(format!("{target}.")) {
                data.push(RData::SRV(SRV::new(0, 100, *port, target)));
            }
        }
    }
    data.into_iter().map(|data| Record::from_rdata(name.clone(), TTL, data)).collect()
}

#[cfg(test)]
#[path = "dns_tests.rs"]
mod tests;
