//! What is told of one connection: its line in the access log and its metrics, both from the
//! same facts, gathered as they become known.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use leno_model::{Identity, Mesh, Service, Workload};
use leno_policy::DryRun;
use leno_telemetry::access_log::{Endpoint, HboneAddress, Level, Record};
use leno_telemetry::metrics::{ConnectionLabels, ConnectionMetrics, OpenSocket, Reporter, SecurityPolicy};
use leno_tunnel::{Counters, Meter, RelayError};

use crate::failure::Failure;
use crate::pod::Pod;

pub(crate) use leno_telemetry::access_log::Direction;

/// The facts of one connection so far.
pub(crate) struct Report {
    pod: Arc<Pod>,
    started: Instant,
    direction: Direction,
    source: SocketAddr,
    destination: Option<SocketAddr>,
    tunnel: Option<SocketAddr>,
    source_workload: Option<Arc<Workload>>,
    destination_workload: Option<Arc<Workload>>,
    service: Option<Arc<Service>>,
    source_identity: Option<Identity>,
    destination_identity: Option<Identity>,
    encrypted: bool,
    trace: Option<u128>,
    dry_run: Vec<String>,
    _socket: OpenSocket,
    counters: Option<Arc<Traffic>>,
}

/// Bytes of one connection, counted for its log line and for the metrics at once.
pub(crate) struct Traffic {
    bytes: Counters,
    metrics: ConnectionMetrics,
    direction: Direction,
}

impl Meter for Traffic {
    // The relay's first end is always the pod's program. Istio counts what the *destination* of
    // the connection sent and received, whichever side reports.
    fn forward(&self, bytes: u64) {
        self.bytes.forward(bytes);
        match self.direction {
            Direction::Outbound => self.metrics.received(bytes),
            Direction::Inbound => self.metrics.sent(bytes),
        }
    }

    fn backward(&self, bytes: u64) {
        self.bytes.backward(bytes);
        match self.direction {
            Direction::Outbound => self.metrics.sent(bytes),
            Direction::Inbound => self.metrics.received(bytes),
        }
    }
}

impl Report {
    pub(crate) fn new(pod: &Arc<Pod>, direction: Direction, source: SocketAddr) -> Self {
        let socket = pod.context().core.metrics.socket(reporter(direction));
        Self {
            pod: pod.clone(),
            started: Instant::now(),
            direction,
            source,
            destination: None,
            tunnel: None,
            source_workload: None,
            destination_workload: None,
            service: None,
            source_identity: None,
            destination_identity: None,
            encrypted: false,
            trace: None,
            dry_run: Vec::new(),
            _socket: socket,
            counters: None,
        }
    }

    /// Where the connection goes: the program's own words until something better is known.
    pub(crate) fn destination_address(&mut self, address: SocketAddr) {
        self.destination = Some(address);
    }

    /// The address of the peer's proxy, for a tunnelled connection.
    pub(crate) fn tunnel_address(&mut self, address: SocketAddr) {
        self.tunnel = Some(address);
    }

    pub(crate) fn source_workload(&mut self, workload: &Arc<Workload>) {
        self.source_workload = Some(workload.clone());
    }

    pub(crate) fn destination_workload(&mut self, workload: &Arc<Workload>) {
        self.destination_workload = Some(workload.clone());
    }

    /// The workload the pod of this report is.
    pub(crate) fn own_workload(&self) -> Option<&Arc<Workload>> {
        match self.direction {
            Direction::Outbound => self.source_workload.as_ref(),
            Direction::Inbound => self.destination_workload.as_ref(),
        }
    }

    pub(crate) fn service(&mut self, service: Option<&Arc<Service>>) {
        self.service = service.cloned();
    }

    /// The endpoint that is being tried.
    pub(crate) fn upstream(
        &mut self,
        address: SocketAddr,
        workload: Option<&Arc<Workload>>,
        service: Option<&Arc<Service>>,
    ) {
        self.destination = Some(address);
        self.destination_workload = workload.cloned();
        self.service = service.cloned();
        self.tunnel = None;
        self.encrypted = false;
        self.destination_identity = None;
    }

    /// The source of a plaintext connection, as far as an address can tell.
    pub(crate) fn source_by_address(&mut self, mesh: &Mesh, address: IpAddr) {
        let network = self.destination_workload.as_ref().map(|w| w.network.clone()).unwrap_or_default();
        self.source_workload = mesh.workload_by_address(&network, address).cloned();
    }

    /// The source of a proven connection: the workload at its address, if that has the proven
    /// identity. A waypoint or gateway in between has another; then only the identity is told.
    pub(crate) fn source_by_identity(&mut self, mesh: &Mesh, identity: &Identity, address: IpAddr) {
        self.source_by_address(mesh, address);
        self.source_workload = self.source_workload.take().filter(|w| w.identity().as_ref() == Some(identity));
    }

    pub(crate) fn source_identity(&mut self, identity: &Identity) {
        self.source_identity = Some(identity.clone());
    }

    pub(crate) fn destination_identity(&mut self, identity: &Identity) {
        self.destination_identity = Some(identity.clone());
    }

    /// Both sides are proven and everything is encrypted.
    pub(crate) fn mutual_tls(&mut self) {
        self.encrypted = true;
    }

    pub(crate) fn trace(&mut self, trace: u128) {
        self.trace = Some(trace);
    }

    /// What policies on trial would have done.
    pub(crate) fn dry_run(&mut self, notes: &[DryRun]) {
        self.dry_run = notes.iter().map(ToString::to_string).collect();
    }

    /// The connection stands; what it carries is counted from here on.
    pub(crate) fn opened(&mut self) -> Arc<Traffic> {
        let metrics = self.pod.context().core.metrics.connection(&self.labels());
        let traffic = Arc::new(Traffic { bytes: Counters::default(), metrics, direction: self.direction });
        self.counters = Some(traffic.clone());
        if self.pod.context().core.access_log.enabled(Level::Debug) {
            self.pod.context().core.access_log.opened(self.record(None));
        }
        traffic
    }

    /// The connection has ended; `cut` is the reason if it was ended by a policy.
    pub(crate) fn finished(self, outcome: Result<(), RelayError>, cut: Option<String>) {
        let log = &self.pod.context().core.access_log;
        let error = match outcome {
            Ok(()) => None,
            Err(error) => Some(cut.unwrap_or_else(|| error.to_string())),
        };
        if log.enabled(if error.is_some() { Level::Error } else { Level::Info }) {
            log.completed(self.record(error));
        }
    }

    /// The connection never stood.
    pub(crate) fn failed(self, failure: &Failure) {
        let context = self.pod.context();
        context.core.metrics.connection_failed(&self.labels(), failure.response_flags());
        if context.core.access_log.enabled(Level::Error) {
            let record = self.record(Some(failure.to_string()));
            if self.own_workload().is_some() {
                context.core.access_log.completed(record);
            } else {
                context.core.access_log.refused(record);
            }
        }
    }

    fn labels(&self) -> ConnectionLabels {
        let mut labels = ConnectionLabels::new(reporter(self.direction));
        if let Some(workload) = &self.source_workload {
            labels = labels.source(workload);
        }
        if let Some(workload) = &self.destination_workload {
            labels = labels.destination(workload);
        }
        if let Some(service) = &self.service {
            labels = labels.service(service);
        }
        if self.encrypted {
            labels = labels.security(SecurityPolicy::MutualTls);
            // Principals are what was proven, so only where something was.
            if let Some(identity) = &self.source_identity {
                labels = labels.source_principal(identity.clone());
            }
            let own = || self.destination_workload.as_ref().and_then(|w| w.identity());
            if let Some(identity) = self.destination_identity.clone().or_else(own) {
                labels = labels.destination_principal(identity);
            }
        }
        labels
    }

    fn record(&self, error: Option<String>) -> Record {
        let end = |workload: &Option<Arc<Workload>>, address, identity: Option<Identity>| {
            let names = workload.as_deref().map(Endpoint::of).unwrap_or_default();
            Endpoint { address, identity, ..names }
        };
        let proven = |identity: &Option<Identity>| identity.clone().filter(|_| self.encrypted);
        let own = || self.destination_workload.as_ref().and_then(|w| w.identity()).filter(|_| self.encrypted);
        let mut record = Record::new(self.direction);
        record.source = end(&self.source_workload, Some(self.source), proven(&self.source_identity));
        let identity = proven(&self.destination_identity).or_else(own);
        // The peer's proxy is what was connected to; what was asked of it is the HBONE address.
        record.destination = end(&self.destination_workload, self.tunnel.or(self.destination), identity);
        record.hbone_address = self.tunnel.and(self.destination).map(HboneAddress::Address);
        record.service = self.service.as_ref().map(|s| s.id.hostname.clone());
        record.trace_id = self.trace;
        record.dry_run.clone_from(&self.dry_run);
        record.duration = self.started.elapsed();
        [record.bytes_sent, record.bytes_received] = self.bytes();
        record.error = error;
        record
    }

    /// How long ago the connection came.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Bytes from the program and to it; none before the connection stands.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        let Some(Traffic { bytes, .. }) = self.counters.as_deref() else { return [0, 0] };
        [&bytes.forward, &bytes.backward].map(|count| count.load(Ordering::Relaxed))
    }
}

fn reporter(direction: Direction) -> Reporter {
    match direction {
        Direction::Outbound => Reporter::Source,
        Direction::Inbound => Reporter::Destination,
    }
}
