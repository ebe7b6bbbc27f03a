//! Puts a new connection into a pool, and keeps the pool informed of it.

use std::future::Future;
use std::hash::Hash;
use std::io;
use std::sync::{Arc, Weak};

use super::entries::{Flight, Removal, Shared};
use crate::client::{self, Registry};
use crate::connection::{Connection, Permit};
use crate::{Error, OpenError, Transport};

/// The caller that dials. Whatever happens to it, the waiting callers are told.
pub(super) struct Leader<'a, K: Eq + Hash + Clone, E> {
    pub(super) shared: &'a Arc<Shared<K, E>>,
    pub(super) key: &'a K,
    /// Set until the dial has ended, or until the connection's task is responsible for it.
    pub(super) flight: Option<Arc<Flight<E>>>,
}

impl<K, E> Leader<'_, K, E>
where
    K: Eq + Hash + Clone + Send + Sync + 'static,
    E: Clone + Send + Sync + 'static,
{
    pub(super) async fn dial<IO, F>(mut self, dial: F) -> Result<Permit, OpenError<E>>
    where
        IO: Transport + 'static,
        F: Future<Output = Result<IO, E>>,
    {
        let result = match dial.await {
            Ok(io) => client::start(io, &self.shared.settings, |connection| self.publish(connection)).await,
            Err(error) => return Err(self.fail(OpenError::Dial(error))),
        };
        result.map_err(|error| self.fail(error.into()))
    }

    fn fail(&mut self, error: OpenError<E>) -> OpenError<E> {
        if let Some(flight) = self.flight.take() {
            self.shared.land(self.key, &flight, Some(Err(error.clone())));
        }
        error
    }

    /// Puts the new connection into the pool. If the key was evicted meanwhile, its entry is gone or belongs to another
    /// dial, and the connection serves only the caller that dialled it.
    fn publish(&mut self, connection: &Arc<Connection>) -> Registration<K, E> {
        let flight = self.flight.take().unwrap_or_default();
        if let Some(entry) = self.shared.keys.lock().get_mut(self.key)
            && entry.flight.as_ref().is_some_and(|current| Arc::ptr_eq(current, &flight))
        {
            entry.connections.push(connection.clone());
        }
        self.shared.running.send_modify(|running| *running += 1);
        Registration {
            shared: Arc::downgrade(self.shared),
            key: self.key.clone(),
            connection: Arc::downgrade(connection),
            flight,
        }
    }
}

impl<K: Eq + Hash + Clone, E> Drop for Leader<'_, K, E> {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            self.shared.land(self.key, &flight, None);
        }
    }
}

/// A connection's place in the pool, as its task knows it.
struct Registration<K, E> {
    shared: Weak<Shared<K, E>>,
    key: K,
    connection: Weak<Connection>,
    flight: Arc<Flight<E>>,
}

impl<K, E> Registry for Registration<K, E>
where
    K: Eq + Hash + Clone + Send + Sync + 'static,
    E: Clone + Send + Sync + 'static,
{
    fn settled(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.land(&self.key, &self.flight, Some(Ok(())));
        }
    }

    fn release_if_idle(&self, only_if_surplus: bool) -> bool {
        let when = if only_if_surplus { Removal::Surplus } else { Removal::Idle };
        self.shared.upgrade().is_none_or(|shared| shared.remove(&self.key, &self.connection, when))
    }

    fn gone(&self, error: Option<&Error>) {
        if let Some(shared) = self.shared.upgrade() {
            shared.remove(&self.key, &self.connection, Removal::Always);
            // Has no effect on waiters of a connection that got so far as to settle.
            let error = error.cloned().unwrap_or_else(|| Error::Lost(Arc::new(io::ErrorKind::UnexpectedEof.into())));
            shared.land(&self.key, &self.flight, Some(Err(error.into())));
            shared.running.send_modify(|running| *running -= 1);
        }
    }
}
