//! The table finds what the plainest reading of the specification finds: all matches of all routes in one list, in order of
//! precedence, tried one by one.

use std::cmp::Reverse;

use http::{HeaderMap, HeaderName, HeaderValue};
use leno_model::http::{
    Backend, BackendTarget, Match, Parent, PathMatch, Route, RouteKind, RouteName, Rule, ValueMatch, ValueTest,
};
use leno_model::{Name, ServiceName};
use proptest::prelude::*;

use super::{Outcome, Request, Table};

fn service() -> ServiceName {
    ServiceName { namespace: "shop".into(), hostname: "web.shop.svc.cluster.local".into() }
}

fn name() -> impl Strategy<Value = Name> {
    prop::sample::select(vec!["a", "b", "c"]).prop_map(Name::from)
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "ab", "a.b"]), 0..4)
        .prop_map(|segments| format!("/{}", segments.join("/")))
}

fn path_match() -> impl Strategy<Value = PathMatch> {
    prop_oneof![
        path().prop_map(|path| PathMatch::Exact(path.into())),
        (path(), any::<bool>()).prop_map(|(path, slash)| {
            PathMatch::Prefix(if slash && path != "/" { format!("{path}/") } else { path }.into())
        }),
        prop::sample::select(vec!["/a.*", "/.*b", "/(a|b)", "/[ab]+/a", "a", "/a|/b"])
            .prop_map(|text| PathMatch::Regex(text.into())),
    ]
}

fn value_match() -> impl Strategy<Value = ValueMatch> {
    let test = prop_oneof![
        name().prop_map(ValueTest::Exact),
        prop::sample::select(vec!["a|b", "[bc]", "a,.*"]).prop_map(|text| ValueTest::Regex(text.into())),
    ];
    (prop::sample::select(vec!["x-one", "x-two"]), test)
        .prop_map(|(name, value)| ValueMatch { name: name.into(), value })
}

fn one_match() -> impl Strategy<Value = Match> {
    let method = prop::option::of(prop::sample::select(vec!["GET", "POST"]).prop_map(Name::from));
    let values = || prop::collection::vec(value_match(), 0..3);
    (path_match(), method, values(), values()).prop_map(|(path, method, headers, query)| Match {
        path,
        method,
        headers,
        query,
    })
}

fn route() -> impl Strategy<Value = Route> {
    let rules = prop::collection::vec(prop::collection::vec(one_match(), 0..4), 1..4);
    let hosts = prop::collection::vec(prop::sample::select(vec!["web", "a.web", "*.web", "*.a.web"]), 0..3);
    let consumer = prop::option::weighted(0.2, Just(Name::from("other")));
    let kind = prop_oneof![4 => Just(RouteKind::Http), 1 => Just(RouteKind::Grpc)];
    let port = prop::option::weighted(0.3, prop::sample::select(vec![80_u16, 81]));
    (rules, hosts, consumer, (kind, port, 0_u64..3, name())).prop_map(
        |(rules, hosts, consumer, (kind, port, created, name))| Route {
            id: RouteName { kind, namespace: consumer.clone().unwrap_or("shop".into()), name },
            created,
            parents: vec![Parent { service: service(), port, consumer }],
            hostnames: hosts.into_iter().map(Name::from).collect(),
            rules: rules
                .into_iter()
                .map(|matches| Rule {
                    matches,
                    backends: vec![Backend {
                        weight: 1,
                        target: BackendTarget::Service { service: service(), port: 80 },
                        filters: Vec::new(),
                    }],
                    ..Rule::default()
                })
                .collect(),
            not_understood: None,
        },
    )
}

#[derive(Debug, Clone)]
struct Asked {
    method: &'static str,
    host: &'static str,
    path: String,
    query: Vec<(&'static str, Name)>,
    headers: Vec<(&'static str, Name)>,
    from: Option<&'static str>,
}

fn asked() -> impl Strategy<Value = Asked> {
    let method = prop::sample::select(vec!["GET", "POST", "PUT"]);
    let host = prop::sample::select(vec!["web", "a.web", "b.a.web", "other"]);
    let from = prop::option::of(prop::sample::select(vec!["other", "shop"]));
    let pairs = || prop::collection::vec((prop::sample::select(vec!["x-one", "x-two"]), name()), 0..4);
    let slash = any::<bool>();
    (method, host, (path(), slash), pairs(), pairs(), from).prop_map(
        |(method, host, (path, slash), query, headers, from)| {
            let path = if slash && path != "/" { format!("{path}/") } else { path };
            Asked { method, host, path, query, headers, from }
        },
    )
}

/// A regular expression of this test, without the library: it is one of a few.
fn whole(expression: &str, text: &str) -> bool {
    match expression {
        "/a.*" => text.starts_with("/a"),
        "/.*b" => text.len() > 1 && text.starts_with('/') && text.ends_with('b'),
        "/(a|b)" | "/a|/b" => text == "/a" || text == "/b",
        "/[ab]+/a" => {
            let middle = text.strip_prefix('/').and_then(|rest| rest.strip_suffix("/a"));
            middle.is_some_and(|middle| !middle.is_empty() && middle.chars().all(|c| c == 'a' || c == 'b'))
        }
        "a" => text == "a",
        "a|b" => text == "a" || text == "b",
        "[bc]" => text == "b" || text == "c",
        "a,.*" => text.starts_with("a,"),
        other => panic!("{other}"),
    }
}

fn passes(test: &ValueTest, value: &str) -> bool {
    match test {
        ValueTest::Exact(want) => &**want == value,
        ValueTest::Regex(text) => whole(text, value),
    }
}

fn holds(wanted: &Match, asked: &Asked) -> bool {
    let path = match &wanted.path {
        PathMatch::Exact(path) => **path == asked.path,
        PathMatch::Prefix(prefix) => {
            let prefix = prefix.trim_end_matches('/');
            asked.path == prefix || asked.path.starts_with(&format!("{prefix}/"))
        }
        PathMatch::Regex(text) => whole(text, &asked.path),
    };
    path && wanted.method.as_deref().is_none_or(|method| method == asked.method)
        && distinct(&wanted.headers).all(|test| {
            let values: Vec<&str> =
                asked.headers.iter().filter(|(name, _)| *name == &*test.name).map(|(_, value)| &**value).collect();
            !values.is_empty() && passes(&test.value, &values.join(","))
        })
        && distinct(&wanted.query).all(|test| {
            asked
                .query
                .iter()
                .find(|(name, _)| *name == &*test.name)
                .is_some_and(|(_, value)| passes(&test.value, value))
        })
}

/// The first condition on each name.
fn distinct(tests: &[ValueMatch]) -> impl Iterator<Item = &ValueMatch> {
    tests
        .iter()
        .enumerate()
        .filter(|(at, test)| tests[..*at].iter().all(|other| other.name != test.name))
        .map(|(_, t)| t)
}

/// The rule that wins: its route and its place there.
fn naive(routes: &[Route], asked: &Asked) -> Option<Option<(RouteName, usize)>> {
    let of = |consumer: Option<&str>| -> Vec<&Route> {
        let here = |route: &&Route| {
            let parent = &route.parents[0];
            parent.consumer.as_deref() == consumer && parent.port.is_none_or(|port| port == 80)
        };
        routes.iter().filter(here).collect()
    };
    let own = asked.from.map(|from| of(Some(from))).unwrap_or_default();
    let applicable = if own.is_empty() { of(None) } else { own };
    if applicable.is_empty() {
        return None;
    }
    let kind =
        if applicable.iter().any(|route| route.id.kind == RouteKind::Grpc) { RouteKind::Grpc } else { RouteKind::Http };
    let all = [Match::all()];
    let mut candidates = Vec::new();
    for route in applicable.into_iter().filter(|route| route.id.kind == kind) {
        let hosts: Vec<&str> =
            if route.hostnames.is_empty() { vec![""] } else { route.hostnames.iter().map(|host| &**host).collect() };
        for host in hosts {
            let named = match host.strip_prefix('*') {
                _ if host.is_empty() => true,
                Some(suffix) => asked.host.ends_with(suffix) && asked.host.len() > suffix.len(),
                None => host == asked.host,
            };
            if !named {
                continue;
            }
            for (index, rule) in route.rules.iter().enumerate() {
                let matches = if rule.matches.is_empty() { &all[..] } else { &rule.matches };
                for (at, wanted) in matches.iter().enumerate().filter(|(_, wanted)| holds(wanted, asked)) {
                    let (class, length) = match &wanted.path {
                        PathMatch::Exact(path) => (0, path.len()),
                        PathMatch::Prefix(path) if path.trim_end_matches('/').is_empty() => (3, 0),
                        PathMatch::Prefix(path) => (1, path.trim_end_matches('/').len()),
                        PathMatch::Regex(text) => (2, text.len()),
                    };
                    let key = (
                        (Reverse(!host.starts_with('*') && !host.is_empty()), Reverse(host.len())),
                        (class, Reverse(length)),
                        wanted.method.is_none(),
                        Reverse(distinct(&wanted.headers).count()),
                        Reverse(distinct(&wanted.query).count()),
                        route.created,
                        (route.id.namespace.clone(), route.id.name.clone()),
                        (index, at),
                    );
                    candidates.push((key, (route.id.clone(), index)));
                }
            }
        }
    }
    candidates.sort();
    Some(candidates.into_iter().next().map(|(_, found)| found))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn the_table_finds_what_a_list_finds(
        routes in prop::collection::vec(route(), 0..9),
        requests in prop::collection::vec(asked(), 1..12),
    ) {
        // An object's name is unique.
        let mut routes = routes;
        for (at, route) in routes.iter_mut().enumerate() {
            route.id.name = format!("{}-{at}", route.id.name).into();
        }
        let table = Table::new(&service(), 80, &routes);
        for asked in &requests {
            let mut headers = HeaderMap::new();
            for (name, value) in &asked.headers {
                headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value"));
            }
            let query: Vec<String> = asked.query.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let query = query.join("&");
            let request = Request {
                method: asked.method,
                host: asked.host,
                host_port: None,
                path: &asked.path,
                query: (!query.is_empty()).then_some(query.as_str()),
                headers: &headers,
                source_namespace: asked.from,
            };
            let decision = table.decide(&request, &mut || 0);
            let found = match decision.outcome {
                Outcome::Unrouted => None,
                _ => Some(decision.chosen.map(|chosen| (chosen.route().clone(), chosen.rule_index()))),
            };
            prop_assert_eq!(found, naive(&routes, asked), "{:?}", asked);
        }
    }
}
