//! Which waypoint must a connection pass, and at which address?

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use leno_model::{
    GatewayAddress, GatewayDestination, HBONE_PORT, Mesh, NetworkAddress, PolicyName, Port, Service, ServiceName,
    Workload,
};
use smallvec::SmallVec;

use crate::endpoints::{self, Candidate, Candidates, EndpointCounts, Purpose};
use crate::understood::NotUnderstood;

/// Why a waypoint can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WaypointProblem {
    /// Nothing has the waypoint's name or address.
    #[error("no such service or workload is known; check that the Gateway exists and is programmed")]
    NotFound,
    /// Its Gateway does not let this namespace use it.
    #[error(
        "its Gateway does not let this namespace use it; allow it in spec.listeners[].allowedRoutes.namespaces of the Gateway"
    )]
    NotAllowed,
    /// It is in another network.
    #[error("it is in another network, which needs nested HBONE tunnels; this version has none yet")]
    OtherNetwork,
    /// The waypoint was not understood.
    #[error(transparent)]
    NotUnderstood(#[from] Box<NotUnderstood>),
    /// None of its endpoints can take the connection.
    #[error("it has no usable endpoint: {0}")]
    NoEndpoint(EndpointCounts),
}

/// The waypoint of the service for one connection.
pub(crate) fn waypoint_of<'m>(service: &'m Service, random: &mut dyn FnMut() -> u64) -> Option<&'m GatewayAddress> {
    let total: u64 = service.weighted_waypoints.iter().map(|w| u64::from(w.weight)).sum();
    if total == 0 {
        return service.waypoint.as_ref();
    }
    let mut ticket = random() % total;
    let chosen = service.weighted_waypoints.iter().find(|w| {
        let weight = u64::from(w.weight);
        let hit = ticket < weight;
        ticket = ticket.saturating_sub(weight);
        hit
    });
    chosen.map(|w| &w.destination).or(service.waypoint.as_ref())
}

/// The waypoint's own service, if there is one, and the waypoint's instances.
pub(crate) type Waypoint<'m> = (Option<&'m Arc<Service>>, Candidates<'m>);

/// The instances of a waypoint that can take a connection to `destination`.
pub(crate) fn resolve<'m>(
    mesh: &'m Mesh,
    source: &Workload,
    gateway: &GatewayAddress,
    destination: SocketAddr,
) -> Result<Waypoint<'m>, WaypointProblem> {
    // Older control planes leave the port out; then it is the default port.
    let port = if gateway.hbone_mtls_port == 0 { HBONE_PORT } else { gateway.hbone_mtls_port };
    let service = match &gateway.destination {
        GatewayDestination::Hostname(name) if name.is_not_allowed() => return Err(WaypointProblem::NotAllowed),
        GatewayDestination::Hostname(name) => mesh.service(name).ok_or(WaypointProblem::NotFound)?,
        GatewayDestination::Address(a) if a.network != source.network => return Err(WaypointProblem::OtherNetwork),
        GatewayDestination::Address(a) => {
            let service = service_at(mesh, a, source);
            let Some(service) = service else {
                let workload = mesh.workload_by_address(&a.network, a.address).ok_or(WaypointProblem::NotFound)?;
                NotUnderstood::workload(workload).map_err(Box::new)?;
                let only = Candidate { workload, target: SocketAddr::new(a.address, port), rank: 0, silent: false };
                return Ok((None, Candidates::from_iter([only])));
            };
            service
        }
    };
    NotUnderstood::service(service).map_err(Box::new)?;
    let (candidates, counts) = endpoints::candidates(mesh, source, service, port, Purpose::Waypoint, destination.ip());
    if candidates.is_empty() {
        return Err(WaypointProblem::NoEndpoint(counts));
    }
    Ok((Some(service), candidates))
}

fn service_at<'m>(mesh: &'m Mesh, address: &NetworkAddress, client: &Workload) -> Option<&'m Arc<Service>> {
    mesh.service_by_vip(&address.network, address.address, &client.namespace)
        .filter(|service| service.addresses.contains(address))
}

/// Whether `workload` is an instance of the waypoint `gateway`. Such a workload must not be sent its own traffic again.
pub(crate) fn is_waypoint(mesh: &Mesh, workload: &Workload, gateway: &GatewayAddress) -> bool {
    match &gateway.destination {
        GatewayDestination::Hostname(name) => workload.services.contains_key(name),
        GatewayDestination::Address(a) => match service_at(mesh, a, workload) {
            Some(service) => workload.services.contains_key(&service.id),
            None => workload.network == a.network && workload.addresses.contains(&a.address),
        },
    }
}

/// The waypoints that the service names.
fn named(service: &Service) -> impl Iterator<Item = &GatewayAddress> {
    service.waypoint.iter().chain(service.weighted_waypoints.iter().map(|weighted| &weighted.destination))
}

/// Whether `workload` is an instance of a waypoint that the service names.
pub fn serves(mesh: &Mesh, workload: &Workload, service: &Service) -> bool {
    named(service).any(|gateway| is_waypoint(mesh, workload, gateway))
}

/// Whether the service has a waypoint, and `workload` is no instance of it: what a route of another service sends there has to
/// pass that waypoint, too.
pub fn beyond(mesh: &Mesh, workload: &Workload, service: &Service) -> bool {
    named(service).next().is_some() && !serves(mesh, workload, service)
}

/// The first of the service's own addresses, for who has no other reason to prefer one; `0.0.0.0` if it is headless.
pub fn any_address(service: &Service) -> IpAddr {
    service.addresses.first().map_or(Ipv4Addr::UNSPECIFIED.into(), |own| own.address)
}

/// The service's own address in the network of `source`, with the port of `like`, and of its family if it has one; `None` if
/// the service is headless.
pub fn addressed(source: &Workload, service: &Service, like: SocketAddr) -> Option<SocketAddr> {
    let here = service.addresses.iter().filter(|its| its.network == source.network).map(|its| its.address);
    let address = here.max_by_key(|address| address.is_ipv4() == like.is_ipv4())?;
    Some(SocketAddr::new(address, like.port()))
}

/// The services with a waypoint that `workload` serves at its own port `port`. Who addresses the pod itself, as the clients
/// of a headless service do, must not get around what the waypoint does for the service.
pub(crate) fn guarded<'m>(mesh: &'m Mesh, workload: &Workload, port: u16) -> impl Iterator<Item = &'m Arc<Service>> {
    let serves = move |id: &ServiceName, own: &[Port]| {
        let service = mesh.service(id)?;
        let target = |of: &Port| {
            let own = own.iter().find(|own| own.service_port == of.service_port && own.transport == of.transport);
            own.map_or(of.target_port, |own| own.target_port)
        };
        (named(service).next().is_some() && service.tcp_ports().any(|of| target(of) == port)).then_some(service)
    };
    let mut found = SmallVec::<[&Arc<Service>; 1]>::new();
    for (id, ports) in &workload.services {
        found.extend(serves(id, ports));
    }
    found.into_iter()
}

/// The waypoint of the first of the services in [`guarded`], if the pod is under a policy that lets nobody around it.
pub(crate) fn guarding<'m>(mesh: &'m Mesh, workload: &Workload, port: u16) -> Option<&'m GatewayAddress> {
    if !workload.authorization_policies.iter().any(PolicyName::is_through_waypoint) {
        return None;
    }
    let service = guarded(mesh, workload, port).next()?;
    named(service).next()
}

/// Displays a gateway reference.
pub(crate) struct Gateway<'a>(pub(crate) &'a GatewayAddress);

impl fmt::Display for Gateway<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.destination {
            GatewayDestination::Hostname(name) => write!(f, "{}/{}", name.namespace, name.users_hostname()),
            GatewayDestination::Address(a) => a.address.fmt(f),
        }
    }
}

#[cfg(test)]
#[path = "waypoint_tests.rs"]
mod tests;
