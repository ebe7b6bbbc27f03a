//! Who may do what: Istio's AuthorizationPolicy and PeerAuthentication.

pub(crate) mod rules;

use std::collections::BTreeMap;

use super::decode::{object, word};
use super::meta::{Labels, ObjectMeta};
use super::scalars::{IpBlock, PortNumber};

object! {
    /// Which connections (and, through a waypoint, requests) are let in.
    pub struct AuthorizationPolicy {
        /// Name, namespace, and the annotation `istio.io/dry-run`.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// The policy. Absent means: allow nothing.
        spec: AuthorizationPolicySpec = "spec" (check rules::authorization_spec),
    }
    besides {
        /// What of the policy was not understood and is missing here ([`Mode::Lenient`](crate::Mode)): it means
        /// something stricter, then, than what is here.
        not_understood: Vec<String>,
    }
    silent ["apiVersion", "kind", "status"]
}

object! {
    /// What an AuthorizationPolicy says.
    pub struct AuthorizationPolicySpec {
        /// Which workloads; absent means all of the namespace.
        selector: Option<WorkloadSelector> = "selector",
        /// What it is attached to instead (one, old form).
        target_ref: Option<Box<PolicyTargetReference>> = "targetRef",
        /// What it is attached to instead.
        target_refs: Vec<PolicyTargetReference> = "targetRefs",
        /// What a match does.
        action: PolicyAction = "action",
        /// Any may match; none at all never does.
        rules: Vec<Rule> = "rules",
        /// External authoriser of action `CUSTOM`.
        provider: Option<ExtensionProvider> = "provider",
    }
}

word! {
    /// What a match does.
    pub enum PolicyAction {
        /// Lets pass.
        #[default]
        Allow = "ALLOW",
        /// Refuses.
        Deny = "DENY",
        /// Notes.
        Audit = "AUDIT",
        /// Asks somebody else.
        Custom = "CUSTOM",
    }
}

object! {
    /// Workloads by label.
    pub struct WorkloadSelector {
        /// Labels that must be there; empty selects all of the namespace.
        match_labels: Labels = "matchLabels" (check crate::meta::rules::labels),
    }
}

object! {
    /// An object a policy is attached to.
    pub struct PolicyTargetReference {
        /// API group; empty for the core group.
        group: String = "group",
        /// Kind.
        kind: String = "kind" (required),
        /// Name.
        name: String = "name" (required),
        /// Namespace.
        namespace: String = "namespace",
    }
}

object! {
    /// An external authoriser.
    pub struct ExtensionProvider {
        /// Name in the mesh configuration.
        name: String = "name" (required),
    }
}

object! {
    /// One rule: of `from`, of `to` and every one of `when` must hold. Empty holds always.
    pub struct Rule {
        /// Sources; one must match.
        from: Vec<From> = "from" (check rules::not_empty),
        /// Operations; one must match.
        to: Vec<To> = "to" (check rules::not_empty),
        /// Conditions; all must hold.
        when: Vec<When> = "when",
    }
}

object! {
    /// Wrapper around a source.
    pub struct From {
        /// The source.
        source: Source = "source" (required check rules::source),
    }
}

object! {
    /// Wrapper around an operation.
    pub struct To {
        /// The operation.
        operation: Operation = "operation" (required check rules::operation),
    }
}

object! {
    /// A source of traffic. Every field that has values must match one of them.
    pub struct Source {
        /// Peer identities, without `spiffe://`; `*` at either end stands for anything.
        principals: Vec<String> = "principals" (check rules::patterns),
        /// Not these.
        not_principals: Vec<String> = "notPrincipals" (check rules::patterns),
        /// JWT subjects: needs a waypoint.
        request_principals: Vec<String> = "requestPrincipals" (check rules::patterns),
        /// Not these.
        not_request_principals: Vec<String> = "notRequestPrincipals" (check rules::patterns),
        /// Peer namespaces.
        namespaces: Vec<String> = "namespaces" (check rules::patterns),
        /// Not these.
        not_namespaces: Vec<String> = "notNamespaces" (check rules::patterns),
        /// Peer service accounts, `account` or `namespace/account`.
        service_accounts: Vec<String> = "serviceAccounts" (check rules::service_accounts),
        /// Not these.
        not_service_accounts: Vec<String> = "notServiceAccounts" (check rules::service_accounts),
        /// Peer addresses.
        ip_blocks: Vec<IpBlock> = "ipBlocks",
        /// Not these.
        not_ip_blocks: Vec<IpBlock> = "notIpBlocks",
        /// Addresses before a proxy: needs a waypoint.
        remote_ip_blocks: Vec<IpBlock> = "remoteIpBlocks",
        /// Not these.
        not_remote_ip_blocks: Vec<IpBlock> = "notRemoteIpBlocks",
    }
}

object! {
    /// What is asked for. Every field that has values must match one of them.
    pub struct Operation {
        /// Host names: needs a waypoint.
        hosts: Vec<String> = "hosts" (check rules::patterns),
        /// Not these.
        not_hosts: Vec<String> = "notHosts" (check rules::patterns),
        /// Destination ports, as text.
        ports: Vec<String> = "ports" (check rules::ports),
        /// Not these.
        not_ports: Vec<String> = "notPorts" (check rules::ports),
        /// Methods: needs a waypoint.
        methods: Vec<String> = "methods" (check rules::patterns),
        /// Not these.
        not_methods: Vec<String> = "notMethods" (check rules::patterns),
        /// Paths: needs a waypoint.
        paths: Vec<String> = "paths" (check rules::patterns),
        /// Not these.
        not_paths: Vec<String> = "notPaths" (check rules::patterns),
    }
}

object! {
    /// A condition on one attribute.
    pub struct When {
        /// The attribute.
        key: String = "key" (required check rules::condition_key),
        /// One of these.
        values: Vec<String> = "values",
        /// None of these.
        not_values: Vec<String> = "notValues",
    }
}

object! {
    /// Whether a workload takes connections that carry no mesh identity.
    pub struct PeerAuthentication {
        /// Name and namespace.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// The policy.
        spec: PeerAuthenticationSpec = "spec" (check rules::peer_authentication_spec),
    }
    besides {
        /// What of the policy was not understood and is missing here ([`Mode::Lenient`](crate::Mode)): it means
        /// something stricter, then, than what is here.
        not_understood: Vec<String>,
    }
    silent ["apiVersion", "kind", "status"]
}

object! {
    /// What a PeerAuthentication says.
    pub struct PeerAuthenticationSpec {
        /// Which workloads; absent means all of the namespace, or of the mesh in the root
        /// namespace.
        selector: Option<WorkloadSelector> = "selector",
        /// For all ports.
        mtls: MutualTls = "mtls",
        /// For single ports.
        port_level_mtls: BTreeMap<PortNumber, MutualTls> = "portLevelMtls",
    }
}

object! {
    /// Mutual TLS or not.
    pub struct MutualTls {
        /// The mode.
        mode: MutualTlsMode = "mode",
    }
}

word! {
    /// Whether mutual TLS is required.
    pub enum MutualTlsMode {
        /// What the wider scope says.
        #[default]
        Unset = "UNSET",
        /// Nobody uses it; the mesh treats this as `PERMISSIVE`.
        Disable = "DISABLE",
        /// It may be.
        Permissive = "PERMISSIVE",
        /// It must be.
        Strict = "STRICT",
    }
}

impl WorkloadSelector {
    /// One without labels selects everything in reach: the same as none.
    fn selected(selector: Option<&Self>) -> Option<&Labels> {
        selector.map(|selector| &selector.match_labels).filter(|labels| !labels.is_empty())
    }
}

impl AuthorizationPolicy {
    /// The labels that it selects workloads by; `None` if it applies to a whole namespace or mesh.
    pub fn selected(&self) -> Option<&Labels> {
        WorkloadSelector::selected(self.spec.selector.as_ref())
    }
}

impl PeerAuthentication {
    /// The labels that it selects workloads by; `None` if it applies to a whole namespace or mesh.
    pub fn selected(&self) -> Option<&Labels> {
        WorkloadSelector::selected(self.spec.selector.as_ref())
    }
}
