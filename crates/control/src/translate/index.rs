//! Objects by what they refer to, where the store's order does not help. The cost of finding what a change affects
//! depends on the number of affected objects only.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hash, RandomState};

use leno_model::Name;
use leno_objects::{
    DestinationRule, EndpointSlice, Kind, Labels, Object, ObjectKey, ObjectMeta, ObjectStore, Pod, named_waypoint,
    selects,
};

use super::policy_refs::Attachable;
use super::providers::Providers;
use super::rule_host::Host;
use super::{Options, route_refs, service, virtual_host, workload};

pub(super) use super::Named;

/// Objects by the hash of what they refer to. Two things may have the same hash, so callers check what they get. In
/// return, no key is stored here.
#[derive(Debug)]
struct Postings<T>(BTreeMap<u64, Few<T>>);

/// The objects of one hash; mostly one.
#[derive(Debug)]
enum Few<T> {
    One(T),
    Several(BTreeSet<T>),
}

impl<T> Default for Postings<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord + Clone> Postings<T> {
    fn put(&mut self, hash: u64, object: &T) {
        match self.0.get_mut(&hash) {
            None => drop(self.0.insert(hash, Few::One(object.clone()))),
            Some(Few::One(other)) if other == object => {}
            Some(few @ Few::One(_)) => {
                let Few::One(other) = std::mem::replace(few, Few::Several(BTreeSet::new())) else { return };
                *few = Few::Several([other, object.clone()].into());
            }
            Some(Few::Several(all)) => drop(all.insert(object.clone())),
        }
    }

    fn remove(&mut self, hash: u64, object: &T) {
        let empty = match self.0.get_mut(&hash) {
            None => false,
            Some(Few::One(other)) => other == object,
            Some(Few::Several(all)) => {
                all.remove(object);
                all.is_empty()
            }
        };
        if empty {
            self.0.remove(&hash);
        }
    }

    fn change(&mut self, hash: u64, object: &T, add: bool) {
        if add {
            self.put(hash, object);
        } else {
            self.remove(hash, object);
        }
    }

    fn count(&self, hash: u64) -> usize {
        match self.0.get(&hash) {
            None => 0,
            Some(Few::One(_)) => 1,
            Some(Few::Several(all)) => all.len(),
        }
    }

    fn at(&self, hash: u64) -> impl Iterator<Item = &T> {
        let (one, several) = match self.0.get(&hash) {
            None => (None, None),
            Some(Few::One(one)) => (Some(one), None),
            Some(Few::Several(all)) => (None, Some(all)),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }
}

/// Objects of one kind that have a selector, each filed under one label of the selector. A pod is looked up by each of
/// its labels. That finds every selector that can match it, and few others.
#[derive(Debug, Default)]
struct Selectors(Postings<Name>);

/// The references between objects.
#[derive(Debug, Default)]
pub(super) struct Index {
    hasher: RandomState,
    pods_by_node: Postings<Named>,
    /// By all their labels together: the replicas of one thing have the same.
    pods_by_labels: Postings<Name>,
    /// What pods are found by there, by each label among those.
    labels_with: Postings<u64>,
    /// How many there are in each namespace that has any.
    pods: BTreeMap<Name, usize>,
    slices_by_pod: Postings<Name>,
    slices_by_service: Postings<Name>,
    /// By each Service that they refer to, and by each namespace of those.
    routes: Postings<ObjectKey>,
    /// DestinationRules by their host, or by the end of the host names that they are for.
    rules: Postings<Named>,
    /// How many of the latter there are of each length.
    endings: BTreeMap<usize, usize>,
    /// VirtualServices by their namespace and each of their hosts.
    virtuals: Postings<Named>,
    services: Selectors,
    policies: Selectors,
    peers: Selectors,
    /// What names a Gateway as its waypoint, by the Gateway.
    waypoint_users: BTreeMap<Named, BTreeSet<(Kind, Named)>>,
    /// Policies about requests, each with its kind, by what they are attached to.
    attached: BTreeMap<(Kind, Named), BTreeSet<(Kind, Named)>>,
    /// PeerAuthentications without a selector, by namespace.
    wide_peers: BTreeMap<Name, BTreeSet<Name>>,
}

/// The objects, their references, and the settings that their meaning depends on.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) options: &'a Options,
    pub(super) store: &'a ObjectStore,
    pub(super) index: &'a Index,
    pub(super) providers: &'a Providers,
}

impl Index {
    fn hash(&self, of: impl Hash) -> u64 {
        self.hasher.hash_one(of)
    }

    fn labels<'a>(&'a self, namespace: &'a str, labels: &'a Labels) -> impl Iterator<Item = u64> + 'a {
        labels.iter().map(move |(key, value)| self.hash((namespace, &**key, &**value)))
    }

    /// Takes in that the object `key` changed from `old` to `new`.
    pub(super) fn update(&mut self, options: &Options, key: &ObjectKey, old: Option<&Object>, new: Option<&Object>) {
        if let (Some(Object::Pod(old)), Some(Object::Pod(new))) = (old, new)
            && old.spec.node_name == new.spec.node_name
            && old.metadata.labels == new.metadata.labels
        {
            return;
        }
        for (object, add) in [(old, false), (new, true)] {
            if let Some(object @ (Object::Pod(_) | Object::Service(_) | Object::Namespace(_))) = object {
                self.waypoint_user(key, object.metadata(), add);
            }
            for target in object.and_then(Attachable::of).into_iter().flat_map(Attachable::targets) {
                self.attach(key, target, add);
            }
            match object {
                Some(Object::Pod(pod)) => self.pod(key, pod, add),
                Some(Object::EndpointSlice(slice)) => self.slice(key, slice, add),
                Some(Object::Service(service)) if !service::has_manual_endpoints(service) => {
                    self.select(|index| &mut index.services, key, &service.spec.selector, add);
                }
                Some(Object::AuthorizationPolicy(policy)) => {
                    if let Some(labels) = policy.selected() {
                        self.select(|index| &mut index.policies, key, labels, add);
                    }
                }
                Some(
                    object @ (Object::HTTPRoute(_) | Object::GRPCRoute(_) | Object::TLSRoute(_) | Object::TCPRoute(_)),
                ) => self.route(key, object, add),
                Some(Object::DestinationRule(rule)) => self.rule(options, key, rule, add),
                Some(Object::VirtualService(object)) => {
                    let me = (key.namespace.clone(), key.name.clone());
                    for host in virtual_host::hosts(options, object) {
                        let hash = self.hash((&*key.namespace, &*host));
                        self.virtuals.change(hash, &me, add);
                    }
                }
                Some(Object::PeerAuthentication(peer)) => match peer.selected() {
                    Some(labels) => self.select(|index| &mut index.peers, key, labels, add),
                    None if add => {
                        self.wide_peers.entry(key.namespace.clone()).or_default().insert(key.name.clone());
                    }
                    None => {
                        if let Some(names) = self.wide_peers.get_mut(&key.namespace) {
                            names.remove(&key.name);
                        }
                    }
                },
                _ => {}
            }
        }
    }

    fn pod(&mut self, key: &ObjectKey, pod: &Pod, add: bool) {
        let me = (key.namespace.clone(), key.name.clone());
        let node = self.hash(&*pod.spec.node_name);
        self.pods_by_node.change(node, &me, add);
        let labels: Vec<u64> = self.labels(&key.namespace, &pod.metadata.labels).collect();
        let together = self.hash(&labels);
        if !labels.is_empty() {
            self.pods_by_labels.change(together, &key.name, add);
        }
        // Even if others have them already: they may be other labels with the same hash.
        if add || self.pods_by_labels.count(together) == 0 {
            for label in labels {
                self.labels_with.change(label, &together, add);
            }
        }
        let count = self.pods.entry(key.namespace.clone()).or_default();
        *count = if add { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.pods.remove(&key.namespace);
        }
    }

    fn waypoint_user(&mut self, key: &ObjectKey, metadata: &ObjectMeta, add: bool) {
        let own = if key.kind == Kind::Namespace { &key.name } else { &key.namespace };
        let Some(gateway) = named_waypoint(&metadata.labels, own) else { return };
        let user = (key.kind, (key.namespace.clone(), key.name.clone()));
        if add {
            self.waypoint_users.entry(gateway).or_default().insert(user);
        } else if let Some(users) = self.waypoint_users.get_mut(&gateway) {
            users.remove(&user);
            if users.is_empty() {
                self.waypoint_users.remove(&gateway);
            }
        }
    }

    /// The Namespaces, services and pods whose labels name a Gateway as their waypoint.
    pub(super) fn waypoint_users(&self, gateway: &Named) -> impl Iterator<Item = &(Kind, Named)> {
        self.waypoint_users.get(gateway).into_iter().flatten()
    }

    fn attach(&mut self, key: &ObjectKey, target: (Kind, Named), add: bool) {
        let me = (key.kind, (key.namespace.clone(), key.name.clone()));
        if add {
            self.attached.entry(target).or_default().insert(me);
        } else if let Some(policies) = self.attached.get_mut(&target) {
            policies.remove(&me);
            if policies.is_empty() {
                self.attached.remove(&target);
            }
        }
    }

    /// The policies that are attached to an object, each with its kind.
    pub(super) fn attached_to(&self, kind: Kind, name: Named) -> impl Iterator<Item = &(Kind, Named)> {
        self.attached.get(&(kind, name)).into_iter().flatten()
    }

    fn route(&mut self, key: &ObjectKey, object: &Object, add: bool) {
        for (namespace, service) in route_refs::referred(object) {
            let (service, namespace) = (self.hash((namespace, service)), self.hash(namespace));
            self.routes.change(service, key, add);
            self.routes.change(namespace, key, add);
        }
    }

    /// Routes that may refer to a Service, in order.
    pub(super) fn routes_of(&self, namespace: &str, service: &str) -> impl Iterator<Item = &ObjectKey> {
        self.routes.at(self.hash((namespace, service)))
    }

    /// Routes that may refer to a Service of a namespace, in order.
    pub(super) fn routes_into(&self, namespace: &str) -> impl Iterator<Item = &ObjectKey> {
        self.routes.at(self.hash(namespace))
    }

    fn rule(&mut self, options: &Options, key: &ObjectKey, rule: &DestinationRule, add: bool) {
        let me = (key.namespace.clone(), key.name.clone());
        let hash = match Host::of(options, rule) {
            Host::Exact(host) => self.hash((true, &*host)),
            Host::Ending(ending) => {
                let count = self.endings.entry(ending.len()).or_default();
                *count = if add { *count + 1 } else { count.saturating_sub(1) };
                if *count == 0 {
                    self.endings.remove(&ending.len());
                }
                self.hash((false, &*ending))
            }
        };
        self.rules.change(hash, &me, add);
    }

    /// DestinationRules that may be for a host name.
    pub(super) fn rules_covering(&self, hostname: &str) -> BTreeSet<Named> {
        let lengths = self.endings.keys().take_while(|length| **length <= hostname.len());
        let endings = lengths.filter_map(|length| hostname.get(hostname.len() - length..));
        let hashes = endings.map(|ending| self.hash((false, ending)));
        let hashes = hashes.chain(std::iter::once(self.hash((true, hostname))));
        hashes.flat_map(|hash| self.rules.at(hash)).cloned().collect()
    }

    /// VirtualServices of a namespace that may be for a host name.
    pub(super) fn virtuals_for(&self, namespace: &str, hostname: &str) -> impl Iterator<Item = &Named> {
        self.virtuals.at(self.hash((namespace, hostname)))
    }

    fn slice(&mut self, key: &ObjectKey, slice: &EndpointSlice, add: bool) {
        for pod in target_pods(slice) {
            let pod = self.hash((&*key.namespace, pod));
            self.slices_by_pod.change(pod, &key.name, add);
        }
        if let Some(service) = slice.service() {
            let service = self.hash((&*key.namespace, service));
            self.slices_by_service.change(service, &key.name, add);
        }
    }

    fn select(&mut self, which: impl Fn(&mut Self) -> &mut Selectors, key: &ObjectKey, labels: &Labels, add: bool) {
        let labels: Vec<u64> = self.labels(&key.namespace, labels).collect();
        let Selectors(postings) = which(self);
        if add {
            if let Some(rarest) = labels.into_iter().min_by_key(|label| postings.count(*label)) {
                postings.put(rarest, &key.name);
            }
        } else {
            for label in labels {
                postings.remove(label, &key.name);
            }
        }
    }

    /// Services of a namespace that may select a pod with these labels, in order.
    pub(super) fn services_for(&self, namespace: &str, labels: &Labels) -> BTreeSet<Name> {
        self.selecting(&self.services, namespace, labels)
    }

    /// Policies of a namespace that have a selector and may select a pod with these labels, in order.
    pub(super) fn policies_for(&self, namespace: &str, labels: &Labels) -> BTreeSet<Name> {
        self.selecting(&self.policies, namespace, labels)
    }

    /// PeerAuthentications of a namespace that have a selector and may select a pod with these labels,
    /// in order.
    pub(super) fn peers_for(&self, namespace: &str, labels: &Labels) -> BTreeSet<Name> {
        self.selecting(&self.peers, namespace, labels)
    }

    fn selecting(&self, which: &Selectors, namespace: &str, labels: &Labels) -> BTreeSet<Name> {
        self.labels(namespace, labels).flat_map(|label| which.0.at(label)).cloned().collect()
    }

    /// PeerAuthentications of a namespace without a selector, in order.
    pub(super) fn wide_peers(&self, namespace: &str) -> impl Iterator<Item = &Name> {
        self.wide_peers.get(namespace).into_iter().flatten()
    }

    /// The names of the pods of a namespace that have all of these labels. `wanted` has at least one.
    pub(super) fn pods_with(&self, store: &ObjectStore, namespace: &str, wanted: &Labels) -> Vec<Name> {
        let Some(rarest) = self.labels(namespace, wanted).min_by_key(|label| self.labels_with.count(*label)) else {
            return Vec::new();
        };
        let selected =
            |name: &&Name| Pod::get(store, namespace, name).is_some_and(|pod| selects(wanted, &pod.metadata.labels));
        let candidates = self.labels_with.at(rarest).flat_map(|together| self.pods_by_labels.at(*together));
        candidates.filter(selected).cloned().collect()
    }

    /// The namespaces that have pods.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &Name> {
        self.pods.keys()
    }

    /// The pods that may be on a node.
    pub(super) fn pods_on(&self, node: &str) -> impl Iterator<Item = &Named> {
        self.pods_by_node.at(self.hash(node))
    }

    /// EndpointSlices that may name a pod of their namespace, in order.
    pub(super) fn slices_of_pod(&self, namespace: &str, name: &str) -> impl Iterator<Item = &Name> {
        self.slices_by_pod.at(self.hash((namespace, name)))
    }

    /// EndpointSlices that may belong to a service of their namespace, in order.
    pub(super) fn slices_of_service(&self, namespace: &str, name: &str) -> impl Iterator<Item = &Name> {
        self.slices_by_service.at(self.hash((namespace, name)))
    }
}

/// The names of the pods that a slice's endpoints stand for. They are in the slice's namespace.
pub(super) fn target_pods(slice: &EndpointSlice) -> impl Iterator<Item = &str> {
    slice.endpoints.iter().filter_map(|endpoint| workload::target_pod(slice, endpoint))
}
