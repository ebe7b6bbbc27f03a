//! Labels that name a waypoint, and Gateways that are none.

use leno_objects::{
    Gateway, GatewayClass, Kind, Labels, Namespace, ObjectMeta, ObjectStore, USE_WAYPOINT, USE_WAYPOINT_NAMESPACE,
    WAYPOINT_BYPASS, WAYPOINT_FORWARD_CLIENT_CERT, did_you_mean, named_waypoint,
};

use crate::hint::hint;
use crate::translate::waypoint::allows;

/// What is wrong with the labels of an object that decides which waypoint is used.
pub(super) fn of_user(store: &ObjectStore, kind: Kind, metadata: &ObjectMeta, labels: &Labels) -> Option<String> {
    if !labels.contains_key(USE_WAYPOINT) {
        let namespace = labels.get(USE_WAYPOINT_NAMESPACE)?;
        return Some(format!(
            "label {USE_WAYPOINT_NAMESPACE}={namespace} means nothing without {USE_WAYPOINT} beside it"
        ));
    }
    let own = if kind == Kind::Namespace { &metadata.name } else { &metadata.namespace };
    let (namespace, name) = named_waypoint(labels, own)?;
    let (namespace, name) = (&*namespace, &*name);
    let said = format!("label {USE_WAYPOINT}={name}");
    let Some(gateway) = Gateway::get(store, namespace, name) else {
        let names: Vec<&str> = Gateway::list(store, namespace).map(|gateway| &*gateway.metadata.name).collect();
        let meant = hint(did_you_mean(name, names));
        return Some(format!(
            "{said}: there is no Gateway {namespace}/{name}, so connections that must pass it are refused{meant}"
        ));
    };
    let around = Namespace::get(store, "", own);
    if !allows(gateway, own, around.map(|it| &it.metadata.labels)) {
        return Some(format!(
            "{said}: Gateway {namespace}/{name} does not let namespace {own} use it, so connections that must pass it are \
             refused; allow it in spec.listeners[].allowedRoutes.namespaces of the Gateway"
        ));
    }
    let class = GatewayClass::get(store, "", &gateway.spec.gateway_class_name);
    match (kind, gateway.waypoint_for(class)) {
        (Kind::Service, Ok(passing)) if !passing.services() => {
            Some(format!("{said}: nothing that is addressed to services passes Gateway {namespace}/{name}"))
        }
        (Kind::Pod | Kind::Deployment | Kind::StatefulSet | Kind::Job, Ok(passing)) if !passing.workloads() => {
            Some(format!("{said}: nothing that is addressed to pods themselves passes Gateway {namespace}/{name}"))
        }
        _ => None,
    }
}

/// What is wrong with the annotation by which a waypoint may be gone around.
pub(super) fn of_bypass(metadata: &ObjectMeta) -> Option<String> {
    match metadata.annotation(WAYPOINT_BYPASS)? {
        "allowed" => None,
        other => Some(format!("annotation {WAYPOINT_BYPASS}={other} means nothing; the only value is allowed")),
    }
}

/// What is wrong with a Gateway that one would take for a waypoint.
pub(super) fn of_gateway(store: &ObjectStore, gateway: &Gateway) -> Vec<String> {
    let class = GatewayClass::get(store, "", &gateway.spec.gateway_class_name);
    let mut found = Vec::new();
    if let Some(other) = gateway.metadata.annotation(WAYPOINT_FORWARD_CLIENT_CERT)
        && !["true", "false"].contains(&other)
    {
        found.push(format!("annotation {WAYPOINT_FORWARD_CLIENT_CERT}={other} means nothing; it is true or false"));
    }
    if gateway.is_waypoint(class)
        && let Err(word) = gateway.waypoint_for(class)
    {
        found.push(format!(
            "waypoint-for {word:?} is not understood by this version of Leno: all traffic of what uses it must pass it"
        ));
    }
    found
}
