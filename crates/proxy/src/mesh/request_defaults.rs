//! What discovery says of requests without a route.

use std::sync::Arc;

use leno_model::{Mesh, Name, PolicyName};
use leno_proto::{request_defaults_from_proto, waypoint};
use leno_xds::client::Update;

use super::of_requests::{self, Steps};

/// Applies the changes of one message. Returns the resources that were refused, each with the reason. The version before stays
/// in force then: it lets nobody in who would not be let in otherwise.
pub(super) fn apply(mesh: &mut Mesh, updates: Vec<Update>) -> Vec<(Name, String)> {
    of_requests::apply(mesh, updates, &Steps { what: "a RequestDefaults", remove, take, close })
}

fn remove(mesh: &mut Mesh, name: &str) {
    if let Some((namespace, name)) = name.split_once('/') {
        mesh.remove_request_defaults(&PolicyName { namespace: namespace.into(), name: name.into() });
    }
}

fn take(mesh: &mut Mesh, name: &str, message: waypoint::RequestDefaults) -> Result<(), String> {
    let defaults = request_defaults_from_proto(message).map_err(|error| error.to_string())?;
    let own = defaults.id.to_string();
    if own != name {
        return Err(format!("the resource is named {name:?} but is {own:?}"));
    }
    if mesh.request_defaults(&defaults.id).is_none_or(|held| **held != defaults) {
        mesh.upsert_request_defaults(Arc::new(defaults));
    }
    Ok(())
}

fn close(_: &mut Mesh, _: &str, _: Option<waypoint::RequestDefaults>, _: &str) {}
