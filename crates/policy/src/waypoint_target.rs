//! What may a waypoint be asked for? A peer names a service or a pod. A waypoint serves those that name it as theirs, and
//! nobody else.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use leno_model::{Mesh, Service, ServiceName, Workload};

use crate::authority::{Authority, AuthorityError, parse_authority};
use crate::understood::NotUnderstood;
use crate::waypoint::{any_address, guarded, is_waypoint, serves};

/// What a connection through a waypoint is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaypointTarget {
    /// A service; the waypoint chooses the endpoint.
    Service {
        /// The service.
        service: Arc<Service>,
        /// The port of the service.
        port: u16,
        /// The address that the client asked for, or one that stands for its family.
        address: IpAddr,
    },
    /// One pod, addressed by itself.
    Pod {
        /// The pod.
        workload: Arc<Workload>,
        /// The service that it serves at this port, if that is why its connections pass the waypoint.
        service: Option<Arc<Service>>,
        /// Its address and port.
        address: SocketAddr,
    },
}

/// Why a waypoint does not take a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each field is named in its text")]
pub enum WaypointRefusal {
    /// The authority is malformed.
    #[error("malformed authority {authority:?}: {problem}")]
    Malformed { authority: String, problem: AuthorityError },
    /// Nothing in the mesh has this address.
    #[error("no service or pod of the mesh has the address {0}; the control plane has not sent it, or it was removed")]
    UnknownAddress(IpAddr),
    /// No service has this host name.
    #[error("no service is known as {0}; the control plane has not sent it, or it was removed")]
    UnknownHost(String),
    /// The service or pod names another waypoint, or none.
    #[error(
        "{what} does not name this waypoint (label istio.io/use-waypoint on it or on its namespace); the peer's view of the \
         mesh is old, or it probes"
    )]
    NotOurs { what: String },
    /// The service has no such port.
    #[error("service {service} has no port {port}")]
    NoSuchPort { service: ServiceName, port: u16 },
    /// The service or pod was not understood.
    #[error(transparent)]
    NotUnderstood(#[from] NotUnderstood),
}

impl WaypointRefusal {
    /// The HTTP status for the peer.
    pub fn status(&self) -> u16 {
        match self {
            Self::Malformed { .. } => 400,
            Self::UnknownAddress(_) | Self::UnknownHost(_) | Self::NotOurs { .. } | Self::NoSuchPort { .. } => 404,
            Self::NotUnderstood(_) => 503,
        }
    }

    /// Whether the same request may succeed later, when configuration has arrived.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::UnknownAddress(_) | Self::UnknownHost(_) | Self::NotOurs { .. })
    }
}

/// Decides what a CONNECT with `authority` is for that came to the waypoint `own`.
///
/// # Errors
/// If the waypoint does not serve that. The caller answers with [`WaypointRefusal::status`] and connects to nothing.
pub fn waypoint_target(mesh: &Mesh, own: &Workload, authority: &str) -> Result<WaypointTarget, WaypointRefusal> {
    let parsed = parse_authority(authority)
        .map_err(|problem| WaypointRefusal::Malformed { authority: authority.chars().take(100).collect(), problem })?;
    match parsed {
        Authority::Host { host, port } => {
            let service = mesh
                .service_by_hostname(&host, &own.namespace)
                .ok_or_else(|| WaypointRefusal::UnknownHost(host.clone()))?;
            let like = any_address(service);
            of_service(mesh, own, service, port, like)
        }
        Authority::Address(address) => {
            let ip = address.ip();
            let service = mesh.service_by_vip(&own.network, ip, &own.namespace);
            let exact =
                |service: &&Arc<Service>| service.addresses.iter().any(|a| a.address == ip && a.network == own.network);
            if let Some(service) = service.filter(exact) {
                return of_service(mesh, own, service, address.port(), ip);
            }
            if let Some(workload) = mesh.workload_by_address(&own.network, ip) {
                return of_pod(mesh, own, workload, address);
            }
            let service = service.ok_or(WaypointRefusal::UnknownAddress(ip))?;
            of_service(mesh, own, service, address.port(), ip)
        }
    }
}

fn of_service(
    mesh: &Mesh,
    own: &Workload,
    service: &Arc<Service>,
    port: u16,
    address: IpAddr,
) -> Result<WaypointTarget, WaypointRefusal> {
    if !serves(mesh, own, service) {
        return Err(WaypointRefusal::NotOurs { what: format!("service {}", service.id) });
    }
    NotUnderstood::service(service)?;
    if service.port(port).is_none() {
        return Err(WaypointRefusal::NoSuchPort { service: service.id.clone(), port });
    }
    Ok(WaypointTarget::Service { service: service.clone(), port, address })
}

fn of_pod(
    mesh: &Mesh,
    own: &Workload,
    workload: &Arc<Workload>,
    address: SocketAddr,
) -> Result<WaypointTarget, WaypointRefusal> {
    let service = guarded(mesh, workload, address.port()).find(|service| serves(mesh, own, service));
    if service.is_none() && !workload.waypoint.as_deref().is_some_and(|gateway| is_waypoint(mesh, own, gateway)) {
        return Err(WaypointRefusal::NotOurs { what: format!("pod {}/{}", workload.namespace, workload.name) });
    }
    NotUnderstood::workload(workload)?;
    Ok(WaypointTarget::Pod { workload: workload.clone(), service: service.cloned(), address })
}

#[cfg(test)]
#[path = "waypoint_target_tests.rs"]
mod tests;
