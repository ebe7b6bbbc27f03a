//! Who is in the mesh: which pods are to be captured, and which are.

use crate::meta::{Labels, ObjectMeta};

/// Label by which a namespace or pod joins the mesh, or stays out.
pub const DATAPLANE_MODE: &str = "istio.io/dataplane-mode";
/// Annotation a node agent writes when the pod's traffic is captured: only then may peers tunnel
/// to it.
pub const REDIRECTION_ANNOTATION: &str = "ambient.istio.io/redirection";
/// Value of [`REDIRECTION_ANNOTATION`] that says so.
pub const REDIRECTION_ENABLED: &str = "enabled";

/// Whether a pod is to be captured, in a namespace with these labels: Istio's enrollment predicate (the
/// agent's default selector).
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

/// Whether a node agent says that it has captured the pod.
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
