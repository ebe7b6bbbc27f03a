//! The facts of one connection, and what it has carried. They lie apart from its task: whoever looks at what is open
//! reads them here.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use leno_model::{Identity, PolicyName, Service, Workload};
use leno_telemetry::access_log::{Direction, Endpoint, HboneAddress, Record};
use leno_telemetry::metrics::{ConnectionLabels, ConnectionMetrics, Reporter, SecurityPolicy};
use leno_tunnel::{Counters, Meter};

/// The facts of one connection, as far as they are known.
pub(crate) struct Facts {
    pub(crate) started: Instant,
    pub(crate) direction: Direction,
    pub(crate) source: SocketAddr,
    pub(crate) destination: Option<SocketAddr>,
    pub(crate) tunnel: Option<SocketAddr>,
    pub(crate) source_workload: Option<Arc<Workload>>,
    pub(crate) destination_workload: Option<Arc<Workload>>,
    pub(crate) service: Option<Arc<Service>>,
    pub(crate) source_identity: Option<Identity>,
    pub(crate) destination_identity: Option<Identity>,
    pub(crate) encrypted: bool,
    pub(crate) policy: Option<PolicyName>,
    pub(crate) trace: Option<u128>,
    pub(crate) dry_run: Vec<String>,
}

/// A connection that stands, and its bytes, counted for its log line and for the metrics at once.
pub(crate) struct Traffic {
    facts: Box<Facts>,
    bytes: Counters,
    metrics: ConnectionMetrics,
}

impl Meter for Traffic {
    // The relay's first end is always the pod's program. Istio counts what the *destination* of
    // the connection sent and received, whichever side reports.
    fn forward(&self, bytes: u64) {
        self.bytes.forward(bytes);
        match self.facts.direction {
            Direction::Outbound => self.metrics.received(bytes),
            Direction::Inbound | Direction::Through => self.metrics.sent(bytes),
        }
    }

    fn backward(&self, bytes: u64) {
        self.bytes.backward(bytes);
        match self.facts.direction {
            Direction::Outbound => self.metrics.sent(bytes),
            Direction::Inbound | Direction::Through => self.metrics.received(bytes),
        }
    }
}

impl Traffic {
    /// A connection that stands from now on.
    pub(crate) fn new(facts: Box<Facts>, metrics: ConnectionMetrics) -> Arc<Self> {
        Arc::new(Self { facts, bytes: Counters::default(), metrics })
    }

    /// When it came.
    pub(crate) fn started(&self) -> Instant {
        self.facts.started
    }

    /// Bytes from the program and to it.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        [&self.bytes.forward, &self.bytes.backward].map(|count| count.load(Ordering::Relaxed))
    }

    /// The record of the connection as it is now.
    pub(crate) fn record(&self) -> Record {
        let mut record = self.facts.record();
        [record.bytes_sent, record.bytes_received] = self.bytes();
        record
    }

    /// Where it comes from, where it goes, and whether by a tunnel.
    pub(crate) fn way(&self) -> (SocketAddr, Option<SocketAddr>, bool) {
        (self.facts.source, self.facts.tunnel.or(self.facts.destination), self.facts.tunnel.is_some())
    }
}

impl Facts {
    /// Those of a connection from `source` that has just come.
    pub(crate) fn new(direction: Direction, source: SocketAddr) -> Self {
        Self {
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
            policy: None,
            trace: None,
            dry_run: Vec::new(),
        }
    }

    /// The labels of the connection's metrics.
    pub(crate) fn labels(&self) -> ConnectionLabels {
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

    /// For the access log; it has carried nothing yet.
    pub(crate) fn record(&self) -> Record {
        let end = |workload: &Option<Arc<Workload>>, address, identity: Option<Identity>| Endpoint {
            workload: workload.clone(),
            address,
            identity,
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
        record.policy.clone_from(&self.policy);
        record.mutual_tls = self.encrypted;
        record
    }
}

/// Whose view that of `direction` is.
pub(crate) fn reporter(direction: Direction) -> Reporter {
    match direction {
        Direction::Outbound => Reporter::Source,
        Direction::Inbound => Reporter::Destination,
        Direction::Through => Reporter::Waypoint,
    }
}
