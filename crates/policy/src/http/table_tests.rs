use http::{HeaderMap, HeaderName, HeaderValue};
use leno_model::http::{Match, Parent, PathMatch, Rule, ValueMatch, ValueTest};

use super::*;

fn service() -> ServiceName {
    ServiceName { namespace: "shop".into(), hostname: "web.shop.svc.cluster.local".into() }
}

fn route(name: &str, matches: Vec<Match>) -> Route {
    Route {
        id: RouteName { kind: RouteKind::Http, namespace: "shop".into(), name: name.into() },
        created: 0,
        parents: vec![Parent { service: service(), port: None, consumer: None }],
        hostnames: Vec::new(),
        rules: vec![Rule { matches, ..Rule::default() }],
        not_understood: None,
    }
}

fn header(name: &'static str, value: &str) -> ValueMatch {
    ValueMatch { name: name.into(), value: ValueTest::Exact(value.into()) }
}

fn found(table: &Table, path: &str, headers: &[(&'static str, &str)]) -> Option<String> {
    found_at(table, None, path, headers)
}

fn found_at(table: &Table, host_port: Option<u16>, path: &str, headers: &[(&'static str, &str)]) -> Option<String> {
    let headers: HeaderMap = headers
        .iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value")))
        .collect();
    let request =
        Request { method: "GET", host: "web", host_port, path, query: None, headers: &headers, source_namespace: None };
    let found = table.group(None)?.find(&request)?;
    Some(found.entry.rule.route.name.to_string())
}

#[test]
fn many_routes_that_differ_in_one_header_are_found_by_it() {
    let mut routes: Vec<Route> = (0..200)
        .map(|number| {
            let wanted = Match { headers: vec![header("x-tenant", &number.to_string())], ..Match::all() };
            route(&format!("tenant-{number}"), vec![wanted])
        })
        .collect();
    let both = vec![header("x-tenant", "7"), header("x-beta", "1")];
    routes.push(route("beta", vec![Match { headers: both, ..Match::all() }]));
    routes.push(route("rest", vec![Match::all()]));
    let table = Table::new(&service(), 80, &routes);
    assert_eq!(found(&table, "/a", &[("x-tenant", "150")]).as_deref(), Some("tenant-150"));
    assert_eq!(found(&table, "/a", &[("x-tenant", "7")]).as_deref(), Some("tenant-7"));
    assert_eq!(found(&table, "/a", &[("x-tenant", "7"), ("x-beta", "1")]).as_deref(), Some("beta"));
    assert_eq!(found(&table, "/a", &[("x-tenant", "4711")]).as_deref(), Some("rest"));
    assert_eq!(found(&table, "/a", &[]).as_deref(), Some("rest"));
}

#[test]
fn routes_by_several_headers_are_each_found_by_their_own() {
    let by = |name: &'static str, number: u32| {
        let wanted = Match { headers: vec![header(name, &number.to_string())], ..Match::all() };
        route(&format!("{name}-{number}"), vec![wanted])
    };
    let routes: Vec<Route> = (0..20).flat_map(|number| [by("x-tenant", number), by("x-user", number)]).collect();
    let table = Table::new(&service(), 80, &routes);
    for name in ["x-tenant", "x-user"] {
        assert_eq!(found(&table, "/", &[(name, "7")]), Some(format!("{name}-7")));
        assert_eq!(found(&table, "/", &[(name, "20")]), None);
    }
}

/// A client may write the port behind the host, and a route may ask for either form.
#[test]
fn a_condition_on_the_host_header_is_met_with_and_without_the_port() {
    for others in [0, 20] {
        let by = |value: &str| {
            let wanted = Match { headers: vec![header("host", value)], ..Match::all() };
            route(&format!("host-{}", value.replace(':', "-")), vec![wanted])
        };
        let mut routes: Vec<Route> = (0..others).map(|number| by(&format!("other-{number}"))).collect();
        routes.extend([by("web"), by("web:8080")]);
        routes.push(route("other", vec![Match { headers: vec![header("x-a", "web:8080")], ..Match::all() }]));
        routes[others].created = 1;
        let table = Table::new(&service(), 80, &routes);
        assert_eq!(found_at(&table, None, "/", &[]).as_deref(), Some("host-web"), "{others}");
        assert_eq!(found_at(&table, Some(8080), "/", &[]).as_deref(), Some("host-web-8080"), "{others}");
        assert_eq!(found_at(&table, Some(8081), "/", &[]).as_deref(), Some("host-web"), "{others}");
    }
    let only = route("other", vec![Match { headers: vec![header("x-a", "web:8080")], ..Match::all() }]);
    assert_eq!(found_at(&Table::new(&service(), 80, [&only]), Some(8080), "/", &[]), None);
}

#[test]
fn many_expressions_are_read_together() {
    let routes: Vec<Route> = (0..50)
        .map(|number| {
            let path = PathMatch::Regex(format!("/v[0-9]+/item-{number}").into());
            route(&format!("item-{number}"), vec![Match { path, ..Match::all() }])
        })
        .collect();
    let table = Table::new(&service(), 80, &routes);
    assert_eq!(found(&table, "/v2/item-49", &[]).as_deref(), Some("item-49"));
    assert_eq!(found(&table, "/v2/item-50", &[]), None);
    assert_eq!(found(&table, "/a/v2/item-4", &[]), None, "the whole path has to match");
}

/// Whether they are tried one by one or together.
#[test]
fn of_expressions_that_match_the_longest_wins_and_then_the_first() {
    let wanted = |text: &str| vec![Match { path: PathMatch::Regex(text.into()), ..Match::all() }];
    for others in [0, 20] {
        let mut routes: Vec<Route> =
            (0..others).map(|number| route(&format!("other-{number}"), wanted(&format!("/other/{number}")))).collect();
        routes.push(route("short", wanted("/a.*")));
        routes.push(route("z-long", wanted("/a[a-z/]*")));
        routes.push(route("a-long", wanted("/a[/a-z]*")));
        routes.push(route("longer", wanted("/a/[a-z]{9,}")));
        let table = Table::new(&service(), 80, &routes);
        assert_eq!(found(&table, "/a/b", &[]).as_deref(), Some("a-long"), "{others}");
        assert_eq!(found(&table, "/a/1", &[]).as_deref(), Some("short"), "{others}");
        assert_eq!(found(&table, "/a/bcdefghijk", &[]).as_deref(), Some("longer"), "{others}");
    }
}

#[test]
fn an_asterisk_stands_for_one_label_at_least() {
    let wild = Route { hostnames: vec!["*.example".into()], ..route("wild", vec![Match::all()]) };
    let table = Table::new(&service(), 80, [&wild]);
    let headers = HeaderMap::new();
    for (host, matches) in [("a.example", true), ("b.a.example", true), ("example", false), (".example", false)] {
        let request = Request {
            method: "GET",
            host,
            host_port: None,
            path: "/",
            query: None,
            headers: &headers,
            source_namespace: None,
        };
        let group = table.group(None).expect("routes");
        assert_eq!(group.find(&request).is_some(), matches, "{host}");
    }
}

#[test]
fn an_expression_goes_before_the_prefix_of_all_paths_and_after_every_other() {
    let wanted = |path| vec![Match { path, ..Match::all() }];
    let routes = [
        route("all", wanted(PathMatch::Prefix("/".into()))),
        route("regex", wanted(PathMatch::Regex("/a.*".into()))),
        route("prefix", wanted(PathMatch::Prefix("/a/b".into()))),
    ];
    let table = Table::new(&service(), 80, &routes);
    assert_eq!(found(&table, "/a/b/c", &[]).as_deref(), Some("prefix"));
    assert_eq!(found(&table, "/a/bc", &[]).as_deref(), Some("regex"));
    assert_eq!(found(&table, "/b", &[]).as_deref(), Some("all"));
}

#[test]
fn a_route_of_another_service_or_port_is_left_out() {
    let mut other = route("other", vec![Match::all()]);
    other.parents[0].port = Some(81);
    assert!(Table::new(&service(), 80, [&other]).is_empty());
    assert!(!Table::new(&service(), 81, [&other]).is_empty());
    other.parents[0].service.hostname = "api.shop.svc.cluster.local".into();
    assert!(Table::new(&service(), 81, [&other]).is_empty());
}

#[test]
fn what_a_user_wrote_has_the_form_of_a_requests_path() {
    let wanted = |path| vec![Match { path, ..Match::all() }];
    let routes = [
        route("space", wanted(PathMatch::Exact("/a b".into()))),
        route("umlaut", wanted(PathMatch::Exact("/%c3%a4".into()))),
        route("letter", wanted(PathMatch::Prefix("/%61dmin/".into()))),
    ];
    let table = Table::new(&service(), 80, &routes);
    assert_eq!(found(&table, "/a%20b", &[]).as_deref(), Some("space"));
    assert_eq!(found(&table, "/%C3%A4", &[]).as_deref(), Some("umlaut"));
    assert_eq!(found(&table, "/admin/x", &[]).as_deref(), Some("letter"));
}
