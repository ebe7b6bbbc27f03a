//! Objects as an API server has them: with what nobody but the kubelet reads, because that is what control planes are sent.

use serde_json::{Value, json};

use super::objects::Object;
use crate::churn::MARK_LABEL;

/// When everything was made that is there from the beginning.
const BEGINNING: &str = "2026-11-25T08:00:00Z";
/// The service of every namespace, and what its pods' names begin with: as in the study.
pub(super) const SERVICE: &str = "loadservice";
/// The end of a ReplicaSet's name, after the Deployment's name.
const HASH: &str = "5d8f7c9b4";
/// The service account of all pods.
pub(super) const ACCOUNT: &str = "default";
const PORT: u16 = 8080;

/// How far a pod has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// It was made.
    Pending,
    /// It has a node.
    Scheduled,
    /// The mesh's node agent has captured it, and says so.
    Captured,
    /// It runs, and has an address.
    Running,
    /// It takes connections.
    Ready,
    /// It is to end.
    Terminating,
    /// Its containers have ended.
    Ended,
}

/// What is told of a pod.
#[derive(Debug, Clone)]
pub(super) struct PodFacts {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) owner_uid: String,
    pub(super) address: String,
    pub(super) node: String,
    pub(super) node_address: String,
    pub(super) revision: String,
    pub(super) stage: Stage,
}

/// The name of a pod with this end.
pub(super) fn pod_name(end: &str) -> String {
    format!("{SERVICE}-{HASH}-{end}")
}

fn object(version: u64, mut value: Value) -> Object {
    value["metadata"]["resourceVersion"] = version.to_string().into();
    Object::of_value(&value)
}

/// A node of the size that the study had.
pub(super) fn node(version: u64, name: &str, number: usize, address: &str) -> Object {
    let zone = format!("region-1-{}", number % 3 + 1);
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": format!("kubelet has {reason}"),
            "lastHeartbeatTime": BEGINNING, "lastTransitionTime": BEGINNING,
        })
    };
    object(
        version,
        json!({
            "kind": "Node", "apiVersion": "v1",
            "metadata": {
                "name": name, "uid": format!("5f2d7a14-0000-4000-8000-{number:012}"), "creationTimestamp": BEGINNING,
                "labels": {
                    "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "kubernetes.io/hostname": name,
                    "node.kubernetes.io/instance-type": "Standard_D8ds_v5", "size": "small",
                    "topology.kubernetes.io/region": "region-1", "topology.kubernetes.io/zone": zone,
                },
                "annotations": {
                    "node.alpha.kubernetes.io/ttl": "0",
                    "volumes.kubernetes.io/controller-managed-attach-detach": "true",
                },
            },
            "spec": {"podCIDR": format!("10.{}.{}.0/24", 64 + number / 256, number % 256), "providerID": format!("lab://{name}")},
            "status": {
                "capacity": {"cpu": "8", "memory": "32863588Ki", "pods": "110", "ephemeral-storage": "129886128Ki"},
                "allocatable": {"cpu": "7820m", "memory": "29347172Ki", "pods": "110", "ephemeral-storage": "119703055367"},
                "conditions": [
                    condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                    condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                    condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                    condition("Ready", "True", "KubeletReady"),
                ],
                "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
                "nodeInfo": {
                    "kernelVersion": "6.8.0", "osImage": "Ubuntu 24.04 LTS", "containerRuntimeVersion": "containerd://2.1.4",
                    "kubeletVersion": "v1.34.0", "operatingSystem": "linux", "architecture": "amd64",
                },
            },
        }),
    )
}

/// A namespace. `group` is the label that is changed; those without are not in the mesh.
pub(super) fn namespace(version: u64, name: &str, group: Option<usize>) -> Object {
    let mut labels = json!({"kubernetes.io/metadata.name": name});
    if let Some(group) = group {
        labels["scenario"] = "many-svc".into();
        labels["policy-group"] = group.to_string().into();
        labels["istio.io/dataplane-mode"] = "ambient".into();
    }
    object(
        version,
        json!({
            "kind": "Namespace", "apiVersion": "v1",
            "metadata": {
                "name": name, "uid": format!("5f2d7a15-0000-4000-8000-{name:0>12}"), "labels": labels,
                "creationTimestamp": BEGINNING,
            },
            "spec": {"finalizers": ["kubernetes"]},
            "status": {"phase": "Active"},
        }),
    )
}

/// The account of a namespace's pods.
pub(super) fn service_account(version: u64, namespace: &str) -> Object {
    object(
        version,
        json!({
            "kind": "ServiceAccount", "apiVersion": "v1",
            "metadata": {
                "name": ACCOUNT, "namespace": namespace, "uid": format!("5f2d7a16-0000-4000-8000-{namespace:0>12}"),
                "creationTimestamp": BEGINNING,
            },
        }),
    )
}

/// The service of a namespace.
pub(super) fn service(version: u64, namespace: &str, address: &str) -> Object {
    object(
        version,
        json!({
            "kind": "Service", "apiVersion": "v1",
            "metadata": {
                "name": SERVICE, "namespace": namespace, "uid": format!("5f2d7a17-0000-4000-8000-{namespace:0>12}"),
                "creationTimestamp": BEGINNING, "labels": {"app": SERVICE},
            },
            "spec": {
                "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
                "selector": {"app": SERVICE},
                "ports": [{"name": "http-web", "port": PORT, "targetPort": PORT, "protocol": "TCP"}],
            },
            "status": {"loadBalancer": {}},
        }),
    )
}

/// Endpoints of a service, as the API server's own controller writes them.
pub(super) fn slice(version: u64, namespace: &str, name: &str, pods: &[PodFacts]) -> Object {
    let endpoint = |pod: &PodFacts| {
        let (ready, ends) = (pod.stage == Stage::Ready, pod.stage >= Stage::Terminating);
        json!({
            "addresses": [pod.address],
            "conditions": {"ready": ready, "serving": ready || pod.stage == Stage::Terminating, "terminating": ends},
            "nodeName": pod.node,
            "targetRef": {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
        })
    };
    object(
        version,
        json!({
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
            "metadata": {
                "name": name, "namespace": namespace, "creationTimestamp": BEGINNING, "generateName": format!("{SERVICE}-"),
                "uid": format!("5f2d7a18-0000-4000-8000-{namespace:0>12}"),
                "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": BEGINNING},
                "labels": {
                    "app": SERVICE, "kubernetes.io/service-name": SERVICE,
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                },
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Service", "name": SERVICE, "controller": true, "blockOwnerDeletion": true,
                    "uid": format!("5f2d7a17-0000-4000-8000-{namespace:0>12}"),
                }],
            },
            "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
            "ports": [{"name": "http-web", "port": PORT, "protocol": "TCP"}],
        }),
    )
}

/// A pod of a service.
pub(super) fn pod(version: u64, pod: &PodFacts) -> Object {
    let stage = pod.stage;
    let mut metadata = json!({
        "name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "creationTimestamp": BEGINNING,
        "generateName": format!("{SERVICE}-{HASH}-"),
        "labels": {"app": SERVICE, MARK_LABEL: pod.revision, "pod-template-hash": HASH},
        "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "42422"},
        "ownerReferences": [{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{SERVICE}-{HASH}"), "uid": pod.owner_uid,
            "controller": true, "blockOwnerDeletion": true,
        }],
        "managedFields": managed_fields(stage),
    });
    if stage >= Stage::Captured {
        metadata["annotations"]["ambient.istio.io/redirection"] = "enabled".into();
    }
    if stage >= Stage::Terminating {
        metadata["deletionTimestamp"] = BEGINNING.into();
        metadata["deletionGracePeriodSeconds"] = 30.into();
    }
    let mut spec = spec();
    if stage >= Stage::Scheduled {
        spec["nodeName"] = pod.node.as_str().into();
    }
    object(
        version,
        json!({
            "kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec, "status": status(pod),
        }),
    )
}

fn spec() -> Value {
    let not_ready =
        |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
    json!({
        "serviceAccountName": ACCOUNT, "serviceAccount": ACCOUNT, "restartPolicy": "Always", "dnsPolicy": "ClusterFirst",
        "terminationGracePeriodSeconds": 30, "schedulerName": "default-scheduler", "enableServiceLinks": true,
        "preemptionPolicy": "PreemptLowerPriority", "priority": 0, "securityContext": {},
        "nodeSelector": {"size": "small"},
        "containers": [{
            "name": "perf-test", "image": "gcr.io/istio-testing/isotope:0.0.3", "imagePullPolicy": "IfNotPresent",
            "args": ["--max-idle-connections-per-host=32"],
            "env": [{"name": "SERVICE_NAME", "value": SERVICE}],
            "ports": [{"name": "http-web", "containerPort": PORT, "protocol": "TCP"}, {"containerPort": 42422, "protocol": "TCP"}],
            "resources": {"requests": {"cpu": "50m"}},
            "lifecycle": {"preStop": {"sleep": {"seconds": 10}}},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "volumeMounts": [
                {"name": "config-volume", "mountPath": "/etc/config"},
                {"name": "kube-api-access-x7k2p", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true},
            ],
        }],
        "volumes": [
            {"name": "config-volume", "configMap": {"name": "service-graph-config", "defaultMode": 420,
                "items": [{"key": "service-graph", "path": "service-graph.yaml"}]}},
            {"name": "kube-api-access-x7k2p", "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
            ]}},
        ],
        "tolerations": [not_ready("node.kubernetes.io/not-ready"), not_ready("node.kubernetes.io/unreachable")],
    })
}

fn status(pod: &PodFacts) -> Value {
    let stage = pod.stage;
    let condition = |kind: &str, holds: bool| {
        let status = if holds { "True" } else { "False" };
        json!({"type": kind, "status": status, "lastProbeTime": null, "lastTransitionTime": BEGINNING})
    };
    if stage < Stage::Scheduled {
        return json!({"phase": "Pending", "qosClass": "Burstable"});
    }
    if stage < Stage::Running {
        let conditions = [condition("PodScheduled", true)];
        return json!({"phase": "Pending", "qosClass": "Burstable", "conditions": conditions});
    }
    let ready = matches!(stage, Stage::Ready | Stage::Terminating);
    let state = if stage == Stage::Ended {
        json!({"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": BEGINNING, "finishedAt": BEGINNING}})
    } else {
        json!({"running": {"startedAt": BEGINNING}})
    };
    json!({
        "phase": "Running", "qosClass": "Burstable", "startTime": BEGINNING,
        "hostIP": pod.node_address, "hostIPs": [{"ip": pod.node_address}],
        "podIP": pod.address, "podIPs": [{"ip": pod.address}],
        "conditions": [
            condition("PodReadyToStartContainers", stage != Stage::Ended), condition("Initialized", true),
            condition("Ready", ready), condition("ContainersReady", ready), condition("PodScheduled", true),
        ],
        "containerStatuses": [{
            "name": "perf-test", "ready": ready, "started": stage != Stage::Ended, "restartCount": 0, "lastState": {},
            "state": state, "image": "gcr.io/istio-testing/isotope:0.0.3",
            "imageID": "gcr.io/istio-testing/isotope@sha256:9f5b0d1b8f1e0a8a4c4b8f7f1d1c7f3b2a1e6d5c4b3a29181706f5e4d3c2b1a0",
            "containerID": format!("containerd://{:0>64}", pod.uid.replace('-', "")),
        }],
    })
}

/// Who set which field: a third of what a pod is on the wire.
fn managed_fields(stage: Stage) -> Value {
    let empty = || json!({});
    let of_controller = json!({
        "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1", "time": BEGINNING,
        "fieldsType": "FieldsV1", "fieldsV1": {
            "f:metadata": {
                "f:annotations": {".": empty(), "f:prometheus.io/scrape": empty(), "f:prometheus.io/port": empty()},
                "f:generateName": empty(),
                "f:labels": {".": empty(), "f:app": empty(), "f:pod-template-hash": empty(), "f:version": empty()},
                "f:ownerReferences": {".": empty()},
            },
            "f:spec": {
                "f:containers": {"k:{\"name\":\"perf-test\"}": {
                    ".": empty(), "f:args": empty(), "f:image": empty(), "f:imagePullPolicy": empty(), "f:name": empty(),
                    "f:ports": {".": empty(), "k:{\"containerPort\":8080,\"protocol\":\"TCP\"}": {".": empty(), "f:containerPort": empty(), "f:name": empty(), "f:protocol": empty()}},
                    "f:resources": {".": empty(), "f:requests": {".": empty(), "f:cpu": empty()}},
                    "f:volumeMounts": {".": empty()},
                }},
                "f:dnsPolicy": empty(), "f:nodeSelector": empty(), "f:restartPolicy": empty(), "f:schedulerName": empty(),
                "f:terminationGracePeriodSeconds": empty(), "f:volumes": {".": empty()},
            },
        },
    });
    let mut all = vec![of_controller];
    if stage >= Stage::Running {
        let condition =
            || json!({".": {}, "f:lastProbeTime": {}, "f:lastTransitionTime": {}, "f:status": {}, "f:type": {}});
        all.push(json!({
            "manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": BEGINNING, "subresource": "status",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {
                "f:conditions": {
                    "k:{\"type\":\"ContainersReady\"}": condition(), "k:{\"type\":\"Initialized\"}": condition(),
                    "k:{\"type\":\"Ready\"}": condition(),
                },
                "f:containerStatuses": {}, "f:hostIP": {}, "f:hostIPs": {}, "f:phase": {}, "f:podIP": {},
                "f:podIPs": {".": {}}, "f:startTime": {},
            }},
        }));
    }
    all.into()
}
