//! The HTTP routes of a mesh, by the services that they belong to.

use std::sync::Arc;

use crate::http::{Route, RouteName};
use crate::{Map, ServiceName};

/// All of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Routes {
    by_name: Map<RouteName, Arc<Route>>,
    by_service: Map<ServiceName, Map<RouteName, Arc<Route>>>,
}

impl Routes {
    pub(super) fn get(&self, id: &RouteName) -> Option<&Arc<Route>> {
        self.by_name.get(id)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.by_name.values()
    }

    pub(super) fn of(&self, service: &ServiceName) -> Option<&Map<RouteName, Arc<Route>>> {
        self.by_service.get(service)
    }

    pub(super) fn upsert(&mut self, route: Arc<Route>) {
        self.remove(&route.id);
        for parent in &route.parents {
            let of_service = self.by_service.get_or_insert_with(parent.service.clone(), Map::default);
            of_service.insert(route.id.clone(), route.clone());
        }
        self.by_name.insert(route.id.clone(), route);
    }

    pub(super) fn remove(&mut self, id: &RouteName) -> bool {
        let Some(old) = self.by_name.remove(id) else { return false };
        for parent in &old.parents {
            if let Some(of_service) = self.by_service.get_mut(&parent.service) {
                of_service.remove(id);
                if of_service.is_empty() {
                    self.by_service.remove(&parent.service);
                }
            }
        }
        true
    }
}
