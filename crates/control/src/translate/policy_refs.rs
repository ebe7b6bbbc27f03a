//! What is an AuthorizationPolicy attached to?

use leno_model::Name;
use leno_objects::{AuthorizationPolicy, Kind, PolicyTargetReference};

pub(super) const GATEWAY_API: &str = "gateway.networking.k8s.io";

/// The objects that a policy is attached to.
pub(super) fn references(policy: &AuthorizationPolicy) -> impl Iterator<Item = &PolicyTargetReference> {
    policy.spec.target_ref.as_deref().into_iter().chain(&policy.spec.target_refs)
}

/// Whether a policy is attached to something, and so is for waypoints.
pub(super) fn is_attached(policy: &AuthorizationPolicy) -> bool {
    references(policy).next().is_some()
}

/// The objects that a policy is attached to, as the index knows them.
pub(super) fn targets(policy: &AuthorizationPolicy) -> impl Iterator<Item = (Kind, (Name, Name))> {
    references(policy).filter_map(|reference| {
        let own = &policy.metadata.namespace;
        match (&*reference.group, &*reference.kind) {
            ("" | "core", "Service") => Some((Kind::Service, (own.clone(), (*reference.name).into()))),
            (GATEWAY_API, "Gateway") => Some((Kind::Gateway, (own.clone(), (*reference.name).into()))),
            (GATEWAY_API, "GatewayClass") => Some((Kind::GatewayClass, ("".into(), (*reference.name).into()))),
            _ => None,
        }
    })
}
