//! What a control plane may do at the API server: all that it needs, and nothing else. The installation grants this, and
//! a test holds what the control plane asks for to it.

/// A permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Resources, with subresources after a slash.
    pub resources: &'static [&'static str],
    /// Names of the only objects that it is about; empty for all.
    pub names: &'static [&'static str],
    /// What may be done.
    pub verbs: &'static [&'static str],
}

const fn rule(
    group: &'static str,
    resources: &'static [&'static str],
    names: &'static [&'static str],
    verbs: &'static [&'static str],
) -> Rule {
    Rule { group, resources, names, verbs }
}

/// In the whole cluster (a ClusterRole).
pub const CLUSTER: &[Rule] = &[
    rule("", &["namespaces", "nodes", "pods", "serviceaccounts", "services"], &[], &["list", "watch"]),
    rule("discovery.k8s.io", &["endpointslices"], &[], &["list", "watch"]),
    rule(
        "security.istio.io",
        &["authorizationpolicies", "peerauthentications", "requestauthentications"],
        &[],
        &["get", "list", "watch"],
    ),
    rule("networking.istio.io", &["destinationrules", "virtualservices"], &[], &["list", "watch"]),
    rule("gateway.networking.k8s.io", &["gateways", "gatewayclasses"], &[], &["get", "list", "watch"]),
    rule(
        "gateway.networking.k8s.io",
        &["httproutes", "grpcroutes", "tlsroutes", "tcproutes", "referencegrants"],
        &[],
        &["get", "list", "watch"],
    ),
    rule("gateway.networking.k8s.io", &["gateways/status", "gatewayclasses/status"], &[], &["patch"]),
    rule(
        "gateway.networking.k8s.io",
        &["httproutes/status", "grpcroutes/status", "tlsroutes/status", "tcproutes/status"],
        &[],
        &["patch"],
    ),
    rule(
        "security.istio.io",
        &["authorizationpolicies/status", "peerauthentications/status", "requestauthentications/status"],
        &[],
        &["patch"],
    ),
    rule("", &["events"], &[], &["create"]),
    rule("authentication.k8s.io", &["tokenreviews"], &[], &["create"]),
];

/// In the whole cluster, to make waypoints out of Gateways (a ClusterRole of its own, which an installation without them
/// leaves out). What of that name belongs to nobody's Gateway is not touched, so it is looked at first.
pub const WAYPOINTS: &[Rule] = &[
    rule("", &["services", "serviceaccounts"], &[], &["get", "create", "patch"]),
    rule("apps", &["deployments"], &[], &["get", "create", "patch"]),
    rule("policy", &["poddisruptionbudgets"], &[], &["get", "create", "patch"]),
    rule("networking.k8s.io", &["networkpolicies"], &[], &["get", "create", "patch"]),
    rule("gateway.networking.k8s.io", &["gatewayclasses"], &[], &["create"]),
];

/// In its own namespace (a Role). Creating can't be narrowed to names.
pub const NAMESPACE: &[Rule] = &[
    rule("", &["secrets", "configmaps"], &[], &["create"]),
    rule("", &["secrets"], &["cacerts"], &["get", "list", "watch"]),
    rule("", &["secrets"], &["leno-ca"], &["get", "list", "watch", "update"]),
    rule("", &["configmaps"], &["leno-ca-root"], &["get", "list", "watch", "update"]),
    rule("coordination.k8s.io", &["leases"], &[], &["create"]),
    rule("coordination.k8s.io", &["leases"], &["leno-control"], &["get", "update"]),
];

#[cfg(test)]
#[path = "rbac_tests.rs"]
mod tests;
