use crate::http::{
    Backend, BackendTarget, EndpointRules, Filter, Mirror, Parent, Policy, PolicyAction, RouteKind, Rule,
};

use super::*;

fn service(name: &str) -> ServiceName {
    ServiceName { namespace: "ns".into(), hostname: name.into() }
}

fn name(text: &str) -> PolicyName {
    PolicyName { namespace: "ns".into(), name: text.into() }
}

/// Puts one with this name, about these services, of this version.
type Put<'p> = dyn Fn(&mut Mesh, &str, &[&str], u64) + 'p;

/// What a mesh holds of one kind, as the test asks for it.
struct Kind<'m> {
    put: &'m Put<'m>,
    remove: &'m dyn Fn(&mut Mesh, &str) -> bool,
    /// The version of the one with this name.
    get: &'m dyn Fn(&Mesh, &str) -> Option<u64>,
    /// Names and versions.
    all: &'m dyn Fn(&Mesh) -> Vec<(String, u64)>,
    /// Names of those that are about a service.
    of: &'m dyn Fn(&Mesh, &str) -> Vec<String>,
}

/// Each is found by its name and by each service that it is about, until a new version or its end.
fn is_found_as_it_is(kind: &Kind<'_>) {
    let all = |mesh: &Mesh| {
        let mut all = (kind.all)(mesh);
        all.sort();
        all.into_iter().map(|(name, version)| format!("{name}{version}")).collect::<Vec<_>>()
    };
    let mut mesh = Mesh::default();
    (kind.put)(&mut mesh, "p", &["a", "b"], 1);
    (kind.put)(&mut mesh, "q", &["c"], 1);
    assert_eq!(((kind.get)(&mesh, "p"), (kind.get)(&mesh, "x")), (Some(1), None));
    assert_eq!(all(&mesh), ["p1", "q1"]);
    for (service, names) in [("a", vec!["p"]), ("b", vec!["p"]), ("c", vec!["q"]), ("d", vec![])] {
        assert_eq!((kind.of)(&mesh, service), names, "{service}");
    }
    let before = mesh.clone();

    // A new version is about others.
    (kind.put)(&mut mesh, "p", &["b", "d"], 2);
    assert_eq!(((kind.get)(&mesh, "p"), all(&mesh)), (Some(2), vec!["p2".to_owned(), "q1".to_owned()]));
    for (service, names) in [("a", vec![]), ("b", vec!["p"]), ("c", vec!["q"]), ("d", vec!["p"])] {
        assert_eq!((kind.of)(&mesh, service), names, "{service}");
    }

    assert!((kind.remove)(&mut mesh, "p") && !(kind.remove)(&mut mesh, "p"));
    assert_eq!((all(&mesh), (kind.of)(&mesh, "b").len(), (kind.of)(&mesh, "c").len()), (vec!["q1".to_owned()], 0, 1));
    assert_eq!((all(&before), (kind.of)(&before, "a").len()), (vec!["p1".to_owned(), "q1".to_owned()], 1));
}

#[test]
fn routes_are_found_by_the_services_that_they_belong_to() {
    let id = |text: &str| RouteName { kind: RouteKind::Http, namespace: "ns".into(), name: text.into() };
    is_found_as_it_is(&Kind {
        put: &|mesh, name, services, created| {
            let parent = |name: &&str| Parent { service: service(name), port: None, consumer: None };
            let parents = services.iter().map(parent).collect();
            let (hostnames, rules) = (Vec::new(), Vec::new());
            let route = Route { id: id(name), created, parents, hostnames, rules, not_understood: None };
            mesh.upsert_route(route.into());
        },
        remove: &|mesh, name| mesh.remove_route(&id(name)),
        get: &|mesh, name| mesh.route(&id(name)).map(|route| route.created),
        all: &|mesh| mesh.routes().map(|route| (route.id.name.to_string(), route.created)).collect(),
        of: &|mesh, name| {
            let routes = mesh.routes_of(&service(name));
            routes.into_iter().flat_map(Map::keys).map(|id| id.name.to_string()).collect()
        },
    });
}

#[test]
fn policies_about_requests_are_found_by_what_they_are_attached_to() {
    let version = |policy: &Policy| policy.rules.len() as u64;
    is_found_as_it_is(&Kind {
        put: &|mesh, text, services, version| {
            let targets = services.iter().map(|name| PolicyTarget::Service(service(name))).collect();
            let rules = vec![Default::default(); usize::try_from(version).expect("small")];
            mesh.upsert_request_policy(Policy { targets, rules, ..Policy::new(name(text), PolicyAction::Deny) }.into());
        },
        remove: &|mesh, text| mesh.remove_request_policy(&name(text)),
        get: &|mesh, text| mesh.request_policy(&name(text)).map(|policy| version(policy)),
        all: &|mesh| mesh.request_policies().map(|it| (it.id.name.to_string(), version(it))).collect(),
        of: &|mesh, name| {
            let policies = mesh.request_policies_of(&PolicyTarget::Service(service(name)));
            policies.into_iter().flat_map(Map::keys).map(|id| id.name.to_string()).collect()
        },
    });
}

#[test]
fn what_is_said_of_endpoints_is_found_by_their_service() {
    let version = |policy: &EndpointPolicy| policy.ports.len() as u64;
    is_found_as_it_is(&Kind {
        put: &|mesh, text, services, version| {
            let services = services.iter().map(|name| service(name)).collect();
            let ports = vec![(80, EndpointRules::default()); usize::try_from(version).expect("small")];
            let policy = EndpointPolicy { id: name(text), services, rules: EndpointRules::default(), ports };
            mesh.upsert_endpoint_policy(policy.into());
        },
        remove: &|mesh, text| mesh.remove_endpoint_policy(&name(text)),
        get: &|mesh, text| mesh.endpoint_policy(&name(text)).map(|policy| version(policy)),
        all: &|mesh| mesh.endpoint_policies().map(|it| (it.id.name.to_string(), version(it))).collect(),
        of: &|mesh, name| {
            mesh.endpoint_policy_of(&service(name)).map(|it| it.id.name.to_string()).into_iter().collect()
        },
    });
}

#[test]
fn what_happens_without_a_route_is_found_by_its_service() {
    let version = |defaults: &RequestDefaults| defaults.timeout.unwrap_or_default().as_secs();
    is_found_as_it_is(&Kind {
        put: &|mesh, text, services, version| {
            let services = services.iter().map(|name| service(name)).collect();
            let timeout = Some(std::time::Duration::from_secs(version));
            let (attempt_timeout, retry, fault) = (None, None, None);
            let defaults = RequestDefaults { id: name(text), services, timeout, attempt_timeout, retry, fault };
            mesh.upsert_request_defaults(defaults.into());
        },
        remove: &|mesh, text| mesh.remove_request_defaults(&name(text)),
        get: &|mesh, text| mesh.request_defaults(&name(text)).map(|defaults| version(defaults)),
        all: &|mesh| mesh.all_request_defaults().map(|it| (it.id.name.to_string(), version(it))).collect(),
        of: &|mesh, name| {
            mesh.request_defaults_of(&service(name)).map(|it| it.id.name.to_string()).into_iter().collect()
        },
    });
}

#[test]
fn a_port_has_its_own_rules_or_those_of_all() {
    let limited = |most| EndpointRules { max_requests: Some(most), ..EndpointRules::default() };
    let ports = vec![(80, limited(1)), (81, limited(2))];
    let policy = EndpointPolicy { id: name("p"), services: Vec::new(), rules: limited(9), ports };
    let most = |port| policy.of_port(port).max_requests;
    assert_eq!([most(80), most(81), most(82)], [Some(1), Some(2), Some(9)]);
}

#[test]
fn a_route_knows_where_it_leads() {
    let to = |target| Backend { weight: 1, target, filters: Vec::new() };
    let backends = vec![
        to(BackendTarget::Service { service: service("a"), port: 80 }),
        to(BackendTarget::Invalid("gone".into())),
        to(BackendTarget::Service { service: service("b"), port: 80 }),
    ];
    let route = Route {
        id: RouteName { kind: RouteKind::Http, namespace: "ns".into(), name: "r".into() },
        created: 0,
        parents: Vec::new(),
        hostnames: Vec::new(),
        rules: vec![Rule { backends, ..Rule::default() }],
        not_understood: None,
    };
    let mirror = |name: &str| {
        let target = BackendTarget::Service { service: service(name), port: 80 };
        Filter::Mirror(Mirror { target, numerator: 1, denominator: 1 })
    };
    let mut route = route;
    route.rules[0].filters.push(mirror("copies"));
    route.rules[0].backends[0].filters.push(mirror("copies-of-a"));
    let mut destinations: Vec<_> = route.destinations().map(|it| it.hostname.to_string()).collect();
    destinations.sort();
    assert_eq!(destinations, ["a", "b", "copies", "copies-of-a"]);
}

#[test]
fn requests_follow_routes_of_two_kinds_and_connections_those_of_two_others() {
    let all = [RouteKind::Grpc, RouteKind::Http, RouteKind::Tls, RouteKind::Tcp];
    assert_eq!(all.map(RouteKind::is_of_requests), [true, true, false, false]);
    let name = |kind| RouteName { kind, namespace: "ns".into(), name: "r".into() }.to_string();
    assert_eq!(all.map(name), ["GRPCRoute ns/r", "HTTPRoute ns/r", "TLSRoute ns/r", "TCPRoute ns/r"]);
}
