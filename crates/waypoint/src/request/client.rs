//! A client's HTTP connection: whom it belongs to, and what it is for.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use leno_model::http::RequestDefaults;
use leno_model::{Identity, Mesh, Service, Workload};
use leno_policy::http::{Guard, Table};
use leno_policy::{WaypointTarget, waypoint_target};
use leno_proxy::tunnels::Tunnel;
use leno_telemetry::access_log::{Direction, Endpoint, Record, Request};
use parking_lot::Mutex;

use crate::connection::authorise;
use crate::connection::record::Report;
use crate::connection::target::{Asked, source};
use crate::request::open_requests::{AllPending, protocol};
use crate::request::slow_reader::Unread;
use crate::state::open_list::{Listed, Place};
use crate::state::shared::Gate;
use crate::state::worker::Lane;
use crate::transport::h2_flood::Requests;

/// What all requests of a connection share.
pub(crate) struct Client {
    pub(crate) gate: Arc<Gate>,
    pub(crate) tunnel: Arc<Tunnel>,
    /// How many waypoints have sent its requests on to another one.
    pub(crate) passed: u32,
    /// What is told of the connection itself.
    pub(crate) report: Report,
    /// Its requests that are open.
    pub(crate) pending: AllPending,
    /// What of their responses it does not read.
    pub(crate) unread: Arc<Unread>,
    /// What came of them.
    pub(crate) requests: Arc<Requests>,
    authority: String,
    view: Mutex<Arc<View>>,
    _place: Place,
}

/// What a connection is for, in one snapshot of the mesh.
pub(crate) struct View {
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) own: Arc<Workload>,
    pub(crate) target: WaypointTarget,
    /// The routes of the service's port, if there are any.
    pub(crate) table: Option<Arc<Table>>,
    /// What happens to requests if there are none.
    pub(crate) defaults: Option<Arc<RequestDefaults>>,
    /// Who may do what.
    pub(crate) guard: Arc<Guard>,
    /// The last guard before the service or pod left, which goes on to count for this client.
    pub(crate) left_guard: Option<Arc<Guard>>,
    /// The client's workload, if its address is that of one with its identity.
    pub(crate) source: Option<Arc<Workload>>,
    /// The service or pod no longer names this waypoint; the client is to connect anew.
    pub(crate) left: bool,
}

impl Client {
    /// For a connection that was asked for in `tunnel`.
    pub(crate) fn new(gate: &Arc<Gate>, tunnel: &Arc<Tunnel>, asked: Asked, report: Report) -> Arc<Self> {
        let Asked { authority, target, mesh, own, passed } = asked;
        let source = source(&mesh, &own, tunnel);
        let table = table(gate, &mesh, &target);
        let guard = authorise::guard(gate, &mesh, &own, &target);
        let defaults = defaults(&mesh, &target, table.is_some());
        let view = View { mesh, own, target, table, defaults, guard, left_guard: None, source, left: false };
        let view = Arc::new(view);
        let (gate, tunnel) = (gate.clone(), tunnel.clone());
        Arc::new_cyclic(|client: &Weak<Self>| Self {
            _place: gate.lane(&tunnel).open.list(client.clone()),
            gate,
            tunnel,
            passed,
            report,
            pending: AllPending::default(),
            unread: Arc::default(),
            requests: Arc::default(),
            authority,
            view: Mutex::new(view),
        })
    }

    /// What the log says of a request of this connection, as far as it is the same for all.
    pub(crate) fn record(&self, view: &View) -> Record {
        let mut record = Record::new(Direction::Through);
        record.source = Endpoint {
            workload: view.source.clone(),
            address: Some(self.address()),
            identity: Some(self.identity().clone()),
        };
        record.service = view.service().map(|service| service.id.hostname.clone());
        record.mutual_tls = true;
        record
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
            let guard = authorise::guard(&self.gate, &mesh, &own, &target);
            let left_guard = left.then(|| view.left_guard.as_ref().unwrap_or(&view.guard).clone());
            let defaults = defaults(&mesh, &target, table.is_some());
            *view = Arc::new(View { mesh, own, target, table, defaults, guard, left_guard, source, left });
        }
        view.clone()
    }
}

impl View {
    /// All guards that count.
    pub(crate) fn guards(&self) -> impl Iterator<Item = &Arc<Guard>> {
        std::iter::once(&self.guard).chain(&self.left_guard)
    }

    /// The service that was asked for.
    pub(crate) fn service(&self) -> Option<&Arc<Service>> {
        self.target.service()
    }
}

impl Listed for Client {
    fn let_go(&self, age: Duration) {
        self.unread.end_if_stalled(age, self.pending.idle());
    }

    fn records(&self) -> Vec<Record> {
        let view = self.view.lock().clone();
        let of = |pending: crate::request::open_requests::Pending| {
            let mut record = self.record(&view);
            (record.destination.address, record.destination.workload) = pending.endpoint;
            record.duration = pending.started.elapsed();
            record.trace_id = pending.trace;
            record.request = Some(Box::new(Request {
                method: pending.method.as_str().into(),
                authority: "".into(),
                path: pending.path.as_ref().map_or("", |path| path.as_str()).into(),
                protocol: protocol(pending.version),
                status: 0,
                grpc_status: None,
                flags: "-",
                id: "".into(),
                attempts: 0,
                route: None,
                span: pending.span,
            }));
            record
        };
        self.pending.all().into_iter().map(of).collect()
    }
}

/// The routes of what was asked for.
fn table(gate: &Gate, mesh: &Mesh, target: &WaypointTarget) -> Option<Arc<Table>> {
    let (service, port) = target.routed()?;
    gate.tables.of(mesh, service, port).filter(|table| !table.is_empty())
}

/// What happens to requests of what was asked for, if it has no routes.
fn defaults(mesh: &Mesh, target: &WaypointTarget, routed: bool) -> Option<Arc<RequestDefaults>> {
    let WaypointTarget::Service { service, .. } = target else { return None };
    if routed { None } else { mesh.request_defaults_of(&service.id).cloned() }
}
