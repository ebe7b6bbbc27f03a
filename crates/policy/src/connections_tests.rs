use leno_model::http::{Parent, Rule};

use super::*;

fn service(name: &str) -> ServiceName {
    ServiceName { namespace: "shop".into(), hostname: name.into() }
}

fn backend(name: &str, weight: u32) -> Backend {
    Backend { weight, target: BackendTarget::Service { service: service(name), port: 80 }, filters: Vec::new() }
}

fn route(kind: RouteKind, name: &str, created: u64, hosts: &[&str], backends: Vec<Backend>) -> Route {
    Route {
        id: RouteName { kind, namespace: "shop".into(), name: name.into() },
        created,
        parents: vec![Parent { service: service("web"), port: None, consumer: None }],
        hostnames: hosts.iter().map(|host| (*host).into()).collect(),
        rules: vec![Rule { backends, ..Rule::default() }],
        not_understood: None,
    }
}

fn chosen(table: &Connections, from: &str, name: Option<&str>) -> String {
    let group = table.group(Some(from)).expect("routes");
    match group.find(name).and_then(|rule| rule.choose(&mut || 0)) {
        Ok(to) => to.service.hostname.to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_name_that_says_most_wins_and_of_equal_ones_the_oldest() {
    let routes = [
        route(RouteKind::Tls, "young", 2, &["a.example"], vec![backend("young", 1)]),
        route(RouteKind::Tls, "old", 1, &["a.example", "*.example"], vec![backend("old", 1)]),
        route(RouteKind::Tls, "long", 3, &["*.b.example"], vec![backend("long", 1)]),
        route(RouteKind::Tcp, "tcp", 0, &[], vec![backend("tcp", 1)]),
    ];
    let table = Connections::new(&service("web"), 443, &routes);
    let of = |name: &str| chosen(&table, "shop", Some(name));
    assert_eq!([of("a.example"), of("A.Example."), of("x.example"), of("x.b.example")], ["old", "old", "old", "long"]);
    assert!(of("example").contains("no TLSRoute") && of(".example").contains("no TLSRoute"));
    assert!(chosen(&table, "shop", None).contains("names no server"));
}

#[test]
fn weights_choose_and_what_can_not_be_used_is_refused() {
    let gone = Backend { weight: 1, target: BackendTarget::Invalid("gone".into()), filters: Vec::new() };
    let mut consumer = route(RouteKind::Tcp, "mine", 1, &[], vec![gone]);
    consumer.parents[0].consumer = Some("bank".into());
    let routes = [
        route(RouteKind::Tcp, "young", 2, &[], vec![backend("young", 1)]),
        route(RouteKind::Tcp, "old", 1, &[], vec![backend("a", 1), backend("none", 0), backend("b", 3)]),
        consumer,
    ];
    let table = Connections::new(&service("web"), 5432, &routes);
    let rule = table.group(Some("shop")).and_then(|group| group.find(None).ok()).expect("a rule");
    let mut seen = [0, 0];
    for step in 0..100_u64 {
        let to = rule.choose(&mut || (2 * step + 1) * (u64::MAX / 200)).expect("a backend");
        seen[usize::from(*to.service.hostname == *"b")] += 1;
    }
    assert_eq!(seen, [25, 75]);
    assert!(chosen(&table, "bank", None).ends_with("gone"));
    let none = route(RouteKind::Tcp, "none", 1, &[], vec![backend("a", 0)]);
    assert!(chosen(&Connections::new(&service("web"), 1, [&none]), "shop", None).contains("no backend"));
}

#[test]
fn a_route_of_another_port_service_or_of_requests_is_left_out() {
    let mut elsewhere = route(RouteKind::Tcp, "port", 1, &[], vec![backend("a", 1)]);
    elsewhere.parents[0].port = Some(81);
    let routes = [elsewhere, route(RouteKind::Http, "http", 1, &[], vec![backend("a", 1)])];
    assert!(Connections::new(&service("web"), 80, &routes).is_empty());
    assert!(Connections::new(&service("v2"), 81, &routes).is_empty());
    assert!(!Connections::new(&service("web"), 81, &routes).is_empty());
}

#[test]
fn what_was_not_understood_closes_the_port() {
    let mut broken = route(RouteKind::Tls, "broken", 9, &[], Vec::new());
    broken.not_understood = Some("field 7".into());
    let good = route(RouteKind::Tls, "good", 1, &["a.example"], vec![backend("a", 1)]);
    let table = Connections::new(&service("web"), 443, [&good, &broken]);
    assert!(chosen(&table, "shop", Some("a.example")).contains("can't be followed"));
}

#[test]
fn only_routes_that_choose_by_the_name_wait_for_it() {
    let needs_name = |routes: &[Route]| {
        let table = Connections::new(&service("web"), 443, routes);
        table.group(None).expect("routes").needs_name()
    };
    let tls = route(RouteKind::Tls, "tls", 1, &["a.example"], vec![backend("a", 1)]);
    let tcp = route(RouteKind::Tcp, "tcp", 1, &[], vec![backend("a", 1)]);
    let closed = Route { not_understood: Some("field 7".into()), ..tls.clone() };
    assert!(needs_name(std::slice::from_ref(&tls)));
    assert!(!needs_name(std::slice::from_ref(&tcp)));
    assert!(!needs_name(&[closed]), "the name changes nothing");
}

#[test]
fn a_group_says_which_routes_and_rules_it_has() {
    let mut named = route(RouteKind::Tls, "named", 1, &["a.example"], vec![backend("a", 1), backend("b", 0)]);
    named.rules[0].name = Some("first".into());
    let gone = Backend { target: BackendTarget::Invalid("gone".into()), ..backend("gone", 1) };
    let wild = route(RouteKind::Tls, "wild", 2, &["*.example"], vec![backend("c", 1), gone]);
    let any = route(RouteKind::Tls, "any", 3, &[], vec![backend("d", 1)]);
    let table = Connections::new(&service("web"), 443, [&any, &wild, &named]);
    let group = table.group(None).expect("routes");
    assert_eq!(group.routes(), [named.id.clone(), wild.id.clone(), any.id.clone()]);
    let mut destinations: Vec<_> = group.destinations().map(|to| to.service.hostname.to_string()).collect();
    destinations.sort();
    assert_eq!(destinations, ["a", "b", "c", "d"]);
    for (name, label) in [("a.example", "rule first of TLSRoute shop/named"), ("x", "rule 1 of TLSRoute shop/any")] {
        let rule = group.find(Some(name)).expect("a rule");
        assert_eq!(&**rule.label(), label);
        assert!(label.ends_with(&rule.route().to_string()));
    }
    let weights: Vec<u32> =
        group.find(Some("a.example")).expect("a rule").backends().map(|(weight, _)| weight).collect();
    assert_eq!(weights, [1, 0]);
}

#[test]
fn no_refusal_goes_by_itself() {
    for refusal in [Unrouted::NoName, Unrouted::NotTls, Unrouted::NoRoute("a".into()), Unrouted::NoBackend("b".into())]
    {
        assert!(!refusal.is_retryable(), "{refusal}");
    }
}
