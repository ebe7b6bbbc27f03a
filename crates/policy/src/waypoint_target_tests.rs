use std::sync::Arc;

use leno_model::{Mesh, Service, Workload};

use super::*;
use crate::test_support::{at, endpoint, ip, mesh, pod, port, service, waypoint_by_name};

/// A mesh with the waypoint `gateway`, the service `web` that names it, with the pod `backend`, and `other`, which names none.
fn meshed() -> (Mesh, Workload) {
    let mut waypoint = service("waypoint", &["10.96.0.2"]);
    waypoint.ports = vec![port(15008, 15008)];
    let mut web = service("web", &["10.96.0.1"]);
    web.waypoint = Some(waypoint_by_name(&waypoint));
    let other = service("other", &["10.96.0.3"]);
    let mut db = pod("db", "10.0.1.9");
    db.waypoint = Some(Box::new(waypoint_by_name(&waypoint)));
    let gateway = endpoint("gateway", "10.0.2.1", &[&waypoint]);
    let backend = endpoint("backend", "10.0.1.1", &[&web]);
    let away = endpoint("away", "10.0.1.2", &[&other]);
    (mesh(&[&waypoint, &web, &other], &[&gateway, &backend, &away, &db]), gateway)
}

fn asked(authority: &str) -> Result<WaypointTarget, WaypointRefusal> {
    let (mesh, gateway) = meshed();
    waypoint_target(&mesh, &gateway, authority)
}

#[test]
fn a_service_is_known_by_its_address_and_by_its_name() {
    for (authority, like) in [("10.96.0.1:80", "10.96.0.1"), ("web.default.svc.cluster.local:80", "10.96.0.1")] {
        match asked(authority) {
            Ok(WaypointTarget::Service { service, port: 80, address }) => {
                assert_eq!((&*service.name, address), ("web", ip(like)));
            }
            other => panic!("{authority}: {other:?}"),
        }
    }
}

#[test]
fn a_pod_is_served_if_it_or_its_service_names_the_waypoint() {
    let of = |asked: Result<WaypointTarget, _>| match asked {
        Ok(WaypointTarget::Pod { workload, service, address }) => {
            (workload.name.to_string(), service.map(|s: Arc<Service>| s.name.to_string()), address)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(of(asked("10.0.1.1:8080")), ("backend".into(), Some("web".into()), at("10.0.1.1:8080")));
    assert_eq!(of(asked("10.0.1.9:5432")), ("db".into(), None, at("10.0.1.9:5432")));
}

/// A service has its exact addresses, also where a pod claims one; of its range, what no pod has.
#[test]
fn an_address_in_a_services_range_is_the_pods_that_has_it() {
    let waypoint = service("waypoint", &["10.96.0.2"]);
    let mut web = service("web", &["10.96.0.1"]);
    web.ranges = vec![("".into(), "10.0.1.0/24".parse().expect("range"))];
    web.waypoint = Some(waypoint_by_name(&waypoint));
    let gateway = endpoint("gateway", "10.0.2.1", &[&waypoint]);
    let backend = endpoint("backend", "10.0.1.1", &[&web]);
    let claims = endpoint("claims", "10.96.0.1", &[&web]);
    let mesh = mesh(&[&waypoint, &web], &[&gateway, &backend, &claims]);
    let of = |authority: &str| match waypoint_target(&mesh, &gateway, authority) {
        Ok(WaypointTarget::Service { service, port, address }) => format!("{} {address} {port}", service.name),
        Ok(WaypointTarget::Pod { workload, address, .. }) => format!("pod {} {address}", workload.name),
        Err(refusal) => panic!("{authority}: {refusal}"),
    };
    assert_eq!(of("10.0.1.1:8080"), "pod backend 10.0.1.1:8080");
    assert_eq!(of("10.96.0.1:80"), "web 10.96.0.1 80");
    assert_eq!(of("10.0.1.9:80"), "web 10.0.1.9 80");
}

#[test]
fn whoever_names_no_or_another_waypoint_is_refused() {
    for (authority, status) in [
        ("10.96.0.3:80", 404),
        ("other.default.svc.cluster.local:80", 404),
        ("10.0.1.2:8080", 404),
        ("10.0.1.1:9999", 404),
        ("10.96.0.1:81", 404),
        ("10.9.9.9:80", 404),
        ("nobody.default.svc.cluster.local:80", 404),
        ("169.254.169.254:80", 404),
        ("127.0.0.1:15000", 404),
        ("10.96.0.1", 400),
        ("", 400),
        ("10.96.0.1:0", 400),
        ("user@10.96.0.1:80", 400),
    ] {
        let refusal = asked(authority).expect_err(authority);
        assert_eq!(refusal.status(), status, "{authority}: {refusal}");
        // What the control plane may still send.
        let later = status == 404 && authority != "10.96.0.1:81";
        assert_eq!(refusal.is_retryable(), later, "{authority}: {refusal}");
    }
}
