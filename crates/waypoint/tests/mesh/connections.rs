//! Connections that pass unread follow TLSRoutes and TCPRoutes.

use leno_model::http::{
    Attribute, AttributeTest, Backend, BackendTarget, Parent, Policy, PolicyAction, PolicyClause, PolicyRule,
    PolicyTarget, Route, RouteKind, RouteName, Rule,
};
use leno_model::{AppProtocol, PolicyName, Port, Service, TunnelProtocol};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Mesh, server, soon};

/// A server that waits for the client's bytes, says who it is, and repeats them.
async fn named(name: u8) -> std::net::SocketAddr {
    server(move |mut stream| async move {
        let mut read = [0; 4096];
        if let Ok(length @ 1..) = stream.read(&mut read).await {
            let _ = stream.write_all(&[&[name], &read[..length]].concat()).await;
        }
    })
    .await
}

fn to(service: &Service, weight: u32) -> Backend {
    let target = BackendTarget::Service { service: service.id.clone(), port: 80 };
    Backend { weight, target, filters: Vec::new() }
}

fn route(kind: RouteKind, of: &Service, hosts: &[&str], backends: Vec<Backend>) -> Route {
    Route {
        id: RouteName { kind, namespace: "default".into(), name: "route".into() },
        created: 1,
        parents: vec![Parent { service: of.id.clone(), port: None, consumer: None }],
        hostnames: hosts.iter().map(|host| (*host).into()).collect(),
        rules: vec![Rule { backends, ..Rule::default() }],
        not_understood: None,
    }
}

async fn mesh(protocol: AppProtocol) -> (Mesh, Service, Service) {
    let mesh = Mesh::new().await;
    let web = mesh.service(protocol, &[named(b'a').await]).await;
    let mut other = Service::new("default", "other", "other.default.svc.cluster.local");
    other.ports = vec![Port::tcp(80, 8080)];
    mesh.control.publish_service(&other);
    mesh.endpoint(&other, 7, named(b'b').await, TunnelProtocol::None);
    mesh.control.synced(1).await;
    (mesh, web, other)
}

/// What comes back for these bytes; nothing if the connection is cut.
async fn said(mesh: &Mesh, parts: &[&[u8]]) -> Vec<u8> {
    let to = mesh.bridged().await;
    let exchange = async {
        let mut stream = TcpStream::connect(to).await.unwrap();
        for part in parts {
            let _ = stream.write_all(part).await;
        }
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        answer
    };
    soon("an answer", exchange).await
}

/// The first message of a client of TLS.
fn hello(name: Option<&str>) -> Vec<u8> {
    let sized = |bytes: &[u8]| [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat();
    let extension = |kind: u16, bytes: &[u8]| [&kind.to_be_bytes()[..], &sized(bytes)].concat();
    let mut extensions = extension(13, &sized(&[4, 3, 8, 4]));
    if let Some(name) = name {
        extensions.extend(extension(0, &sized(&[&[0], &sized(name.as_bytes())[..]].concat())));
    }
    let body = [&[3, 3][..], &[7; 32], &[0], &sized(&[0x13, 1]), &[1, 0], &sized(&extensions)].concat();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[22, 3, 1][..], &sized(&[&[1], &length[1..], &body].concat())].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tcp_route_chooses_by_weight() {
    for protocol in [AppProtocol::Tcp, AppProtocol::Unknown] {
        let (mesh, web, other) = mesh(protocol).await;
        mesh.control.publish_route(&route(RouteKind::Tcp, &web, &[], vec![to(&web, 1), to(&other, 1)]));
        mesh.control.synced(1).await;
        let mut seen = [0, 0];
        for _ in 0..40 {
            // Nobody reads it as HTTP, not even where nothing is declared.
            let answer = said(&mesh, &[b"GET / HTTP/1.1\r\n\r\n"]).await;
            assert_eq!(&answer[1..], b"GET / HTTP/1.1\r\n\r\n");
            seen[usize::from(answer[0] == b'b')] += 1;
        }
        assert!(seen[0] > 5 && seen[1] > 5, "{seen:?}");
        // A backend that can't be used gets its share, which is refused.
        let gone = Backend { weight: 1, target: BackendTarget::Invalid("gone".into()), filters: Vec::new() };
        mesh.control.publish_route(&route(RouteKind::Tcp, &web, &[], vec![gone]));
        mesh.control.synced(1).await;
        assert_eq!(said(&mesh, &[b"x"]).await, b"");
        mesh.log.line(&["sends this connection to a backend that can't be used: gone"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tls_route_chooses_by_the_server_name() {
    for protocol in [AppProtocol::Tls, AppProtocol::Unknown] {
        let (mesh, web, other) = mesh(protocol).await;
        mesh.control.publish_route(&route(RouteKind::Tls, &web, &["b.example", "*.b.example"], vec![to(&other, 1)]));
        mesh.control.synced(1).await;
        for name in ["b.example", "x.b.example", "B.Example"] {
            let hello = hello(Some(name));
            assert_eq!(said(&mesh, &[&hello]).await, [&b"b"[..], &hello].concat(), "{name}");
        }
        // It comes in pieces, and arrives as it came.
        let whole = hello(Some("b.example"));
        let answer = said(&mesh, &[&whole[..3], &whole[3..50], &whole[50..]]).await;
        assert!(answer[0] == b'b' && whole.starts_with(&answer[1..]), "{answer:?}");
        for (first, why) in [
            (hello(Some("c.example")), "no TLSRoute of the service names the server"),
            (hello(None), "the client names no server"),
            (b"SSH-2.0-x\r\n".to_vec(), "the client does not speak TLS"),
        ] {
            assert_eq!(said(&mesh, &[&first]).await, b"", "{why}");
            mesh.log.line(&[why]).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_says_nothing_is_not_waited_for_for_long() {
    let limit = std::time::Duration::from_millis(200);
    let mesh = Mesh::with(|config| config.waypoint.head_timeout = limit).await;
    let web = mesh.service(AppProtocol::Tls, &[named(b'a').await]).await;
    mesh.control.publish_route(&route(RouteKind::Tls, &web, &["a.example"], vec![to(&web, 1)]));
    mesh.control.synced(1).await;
    let mut stream = TcpStream::connect(mesh.bridged().await).await.unwrap();
    stream.write_all(&[22, 3]).await.unwrap();
    let mut read = [0; 1];
    let ended = soon("the end", stream.read(&mut read)).await;
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    mesh.log.line(&["the client's first TLS message took longer than 200ms"]).await;
}

fn by_server_name(of: &Service, action: PolicyAction, values: &[&str]) -> Policy {
    let values = values.iter().map(|value| (*value).into()).collect();
    let test = AttributeTest { attribute: Attribute::Sni, values, not_values: Vec::new() };
    Policy {
        targets: vec![PolicyTarget::Service(of.id.clone())],
        rules: vec![PolicyRule { clauses: vec![PolicyClause { alternatives: vec![vec![test]] }] }],
        ..Policy::new(PolicyName { namespace: "default".into(), name: "by-name".into() }, action)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_goes_by_the_server_name() {
    let (good, bad, nameless) = (hello(Some("A.example")), hello(Some("b.example")), hello(None));
    for protocol in [AppProtocol::Tls, AppProtocol::Tcp, AppProtocol::Unknown] {
        let (mesh, web, _) = mesh(protocol).await;
        mesh.control.publish_request_policy(&by_server_name(&web, PolicyAction::Allow, &["a.example", "*.a.example"]));
        mesh.control.synced(1).await;
        assert_eq!(said(&mesh, &[&good]).await, [&b"a"[..], &good].concat(), "{protocol:?}");
        let answer = said(&mesh, &[&good[..1], &good[1..60], &good[60..]]).await;
        assert!(answer.first() == Some(&b'a') && good.starts_with(&answer[1..]), "{protocol:?}: {answer:?}");
        for bytes in [&bad[..], &nameless, b"SSH-2.0-x\r\n"] {
            assert_eq!(said(&mesh, &[bytes]).await, b"", "{protocol:?}");
        }
        mesh.log.line(&["not allowed: no ALLOW policy matches (checked default/by-name)"]).await;
        mesh.control.publish_request_policy(&by_server_name(&web, PolicyAction::Deny, &["a.example"]));
        mesh.control.synced(1).await;
        assert_eq!(said(&mesh, &[&good]).await, b"", "{protocol:?}");
        for bytes in [&bad[..], &nameless, b"SSH-2.0-x\r\n"] {
            assert_eq!(said(&mesh, &[bytes]).await, [b"a", bytes].concat(), "{protocol:?}");
        }
        // What begins as TLS and is none that can be read may ask for any name.
        assert_eq!(said(&mesh, &[&[22, 3, 1, 0, 5, 1, 0, 0, 1, 0]]).await, b"", "{protocol:?}");
        mesh.log.line(&["denied by rule 1 of policy default/by-name"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_server_name_nobody_knows_gets_the_stricter_reading() {
    let mesh = Mesh::with(|config| config.waypoint.detection_timeout = std::time::Duration::from_millis(100)).await;
    let web = mesh.service(AppProtocol::Tcp, &[named(b'a').await]).await;
    mesh.control.publish_request_policy(&by_server_name(&web, PolicyAction::Deny, &["a.example"]));
    mesh.control.synced(1).await;
    // It may yet ask for that name.
    assert_eq!(said(&mesh, &[]).await, b"");
    mesh.log.line(&["denied by rule 1 of policy default/by-name"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_policies_goes_by_the_name_that_was_heard() {
    let mesh = Mesh::new().await;
    let web = mesh
        .service(
            AppProtocol::Tls,
            &[server(|mut stream| async move {
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            })
            .await],
        )
        .await;
    let allow = |names: &[&str]| by_server_name(&web, PolicyAction::Allow, names);
    mesh.control.publish_request_policy(&allow(&["a.example"]));
    mesh.control.synced(1).await;
    let mut stream = TcpStream::connect(mesh.bridged().await).await.unwrap();
    let hello = hello(Some("a.example"));
    let mut echo = vec![0; hello.len()];
    let mut lives = async |stream: &mut TcpStream| {
        stream.write_all(&hello).await.is_ok() && soon("the echo", stream.read_exact(&mut echo)).await.is_ok()
    };
    assert!(lives(&mut stream).await);
    mesh.control.publish_request_policy(&allow(&["b.example", "a.example"]));
    mesh.control.synced(1).await;
    assert!(lives(&mut stream).await, "it goes on to be allowed");
    mesh.control.publish_request_policy(&allow(&["b.example"]));
    mesh.control.synced(1).await;
    assert!(matches!(soon("the end", stream.read(&mut [0; 1])).await, Ok(0) | Err(_)));
    mesh.log.line(&["no ALLOW policy matches (checked default/by-name)"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_of_the_backend_that_a_route_has_chosen_go_by_the_server_name_too() {
    let (mesh, web, mut other) = mesh(AppProtocol::Tcp).await;
    other.waypoint = web.waypoint.clone();
    mesh.control.publish_service(&other);
    mesh.control.publish_route(&route(RouteKind::Tcp, &web, &[], vec![to(&other, 1)]));
    mesh.control.publish_request_policy(&by_server_name(&other, PolicyAction::Allow, &["a.example"]));
    mesh.control.synced(1).await;
    let (good, bad) = (hello(Some("a.example")), hello(Some("b.example")));
    assert_eq!(said(&mesh, &[&good]).await, [&b"b"[..], &good].concat());
    assert_eq!(said(&mesh, &[&bad]).await, b"");
    mesh.log.line(&["not allowed: no ALLOW policy matches (checked default/by-name)"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_do_not_follow_routes_of_connections() {
    let (mesh, web, other) = mesh(AppProtocol::Http11).await;
    mesh.control.publish_route(&route(RouteKind::Tcp, &web, &[], vec![to(&other, 1)]));
    mesh.control.synced(1).await;
    let answer =
        crate::support::raw(mesh.bridged().await, b"GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n").await;
    // What the endpoint says is no HTTP.
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    mesh.log.line(&["response_code=502", "dst.workload=\"web-0\""]).await;
}
