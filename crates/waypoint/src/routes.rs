//! The HTTP routes of services, compiled once for each change of them.

use std::collections::HashMap;
use std::sync::Arc;

use leno_model::http::{Route, RouteName};
use leno_model::{Map, Mesh, ServiceName};
use leno_policy::http::Table;
use parking_lot::Mutex;

/// What a table was compiled from, and the table.
type Compiled = (Map<RouteName, Arc<Route>>, Arc<Table>);

/// The tables of the services' ports that were asked for.
#[derive(Default)]
pub(crate) struct Tables {
    known: Mutex<HashMap<(ServiceName, u16), Compiled>>,
}

impl Tables {
    /// The table of a port of a service; `None` if no route belongs to the service.
    pub(crate) fn of(&self, mesh: &Mesh, service: &ServiceName, port: u16) -> Option<Arc<Table>> {
        let key = (service.clone(), port);
        let Some(routes) = mesh.routes_of(service) else {
            self.known.lock().remove(&key);
            return None;
        };
        if let Some((from, table)) = self.known.lock().get(&key)
            && from.ptr_eq(routes)
        {
            return Some(table.clone());
        }
        // Not under the lock: compiling thousands of routes takes milliseconds.
        let table = Arc::new(Table::new(service, port, routes.values().map(|route| &**route)));
        self.known.lock().insert(key, (routes.clone(), table.clone()));
        Some(table)
    }
}
