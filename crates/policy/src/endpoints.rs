//! Which endpoints of a service may a client use, and in which order?

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use leno_model::{
    Endpoint, Health, HealthPolicy, IpFamilies, LoadBalancing, LoadBalancingMode, Mesh, RoutingScope, Service,
    TunnelProtocol, Workload,
};
use smallvec::SmallVec;

/// An endpoint that can take the connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate<'m> {
    pub(crate) workload: &'m Arc<Workload>,
    /// The address and port on which the workload listens.
    pub(crate) target: SocketAddr,
    /// How close it is to the client; higher is closer.
    pub(crate) rank: usize,
    /// Whether it failed to answer recently. Such endpoints come after all others.
    pub(crate) silent: bool,
}

/// Most services have few endpoints, and these fit without an allocation.
pub(crate) type Candidates<'m> = SmallVec<[Candidate<'m>; 8]>;

/// Why a service's endpoints can't be used. Each endpoint is counted once, under the first reason that applies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EndpointCounts {
    /// All endpoints, usable or not.
    pub total: u32,
    /// Endpoints that were not understood.
    pub not_understood: u32,
    /// Not ready, or terminating.
    pub unready: u32,
    /// In another network.
    pub other_network: u32,
    /// Without an IP address of a family the service has.
    pub without_address: u32,
    /// Known only by a DNS name.
    pub by_name_only: u32,
    /// Its address is another service's.
    pub at_a_service: u32,
    /// Does not listen on the port.
    pub without_port: u32,
    /// Excluded by the service's `STRICT` load balancing.
    pub out_of_scope: u32,
    /// Weight 0.
    pub weightless: u32,
}

/// Who asks for endpoints.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A client of the service. The port must be one of the service's.
    Service,
    /// Traffic for another service that passes through this one, a waypoint. Clients never address its port, so an
    /// endpoint with an application tunnel needs no port entry.
    Waypoint,
}

/// Whether an endpoint's health permits new connections.
fn is_ready(workload: &Workload, lb: &LoadBalancing) -> bool {
    workload.health == Health::Healthy || lb.health_policy == HealthPolicy::AllowAll
}

/// The endpoints that a service's clients are told of.
pub fn ready<'m>(mesh: &'m Mesh, service: &Service) -> impl Iterator<Item = &'m Endpoint> {
    let lb = &service.load_balancing;
    mesh.endpoints(&service.id)
        .filter(move |endpoint| endpoint.workload.not_understood.is_none() && is_ready(&endpoint.workload, lb))
}

/// The endpoints that a node's own service rules may use. The rules don't know which workload of the node connects, so
/// only one preference of the service can apply: that endpoints are on this node.
pub fn ready_for_node<'m>(mesh: &'m Mesh, service: &Service, node: &str) -> impl Iterator<Item = &'m Endpoint> {
    let lb = &service.load_balancing;
    // internalTrafficPolicy: Local.
    let local = lb.mode == LoadBalancingMode::Strict && lb.routing_preference.contains(&RoutingScope::Node);
    ready(mesh, service).filter(move |endpoint| !local || &*endpoint.workload.node == node)
}

/// The endpoints of `service` that can take a connection of `source` to `destination`.
pub(crate) fn candidates<'m>(
    mesh: &'m Mesh,
    source: &Workload,
    service: &Service,
    port: u16,
    purpose: Purpose,
    destination: IpAddr,
) -> (Candidates<'m>, EndpointCounts) {
    let lb = &service.load_balancing;
    let service_port = service.port(port);
    let mut counts = EndpointCounts::default();
    let mut found = Candidates::new();
    for endpoint in mesh.endpoints(&service.id) {
        counts.total += 1;
        let mut workload = &endpoint.workload;
        if workload.not_understood.is_some() {
            counts.not_understood += 1;
            continue;
        }
        if !is_ready(workload, lb) {
            counts.unready += 1;
            continue;
        }
        if workload.network != source.network {
            counts.other_network += 1;
            continue;
        }
        let Some(address) = address_of(workload, service.ip_families, destination) else {
            if workload.addresses.is_empty() && !workload.hostname.is_empty() {
                counts.by_name_only += 1;
            } else {
                counts.without_address += 1;
            }
            continue;
        };
        let target_port = match service_port {
            Some(port) => endpoint.target_port(port),
            None => port_without_service(endpoint, port, purpose),
        };
        let Some(target_port) = target_port else {
            counts.without_port += 1;
            continue;
        };
        let Some(rank) = rank(lb, source, workload) else {
            counts.out_of_scope += 1;
            continue;
        };
        workload = whose(mesh, workload, address);
        if workload.not_understood.is_some() {
            counts.not_understood += 1;
            continue;
        }
        if workload.tunnel_protocol == TunnelProtocol::None && is_of_another(mesh, source, service, address) {
            counts.at_a_service += 1;
            continue;
        }
        if workload.capacity == 0 {
            counts.weightless += 1;
            continue;
        }
        found.push(Candidate { workload, target: SocketAddr::new(address, target_port), rank, silent: false });
    }
    (found, counts)
}

/// The workload at `address`, which the service lists as that of `endpoint`. A workload that takes HBONE wins: a
/// manually configured endpoint may have a pod's address, and naming an address must not lead to plaintext.
fn whose<'m>(mesh: &'m Mesh, endpoint: &'m Arc<Workload>, address: IpAddr) -> &'m Arc<Workload> {
    match endpoint.tunnel_protocol {
        TunnelProtocol::Hbone => endpoint,
        TunnelProtocol::None => {
            mesh.workload_by_address(&endpoint.network, address).filter(|own| own.may_be_in_mesh()).unwrap_or(endpoint)
        }
    }
}

/// Whether `address` belongs to another service. Plaintext sent there may end at a pod that takes HBONE.
fn is_of_another(mesh: &Mesh, source: &Workload, service: &Service, address: IpAddr) -> bool {
    mesh.service_by_vip(&source.network, address, &source.namespace).is_some_and(|other| {
        other.id != service.id && other.addresses.iter().any(|a| a.address == address && a.network == source.network)
    })
}

fn port_without_service(endpoint: &Endpoint, port: u16, purpose: Purpose) -> Option<u16> {
    (purpose == Purpose::Waypoint && endpoint.workload.application_tunnel.is_some()).then_some(port)
}

/// Removes and returns one of the closest candidates, at random in proportion to capacity. Silent candidates are taken
/// only if there are no others, whatever their distance.
pub(crate) fn take<'m>(candidates: &mut Candidates<'m>, random: &mut dyn FnMut() -> u64) -> Option<Candidate<'m>> {
    if candidates.len() == 1 {
        return candidates.pop();
    }
    let place = |c: &Candidate<'_>| (!c.silent, c.rank);
    let best = candidates.iter().map(place).max()?;
    let weight = |c: &Candidate<'_>| if place(c) == best { u64::from(c.workload.capacity) } else { 0 };
    let total: u64 = candidates.iter().map(weight).sum();
    // The sum of weights is far below 2^64, so the bias of the modulo is negligible.
    let mut ticket = random().checked_rem(total)?;
    let index = candidates.iter().position(|c| {
        let weight = weight(c);
        let hit = ticket < weight;
        ticket = ticket.saturating_sub(weight);
        hit
    })?;
    Some(candidates.swap_remove(index))
}

/// How many leading scopes of the service's preference an endpoint shares with the source; `None` if it shares too few.
fn rank(lb: &LoadBalancing, source: &Workload, endpoint: &Workload) -> Option<usize> {
    match lb.mode {
        LoadBalancingMode::Unspecified | LoadBalancingMode::Passthrough => return Some(0),
        LoadBalancingMode::Strict | LoadBalancingMode::Failover => {}
    }
    let scopes = &lb.routing_preference;
    // In Istio, a NETWORK scope in front outweighs all others together. Here it always matches, because endpoints of
    // other networks were left out before.
    let same = |scope: &&RoutingScope| match scope {
        RoutingScope::Region => source.locality.region == endpoint.locality.region,
        RoutingScope::Zone => source.locality.zone == endpoint.locality.zone,
        RoutingScope::Subzone => source.locality.subzone == endpoint.locality.subzone,
        RoutingScope::Node => source.node == endpoint.node,
        RoutingScope::Cluster => source.cluster_id == endpoint.cluster_id,
        RoutingScope::Network => source.network == endpoint.network,
    };
    let shared = scopes.iter().take_while(same).count();
    if lb.mode == LoadBalancingMode::Strict && shared < scopes.len() { None } else { Some(shared) }
}

/// The endpoint's address for a client that connects to `destination`: `destination` itself if it is one of the
/// endpoint's addresses; else one of a family the service has, preferably the client's.
fn address_of(workload: &Workload, families: IpFamilies, destination: IpAddr) -> Option<IpAddr> {
    if workload.addresses.contains(&destination) {
        return Some(destination);
    }
    let mut addresses = workload.addresses.iter().filter(|ip| families.permit(ip));
    let first = addresses.clone().next()?;
    Some(*addresses.find(|ip| ip.is_ipv4() == destination.is_ipv4()).unwrap_or(first))
}

impl fmt::Display for EndpointCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.total == 0 {
            return f.write_str("it has no endpoints; check its selector or its EndpointSlices");
        }
        let plural = if self.total == 1 { "" } else { "s" };
        write!(f, "of {} endpoint{plural}", self.total)?;
        let mut separator = ":";
        for (count, what) in [
            (
                self.not_understood,
                "described by the control plane in a way this proxy does not understand (its log says what; is the \
                 control plane newer than this proxy?)",
            ),
            (self.unready, "not ready"),
            (self.other_network, "in another network (which this version can't reach: no nested HBONE yet)"),
            (self.without_address, "without an address of a permitted family"),
            (self.by_name_only, "known only by a DNS name (which this version doesn't resolve)"),
            (self.at_a_service, "with the address of another service (which is no endpoint)"),
            (self.without_port, "without this port"),
            (self.out_of_scope, "outside the locality its load balancing requires"),
            (self.weightless, "with weight 0"),
        ] {
            if count > 0 {
                write!(f, "{separator} {count} {what}")?;
                separator = ",";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "endpoints_tests.rs"]
mod tests;
