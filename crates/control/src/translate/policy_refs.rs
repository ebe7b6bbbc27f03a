//! What is a policy about requests attached to?

use leno_model::{Name, PolicyName};
use leno_objects::{
    AuthorizationPolicy, Kind, Object, ObjectKey, ObjectMeta, ObjectStore, PolicyTargetReference, RequestAuthentication,
};

use super::Named;

pub(super) const GATEWAY_API: &str = "gateway.networking.k8s.io";

/// An object that may be attached to something.
#[derive(Debug, Clone, Copy)]
pub(super) enum Attachable<'a> {
    Authorization(&'a AuthorizationPolicy),
    Authentication(&'a RequestAuthentication),
}

impl<'a> Attachable<'a> {
    pub(super) fn of(object: &'a Object) -> Option<Self> {
        match object {
            Object::AuthorizationPolicy(policy) => Some(Self::Authorization(policy)),
            Object::RequestAuthentication(policy) => Some(Self::Authentication(policy)),
            _ => None,
        }
    }

    pub(super) fn get(store: &'a ObjectStore, kind: Kind, (namespace, name): &Named) -> Option<Self> {
        store.get(&ObjectKey::new(kind, namespace.clone(), name.clone())).and_then(|object| Self::of(object))
    }

    pub(super) fn metadata(self) -> &'a ObjectMeta {
        match self {
            Self::Authorization(policy) => &policy.metadata,
            Self::Authentication(policy) => &policy.metadata,
        }
    }

    /// The objects that it is attached to.
    pub(super) fn references(self) -> impl Iterator<Item = &'a PolicyTargetReference> {
        let (one, several) = match self {
            Self::Authorization(policy) => (&policy.spec.target_ref, &policy.spec.target_refs),
            Self::Authentication(policy) => (&policy.spec.target_ref, &policy.spec.target_refs),
        };
        one.as_deref().into_iter().chain(several)
    }

    /// Whether it is attached to something, and so is for waypoints.
    pub(super) fn is_attached(self) -> bool {
        self.references().next().is_some()
    }

    /// The objects that it is attached to, as the index knows them.
    pub(super) fn targets(self) -> impl Iterator<Item = (Kind, Named)> {
        let own = &self.metadata().namespace;
        self.references().filter_map(move |reference| match (&*reference.group, &*reference.kind) {
            ("" | "core", "Service") => Some((Kind::Service, (own.clone(), (*reference.name).into()))),
            (GATEWAY_API, "Gateway") => Some((Kind::Gateway, (own.clone(), (*reference.name).into()))),
            (GATEWAY_API, "GatewayClass") => Some((Kind::GatewayClass, ("".into(), (*reference.name).into()))),
            _ => None,
        })
    }
}

/// The name that an object of one of these kinds has in the mesh.
pub(super) fn name_in_mesh(kind: Kind, (namespace, name): &Named) -> PolicyName {
    match kind {
        Kind::RequestAuthentication => PolicyName::authentication(namespace.clone(), name),
        _ => PolicyName { namespace: namespace.clone(), name: Name::clone(name) },
    }
}
