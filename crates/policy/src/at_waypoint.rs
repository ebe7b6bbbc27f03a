//! What counts at a waypoint for what it was asked for: policies, routes, and what both see as the destination.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_model::http::{Policy, PolicyTarget, Route, RouteName};
use leno_model::{AppProtocol, Map, Mesh, PolicyName, Port, Service, ServiceName, Workload};

use crate::waypoint::serves;
use crate::waypoint_target::WaypointTarget;

impl WaypointTarget {
    /// The service that was asked for: by its own address, or by that of one of its pods.
    pub fn service(&self) -> Option<&Arc<Service>> {
        match self {
            Self::Service { service, .. } => Some(service),
            Self::Pod { service, .. } => service.as_ref(),
        }
    }

    /// The declared protocol of the port.
    pub fn protocol(&self) -> AppProtocol {
        let port = match self {
            Self::Service { service, port, .. } => service.port(*port),
            Self::Pod { workload, service, address } => {
                service.as_ref().and_then(|service| service.port(service_port(workload, service, address.port())?))
            }
        };
        port.map(|port| port.app_protocol).unwrap_or_default()
    }

    /// What policies see as the destination: what was asked for, with the port of the service if it is one's.
    pub fn seen_by_policies(&self) -> SocketAddr {
        match self {
            Self::Service { port, address, .. } => SocketAddr::new(*address, *port),
            Self::Pod { workload, service, address } => {
                let port = service.as_ref().and_then(|service| service_port(workload, service, address.port()));
                SocketAddr::new(address.ip(), port.unwrap_or(address.port()))
            }
        }
    }

    /// The port of a service whose routes a request follows. They belong to a service as it is addressed (Gateway API,
    /// GEP-1324): a request to a pod's own address follows none, though it passes the waypoint.
    pub fn routed(&self) -> Option<(&ServiceName, u16)> {
        match self {
            Self::Service { service, port, .. } => Some((&service.id, *port)),
            Self::Pod { .. } => None,
        }
    }

    /// The routes that a request may follow; `None` if the service has none.
    pub fn routes<'m>(&self, mesh: &'m Mesh) -> Option<&'m Map<RouteName, Arc<Route>>> {
        mesh.routes_of(self.routed()?.0)
    }
}

/// The policies about requests that count for a service at the waypoint `own`: those that are attached to the service, to the
/// waypoint, or to what was not understood. `None` stands for what is no service's.
pub fn policies_at<'m>(
    mesh: &'m Mesh,
    own: &Workload,
    service: Option<&ServiceName>,
) -> Vec<&'m Map<PolicyName, Arc<Policy>>> {
    let waypoints = own.services.keys().cloned().map(PolicyTarget::Waypoint);
    let targets = service.cloned().map(PolicyTarget::Service).into_iter().chain(waypoints).chain([PolicyTarget::All]);
    targets.filter_map(|target| mesh.request_policies_of(&target)).collect()
}

/// The policies of a service to which a route sends what was asked of another one, if the waypoint `own` serves it, too. They
/// have to let it pass as well. Nobody else would ask them: to the service's pods, the waypoint is the caller.
pub fn policies_of_backend<'m>(
    mesh: &'m Mesh,
    own: &Workload,
    asked: &WaypointTarget,
    backend: &WaypointTarget,
) -> Option<&'m Map<PolicyName, Arc<Policy>>> {
    let backend = backend.service().filter(|backend| asked.service().is_none_or(|asked| asked.id != backend.id))?;
    let policies = mesh.request_policies_of(&PolicyTarget::Service(backend.id.clone()))?;
    serves(mesh, own, backend).then_some(policies)
}

/// The port of `service` that `workload` serves at its own port `at`.
fn service_port(workload: &Workload, service: &Service, at: u16) -> Option<u16> {
    let own = workload.services.get(&service.id).map(Vec::as_slice).unwrap_or_default();
    let serves = |of: &&Port| {
        let own = own.iter().find(|own| own.service_port == of.service_port && own.transport == of.transport);
        own.map_or(of.target_port, |own| own.target_port) == at
    };
    service.tcp_ports().find(serves).map(|port| port.service_port)
}

#[cfg(test)]
#[path = "at_waypoint_tests.rs"]
mod tests;
