use std::net::IpAddr;

use super::*;

const FUTURE: i32 = 99;

fn address(of: wire::address::Type) -> wire::Address {
    wire::Address { r#type: Some(of) }
}

#[test]
fn a_workload_keeps_what_says_who_and_where_it_is() {
    let w = wire::Workload {
        uid: "another".to_owned(),
        name: "web-1".to_owned(),
        namespace: "ns".to_owned(),
        addresses: vec![vec![10, 0, 0, 9].into(), vec![1, 2, 3].into()],
        network: "net".to_owned(),
        tunnel_protocol: FUTURE,
        service_account: "sa".to_owned(),
        node: "node-1".to_owned(),
        services: [("ns/web".to_owned(), wire::PortList::default()), ("nonsense".to_owned(), Default::default())]
            .into(),
        network_mode: FUTURE,
        ..Default::default()
    };
    let Some(Resource::Workload(w)) =
        address_stand_in("c//Pod/ns/web-1", address(wire::address::Type::Workload(w)), "why")
    else {
        panic!("a workload");
    };
    assert_eq!((&*w.uid, &*w.namespace, &*w.name, &*w.network), ("c//Pod/ns/web-1", "ns", "web-1", "net"));
    assert_eq!((&*w.service_account, &*w.node), ("sa", "node-1"));
    assert_eq!(w.addresses, ["10.0.0.9".parse::<IpAddr>().unwrap()]);
    assert_eq!(w.services.keys().map(ToString::to_string).collect::<Vec<_>>(), ["ns/web"]);
    assert_eq!((w.tunnel_protocol, w.network_mode), (model::TunnelProtocol::Hbone, model::NetworkMode::Standard));
    assert_eq!(w.not_understood.as_deref(), Some("why"));
}

#[test]
fn a_service_keeps_its_addresses() {
    let at = |bytes: &[u8], length| wire::NetworkAddress {
        network: "net".to_owned(),
        address: bytes.to_vec().into(),
        length,
    };
    let s = wire::Service {
        hostname: "another".to_owned(),
        addresses: vec![
            at(&[10, 96, 0, 1], None),
            at(&[10, 97, 0, 0], Some(16)),
            at(&[10, 98, 0, 0], Some(FUTURE.unsigned_abs())),
            at(&[1], None),
        ],
        ip_families: FUTURE,
        ..Default::default()
    };
    let Some(Resource::Service(s)) = address_stand_in("ns/web.ns", address(wire::address::Type::Service(s)), "why")
    else {
        panic!("a service");
    };
    assert_eq!(s.id.to_string(), "ns/web.ns");
    assert_eq!(s.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), ["net/10.96.0.1", "net/10.98.0.0"]);
    assert_eq!(s.ranges.iter().map(|(_, range)| range.to_string()).collect::<Vec<_>>(), ["10.97.0.0/16"]);
    assert_eq!(s.not_understood.as_deref(), Some("why"));
    assert_eq!(address_stand_in("ns/web.ns", wire::Address::default(), "why"), None, "of a kind from the future");
}

#[test]
fn a_policy_closes_where_it_would_apply_and_everywhere_if_that_is_not_known() {
    let scope = |scope: i32| {
        let policy = security::Authorization { scope, ..Default::default() };
        policy_stand_in("ns/p", Some(&policy), "why").map(|closed| closed.scope)
    };
    assert_eq!(scope(security::Scope::Namespace.into()), Some(model::Scope::Namespace));
    assert_eq!(scope(security::Scope::WorkloadSelector.into()), Some(model::Scope::WorkloadSelector));
    assert_eq!(scope(security::Scope::Global.into()), Some(model::Scope::Global));
    assert_eq!(scope(FUTURE), Some(model::Scope::Global));
    let unreadable = policy_stand_in("ns/p", None, "why").unwrap();
    assert_eq!((unreadable.scope, unreadable.id.to_string()), (model::Scope::Global, "ns/p".to_owned()));
    assert_eq!(unreadable.not_understood.as_deref(), Some("why"));
    assert_eq!(policy_stand_in("p", None, "why"), None);
}
