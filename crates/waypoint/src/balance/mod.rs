//! Endpoints of services: what is known of each, and which one takes the next request.
//!
//! ```text
//!  cluster    the endpoints of a service's port in one snapshot of the mesh
//!  endpoint   one of them; in_flight: one request there; hash: what of a request may decide about its endpoint
//!  shared     what is counted for all of a service's port
//!  vital      what is known of an endpoint; ejection: when it is left out
//! ```
//!
//! All threads share what is known of an endpoint. Each keeps the clusters that it has used.

mod cluster;
mod ejection;
mod endpoint;
pub(crate) mod hash;
mod in_flight;
mod shared;
mod vital;

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use leno_model::{Mesh, Service, ServiceName, Workload};
use leno_policy::RouteError;
use parking_lot::Mutex;

pub(crate) use cluster::{Cluster, Tried, Wish};
pub(crate) use endpoint::{Common, id as endpoint_id};
pub(crate) use in_flight::{InFlight, Seat};
pub(crate) use shared::{Counted, Limit, Overflow, Shared, Totals};

/// A port of a service.
type Of = (ServiceName, u16);

/// What all threads know of endpoints.
pub(crate) struct Balancers {
    known: Mutex<HashMap<Of, Arc<Shared>, RandomState>>,
    totals: Totals,
}

impl Balancers {
    pub(crate) fn new(totals: Totals) -> Self {
        Self { known: Mutex::default(), totals }
    }

    fn of(&self, service: &ServiceName, port: u16) -> Arc<Shared> {
        let new = || Arc::new(Shared::new(&self.totals));
        self.known.lock().entry((service.clone(), port)).or_insert_with(new).clone()
    }

    /// Forgets services that are gone.
    pub(crate) fn forget(&self, mesh: &Mesh) {
        self.known.lock().retain(|(service, _), _| mesh.service(service).is_some());
    }
}

/// A cluster, with its port and whether it is for clients of IPv4.
type Used = (u16, bool, Arc<Cluster>);

/// The clusters that a thread has used.
#[derive(Default)]
pub(crate) struct Clusters {
    known: Mutex<HashMap<ServiceName, Vec<Used>, RandomState>>,
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
        let is_it = |(at, v4, _): &&Used| *at == port && *v4 == is_ipv4;
        let known =
            self.known.lock().get(&service.id).and_then(|all| all.iter().find(is_it)).map(|found| found.2.clone());
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
