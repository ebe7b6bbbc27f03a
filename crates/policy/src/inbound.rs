//! Where may an HBONE request lead? A peer names an address. It may reach this workload's own addresses and nothing
//! else.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use leno_model::{
    ApplicationProtocol, GatewayAddress, GatewayDestination, Mesh, NetworkAddress, RESERVED_PORTS, Service,
    ServiceName, Transport, Workload,
};

pub use crate::authority::parse_authority;
use crate::authority::{Authority, AuthorityError};
use crate::understood::NotUnderstood;
use crate::waypoint::is_waypoint;

/// Where an accepted request leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboundTarget {
    /// The workload's own address and the port to connect to. Policies are evaluated for this address.
    pub address: SocketAddr,
    /// The service, if the peer named one.
    pub service: Option<Arc<Service>>,
    /// If the workload wants a PROXY version 2 header: the destination to put into it.
    pub proxy_header: Option<SocketAddr>,
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each field is named in its text")]
pub enum InboundRefusal {
    /// The authority is malformed.
    #[error("malformed authority {authority:?}: {problem}")]
    Malformed { authority: String, problem: AuthorityError },
    /// The address is not the one that the peer connected to.
    #[error(
        "authority {authority} is not an address of {workload}, which was reached at {reached}; \
         the peer's view of the mesh is wrong or it probes"
    )]
    NotHere { authority: SocketAddr, reached: IpAddr, workload: String },
    /// A host name that no service has.
    #[error("no service is known as {host}; the control plane has not sent it, or it was removed")]
    UnknownHost { host: String },
    /// A service that this workload is not an endpoint of.
    #[error("{workload} is not an endpoint of service {service}")]
    NotAnEndpoint { service: ServiceName, workload: String },
    /// The service has no such port on this workload.
    #[error("service {service} has no port {port} on {workload}")]
    NoTargetPort { service: ServiceName, port: u16, workload: String },
    /// The service was not understood.
    #[error(transparent)]
    NotUnderstood(#[from] NotUnderstood),
    /// The port is one of the proxy's own.
    #[error("port {0} is the proxy's own and can't be reached through it")]
    ReservedPort(u16),
}

impl InboundRefusal {
    /// The HTTP status for the peer. It is the one a ztunnel would send.
    pub fn status(&self) -> u16 {
        match self {
            Self::Malformed { .. } | Self::NotHere { .. } => 400,
            Self::UnknownHost { .. }
            | Self::NotAnEndpoint { .. }
            | Self::NoTargetPort { .. }
            | Self::NotUnderstood(_)
            | Self::ReservedPort(_) => 503,
        }
    }

    /// Whether the same request may succeed later, when configuration has arrived.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::UnknownHost { .. } | Self::NotAnEndpoint { .. } | Self::NoTargetPort { .. })
    }
}

/// Decides where a CONNECT with `authority` leads that reached `workload` at `connection_dst`.
///
/// # Errors
/// If the request is refused. The caller answers with [`InboundRefusal::status`] and connects to nothing.
pub fn inbound_target(
    mesh: &Mesh,
    workload: &Workload,
    authority: &str,
    connection_dst: SocketAddr,
) -> Result<InboundTarget, InboundRefusal> {
    let own = connection_dst.ip().to_canonical();
    let parsed = parse_authority(authority)
        .map_err(|problem| InboundRefusal::Malformed { authority: shortened(authority), problem })?;
    let (port, service, announced) = match parsed {
        Authority::Address(address) => {
            let here = address.ip() == own
                || workload.application_tunnel.is_some()
                || is_waypoint_of_address(mesh, workload, address.ip());
            if !here {
                return Err(InboundRefusal::NotHere { authority: address, reached: own, workload: name(workload) });
            }
            (address.port(), None, address)
        }
        Authority::Host { host, port } => {
            let service = mesh
                .service_by_hostname(&host, &workload.namespace)
                .ok_or_else(|| InboundRefusal::UnknownHost { host: host.clone() })?;
            NotUnderstood::service(service)?;
            let target = service_port(mesh, workload, service, port)?;
            // A PROXY header has no field for a name, so it carries an address of the service.
            let vip = announced_vip(service, workload).unwrap_or(own);
            (target, Some(service.clone()), SocketAddr::new(vip, port))
        }
    };
    // Checked before the override below: the override is the workload's own wish, the port is the peer's.
    if RESERVED_PORTS.contains(&port) {
        return Err(InboundRefusal::ReservedPort(port));
    }
    let tunnel = workload.application_tunnel;
    Ok(InboundTarget {
        address: SocketAddr::new(own, tunnel.and_then(|t| t.port).unwrap_or(port)),
        service,
        proxy_header: tunnel.filter(|t| t.protocol == ApplicationProtocol::Proxy).map(|_| announced),
    })
}

/// The workload's port for a service's port: its own entry wins over the service's target port.
fn service_port(mesh: &Mesh, workload: &Workload, service: &Service, port: u16) -> Result<u16, InboundRefusal> {
    let stands_for = || workload.application_tunnel.is_some() || is_waypoint_of_service(mesh, workload, service);
    let own = workload.services.get(&service.id);
    if own.is_none() && !stands_for() {
        return Err(InboundRefusal::NotAnEndpoint { service: service.id.clone(), workload: name(workload) });
    }
    own.into_iter()
        .flatten()
        .find(|p| p.service_port == port && p.transport == Transport::Tcp)
        .or_else(|| service.port(port))
        .map(|p| p.target_port)
        .filter(|target| *target != 0)
        .ok_or_else(|| InboundRefusal::NoTargetPort { service: service.id.clone(), port, workload: name(workload) })
}

/// Whether `address` belongs to a service or workload for which `workload` is the waypoint.
fn is_waypoint_of_address(mesh: &Mesh, workload: &Workload, address: IpAddr) -> bool {
    let at = NetworkAddress { network: workload.network.clone(), address };
    if let Some(service) = mesh.service_by_vip(&at.network, address, &workload.namespace)
        && is_waypoint_of_service(mesh, workload, service)
    {
        return true;
    }
    mesh.workload_by_address(&at.network, address)
        .and_then(|target| target.waypoint.as_deref())
        .is_some_and(|gateway| is_waypoint_of(mesh, workload, gateway))
}

fn is_waypoint_of_service(mesh: &Mesh, workload: &Workload, service: &Service) -> bool {
    let weighted = service.weighted_waypoints.iter().map(|w| &w.destination);
    service.waypoint.iter().chain(weighted).any(|gateway| is_waypoint_of(mesh, workload, gateway))
}

fn is_waypoint_of(mesh: &Mesh, workload: &Workload, gateway: &GatewayAddress) -> bool {
    // A waypoint that is named but not known matches nobody.
    if let GatewayDestination::Hostname(name) = &gateway.destination
        && mesh.service(name).is_none()
    {
        return false;
    }
    is_waypoint(mesh, workload, gateway)
}

/// The service address to announce: one in the workload's network if possible, preferably IPv4.
fn announced_vip(service: &Service, workload: &Workload) -> Option<IpAddr> {
    service.addresses.iter().max_by_key(|a| (a.network == workload.network, a.address.is_ipv4())).map(|a| a.address)
}

fn name(workload: &Workload) -> String {
    format!("{}/{}", workload.namespace, workload.name)
}

/// A stranger's text, shortened for a log line.
fn shortened(text: &str) -> String {
    const KEPT: usize = 100;
    text.chars().take(KEPT).collect()
}

#[cfg(test)]
#[path = "inbound_tests.rs"]
mod tests;
