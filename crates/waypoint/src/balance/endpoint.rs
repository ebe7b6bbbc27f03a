//! An endpoint of a service's port.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_model::http::EndpointRules;
use leno_model::{Service, Workload};
use leno_policy::balance::of_bytes;
use leno_policy::{Reachable, Route};

use super::shared::{Counted, Limit, Overflow, Shared};
use super::vital::Vital;

/// What all endpoints of a cluster have in common.
pub(crate) struct Common {
    pub(crate) service: Arc<Service>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) rules: EndpointRules,
}

/// An endpoint.
pub(crate) struct Endpoint {
    pub(crate) route: Route,
    pub(crate) of: Arc<Common>,
    pub(super) vital: Arc<Vital>,
    pub(super) rank: usize,
    pub(super) target: SocketAddr,
    /// Where it is connected to.
    pub(super) address: SocketAddr,
}

impl Common {
    /// Counts one more, as far as the rules permit.
    pub(crate) fn count(&self, limit: Limit) -> Result<Counted, Overflow> {
        let most = match limit {
            Limit::Requests => self.rules.max_requests,
            Limit::Pending => self.rules.max_pending,
            Limit::Connections => self.rules.max_connections,
            Limit::Retries => self.rules.max_retries,
        };
        self.shared.count(limit, most).ok_or_else(|| self.shared.overflow(&self.service.id, limit, most))
    }
}

impl Endpoint {
    pub(super) fn new(one: Reachable<'_>, route: Route, vital: Arc<Vital>, of: Arc<Common>) -> Self {
        let address = match &route {
            Route::Hbone { address, .. } | Route::Plain { address, .. } | Route::Passthrough { address } => *address,
        };
        Self { route, of, vital, rank: one.rank, target: one.target, address }
    }

    fn workload(&self) -> Option<&Arc<Workload>> {
        match &self.route {
            Route::Hbone { workload, .. } => Some(workload),
            Route::Plain { workload, .. } => workload.as_ref(),
            Route::Passthrough { .. } => None,
        }
    }

    pub(super) fn uid(&self) -> Option<&str> {
        self.workload().map(|workload| &*workload.uid)
    }

    pub(super) fn is(&self, one: Reachable<'_>) -> bool {
        self.workload().is_some_and(|own| Arc::ptr_eq(own, one.workload))
            && (self.target, self.rank) == (one.target, one.rank)
    }

    pub(super) fn weight(&self) -> u32 {
        self.workload().map_or(1, |workload| workload.capacity)
    }

    /// The same wherever it is asked for.
    pub(super) fn id(&self) -> u64 {
        id(self.uid().unwrap_or_default())
    }
}

/// The number of the endpoint that is this workload, the same in all waypoints.
pub(crate) fn id(uid: &str) -> u64 {
    of_bytes(uid.as_bytes())
}
