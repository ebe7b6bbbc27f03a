//! A client's HTTP connection: whom it belongs to, and what it is for.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_model::{Identity, Mesh, Workload};
use leno_policy::http::Table;
use leno_policy::{WaypointTarget, waypoint_target};
use leno_proxy::tunnels::Tunnel;
use parking_lot::Mutex;

use crate::asked::{Asked, service_port, source};
use crate::gate::Gate;
use crate::lane::Lane;
use crate::report::Report;

/// What all requests of a connection share.
pub(crate) struct Client {
    pub(crate) gate: Arc<Gate>,
    pub(crate) tunnel: Arc<Tunnel>,
    /// What is told of the connection itself.
    pub(crate) report: Report,
    authority: String,
    view: Mutex<Arc<View>>,
}

/// What a connection is for, in one snapshot of the mesh.
pub(crate) struct View {
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) own: Arc<Workload>,
    pub(crate) target: WaypointTarget,
    /// The routes of the service's port, if there are any.
    pub(crate) table: Option<Arc<Table>>,
    /// The client's workload, if its address is that of one with its identity.
    pub(crate) source: Option<Arc<Workload>>,
    /// The service or pod no longer names this waypoint; the client is to connect anew.
    pub(crate) left: bool,
}

impl Client {
    /// For a connection that was asked for in `tunnel`.
    pub(crate) fn new(gate: &Arc<Gate>, tunnel: &Arc<Tunnel>, asked: Asked, report: Report) -> Arc<Self> {
        let Asked { authority, target, mesh, own } = asked;
        let source = source(&mesh, &own, tunnel);
        let table = table(gate, &mesh, &target);
        let view = Arc::new(View { mesh, own, target, table, source, left: false });
        Arc::new(Self { gate: gate.clone(), tunnel: tunnel.clone(), report, authority, view: Mutex::new(view) })
    }

    /// Who calls.
    pub(crate) fn identity(&self) -> &Identity {
        &self.tunnel.identity
    }

    /// Where from.
    pub(crate) fn address(&self) -> SocketAddr {
        self.tunnel.peer
    }

    /// The thread it is served on.
    pub(crate) fn lane(&self) -> &Lane {
        self.gate.lane(&self.tunnel)
    }

    /// What the connection is for, as of now.
    pub(crate) fn view(&self) -> Arc<View> {
        let mut view = self.view.lock();
        let Some((mesh, own)) = self.gate.own.now() else { return view.clone() };
        if !Arc::ptr_eq(&mesh, &view.mesh) {
            let (target, left) = match waypoint_target(&mesh, &own, &self.authority) {
                Ok(target) => (target, false),
                Err(_) => (view.target.clone(), true),
            };
            let source = source(&mesh, &own, &self.tunnel);
            let table = table(&self.gate, &mesh, &target);
            *view = Arc::new(View { mesh, own, target, table, source, left });
        }
        view.clone()
    }
}

/// The routes of what was asked for.
fn table(gate: &Gate, mesh: &Mesh, target: &WaypointTarget) -> Option<Arc<Table>> {
    let (service, port) = match target {
        WaypointTarget::Service { service, port, .. } => (service, *port),
        WaypointTarget::Pod { workload, service, address } => {
            let service = service.as_ref()?;
            (service, service_port(workload, service, address.port())?)
        }
    };
    gate.tables.of(mesh, &service.id, port).filter(|table| !table.is_empty())
}
