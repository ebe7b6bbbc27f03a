//! Which Services does a route refer to?

use std::collections::BTreeSet;

use leno_objects::{ConnectionRouteRule, HTTPBackendRef, HTTPRouteFilter, Object, ParentReference};

/// Whether a parent is a Service.
pub(super) fn is_service(parent: &ParentReference) -> bool {
    parent.kind.as_deref() == Some("Service") && parent.group.as_deref() == Some("")
}

/// The Services that a route refers to, as parents and as backends, by namespace and name.
pub(super) fn referred(object: &Object) -> BTreeSet<(&str, &str)> {
    fn put<'a>(
        out: &mut BTreeSet<(&'a str, &'a str)>,
        own: &'a str,
        backends: &'a [HTTPBackendRef],
        filters: &'a [HTTPRouteFilter],
    ) {
        let in_namespace = |namespace: &'a str| if namespace.is_empty() { own } else { namespace };
        let of_backends = backends.iter().flat_map(|backend| &backend.filters);
        let mirrors = filters.iter().chain(of_backends).filter_map(|filter| filter.request_mirror.as_ref());
        out.extend(mirrors.map(|mirror| (in_namespace(&mirror.backend_ref.namespace), &*mirror.backend_ref.name)));
        out.extend(backends.iter().map(|backend| (in_namespace(&backend.namespace), &*backend.name)));
    }
    fn put_connections<'a>(out: &mut BTreeSet<(&'a str, &'a str)>, own: &'a str, rules: &'a [ConnectionRouteRule]) {
        let backends = rules.iter().flat_map(|rule| &rule.backend_refs);
        out.extend(
            backends
                .map(|backend| (if backend.namespace.is_empty() { own } else { &*backend.namespace }, &*backend.name)),
        );
    }
    let mut out = BTreeSet::new();
    let (own, parents) = match object {
        Object::HTTPRoute(route) => {
            for rule in route.spec.rules.iter().flatten() {
                put(&mut out, &route.metadata.namespace, &rule.backend_refs, &rule.filters);
            }
            (&*route.metadata.namespace, &route.spec.parent_refs)
        }
        Object::GRPCRoute(route) => {
            for rule in &route.spec.rules {
                put(&mut out, &route.metadata.namespace, &rule.backend_refs, &rule.filters);
            }
            (&*route.metadata.namespace, &route.spec.parent_refs)
        }
        Object::TLSRoute(route) => {
            let own = &*route.metadata.namespace;
            put_connections(&mut out, own, &route.spec.rules);
            (own, &route.spec.parent_refs)
        }
        Object::TCPRoute(route) => {
            let own = &*route.metadata.namespace;
            put_connections(&mut out, own, &route.spec.rules);
            (own, &route.spec.parent_refs)
        }
        _ => return out,
    };
    let services = parents.iter().filter(|parent| is_service(parent));
    out.extend(
        services.map(|parent| (if parent.namespace.is_empty() { own } else { &*parent.namespace }, &*parent.name)),
    );
    out
}
