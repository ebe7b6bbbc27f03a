//! The objects that a cluster's own controllers would write: pods of a Deployment, the state of
//! pods and nodes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use leno_objects::{
    Condition, Deployment, Node as NodeObject, NodeAddress, NodeStatus, ObjectKey, ObjectMeta, OwnerReference, Pod,
    PodIp, PodPhase, PodStatus, REDIRECTION_ANNOTATION, REDIRECTION_ENABLED,
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

/// What the kubelet and the node agent see of a pod.
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
