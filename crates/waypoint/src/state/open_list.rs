//! What is open: connections that are passed on unread, and requests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use foldhash::fast::RandomState;
use leno_telemetry::access_log::Record;
use parking_lot::Mutex;

/// A connection that may be looked at.
pub(crate) trait Listed: Send + Sync {
    /// What would stand in the access log, if it ended now: one record of a connection, or one for each request.
    fn records(&self) -> Vec<Record>;

    /// Memory is short. Ends the connection if it may hold much, and its client has taken nothing for `age`.
    fn let_go(&self, _age: Duration) {}
}

/// The connections of one thread.
#[derive(Default)]
pub(crate) struct Open {
    listed: Mutex<HashMap<u64, Weak<dyn Listed>, RandomState>>,
    next: AtomicU64,
}

/// A place in the list, left when this is dropped.
pub(crate) struct Place {
    open: Arc<Open>,
    number: u64,
}

impl Open {
    /// Lists a connection.
    pub(crate) fn list(self: &Arc<Self>, what: Weak<dyn Listed>) -> Place {
        let number = self.next.fetch_add(1, Relaxed);
        self.listed.lock().insert(number, what);
        Place { open: self.clone(), number }
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Weak<dyn Listed>> {
        self.listed.lock().values().cloned().collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let listed = self.open.listed.lock().remove(&self.number);
        drop(listed);
    }
}
