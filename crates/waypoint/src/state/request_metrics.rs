//! The metrics of requests, found again without looking at twenty names.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use leno_model::{Identity, Service, Workload};
use leno_telemetry::Metrics;
use leno_telemetry::metrics::{ConnectionLabels, Outcome, Reporter, RequestMetrics, RequestProtocol, SecurityPolicy};
use parking_lot::Mutex;

/// Kinds of requests that a thread remembers. With more, it begins anew.
const REMEMBERED: usize = 4096;

/// The series that one thread has used.
#[derive(Default)]
pub(crate) struct Series {
    known: Mutex<HashMap<Key, Known, RandomState>>,
}

/// From whom a request came, where it went and how it ended.
pub(crate) struct Ends<'a> {
    pub(crate) source: Option<&'a Arc<Workload>>,
    pub(crate) identity: &'a Identity,
    pub(crate) destination: Option<&'a Arc<Workload>>,
    /// Whether the destination has proved who it is.
    pub(crate) proven: bool,
    pub(crate) service: Option<&'a Arc<Service>>,
}

/// What is the same for all requests of one series. Workloads and services are known by where they lie: a changed one
/// lies elsewhere.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    source: Source,
    destination: usize,
    proven: bool,
    service: usize,
    protocol: RequestProtocol,
    outcome: Outcome,
}

#[derive(PartialEq, Eq, Hash)]
enum Source {
    Workload(usize),
    Identity(Identity),
}

struct Known {
    metrics: Arc<RequestMetrics>,
    /// Keeps them where they are.
    _source: Option<Arc<Workload>>,
    _destination: Option<Arc<Workload>>,
    _service: Option<Arc<Service>>,
}

fn place<T>(of: Option<&Arc<T>>) -> usize {
    of.map_or(0, |of| Arc::as_ptr(of) as usize)
}

impl Series {
    /// What counts such requests.
    pub(crate) fn of(
        &self,
        metrics: &Metrics,
        ends: &Ends<'_>,
        protocol: RequestProtocol,
        outcome: Outcome,
    ) -> Arc<RequestMetrics> {
        let key = Key {
            // The workload's identity is the one that was proved.
            source: match ends.source {
                Some(workload) => Source::Workload(Arc::as_ptr(workload) as usize),
                None => Source::Identity(ends.identity.clone()),
            },
            destination: place(ends.destination),
            proven: ends.proven,
            service: place(ends.service),
            protocol,
            outcome,
        };
        let mut known = self.known.lock();
        if let Some(known) = known.get(&key) {
            return known.metrics.clone();
        }
        if known.len() >= REMEMBERED {
            known.clear();
        }
        let found = Known {
            metrics: metrics.requests(&labels(ends), protocol, outcome),
            _source: ends.source.cloned(),
            _destination: ends.destination.cloned(),
            _service: ends.service.cloned(),
        };
        known.entry(key).or_insert(found).metrics.clone()
    }

    /// Lets go of the workloads and services that are kept here only.
    pub(crate) fn forget(&self) {
        *self.known.lock() = HashMap::default();
    }
}

fn labels(ends: &Ends<'_>) -> ConnectionLabels {
    let mut labels = ConnectionLabels::new(Reporter::Waypoint)
        .security(SecurityPolicy::MutualTls)
        .source_principal(ends.identity.clone());
    if let Some(source) = ends.source {
        labels = labels.source(source);
    }
    if let Some(destination) = ends.destination {
        labels = labels.destination(destination);
        if let Some(identity) = ends.proven.then(|| destination.identity()).flatten() {
            labels = labels.destination_principal(identity);
        }
    }
    if let Some(service) = ends.service {
        labels = labels.service(service);
    }
    labels
}
