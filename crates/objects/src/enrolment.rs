//! Which pods should be in the mesh, and which ones are.

use leno_model::Name;

use crate::meta::{Labels, ObjectMeta};

/// Label of a namespace or pod that adds it to the mesh or keeps it out.
pub const DATAPLANE_MODE: &str = "istio.io/dataplane-mode";
/// Label of a namespace, service or pod: the name of the Gateway that is its waypoint; `none` for no waypoint.
pub const USE_WAYPOINT: &str = "istio.io/use-waypoint";
/// Label beside [`USE_WAYPOINT`]: the Gateway's namespace, if it is another.
pub const USE_WAYPOINT_NAMESPACE: &str = "istio.io/use-waypoint-namespace";
/// Label of a Gateway or GatewayClass: which traffic passes the waypoint (see [`WaypointFor`](crate::WaypointFor)).
pub const WAYPOINT_FOR: &str = "istio.io/waypoint-for";
/// Annotation, with value `allowed`, of a Gateway, or of a Namespace, service or pod that uses one: what its waypoint serves
/// may also be reached around the waypoint.
pub const WAYPOINT_BYPASS: &str = "leno.mesh/waypoint-bypass";
/// Annotation of a Gateway: how many pods its waypoint is to have. Without it, whoever scales the Deployment decides.
pub const WAYPOINT_REPLICAS: &str = "leno.mesh/waypoint-replicas";
/// Annotation of a Gateway: the processor time that each pod of its waypoint requests.
pub const WAYPOINT_CPU: &str = "leno.mesh/waypoint-cpu";
/// Annotation of a Gateway: the memory that each pod of its waypoint requests.
pub const WAYPOINT_MEMORY: &str = "leno.mesh/waypoint-memory";
/// Annotation of a Gateway: the labels of the nodes that its waypoint's pods may run on, `LABEL=VALUE,LABEL=VALUE`.
pub const WAYPOINT_NODE_SELECTOR: &str = "leno.mesh/waypoint-node-selector";
/// Annotation, with value `true`, of a Gateway: its waypoint tells programs who calls, in `x-forwarded-client-cert`.
pub const WAYPOINT_FORWARD_CLIENT_CERT: &str = "leno.mesh/waypoint-forward-client-cert";
/// Annotation of an HTTPRoute or GRPCRoute: how many requests may follow it in a time, such as `100/s`.
pub const RATE_LIMIT: &str = "leno.mesh/rate-limit";
/// Annotation beside [`RATE_LIMIT`]: how many of them may come at once.
pub const RATE_LIMIT_BURST: &str = "leno.mesh/rate-limit-burst";
/// Annotation that a node agent writes when it has captured the pod's traffic. Peers may use tunnels to the pod only
/// then.
pub const REDIRECTION_ANNOTATION: &str = "ambient.istio.io/redirection";
/// The value of [`REDIRECTION_ANNOTATION`] for a captured pod.
pub const REDIRECTION_ENABLED: &str = "enabled";
/// Annotation of the agents' DaemonSet when the whole installation is removed: the node proxies go after the agents.
pub const UNINSTALLED_ANNOTATION: &str = "leno.mesh/uninstalled";

/// Annotation of an object that stands for a pod from a file of the kubelet's: the uid by which kubelet and runtime know the
/// pod. The object has another one.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// Whether a pod should be captured, given its namespace's labels. This is Istio's enrolment predicate (the agent's
/// default selector).
pub fn is_enrolled(pod: &ObjectMeta, namespace_labels: &Labels) -> bool {
    if &*pod.namespace == "kube-system" || pod.annotation("sidecar.istio.io/status").is_some() {
        return false;
    }
    match pod.label(DATAPLANE_MODE) {
        Some("ambient") => true,
        Some("none") => false,
        _ => namespace_labels.get(DATAPLANE_MODE).is_some_and(|mode| &**mode == "ambient"),
    }
}

/// The Gateway that labels name as waypoint, by namespace and name. `none` names none.
pub fn named_waypoint(labels: &Labels, own_namespace: &str) -> Option<(Name, Name)> {
    let gateway = labels.get(USE_WAYPOINT).filter(|name| &***name != "none")?;
    let namespace = labels.get(USE_WAYPOINT_NAMESPACE).cloned().unwrap_or_else(|| own_namespace.into());
    Some((namespace, gateway.clone()))
}

/// Whether an object says that a waypoint's users may be reached around it.
pub fn allows_bypass(metadata: &ObjectMeta) -> bool {
    metadata.annotation(WAYPOINT_BYPASS) == Some("allowed")
}

/// Whether a node agent reports that it has captured the pod.
pub fn is_captured(pod: &ObjectMeta) -> bool {
    pod.annotation(REDIRECTION_ANNOTATION) == Some(REDIRECTION_ENABLED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(labels: &[(&str, &str)]) -> ObjectMeta {
        let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into()));
        ObjectMeta { namespace: "shop".into(), labels: labels.collect(), ..ObjectMeta::default() }
    }

    #[test]
    fn the_pods_label_decides_over_its_namespaces() {
        let ambient = Labels::from_iter([(DATAPLANE_MODE.into(), "ambient".into())]);
        let none = Labels::new();
        assert!(is_enrolled(&pod(&[]), &ambient));
        assert!(!is_enrolled(&pod(&[]), &none));
        assert!(!is_enrolled(&pod(&[(DATAPLANE_MODE, "none")]), &ambient));
        assert!(is_enrolled(&pod(&[(DATAPLANE_MODE, "ambient")]), &none));
        let mut system = pod(&[(DATAPLANE_MODE, "ambient")]);
        system.namespace = "kube-system".into();
        assert!(!is_enrolled(&system, &ambient));
    }

    #[test]
    fn captured_is_what_the_agent_says() {
        let mut pod = pod(&[(DATAPLANE_MODE, "ambient")]);
        assert!(!is_captured(&pod));
        pod.annotations.insert(REDIRECTION_ANNOTATION.into(), REDIRECTION_ENABLED.into());
        assert!(is_captured(&pod));
    }
}
