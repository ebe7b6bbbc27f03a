use leno_model::{ApplicationTunnel, HBONE_PORT};

use super::*;
use crate::test_support::{at, endpoint, ip, mesh, pod, port, service, waypoint_by_address, waypoint_by_name};

const HERE: &str = "10.0.0.9:15008";

fn target(mesh: &Mesh, workload: &Workload, authority: &str) -> Result<SocketAddr, u16> {
    inbound_target(mesh, workload, authority, at(HERE)).map(|t| t.address).map_err(|refusal| refusal.status())
}

#[test]
fn only_the_own_address_is_reached() {
    let web = pod("web", "10.0.0.9");
    let other = pod("other", "10.0.0.8");
    let mesh = mesh(&[], &[&web, &other]);
    assert_eq!(target(&mesh, &web, "10.0.0.9:8080"), Ok(at("10.0.0.9:8080")));
    assert_eq!(target(&mesh, &web, "[::ffff:10.0.0.9]:8080"), Ok(at("10.0.0.9:8080")));
    for elsewhere in ["10.0.0.8:8080", "127.0.0.1:8080", "[::1]:8080", "169.254.169.254:80"] {
        assert_eq!(target(&mesh, &web, elsewhere), Err(400), "{elsewhere}");
    }
    let mapped = inbound_target(&mesh, &web, "10.0.0.9:80", at("[::ffff:10.0.0.9]:15008"));
    assert_eq!(mapped.map(|t| t.address), Ok(at("10.0.0.9:80")));
}

#[test]
fn malformed_is_told_and_cut() {
    let web = pod("web", "10.0.0.9");
    let refusal = inbound_target(&Mesh::default(), &web, &"x".repeat(10_000), at(HERE)).expect_err("refused");
    assert_eq!(refusal.status(), 400);
    let words = refusal.to_string();
    assert!(words.len() < 300 && words.contains(&"x".repeat(100)) && !words.contains(&"x".repeat(101)), "{words}");
    let elsewhere = inbound_target(&Mesh::default(), &web, "10.0.0.8:80", at(HERE)).expect_err("refused").to_string();
    assert!(elsewhere.contains("is not an address of default/web"), "{elsewhere}");
    assert_eq!(target(&Mesh::default(), &web, ""), Err(400));
}

#[test]
fn only_what_may_still_arrive_is_worth_waiting_for() {
    let mut web = service("web", &["10.96.0.1"]);
    web.ports.push(port(81, 0));
    let own = endpoint("web-1", "10.0.0.9", &[&web]);
    let closed = Service { not_understood: Some("why".into()), ..service("closed", &[]) };
    let other = service("other", &[]);
    let mesh = mesh(&[&web, &closed, &other], &[&own]);
    let later = |authority: &str| inbound_target(&mesh, &own, authority, at(HERE)).expect_err(authority).is_retryable();
    for authority in [
        "nobody.default.svc.cluster.local:80",
        "other.default.svc.cluster.local:80",
        "web.default.svc.cluster.local:81",
    ] {
        assert!(later(authority), "{authority}");
    }
    for authority in ["", "10.0.0.8:80", "10.0.0.9:15008", "closed.default.svc.cluster.local:80"] {
        assert!(!later(authority), "{authority}");
    }
}

#[test]
fn the_proxys_ports_are_out_of_reach() {
    let web = pod("web", "10.0.0.9");
    // The proxy's DNS listens in the pod, for the pod only.
    assert!(RESERVED_PORTS.contains(&15053));
    for reserved in RESERVED_PORTS {
        assert_eq!(target(&Mesh::default(), &web, &format!("10.0.0.9:{reserved}")), Err(503));
    }
    let mut sly = service("sly", &[]);
    sly.ports = vec![port(80, HBONE_PORT)];
    let web = endpoint("web", "10.0.0.9", &[&sly]);
    let mesh = mesh(&[&sly], &[&web]);
    assert_eq!(target(&mesh, &web, "sly.default.svc.cluster.local:80"), Err(503));
}

#[test]
fn host_names_are_mapped_to_the_endpoints_port() {
    let mut web = service("web", &["10.96.0.1"]);
    web.ports.push(port(81, 0));
    let mut own = endpoint("web-1", "10.0.0.9", &[&web]);
    own.services.insert(web.id.clone(), vec![port(81, 9000)]);
    let stranger = pod("stranger", "10.0.0.9");
    let mesh = mesh(&[&web], &[&own]);
    let name = "web.default.svc.cluster.local";
    assert_eq!(target(&mesh, &own, &format!("{name}:80")), Ok(at("10.0.0.9:8080")));
    assert_eq!(target(&mesh, &own, &format!("{name}:81")), Ok(at("10.0.0.9:9000")));
    assert_eq!(target(&mesh, &own, &format!("{name}:82")), Err(503));
    assert_eq!(target(&mesh, &own, "nobody.default.svc.cluster.local:80"), Err(503));
    assert_eq!(target(&mesh, &stranger, &format!("{name}:80")), Err(503));
    let found = inbound_target(&mesh, &own, &format!("{name}:80"), at(HERE)).expect("accepted");
    assert_eq!(found.service.map(|s| s.id.clone()), Some(web.id));
    assert_eq!(found.proxy_header, None);
}

#[test]
fn an_application_tunnel_takes_any_address() {
    let mut gateway = pod("gateway", "10.0.0.9");
    let mesh = Mesh::default();
    gateway.application_tunnel = Some(ApplicationTunnel { protocol: ApplicationProtocol::Proxy, port: Some(15088) });
    let found = inbound_target(&mesh, &gateway, "10.96.0.1:80", at(HERE)).expect("accepted");
    assert_eq!((found.address, found.proxy_header), (at("10.0.0.9:15088"), Some(at("10.96.0.1:80"))));
    gateway.application_tunnel = Some(ApplicationTunnel { protocol: ApplicationProtocol::None, port: None });
    let found = inbound_target(&mesh, &gateway, "10.96.0.1:80", at(HERE)).expect("accepted");
    assert_eq!((found.address, found.proxy_header), (at("10.0.0.9:80"), None));
}

#[test]
fn a_proxy_header_has_an_address_of_the_service_that_was_named() {
    let announced = |addresses: &[(&str, &str)]| {
        let mut web = service("web", &[]);
        web.addresses = addresses
            .iter()
            .map(|(network, address)| NetworkAddress { network: (*network).into(), address: ip(address) })
            .collect();
        let tunnel = ApplicationTunnel { protocol: ApplicationProtocol::Proxy, port: None };
        let gateway = Workload { application_tunnel: Some(tunnel), ..pod("gateway", "10.0.0.9") };
        let mesh = mesh(&[&web], &[&gateway]);
        let found = inbound_target(&mesh, &gateway, "web.default.svc.cluster.local:80", at(HERE)).expect("accepted");
        assert_eq!(found.address, at("10.0.0.9:8080"));
        found.proxy_header.expect("a header")
    };
    assert_eq!(announced(&[("", "fd96::1"), ("", "10.96.0.1"), ("east", "10.96.0.2")]), at("10.96.0.1:80"));
    assert_eq!(announced(&[("east", "10.96.0.2"), ("", "fd96::1")]), at("[fd96::1]:80"), "of its own network");
    assert_eq!(announced(&[("east", "10.96.0.2")]), at("10.96.0.2:80"));
    assert_eq!(announced(&[]), at("10.0.0.9:80"), "its own, where there is none");
}

#[test]
fn a_waypoint_takes_what_it_stands_for() {
    let waypoint = service("waypoint", &["10.96.0.2"]);
    let gateway = endpoint("gateway", "10.0.0.9", &[&waypoint]);
    for reference in [waypoint_by_name(&waypoint), waypoint_by_address("10.96.0.2"), waypoint_by_address("10.0.0.9")] {
        let mut web = service("web", &["10.96.0.1"]);
        web.waypoint = Some(reference.clone());
        let mut pod_with = pod("db", "10.0.0.5");
        pod_with.waypoint = Some(Box::new(reference.clone()));
        let free = pod("free", "10.0.0.6");
        let mesh = mesh(&[&waypoint, &web], &[&gateway, &pod_with, &free]);
        assert_eq!(target(&mesh, &gateway, "10.96.0.1:80"), Ok(at("10.0.0.9:80")), "{reference:?}");
        let by_name = target(&mesh, &gateway, "web.default.svc.cluster.local:80");
        assert_eq!(by_name, Ok(at("10.0.0.9:8080")), "{reference:?}");
        assert_eq!(target(&mesh, &gateway, "10.0.0.5:80"), Ok(at("10.0.0.9:80")), "{reference:?}");
        assert_eq!(target(&mesh, &gateway, "10.0.0.6:80"), Err(400), "{reference:?}");
        assert_eq!(target(&mesh, &free, "10.96.0.1:80"), Err(400), "{reference:?}");
    }
}

#[test]
fn a_waypoint_that_is_not_known_is_nobody() {
    let gone = service("gone", &[]);
    let claims = endpoint("claims", "10.0.0.9", &[&gone]);
    let mut web = service("web", &["10.96.0.1"]);
    web.waypoint = Some(waypoint_by_name(&gone));
    let mesh = mesh(&[&web], &[&claims]);
    assert_eq!(target(&mesh, &claims, "10.96.0.1:80"), Err(400));
    assert_eq!(ip("10.0.0.9"), claims.addresses[0]);
}

#[test]
fn a_service_that_was_not_understood_leads_nowhere() {
    let mut web = service("web", &["10.96.0.1"]);
    let pod = endpoint("web", "10.0.0.9", &[&web]);
    assert!(target(&mesh(&[&web], &[&pod]), &pod, "web.default.svc.cluster.local:80").is_ok());
    web.not_understood = Some("why".into());
    assert_eq!(target(&mesh(&[&web], &[&pod]), &pod, "web.default.svc.cluster.local:80"), Err(503));
}
