//! Connections of clients whose token was good: how many each client may have.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::caller::Caller;

/// How many connections one client may have while others want places. A proxy has two, and a node has four while the next
/// proxy takes over.
const SHARE: usize = 8;

/// One client: the token's service account on the token's node, or in its pod if the token names no node. If it names
/// neither, all clients of the account count as one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Client {
    account: (String, String),
    place: Option<String>,
}

impl Client {
    pub(super) fn of(caller: &Caller) -> Self {
        Self {
            account: (caller.namespace.clone(), caller.service_account.clone()),
            place: caller.node.clone().or_else(|| caller.pod_uid.clone()),
        }
    }
}

/// The places of one listener.
pub(super) struct Proven {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// Each client's connections, ordered by arrival.
    clients: HashMap<Client, BTreeMap<u64, Arc<Notify>>>,
    connections: usize,
    next: u64,
}

/// All places are taken, and no other client has more than its share.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Proven {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), taken: Mutex::default() })
    }

    /// A place for one more connection of `client`. `gave_way` is notified when another connection gets it. When all are
    /// taken, the client that has most gives up its latest one, because older ones are more likely to be in use.
    ///
    /// # Errors
    /// If nobody else has more than its share.
    pub(super) fn take(self: &Arc<Self>, client: Client, gave_way: Arc<Notify>) -> Result<ProvenPlace, Full> {
        let mut taken = self.taken.lock();
        if taken.connections >= self.most {
            let own = taken.clients.get(&client).map_or(0, BTreeMap::len);
            let greediest = taken.clients.values_mut().max_by_key(|connections| connections.len());
            let greediest = greediest.filter(|greediest| own < SHARE && greediest.len() > SHARE).ok_or(Full)?;
            if let Some((_, gives_way)) = greediest.pop_last() {
                gives_way.notify_one();
            }
            taken.connections -= 1;
        }
        let number = taken.next;
        taken.next += 1;
        taken.connections += 1;
        taken.clients.entry(client.clone()).or_default().insert(number, gave_way);
        drop(taken);
        Ok(ProvenPlace { all: self.clone(), client, number, streams: AtomicUsize::new(0) })
    }
}

/// A connection's place. It is free again when this is dropped.
pub(super) struct ProvenPlace {
    all: Arc<Proven>,
    client: Client,
    number: u64,
    streams: AtomicUsize,
}

/// Most discovery streams on one connection. A proxy has one, and two while it replaces its stream.
const STREAMS: usize = 4;

impl ProvenPlace {
    /// Counts one more discovery stream, each of which holds memory of its own. `false` if there are too many.
    pub(super) fn begin_stream(&self) -> bool {
        self.streams.fetch_update(Relaxed, Relaxed, |streams| (streams < STREAMS).then_some(streams + 1)).is_ok()
    }

    pub(super) fn end_stream(&self) {
        self.streams.fetch_sub(1, Relaxed);
    }
}

impl Drop for ProvenPlace {
    fn drop(&mut self) {
        let mut taken = self.all.taken.lock();
        let Some(connections) = taken.clients.get_mut(&self.client) else { return };
        let was_held = connections.remove(&self.number).is_some();
        if connections.is_empty() {
            taken.clients.remove(&self.client);
        }
        taken.connections -= usize::from(was_held);
    }
}

#[cfg(test)]
#[path = "proven_tests.rs"]
mod tests;
