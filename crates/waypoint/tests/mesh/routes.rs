//! Requests follow the routes of their service.

use std::time::Duration;

use leno_model::http::{
    Backend, BackendTarget, Filter, HeaderChanges, Match, Parent, PathChange, PathMatch, Redirect, Retry, Rewrite,
    Route, RouteKind, RouteName, Rule, Timeouts, ValueMatch, ValueTest,
};
use leno_model::{AppProtocol, Service, TunnelProtocol};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::http1::mirror;
use crate::support::{Mesh, raw, server};

fn to(service: &Service, weight: u32) -> Backend {
    let target = BackendTarget::Service { service: service.id.clone(), port: 80 };
    Backend { weight, target, filters: Vec::new() }
}

fn prefix(path: &str) -> Match {
    Match { path: PathMatch::Prefix(path.into()), ..Match::all() }
}

fn route(of: &Service, rules: Vec<Rule>) -> Route {
    Route {
        id: RouteName { kind: RouteKind::Http, namespace: "default".into(), name: "route".into() },
        created: 1,
        parents: vec![Parent { service: of.id.clone(), port: None, consumer: None }],
        hostnames: Vec::new(),
        rules,
        not_understood: None,
    }
}

/// A second service, whose answers can be told apart.
async fn canary(mesh: &Mesh) -> Service {
    let answer = server(|mut stream| async move {
        let mut read = [0; 4096];
        while stream.read(&mut read).await.is_ok_and(|length| length > 0) {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\ncanary").await;
        }
    })
    .await;
    let mut canary = Service::new("default", "canary", "canary.default.svc.cluster.local");
    canary.ports = vec![leno_model::Port::tcp(80, 8080)];
    mesh.control.publish_service(&canary);
    mesh.endpoint(&canary, 7, answer, TunnelProtocol::None);
    canary
}

async fn get(mesh: &Mesh, path: &str, headers: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: web\r\nconnection: close\r\n{headers}\r\n");
    raw(mesh.bridged().await, request.as_bytes()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_follow_routes() {
    let mesh = Mesh::new().await;
    let web = mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let canary = canary(&mesh).await;
    let by_header = Match {
        headers: vec![ValueMatch { name: "x-canary".into(), value: ValueTest::Exact("yes".into()) }],
        ..prefix("/")
    };
    let changes = HeaderChanges { set: vec![("x-set".into(), "1".into())], ..HeaderChanges::default() };
    let redirect = Redirect { scheme: None, hostname: Some("new.example".into()), path: None, port: None, status: 301 };
    let rewrite = Rewrite { hostname: Some("inner".into()), path: Some(PathChange::Prefix("/new".into())) };
    let rules = vec![
        Rule { matches: vec![by_header], backends: vec![to(&canary, 1)], ..Rule::default() },
        Rule { matches: vec![prefix("/moved")], filters: vec![Filter::Redirect(redirect)], ..Rule::default() },
        Rule {
            matches: vec![prefix("/old")],
            filters: vec![
                Filter::Rewrite(rewrite),
                Filter::RequestHeaders(changes.clone()),
                Filter::ResponseHeaders(changes),
            ],
            backends: vec![to(&web, 1)],
            ..Rule::default()
        },
        Rule { matches: vec![prefix("/split")], backends: vec![to(&web, 1), to(&canary, 1)], ..Rule::default() },
    ];
    mesh.control.publish_route(&route(&web, rules));
    mesh.control.synced(1).await;

    assert!(get(&mesh, "/x", "x-canary: yes\r\n").await.ends_with("canary"));
    let moved = get(&mesh, "/moved/a?b=c", "").await;
    assert!(
        moved.starts_with("HTTP/1.1 301 ") && moved.contains("location: http://new.example/moved/a?b=c\r\n"),
        "{moved}"
    );
    let old = get(&mesh, "/old/./a?b=c", "").await;
    for part in ["x-set: 1\r\n", "GET /new/a?b=c HTTP/1.1", "\nhost=inner\n", "\nx-set=1\n"] {
        assert!(old.contains(part), "{part}: {old}");
    }
    mesh.log.line(&["path=\"/old/./a?b=c\"", "route=\"", "response_code=200"]).await;
    let mut seen = [0, 0];
    for _ in 0..40 {
        seen[usize::from(get(&mesh, "/split", "").await.ends_with("canary"))] += 1;
    }
    assert!(seen[0] > 5 && seen[1] > 5, "{seen:?}");
    let nowhere = get(&mesh, "/elsewhere", "").await;
    assert!(nowhere.starts_with("HTTP/1.1 404 ") && nowhere.contains("no rule of the routes"), "{nowhere}");
    mesh.log.line(&["path=\"/elsewhere\"", "response_code=404", "response_flags=\"NR\""]).await;
    // What a route and a program could read differently is refused.
    assert!(get(&mesh, "/old/%2e%2e%2fx", "").await.starts_with("HTTP/1.1 400 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_limits_time_and_sends_again() {
    let mesh = Mesh::new().await;
    let tries = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counted = tries.clone();
    let endpoint = server(move |mut stream| {
        let tries = counted.clone();
        async move {
            let mut read = [0; 4096];
            while let Ok(length @ 1..) = stream.read(&mut read).await {
                if read[..length].starts_with(b"GET /slow ") {
                    std::future::pending::<()>().await;
                }
                if read[..length].starts_with(b"GET /half ") {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf").await;
                    std::future::pending::<()>().await;
                }
                let tried = tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let answer: &[u8] = if tried < 2 {
                    b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"
                } else {
                    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
                };
                let _ = stream.write_all(answer).await;
            }
        }
    })
    .await;
    let web = mesh.service(AppProtocol::Http11, &[endpoint]).await;
    let retry = Retry { codes: vec![503], attempts: Some(3), backoff: Some(Duration::from_millis(1)) };
    let timeouts = Timeouts { request: Some(Duration::from_millis(300)), backend_request: None };
    let rule = Rule { backends: vec![to(&web, 1)], timeouts, retry: Some(retry), ..Rule::default() };
    mesh.control.publish_route(&route(&web, vec![rule]));
    mesh.control.synced(1).await;
    assert!(get(&mesh, "/", "").await.ends_with("ok"));
    assert_eq!(tries.load(std::sync::atomic::Ordering::Relaxed), 3);
    let slow = get(&mesh, "/slow", "").await;
    assert!(slow.starts_with("HTTP/1.1 504 ") && slow.contains("the timeout of rule 1 of HTTPRoute"), "{slow}");
    mesh.log.line(&["path=\"/slow\"", "response_code=504", "response_flags=\"UT\""]).await;
    assert!(get(&mesh, "/half", "").await.ends_with("half"));
    mesh.log.line(&["path=\"/half\"", "response_flags=\"UT\""]).await;
}

/// A service that hands out what each of its requests was, in whole.
async fn listener(mesh: &Mesh) -> (Service, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    let at = server(move |mut stream| {
        let tell = tell.clone();
        async move {
            let (mut all, mut read) = (Vec::new(), [0; 4096]);
            while let Ok(count @ 1..) = stream.read(&mut read).await {
                all.extend_from_slice(&read[..count]);
                let text = String::from_utf8_lossy(&all).into_owned();
                if text.contains("content-length: ") && !text.ends_with("the end") || !text.contains("\r\n\r\n") {
                    continue;
                }
                all.clear();
                let _ = tell.send(text);
                let _ = stream.write_all(b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\nno").await;
            }
        }
    });
    let mut service = Service::new("default", "copies", "copies.default.svc.cluster.local");
    service.ports = vec![leno_model::Port::tcp(80, 8080)];
    mesh.control.publish_service(&service);
    mesh.endpoint(&service, 8, at.await, TunnelProtocol::None);
    (service, told)
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_go_elsewhere_and_nobody_waits_for_them() {
    let mesh = Mesh::new().await;
    let web = mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let (copies, mut told) = listener(&mesh).await;
    let mirrored = |numerator| {
        let target = BackendTarget::Service { service: copies.id.clone(), port: 80 };
        Filter::Mirror(leno_model::http::Mirror { target, numerator, denominator: 100 })
    };
    let rules = vec![
        Rule {
            matches: vec![prefix("/never")],
            filters: vec![mirrored(0)],
            backends: vec![to(&web, 1)],
            ..Rule::default()
        },
        Rule { filters: vec![mirrored(100), mirrored(100)], backends: vec![to(&web, 1)], ..Rule::default() },
    ];
    mesh.control.publish_route(&route(&web, rules));
    mesh.control.synced(1).await;

    assert!(get(&mesh, "/never", "").await.starts_with("HTTP/1.1 200 "));
    assert!(get(&mesh, "/a?b=c", "x: y\r\n").await.starts_with("HTTP/1.1 200 "));
    for _ in 0..2 {
        let copy = crate::support::soon("a copy", told.recv()).await.unwrap();
        assert!(copy.starts_with("GET /a?b=c HTTP/1.1\r\n") && copy.contains("\r\nx: y\r\n"), "{copy}");
    }
    let body = format!("{}the end", "x".repeat(100_000));
    let request =
        format!("POST /b HTTP/1.1\r\nhost: web\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let answer = raw(mesh.bridged().await, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(&body), "{}", answer.len());
    for _ in 0..2 {
        let copy = crate::support::soon("a copy with a body", told.recv()).await.unwrap();
        assert!(
            copy.starts_with("POST /b HTTP/1.1\r\n") && copy.ends_with(&format!("\r\n\r\n{body}")),
            "{}",
            copy.len()
        );
    }
    assert!(told.try_recv().is_err(), "a share of 0");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_takes_too_long_is_followed_by_another() {
    let mesh = Mesh::new().await;
    let tries = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counted = tries.clone();
    let endpoint = server(move |mut stream| {
        let tries = counted.clone();
        async move {
            let mut read = [0; 4096];
            while stream.read(&mut read).await.is_ok_and(|length| length > 0) {
                if tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
                    std::future::pending::<()>().await;
                }
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
            }
        }
    });
    let web = mesh.service(AppProtocol::Http11, &[endpoint.await]).await;
    let timeouts = Timeouts { request: None, backend_request: Some(Duration::from_millis(200)) };
    let retry = Retry { codes: vec![504], attempts: Some(1), backoff: Some(Duration::from_millis(1)) };
    let rule = Rule { backends: vec![to(&web, 1)], timeouts, retry: Some(retry), ..Rule::default() };
    mesh.control.publish_route(&route(&web, vec![rule]));
    mesh.control.synced(1).await;
    assert!(get(&mesh, "/", "").await.ends_with("ok"));
    mesh.log.line(&["response_code=200", "attempts=2"]).await;
    assert_eq!(tries.load(std::sync::atomic::Ordering::Relaxed), 2);
}
