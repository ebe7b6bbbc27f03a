//! Takes changes of objects in and publishes what they mean, to consumers in the process as a
//! [`Mesh`] and to proxies as xDS resources.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leno_model::{Mesh, Scope};
use leno_objects::{Change, Kind, ObjectKey, ObjectStore};
use leno_proto::{ADDRESS_TYPE, AUTHORIZATION_TYPE, TRUST_BUNDLE_TYPE, TrustBundle};
use leno_xds::{Resource, Resources};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::status::{Status, StatusSink};
use crate::translate::{self, Delta, Translator};

/// Changes this close together are published as one: a rollout touches many objects in a few
/// milliseconds. (istiod waits 100 ms, which a person who edits a file would notice next to
/// everything else that happens.)
pub const QUIET: Duration = Duration::from_millis(10);
/// A change that comes after [`CALM`] without any waits only this long: what is said in one breath stays
/// together, and a change alone is at the proxies sooner than a rollout's would be.
pub const BREATH: Duration = Duration::from_millis(2);
/// See [`BREATH`].
pub const CALM: Duration = Duration::from_millis(100);
/// Changes that never pause are published at least this often.
pub const MAX_DELAY: Duration = Duration::from_secs(1);

/// The control plane's state: objects in, mesh and resources out. Cheap to clone; clones are one
/// controller.
///
/// Objects come by a [`Feed`](crate::Feed), at once and without a runtime; [`run`](Self::run) must be running
/// for the results to be published.
#[derive(Clone, Debug)]
pub struct Controller {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Told what is found about objects.
    sink: Option<Arc<dyn StatusSink>>,
    /// Counts what came in.
    applied: watch::Sender<u64>,
    mesh: watch::Sender<Arc<Mesh>>,
    resources: watch::Sender<Arc<Resources>>,
    /// Whether all feeds have given their first state and that is published.
    published: watch::Sender<bool>,
}

#[derive(Debug)]
struct State {
    translator: Translator,
    /// What was found when it was last looked for.
    lint: BTreeMap<ObjectKey, Vec<String>>,
    /// Kinds of which all objects have yet to come; `None` before the first feed says what it brings.
    awaited: Option<BTreeSet<Kind>>,
    unpublished: Delta,
    resources: Resources,
}

impl Controller {
    /// A controller without objects.
    pub fn new(options: translate::Options) -> Self {
        Self::build(options, None)
    }

    fn build(options: translate::Options, sink: Option<Arc<dyn StatusSink>>) -> Self {
        let state = State {
            translator: Translator::new(options),
            lint: BTreeMap::new(),
            awaited: None,
            unpublished: Delta::default(),
            resources: Resources::default(),
        };
        let inner = Inner {
            state: Mutex::new(state),
            sink,
            applied: watch::Sender::new(0),
            mesh: watch::Sender::default(),
            resources: watch::Sender::default(),
            published: watch::Sender::new(false),
        };
        Self { inner: Arc::new(inner) }
    }

    /// A controller that also tells what it finds about objects.
    pub fn telling(options: translate::Options, sink: Arc<dyn StatusSink>) -> Self {
        Self::build(options, Some(sink))
    }

    /// Awaits all objects of these kinds before it publishes anything.
    pub(crate) fn await_kinds(&self, kinds: &[Kind]) {
        self.inner.state.lock().awaited.get_or_insert_default().extend(kinds);
    }

    /// Takes changes in, all at once, after which these kinds are complete. They are published a moment
    /// later, once all kinds are complete that were awaited.
    pub(crate) fn take(&self, complete: &[Kind], changes: impl FnOnce(&ObjectStore) -> Vec<Change>) {
        {
            let mut state = self.inner.state.lock();
            let changes = changes(state.translator.store());
            let mut delta = state.translator.apply(changes);
            for object in std::mem::take(&mut delta.warned) {
                self.tell(&state, &object);
            }
            state.unpublished.merge(delta);
            if let Some(awaited) = &mut state.awaited {
                awaited.retain(|kind| !complete.contains(kind));
            }
        }
        self.inner.applied.send_modify(|count| *count += 1);
    }

    fn tell(&self, state: &State, object: &ObjectKey) {
        let Some(sink) = &self.inner.sink else { return };
        let warnings = state.translator.warnings().get(object).cloned().unwrap_or_default();
        let lint = state.lint.get(object).cloned().unwrap_or_default();
        sink.status(object, &Status { warnings, lint });
    }

    /// Looks for what is legal and probably not meant, and tells it: see [`lint`](crate::lint::lint). It looks
    /// at every object, so this is for whoever has loaded manifests, not for every change.
    pub fn lint(&self) {
        let mut state = self.inner.state.lock();
        let found = crate::lint::lint(state.translator.options(), state.translator.store());
        let before = std::mem::replace(&mut state.lint, found);
        let objects: BTreeSet<&ObjectKey> = before.keys().chain(state.lint.keys()).collect();
        for object in objects.into_iter().filter(|object| before.get(object) != state.lint.get(object)) {
            self.tell(&state, object);
        }
    }

    /// Publishes what comes in until the future is dropped.
    pub async fn run(&self) {
        let mut applied = self.inner.applied.subscribe();
        // What came before this call is as new as what comes after.
        applied.mark_changed();
        // None before the first state, which many things make up.
        let mut published_at = None::<Instant>;
        loop {
            // The sender lives in `self`.
            if applied.changed().await.is_err() {
                return;
            }
            if *applied.borrow_and_update() == 0 {
                continue;
            }
            let now = Instant::now();
            let latest = now + MAX_DELAY;
            let calm = published_at.is_some_and(|at| now - at >= CALM);
            let pause = if calm { BREATH } else { QUIET };
            loop {
                let quiet = (Instant::now() + pause).min(latest);
                tokio::select! {
                    _ = applied.changed() => if Instant::now() >= latest {
                        break;
                    },
                    () = sleep_until(quiet) => break,
                }
            }
            self.publish();
            published_at = Some(Instant::now());
        }
    }

    /// Publishes what is not yet published, now; nothing while objects are awaited for the first time.
    pub fn publish(&self) {
        let mut state = self.inner.state.lock();
        let first = !*self.inner.published.borrow();
        if first && state.awaited.as_ref().is_none_or(|awaited| !awaited.is_empty()) {
            return;
        }
        let delta = std::mem::take(&mut state.unpublished);
        if !delta.is_empty() || first {
            let mesh = state.translator.mesh().clone();
            encode(&mesh, &delta, &mut state.resources);
            let generation = state.resources.generation() + 1;
            state.resources.set_generation(generation);
            tracing::debug!(
                generation,
                workloads = delta.workloads.len(),
                services = delta.services.len(),
                policies = delta.policies.len(),
                "publishing changes"
            );
            self.inner.mesh.send_replace(Arc::new(mesh));
            // Still under the lock, or a later snapshot could be overtaken by an earlier one.
            self.inner.resources.send_replace(Arc::new(state.resources.clone()));
        }
        if first {
            self.inner.published.send_replace(true);
        }
    }

    /// Publishes the mesh's roots (a PEM bundle), beside whatever else is published; whether they are others
    /// than before.
    pub fn publish_roots(&self, bundle: &str) -> bool {
        let end = "-----END CERTIFICATE-----\n";
        let roots = bundle.split_inclusive(end).filter(|root| root.ends_with(end)).map(str::to_owned);
        let body = TrustBundle { ca_certificates_pem: roots.collect() }.encode_to_vec();
        let mut state = self.inner.state.lock();
        if !state.resources.upsert(TRUST_BUNDLE_TYPE, "trust-bundle", Resource::new(body)) {
            return false;
        }
        // Nothing may be said before the feed has: it would look as if there were nothing else.
        if *self.inner.published.borrow() {
            let generation = state.resources.generation() + 1;
            state.resources.set_generation(generation);
            self.inner.resources.send_replace(Arc::new(state.resources.clone()));
        }
        true
    }

    /// Returns once the first state is published.
    pub async fn ready(&self) {
        // The sender lives in `self`.
        let _ = self.inner.published.subscribe().wait_for(|published| *published).await;
    }

    /// The published mesh.
    pub fn mesh(&self) -> watch::Receiver<Arc<Mesh>> {
        self.inner.mesh.subscribe()
    }

    /// The published resources.
    pub fn resources(&self) -> watch::Receiver<Arc<Resources>> {
        self.inner.resources.subscribe()
    }

    /// Number of the snapshot published last; a proxy whose status bears it (or a later one) is
    /// up to date with everything published so far.
    pub fn generation(&self) -> u64 {
        self.inner.resources.borrow().generation()
    }

    /// Changes whenever something came in, published or not.
    pub fn applied(&self) -> watch::Receiver<u64> {
        self.inner.applied.subscribe()
    }

    /// The objects as of now.
    pub fn store(&self) -> ObjectStore {
        self.inner.state.lock().translator.store().clone()
    }

    /// Looks at the objects without copying them.
    pub fn with_store<T>(&self, look: impl FnOnce(&ObjectStore) -> T) -> T {
        look(self.inner.state.lock().translator.store())
    }

    /// Looks at the objects and what they mean, for a thread that serves others: it is not held up while changes
    /// are being taken in, which with many objects lasts long enough to be noticed.
    ///
    /// `None` if the runtime is shutting down.
    pub async fn look<T: Send + 'static>(&self, look: impl FnOnce(&Translator) -> T + Send + 'static) -> Option<T> {
        if let Some(state) = self.inner.state.try_lock() {
            return Some(look(&state.translator));
        }
        let controller = self.clone();
        tokio::task::spawn_blocking(move || look(&controller.inner.state.lock().translator)).await.ok()
    }

    /// What the translation depends on besides the objects.
    pub fn options(&self) -> translate::Options {
        self.inner.state.lock().translator.options().clone()
    }
}

/// Brings the resources in step with those parts of the mesh that changed.
fn encode(mesh: &Mesh, delta: &Delta, resources: &mut Resources) {
    for id in &delta.policies {
        let name = id.to_string();
        match mesh.policy(id) {
            Some(policy) => {
                let body = leno_proto::authorization_to_proto(policy).encode_to_vec();
                // Adding a selector must not open workloads that don't yet name the policy.
                let reach = match policy.scope {
                    Scope::WorkloadSelector => 0,
                    Scope::Namespace => 1,
                    Scope::Global => 2,
                };
                resources.upsert(AUTHORIZATION_TYPE, name, Resource::new(body).with_reach(reach));
            }
            None => drop(resources.remove(AUTHORIZATION_TYPE, &name)),
        }
    }
    for id in &delta.services {
        let name = id.to_string();
        match mesh.service(id) {
            Some(service) => {
                let body = leno_proto::service_to_address(service).encode_to_vec();
                let aliases = service.addresses.iter().map(ToString::to_string).collect();
                resources.upsert(ADDRESS_TYPE, name, Resource::new(body).with_aliases(aliases));
            }
            None => drop(resources.remove(ADDRESS_TYPE, &name)),
        }
    }
    for uid in &delta.workloads {
        match mesh.workload(uid) {
            Some(workload) => {
                let body = leno_proto::workload_to_address(workload).encode_to_vec();
                let alias = |address| format!("{}/{address}", workload.network);
                let aliases = workload.addresses.iter().map(alias).collect();
                resources.upsert(ADDRESS_TYPE, uid.clone(), Resource::new(body).with_aliases(aliases));
            }
            None => drop(resources.remove(ADDRESS_TYPE, uid)),
        }
    }
}

#[cfg(test)]
#[path = "controller_tests.rs"]
mod tests;
