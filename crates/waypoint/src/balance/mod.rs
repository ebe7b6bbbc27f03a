//! Endpoints of services: what is known of each, and which one takes the next request.
//!
//! ```text
//!  cluster   the endpoints of a service's port in one snapshot of the mesh
//!  vital     what is known of an endpoint; in_flight: one request there
//! ```
//!
//! All threads share what is known of an endpoint. Each keeps the clusters that it has used.

mod cluster;
mod in_flight;
mod vital;

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use leno_model::{Mesh, Service, ServiceName, Workload, WorkloadUid};
use leno_policy::RouteError;
use parking_lot::Mutex;

pub(crate) use cluster::{Chosen, Cluster, Tried};
pub(crate) use in_flight::{InFlight, Seat};
use vital::Vital;

/// What all threads know of the endpoints of a service's port.
#[derive(Default)]
pub(crate) struct Shared {
    vitals: Mutex<HashMap<WorkloadUid, Arc<Vital>, RandomState>>,
}

/// A port of a service.
type Of = (ServiceName, u16);

/// What all threads know of endpoints.
#[derive(Default)]
pub(crate) struct Balancers {
    known: Mutex<HashMap<Of, Arc<Shared>, RandomState>>,
}

impl Balancers {
    fn of(&self, service: &ServiceName, port: u16) -> Arc<Shared> {
        self.known.lock().entry((service.clone(), port)).or_default().clone()
    }

    /// Forgets services that are gone.
    pub(crate) fn forget(&self, mesh: &Mesh) {
        self.known.lock().retain(|(service, _), _| mesh.service(service).is_some());
    }
}

/// The clusters that a thread has used, each with whether it is for clients of IPv4.
#[derive(Default)]
pub(crate) struct Clusters {
    known: Mutex<HashMap<ServiceName, Vec<(u16, bool, Arc<Cluster>)>, RandomState>>,
}

impl Clusters {
    /// The endpoints of a service's port, preferably at addresses of the family of `address`.
    pub(crate) fn of(
        &self,
        balancers: &Balancers,
        mesh: &Arc<Mesh>,
        own: &Workload,
        service: &Arc<Service>,
        destination: std::net::SocketAddr,
    ) -> Result<Arc<Cluster>, RouteError> {
        let (port, is_ipv4) = (destination.port(), destination.is_ipv4());
        let is_it = |(at, v4, _): &&(u16, bool, Arc<Cluster>)| *at == port && *v4 == is_ipv4;
        let known = self.known.lock().get(&service.id).and_then(|all| all.iter().find(is_it)).map(|found| found.2.clone());
        if let Some(known) = &known
            && known.is_of(mesh)
        {
            return Ok(known.clone());
        }
        let shared = balancers.of(&service.id, port);
        let made = Arc::new(Cluster::new(&shared, mesh, own, service, destination, known.as_deref())?);
        let mut all = self.known.lock();
        let of_service = all.entry(service.id.clone()).or_default();
        of_service.retain(|one| !is_it(&one));
        of_service.push((port, is_ipv4, made.clone()));
        Ok(made)
    }

    /// Forgets services that are gone.
    pub(crate) fn forget(&self, mesh: &Mesh) {
        self.known.lock().retain(|service, _| mesh.service(service).is_some());
    }
}
