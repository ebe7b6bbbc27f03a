//! What discovery says of services' endpoints.

use std::sync::Arc;

use leno_model::http::EndpointPolicy;
use leno_model::{Mesh, Name, PolicyName};
use leno_proto::{endpoint_policy_from_proto, waypoint};
use leno_xds::client::Update;

use super::of_requests::{self, Steps};

/// Applies the changes of one message. Returns the resources that were refused, each with the reason. The version before stays
/// in force then: it lets nobody in who would not be let in otherwise.
pub(super) fn apply(mesh: &mut Mesh, updates: Vec<Update>) -> Vec<(Name, String)> {
    let steps = Steps {
        what: "an EndpointPolicy",
        remove,
        read: endpoint_policy_from_proto,
        name: |policy| policy.id.to_string(),
        take,
        close,
    };
    of_requests::apply(mesh, updates, &steps)
}

fn remove(mesh: &mut Mesh, name: &str) {
    if let Some((namespace, name)) = name.split_once('/') {
        mesh.remove_endpoint_policy(&PolicyName { namespace: namespace.into(), name: name.into() });
    }
}

fn take(mesh: &mut Mesh, policy: EndpointPolicy) {
    if mesh.endpoint_policy(&policy.id).is_none_or(|held| **held != policy) {
        mesh.upsert_endpoint_policy(Arc::new(policy));
    }
}

fn close(_: &mut Mesh, _: &str, _: Option<waypoint::EndpointPolicy>, _: &str) {}

#[cfg(test)]
mod tests {
    use leno_model::ServiceName;
    use leno_model::http::EndpointRules;
    use leno_proto::endpoint_policy_to_proto;
    use prost::Message;

    use super::*;

    fn policy(most: u32) -> EndpointPolicy {
        EndpointPolicy {
            id: PolicyName { namespace: "shop".into(), name: "web".into() },
            services: vec![ServiceName { namespace: "shop".into(), hostname: "web.shop.svc".into() }],
            rules: EndpointRules { max_requests: Some(most), ..EndpointRules::default() },
            ports: Vec::new(),
        }
    }

    fn upsert(body: Vec<u8>) -> Vec<Update> {
        vec![Update::Upsert { name: "shop/web".into(), body: body.into() }]
    }

    #[test]
    fn the_last_good_version_stays_in_force() {
        let (mut mesh, service) = (Mesh::default(), policy(1).services.remove(0));
        let most = |mesh: &Mesh| mesh.endpoint_policy_of(&service).and_then(|it| it.rules.max_requests);
        assert!(apply(&mut mesh, upsert(endpoint_policy_to_proto(&policy(7)).encode_to_vec())).is_empty());
        assert_eq!(most(&mesh), Some(7));
        assert_eq!(apply(&mut mesh, upsert(vec![0xff, 0xff])).len(), 1);
        let mut strange = endpoint_policy_to_proto(&policy(8));
        strange.name = "other".to_owned();
        assert!(apply(&mut mesh, upsert(strange.encode_to_vec()))[0].1.contains("but is"));
        assert_eq!(most(&mesh), Some(7));
        assert!(apply(&mut mesh, vec![Update::Remove { name: "shop/web".into() }]).is_empty());
        assert_eq!(most(&mesh), None);
    }
}
