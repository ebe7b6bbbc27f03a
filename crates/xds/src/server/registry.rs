//! The connected proxies, and how much of what is published each has accepted.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use leno_telemetry::metrics::control::ControlMetrics;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;

use super::push::Subscription;
use super::type_state::TypeProgress;
use crate::Resources;

/// One proxy's progress with one type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TypeStatus {
    /// The type.
    pub type_url: String,
    /// Resources the proxy holds.
    pub resources: usize,
    /// Responses sent to it.
    pub sent: u64,
    /// Responses that it accepted.
    pub acked: u64,
    /// Responses in which it refused at least one resource.
    pub nacked: u64,
    /// Its message at the last refusal; `None` if it has accepted a later response.
    pub last_nack: Option<String>,
    /// Whether it has everything published and has answered it.
    pub in_sync: bool,
}

/// One connected proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProxyStatus {
    /// Its node id, `ztunnel~<ip>~<pod>.<namespace>~…`.
    pub id: String,
    /// The node that it serves, if it said so.
    pub node: Option<String>,
    /// Namespace and service account of its token.
    pub account: String,
    /// Where it connected from.
    pub address: Option<SocketAddr>,
    /// Since when it is connected.
    pub connected_since: SystemTime,
    /// The number of the latest snapshot that it has answered in full.
    pub generation: Option<u64>,
    /// Per type.
    pub types: Vec<TypeStatus>,
}

/// All connected proxies.
#[derive(Debug, Default)]
pub(super) struct Registry {
    next: AtomicU64,
    proxies: Mutex<BTreeMap<u64, Arc<Proxy>>>,
    /// Callers that wait for proxies. Locked before `proxies`, never after.
    waiting: Mutex<BTreeMap<u64, Waiting>>,
    /// Counts changes of the set of proxies and of their progress.
    changed: watch::Sender<u64>,
    metrics: ControlMetrics,
}

#[derive(Debug)]
struct Proxy {
    who: Who,
    /// The proxy's session writes here; others read.
    progress: Mutex<Progress>,
}

/// A caller that waits until the proxies that were connected have answered a snapshot.
#[derive(Debug)]
struct Waiting {
    generation: u64,
    /// Node ids of the awaited proxies. One that connects again is awaited again.
    awaited: HashSet<String>,
    /// The connections of proxies that have not answered yet.
    behind: HashSet<u64>,
    done: watch::Sender<bool>,
}

/// Removes a waiting caller from the list when dropped.
struct Wait<'a>(&'a Registry, u64);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.0.waiting.lock().remove(&self.1);
    }
}

/// The identity of a proxy.
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
    /// The time of the first change that the proxy was sent and has not answered.
    changed_at: Option<Instant>,
    types: Vec<TypeProgress>,
}

impl Registry {
    /// No proxies. Their progress is counted in `metrics`.
    pub(super) fn counting(metrics: ControlMetrics) -> Self {
        Self { metrics, ..Self::default() }
    }

    /// In order of arrival.
    pub(super) fn status(&self) -> Vec<ProxyStatus> {
        let proxies: Vec<Arc<Proxy>> = self.proxies.lock().values().cloned().collect();
        proxies.iter().map(|proxy| proxy.status()).collect()
    }

    /// Whether there are proxies, and all of them have answered the snapshot `generation` and accepted all there is of a
    /// type.
    pub(super) fn all_accepted(&self, type_url: &str, generation: u64) -> bool {
        let proxies = self.proxies.lock();
        !proxies.is_empty() && proxies.values().all(|proxy| proxy.accepted(type_url, generation))
    }

    /// Waits until every proxy that is connected now has answered the snapshot `generation`, or is gone. Each answer costs
    /// the same, however many proxies there are.
    pub(super) async fn answered(&self, generation: u64) {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let (done, mut is_done) = watch::channel(false);
        let _wait = Wait(self, key);
        {
            let mut waiting = self.waiting.lock();
            let proxies = self.proxies.lock();
            let awaited = proxies.values().map(|proxy| proxy.who.id.clone()).collect();
            let behind = proxies.iter().filter(|(_, proxy)| !proxy.has_answered(generation));
            let behind: HashSet<u64> = behind.map(|(key, _)| *key).collect();
            if behind.is_empty() {
                return;
            }
            waiting.insert(key, Waiting { generation, awaited, behind, done });
        }
        // This can't fail: only this function removes the caller from the list.
        let _ = is_done.wait_for(|done| *done).await;
    }

    /// The proxy of connection `key` has answered the snapshot `generation`, or is gone if that is `None`.
    fn no_longer_behind(&self, key: u64, generation: Option<u64>) {
        for waiting in self.waiting.lock().values_mut() {
            let counts = generation.is_none_or(|generation| generation >= waiting.generation);
            if counts && waiting.behind.remove(&key) && waiting.behind.is_empty() {
                waiting.done.send_replace(true);
            }
        }
    }

    /// How many proxies have not answered the snapshot `generation`.
    pub(super) fn behind(&self, generation: u64) -> usize {
        self.proxies.lock().values().filter(|proxy| !proxy.has_answered(generation)).count()
    }

    pub(super) fn count(&self) -> usize {
        self.proxies.lock().len()
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn enter(self: &Arc<Self>, who: Who) -> Entry {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let progress =
            Progress { connected_since: SystemTime::now(), generation: None, changed_at: None, types: Vec::new() };
        let proxy = Arc::new(Proxy { who, progress: Mutex::new(progress) });
        for waiting in self.waiting.lock().values_mut().filter(|waiting| waiting.awaited.contains(&proxy.who.id)) {
            waiting.behind.insert(key);
        }
        self.proxies.lock().insert(key, proxy.clone());
        self.tell();
        Entry { registry: self.clone(), key, proxy }
    }

    fn tell(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

impl Proxy {
    fn has_answered(&self, generation: u64) -> bool {
        self.progress.lock().generation.is_some_and(|answered| answered >= generation)
    }

    fn accepted(&self, type_url: &str, generation: u64) -> bool {
        let progress = self.progress.lock();
        let of_type = progress.types.iter().find(|of_type| *of_type.type_url == *type_url);
        progress.generation.is_some_and(|answered| answered >= generation)
            && of_type.is_some_and(|of_type| of_type.in_sync && of_type.last_nack.is_none())
    }

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

    /// Updates the proxy's progress, as of `snapshot`.
    pub(super) fn update(&self, subscription: &Subscription, snapshot: &Resources) {
        let generation = snapshot.generation();
        let in_sync = subscription.in_sync();
        let mut progress = self.proxy.progress.lock();
        let mut changed = subscription.update(&mut progress.types);
        if !in_sync
            && progress.changed_at.is_none()
            && let Some(answered) = progress.generation
        {
            progress.changed_at = snapshot.changed_since(answered);
        }
        let converged = progress.changed_at.take_if(|_| in_sync);
        let answered = in_sync && progress.generation != Some(generation);
        if answered {
            progress.generation = Some(generation);
            changed = true;
        }
        drop(progress);
        if let Some(changed_at) = converged {
            self.registry.metrics.converged(changed_at.elapsed());
        }
        if answered {
            self.registry.no_longer_behind(self.key, Some(generation));
        }
        if changed {
            self.registry.tell();
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.registry.proxies.lock().remove(&self.key);
        self.registry.no_longer_behind(self.key, None);
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

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
