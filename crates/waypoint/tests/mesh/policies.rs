//! Policies decide about requests and connections.

use leno_model::http::{
    Attribute, AttributeTest, Backend, BackendTarget, Filter, Parent, PathChange, Policy, PolicyAction, PolicyClause,
    PolicyRule, PolicyTarget, Rewrite, Route, RouteKind, RouteName,
};
use leno_model::{AppProtocol, Authorization, Clause, Match, PolicyName, Rule, Scope, Service, StringMatch};
use leno_proto::{REQUEST_POLICY_TYPE, request_policy_to_proto};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::http1::mirror;
use crate::support::{CLIENT, Mesh, VIP, raw, server, soon};

fn is(attribute: Attribute, values: &[&str]) -> AttributeTest {
    AttributeTest { attribute, values: values.iter().map(|it| (*it).into()).collect(), not_values: Vec::new() }
}

fn on(target: PolicyTarget, name: &str, action: PolicyAction, tests: Vec<AttributeTest>) -> Policy {
    let rule = PolicyRule { clauses: vec![PolicyClause { alternatives: vec![tests] }] };
    let id = PolicyName { namespace: "default".into(), name: name.into() };
    Policy { targets: vec![target], rules: vec![rule], ..Policy::new(id, action) }
}

fn policy(of: &Service, name: &str, action: PolicyAction, tests: Vec<AttributeTest>) -> Policy {
    on(PolicyTarget::Service(of.id.clone()), name, action, tests)
}

async fn ask(mesh: &Mesh, method: &str, path: &str, headers: &str) -> String {
    let request =
        format!("{method} {path} HTTP/1.1\r\nhost: web\r\nconnection: close\r\ncontent-length: 0\r\n{headers}\r\n");
    raw(mesh.bridged().await, request.as_bytes()).await
}

async fn passes(mesh: &Mesh, method: &str, path: &str, headers: &str) -> bool {
    let answer = ask(mesh, method, path, headers).await;
    let denied = answer.starts_with("HTTP/1.1 403 Forbidden\r\n");
    assert_eq!(denied, answer.ends_with("\r\n\r\nRBAC: access denied"), "{answer}");
    assert_ne!(denied, answer.starts_with("HTTP/1.1 200 "), "{answer}");
    !denied
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_judged_one_by_one_and_by_the_latest_policies() {
    let mesh = Mesh::new().await;
    let web = mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    assert!(passes(&mesh, "GET", "/admin", "").await, "no policy applies");
    let deny = policy(&web, "no-admin", PolicyAction::Deny, vec![is(Attribute::Path, &["/admin*"])]);
    mesh.control.publish_request_policy(&deny);
    let allow = policy(
        &web,
        "readers",
        PolicyAction::Allow,
        vec![
            is(Attribute::Method, &["GET"]),
            is(Attribute::Principal, &[CLIENT]),
            is(Attribute::Header("x-key".into()), &["1"]),
        ],
    );
    mesh.control.publish_request_policy(&allow);
    mesh.control.synced(1).await;
    assert!(passes(&mesh, "GET", "/a", "x-key: 1\r\n").await);
    assert!(!passes(&mesh, "GET", "/a", "x-key: 2\r\n").await);
    assert!(!passes(&mesh, "GET", "/a", "x-key: 1\r\nx-key: 1\r\n").await, "a program may read them as one");
    assert!(!passes(&mesh, "PUT", "/a", "x-key: 1\r\n").await);
    for path in ["/admin", "/admin/x", "/%61dmin", "//admin", "/a/../admin", "/./admin"] {
        assert!(!passes(&mesh, "GET", path, "x-key: 1\r\n").await, "{path}");
    }
    let line = mesh.log.line(&["path=\"/%61dmin\"", "response_code=403"]).await;
    for part in ["response_flags=\"DENY\"", "denied by rule 1 of policy default/no-admin", "ns/default/sa/client"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    mesh.log.line(&["method=\"PUT\"", "no ALLOW policy matches (checked default/readers)"]).await;
    // One kept connection: each request is judged by what is in force at its time.
    let mut kept = tokio::net::TcpStream::connect(mesh.bridged().await).await.unwrap();
    for (allowed, change) in [(true, true), (false, false), (true, true)] {
        if change {
            mesh.control.remove_request_policy(&deny.id);
        } else {
            mesh.control.publish_request_policy(&deny);
        }
        mesh.control.synced(1).await;
        kept.write_all(b"GET /admin HTTP/1.1\r\nhost: web\r\nx-key: 1\r\n\r\n").await.unwrap();
        let mut read = [0; 4096];
        let length = soon("an answer", kept.read(&mut read)).await.unwrap();
        let answer = String::from_utf8_lossy(&read[..length]);
        assert_eq!(answer.starts_with("HTTP/1.1 200"), allowed, "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grpc_client_is_told_in_its_own_words() {
    let mesh = Mesh::new().await;
    let web = mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    mesh.control.publish_request_policy(&policy(
        &web,
        "none",
        PolicyAction::Deny,
        vec![is(Attribute::Method, &["POST"])],
    ));
    mesh.control.synced(1).await;
    let answer = ask(&mesh, "POST", "/a.B/C", "content-type: application/grpc\r\n").await;
    assert!(
        answer.contains("grpc-status: 7\r\n") && answer.contains("grpc-message: RBAC: access denied\r\n"),
        "{answer}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_policy_has_seen_is_what_the_program_sees() {
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let answer = raw(
        mesh.bridged().await,
        b"GET //a/./b/../%63%7e?x=%2e%2e HTTP/1.1\r\nhost: WEB.:80\r\nconnection: close\r\n\r\n",
    )
    .await;
    assert!(answer.contains("GET /a/c~?x=%2e%2e HTTP/1.1\n") && answer.contains("\nhost=web:80\n"), "{answer}");
    for path in ["/a%2fb", "/a%5cb", "/a;b", "/..", "/%2e%2e/a", "/a%00", "/a\\b", "/%c0%ae"] {
        assert!(ask(&mesh, "GET", path, "").await.starts_with("HTTP/1.1 400 "), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_is_not_understood_lets_nobody_in() {
    let mesh = Mesh::new().await;
    let web = mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let mut strange =
        request_policy_to_proto(&policy(&web, "new", PolicyAction::Allow, vec![is(Attribute::Method, &["GET"])]));
    strange.rules[0].clauses[0].alternatives[0].tests[0].attribute = 99;
    mesh.control.publish_raw(REQUEST_POLICY_TYPE, "default/new", strange.encode_to_vec());
    mesh.control.synced(1).await;
    assert!(!passes(&mesh, "GET", "/", "").await);
    mesh.log.line(&["policy default/new can't be enforced"]).await;
    mesh.control.publish_raw(REQUEST_POLICY_TYPE, "default/new", b"\xff\xff".to_vec());
    mesh.control.synced(1).await;
    assert!(!passes(&mesh, "GET", "/", "").await, "nothing of it can be read");
    mesh.control.remove_request_policy(&PolicyName { namespace: "default".into(), name: "new".into() });
    mesh.control.synced(1).await;
    assert!(passes(&mesh, "GET", "/", "").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_of_the_waypoint_is_for_all_that_passes_it_and_others_are_not() {
    let mesh = Mesh::new().await;
    let web = mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let of = |name: &str| leno_model::ServiceName {
        namespace: "default".into(),
        hostname: format!("{name}.default.svc.cluster.local").into(),
    };
    let everything = || vec![is(Attribute::Principal, &["*"])];
    for target in [PolicyTarget::Waypoint(of("other")), PolicyTarget::Service(of("other"))] {
        mesh.control.publish_request_policy(&on(target, "p", PolicyAction::Deny, everything()));
        mesh.control.synced(1).await;
        assert!(passes(&mesh, "GET", "/", "").await);
    }
    mesh.control.publish_request_policy(&on(
        PolicyTarget::Waypoint(of("waypoint")),
        "p",
        PolicyAction::Deny,
        everything(),
    ));
    mesh.control.synced(1).await;
    assert!(!passes(&mesh, "GET", "/", "").await);
    drop(web);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_only_logged_decides_nothing() {
    let mesh = Mesh::new().await;
    let web = mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let everything = || vec![is(Attribute::Method, &["*"])];
    let dry = Policy { dry_run: true, ..policy(&web, "dry", PolicyAction::Deny, everything()) };
    mesh.control.publish_request_policy(&dry);
    mesh.control.publish_request_policy(&policy(&web, "audit", PolicyAction::Audit, everything()));
    mesh.control.synced(1).await;
    assert!(passes(&mesh, "GET", "/logged", "").await);
    let line = mesh.log.line(&["path=\"/logged\""]).await;
    assert!(line.contains("policy default/audit matches (AUDIT); policy default/dry would deny (dry run)"), "{line}");
}

/// A server that says hello, and repeats what it hears.
async fn greeter() -> std::net::SocketAddr {
    server(|mut stream| async move {
        let _ = stream.write_all(b"hello").await;
        let (mut read, mut write) = stream.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_passed_on_unread_are_judged_and_cut() {
    let mesh = Mesh::new().await;
    let web = mesh.service(AppProtocol::Tcp, &[greeter().await]).await;
    let client = mesh.client();
    let authority = format!("{VIP}:80");
    let peer = |action| policy(&web, "p", action, vec![is(Attribute::Principal, &[CLIENT])]);
    mesh.control.publish_request_policy(&peer(PolicyAction::Allow));
    mesh.control.synced(1).await;
    let mut stream = client.open(&authority).await.expect("allowed");
    let mut said = [0; 5];
    soon("the greeting", stream.read_exact(&mut said)).await.unwrap();
    // What asks for HTTP can't match here: an ALLOW rule allows nothing, and a DENY rule denies whatever it is.
    mesh.control.publish_request_policy(&policy(
        &web,
        "p",
        PolicyAction::Allow,
        vec![is(Attribute::Principal, &[CLIENT]), is(Attribute::Method, &["GET"])],
    ));
    mesh.control.synced(1).await;
    assert!(client.open(&authority).await.is_err());
    let cut = soon("the end", async {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await
    });
    assert!(cut.await.is_err() || stream.write_all(b"x").await.is_err(), "it is cut");
    mesh.log.line(&["not allowed: no ALLOW policy matches (checked default/p)"]).await;
    mesh.control.publish_request_policy(&peer(PolicyAction::Deny));
    mesh.control.synced(1).await;
    assert!(client.open(&authority).await.is_err());
    mesh.control.remove_request_policy(&PolicyName { namespace: "default".into(), name: "p".into() });
    mesh.control.synced(1).await;
    assert!(client.open(&authority).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undeclared_port_is_as_closed_as_a_declared_one() {
    let mesh = Mesh::new().await;
    let web = mesh.service(AppProtocol::Unknown, &[greeter().await]).await;
    mesh.control.publish_request_policy(&policy(&web, "p", PolicyAction::Deny, vec![is(Attribute::Path, &["/admin"])]));
    mesh.control.synced(1).await;
    // What is not HTTP, and who waits for the server to speak.
    let answer = raw(mesh.bridged().await, b"\x00\x01binary\n").await;
    assert_eq!(answer, "");
    assert!(!passes_unread(&mesh).await);
    // HTTP has its path.
    assert!(ask(&mesh, "GET", "/admin", "").await.starts_with("HTTP/1.1 403 "));
}

async fn passes_unread(mesh: &Mesh) -> bool {
    let mut stream = mesh.client().open(&format!("{VIP}:80")).await.expect("it is not known yet what it will be");
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    let _ = soon("the end", stream.read_to_end(&mut rest)).await;
    !rest.is_empty()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_selects_the_waypoints_own_pods_guards_it() {
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let all = Match { principals: vec![StringMatch::Presence], ..Match::default() };
    let deny = |scope| Authorization {
        id: PolicyName { namespace: "default".into(), name: "p".into() },
        scope,
        action: leno_model::Action::Deny,
        rules: vec![Rule { clauses: vec![Clause { matches: vec![all.clone()] }] }],
        dry_run: false,
        not_understood: None,
    };
    mesh.control.publish_policy(&deny(Scope::Namespace));
    mesh.control.synced(1).await;
    assert!(passes(&mesh, "GET", "/", "").await, "a policy of the namespace is about the pods behind it");
    mesh.control.publish_policy(&deny(Scope::WorkloadSelector));
    let mut own = mesh.own.clone();
    own.authorization_policies = vec![PolicyName { namespace: "default".into(), name: "p".into() }];
    mesh.control.publish_workload(&own);
    mesh.control.synced(1).await;
    assert!(mesh.client().open(&format!("{VIP}:80")).await.is_err());
    mesh.log.line(&["denied by policy default/p"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_the_waypoint_serves_is_asked_for_its_own_policies() {
    let mesh = Mesh::new().await;
    let web = mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let mut other = mesh.unpublished_service(AppProtocol::Http11);
    other.id = Service::new("default", "other", "other.default.svc.cluster.local").id;
    other.addresses.clear();
    mesh.control.publish_service(&other);
    mesh.endpoint(&other, 7, mirror().await, leno_model::TunnelProtocol::None);
    let target = BackendTarget::Service { service: other.id.clone(), port: 80 };
    let rewrite = Rewrite { hostname: None, path: Some(PathChange::Full("/inner".into())) };
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
    let deny = |path: &str| policy(&other, "inner", PolicyAction::Deny, vec![is(Attribute::Path, &[path])]);
    mesh.control.publish_request_policy(&deny("/x"));
    mesh.control.synced(1).await;
    assert!(passes(&mesh, "GET", "/x", "").await, "the backend's program sees another path");
    mesh.control.publish_request_policy(&deny("/inner"));
    mesh.control.synced(1).await;
    assert!(!passes(&mesh, "GET", "/x", "").await);
    mesh.log.line(&["response_code=403", "denied by rule 1 of policy default/inner"]).await;
    // If another waypoint serves it, its policies are not this one's to ask.
    other.waypoint = None;
    mesh.control.publish_service(&other);
    mesh.control.synced(1).await;
    assert!(passes(&mesh, "GET", "/x", "").await);
}
