//! Sessions stay at one endpoint.

use std::time::Duration;

use leno_model::http::{
    Backend, BackendTarget, Parent, Route, RouteKind, RouteName, Rule, SessionPersistence, SessionToken,
};
use leno_model::{AppProtocol, Port, Service, TunnelProtocol, Workload};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Mesh, raw, server};

/// A server that says who it is.
async fn named(name: &'static str) -> std::net::SocketAddr {
    server(move |mut stream| async move {
        let mut read = [0; 4096];
        while stream.read(&mut read).await.is_ok_and(|length| length > 0) {
            let answer =
                format!("HTTP/1.1 200 OK\r\nset-cookie: own=1\r\ncontent-length: {}\r\n\r\n{name}", name.len());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    })
    .await
}

fn to(service: &Service, weight: u32) -> Backend {
    let target = BackendTarget::Service { service: service.id.clone(), port: 80 };
    Backend { weight, target, filters: Vec::new() }
}

fn route(of: &Service, token: SessionToken, age: Option<Duration>, backends: Vec<Backend>) -> Route {
    let session = SessionPersistence { name: Some("who".into()), token, absolute_timeout: age };
    Route {
        id: RouteName { kind: RouteKind::Http, namespace: "default".into(), name: "route".into() },
        created: 1,
        parents: vec![Parent { service: of.id.clone(), port: None, consumer: None }],
        hostnames: Vec::new(),
        rules: vec![Rule { backends, session: Some(session), ..Rule::default() }],
        not_understood: None,
    }
}

const COOKIE: SessionToken = SessionToken::Cookie { permanent: false };

/// The service with two endpoints, another one with two, and the endpoints' workloads.
async fn mesh() -> (Mesh, Service, Service, Vec<Workload>) {
    let mesh = Mesh::new().await;
    let web = mesh.service(AppProtocol::Http11, &[named("a").await, named("b").await]).await;
    let mut other = Service::new("default", "other", "other.default.svc.cluster.local");
    other.ports = vec![Port::tcp(80, 8080)];
    mesh.control.publish_service(&other);
    let mut endpoints = Vec::new();
    for (index, name) in ["c", "d"].into_iter().enumerate() {
        endpoints.push(mesh.endpoint(&other, 7 + index, named(name).await, TunnelProtocol::None));
    }
    mesh.control.synced(1).await;
    (mesh, web, other, endpoints)
}

struct Answer {
    by: String,
    token: Option<String>,
    whole: String,
}

async fn get(mesh: &Mesh, headers: &str) -> Answer {
    let request = format!("GET /x HTTP/1.1\r\nhost: web\r\nconnection: close\r\n{headers}\r\n");
    let whole = raw(mesh.bridged().await, request.as_bytes()).await;
    let (head, by) = whole.split_once("\r\n\r\n").expect("an answer");
    let token = head.lines().find_map(|line| {
        let value = line.strip_prefix("set-cookie: who=").or_else(|| line.strip_prefix("who: "))?;
        Some(value.split(';').next().unwrap_or_default().to_owned())
    });
    Answer { by: by.to_owned(), token, whole: whole.clone() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_stays_by_cookie_and_counts_for_more_than_weights() {
    let (mesh, web, other, _) = mesh().await;
    mesh.control.publish_route(&route(&web, COOKIE, None, vec![to(&web, 1), to(&other, 1)]));
    mesh.control.synced(1).await;
    // New sessions are spread.
    let mut seen = std::collections::BTreeMap::new();
    for _ in 0..60 {
        let answer = get(&mesh, "").await;
        assert!(answer.whole.contains("; Path=/; HttpOnly; SameSite=Strict\r\n"), "{}", answer.whole);
        assert!(
            answer.whole.contains("set-cookie: own=1\r\n") && !answer.whole.contains("Max-Age"),
            "{}",
            answer.whole
        );
        seen.insert(answer.by, answer.token.expect("a token"));
    }
    assert_eq!(seen.keys().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    for (by, token) in &seen {
        for _ in 0..15 {
            let answer = get(&mesh, &format!("cookie: x=y; who={token}\r\n")).await;
            assert_eq!((&answer.by, answer.token), (by, None));
        }
    }
    // A backend that gets nothing new keeps what it has.
    mesh.control.publish_route(&route(&web, COOKIE, None, vec![to(&web, 1), to(&other, 0)]));
    mesh.control.synced(1).await;
    let token = &seen["c"];
    for _ in 0..10 {
        assert_eq!(get(&mesh, &format!("cookie: who={token}\r\n")).await.by, "c");
        assert!(["a", "b"].contains(&&*get(&mesh, "").await.by));
    }
    // Of a backend that the rule no longer has, nothing is left.
    mesh.control.publish_route(&route(&web, COOKIE, None, vec![to(&web, 1)]));
    mesh.control.synced(1).await;
    let answer = get(&mesh, &format!("cookie: who={token}\r\n")).await;
    assert!(["a", "b"].contains(&&*answer.by) && answer.token.is_some(), "{}", answer.whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_stays_by_header_until_its_endpoint_is_gone() {
    let (mesh, web, other, endpoints) = mesh().await;
    mesh.control.publish_route(&route(&web, SessionToken::Header, None, vec![to(&other, 1)]));
    mesh.control.synced(1).await;
    let first = get(&mesh, "").await;
    let token = first.token.expect("a token");
    for _ in 0..15 {
        let answer = get(&mesh, &format!("who: {token}\r\n")).await;
        assert_eq!((&answer.by, answer.token.as_ref()), (&first.by, Some(&token)));
    }
    let gone = &endpoints[usize::from(first.by == "d")];
    mesh.control.remove_workload(&gone.uid);
    mesh.control.synced(1).await;
    let next = get(&mesh, &format!("who: {token}\r\n")).await;
    assert_ne!(next.by, first.by);
    assert!(next.token.is_some_and(|new| new != token));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_moves_on_if_its_endpoint_can_not_be_reached() {
    let (mesh, web, other, endpoints) = mesh().await;
    mesh.control.publish_route(&route(&web, SessionToken::Header, None, vec![to(&other, 1)]));
    mesh.control.synced(1).await;
    let mut first = get(&mesh, "").await;
    while first.by != "c" {
        first = get(&mesh, "").await;
    }
    // The pod is there, and its program is not.
    let mut dead = endpoints[0].clone();
    dead.services.insert(other.id.clone(), vec![Port { target_port: 1, ..other.ports[0] }]);
    mesh.control.publish_workload(&dead);
    mesh.control.synced(1).await;
    let token = first.token.expect("a token");
    let next = get(&mesh, &format!("who: {token}\r\n")).await;
    assert_eq!(next.by, "d");
    assert!(next.token.is_some_and(|new| new != token));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_by_age_and_a_forged_one_is_none() {
    let (mesh, web, ..) = mesh().await;
    let permanent = SessionToken::Cookie { permanent: true };
    let age = Duration::from_secs(300);
    mesh.control.publish_route(&route(&web, permanent, Some(age), vec![to(&web, 1)]));
    mesh.control.synced(1).await;
    let answer = get(&mesh, "").await;
    assert!(answer.whole.contains("; Max-Age=300; "), "{}", answer.whole);
    let token = answer.token.expect("a token");
    assert_eq!(get(&mesh, &format!("cookie: who={token}\r\n")).await.token, None);
    // The same endpoint, but long ago; and what names no endpoint, or nothing.
    let (place, _) = token.split_once('-').expect("two parts");
    for wrong in [format!("{place}-1"), "0123456789abcdef-1".to_owned(), "127.0.0.2:80".to_owned(), String::new()] {
        let answer = get(&mesh, &format!("cookie: who={wrong}\r\n")).await;
        assert!(answer.token.is_some_and(|new| new != wrong), "{wrong}: {}", answer.whole);
    }
}
