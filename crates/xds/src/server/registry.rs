//! Who is connected, and how far each proxy is.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;

use super::subscription::{Subscription, TypeProgress};

/// How far one proxy is with one type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TypeStatus {
    /// The type.
    pub type_url: String,
    /// Resources the proxy holds.
    pub resources: usize,
    /// Responses sent to it.
    pub sent: u64,
    /// Responses it accepted.
    pub acked: u64,
    /// Responses of which it refused at least one resource.
    pub nacked: u64,
    /// Its words on the last refusal, unless it has accepted a later response.
    pub last_nack: Option<String>,
    /// Whether it has everything there is, as far as it accepted it.
    pub in_sync: bool,
}

/// One connected proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProxyStatus {
    /// Its node id, `ztunnel~<ip>~<pod>.<namespace>~…`.
    pub id: String,
    /// The node it serves, if it said so.
    pub node: Option<String>,
    /// Namespace and service account of its token.
    pub account: String,
    /// Where it connected from.
    pub address: Option<SocketAddr>,
    /// Since when.
    pub connected_since: SystemTime,
    /// The latest snapshot it has answered in full, by the publisher's number.
    pub generation: Option<u64>,
    /// Per type.
    pub types: Vec<TypeStatus>,
}

/// All connected proxies.
#[derive(Debug, Default)]
pub(super) struct Registry {
    next: AtomicU64,
    proxies: Mutex<BTreeMap<u64, Arc<Proxy>>>,
    /// Counts changes of who is connected and of how far anybody is.
    changed: watch::Sender<u64>,
}

#[derive(Debug)]
struct Proxy {
    who: Who,
    /// Its own session writes here; whoever wants to know reads.
    progress: Mutex<Progress>,
}

/// Who a proxy is.
#[derive(Debug)]
pub(super) struct Who {
    pub(super) id: String,
    pub(super) node: Option<String>,
    pub(super) account: String,
    pub(super) address: Option<SocketAddr>,
}

#[derive(Debug)]
struct Progress {
    connected_since: SystemTime,
    generation: Option<u64>,
    types: Vec<TypeProgress>,
}

impl Registry {
    /// In the order they came.
    pub(super) fn status(&self) -> Vec<ProxyStatus> {
        let proxies: Vec<Arc<Proxy>> = self.proxies.lock().values().cloned().collect();
        proxies.iter().map(|proxy| proxy.status()).collect()
    }

    pub(super) fn count(&self) -> usize {
        self.proxies.lock().len()
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn enter(self: &Arc<Self>, who: Who) -> Entry {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let progress = Progress { connected_since: SystemTime::now(), generation: None, types: Vec::new() };
        let proxy = Arc::new(Proxy { who, progress: Mutex::new(progress) });
        self.proxies.lock().insert(key, proxy.clone());
        self.tell();
        Entry { registry: self.clone(), key, proxy }
    }

    fn tell(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

impl Proxy {
    fn status(&self) -> ProxyStatus {
        let Who { id, node, account, address } = &self.who;
        let progress = self.progress.lock();
        ProxyStatus {
            id: id.clone(),
            node: node.clone(),
            account: account.clone(),
            address: *address,
            connected_since: progress.connected_since,
            generation: progress.generation,
            types: progress.types.iter().map(TypeStatus::from).collect(),
        }
    }
}

/// A proxy's place in the registry, for as long as its stream lives.
#[derive(Debug)]
pub(super) struct Entry {
    registry: Arc<Registry>,
    key: u64,
    proxy: Arc<Proxy>,
}

impl Entry {
    pub(super) fn who(&self) -> &Who {
        &self.proxy.who
    }

    /// Notes how far the proxy is, of what was published as number `generation`.
    pub(super) fn update(&self, subscription: &Subscription, generation: u64) {
        let mut progress = self.proxy.progress.lock();
        let mut changed = subscription.update(&mut progress.types);
        if subscription.in_sync() && progress.generation != Some(generation) {
            progress.generation = Some(generation);
            changed = true;
        }
        drop(progress);
        if changed {
            self.registry.tell();
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.registry.proxies.lock().remove(&self.key);
        self.registry.tell();
    }
}

impl From<&TypeProgress> for TypeStatus {
    fn from(progress: &TypeProgress) -> Self {
        Self {
            type_url: progress.type_url.to_string(),
            resources: progress.resources,
            sent: progress.sent,
            acked: progress.acked,
            nacked: progress.nacked,
            last_nack: progress.last_nack.as_deref().map(str::to_owned),
            in_sync: progress.in_sync,
        }
    }
}
