//! Policies about requests as discovery describes them.

use std::sync::Arc;

use leno_model::http::Policy;
use leno_model::{Mesh, Name};
use leno_proto::{request_policy_from_proto, request_policy_of_resource, request_policy_stand_in, waypoint};
use leno_xds::client::Update;

use super::of_requests::{self, Steps};

/// Applies the changes of one message. Returns the resources that were refused, each with the reason; nobody gets into what
/// they are attached to from then on.
pub(super) fn apply(mesh: &mut Mesh, updates: Vec<Update>) -> Vec<(Name, String)> {
    let steps = Steps {
        what: "an AuthorizationPolicy",
        remove,
        read: request_policy_from_proto,
        name: |policy| policy.id.to_string(),
        take,
        close,
    };
    of_requests::apply(mesh, updates, &steps)
}

fn remove(mesh: &mut Mesh, name: &str) {
    if let Some(id) = request_policy_of_resource(name) {
        mesh.remove_request_policy(&id);
    }
}

fn take(mesh: &mut Mesh, policy: Policy) {
    if mesh.request_policy(&policy.id).is_none_or(|held| **held != policy) {
        mesh.upsert_request_policy(Arc::new(policy));
    }
}

/// Closes what a refused policy is attached to: as far as its last version says, and as far as the new one can be read. The
/// last version does not stay in force, because the new one may be stricter.
fn close(mesh: &mut Mesh, name: &str, message: Option<waypoint::AuthorizationPolicy>, reason: &str) {
    let Some(mut stand_in) = request_policy_stand_in(name, message, reason) else { return };
    for target in mesh.request_policy(&stand_in.id).iter().flat_map(|before| &before.targets) {
        if !stand_in.targets.contains(target) {
            stand_in.targets.push(target.clone());
        }
    }
    mesh.upsert_request_policy(Arc::new(stand_in));
}

#[cfg(test)]
#[path = "request_policies_tests.rs"]
mod tests;
