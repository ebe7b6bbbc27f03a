//! Which waypoint must traffic to a service or pod pass? What the labels ask for is told to proxies whether or not there is
//! such a waypoint: a proxy refuses a connection whose waypoint it can't use, and never goes around it.

use leno_model::{GatewayAddress, GatewayDestination, HBONE_PORT};
use leno_objects::{Labels, ObjectMeta, USE_WAYPOINT, USE_WAYPOINT_NAMESPACE};

use super::Options;
use super::service_name::service_name;

/// Label, with the Gateway's name as value, of a waypoint's own pods and Service.
const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";

/// What a Namespace's labels mean for what is in it.
pub(super) fn default_of(namespace_labels: Option<&Labels>) -> Option<(String, Option<String>)> {
    let said = |key: &str| namespace_labels.and_then(|labels| labels.get(key)).map(|value| value.to_string());
    Some((said(USE_WAYPOINT)?, said(USE_WAYPOINT_NAMESPACE)))
}

/// The waypoint of an object: by its own label, or else by its Namespace's.
pub(super) fn waypoint(
    options: &Options,
    metadata: &ObjectMeta,
    namespace_labels: Option<&Labels>,
) -> Option<GatewayAddress> {
    if metadata.label(GATEWAY_NAME).is_some() {
        return None;
    }
    let own = metadata.label(USE_WAYPOINT).map(str::to_owned);
    let own = own.map(|name| (name, metadata.label(USE_WAYPOINT_NAMESPACE).map(str::to_owned)));
    let (name, namespace) = own.or_else(|| default_of(namespace_labels))?;
    if name == "none" {
        return None;
    }
    let namespace = namespace.unwrap_or_else(|| metadata.namespace.to_string());
    let service = service_name(options, &namespace, &name);
    Some(GatewayAddress { destination: GatewayDestination::Hostname(service), hbone_mtls_port: HBONE_PORT })
}
