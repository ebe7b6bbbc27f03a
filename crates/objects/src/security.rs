//! Istio's AuthorizationPolicy, PeerAuthentication and RequestAuthentication.

pub(crate) mod rules;

use std::collections::BTreeMap;

use super::decode::{object, word};
use super::meta::{Labels, ObjectMeta};
use super::scalars::{IpBlock, PortNumber};

object! {
    /// Which connections (and, at a waypoint, requests) are allowed.
    pub struct AuthorizationPolicy {
        /// Name, namespace, and the annotation `istio.io/dry-run`.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// The policy. If absent, it allows nothing.
        spec: AuthorizationPolicySpec = "spec" (check rules::authorization_spec),
    }
    besides {
        /// The parts that were not understood and are missing here (only with [`Mode::Lenient`](crate::Mode)). The
        /// policy is stricter than the rest of this object says.
        not_understood: Vec<String>,
    }
    silent ["apiVersion", "kind", "status"]
}

object! {
    /// The contents of an AuthorizationPolicy.
    pub struct AuthorizationPolicySpec {
        /// The workloads it applies to. If absent, all of the namespace.
        selector: Option<WorkloadSelector> = "selector",
        /// What it is attached to instead (one, old form).
        target_ref: Option<Box<PolicyTargetReference>> = "targetRef",
        /// What it is attached to instead.
        target_refs: Vec<PolicyTargetReference> = "targetRefs",
        /// The effect of a match.
        action: PolicyAction = "action",
        /// Alternatives: one rule must match. An empty list never matches.
        rules: Vec<Rule> = "rules",
        /// External authoriser, for action `CUSTOM`.
        provider: Option<ExtensionProvider> = "provider",
    }
}

word! {
    /// The effect of a match.
    pub enum PolicyAction {
        /// Allows.
        #[default]
        Allow = "ALLOW",
        /// Denies.
        Deny = "DENY",
        /// Logs.
        Audit = "AUDIT",
        /// Asks an external authoriser.
        Custom = "CUSTOM",
    }
}

object! {
    /// Selects workloads by label.
    pub struct WorkloadSelector {
        /// Labels that must be present. Empty selects the whole namespace.
        match_labels: Labels = "matchLabels" (check crate::meta::rules::labels),
    }
}

object! {
    /// An object that a policy is attached to.
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
    /// One rule. One of `from`, one of `to` and all of `when` must hold. An empty rule always holds.
    pub struct Rule {
        /// Sources: one must match.
        from: Vec<From> = "from" (check rules::not_empty),
        /// Operations: one must match.
        to: Vec<To> = "to" (check rules::not_empty),
        /// Conditions: all must hold.
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
    /// A source of traffic. For every field that is set, one value must match.
    pub struct Source {
        /// Peer identities without `spiffe://`. A `*` at either end matches anything.
        principals: Vec<String> = "principals" (check rules::patterns),
        /// Values that must not match.
        not_principals: Vec<String> = "notPrincipals" (check rules::patterns),
        /// JWT subjects. Needs a waypoint.
        request_principals: Vec<String> = "requestPrincipals" (check rules::patterns),
        /// Values that must not match.
        not_request_principals: Vec<String> = "notRequestPrincipals" (check rules::patterns),
        /// Peer namespaces.
        namespaces: Vec<String> = "namespaces" (check rules::patterns),
        /// Values that must not match.
        not_namespaces: Vec<String> = "notNamespaces" (check rules::patterns),
        /// Peer service accounts: `account` or `namespace/account`.
        service_accounts: Vec<String> = "serviceAccounts" (check rules::service_accounts),
        /// Values that must not match.
        not_service_accounts: Vec<String> = "notServiceAccounts" (check rules::service_accounts),
        /// Peer addresses.
        ip_blocks: Vec<IpBlock> = "ipBlocks",
        /// Values that must not match.
        not_ip_blocks: Vec<IpBlock> = "notIpBlocks",
        /// The original client's address, behind proxies. Needs a waypoint.
        remote_ip_blocks: Vec<IpBlock> = "remoteIpBlocks",
        /// Values that must not match.
        not_remote_ip_blocks: Vec<IpBlock> = "notRemoteIpBlocks",
    }
}

object! {
    /// An operation. For every field that is set, one value must match.
    pub struct Operation {
        /// Host names. Needs a waypoint.
        hosts: Vec<String> = "hosts" (check rules::patterns),
        /// Values that must not match.
        not_hosts: Vec<String> = "notHosts" (check rules::patterns),
        /// Destination ports, as text.
        ports: Vec<String> = "ports" (check rules::ports),
        /// Values that must not match.
        not_ports: Vec<String> = "notPorts" (check rules::ports),
        /// Methods. Needs a waypoint.
        methods: Vec<String> = "methods" (check rules::patterns),
        /// Values that must not match.
        not_methods: Vec<String> = "notMethods" (check rules::patterns),
        /// Paths. Needs a waypoint.
        paths: Vec<String> = "paths" (check rules::patterns),
        /// Values that must not match.
        not_paths: Vec<String> = "notPaths" (check rules::patterns),
    }
}

object! {
    /// A condition on one attribute.
    pub struct When {
        /// The attribute.
        key: String = "key" (required check rules::condition_key),
        /// Values of which one must match.
        values: Vec<String> = "values",
        /// Values of which none may match.
        not_values: Vec<String> = "notValues",
    }
}

object! {
    /// Whether a workload accepts connections without mutual TLS.
    pub struct PeerAuthentication {
        /// Name and namespace.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// The policy.
        spec: PeerAuthenticationSpec = "spec" (check rules::peer_authentication_spec),
    }
    besides {
        /// The parts that were not understood and are missing here (only with [`Mode::Lenient`](crate::Mode)). The
        /// policy is stricter than the rest of this object says.
        not_understood: Vec<String>,
    }
    silent ["apiVersion", "kind", "status"]
}

object! {
    /// The contents of a PeerAuthentication.
    pub struct PeerAuthenticationSpec {
        /// The workloads it applies to. If absent, all of the namespace; in the root namespace, all of the mesh.
        selector: Option<WorkloadSelector> = "selector",
        /// The mode of all ports.
        mtls: MutualTls = "mtls",
        /// The modes of single ports.
        port_level_mtls: BTreeMap<PortNumber, MutualTls> = "portLevelMtls",
    }
}

object! {
    /// A mutual TLS setting.
    pub struct MutualTls {
        /// The mode.
        mode: MutualTlsMode = "mode",
    }
}

word! {
    /// Whether mutual TLS is required.
    pub enum MutualTlsMode {
        /// Inherits the mode of the wider scope.
        #[default]
        Unset = "UNSET",
        /// No mutual TLS. The mesh treats it as `PERMISSIVE`.
        Disable = "DISABLE",
        /// Mutual TLS is optional.
        Permissive = "PERMISSIVE",
        /// Mutual TLS is required.
        Strict = "STRICT",
    }
}

object! {
    /// Which tokens requests may carry.
    pub struct RequestAuthentication {
        /// Name and namespace.
        metadata: ObjectMeta = "metadata" (required check crate::meta::rules::metadata),
        /// The policy.
        spec: RequestAuthenticationSpec = "spec" (check rules::request_authentication_spec),
    }
    besides {
        /// The parts that were not understood and are missing here (only with [`Mode::Lenient`](crate::Mode)).
        not_understood: Vec<String>,
    }
    silent ["apiVersion", "kind", "status"]
}

object! {
    /// The contents of a RequestAuthentication.
    pub struct RequestAuthenticationSpec {
        /// The workloads it applies to. If absent, all of the namespace.
        selector: Option<WorkloadSelector> = "selector",
        /// What it is attached to instead (one, old form).
        target_ref: Option<Box<PolicyTargetReference>> = "targetRef",
        /// What it is attached to instead.
        target_refs: Vec<PolicyTargetReference> = "targetRefs",
        /// Whose tokens are accepted.
        jwt_rules: Vec<JwtRule> = "jwtRules",
    }
}

object! {
    /// Whose tokens are accepted, and where they stand.
    pub struct JwtRule {
        /// The issuer.
        issuer: String = "issuer" (required check rules::not_blank),
        /// Audiences of which a token must name one; none for any.
        audiences: Vec<String> = "audiences",
        /// Where the issuer's keys are.
        jwks_uri: String = "jwksUri",
        /// The issuer's keys.
        jwks: String = "jwks",
        /// Headers that carry a token.
        from_headers: Vec<JwtHeader> = "fromHeaders",
        /// Query parameters that carry a token.
        from_params: Vec<String> = "fromParams" (check rules::patterns),
        /// Cookies that carry a token.
        from_cookies: Vec<String> = "fromCookies" (check rules::patterns),
        /// Header that tells the program the token's claims.
        output_payload_to_header: String = "outputPayloadToHeader" (check rules::header_or_none),
        /// Whether the program gets the token.
        forward_original_token: bool = "forwardOriginalToken",
        /// Headers that tell the program single claims.
        output_claim_to_headers: Vec<ClaimToHeader> = "outputClaimToHeaders",
        /// How long reading the keys may take, such as `5s`.
        timeout: String = "timeout" (check rules::seconds_or_none),
    }
}

object! {
    /// A header that carries a token.
    pub struct JwtHeader {
        /// Its name.
        name: String = "name" (required check rules::header_name),
        /// What stands before the token.
        prefix: String = "prefix",
    }
}

object! {
    /// A header that tells the program a claim.
    pub struct ClaimToHeader {
        /// The header.
        header: String = "header" (required check rules::header_name),
        /// The claim; names of nested ones are joined by dots.
        claim: String = "claim" (required check rules::not_blank),
    }
}

impl WorkloadSelector {
    /// The selected labels. A selector without labels selects everything in scope, as no selector does.
    fn selected(selector: Option<&Self>) -> Option<&Labels> {
        selector.map(|selector| &selector.match_labels).filter(|labels| !labels.is_empty())
    }
}

impl AuthorizationPolicy {
    /// The labels by which it selects workloads; `None` if it applies to a whole namespace or mesh.
    pub fn selected(&self) -> Option<&Labels> {
        WorkloadSelector::selected(self.spec.selector.as_ref())
    }
}

impl JwtRule {
    /// How long reading the keys may take, milliseconds; `None` if it does not say.
    pub fn timeout_ms(&self) -> Option<u64> {
        rules::seconds(&self.timeout)
    }
}

impl PeerAuthentication {
    /// The labels by which it selects workloads; `None` if it applies to a whole namespace or mesh.
    pub fn selected(&self) -> Option<&Labels> {
        WorkloadSelector::selected(self.spec.selector.as_ref())
    }
}
