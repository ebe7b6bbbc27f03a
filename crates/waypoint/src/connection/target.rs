//! A connection that was asked for: whom it is for, and from whom it comes.

use std::sync::Arc;

use leno_model::{Mesh, Workload};
use leno_policy::http::Destination;
use leno_policy::{WaypointTarget, any_address};
use leno_proxy::tunnels::Tunnel;

/// A connection that was asked for.
pub(crate) struct Asked {
    pub(crate) authority: String,
    pub(crate) target: WaypointTarget,
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) own: Arc<Workload>,
    /// How many waypoints have sent it on to another one.
    pub(crate) passed: u32,
}

/// The workload at the client's address, if it has the identity that the client has proved. A gateway in between has
/// another one.
pub(crate) fn source(mesh: &Mesh, own: &Workload, tunnel: &Tunnel) -> Option<Arc<Workload>> {
    let found = mesh.workload_by_address(&own.network, tunnel.peer.ip())?;
    (found.identity().as_ref() == Some(&tunnel.identity)).then(|| found.clone())
}

/// A backend that a route of `asked` names; `None` if the mesh does not know it. One that is the service which was asked for
/// stays as it was asked for.
pub(crate) fn backend(mesh: &Mesh, asked: &WaypointTarget, to: &Destination) -> Option<WaypointTarget> {
    let same = matches!(asked, WaypointTarget::Service { service, port, .. }
        if service.id == to.service && *port == to.port);
    if same {
        return Some(asked.clone());
    }
    let service = mesh.service(&to.service)?;
    Some(WaypointTarget::Service { service: service.clone(), port: to.port, address: any_address(service) })
}
