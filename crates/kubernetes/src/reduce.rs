//! Leaves out of an object what a control plane does not use. An API server sends some kilobytes for a pod, and there
//! are tens of thousands.

use std::sync::Arc;

use leno_objects::{Condition, Container, Labels, MIRROR, Object, ObjectMeta, Pod};

/// The part of the mesh's annotations' names that they have in common.
const ISTIO: &str = "istio.io/";
/// The same of this mesh's own.
const LENO: &str = "leno.mesh/";

/// Leaves out what only those need who start pods, and what changes without meaning anything.
pub(crate) fn reduce(object: &mut Object) {
    metadata(object.metadata_mut());
    match object {
        Object::Pod(object) => pod(object),
        Object::Node(node) => {
            // What is used of a node is in its labels. The rest changes with each sign of life.
            node.status = Default::default();
        }
        Object::EndpointSlice(slice) => {
            for target in slice.endpoints.iter_mut().filter_map(|endpoint| endpoint.target_ref.as_mut()) {
                target.uid = String::new();
            }
        }
        _ => {}
    }
}

fn metadata(metadata: &mut ObjectMeta) {
    let is_used = |name: &str| name.contains(ISTIO) || name.starts_with(LENO) || name == MIRROR;
    if metadata.annotations.iter().any(|(name, _)| !is_used(name)) {
        let kept = metadata.annotations.iter().filter(|(name, _)| is_used(name));
        metadata.annotations = kept.map(|(name, value)| (name.clone(), value.clone())).collect::<Labels>();
    }
}

fn pod(pod: &mut Pod) {
    for containers in [&mut pod.spec.containers, &mut pod.spec.init_containers] {
        // Services find ports by name; which of them serve depends on the rest.
        let kept = containers.iter().filter(|container| !container.ports.is_empty()).map(|container| Container {
            name: container.name.clone(),
            ports: container.ports.clone(),
            restart_policy: container.restart_policy,
            ..Container::default()
        });
        *containers = kept.collect::<Arc<[_]>>();
    }
    let ready = pod.status.conditions.iter().filter(|condition| condition.kind == "Ready");
    let ready = ready.map(|condition| Condition {
        kind: condition.kind.clone(),
        status: condition.status.clone(),
        ..Condition::default()
    });
    pod.status.conditions = ready.collect::<Arc<[_]>>();
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_objects::{Kind, Mode, decode};
    use serde_json::{Value, json};

    fn reduced(kind: Kind, value: &Value) -> Object {
        let mut object = decode(kind, Mode::Lenient, value).expect("sound").object;
        reduce(&mut object);
        object
    }

    /// As an API server sends it.
    fn full() -> Value {
        json!({
            "metadata": {
                "name": "web-1", "namespace": "shop", "uid": "u", "resourceVersion": "7",
                "labels": {"app": "web"},
                "annotations": {"ambient.istio.io/redirection": "enabled", "cni.example/status": "[]"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": true}],
                "managedFields": [{"manager": "kubelet"}],
            },
            "spec": {
                "containers": [{
                    "name": "c", "image": "i", "env": [{"name": "A", "value": "b"}],
                    "ports": [{"name": "http", "containerPort": 80}], "readinessProbe": {"tcpSocket": {"port": 80}},
                }, {"name": "silent"}],
                "initContainers": [{"name": "s", "restartPolicy": "Always", "ports": [{"containerPort": 9}]}],
                "nodeName": "n", "serviceAccountName": "web", "volumes": [{"name": "v", "emptyDir": {}}],
                "tolerations": [{"key": "x"}],
            },
            "status": {
                "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
                "conditions": [
                    {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "message": "m"},
                    {"type": "PodScheduled", "status": "True"},
                ],
                "containerStatuses": [{"name": "c"}],
            },
        })
    }

    #[test]
    fn of_a_pod_a_dozen_fields_stay() {
        let minimal = json!({
            "metadata": {
                "name": "web-1", "namespace": "shop", "uid": "u", "labels": {"app": "web"},
                "annotations": {"ambient.istio.io/redirection": "enabled"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": true}],
            },
            "spec": {
                "containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 80}]}],
                "initContainers": [{"name": "s", "restartPolicy": "Always", "ports": [{"containerPort": 9}]}],
                "nodeName": "n", "serviceAccountName": "web",
            },
            "status": {
                "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        assert_eq!(reduced(Kind::Pod, &full()), decode(Kind::Pod, Mode::Lenient, &minimal).expect("sound").object);
    }

    /// A kubelet reports every few minutes, and nothing in the mesh changes by that.
    #[test]
    fn a_nodes_sign_of_life_changes_nothing() {
        let node = |at: &str| {
            json!({
                "metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "a"}, "annotations": {"x/at": at}},
                "status": {"conditions": [{"type": "Ready", "status": at}], "addresses": [{"type": "InternalIP", "address": at}]},
            })
        };
        assert_eq!(reduced(Kind::Node, &node("True")), reduced(Kind::Node, &node("False")));
    }
}
