use leno_model::ServiceName;
use leno_model::http::{Parent, RouteKind, RouteName};
use leno_proto::route_to_proto;
use prost::Message;

use super::*;

fn route() -> Route {
    let service = ServiceName { namespace: "shop".into(), hostname: "web.shop.svc.cluster.local".into() };
    Route {
        id: RouteName { kind: RouteKind::Http, namespace: "shop".into(), name: "web".into() },
        created: 1,
        parents: vec![Parent { service, port: None, consumer: None }],
        hostnames: Vec::new(),
        rules: Vec::new(),
        not_understood: None,
    }
}

fn upsert(message: &waypoint::Route) -> Vec<Update> {
    vec![Update::Upsert { name: "HTTPRoute/shop/web".into(), body: message.encode_to_vec().into() }]
}

#[test]
fn a_route_comes_and_goes() {
    let mut mesh = Mesh::default();
    assert_eq!(apply(&mut mesh, upsert(&route_to_proto(&route()))), []);
    let service = &route().parents[0].service;
    assert_eq!(mesh.routes_of(service).map(|routes| routes.len()), Some(1));
    assert_eq!(apply(&mut mesh, vec![Update::Remove { name: "HTTPRoute/shop/web".into() }]), []);
    assert!(mesh.routes_of(service).is_none());
}

#[test]
fn a_refused_route_closes_its_parents_old_and_new() {
    let mut mesh = Mesh::default();
    apply(&mut mesh, upsert(&route_to_proto(&route())));
    let mut newer = route_to_proto(&route());
    newer.parents[0].service = "shop/api.shop.svc.cluster.local".into();
    newer.kind = 7;
    let refused = apply(&mut mesh, upsert(&newer));
    assert_eq!(refused.len(), 1);
    let held = mesh.route(&route().id).expect("a stand-in");
    assert!(held.not_understood.is_some());
    assert_eq!(held.parents.len(), 2);
    let unreadable = Update::Unreadable { name: "HTTPRoute/shop/web".into(), reason: "torn".into() };
    assert_eq!(apply(&mut mesh, vec![unreadable]).len(), 1);
    assert_eq!(mesh.route(&route().id).expect("a stand-in").parents.len(), 2, "they stay closed");
    assert_eq!(apply(&mut mesh, upsert(&route_to_proto(&route()))), []);
    assert!(mesh.route(&route().id).expect("good again").not_understood.is_none());
}
