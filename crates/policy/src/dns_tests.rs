use leno_model::{Health, HealthPolicy, IpFamilies, NetworkAddress, Visibility, Workload};

use super::*;
use crate::test_support::{endpoint, ip, mesh, numbers, service, vip};

fn ask(mesh: &Mesh, namespace: &str, name: &str, family: Family) -> DnsAnswer {
    resolve(mesh, Client { namespace, network: &"".into() }, "cluster.local", name, family, &mut numbers(1))
}

fn records(addresses: &[&str], cname: Option<&str>) -> DnsAnswer {
    DnsAnswer::Records { cname: cname.map(str::to_owned), addresses: addresses.iter().map(|a| ip(a)).collect() }
}

#[test]
fn every_form_of_a_kubernetes_name() {
    let mesh = mesh(&[&service("web", &["10.96.0.1"])], &[]);
    for name in [
        "web",
        "web.default",
        "web.default.svc",
        "web.default.svc.cluster.local",
        "web.default.svc.cluster.local.",
        "WEB.Default.svc",
    ] {
        assert_eq!(ask(&mesh, "default", name, Family::V4), records(&["10.96.0.1"], None), "{name}");
    }
    assert_eq!(ask(&mesh, "other", "web", Family::V4), DnsAnswer::NotMine);
    assert_eq!(ask(&mesh, "other", "web.default", Family::V4), records(&["10.96.0.1"], None));
    for name in ["", ".", "..", "cluster.local", "svc.cluster.local", "default.svc.cluster.local", "nope.default"] {
        assert_eq!(ask(&mesh, "default", name, Family::V4), DnsAnswer::NotMine, "{name:?}");
    }
}

/// How many labels a name has says what it lacks.
#[test]
fn a_name_is_completed_by_what_it_lacks() {
    let called = |hostname: &str| Service {
        id: leno_model::ServiceName { hostname: hostname.into(), ..service("x", &[]).id },
        ..service("x", &["10.96.0.1"])
    };
    let knows = |hostname: &str, name: &str| {
        ask(&mesh(&[&called(hostname)], &[]), "default", name, Family::V4) == records(&["10.96.0.1"], None)
    };
    for (hostname, name) in [
        ("a.b.default.svc.cluster.local", "a.b"),
        ("a.b.c.svc.cluster.local", "a.b.c"),
        ("a.b.svc.svc.cluster.local", "a.b.svc"),
        ("a.b.c.svc.cluster.local", "a.b.c.svc"),
    ] {
        assert!(knows(hostname, name), "{name} is {hostname}");
    }
    for (hostname, name) in [
        ("a.b.c.cluster.local", "a.b.c"),
        ("a.b.c.d.cluster.local", "a.b.c.d"),
        ("a.b.c.d.svc.cluster.local", "a.b.c.d"),
        ("a.b.c.default.svc.cluster.local", "a.b.c"),
    ] {
        assert!(!knows(hostname, name), "{name} is not {hostname}");
    }
}

#[test]
fn a_search_domain_is_taken_off_with_an_alias() {
    let mut external = service("ext", &["240.240.0.1"]);
    external.id.hostname = "api.example.com".into();
    let mesh = mesh(&[&external, &service("web", &["10.96.0.1"])], &[]);
    for search in ["default.svc.cluster.local", "svc.cluster.local", "cluster.local"] {
        let answer = ask(&mesh, "default", &format!("api.example.com.{search}"), Family::V4);
        assert_eq!(answer, records(&["240.240.0.1"], Some("api.example.com")), "{search}");
    }
    assert_eq!(
        ask(&mesh, "default", "web.default.default.svc.cluster.local", Family::V4),
        records(&["10.96.0.1"], Some("web.default"))
    );
    // Another namespace's search domain is not this client's.
    assert_eq!(ask(&mesh, "default", "api.example.com.other.svc.cluster.local", Family::V4), DnsAnswer::NotMine);
}

#[test]
fn the_closest_wildcard_answers() {
    let wild = |host: &str, address: &str| {
        let mut s = service("wild", &[address]);
        s.id.hostname = host.into();
        s
    };
    let mesh = mesh(&[&wild("*.example.com", "240.0.0.1"), &wild("*.a.example.com", "240.0.0.2")], &[]);
    assert_eq!(ask(&mesh, "default", "x.example.com", Family::V4), records(&["240.0.0.1"], None));
    assert_eq!(ask(&mesh, "default", "y.x.example.com", Family::V4), records(&["240.0.0.1"], None));
    assert_eq!(ask(&mesh, "default", "x.a.example.com", Family::V4), records(&["240.0.0.2"], None));
    assert_eq!(ask(&mesh, "default", "example.com", Family::V4), DnsAnswer::NotMine);
    assert_eq!(ask(&mesh, "default", "x.example.com.cluster.local", Family::V4), records(&["240.0.0.1"], None));
}

#[test]
fn families_without_addresses_are_empty_not_unknown() {
    let mut only = service("only", &["10.96.0.2", "fd00::2"]);
    only.ip_families = IpFamilies::Ipv4Only;
    let mesh = mesh(&[&service("web", &["10.96.0.1"]), &service("dual", &["10.96.0.3", "fd00::3"]), &only], &[]);
    assert_eq!(ask(&mesh, "default", "web", Family::V6), DnsAnswer::NoData);
    assert_eq!(ask(&mesh, "default", "dual", Family::V6), records(&["fd00::3"], None));
    assert_eq!(ask(&mesh, "default", "only", Family::V6), DnsAnswer::NoData);
    assert_eq!(ask(&mesh, "default", "only", Family::V4), records(&["10.96.0.2"], None));
}

#[test]
fn headless_services_are_their_healthy_endpoints() {
    let mut db = service("db", &[]);
    let mut sick = endpoint("db-3", "10.0.0.3", &[&db]);
    sick.health = Health::Unhealthy;
    let mut dual = endpoint("db-2", "fd00::2", &[&db]);
    dual.addresses.push(ip("10.0.0.2"));
    let mut remote = endpoint("db-4", "10.0.0.4", &[&db]);
    remote.network = "elsewhere".into();
    let workloads = [&endpoint("db-1", "10.0.0.1", &[&db]), &dual, &sick, &remote];
    let sorted = |answer| match answer {
        DnsAnswer::Records { mut addresses, .. } => {
            addresses.sort();
            addresses
        }
        other => panic!("{other:?}"),
    };
    let healthy = mesh(&[&db], &workloads);
    assert_eq!(sorted(ask(&healthy, "default", "db", Family::V4)), [ip("10.0.0.1"), ip("10.0.0.2")]);
    assert_eq!(ask(&healthy, "default", "db", Family::V6), records(&["fd00::2"], None));
    db.load_balancing.health_policy = HealthPolicy::AllowAll;
    let all = mesh(&[&db], &workloads);
    assert_eq!(sorted(ask(&all, "default", "db", Family::V4)).len(), 3);
    assert_eq!(ask(&mesh(&[&db], &[]), "default", "db", Family::V4), DnsAnswer::NoData);
}

#[test]
fn a_name_without_address_outside_the_cluster_is_asked_elsewhere() {
    let mut external = service("ext", &[]);
    external.id.hostname = "api.example.com".into();
    let mesh = mesh(&[&external], &[&endpoint("e", "10.0.0.1", &[&external])]);
    assert_eq!(ask(&mesh, "default", "api.example.com", Family::V4), DnsAnswer::NotMine);
}

#[test]
fn visibility_and_network_are_the_clients() {
    let mut private = service("private", &["10.96.0.1"]);
    private.visibility = Visibility::Namespace;
    let mut far = service("far", &[]);
    far.addresses = vec![NetworkAddress { network: "elsewhere".into(), ..vip("10.96.0.2") }];
    let mesh = mesh(&[&private, &far], &[]);
    assert_eq!(ask(&mesh, "default", "private", Family::V4), records(&["10.96.0.1"], None));
    assert_eq!(ask(&mesh, "other", "private.default", Family::V4), DnsAnswer::NotMine);
    assert_eq!(ask(&mesh, "default", "far", Family::V4), DnsAnswer::NoData);
}

#[test]
fn order_is_shuffled_and_complete() {
    let web = service("web", &["10.96.0.1", "10.96.0.2", "10.96.0.3"]);
    let mesh = mesh(&[&web], &[]);
    let mut random = numbers(7);
    let mut firsts = std::collections::HashMap::new();
    for _ in 0..600 {
        let answer = resolve(
            &mesh,
            Client { namespace: "default", network: &"".into() },
            "cluster.local",
            "web",
            Family::V4,
            &mut random,
        );
        let DnsAnswer::Records { mut addresses, .. } = answer else { panic!("records") };
        *firsts.entry(addresses[0]).or_insert(0) += 1;
        addresses.sort();
        assert_eq!(addresses, [ip("10.96.0.1"), ip("10.96.0.2"), ip("10.96.0.3")]);
    }
    assert!(firsts.len() == 3 && firsts.values().all(|n| (120..280).contains(n)), "{firsts:?}");
}

#[test]
fn a_service_that_was_not_understood_is_still_of_the_mesh() {
    let closed = |mut s: Service| {
        s.not_understood = Some("why".into());
        s
    };
    let mut external = service("ext", &[]);
    external.id.hostname = "api.example.com".into();
    let web = service("web", &[]);
    let bad = Workload { not_understood: Some("why".into()), ..endpoint("bad", "10.0.0.1", &[&web]) };
    let mesh = mesh(&[&closed(external), &closed(service("vip", &["10.96.0.1"])), &web], &[&bad]);
    assert_eq!(ask(&mesh, "default", "api.example.com", Family::V4), DnsAnswer::NoData);
    // Its address leads to a refusal that says why.
    assert_eq!(ask(&mesh, "default", "vip", Family::V4), records(&["10.96.0.1"], None));
    assert_eq!(ask(&mesh, "default", "web", Family::V4), DnsAnswer::NoData, "that endpoint takes nothing");
}
