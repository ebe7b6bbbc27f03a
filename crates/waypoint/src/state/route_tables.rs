//! The routes of services, compiled once for each change of them.

use std::collections::HashMap;
use std::sync::Arc;

use leno_model::http::{Route, RouteName};
use leno_model::{Map, Mesh, ServiceName};
use leno_policy::connections::Connections;
use leno_policy::http::Table;
use parking_lot::Mutex;

/// What a table was compiled from, and the table.
struct Compiled {
    from: Map<RouteName, Arc<Route>>,
    requests: Arc<Table>,
    connections: Arc<Connections>,
}

/// The tables of the services' ports that were asked for.
#[derive(Default)]
pub(crate) struct Tables {
    known: Mutex<HashMap<(ServiceName, u16), Compiled>>,
}

impl Tables {
    /// The table of a port of a service; `None` if no route belongs to the service.
    pub(crate) fn of(&self, mesh: &Mesh, service: &ServiceName, port: u16) -> Option<Arc<Table>> {
        self.compiled(mesh, service, port, |compiled| compiled.requests.clone())
    }

    /// As [`Self::of`], for connections.
    pub(crate) fn connections(&self, mesh: &Mesh, service: &ServiceName, port: u16) -> Option<Arc<Connections>> {
        self.compiled(mesh, service, port, |compiled| compiled.connections.clone())
    }

    fn compiled<T>(&self, mesh: &Mesh, service: &ServiceName, port: u16, wanted: impl Fn(&Compiled) -> T) -> Option<T> {
        let key = (service.clone(), port);
        let Some(routes) = mesh.routes_of(service) else {
            self.known.lock().remove(&key);
            return None;
        };
        if let Some(known) = self.known.lock().get(&key)
            && known.from.ptr_eq(routes)
        {
            return Some(wanted(known));
        }
        // Not under the lock: compiling thousands of routes takes milliseconds.
        let all = || routes.values().map(|route| &**route);
        let compiled = Compiled {
            from: routes.clone(),
            requests: Arc::new(Table::new(service, port, all())),
            connections: Arc::new(Connections::new(service, port, all())),
        };
        let found = wanted(&compiled);
        self.known.lock().insert(key, compiled);
        Some(found)
    }
}
