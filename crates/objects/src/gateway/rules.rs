//! Checks of gateways that types can't express. The rules are those of the Gateway API's own definitions.

#![allow(clippy::ptr_arg, reason = "a check takes its field as it is, and fields are vectors")]

use std::collections::BTreeSet;

use leno_model::HBONE_PORT;

use super::{
    FromNamespaces, GatewaySpec, HBONE, ISTIO_WAYPOINT_CLASS, Listener, RouteNamespaces, WAYPOINT_CLASS, WaypointFor,
};
use crate::decode::{Context, Problem};
use crate::meta::Labels;
use crate::suggest::did_you_mean;
use crate::validate::{no_duplicates, subdomain};
use crate::{Kind, Object, WAYPOINT_FOR};

type Check = Result<(), Problem>;

/// The most listeners that a gateway may have.
const MAX_LISTENERS: usize = 64;
/// The protocols that the standard names, and the mesh's own.
const PROTOCOLS: [&str; 6] = [HBONE, "HTTP", "HTTPS", "TLS", "TCP", "UDP"];

pub(crate) fn class_name(name: &String, _: &mut Context) -> Check {
    subdomain(name).map_err(Problem::here)
}

pub(crate) fn section_name(name: &String, _: &mut Context) -> Check {
    subdomain(name).map_err(Problem::here)
}

pub(crate) fn protocol(protocol: &String, _: &mut Context) -> Check {
    // Implementations may have protocols of their own, which have the form domain/NAME.
    if PROTOCOLS.contains(&protocol.as_str()) || protocol.contains('/') {
        return Ok(());
    }
    Err(Problem::here(match did_you_mean(protocol, PROTOCOLS) {
        Some(meant) => format!("unknown protocol {protocol:?}; did you mean {meant}?"),
        None => format!("unknown protocol {protocol:?}; possible are: {}", PROTOCOLS.join(", ")),
    }))
}

pub(crate) fn controller_name(name: &String, _: &mut Context) -> Check {
    let sound = name.split_once('/').is_some_and(|(domain, path)| subdomain(domain).is_ok() && !path.is_empty());
    if sound {
        Ok(())
    } else {
        Err(Problem::here(format!("{name:?} must be a domain and a path, as in example.com/name")))
    }
}

pub(crate) fn listeners(listeners: &Vec<Listener>, _: &mut Context) -> Check {
    if listeners.is_empty() || listeners.len() > MAX_LISTENERS {
        return Err(Problem::here(format!("needs 1 to {MAX_LISTENERS} listeners")));
    }
    no_duplicates(listeners.iter().map(|listener| listener.name.as_str()), ".name", "listener name")?;
    let mut seen = BTreeSet::new();
    for (i, listener) in listeners.iter().enumerate() {
        if !seen.insert((listener.port, listener.protocol.as_str(), listener.hostname.as_str())) {
            let message = format!("port {} with this protocol and hostname is listed twice", listener.port);
            return Err(Problem::at(format!("[{i}].port"), message));
        }
    }
    Ok(())
}

pub(crate) fn route_namespaces(namespaces: &RouteNamespaces, _: &mut Context) -> Check {
    match (namespaces.from, &namespaces.selector) {
        (FromNamespaces::Selector, None) => Err(Problem::at(".selector", "is required by from: Selector")),
        (FromNamespaces::Selector, Some(_)) | (_, None) => Ok(()),
        (from, Some(_)) => Err(Problem::at(".selector", format!("goes with from: Selector only, not with {from}"))),
    }
}

pub(crate) fn gateway_spec(spec: &GatewaySpec, _: &mut Context) -> Check {
    let by_name = [WAYPOINT_CLASS, ISTIO_WAYPOINT_CLASS].contains(&spec.gateway_class_name.as_str());
    if by_name && !spec.listeners.iter().any(Listener::is_hbone) {
        let message = format!("a waypoint needs a listener with protocol: {HBONE} and port: {HBONE_PORT}");
        return Err(Problem::at(".listeners", message));
    }
    Ok(())
}

/// Checks that need the whole object.
pub(crate) fn object(object: &Object) -> Check {
    match object.kind() {
        Kind::Gateway | Kind::GatewayClass => waypoint_for(&object.metadata().labels),
        _ => Ok(()),
    }
}

fn waypoint_for(labels: &Labels) -> Check {
    let Some(word) = labels.get(WAYPOINT_FOR) else { return Ok(()) };
    if WaypointFor::parse(word).is_some() {
        return Ok(());
    }
    let words = WaypointFor::WORDS.join(", ");
    Err(Problem::at(
        format!("metadata.labels.{WAYPOINT_FOR}"),
        format!("unknown value {:?}; possible are: {words}", &**word),
    ))
}
