//! Annotations that mean nothing where they are.

use leno_objects::{
    Kind, ObjectMeta, ObjectStore, RATE_LIMIT, RATE_LIMIT_BURST, WAYPOINT_BYPASS, WAYPOINT_CPU,
    WAYPOINT_FORWARD_CLIENT_CERT, WAYPOINT_MEMORY, WAYPOINT_NODE_SELECTOR, WAYPOINT_REPLICAS, did_you_mean,
};

use crate::hint::hint;

/// What the annotations of Leno begin with.
const OURS: &str = "leno.mesh/";

const USERS_OF_WAYPOINTS: &[Kind] = &[Kind::Gateway, Kind::Namespace, Kind::Service, Kind::Pod];
const WAYPOINTS: &[Kind] = &[Kind::Gateway];
const ROUTES: &[Kind] = &[Kind::HTTPRoute, Kind::GRPCRoute];

/// The annotations that people write, and what they are for.
const KNOWN: [(&str, &[Kind]); 8] = [
    (WAYPOINT_BYPASS, USERS_OF_WAYPOINTS),
    (WAYPOINT_REPLICAS, WAYPOINTS),
    (WAYPOINT_CPU, WAYPOINTS),
    (WAYPOINT_MEMORY, WAYPOINTS),
    (WAYPOINT_NODE_SELECTOR, WAYPOINTS),
    (WAYPOINT_FORWARD_CLIENT_CERT, WAYPOINTS),
    (RATE_LIMIT, ROUTES),
    (RATE_LIMIT_BURST, ROUTES),
];

/// The objects that people annotate. Where there are pods' annotations, there may be those of the mesh's own among them.
pub(super) fn objects(store: &ObjectStore) -> impl Iterator<Item = (Kind, &ObjectMeta)> {
    let namespaces = store.namespaces().map(|object| (Kind::Namespace, &object.metadata));
    let services = store.services().map(|object| (Kind::Service, &object.metadata));
    let gateways = store.gateways().map(|object| (Kind::Gateway, &object.metadata));
    let http = store.http_routes().map(|object| (Kind::HTTPRoute, &object.metadata));
    let grpc = store.grpc_routes().map(|object| (Kind::GRPCRoute, &object.metadata));
    let tcp = store.tcp_routes().map(|object| (Kind::TCPRoute, &object.metadata));
    let tls = store.tls_routes().map(|object| (Kind::TLSRoute, &object.metadata));
    let virtuals = store.virtual_services().map(|object| (Kind::VirtualService, &object.metadata));
    let destinations = store.destination_rules().map(|object| (Kind::DestinationRule, &object.metadata));
    let policies = store.authorization_policies().map(|object| (Kind::AuthorizationPolicy, &object.metadata));
    let deployments = store.deployments().map(|object| (Kind::Deployment, &object.metadata));
    let templates = store.deployments().map(|object| (Kind::Pod, &object.spec.template.metadata));
    let pods = store.pods().map(|object| (Kind::Pod, &object.metadata));
    let mesh = namespaces.chain(services).chain(gateways).chain(pods).chain(deployments).chain(templates);
    mesh.chain(http).chain(grpc).chain(tcp).chain(tls).chain(virtuals).chain(destinations).chain(policies)
}

/// What is wrong with the annotations of an object.
pub(super) fn of(kind: Kind, metadata: &ObjectMeta) -> Vec<String> {
    let ours = metadata.annotations.keys().filter(|name| name.starts_with(OURS));
    let wrong = |name: &str| match KNOWN.iter().find(|(known, _)| *known == name) {
        Some((_, kinds)) if kinds.contains(&kind) => None,
        // Their own translation says so.
        Some(_) if [Kind::TCPRoute, Kind::TLSRoute].contains(&kind) => None,
        Some((_, kinds)) => {
            let kinds = kinds.iter().map(Kind::to_string).collect::<Vec<_>>().join(" or ");
            Some(format!("annotation {name} means nothing on a {kind}; it is for a {kinds}"))
        }
        None => {
            let meant = did_you_mean(name, KNOWN.iter().map(|(known, _)| *known));
            if kind == Kind::Pod && meant.is_none() {
                return None;
            }
            Some(format!("annotation {name} means nothing to this version of Leno{}", hint(meant)))
        }
    };
    ours.filter_map(|name| wrong(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kind: Kind, name: &str) -> String {
        let annotations = [(name.into(), "1".into())].into_iter().collect();
        of(kind, &ObjectMeta { annotations, ..ObjectMeta::default() }).join("; ")
    }

    #[test]
    fn what_means_something_is_fine() {
        for (name, kinds) in KNOWN {
            for kind in kinds {
                assert_eq!(found(*kind, name), "");
            }
        }
        assert_eq!(found(Kind::Service, "example.org/rate"), "");
    }

    #[test]
    fn slips_are_found() {
        let said = found(Kind::HTTPRoute, "leno.mesh/ratelimit");
        assert_eq!(
            said,
            "annotation leno.mesh/ratelimit means nothing to this version of Leno; did you mean leno.mesh/rate-limit?"
        );
        let said = found(Kind::Service, "leno.mesh/waypoint-replicas");
        assert_eq!(said, "annotation leno.mesh/waypoint-replicas means nothing on a Service; it is for a Gateway");
        let said = found(Kind::VirtualService, "leno.mesh/rate-limit");
        assert_eq!(
            said,
            "annotation leno.mesh/rate-limit means nothing on a VirtualService; it is for a HTTPRoute or GRPCRoute"
        );
        assert_eq!(found(Kind::Pod, "leno.mesh/root-certificates"), "", "it is the mesh's own");
        assert!(found(Kind::Pod, "leno.mesh/waypoint-bypas").contains("did you mean"));
        let said = found(Kind::Gateway, "leno.mesh/banana");
        assert_eq!(said, "annotation leno.mesh/banana means nothing to this version of Leno");
    }
}
