//! A store of objects in their latest version, by key.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_model::Map;

use crate::{
    AuthorizationPolicy, ConfigMap, Deployment, DestinationRule, EndpointSlice, GRPCRoute, Gateway, GatewayClass,
    HTTPRoute, Job, Kind, Namespace, Node, Object, ObjectKey, PeerAuthentication, Pod, ReferenceGrant,
    RequestAuthentication, Secret, Service, ServiceAccount, StatefulSet, TCPRoute, TLSRoute, VirtualService,
};

/// A change to one object.
#[derive(Debug, Clone)]
pub enum Change {
    /// Adds or replaces.
    Upsert(Arc<Object>),
    /// Removes.
    Remove(ObjectKey),
}

impl Change {
    /// Adds or replaces.
    pub fn upsert(object: impl Into<Object>) -> Self {
        Self::Upsert(Arc::new(object.into()))
    }
}

/// All objects, by kind, namespace and name.
///
/// A clone is a consistent view that later changes don't affect. Cloning is cheap and so are changes afterwards,
/// because clones share everything that has not changed.
#[derive(Debug, Clone, Default)]
pub struct ObjectStore {
    objects: Map<ObjectKey, Arc<Object>>,
    generation: u64,
}

impl ObjectStore {
    /// Adds or replaces an object. Returns the one it replaced. An equal object changes nothing.
    pub fn upsert(&mut self, object: impl Into<Arc<Object>>) -> Option<Arc<Object>> {
        let object = object.into();
        let key = object.key();
        if let Some(old) = self.objects.get(&key)
            && *old == object
        {
            return Some(old.clone());
        }
        self.generation += 1;
        self.objects.insert(key, object)
    }

    /// Removes an object and returns it.
    pub fn remove(&mut self, key: &ObjectKey) -> Option<Arc<Object>> {
        let removed = self.objects.remove(key)?;
        self.generation += 1;
        Some(removed)
    }

    /// The changes that make the stored objects of these kinds equal to `wanted`. Equal objects cause no change. If two
    /// wanted objects have the same key, the later one wins.
    pub fn changes_to<O: Into<Arc<Object>>>(&self, kinds: &[Kind], wanted: impl IntoIterator<Item = O>) -> Vec<Change> {
        let wanted = wanted.into_iter().map(Into::into).filter(|object| kinds.contains(&object.kind()));
        let wanted: BTreeMap<ObjectKey, Arc<Object>> = wanted.map(|object| (object.key(), object)).collect();
        let held = kinds.iter().flat_map(|kind| self.of_kind(*kind)).map(|object| object.key());
        let gone = held.filter(|key| !wanted.contains_key(key)).map(Change::Remove);
        let mut changes: Vec<Change> = gone.collect();
        for (key, object) in wanted {
            if self.objects.get(&key).is_none_or(|old| *old != object) {
                changes.push(Change::Upsert(object));
            }
        }
        changes
    }

    /// The number of changes so far. Equal generations of one store mean equal contents.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<Object>> {
        self.objects.get(key)
    }

    /// The object with this key, and the stored key.
    pub fn get_key_value(&self, key: &ObjectKey) -> Option<(&ObjectKey, &Arc<Object>)> {
        self.objects.get_key_value(key)
    }

    /// All objects, by kind, namespace and name.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<Object>)> {
        self.objects.iter()
    }

    /// All objects of one kind, by namespace and name.
    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Arc<Object>> {
        let start = ObjectKey::new(kind, "", "");
        self.objects.range(start..).take_while(move |(key, _)| key.kind == kind).map(|(_, object)| object)
    }

    /// All objects of one kind in one namespace, by name.
    pub fn in_namespace<'a>(&'a self, kind: Kind, namespace: &str) -> impl Iterator<Item = &'a Arc<Object>> {
        let start = ObjectKey::new(kind, namespace, "");
        let namespace = namespace.to_owned();
        self.objects
            .range(start..)
            .take_while(move |(key, _)| key.kind == kind && *key.namespace == *namespace)
            .map(|(_, object)| object)
    }
}

/// Typed access: a set of functions for each kind.
macro_rules! typed {
    ($($Kind:ident: $all:ident;)*) => {
        impl ObjectStore {
            $(
                #[doc = concat!("All objects of kind ", stringify!($Kind), ", by namespace and name.")]
                pub fn $all(&self) -> impl Iterator<Item = &$Kind> {
                    self.of_kind(Kind::$Kind).filter_map(|object| $Kind::of(object))
                }
            )*
        }
        $(
            impl $Kind {
                /// The object as this kind; `None` if it is of another kind.
                pub fn of(object: &Object) -> Option<&Self> {
                    match object {
                        Object::$Kind(object) => Some(object),
                        _ => None,
                    }
                }

                /// The object of this kind with this name in a store.
                pub fn get<'s>(store: &'s ObjectStore, namespace: &str, name: &str) -> Option<&'s Self> {
                    store.get(&ObjectKey::new(Kind::$Kind, namespace, name)).and_then(|object| Self::of(object))
                }

                /// The objects of this kind in one namespace of a store, by name.
                pub fn list<'s>(store: &'s ObjectStore, namespace: &str) -> impl Iterator<Item = &'s Self> {
                    store.in_namespace(Kind::$Kind, namespace).filter_map(|object| Self::of(object))
                }
            }
        )*
    };
}

typed! {
    Namespace: namespaces;
    ServiceAccount: service_accounts;
    Node: nodes;
    Pod: pods;
    Deployment: deployments;
    StatefulSet: stateful_sets;
    Job: jobs;
    ConfigMap: config_maps;
    Secret: secrets;
    Service: services;
    EndpointSlice: endpoint_slices;
    AuthorizationPolicy: authorization_policies;
    PeerAuthentication: peer_authentications;
    RequestAuthentication: request_authentications;
    Gateway: gateways;
    GatewayClass: gateway_classes;
    HTTPRoute: http_routes;
    GRPCRoute: grpc_routes;
    TLSRoute: tls_routes;
    TCPRoute: tcp_routes;
    VirtualService: virtual_services;
    DestinationRule: destination_rules;
    ReferenceGrant: reference_grants;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(name: &str, labels: &[(&str, &str)]) -> Object {
        let mut object = Namespace::default();
        object.metadata.name = name.into();
        object.metadata.labels = labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        object.into()
    }

    fn account(namespace: &str, name: &str) -> Object {
        let mut object = ServiceAccount::default();
        object.metadata.namespace = namespace.into();
        object.metadata.name = name.into();
        object.into()
    }

    #[test]
    fn only_real_changes_count() {
        let mut store = ObjectStore::default();
        assert!(store.upsert(namespace("a", &[])).is_none());
        let view = store.clone();
        assert!(store.upsert(namespace("a", &[])).is_some());
        assert_eq!(store.generation(), 1);
        store.upsert(namespace("a", &[("x", "y")]));
        assert_eq!(store.generation(), 2);
        assert!(view.namespaces().all(|ns| ns.metadata.labels.is_empty()));
        assert!(store.remove(&ObjectKey::new(Kind::Namespace, "", "b")).is_none());
        assert_eq!(store.generation(), 2);
    }

    #[test]
    fn listing_keeps_to_kind_and_namespace() {
        let mut store = ObjectStore::default();
        for object in [account("a", "x"), account("a", "y"), account("ab", "z"), namespace("a", &[])] {
            store.upsert(object);
        }
        let names = |ns| ServiceAccount::list(&store, ns).map(|a| &*a.metadata.name).collect::<Vec<_>>();
        assert_eq!(names("a"), ["x", "y"]);
        assert_eq!(names("ab"), ["z"]);
        assert_eq!(store.service_accounts().count(), 3);
        assert!(ServiceAccount::get(&store, "ab", "z").is_some());
        assert!(ServiceAccount::get(&store, "ab", "x").is_none());
    }

    #[test]
    fn changes_to_a_wanted_state() {
        let mut store = ObjectStore::default();
        for object in [account("a", "stays"), account("a", "goes"), namespace("a", &[])] {
            store.upsert(object);
        }
        let wanted = [account("a", "stays"), namespace("a", &[("x", "y")]), account("a", "comes")];
        let changes = store.changes_to(Kind::ALL, wanted.clone());
        assert_eq!(changes.len(), 3);
        for change in changes {
            match change {
                Change::Upsert(object) => drop(store.upsert(object)),
                Change::Remove(key) => assert!(store.remove(&key).is_some()),
            }
        }
        assert!(store.changes_to(Kind::ALL, wanted).is_empty());
        let none: [Object; 0] = [];
        assert_eq!(store.changes_to(&[Kind::Namespace], none).len(), 1, "other kinds are none of this list's");
    }
}
