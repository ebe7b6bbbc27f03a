//! Where an API server keeps objects of a kind.

use std::fmt::Write as _;

use leno_objects::{GATEWAY_GROUP, Kind, ObjectKey};

/// The kinds that a control plane of a cluster watches.
///
/// Pods say all there is to know of what makes them, so Deployments, StatefulSets and Jobs are left alone. So are
/// ConfigMaps and Secrets, which are none of a mesh's business.
pub const KINDS: &[Kind] = &[
    Kind::Namespace,
    Kind::ServiceAccount,
    Kind::Node,
    Kind::Pod,
    Kind::Service,
    Kind::EndpointSlice,
    Kind::AuthorizationPolicy,
    Kind::PeerAuthentication,
    Kind::RequestAuthentication,
    Kind::Gateway,
    Kind::GatewayClass,
    Kind::HTTPRoute,
    Kind::GRPCRoute,
    Kind::TLSRoute,
    Kind::TCPRoute,
    Kind::VirtualService,
    Kind::DestinationRule,
    Kind::ReferenceGrant,
];

/// The EndpointSlices that matter: those of services without a selector, written by a person or mirrored from
/// Endpoints.
///
/// Endpoints of services with a selector are derived from the pods themselves, which is one step sooner than the API
/// server's own controller can write them into slices. Its slices would be the largest objects of all, and each change
/// of a pod would bring one.
const NOT_FROM_SELECTORS: &str = "endpointslice.kubernetes.io/managed-by!=endpointslice-controller.k8s.io";

/// Objects in a list's answer at a time. Each page is read as a whole before its objects are made smaller.
const PAGE: u32 = 500;

/// One kind of objects at an API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) kind: Kind,
    pub(crate) version: &'static str,
}

impl Resource {
    /// The versions of a kind, the best one first.
    pub(crate) fn versions(kind: Kind) -> impl Iterator<Item = Self> {
        let older: &[&str] = match kind {
            // What Istio before 1.22 has.
            Kind::AuthorizationPolicy | Kind::PeerAuthentication | Kind::RequestAuthentication => {
                &["security.istio.io/v1beta1"]
            }
            Kind::Gateway | Kind::GatewayClass | Kind::HTTPRoute | Kind::ReferenceGrant => {
                &["gateway.networking.k8s.io/v1beta1"]
            }
            // What Istio before 1.22 has.
            Kind::DestinationRule | Kind::VirtualService => {
                &["networking.istio.io/v1beta1", "networking.istio.io/v1alpha3"]
            }
            _ => &[],
        };
        std::iter::once(kind.api_version()).chain(older.iter().copied()).map(move |version| Self { kind, version })
    }

    /// Whether an API server may be without this kind.
    pub(crate) fn is_optional(kind: Kind) -> bool {
        kind.api_version().split('/').next().is_some_and(|group| group.ends_with(".istio.io") || group == GATEWAY_GROUP)
    }

    /// The path of all objects of the kind.
    pub(crate) fn path(self) -> String {
        let prefix = if self.version.contains('/') { "apis" } else { "api" };
        format!("/{prefix}/{}/{}", self.version, self.kind.plural())
    }

    /// The path of one object.
    pub(crate) fn object(self, key: &ObjectKey) -> String {
        let prefix = if self.version.contains('/') { "apis" } else { "api" };
        let namespace = if key.namespace.is_empty() { String::new() } else { format!("namespaces/{}/", key.namespace) };
        format!("/{prefix}/{}/{namespace}{}/{}", self.version, self.kind.plural(), key.name)
    }

    /// The path of one page of the list of objects that the field selector `fields` selects.
    pub(crate) fn list(self, fields: &str, continue_at: Option<&str>) -> String {
        let mut path = format!("{}?limit={PAGE}{}", self.path(), self.selectors(fields));
        if let Some(token) = continue_at {
            path.push_str("&continue=");
            escape(token, &mut path);
        }
        path
    }

    /// The path of the changes since `version`, for `seconds`.
    pub(crate) fn watch(self, fields: &str, version: &str, seconds: u64) -> String {
        let mut path = format!(
            "{}?watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}{}&resourceVersion=",
            self.path(),
            self.selectors(fields)
        );
        escape(version, &mut path);
        path
    }

    fn selectors(self, fields: &str) -> String {
        let mut out = String::new();
        if !fields.is_empty() {
            out.push_str("&fieldSelector=");
            escape(fields, &mut out);
        }
        if self.kind == Kind::EndpointSlice {
            out.push_str("&labelSelector=");
            escape(NOT_FROM_SELECTORS, &mut out);
        }
        out
    }
}

/// Percent-encodes a value of a query.
fn escape(value: &str, out: &mut String) {
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing into a String can't fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(kind: Kind) -> Resource {
        Resource::versions(kind).next().expect("one version")
    }

    #[test]
    fn paths_are_the_api_servers() {
        assert_eq!(first(Kind::Pod).path(), "/api/v1/pods");
        assert_eq!(first(Kind::Pod).list("", None), "/api/v1/pods?limit=500");
        assert_eq!(first(Kind::Pod).list("", Some("a+b=")), "/api/v1/pods?limit=500&continue=a%2Bb%3D");
        assert_eq!(
            first(Kind::Pod).list("spec.nodeName=n-1", None),
            "/api/v1/pods?limit=500&fieldSelector=spec.nodeName%3Dn-1"
        );
        let policies = first(Kind::AuthorizationPolicy);
        assert_eq!(policies.path(), "/apis/security.istio.io/v1/authorizationpolicies");
        assert_eq!(
            policies.watch("", "7", 300),
            "/apis/security.istio.io/v1/authorizationpolicies?watch=1&allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion=7"
        );
        assert!(first(Kind::EndpointSlice).list("", None).ends_with("managed-by%21%3Dendpointslice-controller.k8s.io"));
    }

    #[test]
    fn only_what_others_define_may_be_missing() {
        for kind in KINDS {
            let of_others = [
                Kind::AuthorizationPolicy,
                Kind::PeerAuthentication,
                Kind::RequestAuthentication,
                Kind::Gateway,
                Kind::GatewayClass,
                Kind::HTTPRoute,
                Kind::GRPCRoute,
                Kind::TLSRoute,
                Kind::TCPRoute,
                Kind::VirtualService,
                Kind::DestinationRule,
                Kind::ReferenceGrant,
            ];
            assert_eq!(Resource::is_optional(*kind), of_others.contains(kind), "{kind}");
        }
    }
}
