//! Translates objects into the mesh that the data plane knows.
//!
//! [`Translator`] keeps the mesh up to date at the cost of what a change affects: a pod that becomes ready costs the
//! work for one pod, however many there are. `dirt` decides what a change affects. The other modules are pure and
//! decide what an object becomes.

pub(crate) mod authorization;
mod destination_rule;
mod dirt;
mod index;
mod last_good;
mod peer_authentication;
mod policy_refs;
mod provider_http;
mod providers;
mod rate;
mod request_policy;
mod route;
mod route_refs;
mod route_rules;
mod rule_host;
mod service;
mod service_name;
mod through_waypoint;
mod token_keys;
mod virtual_host;
mod virtual_service;
pub(crate) mod waypoint;
mod without_waypoint;
mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leno_model::http::{PolicyTarget, RouteKind, RouteName};
use leno_model::settings::{DEFAULT_CLUSTER_DOMAIN, DEFAULT_CLUSTER_ID};
use leno_model::{DEFAULT_TRUST_DOMAIN, Mesh, Name, Names, PolicyName, ServiceName, WorkloadUid};

use crate::status::ParentStatus;
use dirt::Dirt;
use index::{Index, Known};
use last_good::LastGood;
use leno_objects::{
    AuthorizationPolicy, Change, DestinationRule, EndpointSlice, Kind, Namespace, Node, ObjectKey, ObjectStore,
    PeerAuthentication, Pod, PolicyAction, Service, Sharing, VirtualService,
};
use peer_authentication::Peers;
use policy_refs::Attachable;
use providers::Providers;
pub use providers::{MESH_CONFIG_ENTRY, mesh_config_entry};
use workload::Surroundings;

/// Namespace and name.
type Named = (Name, Name);

/// The settings of a translation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Id of the cluster. It is the first part of a workload's UID.
    pub cluster_id: Name,
    /// Network id; empty for the default network.
    pub network: Name,
    /// Trust domain of the mesh's identities.
    pub trust_domain: Name,
    /// DNS domain of services.
    pub cluster_domain: Name,
    /// Namespace whose policies without a selector apply to the whole mesh.
    pub root_namespace: Name,
    /// The ConfigMap of the mesh's own configuration.
    pub mesh_config: ObjectKey,
}

impl Default for Options {
    /// Istio's defaults: cluster `Kubernetes`, trust domain and cluster domain `cluster.local`, root namespace
    /// `istio-system`, where the mesh's configuration is the ConfigMap `istio`.
    fn default() -> Self {
        Self {
            cluster_id: DEFAULT_CLUSTER_ID.into(),
            network: "".into(),
            trust_domain: DEFAULT_TRUST_DOMAIN.into(),
            cluster_domain: DEFAULT_CLUSTER_DOMAIN.into(),
            root_namespace: "istio-system".into(),
            mesh_config: ObjectKey::new(Kind::ConfigMap, "istio-system", "istio"),
        }
    }
}

/// The parts of the mesh that one call to [`Translator::apply`] added, replaced or removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delta {
    /// Workloads by UID.
    pub workloads: BTreeSet<WorkloadUid>,
    /// Services by name.
    pub services: BTreeSet<ServiceName>,
    /// Policies by name.
    pub policies: BTreeSet<PolicyName>,
    /// Routes by name, each with the waypoints that it is no longer for.
    pub routes: BTreeMap<RouteName, BTreeSet<Name>>,
    /// Policies about requests by name, each with the waypoints that it is no longer for.
    pub request_policies: BTreeMap<PolicyName, BTreeSet<Name>>,
    /// What is said of services' endpoints by name, each with the waypoints that it is no longer for.
    pub endpoint_policies: BTreeMap<PolicyName, BTreeSet<Name>>,
    /// What happens to requests without a route by name, each with the waypoints that it is no longer for.
    pub request_defaults: BTreeMap<PolicyName, BTreeSet<Name>>,
    /// Objects whose warnings changed.
    pub warned: BTreeSet<ObjectKey>,
}

impl Delta {
    /// Whether nothing changed in the mesh.
    pub fn is_empty(&self) -> bool {
        let Self {
            workloads,
            services,
            policies,
            routes,
            request_policies,
            endpoint_policies,
            request_defaults,
            warned: _,
        } = self;
        let of_requests = routes.is_empty()
            && request_policies.is_empty()
            && endpoint_policies.is_empty()
            && request_defaults.is_empty();
        workloads.is_empty() && services.is_empty() && policies.is_empty() && of_requests
    }

    /// Adds the changes of a later call.
    pub fn merge(&mut self, later: Self) {
        self.workloads.extend(later.workloads);
        self.services.extend(later.services);
        self.policies.extend(later.policies);
        for (route, no_more) in later.routes {
            self.routes.entry(route).or_default().extend(no_more);
        }
        for (policy, no_more) in later.request_policies {
            self.request_policies.entry(policy).or_default().extend(no_more);
        }
        for (defaults, no_more) in later.request_defaults {
            self.request_defaults.entry(defaults).or_default().extend(no_more);
        }
        for (policy, no_more) in later.endpoint_policies {
            self.endpoint_policies.entry(policy).or_default().extend(no_more);
        }
        self.warned.extend(later.warned);
    }
}

/// The objects, and the mesh that they describe.
#[derive(Debug, Default)]
pub struct Translator {
    options: Options,
    store: ObjectStore,
    /// What is followed of policies whose newest version can't be read.
    last_good: LastGood,
    // Shares equal parts of objects.
    sharing: Sharing,
    index: Index,
    /// Whom policies may have asked.
    providers: Providers,
    mesh: Mesh,
    // Shares equal names of the mesh.
    names: Names,
    // Has no empty lists.
    warnings: BTreeMap<ObjectKey, Vec<String>>,
    // The policies that were made for pods, with the number of pods that name each: they keep connections from going around
    // waypoints, or stand in for policies that have no waypoint.
    made: BTreeMap<PolicyName, usize>,
    // Which of them a pod names; has no empty lists.
    made_for: BTreeMap<Named, Vec<PolicyName>>,
    // Of routes that are in force: the waypoints that are told.
    route_readers: BTreeMap<RouteName, BTreeSet<Name>>,
    // The routes in force that lead to a service, or send it copies; has no empty sets.
    leading: BTreeMap<ServiceName, BTreeSet<RouteName>>,
    // Of policies about requests that are in force: the waypoints that are told.
    policy_readers: BTreeMap<PolicyName, BTreeSet<Name>>,
    // Of what is said of services' endpoints: the waypoints that are told.
    endpoint_policy_readers: BTreeMap<PolicyName, BTreeSet<Name>>,
    // Of what happens to requests without a route: the waypoints that are told.
    default_readers: BTreeMap<PolicyName, BTreeSet<Name>>,
    // Where each of them is enforced.
    enforced: BTreeMap<ObjectKey, String>,
    // What is said of routes' parents.
    route_status: BTreeMap<ObjectKey, Vec<ParentStatus>>,
    // The workloads of endpoints that are not pods.
    slice_workloads: BTreeMap<Named, Vec<WorkloadUid>>,
}

impl Translator {
    /// A translator without objects.
    pub fn new(options: Options) -> Self {
        Self { options, ..Self::default() }
    }

    /// The settings.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The objects.
    pub fn store(&self) -> &ObjectStore {
        &self.store
    }

    /// The pods of a node, in no order.
    pub fn pods_on<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a Pod> {
        let pods = self.index.pods_on(node).filter_map(|(namespace, name)| Pod::get(&self.store, namespace, name));
        pods.filter(move |pod| *pod.spec.node_name == *node)
    }

    /// The mesh that the objects describe.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Warnings for the authors of objects, by object.
    pub fn warnings(&self) -> &BTreeMap<ObjectKey, Vec<String>> {
        &self.warnings
    }

    /// What is said of a route's parents.
    pub fn route_status(&self, route: &ObjectKey) -> &[ParentStatus] {
        self.route_status.get(route).map_or(&[], Vec::as_slice)
    }

    /// The waypoints that are told of a route, each as `namespace/service account`.
    pub fn readers_of(&self, route: &RouteName) -> impl Iterator<Item = &Name> {
        self.route_readers.get(route).into_iter().flatten()
    }

    /// How many routes of each kind each waypoint is told of. Waypoints are called as in [`Self::readers_of`].
    pub fn attached_routes(&self) -> BTreeMap<(Name, RouteKind), usize> {
        let mut counts = BTreeMap::new();
        for (route, waypoints) in &self.route_readers {
            for waypoint in waypoints {
                *counts.entry((waypoint.clone(), route.kind)).or_default() += 1;
            }
        }
        counts
    }

    /// The waypoints that are told of a policy about requests, each as `namespace/service account`.
    pub fn readers_of_policy(&self, policy: &PolicyName) -> impl Iterator<Item = &Name> {
        self.policy_readers.get(policy).into_iter().flatten()
    }

    /// The waypoints that are told of what is said of services' endpoints, each as `namespace/service account`.
    pub fn readers_of_endpoint_policy(&self, policy: &PolicyName) -> impl Iterator<Item = &Name> {
        self.endpoint_policy_readers.get(policy).into_iter().flatten()
    }

    /// The waypoints that are told of what happens to requests without a route, each as `namespace/service account`.
    pub fn readers_of_defaults(&self, defaults: &PolicyName) -> impl Iterator<Item = &Name> {
        self.default_readers.get(defaults).into_iter().flatten()
    }

    /// Where a policy about requests is enforced, in words.
    pub fn enforced(&self, policy: &ObjectKey) -> Option<&str> {
        self.enforced.get(policy).map(String::as_str)
    }

    /// Takes in changes atomically and updates the mesh.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change>) -> Delta {
        let mut dirt = Dirt::default();
        for mut change in changes {
            let key = match &mut change {
                Change::Upsert(object) => {
                    // An object that others hold as well is kept by them anyway.
                    if let Some(object) = Arc::get_mut(object) {
                        self.sharing.settle(object);
                    }
                    object.key()
                }
                Change::Remove(key) => key.clone(),
            };
            // Of configuration, only the mesh's own means anything here.
            if key.kind == Kind::ConfigMap && key != self.options.mesh_config {
                continue;
            }
            let generation = self.store.generation();
            let old = match change {
                Change::Upsert(object) => self.store.upsert(object),
                Change::Remove(key) => self.store.remove(&key),
            };
            if self.store.generation() == generation {
                continue;
            }
            // The stored key, so that the index holds no second copy of it.
            let (key, new) = match self.store.get_key_value(&key) {
                Some((held, new)) => (held.clone(), Some(new.clone())),
                None => (key, None),
            };
            self.last_good.edited(&key, old.as_ref(), new.as_deref());
            self.index.update(&self.options, &key, old.as_deref(), new.as_deref());
            dirt.mark(self.known(), &key, old.as_deref(), new.as_deref());
        }
        self.clean(&dirt)
    }

    fn clean(&mut self, dirt: &Dirt) -> Delta {
        let mut delta = Delta::default();
        let mut attached = dirt.attached.clone();
        if dirt.mesh_config {
            self.refresh_providers(&mut attached, &mut delta);
        }
        for (namespace, name) in &dirt.policies {
            self.refresh_policy(namespace, name, &mut delta);
        }
        self.refresh_peer_authentications(dirt, &mut delta);
        for (namespace, name) in &dirt.services {
            self.refresh_service(namespace, name, &mut delta);
        }
        let mut routes = dirt.routes.clone();
        for service in &delta.services {
            let name = service.hostname.split('.').next().unwrap_or_default();
            routes.extend(self.index.routes_of(&service.namespace, name).cloned());
        }
        let mut routed = BTreeSet::new();
        for route in &routes {
            self.refresh_route(route, &mut routed, &mut delta);
        }
        self.refresh_destination_rules(dirt, &routed, &mut delta);
        self.refresh_virtual_services(dirt, &routed, &mut delta);
        for service in &delta.services {
            let name = service.hostname.split('.').next().unwrap_or_default();
            let service = (service.namespace.clone(), name.into());
            attached.extend(self.index.attached_to(Kind::Service, service).cloned());
        }
        if delta.services.iter().any(|service| self.providers.are_at(&service.hostname)) {
            attached.extend(self.asking());
        }
        for (kind, name) in &attached {
            self.refresh_request_policy(*kind, name, &mut delta);
        }
        for slice in &dirt.slices {
            self.refresh_slice(slice, &mut delta);
        }
        let mut stand_ins = BTreeMap::new();
        for (namespace, name) in &dirt.pods {
            self.refresh_pod(namespace, name, &mut stand_ins, &mut delta);
        }
        if !dirt.pods.is_empty() {
            // Not sooner: another pod may have come to name it.
            let unnamed: Vec<PolicyName> = self.made.extract_if(.., |_, pods| *pods == 0).map(|(id, _)| id).collect();
            for id in unnamed {
                self.put_policy(id, None, &mut delta);
            }
        }
        delta
    }

    /// Looks again at the policies that have an authoriser asked, if there are other ones than before.
    fn refresh_providers(&mut self, attached: &mut BTreeSet<(Kind, Named)>, delta: &mut Delta) {
        let (providers, warnings) = Providers::of(&self.options, &self.store, &self.providers);
        self.warn(self.options.mesh_config.clone(), warnings, delta);
        if self.providers == providers {
            return;
        }
        self.providers = providers;
        attached.extend(self.asking());
    }

    /// The policies that have an authoriser asked.
    fn asking(&self) -> impl Iterator<Item = (Kind, Named)> {
        let asking = self.store.authorization_policies().filter(|it| it.spec.action == PolicyAction::Custom);
        asking.map(|it| (Kind::AuthorizationPolicy, (it.metadata.namespace.clone(), it.metadata.name.clone())))
    }

    fn refresh_policy(&mut self, namespace: &Name, name: &Name, delta: &mut Delta) {
        let key = ObjectKey::new(Kind::AuthorizationPolicy, namespace.clone(), name.clone());
        let found = self.last_good.in_force(&self.store, key.kind, &(namespace.clone(), name.clone()));
        let (mut policy, mut warnings, mut is_attached) = (None, Vec::new(), false);
        if let Some((it @ Attachable::Authorization(object), instead)) = found {
            (policy, warnings) = authorization::authorization(&self.options, object);
            warnings.splice(0..0, instead);
            is_attached = it.is_attached();
        }
        if !is_attached {
            self.warn(key, warnings, delta);
        }
        self.put_policy(PolicyName { namespace: namespace.clone(), name: name.clone() }, policy, delta);
    }

    fn refresh_request_policy(&mut self, kind: Kind, name: &Named, delta: &mut Delta) {
        let key = ObjectKey::new(kind, name.0.clone(), name.1.clone());
        let id = policy_refs::name_in_mesh(kind, name);
        let known = self.known();
        let object = self.last_good.in_force(&self.store, kind, name);
        // Of an AuthorizationPolicy that is attached to nothing, what is said is about what node proxies make of it.
        let only_here = kind == Kind::RequestAuthentication;
        let object = object.filter(|(it, _)| it.is_attached() || only_here);
        let is_attached = object.is_some() || only_here;
        let found = object.map(|(policy, instead)| {
            let mut found = request_policy::request_policy(known, &self.mesh, policy);
            found.warnings.splice(0..0, instead);
            found
        });
        let request_policy::Translated { policy: wanted, readers: at, warnings } = found.unwrap_or_default();
        if is_attached {
            self.warn(key.clone(), warnings, delta);
        }
        let names = at.iter().map(|name| &**name).collect::<Vec<_>>().join(", ");
        let enforced = wanted.as_ref().filter(|_| !at.is_empty()).map(|_| format!("enforced by waypoint {names}"));
        if self.enforced.get(&key) != enforced.as_ref() {
            delta.warned.insert(key.clone());
            match enforced {
                Some(enforced) => drop(self.enforced.insert(key, enforced)),
                None => drop(self.enforced.remove(&key)),
            }
        }
        let held = self.mesh.request_policy(&id).cloned();
        let before = self.policy_readers.get(&id).cloned().unwrap_or_default();
        let mut readers = at;
        if let (Some(held), Some(wanted)) = (&held, &wanted)
            && held.targets == wanted.targets
        {
            // A service that gets another waypoint is served by the one before for a while, and must not be open there.
            readers.extend(before.iter().cloned());
        }
        let change = Retold { is_there: wanted.is_some(), is_new: held.as_deref() != wanted.as_ref() };
        if !retold(&mut self.policy_readers, &id, readers, &change, &mut delta.request_policies) {
            return;
        }
        match wanted {
            Some(policy) if change.is_new => self.mesh.upsert_request_policy(Arc::new(policy)),
            Some(_) => {}
            None => {
                self.mesh.remove_request_policy(&id);
            }
        }
    }

    /// Translates the DestinationRules that a change is about: changed ones, and those for the host name of a service that
    /// changed, or to which a route leads that did.
    fn refresh_destination_rules(&mut self, dirt: &Dirt, routed: &BTreeSet<ServiceName>, delta: &mut Delta) {
        let mut rules = dirt.rules.clone();
        for service in delta.services.iter().chain(routed) {
            rules.extend(self.index.rules_covering(&service.hostname));
        }
        for (namespace, name) in rules {
            let rule = DestinationRule::get(&self.store, &namespace, &name);
            let all = destination_rule::Rules(self.known());
            let translated = rule.map(|rule| destination_rule::destination_rule(&all, &self.mesh, rule));
            let translated = translated.unwrap_or_default();
            let id = PolicyName { namespace: namespace.clone(), name: name.clone() };
            let policy = match (rule, self.mesh.endpoint_policy(&id)) {
                (Some(rule), Some(held)) if translated.keep_last => destination_rule::kept(&all, rule, held),
                _ => translated.policy,
            };
            let key = ObjectKey::new(Kind::DestinationRule, namespace, name);
            self.warn(key, translated.warnings, delta);
            self.put_endpoint_policy(id, policy, delta);
        }
    }

    /// Translates the VirtualServices that a change is about: changed ones, those that share a host with one, and those of a
    /// service that changed, or whose routes did.
    fn refresh_virtual_services(&mut self, dirt: &Dirt, routed: &BTreeSet<ServiceName>, delta: &mut Delta) {
        let mut objects = dirt.virtuals.clone();
        for service in delta.services.iter().chain(routed) {
            objects.extend(self.index.virtuals_for(&service.namespace, &service.hostname).cloned());
        }
        // A version that was kept may be about a service that its object no longer names.
        let changed = dirt.virtuals.iter().filter_map(|(of, name)| VirtualService::get(&self.store, of, name));
        let services = changed.flat_map(|object| virtual_service::services(&self.options, &self.mesh, object));
        let held = services.filter_map(|id| self.mesh.request_defaults_of(&id));
        objects.extend(held.map(|held| (held.id.namespace.clone(), held.id.name.clone())).collect::<Vec<_>>());
        for (namespace, name) in objects {
            let object = VirtualService::get(&self.store, &namespace, &name);
            let translated = object.map(|object| virtual_service::virtual_service(self.known(), &self.mesh, object));
            let translated = translated.unwrap_or_default();
            let id = PolicyName { namespace: namespace.clone(), name: name.clone() };
            let defaults = match (object, self.mesh.request_defaults(&id)) {
                (Some(object), Some(held)) if translated.keep_last => {
                    virtual_service::kept(self.known(), &self.mesh, object, held)
                }
                _ => translated.defaults,
            };
            let key = ObjectKey::new(Kind::VirtualService, namespace, name);
            self.warn(key, translated.warnings, delta);
            self.put_request_defaults(id, defaults, delta);
        }
    }

    fn put_request_defaults(
        &mut self,
        id: PolicyName,
        wanted: Option<leno_model::http::RequestDefaults>,
        delta: &mut Delta,
    ) {
        let services = wanted.iter().flat_map(|defaults| &defaults.services).filter_map(|id| self.mesh.service(id));
        let readers: BTreeSet<Name> = services.flat_map(|service| waypoint::waypoints_of(service)).collect();
        let held = self.mesh.request_defaults(&id).cloned();
        let before = self.default_readers.get(&id).cloned().unwrap_or_default();
        if held.as_deref() == wanted.as_ref() && readers == before {
            return;
        }
        delta.request_defaults.entry(id.clone()).or_default().extend(before.difference(&readers).cloned());
        match wanted {
            Some(defaults) => {
                if held.as_deref() != Some(&defaults) {
                    self.mesh.upsert_request_defaults(Arc::new(defaults));
                }
                self.default_readers.insert(id, readers);
            }
            None => {
                self.mesh.remove_request_defaults(&id);
                self.default_readers.remove(&id);
            }
        }
    }

    /// Takes in that a route leads to other services than before.
    fn leads(&mut self, id: &RouteName, before: &BTreeSet<ServiceName>, after: &BTreeSet<ServiceName>) {
        for service in before.difference(after) {
            if let Some(routes) = self.leading.get_mut(service) {
                routes.remove(id);
                if routes.is_empty() {
                    self.leading.remove(service);
                }
            }
        }
        for service in after.difference(before) {
            self.leading.entry(service.clone()).or_default().insert(id.clone());
        }
    }

    fn put_endpoint_policy(
        &mut self,
        id: PolicyName,
        wanted: Option<leno_model::http::EndpointPolicy>,
        delta: &mut Delta,
    ) {
        let mut readers = BTreeSet::new();
        for service in wanted.iter().flat_map(|policy| &policy.services) {
            readers.extend(self.mesh.service(service).into_iter().flat_map(|service| waypoint::waypoints_of(service)));
            let routes = self.leading.get(service).into_iter().flatten();
            readers.extend(routes.filter_map(|route| self.route_readers.get(route)).flatten().cloned());
        }
        let held = self.mesh.endpoint_policy(&id).cloned();
        let change = Retold { is_there: wanted.is_some(), is_new: held.as_deref() != wanted.as_ref() };
        if !retold(&mut self.endpoint_policy_readers, &id, readers, &change, &mut delta.endpoint_policies) {
            return;
        }
        match wanted {
            Some(policy) if change.is_new => self.mesh.upsert_endpoint_policy(Arc::new(policy)),
            Some(_) => {}
            None => {
                self.mesh.remove_endpoint_policy(&id);
            }
        }
    }

    fn put_policy(&mut self, id: PolicyName, policy: Option<leno_model::Authorization>, delta: &mut Delta) {
        if self.mesh.policy(&id).map(|old| &**old) == policy.as_ref() {
            return;
        }
        match policy {
            Some(policy) => self.mesh.upsert_policy(Arc::new(policy)),
            None => drop(self.mesh.remove_policy(&id)),
        }
        delta.policies.insert(id);
    }

    fn refresh_peer_authentications(&mut self, dirt: &Dirt, delta: &mut Delta) {
        if dirt.peers.is_empty() {
            return;
        }
        let options = &self.options;
        let any = self.store.peer_authentications().next().is_some();
        let mut wanted = vec![(
            peer_authentication::static_strict_name(options),
            any.then(|| peer_authentication::static_strict(options)),
        )];
        let mut warnings = Vec::new();
        for (namespace, name) in &dirt.peers {
            let peer = PeerAuthentication::get(&self.store, namespace, name);
            let key = ObjectKey::new(Kind::PeerAuthentication, namespace.clone(), name.clone());
            warnings.push((key, peer.and_then(peer_authentication::warning)));
            let policy = peer.and_then(|peer| Peers(self.known()).converted(peer));
            wanted.push((peer_authentication::converted_name(namespace, name), policy));
        }
        for (id, policy) in wanted {
            self.put_policy(id, policy, delta);
        }
        for (key, warning) in warnings {
            self.warn(key, warning.into_iter().collect(), delta);
        }
    }

    fn refresh_service(&mut self, namespace: &str, name: &str, delta: &mut Delta) {
        let around = Namespace::get(&self.store, "", namespace).map(|namespace| &namespace.metadata);
        let service = Service::get(&self.store, namespace, name)
            .and_then(|service| service::service(&self.options, &self.store, service, around));
        let id = service_name::service_name(&self.options, namespace, name);
        if self.mesh.service(&id).map(|old| &**old) == service.as_ref() {
            return;
        }
        match service {
            Some(mut service) => {
                self.names.settle_service(&mut service);
                self.mesh.upsert_service(Arc::new(service));
            }
            None => drop(self.mesh.remove_service(&id)),
        }
        delta.services.insert(id);
    }

    /// `led` gets the services to which the route leads or led, if it changed.
    /// Adds the services that the route belongs or leads to, or did, to `routed`.
    fn refresh_route(&mut self, key: &ObjectKey, routed: &mut BTreeSet<ServiceName>, delta: &mut Delta) {
        let Some(id) = route::route_name(key) else { return };
        let known = self.known();
        let found = route::Source::get(known, key).map(|source| route::route(known, &self.mesh, source));
        let translated = found.unwrap_or_default();
        self.warn(key.clone(), translated.warnings, delta);
        if self.route_status(key) != translated.parents {
            delta.warned.insert(key.clone());
            if translated.parents.is_empty() {
                self.route_status.remove(key);
            } else {
                self.route_status.insert(key.clone(), translated.parents);
            }
        }
        let held = self.mesh.route(&id).map(|held| (**held).clone());
        let wanted = if translated.keep_last { held.clone() } else { translated.route };
        let readers = wanted.as_ref().map(|route| route::readers(&self.mesh, route)).unwrap_or_default();
        let change = Retold { is_there: wanted.is_some(), is_new: held != wanted };
        if !retold(&mut self.route_readers, &id, readers, &change, &mut delta.routes) {
            return;
        }
        let to = |route: &Option<leno_model::http::Route>| -> BTreeSet<ServiceName> {
            route.iter().flat_map(|route| route.destinations()).cloned().collect()
        };
        let (before, after) = (to(&held), to(&wanted));
        self.leads(&id, &before, &after);
        let parents = held.iter().chain(&wanted).flat_map(|route| &route.parents);
        routed.extend(parents.map(|parent| parent.service.clone()).chain(before).chain(after));
        match wanted {
            Some(route) if change.is_new => self.mesh.upsert_route(Arc::new(route)),
            Some(_) => {}
            None => {
                self.mesh.remove_route(&id);
            }
        }
    }

    fn refresh_slice(&mut self, key: &Named, delta: &mut Delta) {
        let slice = EndpointSlice::get(&self.store, &key.0, &key.1);
        let service = slice.and_then(|slice| Service::get(&self.store, &key.0, slice.service()?));
        let workloads = match (slice, service) {
            (Some(slice), Some(service)) => workload::bare_endpoints(&self.options, slice, service),
            _ => Vec::new(),
        };
        let uids: Vec<WorkloadUid> = workloads.iter().map(|workload| workload.uid.clone()).collect();
        let before = if uids.is_empty() {
            self.slice_workloads.remove(key)
        } else {
            self.slice_workloads.insert(key.clone(), uids.clone())
        };
        for uid in before.into_iter().flatten().filter(|uid| !uids.contains(uid)) {
            self.put_workload(uid, None, delta);
        }
        for workload in workloads {
            self.put_workload(workload.uid.clone(), Some(workload), delta);
        }
    }

    /// `stand_ins` says of policies without a waypoint which are settled, and whether they are needed.
    fn refresh_pod(
        &mut self,
        namespace: &str,
        name: &str,
        stand_ins: &mut BTreeMap<PolicyName, bool>,
        delta: &mut Delta,
    ) {
        let pod = Pod::get(&self.store, namespace, name);
        let translated = pod.and_then(|pod| {
            let around = self.surroundings(pod);
            let keeping = workload::keeping_to_waypoint(&self.options, &self.store, pod, &around);
            let bare = workload::without_waypoint(&self.options, &self.store, pod, &around);
            Some((workload::pod(&self.options, pod, around)?, keeping, bare))
        });
        let (mut workload, mut named) = (None, Vec::new());
        if let Some((found, keeping, bare)) = translated {
            if let Some(policy) = keeping {
                named.push(policy.id.clone());
                self.put_policy(policy.id.clone(), Some(policy), delta);
            }
            for (service, ports) in bare {
                named.extend(self.stand_in(&service, &ports, stand_ins, delta));
            }
            let found = workload.insert(found);
            found.authorization_policies.extend(named.iter().cloned());
        }
        self.made_for((namespace.into(), name.into()), named);
        self.put_workload(workload::pod_uid(&self.options, namespace, name), workload, delta);
    }

    /// Settles what stands in for the policies of a service at pods with these ports, and returns its name.
    fn stand_in(
        &mut self,
        service: &ServiceName,
        ports: &without_waypoint::Ports,
        settled: &mut BTreeMap<PolicyName, bool>,
        delta: &mut Delta,
    ) -> Option<PolicyName> {
        let policies = self.mesh.request_policies_of(&PolicyTarget::Service(service.clone()))?;
        let id = ports.name(&service.namespace, service.hostname.split('.').next().unwrap_or_default());
        if let Some(needed) = settled.get(&id) {
            return needed.then_some(id);
        }
        let policy = without_waypoint::stand_in(id.clone(), ports, policies.values().map(|policy| &**policy));
        settled.insert(id.clone(), policy.is_some());
        let policy = policy?;
        self.put_policy(id.clone(), Some(policy), delta);
        Some(id)
    }

    /// Takes in which policies that were made for pods a pod names.
    fn made_for(&mut self, pod: Named, new: Vec<PolicyName>) {
        let old = match new.is_empty() {
            true => self.made_for.remove(&pod),
            false => self.made_for.insert(pod, new.clone()),
        };
        for id in new {
            *self.made.entry(id).or_default() += 1;
        }
        for id in old.into_iter().flatten() {
            if let Some(pods) = self.made.get_mut(&id) {
                *pods -= 1;
            }
        }
    }

    fn known(&self) -> Known<'_> {
        Known { options: &self.options, store: &self.store, index: &self.index, providers: &self.providers }
    }

    fn surroundings(&self, pod: &Pod) -> Surroundings<'_> {
        let (store, index) = (&self.store, &self.index);
        let metadata = &pod.metadata;
        let namespace = &*metadata.namespace;
        let services = index.services_for(namespace, &metadata.labels);
        let slices = index.slices_of_pod(namespace, &metadata.name).filter_map(|name| {
            let slice = EndpointSlice::get(store, namespace, name)?;
            Some((slice, Service::get(store, namespace, slice.service()?)?))
        });
        // Of both namespaces, without duplicates, in order.
        let reaching: BTreeSet<&str> = [namespace, &self.options.root_namespace].into();
        let mut policies: Vec<PolicyName> = reaching
            .into_iter()
            .flat_map(|namespace| {
                let names = index.policies_for(namespace, &metadata.labels).into_iter();
                names.filter_map(move |name| AuthorizationPolicy::get(store, namespace, &name))
            })
            .filter(|policy| authorization::is_enforced(policy))
            .filter(|policy| policy.selected().is_some_and(|labels| leno_objects::selects(labels, &metadata.labels)))
            .map(authorization::policy_name)
            .collect();
        policies.extend(Peers(self.known()).policy_for(pod));
        Surroundings {
            waypoint: waypoint::required(&self.options, store, metadata, waypoint::Addressed::Workload),
            node: Node::get(store, "", &pod.spec.node_name),
            services: services.iter().filter_map(|name| Service::get(store, namespace, name)).collect(),
            slices: slices.collect(),
            policies,
        }
    }

    fn put_workload(&mut self, uid: WorkloadUid, workload: Option<leno_model::Workload>, delta: &mut Delta) {
        if self.mesh.workload(&uid).map(|old| &**old) == workload.as_ref() {
            return;
        }
        match workload {
            Some(mut workload) => {
                self.names.settle_workload(&mut workload);
                self.mesh.upsert_workload(Arc::new(workload));
            }
            None => drop(self.mesh.remove_workload(&uid)),
        }
        delta.workloads.insert(uid);
    }

    fn warn(&mut self, key: ObjectKey, warnings: Vec<String>, delta: &mut Delta) {
        if self.warnings.get(&key).map_or(&[][..], Vec::as_slice) == warnings {
            return;
        }
        delta.warned.insert(key.clone());
        if warnings.is_empty() {
            self.warnings.remove(&key);
        } else {
            self.warnings.insert(key, warnings);
        }
    }
}

/// What became of a resource that only some waypoints are told of.
struct Retold {
    is_there: bool,
    /// Whether it says anything else than before.
    is_new: bool,
}

/// Takes in who reads a resource, and notes who reads it no more. Returns whether anything changed.
fn retold<K: Ord + Clone>(
    readers_of: &mut BTreeMap<K, BTreeSet<Name>>,
    id: &K,
    readers: BTreeSet<Name>,
    what: &Retold,
    delta: &mut BTreeMap<K, BTreeSet<Name>>,
) -> bool {
    let before = readers_of.get(id).cloned().unwrap_or_default();
    if !what.is_new && readers == before {
        return false;
    }
    delta.entry(id.clone()).or_default().extend(before.difference(&readers).cloned());
    if what.is_there {
        readers_of.insert(id.clone(), readers);
    } else {
        readers_of.remove(id);
    }
    true
}

#[cfg(test)]
#[path = "translate_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "authorization_tests.rs"]
mod authorization_tests;

#[cfg(test)]
#[path = "route_tests.rs"]
mod route_tests;

#[cfg(test)]
#[path = "virtual_service_tests.rs"]
mod virtual_service_tests;

#[cfg(test)]
#[path = "destination_rule_tests.rs"]
mod destination_rule_tests;

#[cfg(test)]
#[path = "request_policy_tests.rs"]
mod request_policy_tests;
