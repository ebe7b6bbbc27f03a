//! Where the API server keeps the kinds of objects that an installation has.

use serde_json::Value;

/// A kind: its name, the path of its API group, its plural, and whether its objects belong to a namespace.
pub(super) struct Resource {
    pub(super) kind: &'static str,
    group: &'static str,
    plural: &'static str,
    pub(super) namespaced: bool,
}

const fn resource(kind: &'static str, group: &'static str, plural: &'static str, namespaced: bool) -> Resource {
    Resource { kind, group, plural, namespaced }
}

/// All kinds of the charts, in the order of removal: first what runs, then what it needs.
pub(super) const RESOURCES: [Resource; 15] = [
    resource("Deployment", "apis/apps/v1", "deployments", true),
    resource("DaemonSet", "apis/apps/v1", "daemonsets", true),
    resource("Service", "api/v1", "services", true),
    resource("RoleBinding", "apis/rbac.authorization.k8s.io/v1", "rolebindings", true),
    resource("Role", "apis/rbac.authorization.k8s.io/v1", "roles", true),
    resource("ClusterRoleBinding", "apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", false),
    resource("ClusterRole", "apis/rbac.authorization.k8s.io/v1", "clusterroles", false),
    resource(
        "ValidatingAdmissionPolicyBinding",
        "apis/admissionregistration.k8s.io/v1",
        "validatingadmissionpolicybindings",
        false,
    ),
    resource("ValidatingAdmissionPolicy", "apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicies", false),
    resource("ServiceAccount", "api/v1", "serviceaccounts", true),
    resource("ConfigMap", "api/v1", "configmaps", true),
    resource("PodDisruptionBudget", "apis/policy/v1", "poddisruptionbudgets", true),
    resource("NetworkPolicy", "apis/networking.k8s.io/v1", "networkpolicies", true),
    resource("CustomResourceDefinition", "apis/apiextensions.k8s.io/v1", "customresourcedefinitions", false),
    resource("Namespace", "api/v1", "namespaces", false),
];

impl Resource {
    pub(super) fn of(kind: &str) -> Option<&'static Self> {
        RESOURCES.iter().find(|resource| resource.kind == kind)
    }

    /// The path of all of them, or of those in one namespace.
    pub(super) fn all(&self, namespace: Option<&str>) -> String {
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => format!("/{}/namespaces/{namespace}/{}", self.group, self.plural),
            None => format!("/{}/{}", self.group, self.plural),
        }
    }

    /// The path of one of them.
    pub(super) fn one(&self, namespace: &str, name: &str) -> String {
        format!("{}/{name}", self.all(Some(namespace)))
    }

    /// The path of this object, which is one of them.
    pub(super) fn path(&self, object: &Value) -> String {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        self.one(&text("namespace"), &text("name"))
    }
}
