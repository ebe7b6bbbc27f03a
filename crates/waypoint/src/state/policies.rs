//! The policies of services, compiled once for each change of them.

use std::collections::HashMap;
use std::sync::Arc;

use leno_model::http::Policy;
use leno_model::{Map, Mesh, PolicyName, ServiceName, Workload};
use leno_policy::http::Guard;
use leno_policy::{WaypointTarget, policies_at, policies_of_backend};
use parking_lot::Mutex;

/// The policies that are attached to one target.
type Attached = Map<PolicyName, Arc<Policy>>;

/// Of the service, and whether only the policies count that are attached to it itself.
type Key = (Option<ServiceName>, bool);

/// What a guard was compiled from, and the guard.
struct Compiled {
    from: Vec<Attached>,
    guard: Arc<Guard>,
}

/// The guards of the services that were asked for. What is no service's has one, too.
#[derive(Default)]
pub(crate) struct Guards {
    known: Mutex<HashMap<Key, Compiled>>,
}

impl Guards {
    /// The guard of a service at the waypoint `own`: the policies that are attached to the service, to the waypoint, or to what
    /// was not understood.
    pub(crate) fn of(&self, mesh: &Mesh, own: &Workload, service: Option<&ServiceName>) -> Arc<Guard> {
        let from = policies_at(mesh, own, service).into_iter().cloned().collect();
        self.compiled((service.cloned(), false), from)
    }

    /// The guard of a backend to which a route sends what was asked of another service.
    pub(crate) fn of_backend(
        &self,
        mesh: &Mesh,
        own: &Workload,
        asked: &WaypointTarget,
        backend: &WaypointTarget,
    ) -> Option<Arc<Guard>> {
        let policies = policies_of_backend(mesh, own, asked, backend)?;
        let service = backend.service().map(|service| service.id.clone());
        Some(self.compiled((service, true), vec![policies.clone()]))
    }

    fn compiled(&self, key: Key, from: Vec<Attached>) -> Arc<Guard> {
        if from.is_empty() {
            self.known.lock().remove(&key);
            return Arc::default();
        }
        if let Some(known) = self.known.lock().get(&key)
            && known.from.len() == from.len()
            && known.from.iter().zip(&from).all(|(one, other)| one.ptr_eq(other))
        {
            return known.guard.clone();
        }
        // Not under the lock: compiling thousands of policies takes milliseconds. One that is attached to several targets counts
        // once.
        let policies: std::collections::BTreeMap<_, _> =
            from.iter().flat_map(|all| all.values()).map(|policy| (&policy.id, &**policy)).collect();
        let guard = Arc::new(Guard::new(policies.into_values()));
        self.known.lock().insert(key, Compiled { from, guard: guard.clone() });
        guard
    }
}
