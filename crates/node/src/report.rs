//! The report on one connection: its access log line and its metrics, made from the same facts, which are collected as
//! they become known.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use leno_model::{Identity, Mesh, PolicyName, Service, Workload};
use leno_policy::DryRun;
use leno_telemetry::access_log::Level;
use leno_telemetry::metrics::{OpenSocket, ResponseFlags};
use leno_tunnel::RelayError;

use crate::failure::{Denial, Failure};
use crate::pod::Pod;
use crate::traffic::{Facts, Traffic, reporter};

pub(crate) use leno_telemetry::access_log::Direction;

/// What is told of a connection that is on its way.
pub(crate) struct Report {
    pod: Arc<Pod>,
    facts: Box<Facts>,
    socket: OpenSocket,
}

/// What is told of a connection that stands.
pub(crate) struct Carried {
    pod: Arc<Pod>,
    traffic: Arc<Traffic>,
    _socket: OpenSocket,
}

impl Report {
    pub(crate) fn new(pod: &Arc<Pod>, direction: Direction, source: SocketAddr) -> Self {
        let socket = pod.context().core.metrics.socket(reporter(direction));
        Self { pod: pod.clone(), facts: Box::new(Facts::new(direction, source)), socket }
    }

    /// Sets the destination: the address that the program asked for, until something better is known.
    pub(crate) fn destination_address(&mut self, address: SocketAddr) {
        self.facts.destination = Some(address);
    }

    /// The address of the peer's proxy, for a tunnelled connection.
    pub(crate) fn tunnel_address(&mut self, address: SocketAddr) {
        self.facts.tunnel = Some(address);
    }

    pub(crate) fn source_workload(&mut self, workload: &Arc<Workload>) {
        self.facts.source_workload = Some(workload.clone());
    }

    pub(crate) fn destination_workload(&mut self, workload: &Arc<Workload>) {
        self.facts.destination_workload = Some(workload.clone());
    }

    /// The workload of the pod that reports.
    pub(crate) fn own_workload(&self) -> Option<&Arc<Workload>> {
        match self.facts.direction {
            Direction::Outbound => self.facts.source_workload.as_ref(),
            Direction::Inbound | Direction::Through => self.facts.destination_workload.as_ref(),
        }
    }

    pub(crate) fn service(&mut self, service: Option<&Arc<Service>>) {
        self.facts.service = service.cloned();
    }

    /// Sets the endpoint that is being tried.
    pub(crate) fn upstream(
        &mut self,
        address: SocketAddr,
        workload: Option<&Arc<Workload>>,
        service: Option<&Arc<Service>>,
    ) {
        self.facts.destination = Some(address);
        self.facts.destination_workload = workload.cloned();
        self.facts.service = service.cloned();
        self.facts.tunnel = None;
        self.facts.encrypted = false;
        self.facts.destination_identity = None;
    }

    /// Sets the source of a plaintext connection, as far as its address tells.
    pub(crate) fn source_by_address(&mut self, mesh: &Mesh, address: IpAddr) {
        let network = self.facts.destination_workload.as_ref().map(|w| w.network.clone()).unwrap_or_default();
        self.facts.source_workload = mesh.workload_by_address(&network, address).cloned();
    }

    /// Sets the source of a connection with a proven identity: the workload at its address, if it has that identity. A
    /// waypoint or gateway in between has another one; then only the identity is reported.
    pub(crate) fn source_by_identity(&mut self, mesh: &Mesh, identity: &Identity, address: IpAddr) {
        self.source_by_address(mesh, address);
        let found = self.facts.source_workload.take();
        self.facts.source_workload = found.filter(|w| w.identity().as_ref() == Some(identity));
    }

    pub(crate) fn source_identity(&mut self, identity: &Identity) {
        self.facts.source_identity = Some(identity.clone());
    }

    pub(crate) fn destination_identity(&mut self, identity: &Identity) {
        self.facts.destination_identity = Some(identity.clone());
    }

    /// Both sides have proved their identity and everything is encrypted.
    pub(crate) fn mutual_tls(&mut self) {
        self.facts.encrypted = true;
    }

    /// The policy that decided.
    pub(crate) fn policy(&mut self, policy: &PolicyName) {
        self.facts.policy = Some(policy.clone());
    }

    pub(crate) fn trace(&mut self, trace: u128) {
        self.facts.trace = Some(trace);
    }

    /// The effect that dry-run policies would have had.
    pub(crate) fn dry_run(&mut self, notes: &[DryRun]) {
        self.facts.dry_run = notes.iter().map(ToString::to_string).collect();
    }

    /// The connection is established. Its bytes are counted from here on.
    pub(crate) fn opened(self) -> Carried {
        let core = &self.pod.context().core;
        let metrics = core.metrics.connection(&self.facts.labels());
        if core.access_log.enabled(Level::Debug) {
            core.access_log.opened(self.facts.record());
        }
        Carried { pod: self.pod, traffic: Traffic::new(self.facts, metrics), _socket: self.socket }
    }

    /// The connection could not be established.
    pub(crate) fn failed(mut self, failure: &Failure) {
        let core = &self.pod.context().core;
        let flags = failure.response_flags();
        core.metrics.connection_failed(&self.facts.labels(), flags);
        if core.access_log.enabled(Level::Error) {
            if let Some(policy) = failure.policy() {
                self.facts.policy = Some(policy.clone());
            }
            let mut record = self.facts.record();
            record.error = Some(failure.to_string());
            record.denied = flags == ResponseFlags::Deny;
            if self.own_workload().is_some() {
                core.access_log.completed(record);
            } else {
                core.access_log.refused(record);
            }
        }
    }
}

impl Carried {
    /// What counts its bytes.
    pub(crate) fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// The connection has ended. `cut` is the reason if a policy ended it.
    pub(crate) fn finished(self, outcome: Result<(), RelayError>, cut: Option<Denial>) {
        let log = &self.pod.context().core.access_log;
        let level = if outcome.is_err() { Level::Error } else { Level::Info };
        if !log.enabled(level) {
            return;
        }
        let mut record = self.traffic.record();
        match (outcome, cut) {
            (Ok(()), _) => {}
            (Err(_), Some(cut)) => {
                record.error = Some(cut.to_string());
                record.denied = true;
                record.policy = cut.policy().cloned();
            }
            (Err(error), None) => record.error = Some(error.to_string()),
        }
        log.completed(record);
    }

    /// The time since the connection came.
    pub(crate) fn age(&self) -> Duration {
        self.traffic.started().elapsed()
    }

    /// Bytes from the program and to it.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        self.traffic.bytes()
    }
}
