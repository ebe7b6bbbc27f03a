//! What is told of a connection or a request: its access log line and its metrics, made from the same facts, which are
//! collected as they become known.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};
use leno_model::{Identity, Name, Service, Workload};
use leno_policy::{Route, WaypointTarget};
use leno_proxy::peers;
use leno_proxy::tunnels::Tunnel;
use leno_telemetry::access_log::{Direction, Endpoint, HboneAddress, Level, Record, Request};
use leno_telemetry::metrics::{
    ConnectionLabels, ConnectionMetrics, OpenSocket, Reporter, ResponseFlags, SecurityPolicy,
};
use leno_tunnel::{Counters, Meter, RelayError};

use crate::connection::Asked;
use crate::failure::Failure;
use crate::gate::Gate;
use crate::http::{Asks, Client, Ended, Flag, Refusal, View, source};

/// What is told of a connection.
pub(crate) struct Report {
    gate: Arc<Gate>,
    facts: Facts,
    _socket: OpenSocket,
}

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
        record
    }
}

impl Report {
    /// Of a connection in `tunnel`.
    pub(crate) fn new(gate: &Arc<Gate>, tunnel: &Tunnel) -> Self {
        Self::of(gate, tunnel.peer, Some(tunnel.local), Some(tunnel.identity.clone()))
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
        };
        Self { _socket: gate.core.metrics.socket(Reporter::Waypoint), gate: gate.clone(), facts }
    }

    pub(crate) fn trace(&mut self, trace: u128) {
        self.facts.trace = Some(trace);
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

    /// The endpoint that is being tried.
    pub(crate) fn attempt(&mut self, route: &Route) {
        (self.facts.destination, self.facts.destination_workload) = endpoint(route);
    }

    /// The connection stands.
    pub(crate) fn opened(self) -> Carried {
        let metrics = self.gate.core.metrics.connection(&self.facts.labels());
        if self.gate.core.access_log.enabled(Level::Debug) {
            self.gate.core.access_log.opened(self.facts.record());
        }
        Carried { report: self, traffic: Arc::new(Traffic { bytes: Counters::default(), metrics }) }
    }

    /// The connection could not be carried.
    pub(crate) fn failed(self, failure: &Failure) {
        self.failed_with(failure.response_flags(), failure.to_string());
    }

    fn failed_with(&self, flags: ResponseFlags, error: String) {
        let core = &self.gate.core;
        core.metrics.connection_failed(&self.facts.labels(), flags);
        if core.access_log.enabled(Level::Error) {
            let mut record = self.facts.record();
            record.error = Some(error);
            core.access_log.completed(record);
        }
    }

    /// An HTTP connection has ended; its requests were told of one by one.
    pub(crate) fn http_ended(&self, ended: Ended) {
        match ended {
            Ended::Well | Ended::Stopped => {}
            Ended::SlowHead(limit) => {
                let error = format!("the head of a request took longer than {limit:?} (LENO_HEAD_TIMEOUT)");
                self.failed_with(ResponseFlags::Connect, error);
            }
            // A client that goes away between requests.
            Ended::Broken(error) if error.is_incomplete_message() || error.is_canceled() => {}
            Ended::Broken(error) => {
                use std::error::Error;
                let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
                self.failed_with(ResponseFlags::Connect, format!("the client's HTTP can't be read: {error}{cause}"));
            }
        }
    }
}

/// The address and the workload of an endpoint.
fn endpoint(route: &Route) -> (Option<SocketAddr>, Option<Arc<Workload>>) {
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
    traffic: Arc<Traffic>,
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
        &self.traffic
    }

    pub(crate) fn reversed(&self) -> Arc<Reversed> {
        Arc::new(Reversed(self.traffic.clone()))
    }

    /// The connection has ended.
    pub(crate) fn finished(self, outcome: Result<(), RelayError>) {
        let log = &self.report.gate.core.access_log;
        let level = if outcome.is_err() { Level::Error } else { Level::Info };
        if !log.enabled(level) {
            return;
        }
        let mut record = self.report.facts.record();
        record.bytes_sent = self.traffic.bytes.forward.load(Relaxed);
        record.bytes_received = self.traffic.bytes.backward.load(Relaxed);
        record.error = outcome.err().map(|error| error.to_string());
        log.completed(record);
    }
}

/// One request and its response, as far as they are known. Dropping it tells that the client went away.
pub(crate) struct Exchange {
    client: Arc<Client>,
    view: Arc<View>,
    started: Instant,
    method: Method,
    version: Version,
    path: Option<http::uri::PathAndQuery>,
    authority: Option<http::uri::Authority>,
    grpc: bool,
    endpoint: (Option<SocketAddr>, Option<Arc<Workload>>),
    attempts: u32,
    pub(crate) request_id: Option<HeaderValue>,
    pub(crate) trace: Option<u128>,
    pub(crate) bytes_received: Arc<AtomicU64>,
    bytes_sent: u64,
    pub(crate) status: StatusCode,
    grpc_status: Option<u16>,
    flag: Flag,
    error: Option<String>,
    told: bool,
}

impl Exchange {
    pub(crate) fn new(client: &Arc<Client>, view: &Arc<View>, head: &Parts) -> Self {
        Self {
            client: client.clone(),
            view: view.clone(),
            started: Instant::now(),
            method: head.method.clone(),
            version: head.version,
            path: head.uri.path_and_query().cloned(),
            authority: None,
            grpc: false,
            endpoint: (None, None),
            attempts: 0,
            request_id: None,
            trace: None,
            bytes_received: Arc::default(),
            bytes_sent: 0,
            // Istio writes 0 for a request that was never answered.
            status: StatusCode::OK,
            grpc_status: None,
            flag: Flag::None,
            error: None,
            told: false,
        }
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.client.gate
    }

    pub(crate) fn asks(&mut self, asks: &Asks) {
        self.authority = Some(asks.authority.clone());
        self.grpc = asks.grpc;
    }

    /// The endpoint that is asked.
    pub(crate) fn attempt(&mut self, route: &Route) {
        self.endpoint = endpoint(route);
        self.attempts += 1;
    }

    /// The head of a response has come.
    pub(crate) fn responded(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.status = status;
        self.trailers(headers);
    }

    /// Bytes of the response were passed on.
    pub(crate) fn sent(&mut self, data: &Bytes) {
        self.bytes_sent += data.len() as u64;
    }

    /// What a gRPC server says at the end.
    pub(crate) fn trailers(&mut self, trailers: &HeaderMap) {
        if self.grpc
            && let Some(status) = trailers.get("grpc-status")
        {
            self.grpc_status = status.to_str().ok().and_then(|text| text.parse().ok());
        }
    }

    /// Bytes that were carried after a change of protocol.
    pub(crate) fn carried(&mut self, received: u64, sent: u64) {
        self.bytes_received.fetch_add(received, Relaxed);
        self.bytes_sent += sent;
    }

    /// The waypoint answers itself.
    pub(crate) fn refused(&mut self, refusal: &Refusal) {
        self.broken(refusal.flag, refusal.reason.to_string());
    }

    /// It went wrong.
    pub(crate) fn broken(&mut self, flag: Flag, error: String) {
        self.flag = flag;
        self.error = Some(error);
    }

    /// The response has been passed on, or was given up.
    pub(crate) fn finished(mut self) {
        self.tell();
    }

    fn tell(&mut self) {
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        let log = &self.client.gate.core.access_log;
        let level = if self.error.is_some() { Level::Error } else { Level::Info };
        if log.enabled(level) {
            log.completed(self.record());
        }
    }

    fn record(&self) -> Record {
        let mut record = Record::new(Direction::Through);
        record.source = Endpoint {
            workload: self.view.source.clone(),
            address: Some(self.client.address()),
            identity: Some(self.client.identity().clone()),
        };
        record.destination = Endpoint { workload: self.endpoint.1.clone(), address: self.endpoint.0, identity: None };
        record.service = match &self.view.target {
            WaypointTarget::Service { service, .. } => Some(service.id.hostname.clone()),
            WaypointTarget::Pod { service, .. } => service.as_ref().map(|service| service.id.hostname.clone()),
        };
        record.bytes_sent = self.bytes_received.load(Relaxed);
        record.bytes_received = self.bytes_sent;
        record.duration = self.started.elapsed().max(Duration::ZERO);
        record.trace_id = self.trace;
        record.error.clone_from(&self.error);
        record.mutual_tls = true;
        record.request = Some(Box::new(Request {
            method: self.method.as_str().into(),
            authority: self.authority.as_ref().map_or("", |authority| authority.as_str()).into(),
            path: self.path.as_ref().map_or("", |path| path.as_str()).into(),
            protocol: match self.version {
                Version::HTTP_2 => "HTTP/2",
                Version::HTTP_10 => "HTTP/1.0",
                _ => "HTTP/1.1",
            },
            status: self.status.as_u16(),
            grpc_status: self.grpc_status,
            flags: self.flag.as_str(),
            id: self.request_id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default().into(),
            attempts: self.attempts,
        }));
        record
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if !self.told {
            self.status = StatusCode::from_u16(499).unwrap_or_default();
            self.broken(Flag::Downstream, "the client went away before it had a response".to_owned());
            self.tell();
        }
    }
}
