//! What is told of a connection: its access log line and its metrics, made from the same facts, which are collected as they
//! become known.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use leno_model::{Identity, Name, Service, Workload};
use leno_policy::{Route, WaypointTarget};
use leno_proxy::peers;
use leno_proxy::tunnels::Tunnel;
use leno_telemetry::access_log::{Direction, Endpoint, HboneAddress, Level, Record};
use leno_telemetry::metrics::{
    ConnectionLabels, ConnectionMetrics, OpenSocket, Reporter, ResponseFlags, SecurityPolicy,
};
use leno_tunnel::{Counters, Meter, RelayError};

use crate::balance::InFlight;
use crate::connection::target::{Asked, source};
use crate::failure::Failure;
use crate::state::open_list::{Listed, Place};
use crate::state::shared::Gate;

/// What is told of a connection.
pub(crate) struct Report {
    gate: Arc<Gate>,
    facts: Facts,
    /// The thread that carries it.
    worker: usize,
    /// Counts it at its endpoint.
    at: Option<InFlight>,
    _socket: OpenSocket,
}

#[derive(Clone)]
struct Facts {
    started: Instant,
    source: SocketAddr,
    local: Option<SocketAddr>,
    identity: Option<Identity>,
    source_workload: Option<Arc<Workload>>,
    destination: Option<SocketAddr>,
    destination_workload: Option<Arc<Workload>>,
    asked: Option<Name>,
    service: Option<Arc<Service>>,
    trace: Option<u128>,
    /// What policies say that are only logged.
    notes: Vec<String>,
}

impl Facts {
    fn labels(&self) -> ConnectionLabels {
        let mut labels = ConnectionLabels::new(Reporter::Waypoint);
        if let Some(workload) = &self.source_workload {
            labels = labels.source(workload);
        }
        if let Some(workload) = &self.destination_workload {
            labels = labels.destination(workload);
        }
        if let Some(service) = &self.service {
            labels = labels.service(service);
        }
        if let Some(identity) = &self.identity {
            labels = labels.security(SecurityPolicy::MutualTls).source_principal(identity.clone());
        }
        labels
    }

    fn record(&self) -> Record {
        let mut record = Record::new(Direction::Through);
        record.source = Endpoint {
            workload: self.source_workload.clone(),
            address: Some(self.source),
            identity: self.identity.clone(),
        };
        record.destination = Endpoint {
            workload: self.destination_workload.clone(),
            address: self.destination.or(self.local),
            identity: None,
        };
        record.hbone_address = self.asked.clone().map(HboneAddress::Name);
        record.service = self.service.as_ref().map(|service| service.id.hostname.clone());
        record.trace_id = self.trace;
        record.duration = self.started.elapsed();
        record.mutual_tls = self.identity.is_some();
        record.dry_run.clone_from(&self.notes);
        record
    }
}

impl Report {
    /// Of a connection in `tunnel`.
    pub(crate) fn new(gate: &Arc<Gate>, tunnel: &Tunnel) -> Self {
        let report = Self::of(gate, tunnel.peer, Some(tunnel.local), Some(tunnel.identity.clone()));
        Self { worker: tunnel.worker.index(), ..report }
    }

    fn of(gate: &Arc<Gate>, source: SocketAddr, local: Option<SocketAddr>, identity: Option<Identity>) -> Self {
        let facts = Facts {
            started: Instant::now(),
            source,
            local,
            identity,
            source_workload: None,
            destination: None,
            destination_workload: None,
            asked: None,
            service: None,
            trace: None,
            notes: Vec::new(),
        };
        Self { _socket: gate.core.metrics.socket(Reporter::Waypoint), gate: gate.clone(), facts, worker: 0, at: None }
    }

    pub(crate) fn trace(&mut self, trace: u128) {
        self.facts.trace = Some(trace);
    }

    /// What a policy says that is only logged.
    pub(crate) fn note(&mut self, note: String) {
        // Policies are asked twice about a connection whose first bytes are waited for.
        if !self.facts.notes.contains(&note) {
            self.facts.notes.push(note);
        }
    }

    /// It is known whom the connection is for.
    pub(crate) fn asked(&mut self, tunnel: &Tunnel, asked: &Asked) {
        self.facts.asked = Some(asked.authority.as_str().into());
        self.facts.source_workload = source(&asked.mesh, &asked.own, tunnel);
        match &asked.target {
            WaypointTarget::Service { service, .. } => self.facts.service = Some(service.clone()),
            WaypointTarget::Pod { workload, service, address } => {
                self.facts.service.clone_from(service);
                self.facts.destination = Some(*address);
                self.facts.destination_workload = Some(workload.clone());
            }
        }
    }

    /// Where a route sends it.
    pub(crate) fn aimed(&mut self, target: &WaypointTarget) {
        if let WaypointTarget::Service { service, .. } = target {
            self.facts.service = Some(service.clone());
        }
    }

    /// The endpoint that is being tried.
    pub(crate) fn attempt(&mut self, route: &Route) {
        (self.facts.destination, self.facts.destination_workload) = endpoint(route);
    }

    /// The endpoint that was connected to.
    pub(crate) fn at(&mut self, at: Option<InFlight>) {
        self.at = at;
    }

    /// The connection stands.
    pub(crate) fn opened(self) -> Carried {
        let metrics = self.gate.core.metrics.connection(&self.facts.labels());
        if self.gate.core.access_log.enabled(Level::Debug) {
            self.gate.core.access_log.opened(self.facts.record());
        }
        let traffic = Arc::new(Traffic { bytes: Counters::default(), metrics });
        let passed = Arc::new(Passed { facts: self.facts.clone(), traffic });
        let listed: Arc<dyn Listed> = passed.clone();
        let place = self.gate.lanes[self.worker].open.list(Arc::downgrade(&listed));
        Carried { report: self, passed, _place: place }
    }

    /// The connection could not be carried.
    pub(crate) fn failed(self, failure: &Failure) {
        self.failed_with(failure.response_flags(), failure.to_string());
    }

    /// As [`Self::failed`].
    pub(crate) fn failed_with(&self, flags: ResponseFlags, error: String) {
        let core = &self.gate.core;
        core.metrics.connection_failed(&self.facts.labels(), flags);
        if core.access_log.enabled(Level::Error) {
            let mut record = self.facts.record();
            record.error = Some(error);
            record.denied = flags == ResponseFlags::Deny;
            core.access_log.completed(record);
        }
    }
}

/// The address and the workload of an endpoint.
pub(crate) fn endpoint(route: &Route) -> (Option<SocketAddr>, Option<Arc<Workload>>) {
    match route {
        Route::Hbone { target, workload, .. } => (Some(*target), Some(workload.clone())),
        Route::Plain { address, workload, .. } => (Some(*address), workload.clone()),
        Route::Passthrough { address } => (Some(*address), None),
    }
}

/// A peer gets no tunnel.
pub(crate) fn tunnel_refused(gate: &Arc<Gate>, peer: SocketAddr, local: Option<SocketAddr>, failure: &Failure) {
    Report::of(gate, peer, local, None).failed(failure);
}

/// A tunnel was ended for what its peer did.
pub(crate) fn tunnel_ended(gate: &Arc<Gate>, tunnel: &Tunnel, error: &leno_tunnel::Error) {
    let failure = peers::Failure::Tunnel { address: tunnel.peer, reason: error.to_string() };
    Report::new(gate, tunnel).failed(&failure.into());
}

/// A connection that stands, whose bytes are passed on unread.
pub(crate) struct Carried {
    report: Report,
    passed: Arc<Passed>,
    _place: Place,
}

/// Its facts and its bytes, for whoever looks at what is open.
struct Passed {
    facts: Facts,
    traffic: Arc<Traffic>,
}

impl Passed {
    fn record(&self) -> Record {
        let mut record = self.facts.record();
        record.bytes_sent = self.traffic.bytes.forward.load(Relaxed);
        record.bytes_received = self.traffic.bytes.backward.load(Relaxed);
        record
    }
}

impl Listed for Passed {
    fn records(&self) -> Vec<Record> {
        vec![self.record()]
    }
}

/// Its bytes: forward is from the client to the endpoint.
pub(crate) struct Traffic {
    bytes: Counters,
    metrics: ConnectionMetrics,
}

impl Meter for Traffic {
    fn forward(&self, bytes: u64) {
        self.bytes.forward(bytes);
        self.metrics.received(bytes);
    }

    fn backward(&self, bytes: u64) {
        self.bytes.backward(bytes);
        self.metrics.sent(bytes);
    }
}

/// The same, for a relay whose first end is the endpoint.
pub(crate) struct Reversed(Arc<Traffic>);

impl Meter for Reversed {
    fn forward(&self, bytes: u64) {
        self.0.backward(bytes);
    }

    fn backward(&self, bytes: u64) {
        self.0.forward(bytes);
    }
}

impl Carried {
    pub(crate) fn bytes(&self) -> &Arc<Traffic> {
        &self.passed.traffic
    }

    pub(crate) fn reversed(&self) -> Arc<Reversed> {
        Arc::new(Reversed(self.passed.traffic.clone()))
    }

    /// The connection was ended for `failure`.
    pub(crate) fn cut(self, failure: &Failure) {
        self.report.failed(failure);
    }

    /// The connection has ended.
    pub(crate) fn finished(self, outcome: Result<(), RelayError>) {
        let log = &self.report.gate.core.access_log;
        let level = if outcome.is_err() { Level::Error } else { Level::Info };
        if !log.enabled(level) {
            return;
        }
        let mut record = self.passed.record();
        record.error = outcome.err().map(|error| error.to_string());
        log.completed(record);
    }
}
