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
