//! External authorisers that are told of bodies: what they see, and what becomes of the body meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use leno_model::http::{
    Authorizer, Backend, BackendTarget, CheckedBody, Filter, Mirror, Parent, Retry, Route, RouteKind, RouteName, Rule,
};
use leno_model::{AppProtocol, Service, TunnelProtocol};
use leno_proto::auth::OkHttpResponse;
use leno_proto::auth::attribute_context::HttpRequest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::authorizers::{Says, allowed, custom, denied, program, provider, publish, says};
use crate::http1::mirror;
use crate::support::{Mesh, raw, soon};
use crate::websockets::{lives, open_with};

/// Tells of bodies up to so many bytes.
fn told_of(most: u32, partial: bool) -> Authorizer {
    Authorizer { body: Some(CheckedBody { most, partial, raw: false }), ..provider() }
}

/// Lets everything pass whose body does not begin with `no`, and hands on what it was asked.
fn reader() -> (Says, mpsc::UnboundedReceiver<HttpRequest>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let judge = says(move |asked| {
        let http = asked.request.as_ref().unwrap().http.clone().unwrap();
        let is_no = http.body.starts_with("no");
        let _ = sender.send(http);
        if is_no { denied(403, Vec::new(), "never\n") } else { allowed(OkHttpResponse::default()) }
    });
    (judge, receiver)
}

/// A service with one endpoint, whose requests below `/asked` are asked about.
async fn guarded(mesh: &Mesh, judge: Says, by: Authorizer, protocol: AppProtocol, at: std::net::SocketAddr) -> Service {
    publish(mesh, program(judge).await).await;
    let web = mesh.service(protocol, &[at]).await;
    mesh.control.publish_request_policy(&custom(&web, by));
    mesh.control.synced(1).await;
    web
}

async fn post(mesh: &Mesh, headers: &str, body: &str) -> String {
    let request = format!("POST /asked HTTP/1.1\r\nhost: web\r\nconnection: close\r\n{headers}\r\n{body}");
    raw(mesh.bridged().await, request.as_bytes()).await
}

const CHUNKED: &str = "transfer-encoding: chunked\r\ntrailer: x-sum\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn it_sees_the_body_and_the_program_gets_it_whole() {
    let mesh = Mesh::new().await;
    let (judge, mut asked) = reader();
    let by = Authorizer { fail_open: true, ..told_of(8, false) };
    let web = guarded(&mesh, judge, by, AppProtocol::Http11, mirror().await).await;
    let answer = post(&mesh, "content-length: 5\r\nx-envoy-auth-partial-body: lie\r\n", "hello").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\nbody=hello\n"), "{answer}");
    assert!(answer.contains("\ncontent-length=5\n"), "{answer}");
    let http = asked.recv().await.unwrap();
    assert_eq!((&*http.body, http.size, &*http.headers["x-envoy-auth-partial-body"]), ("hello", 5, "false"));

    let body = "3\r\nhel\r\n5\r\nlo123\r\n0\r\nx-sum: 7\r\n\r\n";
    let answer = post(&mesh, CHUNKED, body).await;
    assert!(answer.contains("\nbody=hello123\n") && answer.contains("\"x-sum\": \"7\""), "trailers, too: {answer}");
    assert!(answer.contains("\ntransfer-encoding=chunked\n"), "{answer}");
    let http = asked.recv().await.unwrap();
    assert_eq!((&*http.body, http.size), ("hello123", 8), "as long as it may be");

    let answer = post(&mesh, "content-length: 2\r\n", "no").await;
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.ends_with("never\n"), "{answer}");
    let _ = asked.recv().await;
    // A body that nobody may see is refused, also where failOpen would let pass what gets no answer.
    for (headers, body) in [("content-length: 9\r\n", "123456789"), (CHUNKED, "9\r\n123456789\r\n0\r\n\r\n")] {
        let answer = post(&mesh, headers, body).await;
        assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("maxRequestBytes"), "{answer}");
        mesh.log.line(&["response_code=413", "response_flags=\"UAEX\"", "longer than the 8 bytes"]).await;
    }
    assert!(post(&mesh, "", "").await.contains("\nbody=\n"));
    let http = asked.recv().await.unwrap();
    assert_eq!((&*http.body, http.headers.get("x-envoy-auth-partial-body")), ("", None), "it has none");
    let other = raw(
        mesh.bridged().await,
        b"POST /other HTTP/1.1\r\nhost: web\r\nconnection: close\r\ncontent-length: 9\r\n\r\n123456789",
    );
    assert!(other.await.contains("\nbody=123456789\n"), "nobody is asked about that");

    let raw = Some(CheckedBody { most: 4, partial: true, raw: true });
    mesh.control.publish_request_policy(&custom(&web, Authorizer { body: raw, ..provider() }));
    mesh.control.synced(1).await;
    let answer = post(&mesh, "content-length: 8\r\n", "123456\u{e9}").await;
    assert!(answer.contains("\nbody=123456\u{e9}\n"), "{answer}");
    let http = asked.recv().await.unwrap();
    assert_eq!((&*http.raw_body, &*http.body, &*http.headers["x-envoy-auth-partial-body"]), (&b"1234"[..], "", "true"));
    assert_eq!(http.size, 8, "of the whole");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_asked_for_only_if_it_may_be_seen() {
    let mesh = Mesh::new().await;
    let (judge, mut asked) = reader();
    guarded(&mesh, judge, told_of(8, false), AppProtocol::Http11, mirror().await).await;
    let expecting = async |length: u32| {
        let mut stream = TcpStream::connect(mesh.bridged().await).await.unwrap();
        let head = format!(
            "POST /asked HTTP/1.1\r\nhost: web\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut first = [0; 12];
        soon("the first answer", stream.read_exact(&mut first)).await.unwrap();
        (stream, String::from_utf8_lossy(&first).into_owned())
    };
    let (mut stream, first) = expecting(5).await;
    assert_eq!(first, "HTTP/1.1 100");
    assert!(asked.try_recv().is_err(), "there is nothing to be seen yet");
    stream.write_all(b"hello").await.unwrap();
    let mut rest = String::new();
    soon("the answer", stream.read_to_string(&mut rest)).await.unwrap();
    assert!(rest.contains("HTTP/1.1 200 ") && rest.contains("\nbody=hello\n"), "{rest}");
    assert_eq!(expecting(9).await.1, "HTTP/1.1 413", "nobody has to send it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_come_is_waited_for_only_so_long() {
    let mesh = Mesh::with(|config| config.waypoint.held_body_timeout = Duration::from_millis(500)).await;
    let (judge, mut asked) = reader();
    let web = guarded(&mesh, judge, told_of(8, false), AppProtocol::Http2, crate::http2::echo().await).await;
    let stream = TcpStream::connect(mesh.bridged().await).await.unwrap();
    let (send, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let open = async |path: &str| {
        let request = Request::post(format!("http://web{path}")).header("content-type", "application/grpc");
        let (response, mut body) =
            send.clone().ready().await.unwrap().send_request(request.body(()).unwrap(), false).unwrap();
        body.send_data(Bytes::from_static(b"hello"), false).unwrap();
        (response, body)
    };
    // A call that waits for an answer before it ends.
    let (response, _body) = open("/asked").await;
    let refused = soon("a refusal", response).await.unwrap();
    assert_eq!(refused.headers()["grpc-status"], "2");
    mesh.log.line(&["path=\"/asked\"", "has not come within 500ms", "LENO_HELD_BODY_TIMEOUT"]).await;
    assert!(asked.try_recv().is_err(), "nobody was asked about half of it");
    let (response, mut body) = open("/other").await;
    assert_eq!(soon("an answer", response).await.unwrap().status(), 200, "the others go on");
    body.send_data(Bytes::new(), true).unwrap();

    // One whose beginning is enough goes on, both ways.
    mesh.control.publish_request_policy(&custom(&web, told_of(4, true)));
    mesh.control.synced(1).await;
    let (response, mut body) = open("/asked").await;
    let answer = soon("an answer", response).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(asked.recv().await.unwrap().body, "hell");
    let mut back = answer.into_body();
    assert_eq!(soon("an echo", back.data()).await.unwrap().unwrap(), "hello");
    body.send_data(Bytes::from_static(b"more"), true).unwrap();
    assert_eq!(soon("another echo", back.data()).await.unwrap().unwrap(), "more");
    assert_eq!(soon("the end", back.trailers()).await.unwrap().unwrap()["grpc-status"], "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_body_is_copied_whole_and_sent_once() {
    let mesh = Mesh::new().await;
    let (judge, mut asked) = reader();
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    let busy = crate::support::server(move |mut stream| {
        let counted = counted.clone();
        async move {
            let mut got = Vec::new();
            while !got.ends_with(b"0\r\n\r\n") && stream.read_buf(&mut got).await.is_ok_and(|read| read > 0) {}
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = stream.write_all(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n").await;
        }
    })
    .await;
    let web = guarded(&mesh, judge, told_of(16 << 10, false), AppProtocol::Http11, busy).await;
    let mut copies = mesh.unpublished_service(AppProtocol::Http11);
    copies.id = Service::new("default", "copies", "copies.default.svc.cluster.local").id;
    copies.addresses.clear();
    mesh.control.publish_service(&copies);
    let (sender, mut copied) = mpsc::unbounded_channel();
    let listening = crate::support::server(move |mut stream| {
        let sender = sender.clone();
        async move {
            let mut got = Vec::new();
            while !got.ends_with(b"0\r\n\r\n") && stream.read_buf(&mut got).await.is_ok_and(|read| read > 0) {}
            let _ = sender.send(got);
        }
    })
    .await;
    mesh.endpoint(&copies, 5, listening, TunnelProtocol::None);
    let to = |service: &Service| BackendTarget::Service { service: service.id.clone(), port: 80 };
    mesh.control.publish_route(&Route {
        id: RouteName { kind: RouteKind::Http, namespace: "default".into(), name: "route".into() },
        created: 1,
        parents: vec![Parent { service: web.id.clone(), port: None, consumer: None }],
        hostnames: Vec::new(),
        rules: vec![Rule {
            filters: vec![Filter::Mirror(Mirror { target: to(&copies), numerator: 1, denominator: 1 })],
            backends: vec![Backend { weight: 1, target: to(&web), filters: Vec::new() }],
            retry: Some(Retry { codes: vec![503], attempts: Some(3), backoff: Some(Duration::ZERO) }),
            ..Rule::default()
        }],
        not_understood: None,
    });
    mesh.control.synced(1).await;
    // More parts than a copy may be behind.
    let parts: String = (0..200).map(|_| "4\r\npart\r\n").collect();
    let answer = post(&mesh, CHUNKED, &format!("{parts}0\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 503 Busy"), "{answer}");
    assert_eq!(asked.recv().await.unwrap().body, "part".repeat(200));
    let copy = String::from_utf8(soon("a copy", copied.recv()).await.unwrap()).unwrap();
    assert!(copy.contains(&"part".repeat(200)) && copy.ends_with("0\r\n\r\n"), "whole: {copy}");
    assert_eq!(tries.load(Ordering::SeqCst), 1, "a request with a body is sent once");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_follows_an_upgrade_is_no_body() {
    let mesh = Mesh::new().await;
    let (judge, mut asked) = reader();
    guarded(&mesh, judge, told_of(8, false), AppProtocol::Http11, crate::websockets::echo().await).await;
    let mut stream = open_with(&mesh, "/asked", "").await;
    assert!(lives(&mut stream).await);
    let http = asked.recv().await.unwrap();
    assert_eq!((&*http.body, http.headers.get("x-envoy-auth-partial-body")), ("", None));
}
