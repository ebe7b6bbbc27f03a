use super::*;
use crate::test_support::{endpoint, ip, mesh, service};

#[test]
fn a_nodes_own_rules_keep_to_the_node_if_the_service_does() {
    let names = |mode, preference: &[RoutingScope]| {
        let mut web = service("web", &["10.96.0.1"]);
        web.load_balancing.mode = mode;
        web.load_balancing.routing_preference = preference.to_vec();
        let on = |name: &str, address, node: &str| Workload { node: node.into(), ..endpoint(name, address, &[&web]) };
        let (here, there) = (on("here", "10.0.1.1", "n1"), on("there", "10.0.1.2", "n2"));
        let sick = Workload { health: Health::Unhealthy, ..on("sick", "10.0.1.3", "n1") };
        let strange = Workload { not_understood: Some("new".into()), ..on("strange", "10.0.1.4", "n1") };
        let mesh = mesh(&[&web], &[&here, &there, &sick, &strange]);
        let mut names: Vec<_> = ready_for_node(&mesh, &web, "n1").map(|it| it.workload.name.to_string()).collect();
        names.sort();
        names
    };
    assert_eq!(names(LoadBalancingMode::Strict, &[RoutingScope::Node]), ["here"]);
    for (mode, preference) in [
        (LoadBalancingMode::Unspecified, &[][..]),
        (LoadBalancingMode::Strict, &[RoutingScope::Zone]),
        (LoadBalancingMode::Failover, &[RoutingScope::Node]),
    ] {
        assert_eq!(names(mode, preference), ["here", "there"], "{mode:?} {preference:?}");
    }
}

#[test]
fn an_endpoint_without_an_address_counts_as_what_it_has_instead() {
    let mut web = service("web", &["10.96.0.1"]);
    web.ip_families = IpFamilies::Ipv4Only;
    let counted = |addresses: &[&str], hostname: &str| {
        let mut only = endpoint("only", "10.0.1.1", &[&web]);
        only.addresses = addresses.iter().map(|address| ip(address)).collect();
        only.hostname = hostname.into();
        let (mesh, client) = (mesh(&[&web], &[&only]), endpoint("client", "10.0.0.1", &[]));
        let (found, counts) = candidates(&mesh, &client, &web, 80, Purpose::Service, ip("10.96.0.1"));
        assert!(found.is_empty());
        (counts.without_address, counts.by_name_only)
    };
    assert_eq!(counted(&[], ""), (1, 0));
    assert_eq!(counted(&[], "x.example"), (0, 1));
    assert_eq!(counted(&["fd00::1"], "x.example"), (1, 0));
}

#[test]
fn every_scope_is_compared() {
    let mut source = endpoint("client", "10.0.0.1", &[]);
    source.node = "n1".into();
    source.cluster_id = "c1".into();
    source.network = "net1".into();
    source.locality = leno_model::Locality { region: "r1".into(), zone: "z1".into(), subzone: "s1".into() };
    let failover = |scope| LoadBalancing {
        mode: LoadBalancingMode::Failover,
        routing_preference: vec![scope],
        ..LoadBalancing::default()
    };
    type Move = fn(&mut Workload);
    let moves: [(RoutingScope, Move); 6] = [
        (RoutingScope::Region, |it| it.locality.region = "r2".into()),
        (RoutingScope::Zone, |it| it.locality.zone = "z2".into()),
        (RoutingScope::Subzone, |it| it.locality.subzone = "s2".into()),
        (RoutingScope::Node, |it| it.node = "n2".into()),
        (RoutingScope::Cluster, |it| it.cluster_id = "c2".into()),
        (RoutingScope::Network, |it| it.network = "net2".into()),
    ];
    for (moved, change) in moves {
        let mut elsewhere = source.clone();
        change(&mut elsewhere);
        for (scope, _) in moves {
            let shared = usize::from(scope != moved);
            assert_eq!(rank(&failover(scope), &source, &elsewhere), Some(shared), "{scope:?} {moved:?}");
        }
    }
}

#[test]
fn the_address_that_was_asked_for_goes_before_one_of_its_family_and_that_before_any() {
    let mut web = endpoint("web", "10.0.1.1", &[]);
    web.addresses = ["10.0.1.1", "fd00::1", "10.0.1.2", "fd00::2"].map(ip).to_vec();
    for (families, destination, expected) in [
        (IpFamilies::Dual, "10.0.1.2", Some("10.0.1.2")),
        (IpFamilies::Dual, "fd00::2", Some("fd00::2")),
        (IpFamilies::Dual, "10.96.0.1", Some("10.0.1.1")),
        (IpFamilies::Dual, "fd96::1", Some("fd00::1")),
        (IpFamilies::Ipv6Only, "10.96.0.1", Some("fd00::1")),
        (IpFamilies::Ipv4Only, "fd96::1", Some("10.0.1.1")),
    ] {
        assert_eq!(address_of(&web, families, ip(destination)), expected.map(ip), "{families:?} {destination}");
    }
    web.addresses = vec![ip("10.0.1.1")];
    assert_eq!(address_of(&web, IpFamilies::Ipv6Only, ip("fd96::1")), None);
}
