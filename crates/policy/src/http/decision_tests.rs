use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use leno_model::http::{
    Backend, Filter, HeaderChanges, Match, Mirror, Parent, PathChange, PathMatch, Redirect, Rewrite, Route, RouteKind,
    RouteName, Rule, SessionPersistence, Timeouts,
};

use super::*;
use crate::http::{RuleError, check};
use crate::test_support::numbers;

fn service(name: &str) -> ServiceName {
    ServiceName { namespace: "shop".into(), hostname: format!("{name}.shop.svc.cluster.local").into() }
}

fn target(name: &str) -> BackendTarget {
    BackendTarget::Service { service: service(name), port: 80 }
}

fn backend(name: &str, weight: u32) -> Backend {
    Backend { weight, target: target(name), filters: Vec::new() }
}

fn prefix(path: &str) -> Vec<Match> {
    vec![Match { path: PathMatch::Prefix(path.into()), ..Match::all() }]
}

fn route(rules: Vec<Rule>) -> Route {
    Route {
        id: RouteName { kind: RouteKind::Http, namespace: "shop".into(), name: "web".into() },
        created: 0,
        parents: vec![Parent { service: service("web"), port: None, consumer: None }],
        hostnames: Vec::new(),
        rules,
        not_understood: None,
    }
}

fn changes(set: &[(&str, &str)], add: &[(&str, &str)], remove: &[&str]) -> HeaderChanges {
    let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    HeaderChanges { set: pairs(set), add: pairs(add), remove: remove.iter().map(|name| (*name).into()).collect() }
}

fn decide(route: &Route, port: u16, path: &str, query: Option<&str>) -> Decision {
    let headers = HeaderMap::new();
    let request = Request {
        method: "GET",
        host: "web.shop",
        host_port: None,
        path,
        query,
        headers: &headers,
        source_namespace: None,
    };
    Table::new(&service("web"), port, [route]).decide(&request, &mut numbers(1))
}

fn forward(decision: Decision) -> Forward {
    match decision.outcome {
        Outcome::Forward(forward) => *forward,
        other => panic!("{other:?}"),
    }
}

fn refusal(decision: Decision) -> Refusal {
    match decision.outcome {
        Outcome::Refuse(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

/// `GET /` of the service, with these headers.
fn get_root(headers: &HeaderMap) -> Request<'_> {
    Request { method: "GET", host: "web", host_port: None, path: "/", query: None, headers, source_namespace: None }
}

#[test]
fn a_service_without_routes_is_reached_as_it_is() {
    let mut other = route(vec![Rule::default()]);
    other.parents[0].port = Some(81);
    assert!(matches!(decide(&other, 80, "/", None).outcome, Outcome::Unrouted));
}

#[test]
fn what_no_rule_matches_is_answered_404() {
    let refused = refusal(decide(&route(vec![Rule { matches: prefix("/a"), ..Rule::default() }]), 80, "/b", None));
    assert_eq!(refused.status(), 404);
    assert_eq!(refused.to_string(), "no rule of the routes for this service matches the request (HTTPRoute shop/web)");
}

#[test]
fn backends_get_their_shares_and_a_bad_one_answers_500_for_its_own() {
    let invalid = Backend {
        weight: 3,
        target: BackendTarget::Invalid("Service shop/gone does not exist".into()),
        filters: Vec::new(),
    };
    let backends = vec![backend("one", 1), invalid, backend("none", 0), backend("two", 6)];
    let route = route(vec![Rule { backends, ..Rule::default() }]);
    let table = Table::new(&service("web"), 80, [&route]);
    let headers = HeaderMap::new();
    let request = get_root(&headers);
    let mut random = numbers(7);
    let (mut one, mut two, mut refused) = (0, 0, 0);
    for _ in 0..10_000 {
        match table.decide(&request, &mut random).outcome {
            Outcome::Forward(forward) if forward.to.service == service("one") => one += 1,
            Outcome::Forward(forward) if forward.to.service == service("two") => two += 1,
            Outcome::Refuse(refusal) => {
                assert_eq!(refusal.status(), 500);
                assert!(refusal.to_string().contains("Service shop/gone does not exist"), "{refusal}");
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!((800..1200).contains(&one) && (5700..6300).contains(&two) && (2700..3300).contains(&refused));
}

#[test]
fn without_a_backend_the_answer_is_500() {
    let none = route(vec![Rule::default()]);
    assert_eq!(refusal(decide(&none, 80, "/", None)).status(), 500);
    let zero = route(vec![Rule { backends: vec![backend("a", 0), backend("b", 0)], ..Rule::default() }]);
    assert_eq!(refusal(decide(&zero, 80, "/", None)).status(), 500);
}

#[test]
fn a_refusal_has_the_flag_that_istio_has_for_it_and_none_goes_by_itself() {
    let route = route(vec![]).id;
    for (refusal, status, flag) in [
        (Refusal::NoRule(vec![route.clone()]), 404, "NR"),
        (Refusal::Backend { rule: "r".into(), problem: "p".into() }, 500, "NC"),
        (Refusal::NoBackend("r".into()), 500, "NC"),
        (Refusal::NotUnderstood { route, problem: "p".into() }, 500, "NR"),
        (Refusal::Rewritten { rule: "r".into(), problem: "p".into() }, 400, "IH"),
    ] {
        assert_eq!((refusal.status(), refusal.flag(), refusal.is_retryable()), (status, flag, false), "{refusal}");
    }
    assert!(!RuleError::NoPrefix.is_retryable());
}

#[test]
fn a_prefix_is_replaced_as_the_specification_lists() {
    let table = [
        ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
        ("/foo/bar", "/foo/", "/xyz", "/xyz/bar"),
        ("/foo/bar", "/foo/", "/xyz/", "/xyz/bar"),
        ("/foo", "/foo", "/xyz", "/xyz"),
        ("/foo/", "/foo", "/xyz", "/xyz/"),
        ("/foo/bar", "/foo", "", "/bar"),
        ("/foo/", "/foo", "", "/"),
        ("/foo", "/foo", "", "/"),
        ("/foo/", "/foo", "/", "/"),
        ("/foo", "/foo", "/", "/"),
        ("/foo", "/", "/xyz", "/xyz/foo"),
    ];
    for (path, matched, new, expected) in table {
        let rewrite = Rewrite { hostname: None, path: Some(PathChange::Prefix(new.into())) };
        let rule = Rule {
            matches: prefix(matched),
            filters: vec![Filter::Rewrite(rewrite)],
            backends: vec![backend("one", 1)],
            ..Rule::default()
        };
        let path_there = forward(decide(&route(vec![rule]), 80, path, None)).path;
        assert_eq!(path_there.as_deref(), Some(expected), "{path} {matched} {new}");
    }
}

#[test]
fn a_session_stays_at_the_backend_where_it_is() {
    let gone = Backend { weight: 0, target: BackendTarget::Invalid("gone".into()), filters: Vec::new() };
    let session = SessionPersistence {
        name: None,
        token: leno_model::http::SessionToken::Cookie { permanent: false },
        absolute_timeout: None,
    };
    let kept =
        Rule { backends: vec![backend("one", 1), backend("two", 0), gone], session: Some(session), ..Rule::default() };
    let free = Rule { session: None, ..kept.clone() };
    let to = |rule: &Rule, held: Option<usize>| {
        let route = route(vec![rule.clone()]);
        let table = Table::new(&service("web"), 80, [&route]);
        let headers = HeaderMap::new();
        let request = get_root(&headers);
        let decision = table.decide_within(&request, &mut numbers(1), &mut |chosen, sessions| {
            assert_eq!(chosen.sessions().map(Sessions::carrier), Some(sessions.carrier()));
            held
        });
        assert_eq!(decision.chosen.as_ref().and_then(Chosen::sessions).is_some(), rule.session.is_some());
        forward(decision).to.service
    };
    assert_eq!(to(&kept, Some(1)), service("two"), "whatever its weight");
    for none in [None, Some(2), Some(3)] {
        assert_eq!(to(&kept, none), service("one"), "{none:?}");
    }
    assert_eq!(to(&free, Some(1)), service("one"));
}

#[test]
fn one_backend_is_no_choice_and_uses_up_no_random_number() {
    let only = route(vec![Rule { backends: vec![backend("one", 1)], ..Rule::default() }]);
    let headers = HeaderMap::new();
    let request = get_root(&headers);
    let table = Table::new(&service("web"), 80, [&only]);
    let decision = table.decide(&request, &mut || panic!("nothing is drawn"));
    assert_eq!(forward(decision).to.service, service("one"));
}

#[test]
fn what_is_chosen_can_be_told() {
    let rate = RateLimit { requests: 5, per: Duration::from_secs(1), burst: 2 };
    let retry = Retry { codes: vec![503], attempts: Some(2), backoff: None };
    let timeouts = Timeouts { request: Some(Duration::from_secs(3)), backend_request: Some(Duration::from_secs(1)) };
    let named = Rule {
        name: Some("named".into()),
        matches: [prefix("/a"), prefix("/b")].concat(),
        backends: vec![backend("one", 1), backend("two", 3)],
        timeouts,
        retry: Some(retry.clone()),
        rate: Some(rate),
        ..Rule::default()
    };
    let plain = Rule { backends: vec![backend("one", 1)], ..Rule::default() };
    let route = route(vec![plain, named]);
    for (path, matched) in [("/a", 0), ("/b", 1)] {
        let decision = decide(&route, 80, path, None);
        let chosen = decision.chosen.clone().expect("a rule");
        assert_eq!((chosen.rule_index(), chosen.match_index()), (1, matched));
        assert_eq!((chosen.route(), chosen.rule_name().map(|name| &**name)), (&route.id, Some("named")));
        assert_eq!((chosen.rate(), &**chosen.label()), (Some(rate), "rule named of HTTPRoute shop/web"));
        assert_eq!(chosen.backends().map(|(weight, _)| weight).collect::<Vec<_>>(), [1, 3]);
        let forward = forward(decision);
        assert_eq!((forward.timeouts(), forward.retry()), (timeouts, Some(&retry)));
    }
    let decision = decide(&route, 80, "/", None);
    let chosen = decision.chosen.clone().expect("a rule");
    assert_eq!((chosen.rule_index(), chosen.rule_name(), chosen.rate()), (0, None, None));
    assert_eq!(&**chosen.label(), "rule 1 of HTTPRoute shop/web");
    assert_eq!(forward(decision).retry(), None);
}

#[test]
fn a_rewrite_changes_host_and_path() {
    let rewrite = Rewrite { hostname: Some("one.example".into()), path: Some(PathChange::Full("/new".into())) };
    let rule = Rule {
        filters: vec![Filter::Rewrite(rewrite)],
        backends: vec![backend("one", 1)],
        timeouts: Timeouts { request: Some(Duration::from_secs(1)), backend_request: None },
        ..Rule::default()
    };
    let forward = forward(decide(&route(vec![rule]), 80, "/old", None));
    assert_eq!((forward.path.as_deref(), forward.host), (Some("/new"), Some(HeaderValue::from_static("one.example"))));
    assert_eq!(forward.rule.timeouts.request, Some(Duration::from_secs(1)));
}

#[test]
fn redirects_lead_where_the_specification_says() {
    let location = |redirect: Redirect, port| {
        let rule = Rule { matches: prefix("/old"), filters: vec![Filter::Redirect(redirect)], ..Rule::default() };
        match decide(&route(vec![rule]), port, "/old/a", Some("q=1")).outcome {
            Outcome::Answer(answer) => {
                format!("{} {}", answer.status, answer.headers["location"].to_str().expect("text"))
            }
            other => panic!("{other:?}"),
        }
    };
    let plain = Redirect { scheme: None, hostname: None, path: None, port: None, status: 302 };
    assert_eq!(location(plain.clone(), 80), "302 http://web.shop/old/a?q=1");
    assert_eq!(location(plain.clone(), 8080), "302 http://web.shop:8080/old/a?q=1");
    let secure = Redirect { scheme: Some("https".into()), status: 308, ..plain.clone() };
    assert_eq!(location(secure.clone(), 8080), "308 https://web.shop/old/a?q=1");
    assert_eq!(location(Redirect { port: Some(8443), ..secure.clone() }, 80), "308 https://web.shop:8443/old/a?q=1");
    assert_eq!(location(Redirect { port: Some(443), ..secure }, 80), "308 https://web.shop/old/a?q=1");
    let moved = Redirect {
        hostname: Some("example.org".into()),
        path: Some(PathChange::Prefix("/new".into())),
        port: Some(80),
        ..plain
    };
    assert_eq!(location(moved, 8080), "302 http://example.org/new/a?q=1");
}

#[test]
fn headers_change_both_ways_and_in_order() {
    let own = Backend {
        filters: vec![
            Filter::RequestHeaders(changes(&[], &[("x-who", "backend")], &[])),
            Filter::ResponseHeaders(changes(&[("x-end", "backend")], &[], &[])),
        ],
        ..backend("one", 1)
    };
    let rule = Rule {
        filters: vec![
            Filter::RequestHeaders(changes(&[("x-who", "rule")], &[], &["x-gone"])),
            Filter::ResponseHeaders(changes(&[("x-end", "rule")], &[], &["server"])),
        ],
        backends: vec![own],
        ..Rule::default()
    };
    let forward = forward(decide(&route(vec![rule]), 80, "/", None));
    let map = |pairs: &[(&'static str, &'static str)]| -> HeaderMap {
        pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    };
    let mut request = map(&[("x-who", "client"), ("x-gone", "1")]);
    forward.change_request(&mut request);
    assert_eq!(request.get_all("x-who").iter().collect::<Vec<_>>(), ["rule", "backend"]);
    assert!(!request.contains_key("x-gone"));
    let mut response = map(&[("server", "nginx")]);
    forward.change_response(&mut response);
    assert_eq!(response, map(&[("x-end", "rule")]));
}

#[test]
fn copies_go_out_in_their_share() {
    let mirror = |name, numerator, denominator| Filter::Mirror(Mirror { target: target(name), numerator, denominator });
    let rule = Rule {
        filters: vec![mirror("all", 1, 1), mirror("none", 0, 100), mirror("some", 25, 100)],
        backends: vec![backend("one", 1)],
        ..Rule::default()
    };
    let route = route(vec![rule]);
    let table = Table::new(&service("web"), 80, [&route]);
    let headers = HeaderMap::new();
    let request = get_root(&headers);
    let mut random = numbers(3);
    let mut counts = [0; 3];
    for _ in 0..10_000 {
        let mirrors = forward(table.decide(&request, &mut random)).mirrors;
        for (count, name) in counts.iter_mut().zip(["all", "none", "some"]) {
            *count += mirrors.iter().filter(|to| to.service == service(name)).count();
        }
    }
    assert_eq!(counts[..2], [10_000, 0]);
    assert!((2200..2800).contains(&counts[2]), "{counts:?}");
}

#[test]
fn a_route_that_is_not_understood_lets_nothing_through() {
    let mut bad = route(vec![Rule { backends: vec![backend("one", 1)], ..Rule::default() }]);
    bad.not_understood = Some("kind of filter 99".into());
    let refused = refusal(decide(&bad, 80, "/", None));
    assert_eq!(refused.status(), 500);
    assert!(refused.to_string().contains("kind of filter 99"), "{refused}");
    let mut regex = route(vec![Rule { backends: vec![backend("one", 1)], ..Rule::default() }]);
    regex.rules[0].matches = vec![Match { path: PathMatch::Regex("/(a".into()), ..Match::all() }];
    assert_eq!(refusal(decide(&regex, 80, "/", None)).status(), 500);
}

#[test]
fn a_route_that_cannot_be_followed_to_the_letter_says_why() {
    let with = |filters: Vec<Filter>, matches: Vec<Match>| {
        let rule = Rule { filters, matches, backends: vec![backend("one", 1)], ..Rule::default() };
        check(&route(vec![Rule::default(), rule])).expect_err("a problem").remove(0)
    };
    let path = |path| vec![Match { path, ..Match::all() }];
    let (_, told) = with(vec![], path(PathMatch::Regex("(".into())));
    assert!(told.to_string().ends_with("(RE2's syntax): unclosed group"), "on one line: {told}");
    assert!(matches!(with(vec![], path(PathMatch::Regex("a)|(b".into()))), (1, RuleError::Regex { .. })));
    assert!(matches!(with(vec![], path(PathMatch::Regex("(a{1000}){1000}".into()))), (1, RuleError::Regex { .. })));
    let long = path(PathMatch::Regex("/(v1|v2)/[a-z0-9-]{1,63}/items/[0-9]{1,10}(/.*)?".into()));
    assert_eq!(check(&route(vec![Rule { matches: long, ..Rule::default() }])), Ok(()), "as people write them");
    for (value, is_of_query) in [("/a;b", false), ("/a?b", true)] {
        let (index, told) = with(vec![], path(PathMatch::Exact(value.into())));
        assert!(index == 1 && matches!(told, RuleError::Path { .. }), "{told}");
        assert_eq!(told.to_string().contains("without the query"), is_of_query, "{told}");
    }
    assert!(matches!(with(vec![], path(PathMatch::Exact("a".into()))), (1, RuleError::Path { .. })));
    let rewrite = Rewrite { hostname: None, path: Some(PathChange::Prefix("/x".into())) };
    let rewrite = Filter::Rewrite(rewrite);
    assert_eq!(with(vec![rewrite.clone()], path(PathMatch::Exact("/a".into()))).1, RuleError::NoPrefix);
    let redirect = Redirect { scheme: None, hostname: None, path: None, port: None, status: 302 };
    let moved = |path| Filter::Redirect(Redirect { path: Some(path), ..redirect.clone() });
    let of_a_part = moved(PathChange::Prefix("/x".into()));
    assert_eq!(with(vec![of_a_part.clone()], path(PathMatch::Exact("/a".into()))).1, RuleError::NoPrefix);
    assert_eq!(with(vec![of_a_part], path(PathMatch::Regex("/a".into()))).1, RuleError::NoPrefix);
    let whole = Rewrite { hostname: None, path: Some(PathChange::Full("/x".into())) };
    for filter in [moved(PathChange::Full("/x".into())), Filter::Rewrite(whole)] {
        let rule = Rule { filters: vec![filter], matches: path(PathMatch::Exact("/a".into())), ..Rule::default() };
        assert_eq!(check(&route(vec![rule])), Ok(()), "a whole path stands for any");
    }
    let both = vec![rewrite, Filter::Redirect(redirect.clone())];
    assert_eq!(with(both, prefix("/")).1, RuleError::TwoTargets);
    let odd = Redirect { status: 300, ..redirect.clone() };
    assert_eq!(with(vec![Filter::Redirect(odd)], vec![]).1, RuleError::Status(300));
    let fixed = Filter::RequestHeaders(changes(&[("content-length", "0")], &[], &[]));
    assert_eq!(with(vec![fixed], vec![]).1, RuleError::HeaderFixed("content-length".into()));
    let value = Filter::RequestHeaders(changes(&[("x-a", "a\r\nb")], &[], &[]));
    assert_eq!(with(vec![value], vec![]).1, RuleError::HeaderValue("x-a".into()));
    let mut of_backend = backend("one", 1);
    of_backend.filters.push(Filter::Redirect(redirect));
    let rule = Rule { backends: vec![of_backend], ..Rule::default() };
    let problems = check(&route(vec![rule])).expect_err("a problem");
    assert_eq!(problems, [(0, RuleError::BackendFilter("RequestRedirect"))]);
    assert_eq!(check(&route(vec![Rule::default()])), Ok(()));
    for (host, sound) in
        [("a.example", true), ("*.example", true), ("A.example", false), ("a:80", false), ("a b", false)]
    {
        let of_host = Route { hostnames: vec![host.into()], ..route(vec![Rule::default()]) };
        assert_eq!(check(&of_host).is_ok(), sound, "{host}");
    }
}
