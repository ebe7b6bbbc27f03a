//! Which waypoint must traffic to a service or pod pass? What the labels ask for is told to proxies whether or not there is
//! such a waypoint: a proxy refuses a connection whose waypoint it can't use, and never goes around it.

use leno_model::{GatewayAddress, GatewayDestination, HBONE_PORT, Name, Service, ServiceName};
use leno_objects::{
    Gateway, GatewayClass, Labels, Namespace, ObjectMeta, ObjectStore, USE_WAYPOINT, WaypointFor, allows_bypass,
    named_waypoint,
};

use super::Options;
use super::service_name::service_name;

/// Label, with the Gateway's name as value, of a waypoint's own pods and Service.
pub(crate) const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";

/// Namespace and name.
pub(crate) type Named = (Name, Name);

/// What the connection is addressed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Addressed {
    /// A service.
    Service,
    /// A workload itself.
    Workload,
}

/// The waypoint that traffic must pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Required {
    /// Its Gateway, by namespace and name.
    pub(crate) gateway: Named,
    /// What proxies are told.
    pub(super) address: GatewayAddress,
    /// Whether its users may also be reached by their own addresses.
    pub(super) bypass: bool,
}

/// What of a Namespace decides about the waypoints of what is in it.
pub(super) fn default_of(namespace: Option<&ObjectMeta>) -> (Option<Named>, bool) {
    (namespace.and_then(|it| named_waypoint(&it.labels, &it.name)), namespace.is_some_and(allows_bypass))
}

/// The Gateway of an object: by its own label, or else by its Namespace's.
pub(super) fn gateway_of(metadata: &ObjectMeta, namespace_labels: Option<&Labels>) -> Option<Named> {
    if metadata.label(GATEWAY_NAME).is_some() {
        return None;
    }
    match metadata.label(USE_WAYPOINT) {
        Some(_) => named_waypoint(&metadata.labels, &metadata.namespace),
        None => namespace_labels.and_then(|labels| named_waypoint(labels, &metadata.namespace)),
    }
}

/// The waypoint of an object.
pub(crate) fn required(
    options: &Options,
    store: &ObjectStore,
    metadata: &ObjectMeta,
    addressed: Addressed,
) -> Option<Required> {
    let namespace = Namespace::get(store, "", &metadata.namespace).map(|namespace| &namespace.metadata);
    let chosen = gateway_of(metadata, namespace.map(|namespace| &namespace.labels))?;
    let gateway = Gateway::get(store, &chosen.0, &chosen.1);
    let bypass =
        std::iter::once(metadata).chain(namespace).chain(gateway.map(|gateway| &gateway.metadata)).any(allows_bypass);
    let service = service_name(options, &chosen.0, &chosen.1);
    let destination = match gateway {
        None if bypass => return None,
        // Nobody knows what it would be for.
        None => service,
        Some(gateway) => {
            // A word that is not understood may mean anything.
            let class = GatewayClass::get(store, "", &gateway.spec.gateway_class_name);
            let passing = gateway.waypoint_for(class).unwrap_or(WaypointFor::All);
            let concerned = match addressed {
                Addressed::Service => passing.services(),
                Addressed::Workload => passing.workloads(),
            };
            if !concerned {
                return None;
            }
            let labels = namespace.map(|namespace| &namespace.labels);
            if allows(gateway, &metadata.namespace, labels) { service } else { ServiceName::not_allowed(&service) }
        }
    };
    let address =
        GatewayAddress { destination: GatewayDestination::Hostname(destination), hbone_mtls_port: HBONE_PORT };
    Some(Required { gateway: chosen, address, bypass })
}

/// Whether a Gateway may be the waypoint of what is in a namespace that has these labels.
pub(crate) fn allows(gateway: &Gateway, namespace: &str, labels: Option<&Labels>) -> bool {
    let (none, own) = (Labels::new(), &*gateway.metadata.namespace);
    // One without such a listener is reached by nobody.
    let listener = gateway.hbone_listener();
    listener.is_none_or(|it| it.allowed_routes.namespaces.allow(own, namespace, labels.unwrap_or(&none)))
}

/// The waypoints that stand before a service, as discovery knows them: `namespace/service account`.
pub(super) fn waypoints_of(service: &Service) -> impl Iterator<Item = Name> {
    let weighted = service.weighted_waypoints.iter().map(|weighted| &weighted.destination);
    service.waypoint.iter().chain(weighted).filter_map(|waypoint| match &waypoint.destination {
        // A waypoint's Service and account are called as its Gateway.
        GatewayDestination::Hostname(service) if !service.is_not_allowed() => {
            let name = service.hostname.split('.').next().unwrap_or_default();
            Some(format!("{}/{name}", service.namespace).into())
        }
        GatewayDestination::Hostname(_) | GatewayDestination::Address(_) => None,
    })
}

/// The service account of a waypoint's pods: it is called as the Gateway.
pub(crate) fn principal(options: &Options, gateway: &Named) -> Name {
    format!("{}/ns/{}/sa/{}", options.trust_domain, gateway.0, gateway.1).into()
}
