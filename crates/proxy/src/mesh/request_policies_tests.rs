use leno_model::http::{PolicyAction, PolicyRule, PolicyTarget};
use leno_model::{PolicyName, ServiceName};
use leno_proto::request_policy_to_proto;
use prost::Message;

use super::*;

fn target(service: &str) -> PolicyTarget {
    PolicyTarget::Service(ServiceName { namespace: "shop".into(), hostname: service.into() })
}

fn policy() -> Policy {
    Policy {
        targets: vec![target("web.shop.svc.cluster.local")],
        rules: vec![PolicyRule::default()],
        ..Policy::new(PolicyName { namespace: "shop".into(), name: "rule".into() }, PolicyAction::Deny)
    }
}

fn upsert(message: &waypoint::AuthorizationPolicy) -> Vec<Update> {
    vec![Update::Upsert { name: "shop/rule".into(), body: message.encode_to_vec().into() }]
}

#[test]
fn policies_come_and_go() {
    let mut mesh = Mesh::default();
    assert_eq!(apply(&mut mesh, upsert(&request_policy_to_proto(&policy()))), []);
    let own = &policy().targets[0];
    assert_eq!(mesh.request_policies_of(own).map(|all| all.values().count()), Some(1));
    assert_eq!(apply(&mut mesh, vec![Update::Remove { name: "shop/rule".into() }]), []);
    assert!(mesh.request_policies_of(own).is_none());
}

#[test]
fn a_refused_policy_closes_its_targets_old_and_new() {
    let mut mesh = Mesh::default();
    apply(&mut mesh, upsert(&request_policy_to_proto(&policy())));
    let mut newer =
        request_policy_to_proto(&Policy { targets: vec![target("api.shop.svc.cluster.local")], ..policy() });
    newer.action = 99;
    assert_eq!(apply(&mut mesh, upsert(&newer)).len(), 1);
    let held = mesh.request_policy(&policy().id).expect("a stand-in");
    assert!(held.not_understood.is_some());
    assert_eq!(held.targets.len(), 2);
    let unreadable = Update::Unreadable { name: "shop/rule".into(), reason: "torn".into() };
    assert_eq!(apply(&mut mesh, vec![unreadable]).len(), 1);
    assert!(mesh.request_policy(&policy().id).expect("a stand-in").targets.contains(&PolicyTarget::All));
    assert_eq!(apply(&mut mesh, upsert(&request_policy_to_proto(&policy()))), []);
    assert_eq!(**mesh.request_policy(&policy().id).expect("good again"), policy());
}

#[test]
fn a_resource_under_a_wrong_name_is_refused() {
    let mut mesh = Mesh::default();
    let body = request_policy_to_proto(&policy()).encode_to_vec().into();
    assert_eq!(apply(&mut mesh, vec![Update::Upsert { name: "shop/other".into(), body }]).len(), 1);
    assert!(mesh.request_policy(&policy().id).is_none());
}
