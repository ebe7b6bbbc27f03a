//! Takes changes of objects and publishes their meaning: as a [`Mesh`] for consumers in this process, and as xDS
//! resources for proxies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant as Moment};

use leno_model::{Mesh, Name, Scope};
use leno_objects::{Change, Kind, ObjectKey, ObjectStore};
use leno_proto::{
    ADDRESS_TYPE, AUTHORIZATION_TYPE, ENDPOINT_POLICY_TYPE, REQUEST_DEFAULTS_TYPE, REQUEST_POLICY_TYPE, ROUTE_TYPE,
    TRUST_BUNDLE_TYPE, TrustBundle,
};
use leno_xds::{Resource, Resources};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::gateway_status;
use crate::status::{Status, StatusSink};
use crate::translate::{self, Delta, Translator};

/// Changes that follow each other within this time are published together, because a rollout touches many objects in a
/// few milliseconds. (istiod waits 100 ms. A person who edits a file would notice that.)
pub const QUIET: Duration = Duration::from_millis(10);
/// The shorter wait of a change that comes after [`CALM`] without changes. Changes made together still stay together,
/// and a single change reaches the proxies sooner than those of a rollout.
pub const BREATH: Duration = Duration::from_millis(2);
/// The time without changes after which only [`BREATH`] is waited.
pub const CALM: Duration = Duration::from_millis(100);
/// The longest time between two publications while changes keep coming.
pub const MAX_DELAY: Duration = Duration::from_secs(1);

/// The control plane's state: takes objects, publishes mesh and resources. Cheap to clone; clones share the state.
///
/// Objects arrive through a [`Feed`](crate::Feed), synchronously and without a runtime. Results are published only
/// while [`run`](Self::run) is running.
#[derive(Clone, Debug)]
pub struct Controller {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Receives the findings about objects.
    sink: Option<Arc<dyn StatusSink>>,
    /// The number of changes taken in.
    applied: watch::Sender<u64>,
    mesh: watch::Sender<Arc<Mesh>>,
    resources: watch::Sender<Arc<Resources>>,
    /// Whether the first state of all feeds is complete and published.
    published: watch::Sender<bool>,
}

#[derive(Debug)]
struct State {
    translator: Translator,
    /// The findings of the latest lint.
    lint: BTreeMap<ObjectKey, Vec<String>>,
    /// The kinds whose objects have not all arrived yet; `None` before the first feed announced its kinds.
    awaited: Option<BTreeSet<Kind>>,
    unpublished: Delta,
    /// When the first change was taken in that is not published.
    changed_at: Option<Moment>,
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
            changed_at: None,
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

    /// A controller without objects that reports its findings about objects to `sink`.
    pub fn telling(options: translate::Options, sink: Arc<dyn StatusSink>) -> Self {
        Self::build(options, Some(sink))
    }

    /// Announces kinds. Nothing is published before all their objects have arrived.
    pub(crate) fn await_kinds(&self, kinds: &[Kind]) {
        self.inner.state.lock().awaited.get_or_insert_default().extend(kinds);
    }

    /// Takes in changes atomically, after which these kinds are complete. They are published a moment later, once all
    /// announced kinds are complete.
    pub(crate) fn take(&self, complete: &[Kind], changes: impl FnOnce(&ObjectStore) -> Vec<Change>) {
        {
            // Before the lock: waiting for it is part of a change's way to the proxies.
            let now = Moment::now();
            let mut state = self.inner.state.lock();
            state.changed_at.get_or_insert(now);
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
        let parents = state.translator.route_status(object).to_vec();
        let enforced = state.translator.enforced(object).map(str::to_owned);
        sink.status(object, &Status { warnings, lint, parents, enforced });
    }

    /// Looks for objects that are valid but probably not what their author meant, and reports them: see
    /// [`lint`](crate::lint::lint). It looks at every object, so call it after loading manifests, not after every
    /// change.
    pub fn lint(&self) {
        let (options, store) = {
            let state = self.inner.state.lock();
            (state.translator.options().clone(), state.translator.store().clone())
        };
        // Without the lock: with many objects it takes long.
        let found = crate::lint::lint(&options, &store);
        let mut state = self.inner.state.lock();
        let before = std::mem::replace(&mut state.lint, found);
        let objects: BTreeSet<&ObjectKey> = before.keys().chain(state.lint.keys()).collect();
        for object in objects.into_iter().filter(|object| before.get(object) != state.lint.get(object)) {
            self.tell(&state, object);
        }
    }

    /// Publishes changes until the future is dropped.
    pub async fn run(&self) {
        let mut applied = self.inner.applied.subscribe();
        // Changes that came before this call have to be published, too.
        applied.mark_changed();
        // `None` until the first state is published. It consists of many changes.
        let mut published_at = None::<Instant>;
        loop {
            // This can't fail: the sender lives in `self`.
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

    /// Publishes now what is not published yet. Does nothing while the first state is incomplete.
    pub fn publish(&self) {
        let mut state = self.inner.state.lock();
        let first = !*self.inner.published.borrow();
        if first && state.awaited.as_ref().is_none_or(|awaited| !awaited.is_empty()) {
            return;
        }
        let delta = std::mem::take(&mut state.unpublished);
        let changed_at = state.changed_at.take().unwrap_or_else(Moment::now);
        if !delta.is_empty() || first {
            let mesh = state.translator.mesh().clone();
            encode(&mesh, &delta, &mut state.resources);
            let State { translator, resources, .. } = &mut *state;
            encode_routes(translator, &delta, resources);
            encode_request_policies(translator, &delta, resources);
            encode_endpoint_policies(translator, &delta, resources);
            encode_request_defaults(translator, &delta, resources);
            state.resources.next_generation(changed_at);
            tracing::debug!(
                generation = state.resources.generation(),
                workloads = delta.workloads.len(),
                services = delta.services.len(),
                policies = delta.policies.len(),
                "publishing changes"
            );
            self.inner.mesh.send_replace(Arc::new(mesh));
            // Still under the lock: otherwise an earlier snapshot could replace a later one.
            self.inner.resources.send_replace(Arc::new(state.resources.clone()));
        }
        if first {
            self.inner.published.send_replace(true);
        }
    }

    /// Publishes the mesh's root certificates (a PEM bundle), beside everything else. Returns whether they changed.
    pub fn publish_roots(&self, bundle: &str) -> bool {
        let end = "-----END CERTIFICATE-----\n";
        let roots = bundle.split_inclusive(end).filter(|root| root.ends_with(end)).map(str::to_owned);
        let body = TrustBundle { ca_certificates_pem: roots.collect() }.encode_to_vec();
        let mut state = self.inner.state.lock();
        if !state.resources.upsert(TRUST_BUNDLE_TYPE, "trust-bundle", Resource::new(body)) {
            return false;
        }
        // Before the first state is published, a snapshot with only the roots would look as if there were nothing else.
        if *self.inner.published.borrow() {
            state.resources.next_generation(Moment::now());
            self.inner.resources.send_replace(Arc::new(state.resources.clone()));
        }
        true
    }

    /// Waits until the first state is published.
    pub async fn ready(&self) {
        // This can't fail: the sender lives in `self`.
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

    /// The number of the latest snapshot. A proxy whose status has this number or a later one has everything published
    /// so far.
    pub fn generation(&self) -> u64 {
        self.inner.resources.borrow().generation()
    }

    /// Changes whenever a change was taken in, whether or not it is published.
    pub fn applied(&self) -> watch::Receiver<u64> {
        self.inner.applied.subscribe()
    }

    /// The current objects.
    pub fn store(&self) -> ObjectStore {
        self.inner.state.lock().translator.store().clone()
    }

    /// What the status of Gateways is made from.
    pub fn known_of_gateways(&self) -> gateway_status::Known {
        gateway_status::Known::of(&self.inner.state.lock().translator)
    }

    /// Gives access to the current objects without a clone.
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

    /// The settings of the translation.
    pub fn options(&self) -> translate::Options {
        self.inner.state.lock().translator.options().clone()
    }
}

/// Updates the resources for the changed routes: each waypoint is sent those that are its business.
fn encode_routes(translator: &Translator, delta: &Delta, resources: &mut Resources) {
    for (id, no_more) in &delta.routes {
        let name = leno_proto::route_resource_name(id);
        let body = translator.mesh().route(id).map(|route| leno_proto::route_to_proto(route).encode_to_vec());
        tell_readers(resources, ROUTE_TYPE, &name, no_more, body, translator.readers_of(id));
    }
}

/// As [`encode_routes`], for policies about requests.
fn encode_request_policies(translator: &Translator, delta: &Delta, resources: &mut Resources) {
    for (id, no_more) in &delta.request_policies {
        let policy = translator.mesh().request_policy(id);
        let body = policy.map(|policy| leno_proto::request_policy_to_proto(policy).encode_to_vec());
        tell_readers(resources, REQUEST_POLICY_TYPE, &id.to_string(), no_more, body, translator.readers_of_policy(id));
    }
}

/// As [`encode_routes`], for what is said of services' endpoints.
fn encode_endpoint_policies(translator: &Translator, delta: &Delta, resources: &mut Resources) {
    for (id, no_more) in &delta.endpoint_policies {
        let policy = translator.mesh().endpoint_policy(id);
        let body = policy.map(|policy| leno_proto::endpoint_policy_to_proto(policy).encode_to_vec());
        let readers = translator.readers_of_endpoint_policy(id);
        tell_readers(resources, ENDPOINT_POLICY_TYPE, &id.to_string(), no_more, body, readers);
    }
}

/// As [`encode_routes`], for what happens to requests without a route.
fn encode_request_defaults(translator: &Translator, delta: &Delta, resources: &mut Resources) {
    for (id, no_more) in &delta.request_defaults {
        let defaults = translator.mesh().request_defaults(id);
        let body = defaults.map(|defaults| leno_proto::request_defaults_to_proto(defaults).encode_to_vec());
        let readers = translator.readers_of_defaults(id);
        tell_readers(resources, REQUEST_DEFAULTS_TYPE, &id.to_string(), no_more, body, readers);
    }
}

/// Takes a resource from waypoints whose business it is no more, and gives it, if it exists, to those whose it is.
fn tell_readers<'a>(
    resources: &mut Resources,
    type_url: &str,
    name: &str,
    no_more: &BTreeSet<Name>,
    body: Option<Vec<u8>>,
    readers: impl Iterator<Item = &'a Name>,
) {
    for reader in no_more {
        resources.remove_for(reader, type_url, name);
    }
    if let Some(body) = body.map(Resource::new) {
        for reader in readers {
            resources.upsert_for(reader, type_url, name, &body);
        }
    }
}

/// Updates the resources for the changed parts of the mesh.
fn encode(mesh: &Mesh, delta: &Delta, resources: &mut Resources) {
    for id in &delta.policies {
        let name = id.to_string();
        match mesh.policy(id) {
            Some(policy) => {
                let body = leno_proto::authorization_to_proto(policy).encode_to_vec();
                // If a policy gets a selector, the workloads that don't name it yet must not become open.
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
