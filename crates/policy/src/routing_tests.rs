use std::collections::HashMap;

use leno_model::{
    GatewayDestination, Health, HealthPolicy, IpFamilies, Locality, NetworkAddress, NetworkMode, PolicyName,
    RoutingScope, WeightedWaypoint,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::test_support::{
    at, endpoint, identity, ip, mesh, numbers, pod, port, service, vip, waypoint_by_address, waypoint_by_name,
};

fn client() -> Workload {
    pod("client", "10.0.0.1")
}

fn plan(mesh: &Mesh, destination: &str) -> Result<RoutePlan, RouteError> {
    route(mesh, &client(), at(destination), &mut numbers(1))
}

fn first(mesh: &Mesh, destination: &str) -> Route {
    plan(mesh, destination).expect("a route").attempts()[0].clone()
}

fn refusal(mesh: &Mesh, destination: &str) -> String {
    plan(mesh, destination).expect_err("refused").to_string()
}

/// Peer, authority and whether through a waypoint.
fn tunnel(route: &Route) -> (SocketAddr, &str, bool) {
    match route {
        Route::Hbone { address, authority, via_waypoint, .. } => (*address, authority, *via_waypoint),
        other => panic!("not a tunnel: {other:?}"),
    }
}

fn targets(plan: &RoutePlan) -> Vec<SocketAddr> {
    plan.attempts()
        .iter()
        .map(|route| match route {
            Route::Hbone { target, .. } => *target,
            Route::Plain { address, .. } | Route::Passthrough { address } => *address,
        })
        .collect()
}

#[test]
fn an_unknown_address_is_passed_through() {
    assert_eq!(first(&Mesh::default(), "1.2.3.4:80"), Route::Passthrough { address: at("1.2.3.4:80") });
    assert_eq!(first(&Mesh::default(), "[::ffff:1.2.3.4]:80"), Route::Passthrough { address: at("1.2.3.4:80") });
}

#[test]
fn the_proxys_ports_on_loopback_are_refused() {
    for reserved in RESERVED_PORTS {
        for host in ["127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]"] {
            let error = plan(&Mesh::default(), &format!("{host}:{reserved}")).expect_err("refused");
            assert!(matches!(error, RouteError::ReservedPort(_)) && !error.is_retryable());
        }
    }
    assert!(plan(&Mesh::default(), "127.0.0.1:8080").is_ok());
    assert!(plan(&Mesh::default(), "10.0.0.1:15008").is_ok());
}

#[test]
fn an_endpoint_has_another_address_if_its_service_has_both_families() {
    let of_service = |families| {
        let web = Service { ip_families: families, ..service("web", &["10.96.0.1", "fd96::1"]) };
        let mut one = endpoint("web-1", "10.0.0.9", &[&web]);
        one.addresses.push(ip("fd00::9"));
        mesh(&[&web], &[&one])
    };
    let over_v6 = first(&of_service(IpFamilies::Dual), "[fd96::1]:80");
    assert_eq!(tunnel(&over_v6), (at("[fd00::9]:15008"), "[fd00::9]:8080", false));
    let over_v4 = over_v6.over_the_other_family().expect("another address");
    assert_eq!(tunnel(&over_v4), (at("10.0.0.9:15008"), "10.0.0.9:8080", false));
    assert_eq!(over_v4.over_the_other_family().as_ref(), Some(&over_v6));
    assert_eq!(first(&of_service(IpFamilies::Ipv4Only), "10.96.0.1:80").over_the_other_family(), None);
    // A pod that is asked for by its address is asked for by that one.
    assert_eq!(first(&of_service(IpFamilies::Dual), "10.0.0.9:8080").over_the_other_family(), None);
}

#[test]
fn a_pod_by_address() {
    let web = pod("web", "10.0.0.9");
    let outside = Workload { tunnel_protocol: TunnelProtocol::None, ..pod("old", "10.0.0.8") };
    let mesh = mesh(&[], &[&web, &outside]);
    let to_web = plan(&mesh, "10.0.0.9:9999").expect("a route");
    assert_eq!(tunnel(&to_web.attempts()[0]), (at("10.0.0.9:15008"), "10.0.0.9:9999", false));
    assert_eq!((to_web.attempts().len(), to_web.service()), (1, None));
    let Route::Hbone { expected, .. } = &to_web.attempts()[0] else { panic!("tunnel") };
    assert_eq!(expected.as_slice(), [identity("spiffe://cluster.local/ns/default/sa/web")]);
    assert!(matches!(first(&mesh, "10.0.0.8:80"), Route::Plain { address, .. } if address == at("10.0.0.8:80")));
}

#[test]
fn an_endpoint_by_hand_with_the_address_of_a_pod_is_the_pod() {
    let db = service("db", &["10.96.0.2"]);
    let web = pod("web", "10.0.0.9");
    let by_hand = |name, address| Workload {
        tunnel_protocol: TunnelProtocol::None,
        network_mode: NetworkMode::HostNetwork,
        ..endpoint(name, address, &[&db])
    };
    let (same, other) = (by_hand("db-1", "10.0.0.9"), by_hand("db-2", "192.0.2.1"));
    let to_pod = first(&mesh(&[&db], &[&web, &same]), "10.96.0.2:80");
    assert_eq!(tunnel(&to_pod), (at("10.0.0.9:15008"), "10.0.0.9:8080", false));
    let Route::Hbone { expected, service: addressed, .. } = &to_pod else { panic!("tunnel") };
    assert_eq!(expected.as_slice(), [identity("spiffe://cluster.local/ns/default/sa/web")]);
    assert_eq!(addressed.as_ref().map(|s| &s.id), Some(&db.id));
    let elsewhere = first(&mesh(&[&db], &[&web, &other]), "10.96.0.2:80");
    assert!(matches!(elsewhere, Route::Plain { address, .. } if address == at("192.0.2.1:8080")));
    let cache = service("cache", &["192.0.2.1"]);
    let refused = refusal(&mesh(&[&db, &cache], &[&web, &other]), "10.96.0.2:80");
    assert!(
        refused.ends_with("of 1 endpoint: 1 with the address of another service (which is no endpoint)"),
        "{refused}"
    );
    // A range around it makes it nobody's, nor does another address of the same service.
    let mut range = service("range", &["10.96.0.9"]);
    range.ranges = vec![("".into(), "192.0.2.0/24".parse().expect("range"))];
    let within = first(&mesh(&[&db, &range], &[&web, &other]), "10.96.0.2:80");
    assert!(matches!(within, Route::Plain { address, .. } if address == at("192.0.2.1:8080")), "{within:?}");
    let strange = Workload { not_understood: Some("new".into()), tunnel_protocol: TunnelProtocol::None, ..web };
    assert!(refusal(&mesh(&[&db], &[&strange, &same]), "10.96.0.2:80").contains("does not understand"));
}

#[test]
fn a_service_is_its_endpoints() {
    let mut web = service("web", &["10.96.0.1"]);
    web.subject_alt_names = vec!["spiffe://other/ns/a/sa/b".into(), "not an identity".into()];
    let pods: Vec<Workload> = (1..=5).map(|i| endpoint(&format!("web-{i}"), &format!("10.0.1.{i}"), &[&web])).collect();
    let mesh = mesh(&[&web], &pods.iter().collect::<Vec<_>>());
    let plan = plan(&mesh, "10.96.0.1:80").expect("a route");
    assert_eq!(plan.service().map(|s| &s.id), Some(&web.id));
    let mut all = targets(&plan);
    assert_eq!(all.len(), 3);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 3, "different endpoints");
    assert!(all.iter().all(|a| a.port() == 8080));
    let Route::Hbone { expected, authority, target, service, .. } = &plan.attempts()[0] else { panic!("tunnel") };
    assert_eq!(*authority, target.to_string());
    assert_eq!(expected[1..], [identity("spiffe://other/ns/a/sa/b")]);
    assert_eq!(service.as_ref().map(|s| &s.id), Some(&web.id));
}

#[test]
fn ports_of_service_and_endpoint() {
    let mut web = service("web", &["10.96.0.1"]);
    web.ports.push(port(81, 0));
    let plain = endpoint("plain", "10.0.1.1", &[&web]);
    let mut named = endpoint("named", "10.0.1.2", &[&web]);
    named.services.insert(web.id.clone(), vec![port(81, 7000)]);
    let mesh = mesh(&[&web], &[&plain, &named]);
    assert_eq!(targets(&plan(&mesh, "10.96.0.1:81").expect("a route")), [at("10.0.1.2:7000")]);
    let error = plan(&mesh, "10.96.0.1:82").expect_err("refused");
    assert_eq!(error.to_string(), "service default/web.default.svc.cluster.local has no port 82; it has 80, 81");
    assert_eq!(error.service(), Some(&web.id));
}

#[test]
fn unusable_endpoints_are_counted() {
    let mut web = service("web", &["10.96.0.1"]);
    assert!(refusal(&mesh(&[&web], &[]), "10.96.0.1:80").contains("it has no endpoints"));
    let mut sick = endpoint("a", "10.0.1.1", &[&web]);
    sick.health = Health::Unhealthy;
    let sick_too = Workload { uid: "b".into(), addresses: vec![ip("10.0.1.2")], ..sick.clone() };
    let far = Workload { network: "east".into(), ..endpoint("c", "10.0.1.3", &[&web]) };
    let bare = Workload { addresses: vec![], ..endpoint("d", "10.0.1.4", &[&web]) };
    let named = Workload { hostname: "x.example".into(), ..bare.clone() };
    let named = Workload { uid: "e".into(), ..named };
    let light = Workload { capacity: 0, ..endpoint("f", "10.0.1.6", &[&web]) };
    let all = [&sick, &sick_too, &far, &bare, &named, &light];
    let error = plan(&mesh(&[&web], &all), "10.96.0.1:80").expect_err("refused");
    assert!(error.is_retryable());
    assert_eq!(
        error.to_string(),
        "no healthy endpoint for service default/web.default.svc.cluster.local port 80: of 6 endpoints: 2 not ready, \
         1 in another network (which this version can't reach: no nested HBONE yet), \
         1 without an address of a permitted family, \
         1 known only by a DNS name (which this version doesn't resolve), 1 with weight 0"
    );
    web.load_balancing.health_policy = HealthPolicy::AllowAll;
    assert_eq!(plan(&mesh(&[&web], &all), "10.96.0.1:80").expect("a route").attempts().len(), 2);
}

#[test]
fn never_plaintext_to_somebody_without_a_name() {
    let web = service("web", &["10.96.0.1"]);
    let nameless = Workload { service_account: "a/b".into(), ..endpoint("a", "10.0.1.1", &[&web]) };
    let good = endpoint("b", "10.0.1.2", &[&web]);
    let only = mesh(&[&web], &[&nameless]);
    for destination in ["10.0.1.1:80", "10.96.0.1:80"] {
        let error = plan(&only, destination).expect_err("refused");
        assert!(matches!(error, RouteError::NoIdentity { .. }), "{error}");
    }
    let both = mesh(&[&web], &[&nameless, &good]);
    assert_eq!(targets(&plan(&both, "10.96.0.1:80").expect("a route")), [at("10.0.1.2:8080")]);
}

#[test]
fn the_address_family() {
    let mut web = service("web", &["10.96.0.1", "fd00:96::1"]);
    let mut dual = endpoint("a", "10.0.1.1", &[&web]);
    dual.addresses.push(ip("fd00::1"));
    let both = mesh(&[&web], &[&dual]);
    assert_eq!(targets(&plan(&both, "10.96.0.1:80").expect("a route")), [at("10.0.1.1:8080")]);
    assert_eq!(targets(&plan(&both, "[fd00:96::1]:80").expect("a route")), [at("[fd00::1]:8080")]);
    assert_eq!(tunnel(&first(&both, "[fd00:96::1]:80")).1, "[fd00::1]:8080");
    web.ip_families = IpFamilies::Ipv4Only;
    let narrow = mesh(&[&web], &[&dual]);
    assert_eq!(targets(&plan(&narrow, "[fd00:96::1]:80").expect("a route")), [at("10.0.1.1:8080")]);
}

#[test]
fn a_range_does_not_take_pods_out_of_the_mesh() {
    let mut range = service("range", &[]);
    range.ranges = vec![("".into(), "10.0.0.0/8".parse().expect("range"))];
    range.load_balancing.mode = LoadBalancingMode::Passthrough;
    let mut exact = service("exact", &["10.0.0.9"]);
    exact.load_balancing.mode = LoadBalancingMode::Passthrough;
    let web = pod("web", "10.0.0.9");
    for services in [vec![&range], vec![&exact], vec![&range, &exact]] {
        let mesh = mesh(&services, &[&web]);
        assert_eq!(tunnel(&first(&mesh, "10.0.0.9:80")).0, at("10.0.0.9:15008"));
    }
    let mesh = mesh(&[&range], &[&web]);
    let other = plan(&mesh, "10.9.9.9:1234").expect("a route");
    assert!(matches!(&other.attempts()[0], Route::Plain { address, .. } if *address == at("10.9.9.9:1234")));
    assert_eq!(other.service().map(|s| &s.id), Some(&range.id));
}

/// A service's exact address is the service's, also where a pod claims it; an address in its range is not.
#[test]
fn an_address_is_whose_it_is_exactly() {
    let mut range = service("range", &["10.200.0.1"]);
    range.ranges = vec![("".into(), "10.0.0.0/8".parse().expect("range"))];
    let backend = endpoint("range-1", "10.0.1.1", &[&range]);
    let (in_range, same) = (pod("in-range", "10.0.0.9"), pod("same", "10.200.0.1"));
    let mesh = mesh(&[&range], &[&backend, &in_range, &same]);
    assert_eq!(targets(&plan(&mesh, "10.0.0.9:80").expect("the pod")), [at("10.0.0.9:80")]);
    assert_eq!(targets(&plan(&mesh, "10.200.0.1:80").expect("the service")), [at("10.0.1.1:8080")]);
    assert_eq!(targets(&plan(&mesh, "10.7.7.7:80").expect("the service")), [at("10.0.1.1:8080")]);
}

#[test]
fn a_waypoint_chooses_among_all_that_can_be_reached() {
    let mut web = service("web", &["10.96.0.1"]);
    web.load_balancing.mode = LoadBalancingMode::Failover;
    web.load_balancing.routing_preference = vec![RoutingScope::Node];
    let near = place(endpoint("near", "10.0.1.1", &[&web]), "", "", "n1");
    let far = place(endpoint("far", "10.0.1.2", &[&web]), "", "", "n2");
    let sick = Workload { health: Health::Unhealthy, ..endpoint("sick", "10.0.1.3", &[&web]) };
    let gateway = place(pod("gateway", "10.0.2.1"), "", "", "n1");
    let mesh = mesh(&[&web], &[&near, &far, &sick, &gateway]);
    let of = |gateway: &Workload, service: &Service, port: u16| {
        let service = Arc::new(service.clone());
        let found = reachable(&mesh, gateway, &service, SocketAddr::new(ip("10.96.0.1"), port));
        let mut found: Vec<_> = found?.iter().map(|it| (it.target, it.rank)).collect();
        found.sort();
        Ok::<_, RouteError>(found)
    };
    assert_eq!(of(&gateway, &web, 80), Ok(vec![(at("10.0.1.1:8080"), 1), (at("10.0.1.2:8080"), 0)]));
    assert!(matches!(of(&gateway, &web, 81), Err(RouteError::NoSuchPort { .. })));
    let closed = Service { not_understood: Some("new".into()), ..web.clone() };
    assert!(matches!(of(&gateway, &closed, 80), Err(RouteError::NotUnderstood(_))));
    let strange = Workload { not_understood: Some("new".into()), ..gateway.clone() };
    assert!(matches!(of(&strange, &web, 80), Err(RouteError::NotUnderstood(_))));

    let web = Arc::new(web);
    let all = reachable(&mesh, &gateway, &web, at("10.96.0.1:80")).expect("some");
    let to = all.iter().find(|it| it.rank == 1).copied().expect("the near one");
    let route = route_to_reachable(&web, to).expect("a route");
    assert_eq!(tunnel(&route), (at("10.0.1.1:15008"), "10.0.1.1:8080", false));
}

#[test]
fn no_more_than_three_instances_of_a_waypoint_are_tried() {
    let mut waypoint = service("waypoint", &["10.96.0.2"]);
    waypoint.ports = vec![port(15008, 15008)];
    let all: Vec<_> = (1..=5).map(|n| endpoint(&format!("gw-{n}"), &format!("10.0.2.{n}"), &[&waypoint])).collect();
    let mut web = service("web", &["10.96.0.1"]);
    web.waypoint = Some(waypoint_by_name(&waypoint));
    let mesh = mesh(&[&waypoint, &web], &all.iter().collect::<Vec<_>>());
    assert_eq!(plan(&mesh, "10.96.0.1:80").expect("a route").attempts().len(), 3);
}

#[test]
fn a_service_waypoint_is_passed() {
    let mut waypoint = service("waypoint", &["10.96.0.2"]);
    waypoint.ports = vec![port(15008, 15008)];
    let gateway = endpoint("gateway", "10.0.2.1", &[&waypoint]);
    for reference in [waypoint_by_name(&waypoint), waypoint_by_address("10.96.0.2"), waypoint_by_address("10.0.2.1")] {
        let mut web = service("web", &["10.96.0.1"]);
        web.waypoint = Some(reference);
        let backend = endpoint("web-1", "10.0.1.1", &[&web]);
        let mesh = mesh(&[&waypoint, &web], &[&gateway, &backend]);
        let plan = plan(&mesh, "10.96.0.1:80").expect("a route");
        assert_eq!(tunnel(&plan.attempts()[0]), (at("10.0.2.1:15008"), "10.96.0.1:80", true));
        let Route::Hbone { expected, .. } = &plan.attempts()[0] else { panic!("tunnel") };
        assert_eq!(expected.as_slice(), [identity("spiffe://cluster.local/ns/default/sa/gateway")]);
        assert_eq!(plan.service().map(|s| &s.id), Some(&web.id));
        assert!(!tunnel(&first(&mesh, "10.0.1.1:8080")).2, "nothing says that the pod itself may not be reached");
        let guard = PolicyName::through_waypoint("default".into(), "waypoint");
        let guarded = Workload { authorization_policies: vec![guard], ..backend };
        let mesh = self::mesh(&[&waypoint, &web], &[&gateway, &guarded]);
        assert!(tunnel(&first(&mesh, "10.0.1.1:8080")).2, "nobody gets around it by the pod's own address");
        assert!(!tunnel(&first(&mesh, "10.0.1.1:9090")).2, "a port that no such service has");
        let own = route(&mesh, &gateway, at("10.96.0.1:80"), &mut numbers(1)).expect("the waypoint itself");
        assert!(own.attempts().iter().all(|attempt| !tunnel(attempt).2), "the waypoint goes on to the endpoints");
        let own = route(&mesh, &gateway, at("10.0.1.1:8080"), &mut numbers(1)).expect("the waypoint itself");
        assert!(own.attempts().iter().all(|attempt| !tunnel(attempt).2), "and to a pod that was asked for");
    }
}

#[test]
fn a_workload_waypoint_is_passed_except_by_itself() {
    let mut waypoint = service("waypoint", &["10.96.0.2"]);
    waypoint.ports = vec![port(15008, 15008)];
    let gateway = endpoint("gateway", "10.0.2.1", &[&waypoint]);
    let mut db = pod("db", "10.0.0.9");
    for reference in [waypoint_by_name(&waypoint), waypoint_by_address("10.96.0.2"), waypoint_by_address("10.0.2.1")] {
        db.waypoint = Some(Box::new(reference));
        let mesh = mesh(&[&waypoint], &[&gateway, &db]);
        assert_eq!(tunnel(&first(&mesh, "10.0.0.9:5432")), (at("10.0.2.1:15008"), "10.0.0.9:5432", true));
        let own = route(&mesh, &gateway, at("10.0.0.9:5432"), &mut numbers(1)).expect("a route");
        assert_eq!(tunnel(&own.attempts()[0]), (at("10.0.0.9:15008"), "10.0.0.9:5432", false));
    }
}

#[test]
fn a_waypoint_that_cannot_be_used_refuses() {
    let mut waypoint = service("waypoint", &["10.96.0.2"]);
    waypoint.ports = vec![port(15008, 15008)];
    let mut web = service("web", &["10.96.0.1"]);
    web.waypoint = Some(waypoint_by_name(&waypoint));
    let backend = endpoint("web-1", "10.0.1.1", &[&web]);
    let mut sick = endpoint("gateway", "10.0.2.1", &[&waypoint]);
    sick.health = Health::Unhealthy;
    let unknown = mesh(&[&web], &[&backend]);
    assert_eq!(
        refusal(&unknown, "10.96.0.1:80"),
        "waypoint default/waypoint.default.svc.cluster.local of service default/web.default.svc.cluster.local can't be \
         used: no such service or workload is known; check that the Gateway exists and is programmed; the connection \
         is refused rather than sent around it"
    );
    let empty = refusal(&mesh(&[&web, &waypoint], &[&backend, &sick]), "10.96.0.1:80");
    assert!(empty.contains("of 1 endpoint: 1 not ready"), "{empty}");
    let mut far = waypoint_by_address("10.96.0.2");
    far.destination = GatewayDestination::Address(NetworkAddress { network: "east".into(), ..vip("10.96.0.2") });
    web.waypoint = Some(far);
    let error = plan(&mesh(&[&web], &[&backend]), "10.96.0.1:80").expect_err("refused");
    assert!(error.to_string().contains("this version has none yet"), "{error}");
    assert!(error.is_retryable() && error.service() == Some(&web.id));
    web.waypoint = Some(waypoint_by_address("10.96.0.77"));
    assert!(refusal(&mesh(&[&web], &[&backend]), "10.96.0.1:80").contains("no such service or workload"));
    let mut db = pod("db", "10.0.0.9");
    db.waypoint = Some(Box::new(waypoint_by_address("10.96.0.77")));
    assert!(refusal(&mesh(&[], &[&db]), "10.0.0.9:1").contains("of workload default/db"));
}

#[test]
fn an_application_tunnel_needs_no_waypoint_port() {
    let waypoint = service("waypoint", &["10.96.0.2"]);
    let mut web = service("web", &["10.96.0.1"]);
    web.waypoint = Some(waypoint_by_name(&waypoint));
    let mut gateway = endpoint("gateway", "10.0.2.1", &[&waypoint]);
    assert!(refusal(&mesh(&[&web, &waypoint], &[&gateway]), "10.96.0.1:80").contains("1 without this port"));
    gateway.application_tunnel =
        Some(leno_model::ApplicationTunnel { protocol: leno_model::ApplicationProtocol::Proxy, port: Some(15088) });
    let mesh = mesh(&[&web, &waypoint], &[&gateway]);
    assert_eq!(tunnel(&first(&mesh, "10.96.0.1:80")).0, at("10.0.2.1:15008"));
}

#[test]
fn weighted_waypoints_share_connections() {
    let a = pod("a", "10.0.2.1");
    let b = pod("b", "10.0.2.2");
    let mut web = service("web", &["10.96.0.1"]);
    let weighted = |address, weight| WeightedWaypoint { destination: waypoint_by_address(address), weight };
    web.waypoint = Some(waypoint_by_address("10.0.2.1"));
    web.weighted_waypoints = vec![weighted("10.0.2.1", 0), weighted("10.0.2.2", 0)];
    assert_eq!(tunnel(&first(&mesh(&[&web], &[&a, &b]), "10.96.0.1:80")).0, at("10.0.2.1:15008"));
    web.weighted_waypoints = vec![weighted("10.0.2.1", 90), weighted("10.0.2.2", 10)];
    let mesh = mesh(&[&web], &[&a, &b]);
    let mut random = numbers(3);
    let canary = (0..1000)
        .filter(|_| {
            let plan = route(&mesh, &client(), at("10.96.0.1:80"), &mut random).expect("a route");
            tunnel(&plan.attempts()[0]).0 == at("10.0.2.2:15008")
        })
        .count();
    assert!((60..150).contains(&canary), "{canary} of 1000");
}

#[test]
fn connections_spread_by_capacity() {
    let web = service("web", &["10.96.0.1"]);
    let mut big = endpoint("big", "10.0.1.1", &[&web]);
    big.capacity = 3;
    let small = endpoint("small", "10.0.1.2", &[&web]);
    let mesh = mesh(&[&web], &[&big, &small]);
    let mut random = numbers(5);
    let mut first = HashMap::new();
    for _ in 0..1000 {
        let plan = route(&mesh, &client(), at("10.96.0.1:80"), &mut random).expect("a route");
        *first.entry(targets(&plan)[0].ip()).or_insert(0) += 1;
    }
    assert!((700..800).contains(&first[&ip("10.0.1.1")]), "{first:?}");
}

fn place(mut w: Workload, region: &str, zone: &str, node: &str) -> Workload {
    w.locality = Locality { region: region.into(), zone: zone.into(), subzone: "".into() };
    w.node = node.into();
    w
}

#[test]
fn failover_prefers_the_closest_and_falls_back() {
    let mut web = service("web", &["10.96.0.1"]);
    web.load_balancing.mode = LoadBalancingMode::Failover;
    web.load_balancing.routing_preference = vec![RoutingScope::Network, RoutingScope::Region, RoutingScope::Zone];
    let same_zone = place(endpoint("near", "10.0.1.1", &[&web]), "r1", "z1", "n1");
    let same_region = place(endpoint("mid", "10.0.1.2", &[&web]), "r1", "z2", "n2");
    // A zone of that name in another region is not the same zone: matching stops at the region.
    let elsewhere = place(endpoint("far", "10.0.1.3", &[&web]), "r2", "z1", "n3");
    let client = place(client(), "r1", "z1", "n9");
    let mesh = mesh(&[&web], &[&same_zone, &same_region, &elsewhere]);
    for seed in 0..20 {
        let plan = route(&mesh, &client, at("10.96.0.1:80"), &mut numbers(seed)).expect("a route");
        assert_eq!(targets(&plan), [at("10.0.1.1:8080"), at("10.0.1.2:8080"), at("10.0.1.3:8080")]);
    }
}

#[test]
fn who_does_not_answer_is_tried_last() {
    let mut web = service("web", &["10.96.0.1"]);
    web.load_balancing.mode = LoadBalancingMode::Failover;
    web.load_balancing.routing_preference = vec![RoutingScope::Node];
    let near = place(endpoint("near", "10.0.1.1", &[&web]), "", "", "here");
    let far: Vec<_> = (1..=4)
        .map(|n| place(endpoint(&format!("far-{n}"), &format!("10.0.2.{n}"), &[&web]), "", "", "there"))
        .collect();
    let mut all: Vec<_> = far.iter().collect();
    all.push(&near);
    let mesh = mesh(&[&web], &all);
    let client = Workload { node: "here".into(), ..client() };
    let around = |silent: &[&str], seed| {
        let silent = |address: SocketAddr| silent.iter().any(|ip| at(&format!("{ip}:15008")) == address);
        targets(&route_around(&mesh, &client, at("10.96.0.1:80"), &silent, &mut numbers(seed)).expect("a route"))
    };
    for seed in 0..50 {
        assert_eq!(around(&[], seed)[0], at("10.0.1.1:8080"));
        // However close it is; it comes even after all others have had their turn.
        assert!(!around(&["10.0.1.1"], seed).contains(&at("10.0.1.1:8080")));
        let tried = around(&["10.0.1.1", "10.0.2.1", "10.0.2.2", "10.0.2.3"], seed);
        assert_eq!(
            tried[..2],
            [at("10.0.2.4:8080"), at("10.0.1.1:8080")],
            "of those that don't answer, the closest first"
        );
        // Where nobody answers, all is as it was.
        assert_eq!(around(&["10.0.1.1", "10.0.2.1", "10.0.2.2", "10.0.2.3", "10.0.2.4"], seed), around(&[], seed));
    }
    // The only one there is.
    let alone = service("alone", &["10.96.0.2"]);
    let only = endpoint("only", "10.0.3.1", &[&alone]);
    let mesh = self::mesh(&[&alone], &[&only]);
    let plan = route_around(&mesh, &client, at("10.96.0.2:80"), &|_| true, &mut numbers(1)).expect("a route");
    assert_eq!(targets(&plan), [at("10.0.3.1:8080")]);
}

#[test]
fn strict_never_leaves_the_node() {
    let mut web = service("web", &["10.96.0.1"]);
    web.load_balancing.mode = LoadBalancingMode::Strict;
    web.load_balancing.routing_preference = vec![RoutingScope::Node];
    let here = place(endpoint("here", "10.0.1.1", &[&web]), "", "", "n1");
    let there = place(endpoint("there", "10.0.1.2", &[&web]), "", "", "n2");
    let client = place(client(), "", "", "n1");
    let both = mesh(&[&web], &[&here, &there]);
    let plan = route(&both, &client, at("10.96.0.1:80"), &mut numbers(1)).expect("a route");
    assert_eq!(targets(&plan), [at("10.0.1.1:8080")]);
    let error = route(&mesh(&[&web], &[&there]), &client, at("10.96.0.1:80"), &mut numbers(1)).expect_err("refused");
    assert!(error.to_string().contains("1 outside the locality"), "{error}");
}

/// How close an endpoint is, from the wording of the preference.
fn closeness(scopes: &[RoutingScope], source: &Workload, endpoint: &Workload) -> usize {
    let same = |scope: &RoutingScope| match scope {
        RoutingScope::Region => source.locality.region == endpoint.locality.region,
        RoutingScope::Zone => source.locality.zone == endpoint.locality.zone,
        RoutingScope::Subzone => source.locality.subzone == endpoint.locality.subzone,
        RoutingScope::Node => source.node == endpoint.node,
        RoutingScope::Cluster => source.cluster_id == endpoint.cluster_id,
        RoutingScope::Network => source.network == endpoint.network,
    };
    scopes.iter().take_while(|scope| same(scope)).count()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn attempts_are_the_best_usable_endpoints(
        endpoints in vec((select(vec!["r1", "r2"]), select(vec!["z1", "z2"]), select(vec!["n1", "n2"]), any::<bool>(), 0..3_u32), 0..12),
        scopes in vec(select(vec![RoutingScope::Network, RoutingScope::Region, RoutingScope::Zone, RoutingScope::Node]), 0..4),
        mode in select(vec![LoadBalancingMode::Unspecified, LoadBalancingMode::Failover, LoadBalancingMode::Strict]),
        seed in any::<u64>(),
    ) {
        let mut web = service("web", &["10.96.0.1"]);
        web.load_balancing.mode = mode;
        web.load_balancing.routing_preference = scopes.clone();
        let client = place(client(), "r1", "z1", "n1");
        let workloads: Vec<Workload> = endpoints
            .iter()
            .enumerate()
            .map(|(i, (region, zone, node, ready, capacity))| {
                let mut w = place(endpoint(&format!("web-{i}"), &format!("10.0.1.{i}"), &[&web]), region, zone, node);
                w.health = if *ready { Health::Healthy } else { Health::Unhealthy };
                w.capacity = *capacity;
                w
            })
            .collect();
        let usable = |w: &Workload| {
            w.health == Health::Healthy
                && w.capacity > 0
                && (mode != LoadBalancingMode::Strict || closeness(&scopes, &client, w) == scopes.len())
        };
        let rank = |w: &Workload| if mode == LoadBalancingMode::Failover { closeness(&scopes, &client, w) } else { 0 };
        let mut ranks: Vec<usize> = workloads.iter().filter(|w| usable(w)).map(rank).collect();
        ranks.sort_by(|a, b| b.cmp(a));
        ranks.truncate(3);
        let mesh = mesh(&[&web], &workloads.iter().collect::<Vec<_>>());
        match route(&mesh, &client, at("10.96.0.1:80"), &mut numbers(seed)) {
            Err(RouteError::NoHealthyEndpoint { counts, .. }) => {
                prop_assert!(ranks.is_empty());
                prop_assert_eq!(counts.total, counts.unready + counts.out_of_scope + counts.weightless);
            }
            Err(error) => prop_assert!(false, "{}", error),
            Ok(plan) => {
                let chosen: Vec<&Workload> = targets(&plan)
                    .into_iter()
                    .map(|t| workloads.iter().find(|w| w.addresses[0] == t.ip()).expect("an endpoint"))
                    .collect();
                prop_assert!(chosen.iter().all(|w| usable(w)));
                prop_assert_eq!(chosen.iter().map(|w| rank(w)).collect::<Vec<_>>(), ranks);
                let mut unique: Vec<_> = chosen.iter().map(|w| &w.uid).collect();
                unique.sort();
                unique.dedup();
                prop_assert_eq!(unique.len(), chosen.len());
            }
        }
    }
}

#[test]
fn what_was_not_understood_is_refused_by_every_way_to_it() {
    let closed = |w: Workload| Workload { not_understood: Some("from the future".into()), ..w };
    let web = service("web", &["10.96.0.1"]);
    let half = service("half", &["10.96.0.2"]);
    let mut unread = service("unread", &["10.96.0.3"]);
    unread.not_understood = Some("from the future".into());
    let mut behind = service("behind", &["10.96.0.4"]);
    behind.waypoint = Some(waypoint_by_name(&unread));
    let far = Workload { waypoint: Some(Box::new(waypoint_by_address("10.0.0.8"))), ..pod("far", "10.0.0.7") };
    // Even if what could be read says plaintext.
    let plain = closed(Workload { tunnel_protocol: TunnelProtocol::None, ..pod("plain", "10.0.0.8") });
    let only = closed(endpoint("only", "10.0.1.1", &[&web, &half]));
    let good = endpoint("good", "10.0.1.2", &[&half]);
    let mesh = mesh(&[&web, &half, &unread, &behind], &[&far, &plain, &only, &good]);
    for (destination, what) in [
        ("10.0.0.8:80", "workload default/plain"),
        ("10.0.1.1:80", "workload default/only"),
        ("10.96.0.3:80", "service default/unread.default.svc.cluster.local"),
        ("10.96.0.4:80", "service default/unread.default.svc.cluster.local"),
        ("10.0.0.7:80", "workload default/plain"),
    ] {
        let words = refusal(&mesh, destination);
        for part in ["the control plane describes", what, "(from the future)", "upgrade the proxy"] {
            assert!(words.contains(part), "{destination}: {words}");
        }
    }
    let words = refusal(&mesh, "10.96.0.1:80");
    assert!(words.contains("of 1 endpoint: 1 described by the control plane in a way"), "{words}");
    assert_eq!(targets(&plan(&mesh, "10.96.0.2:80").expect("the good one")), [at("10.0.1.2:8080")]);
    let source = closed(client());
    let error = route(&mesh, &source, at("1.2.3.4:80"), &mut numbers(1)).expect_err("refused");
    assert!(error.to_string().contains("workload default/client"), "{error}");
}
