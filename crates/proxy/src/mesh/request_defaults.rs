//! What discovery says of requests without a route.

use std::sync::Arc;

use leno_model::http::RequestDefaults;
use leno_model::{Mesh, Name, PolicyName};
use leno_proto::request_defaults_from_proto;
use leno_xds::client::Update;

use super::of_requests::{self, Steps};

/// Applies the changes of one message. Returns the resources that were refused, each with the reason. The version before stays
/// in force then: it lets nobody in who would not be let in otherwise.
pub(super) fn apply(mesh: &mut Mesh, updates: Vec<Update>) -> Vec<(Name, String)> {
    let steps = Steps {
        what: "a RequestDefaults",
        remove,
        read: request_defaults_from_proto,
        name: |defaults| defaults.id.to_string(),
        take,
        close: |_, _, _, _| {},
    };
    of_requests::apply(mesh, updates, &steps)
}

fn remove(mesh: &mut Mesh, name: &str) {
    if let Some((namespace, name)) = name.split_once('/') {
        mesh.remove_request_defaults(&PolicyName { namespace: namespace.into(), name: name.into() });
    }
}

fn take(mesh: &mut Mesh, defaults: RequestDefaults) {
    if mesh.request_defaults(&defaults.id).is_none_or(|held| **held != defaults) {
        mesh.upsert_request_defaults(Arc::new(defaults));
    }
}
