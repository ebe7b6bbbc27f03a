use leno_model::Transport;
use leno_model::http::PolicyAction;

use super::*;
use crate::test_support::{at, endpoint, mesh, policy_name, port, service, waypoint_by_name};

fn udp(service_port: u16, target_port: u16) -> Port {
    Port { transport: Transport::Udp, ..port(service_port, target_port) }
}

#[test]
fn policies_see_the_port_of_the_service_that_a_pods_port_serves() {
    let speaking = |protocol, port| Port { app_protocol: protocol, ..port };
    let mut web = service("web", &["10.96.0.1"]);
    web.ports = vec![
        speaking(AppProtocol::Tls, udp(79, 8080)),
        speaking(AppProtocol::Http11, port(80, 8080)),
        speaking(AppProtocol::Grpc, port(81, 0)),
        speaking(AppProtocol::Http2, port(82, 8082)),
    ];
    let mut pod = endpoint("web-1", "10.0.1.1", &[&web]);
    // The pod's own ports win; those of UDP are others.
    pod.services.insert(web.id.clone(), vec![udp(80, 9999), port(81, 7000), port(82, 7002)]);
    let (web, pod) = (Arc::new(web), Arc::new(pod));
    let asked = |port, service: Option<&Arc<Service>>| WaypointTarget::Pod {
        workload: pod.clone(),
        service: service.cloned(),
        address: at(&format!("10.0.1.1:{port}")),
    };

    for (own, seen, protocol) in [
        (8080, 80, AppProtocol::Http11),
        (7000, 81, AppProtocol::Grpc),
        (7002, 82, AppProtocol::Http2),
        (8082, 8082, AppProtocol::Unknown),
        (9999, 9999, AppProtocol::Unknown),
    ] {
        let target = asked(own, Some(&web));
        assert_eq!(target.seen_by_policies(), at(&format!("10.0.1.1:{seen}")), "{own}");
        assert_eq!(target.protocol(), protocol, "{own}");
        // No service is asked for by the address of its pod, so none of its routes is followed.
        assert_eq!(target.routed(), None);
    }
    assert_eq!(asked(8080, None).seen_by_policies(), at("10.0.1.1:8080"));

    let by_service = WaypointTarget::Service { service: web.clone(), port: 81, address: at("10.96.0.1:1").ip() };
    assert_eq!(by_service.seen_by_policies(), at("10.96.0.1:81"));
    assert_eq!(by_service.protocol(), AppProtocol::Grpc);
    assert_eq!(by_service.routed(), Some((&web.id, 81)));
}

#[test]
fn a_backends_policies_are_asked_by_the_waypoint_that_serves_it_and_once() {
    let waypoint = service("waypoint", &["10.96.0.2"]);
    let served = |name: &str, address: &str| Service {
        waypoint: Some(waypoint_by_name(&waypoint)),
        ..service(name, &[address])
    };
    let (web, db, free) = (served("web", "10.96.0.1"), served("db", "10.96.0.3"), service("free", &["10.96.0.4"]));
    let gateway = endpoint("gateway", "10.0.2.1", &[&waypoint]);
    let mut mesh = mesh(&[&waypoint, &web, &db, &free], &[&gateway]);
    let attached =
        |name: &str, target| Policy { targets: vec![target], ..Policy::new(policy_name(name), PolicyAction::Deny) };
    for service in [&web, &db, &free] {
        let target = PolicyTarget::Service(service.id.clone());
        mesh.upsert_request_policy(attached(&format!("default/{}", service.name), target).into());
    }
    mesh.upsert_request_policy(attached("default/gateway", PolicyTarget::Waypoint(waypoint.id.clone())).into());
    mesh.upsert_request_policy(attached("default/other", PolicyTarget::Waypoint(web.id.clone())).into());
    mesh.upsert_request_policy(attached("default/unclear", PolicyTarget::All).into());
    let target = |service: &Service| WaypointTarget::Service {
        service: Arc::new(service.clone()),
        port: 80,
        address: at("10.96.0.1:1").ip(),
    };
    let names = |policies: &Map<PolicyName, Arc<Policy>>| policies.keys().map(|id| id.name.to_string()).collect();
    let of_backend = |asked: &Service, backend: &Service| -> Option<Vec<String>> {
        policies_of_backend(&mesh, &gateway, &target(asked), &target(backend)).map(names)
    };

    assert_eq!(of_backend(&web, &db), Some(vec!["db".to_owned()]));
    assert_eq!(of_backend(&web, &web), None, "they were asked already");
    assert_eq!(of_backend(&web, &free), None, "its pods are asked");
    let of_service = |service: Option<&ServiceName>| -> Vec<String> {
        policies_at(&mesh, &gateway, service).into_iter().flat_map(names as fn(&Map<_, _>) -> Vec<String>).collect()
    };
    assert_eq!(of_service(Some(&web.id)), ["web", "gateway", "unclear"]);
    assert_eq!(of_service(None), ["gateway", "unclear"]);
}
