//! A connection that was asked for: whom it is for, and from whom it comes.

use std::sync::Arc;

use leno_model::{AppProtocol, Mesh, Port, Service, Workload};
use leno_policy::WaypointTarget;
use leno_proxy::tunnels::Tunnel;

/// A connection that was asked for.
pub(crate) struct Asked {
    pub(crate) authority: String,
    pub(crate) target: WaypointTarget,
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) own: Arc<Workload>,
}

/// The service that was asked for: by its own address, or by that of one of its pods.
pub(crate) fn service(target: &WaypointTarget) -> Option<&Arc<Service>> {
    match target {
        WaypointTarget::Service { service, .. } => Some(service),
        WaypointTarget::Pod { service, .. } => service.as_ref(),
    }
}

/// The declared protocol of the port.
pub(crate) fn protocol(target: &WaypointTarget) -> AppProtocol {
    let port = match target {
        WaypointTarget::Service { service, port, .. } => service.port(*port),
        WaypointTarget::Pod { workload, service, address } => {
            service.as_ref().and_then(|service| service.port(service_port(workload, service, address.port())?))
        }
    };
    port.map(|port| port.app_protocol).unwrap_or_default()
}

/// The port of `service` that `workload` serves at its own port `at`.
pub(crate) fn service_port(workload: &Workload, service: &Service, at: u16) -> Option<u16> {
    let own = workload.services.get(&service.id).map(Vec::as_slice).unwrap_or_default();
    let serves = |of: &&Port| {
        let own = own.iter().find(|own| own.service_port == of.service_port && own.transport == of.transport);
        own.map_or(of.target_port, |own| own.target_port) == at
    };
    service.tcp_ports().find(serves).map(|port| port.service_port)
}

/// The workload at the client's address, if it has the identity that the client has proved. A gateway in between has
/// another one.
pub(crate) fn source(mesh: &Mesh, own: &Workload, tunnel: &Tunnel) -> Option<Arc<Workload>> {
    let found = mesh.workload_by_address(&own.network, tunnel.peer.ip())?;
    (found.identity().as_ref() == Some(&tunnel.identity)).then(|| found.clone())
}
