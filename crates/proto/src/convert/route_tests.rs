use leno_model::ServiceName;
use leno_model::http::*;

use super::*;

fn whole() -> Route {
    let service = |name: &str| ServiceName { namespace: "shop".into(), hostname: format!("{name}.shop.svc").into() };
    let target = |name: &str| BackendTarget::Service { service: service(name), port: 80 };
    let changes = HeaderChanges {
        set: vec![("a".into(), "b".into())],
        add: vec![("c".into(), "d".into())],
        remove: vec!["e".into()],
    };
    let value = |name: &str, value| ValueMatch { name: name.into(), value };
    Route {
        id: RouteName { kind: RouteKind::Grpc, namespace: "shop".into(), name: "web".into() },
        created: 1_800_000_000,
        parents: vec![
            Parent { service: service("web"), port: Some(80), consumer: None },
            Parent { service: service("api"), port: None, consumer: Some("other".into()) },
        ],
        hostnames: vec!["*.example".into()],
        rules: vec![
            Rule {
                name: Some("first".into()),
                matches: vec![
                    Match {
                        path: PathMatch::Exact("/a".into()),
                        method: Some("GET".into()),
                        headers: vec![value("x", ValueTest::Exact("y".into()))],
                        query: vec![value("q", ValueTest::Regex("z.*".into()))],
                    },
                    Match { path: PathMatch::Regex("/b.*".into()), ..Match::all() },
                    Match::all(),
                ],
                filters: vec![
                    Filter::RequestHeaders(changes.clone()),
                    Filter::ResponseHeaders(changes),
                    Filter::Rewrite(Rewrite { hostname: Some("h".into()), path: Some(PathChange::Prefix("".into())) }),
                    Filter::Mirror(Mirror { target: target("copy"), numerator: 1, denominator: 3 }),
                    Filter::Cors(Cors {
                        allow_origins: vec!["*".into()],
                        allow_credentials: true,
                        allow_methods: vec!["GET".into()],
                        allow_headers: vec!["a".into()],
                        expose_headers: vec!["b".into()],
                        max_age: 5,
                    }),
                ],
                backends: vec![
                    Backend { weight: 3, target: target("v1"), filters: Vec::new() },
                    Backend { weight: 0, target: BackendTarget::Invalid("gone".into()), filters: Vec::new() },
                ],
                timeouts: Timeouts { request: Some(Duration::from_millis(1)), backend_request: Some(Duration::ZERO) },
                retry: Some(Retry { codes: vec![503], attempts: Some(0), backoff: Some(Duration::from_secs(1)) }),
                session: Some(SessionPersistence {
                    name: None,
                    token: SessionToken::Cookie { permanent: true },
                    absolute_timeout: Some(Duration::from_secs(60)),
                }),
                rate: Some(RateLimit { requests: 5, per: Duration::from_secs(1), burst: 7 }),
            },
            Rule {
                filters: vec![Filter::Redirect(Redirect {
                    scheme: Some("https".into()),
                    hostname: None,
                    path: Some(PathChange::Full("/x".into())),
                    port: Some(443),
                    status: 308,
                })],
                ..Rule::default()
            },
        ],
        not_understood: None,
    }
}

#[test]
fn a_route_survives_the_way() {
    assert_eq!(route_from_proto(route_to_proto(&whole())), Ok(whole()));
    let id = whole().id;
    assert_eq!(route_of_resource(&route_resource_name(&id)), Some(id));
    assert_eq!(route_of_resource("UDPRoute/a/b"), None);
}

#[test]
fn what_is_not_known_refuses_the_route_and_closes_its_parents() {
    type Change = fn(&mut wire::Route);
    let changes: [Change; 7] = [
        |route| route.kind = 9,
        |route| route.kind = 0,
        |route| route.rules[0].matches[0].path = None,
        |route| route.rules[0].filters[0].filter = None,
        |route| route.rules[0].backends[0].target = None,
        |route| route.rules[0].session.as_mut().expect("a session").token = 7,
        |route| route.rules[0].rate_limit.as_mut().expect("a rate").per_ms = 0,
    ];
    for change in changes {
        let mut route = route_to_proto(&whole());
        change(&mut route);
        let error = route_from_proto(route.clone()).expect_err("refused").to_string();
        let stand_in = route_stand_in("GRPCRoute/shop/web", Some(route), &error).expect("a stand-in");
        assert_eq!((stand_in.parents, stand_in.id), (whole().parents, whole().id));
        assert_eq!(stand_in.not_understood.as_deref(), Some(error.as_str()));
    }
}
