//! What a choice among many routes costs a request, in instructions: with 5 000 as much as with 100.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code")]

use std::io;

use http::HeaderMap;
use leno_model::ServiceName;
use leno_model::http::{Backend, BackendTarget, Match, Parent, PathMatch, Route, RouteKind, RouteName, Rule};
use leno_policy::http::{Outcome, Request, Table};
use leno_testkit::{skips, steps};

/// For the traced process: routes of the service.
const SIZE: &str = "LENO_TEST_ROUTES";
/// The bound for processor time, here for the part of it that could grow.
const MOST: f64 = 1.1;
/// What is counted is an average over so many requests: where a hash table puts its entries differs from run to run.
const REQUESTS: usize = 8;

fn web() -> ServiceName {
    ServiceName { namespace: "default".into(), hostname: "web.default.svc.cluster.local".into() }
}

/// How a route is told from the others.
#[derive(Clone, Copy)]
enum By {
    Host,
    Prefix,
    Path,
}

fn route(number: usize, by: By) -> Route {
    let path = match by {
        By::Host => PathMatch::Prefix("/".into()),
        By::Prefix => PathMatch::Prefix(format!("/api/part-{number}").into()),
        By::Path => PathMatch::Exact(format!("/api/part-{number}/list").into()),
    };
    let hostnames = match by {
        By::Host => vec![format!("host-{number}.example").into()],
        By::Prefix | By::Path => Vec::new(),
    };
    let backend =
        Backend { weight: 1, target: BackendTarget::Service { service: web(), port: 80 }, filters: Vec::new() };
    Route {
        id: RouteName { kind: RouteKind::Http, namespace: "default".into(), name: format!("route-{number}").into() },
        created: number as u64,
        parents: vec![Parent { service: web(), port: None, consumer: None }],
        hostnames,
        rules: vec![Rule { matches: vec![Match { path, ..Match::all() }], backends: vec![backend], ..Rule::default() }],
        not_understood: None,
    }
}

/// What is counted, in the traced process: one stretch for each way to tell routes apart.
fn choose(size: usize) {
    let tables = [By::Host, By::Prefix, By::Path].map(|by| {
        let routes: Vec<Route> = (0..size).map(|number| route(number, by)).collect();
        Table::new(&web(), 80, &routes)
    });
    // The same routes in both sizes, so that no request is longer than its counterpart.
    let numbers: Vec<usize> = (0..REQUESTS).map(|turn| 10 + turn * 5).collect();
    let hosts: Vec<String> = numbers.iter().map(|number| format!("host-{number}.example")).collect();
    let paths: Vec<String> = numbers.iter().map(|number| format!("/api/part-{number}/list")).collect();
    let headers = HeaderMap::new();
    steps::wait_for_tracer().unwrap();
    for table in &tables {
        let decisions = steps::counted(|| {
            let decide = |(host, path): (&String, &String)| {
                let request = Request {
                    method: "GET",
                    host,
                    host_port: None,
                    path,
                    query: None,
                    headers: &headers,
                    source_namespace: Some("default"),
                };
                table.decide(&request, &mut || 0)
            };
            hosts.iter().zip(&paths).map(decide).collect::<Vec<_>>()
        });
        for (number, decision) in numbers.iter().zip(&decisions) {
            assert!(matches!(decision.outcome, Outcome::Forward(_)), "{:?}", decision.outcome);
            let label = decision.chosen.as_ref().unwrap().label().to_string();
            assert!(label.contains(&format!("route-{number}")), "{label} for {number}");
        }
    }
}

#[test]
fn a_request_costs_as_much_among_5000_routes_as_among_100() {
    const NAME: &str = "a_request_costs_as_much_among_5000_routes_as_among_100";
    if steps::is_traced() {
        return choose(std::env::var(SIZE).unwrap().parse().unwrap());
    }
    let counts = [100, 5_000].map(|size| match steps::instructions(NAME, &[(SIZE, size.to_string())]) {
        Ok(counts) => Some(counts),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
        Err(error) => panic!("{error}"),
    });
    let [Some(few), Some(many)] = counts else { return skips::skip(NAME, "no process may be traced here") };
    for ((by, few), many) in ["host", "prefix", "path"].into_iter().zip(few).zip(many) {
        let (few, many) = (few as f64 / REQUESTS as f64, many as f64 / REQUESTS as f64);
        println!("by {by}: {few:.0} instructions among 100 routes, {many:.0} among 5 000");
        assert!(many <= few * MOST, "by {by}: {many:.0} instructions among 5 000 routes, {few:.0} among 100");
    }
}
