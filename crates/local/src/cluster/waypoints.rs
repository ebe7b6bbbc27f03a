//! What a cluster's controller would make of a Gateway that is a waypoint: a Deployment, a Service and a ServiceAccount, all
//! with the Gateway's name.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use leno_model::{HBONE_PORT, ports, settings};
use leno_objects::{
    Gateway, GatewayClass, Kind, Labels, Mode, ObjectKey, WAYPOINT_FORWARD_CLIENT_CERT, WAYPOINT_NODE_SELECTOR, decode,
};
use serde_json::{Value, json};

use crate::files::{Manifests, Sourced};

/// Label of a waypoint's parts, with the Gateway's name.
const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
/// Label of what a controller made for a Gateway.
const MANAGED: (&str, &str) = ("gateway.istio.io/managed", "leno.mesh-waypoint-controller");

/// Label of a node, with its name.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// What a waypoint's process needs of its surroundings.
#[derive(Debug)]
pub(crate) struct Surroundings {
    /// The program that has the role.
    pub program: PathBuf,
    /// Where the control plane is.
    pub control: SocketAddr,
    /// The certificates that the control plane's chains to, PEM.
    pub roots: String,
    pub cluster_domain: Arc<str>,
    pub ipv6: bool,
    /// Variables of the supervisor that are handed on as they are.
    pub inherited: Vec<(String, String)>,
}

/// The Gateways among `manifests` that are waypoints and can be one.
pub(crate) fn waypoints(manifests: &Manifests) -> Vec<(ObjectKey, Gateway)> {
    let class = |gateway: &Gateway| {
        let key = ObjectKey::new(Kind::GatewayClass, "", gateway.spec.gateway_class_name.as_str());
        manifests.objects.get(&key).and_then(|sourced| GatewayClass::of(&sourced.object).cloned())
    };
    let is_waypoint =
        |gateway: &&Gateway| gateway.is_waypoint(class(gateway).as_ref()) && gateway.hbone_listener().is_some();
    let gateways = manifests.objects.iter().filter_map(|(key, sourced)| Some((key, Gateway::of(&sourced.object)?)));
    gateways.filter(|(_, gateway)| is_waypoint(gateway)).map(|(key, gateway)| (key.clone(), gateway.clone())).collect()
}

/// Adds the parts of one waypoint, whose process has `token`, unless the manifests have parts with these names.
///
/// # Errors
/// If its Gateway has a name or labels that the parts can't have, or asks for no number of pods, or for a node that there is not.
pub(crate) fn add(
    manifests: &mut Manifests,
    (key, gateway): (&ObjectKey, &Gateway),
    nodes: &[&str],
    token: &str,
    around: &Surroundings,
) -> Result<(), String> {
    let replicas = gateway.waypoint_replicas()?.unwrap_or(1);
    let (node, said) = node(gateway)?;
    if let Some(node) = node.filter(|node| !nodes.contains(node)) {
        let list = nodes.join(", ");
        return Err(format!("annotation {WAYPOINT_NODE_SELECTOR}: there is no node {node}; the nodes are {list}"));
    }
    manifests.warnings.extend(said.map(|said| format!("{}{key}: {said}", manifests.place(key))));
    let parts = [
        (Kind::ServiceAccount, account(gateway)),
        (Kind::Service, service(gateway)),
        (Kind::Deployment, deployment(gateway, (replicas, node), token, around)),
    ];
    for (kind, part) in parts {
        let key = ObjectKey::new(kind, gateway.metadata.namespace.clone(), gateway.metadata.name.clone());
        let object = decode(kind, Mode::Strict, part).map_err(|error| error.to_string())?.object;
        manifests.objects.entry(key).or_insert_with(|| Sourced { object: Arc::new(object), origin: None });
    }
    Ok(())
}

/// Whether a pod with these labels is a waypoint.
pub(crate) fn is_pod_of_one(labels: &Labels) -> bool {
    labels.get(MANAGED.0).is_some_and(|by| **by == *MANAGED.1)
}

/// The Gateway that a pod with these labels is a waypoint of.
pub(crate) fn gateway_of(labels: &Labels) -> Option<&str> {
    labels.get(GATEWAY_NAME).filter(|_| is_pod_of_one(labels)).map(|name| &**name)
}

fn metadata(gateway: &Gateway) -> Value {
    let mut labels: serde_json::Map<_, _> =
        gateway.spec.infrastructure.labels.iter().map(|(key, value)| (key.to_string(), json!(&**value))).collect();
    labels.insert(GATEWAY_NAME.to_owned(), json!(&*gateway.metadata.name));
    labels.insert(MANAGED.0.to_owned(), json!(MANAGED.1));
    json!({"name": &*gateway.metadata.name, "namespace": &*gateway.metadata.namespace, "labels": labels})
}

fn account(gateway: &Gateway) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(gateway)})
}

fn service(gateway: &Gateway) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(gateway),
        "spec": {
            "selector": {GATEWAY_NAME: &*gateway.metadata.name},
            "ports": [
                {"name": "status-port", "port": ports::READINESS},
                {"name": "mesh", "port": HBONE_PORT, "appProtocol": "hbone"},
            ],
        },
    })
}

/// The node that its pods are to run on, and what is said of labels that a stage's nodes don't have.
fn node(gateway: &Gateway) -> Result<(Option<&str>, Option<String>), String> {
    let labels = gateway.waypoint_node_selector()?;
    let (names, others): (Vec<_>, Vec<_>) = labels.into_iter().partition(|(label, _)| *label == HOSTNAME);
    let node = match names[..] {
        [] => None,
        [(_, node)] => Some(node),
        _ => return Err(format!("annotation {WAYPOINT_NODE_SELECTOR} names {HOSTNAME} more than once")),
    };
    let others: Vec<String> = others.iter().map(|(label, value)| format!("{label}={value}")).collect();
    let said = (!others.is_empty()).then(|| {
        format!(
            "annotation {WAYPOINT_NODE_SELECTOR}: {} has no effect on a stage, whose nodes have no label but {HOSTNAME}",
            others.join(",")
        )
    });
    Ok((node, said))
}

fn deployment(gateway: &Gateway, (replicas, node): (u16, Option<&str>), token: &str, around: &Surroundings) -> Value {
    let mut template = metadata(gateway);
    if let Some(template) = template.as_object_mut() {
        template.remove("name");
        template.remove("namespace");
        // Its traffic is its own business: it speaks to the mesh itself.
        template["labels"]["istio.io/dataplane-mode"] = json!("none");
    }
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(gateway),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {GATEWAY_NAME: &*gateway.metadata.name}},
            "template": {
                "metadata": template,
                "spec": {
                    "nodeName": node.unwrap_or_default(),
                    "serviceAccountName": &*gateway.metadata.name,
                    "terminationGracePeriodSeconds": 30,
                    "containers": [{
                        "name": "waypoint",
                        "command": [around.program.to_string_lossy(), "waypoint"],
                        "env": environment(gateway, token, around),
                        "readinessProbe": {
                            "httpGet": {"path": "/healthz/ready", "port": ports::READINESS},
                            "periodSeconds": 1,
                        },
                    }],
                },
            },
        },
    })
}

fn environment(gateway: &Gateway, token: &str, around: &Surroundings) -> Vec<Value> {
    let fact = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let value = |name: &str, value: &str| json!({"name": name, "value": value});
    let control = format!("https://{}", around.control);
    let mut all = vec![
        fact("NODE_NAME", "spec.nodeName"),
        fact(settings::POD_NAME, "metadata.name"),
        fact(settings::POD_NAMESPACE, "metadata.namespace"),
        fact("SERVICE_ACCOUNT", "spec.serviceAccountName"),
        fact("INSTANCE_IP", "status.podIP"),
        value("XDS_ADDRESS", &control),
        value("XDS_ROOT_CA", &around.roots),
        value("AUTH_TOKEN", token),
        value(settings::CLUSTER_ID, settings::DEFAULT_CLUSTER_ID),
        value(settings::CLUSTER_DOMAIN, &around.cluster_domain),
        value("IPV6_ENABLED", &around.ipv6.to_string()),
    ];
    all.extend(around.inherited.iter().map(|(name, text)| value(name, text)));
    if let Some(wanted) = gateway.metadata.annotation(WAYPOINT_FORWARD_CLIENT_CERT) {
        all.retain(|variable| variable["name"] != settings::FORWARD_CLIENT_CERT);
        all.push(value(settings::FORWARD_CLIENT_CERT, &(wanted == "true").to_string()));
    }
    all
}

/// Variables of the supervisor that a waypoint inherits: what tunes it, and what every process needs.
pub(crate) fn inherited(variables: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    let tuning = leno_proxy::config::tuning::<leno_waypoint::Config>();
    let is_inherited = |name: &str| matches!(name, "RUST_LOG" | "RUST_BACKTRACE") || tuning.iter().any(|it| it == name);
    variables.filter(|(name, _)| is_inherited(name)).collect()
}

#[cfg(test)]
#[path = "waypoints_tests.rs"]
mod tests;
