//! The objects that a cluster's own controllers would write: pods of a Deployment, the state of
//! pods and nodes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use leno_objects::{
    Condition, Deployment, Job, Node as NodeObject, NodeAddress, NodeStatus, ObjectKey, ObjectMeta, OwnerReference,
    Pod, PodIp, PodPhase, PodStatus, PodTemplateSpec, REDIRECTION_ANNOTATION, REDIRECTION_ENABLED, StatefulSet,
};

use crate::cluster::addresses::NodeAddresses;
use crate::stable_hash::fnv;

/// Label a Deployment's pods carry, with the hash of their template.
const TEMPLATE_LABEL: &str = "pod-template-hash";

/// A Deployment's pod, as its controllers in a cluster would write it.
pub(crate) fn replica(key: &ObjectKey, deployment: &Deployment, hash: &str, name: String) -> Pod {
    let template = &deployment.spec.template;
    let mut metadata = template.metadata.clone();
    metadata.name = name.into();
    metadata.namespace.clone_from(&key.namespace);
    metadata.labels.insert(TEMPLATE_LABEL.into(), hash.into());
    metadata.owner_references = Arc::new([OwnerReference {
        api_version: "apps/v1".to_owned(),
        kind: "ReplicaSet".to_owned(),
        name: format!("{}-{hash}", key.name),
        controller: true,
        ..OwnerReference::default()
    }]);
    Pod { metadata, spec: template.spec.clone(), status: PodStatus::default() }
}

/// A StatefulSet's pod, as its controller in a cluster would write it.
pub(crate) fn set_pod(key: &ObjectKey, set: &StatefulSet, hash: &str, ordinal: u32) -> Pod {
    let name = format!("{}-{ordinal}", key.name);
    let labels = [
        ("apps.kubernetes.io/pod-index", ordinal.to_string()),
        ("controller-revision-hash", format!("{}-{hash}", key.name)),
        ("statefulset.kubernetes.io/pod-name", name.clone()),
    ];
    made_pod(key, &set.spec.template, name, "apps/v1", &labels)
}

/// A Job's pod, as its controller in a cluster would write it.
pub(crate) fn job_pod(key: &ObjectKey, job: &Job, name: String) -> Pod {
    let labels = ["batch.kubernetes.io/job-name", "job-name"].map(|label| (label, key.name.to_string()));
    made_pod(key, &job.spec.template, name, "batch/v1", &labels)
}

fn made_pod(
    owner: &ObjectKey,
    template: &PodTemplateSpec,
    name: String,
    api_version: &str,
    labels: &[(&str, String)],
) -> Pod {
    let mut metadata = template.metadata.clone();
    metadata.name = name.into();
    metadata.namespace.clone_from(&owner.namespace);
    for (label, value) in labels {
        metadata.labels.insert((*label).into(), value.as_str().into());
    }
    metadata.owner_references = Arc::new([OwnerReference {
        api_version: api_version.to_owned(),
        kind: owner.kind.to_string(),
        name: owner.name.to_string(),
        controller: true,
        ..OwnerReference::default()
    }]);
    Pod { metadata, spec: template.spec.clone(), status: PodStatus::default() }
}

/// A pod as the kubelet and the node agent see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub ips: &'a [IpAddr],
    pub phase: PodPhase,
    pub ready: bool,
    /// Whether the node's proxy has it and the rules are in place.
    pub enrolled: bool,
}

/// The pod object as the API server would hold it now.
pub(crate) fn observed(pod: &Pod, seen: &Seen<'_>) -> Pod {
    let mut pod = pod.clone();
    if seen.enrolled {
        pod.metadata.annotations.insert(REDIRECTION_ANNOTATION.into(), REDIRECTION_ENABLED.into());
    } else {
        // Nobody enters the mesh by writing it into a manifest.
        pod.metadata.annotations.remove(REDIRECTION_ANNOTATION);
    }
    let over = matches!(seen.phase, PodPhase::Succeeded | PodPhase::Failed);
    let ready = if seen.ready { "True" } else { "False" };
    pod.status = PodStatus {
        phase: seen.phase,
        pod_ip: seen.ips.first().copied(),
        pod_ips: seen.ips.iter().map(|ip| PodIp { ip: Some(*ip) }).collect(),
        conditions: Arc::new([Condition {
            kind: "Ready".to_owned(),
            status: if over { "False" } else { ready }.to_owned(),
            ..Condition::default()
        }]),
    };
    pod
}

/// The node object as the API server would hold it; `declared` is what a manifest says of it.
pub(crate) fn node_object(name: &str, addresses: NodeAddresses, declared: Option<&NodeObject>) -> NodeObject {
    let mut metadata = ObjectMeta { name: name.into(), ..ObjectMeta::default() };
    let mut label = |key: &str, value: String| metadata.labels.insert(key.into(), value.into());
    label("kubernetes.io/hostname", name.to_owned());
    label("topology.kubernetes.io/region", "local".to_owned());
    // A zone per node: preferences between zones can be seen with two of them.
    label("topology.kubernetes.io/zone", format!("zone-{}", addresses.number()));
    if let Some(declared) = declared {
        let declared_labels = declared.metadata.labels.iter();
        metadata.labels.extend(declared_labels.map(|(key, value)| (key.clone(), value.clone())));
        metadata.annotations.clone_from(&declared.metadata.annotations);
    }
    let address = NodeAddress { kind: "InternalIP".to_owned(), address: addresses.fabric_v4().to_string() };
    let ready = Condition { kind: "Ready".to_owned(), status: "True".to_owned(), ..Condition::default() };
    NodeObject { metadata, status: NodeStatus { addresses: vec![address], conditions: vec![ready] } }
}

/// An id in the form of a UUID, unlike any other on this machine now or before.
pub(crate) fn unique_id(metadata: &ObjectMeta, number: u64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    let text = format!("{}/{}/{number}/{now}/{}", metadata.namespace, metadata.name, std::process::id());
    let (high, low) = (fnv(text.as_bytes()), fnv(format!("{text}#").as_bytes()));
    format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xfff,
        low >> 48 & 0xfff,
        low & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
#[path = "objects_tests.rs"]
mod tests;
