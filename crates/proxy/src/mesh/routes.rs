//! HTTP routes as discovery describes them.

use std::sync::Arc;

use leno_model::http::Route;
use leno_model::{Mesh, Name};
use leno_proto::{route_from_proto, route_of_resource, route_resource_name, route_stand_in, waypoint};
use leno_xds::client::Update;

use super::of_requests::{self, Steps};

/// Applies the changes of one message. Returns the resources that were refused, each with the reason; the requests to the
/// services that they name as parents are refused from then on.
pub(super) fn apply(mesh: &mut Mesh, updates: Vec<Update>) -> Vec<(Name, String)> {
    let steps = Steps {
        what: "a Route",
        remove,
        read: route_from_proto,
        name: |route| route_resource_name(&route.id),
        take,
        close,
    };
    of_requests::apply(mesh, updates, &steps)
}

fn remove(mesh: &mut Mesh, name: &str) {
    if let Some(id) = route_of_resource(name) {
        mesh.remove_route(&id);
    }
}

fn take(mesh: &mut Mesh, route: Route) {
    if mesh.route(&route.id).is_none_or(|held| **held != route) {
        mesh.upsert_route(Arc::new(route));
    }
}

/// Closes the parents of a refused route: those of its last version, and those of the new one that can be read. The last
/// version does not stay in force, because the new one may be stricter.
fn close(mesh: &mut Mesh, name: &str, message: Option<waypoint::Route>, reason: &str) {
    let Some(mut stand_in) = route_stand_in(name, message, reason) else { return };
    for parent in mesh.route(&stand_in.id).iter().flat_map(|before| &before.parents) {
        if !stand_in.parents.contains(parent) {
            stand_in.parents.push(parent.clone());
        }
    }
    mesh.upsert_route(Arc::new(stand_in));
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
