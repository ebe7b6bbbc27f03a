//! The objects that a waypoint consists of: the installation's template, filled in for one Gateway.

use leno_model::settings::FORWARD_CLIENT_CERT;
use leno_objects::{
    Gateway, Labels, WAYPOINT_CLASS, WAYPOINT_CONTROLLER, WAYPOINT_CPU, WAYPOINT_FORWARD_CLIENT_CERT, WAYPOINT_MEMORY,
};
use serde_json::{Map, Value, json};

/// Annotations of a Gateway: what each of its pods is sure to get.
const REQUESTS: [(&str, &str); 2] = [(WAYPOINT_CPU, "cpu"), (WAYPOINT_MEMORY, "memory")];
/// Annotation of a waypoint's pods: the root certificates with which they begin. The pods read it as a file.
const ROOTS: &str = "leno.mesh/root-certificates";

/// The objects of `gateway`. `template` is a YAML list of objects with the words `@NAME@` and `@NAMESPACE@`.
///
/// # Errors
/// A sentence on what is wrong with the template, or with an annotation of the Gateway.
pub(super) fn parts(template: &str, gateway: &Gateway, roots: &str) -> Result<Vec<Value>, String> {
    let mut parts: Vec<Value> =
        serde_saphyr::from_str(template).map_err(|error| format!("the template of waypoints is no list: {error}"))?;
    let infrastructure = &gateway.spec.infrastructure;
    for part in &mut parts {
        fill(part, gateway);
        let metadata = &mut part["metadata"];
        metadata["namespace"] = (&*gateway.metadata.namespace).into();
        add(&mut metadata["labels"], &infrastructure.labels);
        add(&mut metadata["annotations"], &infrastructure.annotations);
        metadata["ownerReferences"] = json!([owner(gateway)]);
        if part["kind"] == "Deployment" {
            deployment(&mut part["spec"], gateway, roots)?;
        }
    }
    Ok(parts)
}

/// The class by which Gateways ask to be waypoints. No Gateway needs the object; people and other programs look for it.
pub(super) fn class(version: &str) -> Value {
    json!({
        "apiVersion": version, "kind": "GatewayClass",
        "metadata": {
            "name": WAYPOINT_CLASS,
            "labels": {"app.kubernetes.io/name": "leno-waypoint", "app.kubernetes.io/part-of": "leno"},
        },
        "spec": {"controllerName": WAYPOINT_CONTROLLER, "description": "Waypoints of the mesh, made by Leno"},
    })
}

fn owner(gateway: &Gateway) -> Value {
    json!({
        "apiVersion": leno_objects::Kind::Gateway.api_version(), "kind": "Gateway",
        "name": &*gateway.metadata.name, "uid": gateway.metadata.uid, "controller": true, "blockOwnerDeletion": false,
    })
}

fn deployment(spec: &mut Value, gateway: &Gateway, roots: &str) -> Result<(), String> {
    let infrastructure = &gateway.spec.infrastructure;
    let template = &mut spec["template"];
    add(&mut template["metadata"]["labels"], &infrastructure.labels);
    add(&mut template["metadata"]["annotations"], &infrastructure.annotations);
    template["metadata"]["annotations"][ROOTS] = roots.into();
    for (annotation, resource) in REQUESTS {
        if let Some(wanted) = gateway.metadata.annotation(annotation) {
            for container in template["spec"]["containers"].as_array_mut().into_iter().flatten() {
                container["resources"]["requests"][resource] = wanted.into();
            }
        }
    }
    if let Some(wanted) = gateway.metadata.annotation(WAYPOINT_FORWARD_CLIENT_CERT) {
        let variable = json!({"name": FORWARD_CLIENT_CERT, "value": (wanted == "true").to_string()});
        for container in template["spec"]["containers"].as_array_mut().into_iter().flatten() {
            match container["env"].as_array_mut() {
                Some(all) => {
                    all.retain(|one| one["name"] != FORWARD_CLIENT_CERT);
                    all.push(variable.clone());
                }
                None => container["env"] = json!([variable]),
            }
        }
    }
    for (label, value) in gateway.waypoint_node_selector()? {
        template["spec"]["nodeSelector"][label] = value.into();
    }
    if let Some(number) = gateway.waypoint_replicas()? {
        spec["replicas"] = number.into();
    }
    Ok(())
}

/// Writes the Gateway's name and namespace where the template has the words for them.
fn fill(value: &mut Value, gateway: &Gateway) {
    match value {
        Value::String(text) if text.contains('@') => {
            *text = text.replace("@NAMESPACE@", &gateway.metadata.namespace).replace("@NAME@", &gateway.metadata.name);
        }
        Value::Array(items) => items.iter_mut().for_each(|item| fill(item, gateway)),
        Value::Object(fields) => fields.values_mut().for_each(|field| fill(field, gateway)),
        _ => {}
    }
}

/// Adds labels or annotations; those of the template stay, because the mesh finds pods by them.
fn add(to: &mut Value, more: &Labels) {
    if to.is_null() {
        *to = Value::Object(Map::new());
    }
    if let Some(to) = to.as_object_mut() {
        for (key, value) in more {
            to.entry(key.to_string()).or_insert_with(|| (&**value).into());
        }
    }
}

/// Where the API server keeps a part.
///
/// # Errors
/// If the template has something that no waypoint needs.
pub(super) fn path(part: &Value) -> Result<String, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&part["apiVersion"]), text(&part["kind"]));
    let (prefix, plural) = match kind.as_str() {
        "ServiceAccount" => ("api", "serviceaccounts"),
        "Service" => ("api", "services"),
        "Deployment" => ("apis", "deployments"),
        "PodDisruptionBudget" => ("apis", "poddisruptionbudgets"),
        "NetworkPolicy" => ("apis", "networkpolicies"),
        other => return Err(format!("the template of waypoints has a {other:?}, which no waypoint needs")),
    };
    let metadata = &part["metadata"];
    let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
    Ok(format!("/{prefix}/{version}/namespaces/{namespace}/{plural}/{name}"))
}

/// Whether an object belongs to a Gateway.
pub(super) fn is_owned(object: &Value, gateway: &Gateway) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners
        .into_iter()
        .flatten()
        .any(|owner| owner["kind"] == "Gateway" && owner["uid"] == gateway.metadata.uid.as_str())
}
