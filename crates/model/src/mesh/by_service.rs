//! What is said of services: of their endpoints, or of requests without a route.

use std::sync::Arc;

use crate::http::{EndpointPolicy, RequestDefaults};
use crate::{Map, PolicyName, ServiceName};

/// Something that counts for services.
pub(super) trait ForServices {
    fn id(&self) -> &PolicyName;
    fn services(&self) -> &[ServiceName];
}

impl ForServices for EndpointPolicy {
    fn id(&self) -> &PolicyName {
        &self.id
    }

    fn services(&self) -> &[ServiceName] {
        &self.services
    }
}

impl ForServices for RequestDefaults {
    fn id(&self) -> &PolicyName {
        &self.id
    }

    fn services(&self) -> &[ServiceName] {
        &self.services
    }
}

/// All of one kind, by name and by the services that it counts for.
#[derive(Debug)]
pub(super) struct ByService<T> {
    by_name: Map<PolicyName, Arc<T>>,
    by_service: Map<ServiceName, Map<PolicyName, Arc<T>>>,
}

// Not derived: that would ask it of what is held.
impl<T> Clone for ByService<T> {
    fn clone(&self) -> Self {
        Self { by_name: self.by_name.clone(), by_service: self.by_service.clone() }
    }
}

impl<T> Default for ByService<T> {
    fn default() -> Self {
        Self { by_name: Map::default(), by_service: Map::default() }
    }
}

impl<T: ForServices> ByService<T> {
    pub(super) fn get(&self, id: &PolicyName) -> Option<&Arc<T>> {
        self.by_name.get(id)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<T>> {
        self.by_name.values()
    }

    /// A control plane tells of one for each service. Between two messages of a change there may be two.
    pub(super) fn of(&self, service: &ServiceName) -> Option<&Arc<T>> {
        self.by_service.get(service).and_then(|all| all.values().next())
    }

    pub(super) fn upsert(&mut self, one: Arc<T>) {
        self.remove(one.id());
        for service in one.services() {
            let of_service = self.by_service.get_or_insert_with(service.clone(), Map::default);
            of_service.insert(one.id().clone(), one.clone());
        }
        self.by_name.insert(one.id().clone(), one);
    }

    pub(super) fn remove(&mut self, id: &PolicyName) -> bool {
        let Some(old) = self.by_name.remove(id) else { return false };
        for service in old.services() {
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
