//! The objects of the API server, each as the bytes that are sent, and what happened to them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::watch;

use super::request::Selection;

/// Events of a kind that a watch can go back to. Who comes from further back must list again.
const KEPT: usize = 20_000;
/// What comes with a version of Kubernetes itself: an API server has no other kinds unless somebody defines them. Their
/// paths and names.
const BUILT_IN: [(&str, &str); 27] = [
    ("/api/v1/configmaps", "ConfigMap"),
    ("/api/v1/endpoints", "Endpoints"),
    ("/api/v1/events", "Event"),
    ("/api/v1/namespaces", "Namespace"),
    ("/api/v1/nodes", "Node"),
    ("/api/v1/pods", "Pod"),
    ("/api/v1/secrets", "Secret"),
    ("/api/v1/serviceaccounts", "ServiceAccount"),
    ("/api/v1/services", "Service"),
    ("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
    ("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
    ("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
    ("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
    ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "CustomResourceDefinition"),
    ("/apis/apps/v1/daemonsets", "DaemonSet"),
    ("/apis/apps/v1/deployments", "Deployment"),
    ("/apis/apps/v1/replicasets", "ReplicaSet"),
    ("/apis/apps/v1/statefulsets", "StatefulSet"),
    ("/apis/autoscaling/v2/horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    ("/apis/batch/v1/cronjobs", "CronJob"),
    ("/apis/batch/v1/jobs", "Job"),
    ("/apis/coordination.k8s.io/v1/leases", "Lease"),
    ("/apis/discovery.k8s.io/v1/endpointslices", "EndpointSlice"),
    ("/apis/networking.k8s.io/v1/ingressclasses", "IngressClass"),
    ("/apis/networking.k8s.io/v1/ingresses", "Ingress"),
    ("/apis/networking.k8s.io/v1/networkpolicies", "NetworkPolicy"),
    ("/apis/policy/v1/poddisruptionbudgets", "PodDisruptionBudget"),
];

/// An object as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) labels: Vec<(String, String)>,
    /// All of it, with its kind and version.
    pub(super) json: Bytes,
}

/// The effect of an event on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Happened {
    Added,
    Modified,
    Deleted,
}

impl Happened {
    fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

#[derive(Debug)]
struct Event {
    version: u64,
    happened: Happened,
    object: Arc<Object>,
}

/// All objects of one kind.
#[derive(Debug)]
pub(super) struct Collection {
    kind: &'static str,
    /// Group and version.
    api_version: &'static str,
    objects: BTreeMap<(String, String), Arc<Object>>,
    log: VecDeque<Event>,
    /// What happened up to this version is forgotten.
    forgotten: u64,
    changed: watch::Sender<()>,
}

/// A page of a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) items: Vec<Arc<Object>>,
    /// The name that the next page begins after, if there is one, and how many are left then.
    pub(super) next: Option<((String, String), usize)>,
}

/// All objects of an API server.
#[derive(Debug)]
pub(super) struct Objects {
    version: u64,
    collections: HashMap<&'static str, Collection>,
}

impl Objects {
    /// None yet.
    pub(super) fn new() -> Self {
        let collection = |(path, kind): &(&'static str, &'static str)| {
            let prefix = path.rsplit_once('/').map_or("", |(prefix, _)| prefix);
            let api_version = prefix.trim_start_matches("/apis/").trim_start_matches("/api/");
            let collection = Collection {
                kind,
                api_version,
                objects: BTreeMap::new(),
                log: VecDeque::new(),
                forgotten: 0,
                changed: watch::Sender::new(()),
            };
            (*path, collection)
        };
        Self { version: 1, collections: BUILT_IN.iter().map(collection).collect() }
    }

    /// The latest version of anything.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// The objects of a kind; `None` if there is no such kind.
    pub(super) fn of(&self, collection: &str) -> Option<&Collection> {
        self.collections.get(collection)
    }

    /// Adds or replaces an object, which is told the version that it then has. Those who watch learn of it with
    /// [`Self::tell`]; a collection that does not exist has no objects.
    pub(super) fn put(&mut self, collection: &str, make: impl FnOnce(u64) -> Object) -> Option<Arc<Object>> {
        let collection = self.collections.get_mut(collection)?;
        self.version += 1;
        let object = Arc::new(make(self.version));
        let key = (object.namespace.clone(), object.name.clone());
        let before = collection.objects.insert(key, object.clone());
        let happened = if before.is_some() { Happened::Modified } else { Happened::Added };
        collection.note(self.version, happened, object.clone());
        Some(object)
    }

    /// Removes an object, which is told the version of its end. Returns whether it was there.
    pub(super) fn delete(&mut self, collection: &str, make: impl FnOnce(u64) -> Object) -> bool {
        let Some(collection) = self.collections.get_mut(collection) else { return false };
        let object = Arc::new(make(self.version + 1));
        let key = (object.namespace.clone(), object.name.clone());
        if collection.objects.remove(&key).is_none() {
            return false;
        }
        self.version += 1;
        collection.note(self.version, Happened::Deleted, object);
        true
    }

    /// Wakes those who watch a collection.
    pub(super) fn tell(&self, collection: &str) {
        if let Some(collection) = self.of(collection) {
            collection.changed.send_replace(());
        }
    }
}

impl Collection {
    fn note(&mut self, version: u64, happened: Happened, object: Arc<Object>) {
        self.log.push_back(Event { version, happened, object });
        if self.log.len() > KEPT
            && let Some(oldest) = self.log.pop_front()
        {
            self.forgotten = oldest.version;
        }
    }

    /// The kind's name.
    pub(super) fn kind(&self) -> &'static str {
        self.kind
    }

    /// The kind's group and version.
    pub(super) fn api_version(&self) -> &'static str {
        self.api_version
    }

    /// An object.
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<&Arc<Object>> {
        self.objects.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// At most `limit` selected objects after the one of a name.
    pub(super) fn page(&self, selection: &Selection, after: Option<&(String, String)>, limit: usize) -> Page {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        let is_selected = |object: &&Arc<Object>| selection.has(&object.namespace, &object.name, &object.labels);
        let mut selected = self.objects.range((from, Unbounded)).map(|(_, object)| object).filter(is_selected);
        let items: Vec<Arc<Object>> = selected.by_ref().take(limit).cloned().collect();
        let left = selected.count();
        let last = items.last().filter(|_| left > 0);
        Page { next: last.map(|last| ((last.namespace.clone(), last.name.clone()), left)), items }
    }

    /// The events after `version` as lines, together; `None` if they are forgotten.
    pub(super) fn since(&self, version: u64, selection: &Selection, partial: bool) -> Option<Bytes> {
        if version < self.forgotten {
            return None;
        }
        let start = self.log.partition_point(|event| event.version <= version);
        let mut lines = Vec::new();
        for event in self.log.range(start..) {
            let object = &event.object;
            if selection.has(&object.namespace, &object.name, &object.labels) {
                line(event.happened.as_str(), &object.sent(partial), &mut lines);
            }
        }
        Some(lines.into())
    }

    /// Wakes when something happens here.
    pub(super) fn watch(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

impl Object {
    /// An object that is given as JSON.
    pub(super) fn of_value(value: &Value) -> Self {
        let metadata = &value["metadata"];
        let text = |name: &str| metadata[name].as_str().unwrap_or_default().to_owned();
        let labels = metadata["labels"].as_object().into_iter().flatten();
        let labels = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        Self {
            namespace: text("namespace"),
            name: text("name"),
            labels: labels.collect(),
            json: value.to_string().into(),
        }
    }

    /// The object as JSON.
    pub(super) fn value(&self) -> Value {
        serde_json::from_slice(&self.json).unwrap_or_default()
    }

    /// Its bytes, or those of its metadata alone.
    pub(super) fn sent(&self, partial: bool) -> Bytes {
        if !partial {
            return self.json.clone();
        }
        let metadata = self.value()["metadata"].take();
        let kind = serde_json::json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        });
        kind.to_string().into()
    }
}

/// An event as a line.
pub(super) fn line(kind: &str, object: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    out.extend_from_slice(object);
    out.extend_from_slice(b"}\n");
}
