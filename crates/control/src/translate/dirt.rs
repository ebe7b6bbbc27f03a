//! Which results a change of one object touches.
//!
//! Marking too much costs time, marking too little leaves a stale mesh; a property test compares
//! every sequence of changes with a translation from scratch.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::Locality;

use super::{Options, authorization, peer_authentication, service, workload};
use leno_objects::ObjectStore;
use leno_objects::{
    AuthorizationPolicy, EndpointSlice, Kind, Labels, Namespace, Node, Object, ObjectKey, PeerAuthentication, Pod,
    Service, selects,
};

/// Namespace and name.
pub(super) type Named = (String, String);

/// Objects by what they refer to, where the store's order does not help.
#[derive(Debug, Default)]
pub(super) struct Index {
    pods_by_node: BTreeMap<String, BTreeSet<Named>>,
    slices_by_pod: BTreeMap<Named, BTreeSet<Named>>,
    slices_by_service: BTreeMap<Named, BTreeSet<Named>>,
    policies_with_selector: BTreeMap<String, BTreeSet<String>>,
}

impl Index {
    pub(super) fn update(&mut self, key: &ObjectKey, old: Option<&Object>, new: Option<&Object>) {
        let me: Named = (key.namespace.clone(), key.name.clone());
        for (object, add) in [(old, false), (new, true)] {
            match object {
                Some(Object::Pod(pod)) => {
                    put(&mut self.pods_by_node, pod.spec.node_name.clone(), me.clone(), add);
                }
                Some(Object::EndpointSlice(slice)) => {
                    for pod in target_pods(slice) {
                        put(&mut self.slices_by_pod, pod, me.clone(), add);
                    }
                    if let Some(service) = slice.service() {
                        put(&mut self.slices_by_service, (me.0.clone(), service.to_owned()), me.clone(), add);
                    }
                }
                Some(Object::AuthorizationPolicy(policy)) if authorization::selector(policy).is_some() => {
                    put(&mut self.policies_with_selector, me.0.clone(), me.1.clone(), add);
                }
                _ => {}
            }
        }
    }

    /// The EndpointSlices that name a pod.
    pub(super) fn slices_of_pod(&self, namespace: &str, name: &str) -> impl Iterator<Item = (&str, &str)> {
        let slices = self.slices_by_pod.get(&(namespace.to_owned(), name.to_owned()));
        slices.into_iter().flatten().map(|(namespace, name)| (namespace.as_str(), name.as_str()))
    }

    /// The policies with a selector of two namespaces, each once.
    pub(super) fn selector_policies(&self, namespaces: [&str; 2]) -> impl Iterator<Item = (&str, &str)> {
        let distinct: BTreeSet<&str> = namespaces.into_iter().collect();
        distinct
            .into_iter()
            .filter_map(|namespace| self.policies_with_selector.get_key_value(namespace))
            .flat_map(|(namespace, names)| names.iter().map(move |name| (namespace.as_str(), name.as_str())))
    }
}

fn put<K: Ord, V: Ord>(map: &mut BTreeMap<K, BTreeSet<V>>, key: K, value: V, add: bool) {
    if add {
        map.entry(key).or_default().insert(value);
    } else if let Some(values) = map.get_mut(&key) {
        values.remove(&value);
        if values.is_empty() {
            map.remove(&key);
        }
    }
}

fn target_pods(slice: &EndpointSlice) -> impl Iterator<Item = Named> {
    slice
        .endpoints
        .iter()
        .filter_map(|endpoint| workload::target_pod(slice, endpoint))
        .map(|(namespace, name)| (namespace.clone(), name.clone()))
}

/// What has to be translated again.
#[derive(Debug, Default)]
pub(super) struct Dirt {
    pub(super) pods: BTreeSet<Named>,
    pub(super) services: BTreeSet<Named>,
    pub(super) slices: BTreeSet<Named>,
    pub(super) policies: BTreeSet<Named>,
    pub(super) peers: BTreeSet<Named>,
}

impl Dirt {
    /// Marks what a change of the object `key` from `old` to `new` touches; the store and index
    /// have taken it in already.
    #[expect(clippy::too_many_arguments, reason = "its parameters have yet to become a structure")]
    pub(super) fn mark(
        &mut self,
        options: &Options,
        store: &ObjectStore,
        index: &Index,
        key: &ObjectKey,
        old: Option<&Object>,
        new: Option<&Object>,
    ) {
        let me: Named = (key.namespace.clone(), key.name.clone());
        let both = || [old, new].into_iter().flatten();
        match key.kind {
            // Accounts and Deployments mean something only through their pods.
            Kind::ServiceAccount | Kind::Deployment => {}
            Kind::Pod => {
                self.pods.insert(me);
            }
            Kind::Node => {
                let place =
                    |node: Option<&Object>| -> Option<Locality> { node.and_then(Node::of).map(workload::locality) };
                if place(old) != place(new) {
                    self.pods.extend(index.pods_by_node.get(&key.name).into_iter().flatten().cloned());
                }
            }
            Kind::Namespace => {
                let annotations = |object: Option<&'_ Object>| -> Option<Labels> {
                    object.and_then(Namespace::of).map(|namespace| namespace.metadata.annotations.clone())
                };
                if !service::same_defaults(annotations(old).as_ref(), annotations(new).as_ref()) {
                    self.services.extend(Service::list(store, &key.name).map(|service| name(&service.metadata)));
                }
            }
            Kind::Service => {
                for service in both().filter_map(Service::of).filter(|s| !service::has_manual_endpoints(s)) {
                    self.mark_pods(store, &key.namespace, Some(&service.spec.selector));
                }
                for slice in index.slices_by_service.get(&me).into_iter().flatten() {
                    self.mark_slice(EndpointSlice::get(store, &slice.0, &slice.1));
                }
                self.services.insert(me);
            }
            Kind::EndpointSlice => {
                for slice in both().filter_map(EndpointSlice::of) {
                    self.mark_slice(Some(slice));
                }
            }
            Kind::AuthorizationPolicy => {
                let members = |object: Option<&Object>| -> Option<Labels> {
                    let policy = object.and_then(AuthorizationPolicy::of)?;
                    authorization::selector(policy).filter(|_| authorization::is_enforced(policy)).cloned()
                };
                let (before, after) = (members(old), members(new));
                if before != after {
                    for labels in [before, after].iter().flatten() {
                        if *key.namespace == *options.root_namespace {
                            self.mark_all_pods(store, |pod| selects(labels, &pod.metadata.labels));
                        } else {
                            self.mark_pods(store, &key.namespace, Some(labels));
                        }
                    }
                }
                self.policies.insert(me);
            }
            Kind::PeerAuthentication => {
                for peer in both().filter_map(PeerAuthentication::of) {
                    let selector = peer_authentication::selector(peer);
                    if selector.is_none() && *key.namespace == *options.root_namespace {
                        self.mark_all_pods(store, |_| true);
                        self.peers.extend(store.peer_authentications().map(|peer| name(&peer.metadata)));
                    } else {
                        self.mark_pods(store, &key.namespace, selector);
                        if selector.is_none() {
                            let all = PeerAuthentication::list(store, &key.namespace);
                            self.peers.extend(all.map(|peer| name(&peer.metadata)));
                        }
                    }
                }
                self.peers.insert(me);
            }
        }
    }

    /// Pods of a namespace with these labels, or all of them.
    fn mark_pods(&mut self, store: &ObjectStore, namespace: &str, labels: Option<&Labels>) {
        let selected =
            Pod::list(store, namespace).filter(|pod| labels.is_none_or(|labels| selects(labels, &pod.metadata.labels)));
        self.pods.extend(selected.map(|pod| name(&pod.metadata)));
    }

    fn mark_all_pods(&mut self, store: &ObjectStore, wanted: impl Fn(&Pod) -> bool) {
        self.pods.extend(store.pods().filter(|pod| wanted(pod)).map(|pod| name(&pod.metadata)));
    }

    fn mark_slice(&mut self, slice: Option<&EndpointSlice>) {
        if let Some(slice) = slice {
            self.slices.insert(name(&slice.metadata));
            self.pods.extend(target_pods(slice));
        }
    }
}

fn name(metadata: &leno_objects::ObjectMeta) -> Named {
    (metadata.namespace.clone(), metadata.name.clone())
}
