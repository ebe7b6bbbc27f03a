//! A connection that was asked for: whom it is for, and from whom it comes.

use std::sync::Arc;

use leno_model::{Mesh, Workload};
use leno_policy::WaypointTarget;
use leno_proxy::tunnels::Tunnel;

/// A connection that was asked for.
pub(crate) struct Asked {
    pub(crate) authority: String,
    pub(crate) target: WaypointTarget,
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) own: Arc<Workload>,
}

/// The workload at the client's address, if it has the identity that the client has proved. A gateway in between has
/// another one.
pub(crate) fn source(mesh: &Mesh, own: &Workload, tunnel: &Tunnel) -> Option<Arc<Workload>> {
    let found = mesh.workload_by_address(&own.network, tunnel.peer.ip())?;
    (found.identity().as_ref() == Some(&tunnel.identity)).then(|| found.clone())
}
