//! WebSockets: policies go on to judge them, and they may be asked for in HTTP/2.

use bytes::Bytes;
use h2::ext::Protocol;
use http::{Method, Request, StatusCode};
use leno_model::http::{
    Attribute, AttributeTest, Backend, BackendTarget, Filter, Parent, PathChange, Policy, PolicyAction, PolicyClause,
    PolicyRule, PolicyTarget, Rewrite, Route, RouteKind, RouteName,
};
use leno_model::{AppProtocol, PolicyName, Service, TunnelProtocol};
use leno_testkit::hbone;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::support::{Mesh, server, soon};

/// Consents to everything but `/other`, and sends back what comes.
pub(crate) async fn echo() -> std::net::SocketAddr {
    server(|stream| async move {
        let mut stream = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).await.unwrap() == 0 {
                return;
            }
        }
        if head.starts_with("GET /other") {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno").await.unwrap();
            return;
        }
        for part in ["upgrade: websocket\r\n", "connection: upgrade\r\n", "host: web\r\n"] {
            assert!(head.contains(part), "{part}: {head}");
        }
        let key = head.split("sec-websocket-key: ").nth(1).and_then(|rest| rest.split("\r\n").next()).unwrap();
        assert!(key == "x" || key.len() == 24 && key.ends_with("=="), "{head}");
        let consent = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: x\r\nx-path: ";
        let path = head.split(' ').nth(1).unwrap();
        stream.write_all(format!("{consent}{path}\r\n\r\n").as_bytes()).await.unwrap();
        let (mut read, mut write) = tokio::io::split(stream);
        let _ = tokio::io::copy(&mut read, &mut write).await;
    })
    .await
}

fn no_chats(of: &Service) -> Policy {
    let test = AttributeTest { attribute: Attribute::Path, values: vec!["/chat*".into()], not_values: Vec::new() };
    Policy {
        targets: vec![PolicyTarget::Service(of.id.clone())],
        rules: vec![PolicyRule { clauses: vec![PolicyClause { alternatives: vec![vec![test]] }] }],
        ..Policy::new(PolicyName { namespace: "default".into(), name: "no-chats".into() }, PolicyAction::Deny)
    }
}

/// A WebSocket in HTTP/1.1 that has begun.
async fn open(mesh: &Mesh, path: &str) -> TcpStream {
    open_with(mesh, path, "").await
}

/// As [`open`], with more headers.
pub(crate) async fn open_with(mesh: &Mesh, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(mesh.bridged().await).await.unwrap();
    let ask = format!(
        "GET {path} HTTP/1.1\r\nhost: web\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\n{headers}\r\n"
    );
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let byte = soon("the upgrade", stream.read_u8()).await.unwrap();
        answer.push(byte);
    }
    assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
    stream
}

pub(crate) async fn lives(stream: &mut TcpStream) -> bool {
    let mut back = [0; 4];
    stream.write_all(b"ping").await.is_ok() && soon("the echo", stream.read_exact(&mut back)).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_ends_those_that_it_would_refuse() {
    let mesh = Mesh::new().await;
    let web = mesh.service(AppProtocol::Http11, &[echo().await]).await;
    let (mut chat, mut news) = (open(&mesh, "/chat/1").await, open(&mesh, "/news").await);
    assert!(lives(&mut chat).await && lives(&mut news).await);
    mesh.control.publish_request_policy(&no_chats(&web));
    mesh.control.synced(1).await;
    let mut rest = Vec::new();
    let _ = soon("the end of what is refused now", chat.read_to_end(&mut rest)).await;
    assert_eq!(rest, b"");
    mesh.log.line(&["path=\"/chat/1\"", "response_flags=\"DENY\"", "policy default/no-chats"]).await;
    assert!(lives(&mut news).await, "what is allowed goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_of_the_backend_that_a_route_has_chosen_ends_them_too() {
    let mesh = Mesh::new().await;
    let web = mesh.service(AppProtocol::Http11, &[]).await;
    let mut other = mesh.unpublished_service(AppProtocol::Http11);
    other.id = Service::new("default", "other", "other.default.svc.cluster.local").id;
    other.addresses.clear();
    mesh.control.publish_service(&other);
    mesh.endpoint(&other, 7, echo().await, TunnelProtocol::None);
    // The client's path is no chat's, and that of the backend's program is.
    let rewrite = Rewrite { hostname: None, path: Some(PathChange::Full("/chat/in".into())) };
    let target = BackendTarget::Service { service: other.id.clone(), port: 80 };
    mesh.control.publish_route(&Route {
        id: RouteName { kind: RouteKind::Http, namespace: "default".into(), name: "route".into() },
        created: 1,
        parents: vec![Parent { service: web.id.clone(), port: None, consumer: None }],
        hostnames: Vec::new(),
        rules: vec![leno_model::http::Rule {
            filters: vec![Filter::Rewrite(rewrite)],
            backends: vec![Backend { weight: 1, target, filters: Vec::new() }],
            ..Default::default()
        }],
        not_understood: None,
    });
    mesh.control.synced(1).await;
    let mut chat = open(&mesh, "/in").await;
    assert!(lives(&mut chat).await);
    // Of the service that was asked for, such a policy says nothing of it.
    mesh.control.publish_request_policy(&no_chats(&web));
    mesh.control.synced(1).await;
    assert!(lives(&mut chat).await);
    let of_backend = PolicyName { namespace: "default".into(), name: "inner".into() };
    mesh.control.publish_request_policy(&Policy { id: of_backend, ..no_chats(&other) });
    mesh.control.synced(1).await;
    let _ = soon("the end of what is refused now", chat.read_to_end(&mut Vec::new())).await;
    mesh.log.line(&["path=\"/in\"", "response_flags=\"DENY\"", "policy default/inner"]).await;
}

/// Asks in HTTP/2.
async fn ask(mesh: &Mesh, protocol: Option<&'static str>, path: &str) -> hbone::Answer {
    let stream = TcpStream::connect(mesh.bridged().await).await.unwrap();
    let (send, connection) = soon("HTTP/2", h2::client::handshake(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut send = soon("room", send.ready()).await.unwrap();
    // The server says in its settings that it takes this.
    soon("settings", async {
        while !send.is_extended_connect_protocol_enabled() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let uri = match protocol {
        Some(_) => format!("http://web{path}"),
        None => "web:80".to_owned(),
    };
    let mut request = Request::builder().method(Method::CONNECT).uri(uri).body(()).unwrap();
    if let Some(protocol) = protocol {
        request.extensions_mut().insert(Protocol::from_static(protocol));
    }
    let (answer, send) = send.send_request(request, false).unwrap();
    let (head, receive) = soon("an answer", answer).await.unwrap().into_parts();
    hbone::Answer { status: head.status, headers: head.headers, send, receive }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_in_http2_is_carried() {
    let mesh = Mesh::new().await;
    let web = mesh.service(AppProtocol::Http11, &[echo().await]).await;
    let mut chat = ask(&mesh, Some("websocket"), "/chat/2").await;
    assert_eq!((chat.status, &chat.headers["x-path"]), (StatusCode::OK, &"/chat/2".parse().unwrap()));
    for hop in ["connection", "upgrade", "sec-websocket-accept"] {
        assert!(!chat.headers.contains_key(hop), "{hop}: {:?}", chat.headers);
    }
    chat.send.send_data(Bytes::from_static(b"ping"), false).unwrap();
    assert_eq!(soon("the echo", hbone::read(&mut chat.receive, 4)).await, b"ping");
    // It is what a policy ends, too.
    mesh.control.publish_request_policy(&no_chats(&web));
    mesh.control.synced(1).await;
    soon("the end", async { while let Some(Ok(_)) = chat.receive.data().await {} }).await;
    mesh.log.line(&["path=\"/chat/2\"", "response_flags=\"DENY\""]).await;
    // One that is refused at once, one whose program does not consent, other protocols, and a plain CONNECT.
    for (protocol, path, status) in [
        (Some("websocket"), "/chat/3", 403),
        (Some("websocket"), "/other", 502),
        (Some("connect-udp"), "/x", 501),
        (None, "", 400),
    ] {
        assert_eq!(ask(&mesh, protocol, path).await.status.as_u16(), status, "{protocol:?} {path}");
    }
}
