//! What happens to requests without a route, by the services that it counts for.

use std::sync::Arc;

use crate::http::RequestDefaults;
use crate::{Map, PolicyName, ServiceName};

/// All of it.
#[derive(Debug, Clone, Default)]
pub(super) struct AllDefaults {
    by_name: Map<PolicyName, Arc<RequestDefaults>>,
    by_service: Map<ServiceName, Map<PolicyName, Arc<RequestDefaults>>>,
}

impl AllDefaults {
    pub(super) fn get(&self, id: &PolicyName) -> Option<&Arc<RequestDefaults>> {
        self.by_name.get(id)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<RequestDefaults>> {
        self.by_name.values()
    }

    /// A control plane tells of one for each service. Between two messages of a change there may be two.
    pub(super) fn of(&self, service: &ServiceName) -> Option<&Arc<RequestDefaults>> {
        self.by_service.get(service).and_then(|all| all.values().next())
    }

    pub(super) fn upsert(&mut self, policy: Arc<RequestDefaults>) {
        self.remove(&policy.id);
        for service in &policy.services {
            let of_service = self.by_service.get_or_insert_with(service.clone(), Map::default);
            of_service.insert(policy.id.clone(), policy.clone());
        }
        self.by_name.insert(policy.id.clone(), policy);
    }

    pub(super) fn remove(&mut self, id: &PolicyName) -> bool {
        let Some(old) = self.by_name.remove(id) else { return false };
        for service in &old.services {
            if let Some(of_service) = self.by_service.get_mut(service) {
                of_service.remove(id);
                if of_service.is_empty() {
                    self.by_service.remove(service);
                }
            }
        }
        true
    }
}
