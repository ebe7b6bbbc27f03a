//! What is in the manifests and not in force: kinds and fields that a person would believe in, with what does not happen.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use leno_model::Name;
use leno_objects::{
    DEFAULT_NAMESPACE, Gateway, GatewayClass, Kind, LabelExpression, LabelOperator, LabelSelector, NotInForce, Object,
    ObjectKey,
};
use serde_json::Value;

use crate::files::origin::Origin;

/// Something that is not in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOver {
    /// Where it was written.
    pub origin: Origin,
    /// The object, such as `NetworkPolicy shop/deny-all`.
    pub object: String,
    /// Path of the field that is meant; empty for the whole object.
    pub field: String,
    /// What does not happen, as the end of a sentence.
    pub effect: String,
    /// Whom it would concern.
    pub concerns: Concerns,
}

/// What does not happen by a gateway at the edge of a cluster.
const NOT_LED_IN: &str = "nothing from outside is led in by it";

/// Which pods something would concern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Concerns {
    /// None that is known.
    Nobody,
    /// Those that this object is or makes.
    Of(ObjectKey),
    /// Those of a namespace with such labels.
    Selected(Name, LabelSelector),
    /// Those behind one of these services, by namespace and name.
    Services(Vec<(Name, Name)>),
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&sentence(&self.origin.to_string(), &self.object, &self.field, &self.effect))
    }
}

/// What is told of something that is not in force.
pub(crate) fn sentence(place: &str, object: &str, field: &str, effect: &str) -> String {
    if field.is_empty() {
        format!("{place}: {object} is passed over: {effect}")
    } else {
        format!("{place}: {object}: {field} has no effect: {effect}")
    }
}

impl PassedOver {
    /// A field of an object that is understood.
    pub(super) fn field(origin: &Origin, key: &ObjectKey, field: NotInForce) -> Self {
        Self {
            origin: origin.clone(),
            object: key.to_string(),
            field: field.path,
            effect: field.effect.to_owned(),
            concerns: Concerns::Of(key.clone()),
        }
    }

    /// An object of a kind that is not understood, if one would believe in it.
    pub(super) fn object(origin: &Origin, version: &str, kind: &str, body: &Value) -> Option<Self> {
        let mut effect = effect(version, kind)?.to_owned();
        let group = |version: &str| version.split_once('/').map(|(group, _)| group.to_owned());
        let known = Kind::ALL.iter().find(|known| known.as_str() == kind).map(|known| known.api_version());
        if let Some(known) = known.filter(|known| group(known) == group(version)) {
            write!(effect, "; write apiVersion {known}").ok();
        }
        let object = object_name(kind, body);
        Some(Self { origin: origin.clone(), object, field: String::new(), effect, concerns: concerns(kind, body) })
    }
}

/// `Kind namespace/name` of an object that is not understood.
pub(super) fn object_name(kind: &str, body: &Value) -> String {
    let metadata = |field: &str| body.get("metadata").and_then(|metadata| metadata.get(field)).and_then(Value::as_str);
    match (metadata("name"), metadata("namespace")) {
        (Some(name), Some(namespace)) => format!("{kind} {namespace}/{name}"),
        (Some(name), None) if !is_of_cluster(kind) => format!("{kind} {DEFAULT_NAMESPACE}/{name}"),
        (Some(name), None) => format!("{kind} {name}"),
        (None, _) => format!("{kind} without a name"),
    }
}

/// Kinds whose objects belong to no namespace.
fn is_of_cluster(kind: &str) -> bool {
    const OTHERS: [&str; 9] = [
        "AdminNetworkPolicy",
        "BaselineAdminNetworkPolicy",
        "CustomResourceDefinition",
        "GlobalNetworkPolicy",
        "IngressClass",
        "PersistentVolume",
        "PriorityClass",
        "RuntimeClass",
        "StorageClass",
    ];
    OTHERS.contains(&kind) || kind.starts_with("Cluster") || kind.ends_with("WebhookConfiguration")
}

/// What does not happen although there is such an object; `None` for kinds nobody would miss.
fn effect(version: &str, kind: &str) -> Option<&'static str> {
    let linkerd = version.starts_with("policy.linkerd.io/");
    Some(match kind {
        _ if kind.ends_with("NetworkPolicy") => {
            "traffic is NOT restricted by it; write an AuthorizationPolicy to restrict it"
        }
        "AuthorizationPolicy"
        | "MeshTLSAuthentication"
        | "NetworkAuthentication"
        | "Server"
        | "ServerAuthorization"
            if linkerd =>
        {
            "traffic is NOT restricted by it; write an AuthorizationPolicy of security.istio.io/v1 to restrict it"
        }
        "TCPRoute" | "TLSRoute" | "UDPRoute" => "traffic is NOT routed by it",
        "Gateway" | "Ingress" => NOT_LED_IN,
        "ServiceEntry" | "WorkloadEntry" | "WorkloadGroup" => "what it describes is NOT known to the mesh",
        "Sidecar" | "EnvoyFilter" | "WasmPlugin" | "ProxyConfig" | "Telemetry" => "it configures NOTHING here",
        "DaemonSet" => "its pods are NOT started; write one Pod with a nodeName for each node",
        "ReplicaSet" | "ReplicationController" | "Rollout" => "its pods are NOT started; write a Deployment",
        "CronJob" => "its jobs are NOT started; write a Job to run it once",
        "HorizontalPodAutoscaler" | "VerticalPodAutoscaler" | "ScaledObject" => {
            "the number of pods does NOT follow the load; `leno scale` changes it"
        }
        "PersistentVolumeClaim" => "its directory goes with the stage, and what is in it is LOST then",
        "PodDisruptionBudget" => "pods are ended without regard to it",
        "ResourceQuota" | "LimitRange" => "processor time and memory are NOT limited",
        "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration" | "ValidatingAdmissionPolicy" => {
            "objects are NOT checked or changed by it"
        }
        _ => return None,
    })
}

/// The Gateways among objects that are started by nobody.
pub(super) fn gateways<'a>(objects: impl Iterator<Item = (&'a Object, &'a Origin)> + Clone) -> Vec<PassedOver> {
    let passed_over = |(object, origin): (&Object, &Origin)| {
        let gateway = Gateway::of(object)?;
        let mut classes = objects.clone().filter_map(|(object, _)| GatewayClass::of(object));
        let class = classes.find(|class| *class.metadata.name == *gateway.spec.gateway_class_name);
        if gateway.is_waypoint(class) {
            return None;
        }
        Some(PassedOver {
            origin: origin.clone(),
            object: object.key().to_string(),
            field: String::new(),
            effect: NOT_LED_IN.to_owned(),
            concerns: Concerns::Nobody,
        })
    };
    objects.clone().filter_map(passed_over).collect()
}

/// The routes among objects that lead nothing anywhere, because nothing here is a parent of theirs.
pub(super) fn routes<'a>(objects: impl Iterator<Item = (&'a Object, &'a Origin)>) -> Vec<PassedOver> {
    let passed_over = |(object, origin): (&Object, &Origin)| {
        let parents = match object {
            Object::HTTPRoute(route) => &route.spec.parent_refs,
            Object::GRPCRoute(route) => &route.spec.parent_refs,
            Object::TLSRoute(route) => &route.spec.parent_refs,
            Object::TCPRoute(route) => &route.spec.parent_refs,
            _ => return None,
        };
        // Of these the control plane says what becomes of them.
        let is_told = |kind: Option<&str>| matches!(kind, Some("Service" | "ServiceEntry"));
        if parents.iter().any(|parent| is_told(parent.kind.as_deref())) {
            return None;
        }
        Some(PassedOver {
            origin: origin.clone(),
            object: object.key().to_string(),
            field: String::new(),
            effect: "traffic is NOT routed by it: none of its parentRefs is a Service (group: \"\", kind: Service)"
                .to_owned(),
            concerns: Concerns::Nobody,
        })
    };
    objects.filter_map(passed_over).collect()
}

fn concerns(kind: &str, body: &Value) -> Concerns {
    let text = |value: &Value| value.as_str().map(Name::from);
    let metadata = |field: &str| body.get("metadata").and_then(|metadata| metadata.get(field)).and_then(text);
    let namespace = metadata("namespace").unwrap_or_else(|| DEFAULT_NAMESPACE.into());
    let spec = |field: &str| body.get("spec").and_then(|spec| spec.get(field));
    if kind.ends_with("NetworkPolicy") || kind == "RequestAuthentication" {
        if is_of_cluster(kind) || kind.starts_with("CiliumClusterwide") {
            return Concerns::Nobody;
        }
        let selector = ["podSelector", "endpointSelector", "selector"].iter().find_map(|field| spec(field));
        return Concerns::Selected(namespace, selector.map(label_selector).unwrap_or_default());
    }
    let list = |field: &str| spec(field).and_then(Value::as_array).into_iter().flatten();
    let hosts = spec("host").into_iter().chain(list("hosts")).filter_map(Value::as_str);
    let parents = list("parentRefs").filter(|parent| parent.get("kind").and_then(Value::as_str) == Some("Service"));
    let named = parents.filter_map(|parent| {
        let of = |field: &str| parent.get(field).and_then(text);
        Some((of("namespace").unwrap_or_else(|| namespace.clone()), of("name")?))
    });
    let services: Vec<(Name, Name)> = hosts.map(|host| service(host, &namespace)).chain(named).collect();
    if services.is_empty() { Concerns::Nobody } else { Concerns::Services(services) }
}

/// The service that a host name means, which may be a short one.
fn service(host: &str, namespace: &Name) -> (Name, Name) {
    let mut labels = host.split('.');
    let name = labels.next().unwrap_or_default();
    (labels.next().map_or_else(|| namespace.clone(), Name::from), name.into())
}

fn label_selector(value: &Value) -> LabelSelector {
    let text = |value: &Value| value.as_str().map(str::to_owned).unwrap_or_default();
    let labels = value.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let match_labels: BTreeMap<Name, Name> =
        labels.map(|(k, v)| (k.as_str().into(), text(v).as_str().into())).collect();
    let expressions = value.get("matchExpressions").and_then(Value::as_array).into_iter().flatten();
    let expression = |value: &Value| {
        let operator = match value.get("operator").and_then(Value::as_str)? {
            "In" => LabelOperator::In,
            "NotIn" => LabelOperator::NotIn,
            "Exists" => LabelOperator::Exists,
            "DoesNotExist" => LabelOperator::DoesNotExist,
            _ => return None,
        };
        let values = value.get("values").and_then(Value::as_array).into_iter().flatten().map(text).collect();
        Some(LabelExpression { key: text(value.get("key")?), operator, values })
    };
    LabelSelector {
        match_labels: match_labels.into_iter().collect(),
        match_expressions: expressions.filter_map(expression).collect(),
    }
}

/// Kinds of which a slip makes another one: the nearest that is understood.
pub(super) fn hint(version: &str, kind: &str) -> String {
    if let Some(near) = Kind::ALL.iter().find(|known| known.as_str() == kind && known.api_version() != version) {
        return format!("; did you mean apiVersion {}?", near.api_version());
    }
    let meant = leno_objects::did_you_mean(kind, Kind::ALL.iter().map(|known| known.as_str()));
    meant.map_or_else(String::new, |meant| format!("; did you mean kind {meant}?"))
}

#[cfg(test)]
#[path = "passed_over_tests.rs"]
mod tests;
