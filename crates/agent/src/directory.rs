//! What is known of the node's pods, and what follows from it: which of them are to be in the mesh.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_capture::pod_rules::PodRules;
use leno_capture::zds::PodInfo;
use leno_objects::{
    Change, DATAPLANE_MODE, Kind, Labels, MIRROR, Object, ObjectMeta, Pod, PodPhase, is_captured, is_enrolled,
};

use crate::cluster::News;
use crate::state::Remembered;

/// How long a pod that was asked for counts as existing without the watch telling of it.
const FETCHED: Duration = Duration::from_secs(60);

/// What is to be done with a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) info: PodInfo,
    /// The uid by which kubelet and runtime know it.
    pub(crate) runtime_uid: String,
    pub(crate) in_mesh: bool,
    /// Whether the pod says that it is captured.
    pub(crate) annotated: bool,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) rules: PodRules,
}

/// The node's pods and all namespaces.
#[derive(Debug)]
pub(crate) struct Directory {
    /// The agent's own namespace, whose pods carry the mesh and are never in it.
    own_namespace: String,
    rules: PodRules,
    namespaces: Option<BTreeMap<String, Labels>>,
    pods: Option<HashMap<(String, String), Arc<Pod>>>,
    /// Pods that the API server was asked about, by uid: the watch may be late.
    fetched: HashMap<String, (Arc<Pod>, Instant)>,
    /// What counts until the first list has come.
    remembered: Vec<Remembered>,
}

impl Directory {
    /// `rules` are those of a pod that wants nothing special.
    pub(crate) fn new(own_namespace: String, rules: PodRules, remembered: Vec<Remembered>) -> Self {
        Self { own_namespace, rules, namespaces: None, pods: None, fetched: HashMap::new(), remembered }
    }

    pub(crate) fn take(&mut self, news: News) {
        match news {
            News::All(Kind::Namespace, objects) => {
                let labels = objects.iter().map(|object| object.metadata());
                self.namespaces = Some(labels.map(|of| (of.name.to_string(), of.labels.clone())).collect());
            }
            News::All(Kind::Pod, objects) => {
                self.pods = Some(objects.iter().filter_map(|object| as_pod(object)).map(entry).collect());
            }
            News::All(..) => {}
            News::Changed(changes) => changes.into_iter().for_each(|change| self.change(change)),
        }
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Upsert(object) => match (&*object, &mut self.namespaces, &mut self.pods) {
                (Object::Namespace(namespace), Some(all), _) => {
                    let metadata = &namespace.metadata;
                    all.insert(metadata.name.to_string(), metadata.labels.clone());
                }
                (Object::Pod(pod), _, Some(all)) => {
                    self.fetched.remove(&pod.metadata.uid);
                    all.extend([entry(Arc::new(pod.clone()))]);
                }
                _ => {}
            },
            Change::Remove(key) => match (key.kind, &mut self.namespaces, &mut self.pods) {
                (Kind::Namespace, Some(all), _) => drop(all.remove(&*key.name)),
                (Kind::Pod, _, Some(all)) => {
                    if let Some(gone) = all.remove(&(key.namespace.to_string(), key.name.to_string())) {
                        self.fetched.remove(&gone.metadata.uid);
                    }
                }
                _ => {}
            },
        }
    }

    /// Whether all that there is was told.
    pub(crate) fn is_complete(&self) -> bool {
        self.namespaces.is_some() && self.pods.is_some()
    }

    /// The pod of this name; with this uid, unless the runtime did not tell it.
    pub(crate) fn pod(&self, namespace: &str, name: &str, uid: &str) -> Option<Arc<Pod>> {
        let fetched = self.fetched.values().map(|(pod, _)| pod).filter(|pod| names(pod) == (namespace, name));
        let watched = self.pods.as_ref().and_then(|pods| pods.get(&(namespace.to_owned(), name.to_owned())));
        fetched.chain(watched).find(|pod| is_of_uid(pod, uid)).cloned()
    }

    /// Takes in a pod that the API server was asked about.
    pub(crate) fn fetched(&mut self, pod: Pod) -> Arc<Pod> {
        let pod = Arc::new(pod);
        self.fetched.insert(pod.metadata.uid.clone(), (pod.clone(), Instant::now()));
        pod
    }

    /// Takes in the labels of a namespace that the API server was asked about.
    pub(crate) fn fetched_namespace(&mut self, name: &str, labels: Labels) {
        if let Some(all) = &mut self.namespaces {
            all.entry(name.to_owned()).or_insert(labels);
        }
    }

    /// Whether pods of this namespace that say nothing else are in the mesh; `None` if the namespace is not known.
    pub(crate) fn is_mesh_namespace(&self, namespace: &str) -> Option<bool> {
        let labels = self.namespaces.as_ref()?.get(namespace)?;
        let metadata = ObjectMeta { namespace: namespace.into(), ..ObjectMeta::default() };
        Some(namespace != self.own_namespace && is_enrolled(&metadata, labels))
    }

    /// Whether a pod is to be in the mesh; `None` if that depends on a namespace that is not known.
    pub(crate) fn is_wanted(&self, pod: &Pod) -> Option<bool> {
        let metadata = &pod.metadata;
        if pod.spec.host_network || *metadata.namespace == *self.own_namespace {
            return Some(false);
        }
        let nothing = Labels::new();
        let labels = self.namespaces.as_ref().and_then(|all| all.get(&*metadata.namespace));
        let decided_by_pod = matches!(metadata.label(DATAPLANE_MODE), Some("ambient" | "none"));
        if labels.is_none() && !decided_by_pod {
            return None;
        }
        Some(is_enrolled(metadata, labels.unwrap_or(&nothing)))
    }

    /// What is to be done with a pod.
    pub(crate) fn wish(&self, pod: &Pod) -> Wish {
        let annotated = is_captured(&pod.metadata);
        Wish {
            info: PodInfo {
                uid: pod.metadata.uid.clone(),
                name: pod.metadata.name.to_string(),
                namespace: pod.metadata.namespace.to_string(),
                service_account: pod.spec.account().to_owned(),
            },
            runtime_uid: runtime_uid(pod).to_owned(),
            // What is captured stays so until it is known that it should not be.
            in_mesh: self.is_wanted(pod).unwrap_or(annotated),
            annotated,
            addresses: pod.status.addresses(),
            rules: self.rules_of(&pod.metadata),
        }
    }

    /// What is to be done with each of the node's pods, by uid. Pods that have ended are not among them.
    pub(crate) fn wishes(&mut self) -> BTreeMap<String, Wish> {
        let Some(pods) = &self.pods else {
            let wish = |known: &Remembered| Wish {
                info: known.info(),
                runtime_uid: known.runtime_uid.as_ref().unwrap_or(&known.uid).clone(),
                in_mesh: true,
                annotated: true,
                addresses: known.addresses.clone(),
                rules: self.rules.clone(),
            };
            let fetched = self.fetched.values().map(|(pod, _)| self.wish(pod));
            let remembered = self.remembered.iter().map(wish);
            return remembered.chain(fetched).map(|wish| (wish.info.uid.clone(), wish)).collect();
        };
        self.fetched.retain(|_, (_, since)| since.elapsed() < FETCHED);
        let fetched = self.fetched.values().map(|(pod, _)| pod);
        let live = fetched.chain(pods.values()).filter(|pod| {
            !matches!(pod.status.phase, PodPhase::Succeeded | PodPhase::Failed) && !pod.spec.host_network
        });
        live.map(|pod| (pod.metadata.uid.clone(), self.wish(pod))).collect()
    }

    /// The namespaces in which pods can be in the mesh; `None` while they are unknown.
    pub(crate) fn mesh_namespaces(&self) -> Option<BTreeSet<String>> {
        let all = self.namespaces.as_ref()?.keys();
        let mut found: BTreeSet<String> =
            all.filter(|name| self.is_mesh_namespace(name) == Some(true)).cloned().collect();
        let of_pods = self.pods.iter().flat_map(|pods| pods.values());
        found.extend(
            of_pods.filter(|pod| self.is_wanted(pod) == Some(true)).map(|pod| pod.metadata.namespace.to_string()),
        );
        Some(found)
    }

    fn rules_of(&self, pod: &ObjectMeta) -> PodRules {
        let says = |name: &str, value: &str| pod.annotation(name).is_some_and(|text| text == value);
        let mut rules = self.rules.clone();
        rules.ingress_only = says("ambient.istio.io/bypass-inbound-capture", "true");
        if says("ambient.istio.io/dns-capture", "false") {
            rules.dns_capture = false;
        }
        let interfaces = pod.annotation("istio.io/reroute-virtual-interfaces").unwrap_or_default().split(',');
        let interfaces = interfaces.map(str::trim).filter(|name| !name.is_empty());
        rules.virtual_interfaces = interfaces.map(str::to_owned).collect();
        rules
    }
}

/// Whether a pod is the one that the runtime calls by this uid. One that the kubelet has from a file has another uid there,
/// without dashes, than the object that stands for it.
pub(crate) fn is_of_uid(pod: &Pod, uid: &str) -> bool {
    uid.is_empty() || pod.metadata.uid == uid || !uid.contains('-')
}

/// The uid by which kubelet and runtime know a pod. For a pod from a file, the kubelet makes an object that stands for it
/// and names that uid. It has no dashes, so that no annotation leads to another kind of pod.
fn runtime_uid(pod: &Pod) -> &str {
    let of_file = pod.metadata.annotation(MIRROR).filter(|uid| !uid.contains('-'));
    of_file.unwrap_or(&pod.metadata.uid)
}

fn names(pod: &Pod) -> (&str, &str) {
    (&pod.metadata.namespace, &pod.metadata.name)
}

fn as_pod(object: &Object) -> Option<Arc<Pod>> {
    match object {
        Object::Pod(pod) => Some(Arc::new(pod.clone())),
        _ => None,
    }
}

fn entry(pod: Arc<Pod>) -> ((String, String), Arc<Pod>) {
    ((pod.metadata.namespace.to_string(), pod.metadata.name.to_string()), pod)
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
