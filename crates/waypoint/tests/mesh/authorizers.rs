//! External authorisers: asked, believed, and doubted.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_model::http::{
    Attribute, AttributeTest, Authorizer, Backend, BackendTarget, Filter, Parent, PathChange, Policy, PolicyAction,
    PolicyClause, PolicyRule, PolicyTarget, Rewrite, Route, RouteKind, RouteName, Rule,
};
use leno_model::{AppProtocol, HBONE_PORT, NetworkAddress, PolicyName, Port, Service, TunnelProtocol};
use leno_proto::auth::check_response::HttpResponse;
use leno_proto::auth::{
    AttributeContext, CheckRequest, CheckResponse, DeniedHttpResponse, HeaderValue as Pair, HeaderValueOption,
    HttpStatus, OkHttpResponse, Status,
};
use leno_testkit::certs::Leaf;
use leno_testkit::endpoint;
use prost::Message;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

use crate::http1::mirror;
use crate::support::{Mesh, raw, server, soon};
use crate::websockets::{echo, lives, open_with};

/// What an authoriser of a test answers.
pub(crate) enum Reply {
    Says(CheckResponse),
    /// Status, content type, body, and the gRPC status at the end, if there is an end.
    Raw(u16, &'static str, Vec<u8>, Option<&'static str>),
    Never,
    /// A waypoint on the way has refused the question, because it went in a circle.
    Circle,
}

pub(crate) type Says = Arc<dyn Fn(&AttributeContext) -> Reply + Send + Sync>;

pub(crate) fn says(reply: impl Fn(&AttributeContext) -> Reply + Send + Sync + 'static) -> Says {
    Arc::new(reply)
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, message].concat()
}

fn respond(reply: Reply) -> Option<Response<BoxBody<Bytes, Infallible>>> {
    let (status, content_type, body, end) = match reply {
        Reply::Says(response) => (200, "application/grpc", framed(&response.encode_to_vec()), Some("0")),
        Reply::Raw(status, content_type, body, end) => (status, content_type, body, end),
        Reply::Never => return None,
        Reply::Circle => {
            let response = Response::builder().header("content-type", "application/grpc").header("grpc-status", "2");
            let response = response.header("x-leno-authorizer-depth", "exceeded");
            return Some(response.body(StreamBody::new(futures_util::stream::empty()).boxed()).unwrap());
        }
    };
    let end = end.map(|end| HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static(end))]));
    let frames = [Some(Frame::data(Bytes::from(body))), end.map(Frame::trailers)];
    let frames = futures_util::stream::iter(frames.into_iter().flatten().map(Ok));
    let response = Response::builder().status(status).header("content-type", content_type);
    Some(response.body(StreamBody::new(frames).boxed()).unwrap())
}

/// The program of an authoriser.
pub(crate) async fn program(says: Says) -> SocketAddr {
    server(move |stream| {
        let says = says.clone();
        async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let says = says.clone();
                async move {
                    assert_eq!(request.uri().path(), "/envoy.service.auth.v3.Authorization/Check");
                    assert_eq!(request.headers()["content-type"], "application/grpc");
                    assert_eq!(request.headers()["te"], "trailers");
                    assert!(request.headers().contains_key("grpc-timeout"));
                    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                    let asked = CheckRequest::decode(body.slice(5..)).unwrap().attributes.unwrap();
                    match respond(says(&asked)) {
                        Some(response) => Ok::<_, Infallible>(response),
                        None => std::future::pending().await,
                    }
                }
            });
            let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        }
    })
    .await
}

/// The authoriser as a service of the mesh whose pod has this program. Each pod has an address of its own.
pub(crate) async fn publish(mesh: &Mesh, program: SocketAddr) {
    publish_as(mesh, program, AppProtocol::Grpc).await;
}

/// The same, with a port that is declared so.
pub(crate) async fn publish_as(mesh: &Mesh, program: SocketAddr, app_protocol: AppProtocol) {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let last = u8::try_from(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap();
    let pod = SocketAddr::from(([127, 0, 9, last], program.port()));
    let certificate = mesh.control.lax_authority.issue(&Leaf::uri("spiffe://cluster.local/ns/default/sa/web"));
    drop(endpoint::serve((pod.ip(), HBONE_PORT).into(), &certificate, program).await);
    let mut service = Service::new("default", "opa", "opa.default.svc.cluster.local");
    service.addresses = vec![NetworkAddress { network: "".into(), address: "10.96.0.8".parse().unwrap() }];
    service.ports = vec![Port { app_protocol, ..Port::tcp(9191, 9191) }];
    mesh.control.publish_service(&service);
    mesh.endpoint(&service, 8, pod, TunnelProtocol::Hbone);
}

pub(crate) fn provider() -> Authorizer {
    Authorizer {
        provider: "opa".into(),
        namespace: "".into(),
        hostname: "opa.default.svc.cluster.local".into(),
        port: 9191,
        timeout: Duration::from_secs(20),
        fail_open: false,
        status_on_error: 403,
        body: None,
        http: None,
    }
}

fn policy(of: &Service, name: &str, action: PolicyAction, tests: Vec<AttributeTest>) -> Policy {
    Policy {
        targets: vec![PolicyTarget::Service(of.id.clone())],
        rules: vec![PolicyRule { clauses: vec![PolicyClause { alternatives: vec![tests] }] }],
        ..Policy::new(PolicyName { namespace: "default".into(), name: name.into() }, action)
    }
}

fn test(attribute: Attribute, value: &str) -> AttributeTest {
    AttributeTest { attribute, values: vec![value.into()], not_values: Vec::new() }
}

/// Has `provider` asked about what is below `/asked`.
pub(crate) fn custom(of: &Service, provider: Authorizer) -> Policy {
    let asked = vec![test(Attribute::Path, "/asked*")];
    Policy { authorizer: Some(provider.into()), ..policy(of, "custom", PolicyAction::Custom, asked) }
}

/// A service whose requests below `/asked` are asked about.
pub(crate) async fn guarded(says: Says, provider: Authorizer) -> (Mesh, Service) {
    let mesh = Mesh::new().await;
    publish(&mesh, program(says).await).await;
    let web = mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    mesh.control.publish_request_policy(&custom(&web, provider));
    mesh.control.synced(1).await;
    (mesh, web)
}

async fn ask(mesh: &Mesh, path: &str, headers: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: web\r\nconnection: close\r\n{headers}\r\n");
    raw(mesh.bridged().await, request.as_bytes()).await
}

fn status(code: i32) -> Option<Status> {
    Some(Status { code, message: "said so".to_owned(), ..Status::default() })
}

pub(crate) fn allowed(ok: OkHttpResponse) -> Reply {
    Reply::Says(CheckResponse { status: status(0), http_response: Some(HttpResponse::OkResponse(ok)) })
}

fn header(name: &str, value: &str) -> HeaderValueOption {
    let pair = Pair { key: name.to_owned(), value: value.to_owned(), ..Pair::default() };
    HeaderValueOption { header: Some(pair), ..HeaderValueOption::default() }
}

pub(crate) fn denied(code: i32, headers: Vec<HeaderValueOption>, body: &str) -> Reply {
    let denied = DeniedHttpResponse { status: Some(HttpStatus { code }), headers, body: body.to_owned() };
    Reply::Says(CheckResponse { status: status(7), http_response: Some(HttpResponse::DeniedResponse(denied)) })
}

#[tokio::test(flavor = "multi_thread")]
async fn it_decides_and_changes_headers() {
    let judge = says(|asked| {
        let http = asked.request.as_ref().unwrap().http.as_ref().unwrap();
        let source = asked.source.as_ref().unwrap();
        assert_eq!(source.principal, crate::support::CLIENT);
        assert!(source.address.as_ref().unwrap().socket_address.as_ref().unwrap().address.starts_with("127."));
        let destination = asked.destination.as_ref().unwrap().address.clone().unwrap().socket_address.unwrap();
        assert_eq!((&*destination.address, destination.port_value), (crate::support::VIP, 80));
        assert_eq!((&*http.method, &*http.host, &*http.scheme), ("GET", "web", "http"));
        assert_eq!(http.headers[":path"], http.path);
        if http.headers.get("x-pass").is_none_or(|pass| pass != "yes") {
            return denied(401, vec![header("www-authenticate", "Basic"), header("content-length", "999")], "log in\n");
        }
        assert_eq!(http.path, "/asked/a?b=c", "in its one form");
        allowed(OkHttpResponse {
            headers: vec![header("x-user", "ann")],
            headers_to_remove: vec!["x-pass".to_owned()],
            response_headers_to_add: vec![header("set-cookie", "seen=1")],
            ..OkHttpResponse::default()
        })
    });
    let (mesh, _) = guarded(judge, provider()).await;
    let answer = ask(&mesh, "/asked/x/../a?b=c", "x-pass: yes\r\nx-user: root\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("set-cookie: seen=1\r\n"), "{answer}");
    assert!(answer.contains("\nx-user=ann\n") && !answer.contains("x-pass") && !answer.contains("root"), "{answer}");
    mesh.log.line(&["path=\"/asked/x/../a?b=c\"", "response_code=200", "response_flags=\"-\""]).await;

    let answer = ask(&mesh, "/asked", "").await;
    assert!(answer.starts_with("HTTP/1.1 401 Unauthorized\r\n") && answer.ends_with("\r\n\r\nlog in\n"), "{answer}");
    assert!(answer.contains("www-authenticate: Basic\r\n") && answer.contains("content-length: 7\r\n"), "{answer}");
    let line = mesh.log.line(&["response_code=401", "denied by the authoriser"]).await;
    assert!(line.contains("response_flags=\"UAEX\"") && line.contains("default/custom"), "{line}");
    assert!(ask(&mesh, "/other", "").await.starts_with("HTTP/1.1 200 "), "it is not asked about that");

    let grpc = ask(&mesh, "/asked", "content-type: application/grpc\r\n").await;
    assert!(grpc.starts_with("HTTP/1.1 200 ") && grpc.contains("grpc-status: 16\r\n"), "{grpc}");
    assert!(grpc.contains("grpc-message: log in%0A\r\n"), "{grpc}");
    let page = mesh.metrics().await;
    assert!(page.contains("response_flags=\"UAEX\""), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_comes_before_the_other_policies() {
    let (mesh, web) = guarded(
        says(|_| allowed(OkHttpResponse { headers: vec![header("x-role", "admin")], ..OkHttpResponse::default() })),
        provider(),
    )
    .await;
    let role =
        |name: &str, action, value| policy(&web, name, action, vec![test(Attribute::Header("x-role".into()), value)]);
    mesh.control.publish_request_policy(&role("admins", PolicyAction::Allow, "admin"));
    mesh.control.synced(1).await;
    assert!(ask(&mesh, "/asked", "").await.starts_with("HTTP/1.1 200 "), "they see what it says");
    assert!(ask(&mesh, "/other", "").await.starts_with("HTTP/1.1 403 "));
    mesh.control.publish_request_policy(&role("no-admins", PolicyAction::Deny, "admin"));
    mesh.control.synced(1).await;
    assert!(ask(&mesh, "/asked", "").await.starts_with("HTTP/1.1 403 "), "its word is not the last one");
    mesh.log.line(&["response_flags=\"DENY\"", "policy default/no-admins"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_answer_lets_nothing_through() {
    let good = || CheckResponse { status: status(0), http_response: None }.encode_to_vec();
    let grpc = "application/grpc";
    let two = [framed(&good()), framed(&good())].concat();
    let compressed = [&[1][..], &framed(&good())[1..]].concat();
    let reaching =
        |name: &'static str| allowed(OkHttpResponse { headers: vec![header(name, "1")], ..OkHttpResponse::default() });
    let mut lies: Vec<(Says, &str)> = vec![
        (says(|_| Reply::Never), "has not answered within"),
        (says(move |_| Reply::Raw(200, grpc, b"garbage".to_vec(), Some("0"))), "its answer"),
        (says(move |_| Reply::Raw(200, grpc, framed(b"\xff\xff"), Some("0"))), "can't be read"),
        (says(move |_| Reply::Raw(200, grpc, framed(b""), Some("0"))), "has no status"),
        (says(move |_| Reply::Raw(200, grpc, Vec::new(), Some("0"))), "has no message"),
        (says(move |_| Reply::Raw(200, grpc, framed(&vec![0; 300 << 10]), Some("0"))), "longer than"),
        (says(move |_| Reply::Raw(200, grpc, two.clone(), Some("0"))), "not one message"),
        (says(move |_| Reply::Raw(200, grpc, compressed.clone(), Some("0"))), "compressed"),
        (says(move |_| Reply::Raw(200, grpc, framed(&good()), Some("14"))), "gRPC status 14"),
        (says(move |_| Reply::Raw(200, grpc, framed(&good()), None)), "without a gRPC status"),
        (says(move |_| Reply::Raw(200, "text/html", framed(&good()), Some("0"))), "is not gRPC"),
        (says(move |_| Reply::Raw(503, grpc, framed(&good()), Some("0"))), "HTTP status 503"),
        (says(move |_| reaching(":path")), "no header"),
        (says(move |_| reaching("content-length")), "not an authoriser's to change"),
        (says(move |_| reaching("Host")), "not an authoriser's to change"),
    ];
    lies.push((
        says(|_| {
            allowed(OkHttpResponse { query_parameters_to_remove: vec!["a".to_owned()], ..OkHttpResponse::default() })
        }),
        "query",
    ));
    let short = Duration::from_secs(1);
    for (lie, why) in lies {
        let closed = Authorizer { timeout: short, status_on_error: 503, ..provider() };
        let (mesh, web) = guarded(lie, closed).await;
        let (refused, other) = tokio::join!(ask(&mesh, "/asked", ""), ask(&mesh, "/other", ""));
        assert!(refused.starts_with("HTTP/1.1 503 ") && other.starts_with("HTTP/1.1 200 "), "{why}: {refused}");
        assert!(!refused.contains(why), "the client is not told: {refused}");
        let line = mesh.log.line(&["response_code=503", "gave no answer", why]).await;
        assert!(line.contains("response_flags=\"UAEX\""), "{line}");
        let open = Authorizer { timeout: short, fail_open: true, ..provider() };
        mesh.control.publish_request_policy(&custom(&web, open));
        mesh.control.synced(1).await;
        let passed = ask(&mesh, "/asked", "").await;
        assert!(passed.starts_with("HTTP/1.1 200 "), "failOpen, {why}: {passed}");
        mesh.log.line(&["response_code=200", "fail_open=", why]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_no_is_one_whatever_it_is_wrapped_in() {
    let open = || Authorizer { fail_open: true, ..provider() };
    let plain = || Reply::Says(CheckResponse { status: status(16), http_response: None });
    let no: [(Says, &str); 4] = [
        (says(move |_| plain()), "403 "),
        (says(|_| denied(101, vec![header("upgrade", "x")], "")), "403 "),
        (says(|_| denied(302, vec![header("location", "/login")], "")), "302 "),
        (
            says(|_| {
                let ok = Some(HttpResponse::OkResponse(OkHttpResponse::default()));
                Reply::Says(CheckResponse { status: status(7), http_response: ok })
            }),
            "403 ",
        ),
    ];
    for (says, answers) in no {
        let (mesh, _) = guarded(says, open()).await;
        let answer = ask(&mesh, "/asked", "").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {answers}")), "{answer}");
        assert!(!answer.contains("upgrade") && !answer.contains("body="), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dead_and_the_half_open_refuse_only_what_they_are_asked_about() {
    let dead = TcpListener::bind("127.0.0.2:0").await.unwrap().local_addr().unwrap();
    let half_open = server(|stream| async move {
        let _stream = stream;
        std::future::pending::<()>().await;
    })
    .await;
    for program in [Some(dead), Some(half_open), None] {
        let mesh = Mesh::new().await;
        if let Some(program) = program {
            publish(&mesh, program).await;
        }
        let web = mesh.service(AppProtocol::Http11, &[mirror().await]).await;
        mesh.control
            .publish_request_policy(&custom(&web, Authorizer { timeout: Duration::from_secs(2), ..provider() }));
        mesh.control.synced(1).await;
        let others = async {
            for _ in 0..5 {
                assert!(ask(&mesh, "/other", "").await.starts_with("HTTP/1.1 200 "));
            }
        };
        let (refused, ()) = tokio::join!(ask(&mesh, "/asked", ""), others);
        assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
        mesh.log.line(&["response_code=403", "response_flags=\"UAEX\"", "gave no answer"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_has_so_many_places_and_who_leaves_gives_his_back() {
    let waiting = Arc::new(tokio::sync::Semaphore::new(0));
    let (seen, answers) = (waiting.clone(), Arc::new(AtomicUsize::new(0)));
    let answering = answers.clone();
    let judge = says(move |_| {
        if answering.load(Ordering::SeqCst) > 0 {
            return allowed(OkHttpResponse::default());
        }
        seen.add_permits(1);
        Reply::Never
    });
    let (mesh, _) = guarded(judge, Authorizer { timeout: Duration::from_secs(600), ..provider() }).await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        let stream = TcpStream::connect(mesh.bridged().await).await.unwrap();
        let (send, connection) = h2::client::handshake(stream).await.unwrap();
        clients.push((send, tokio::spawn(connection)));
    }
    let mut open = Vec::new();
    for index in 0..512 {
        let (send, _) = &mut clients[index % 8];
        let mut ready = soon("room", send.clone().ready()).await.unwrap();
        let request = Request::get("http://web/asked").body(()).unwrap();
        open.push(ready.send_request(request, true).unwrap().0);
    }
    let all = soon("all questions", waiting.acquire_many(512)).await.unwrap();
    // The authoriser would be waited for ten minutes, and so would a place.
    let answer = ask(&mesh, "/asked", "").await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    mesh.log.line(&["response_flags=\"UAEX\"", "512 requests wait for it already"]).await;
    assert!(ask(&mesh, "/other", "").await.starts_with("HTTP/1.1 200 "), "others wait for nothing");
    drop(all);
    answers.store(1, Ordering::SeqCst);
    for (_, connection) in &clients {
        connection.abort();
    }
    drop((open, clients));
    soon("a place", async {
        while !ask(&mesh, "/asked", "").await.starts_with("HTTP/1.1 200 ") {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_is_asked_about_by_a_policy_that_comes_later() {
    let judge = says(|asked| {
        let http = asked.request.as_ref().unwrap().http.as_ref().unwrap();
        match http.path.as_str() {
            "/asked/good" => allowed(OkHttpResponse::default()),
            _ => denied(403, Vec::new(), "no"),
        }
    });
    let mesh = Mesh::new().await;
    publish(&mesh, program(judge).await).await;
    let web = mesh.service(AppProtocol::Http11, &[echo().await]).await;
    let mut good = open_with(&mesh, "/asked/good", "").await;
    let mut bad = open_with(&mesh, "/asked/bad", "").await;
    assert!(lives(&mut good).await && lives(&mut bad).await);
    mesh.control.publish_request_policy(&custom(&web, provider()));
    mesh.control.synced(1).await;
    let _ = soon("the end of what is refused now", bad.read_to_end(&mut Vec::new())).await;
    mesh.log.line(&["path=\"/asked/bad\"", "denied by the authoriser"]).await;
    assert!(lives(&mut good).await, "what it lets pass goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_has_its_own_asked_about_what_its_program_will_see() {
    let judge = says(|asked| {
        let destination = asked.destination.as_ref().unwrap().address.clone().unwrap().socket_address.unwrap();
        assert_eq!(destination.port_value, 8080, "the backend's port");
        let http = asked.request.as_ref().unwrap().http.as_ref().unwrap();
        match (&*http.path, http.headers.get("x-pass")) {
            ("/asked/inner", Some(pass)) if pass == "yes" => {
                allowed(OkHttpResponse { headers: vec![header("x-user", "ann")], ..OkHttpResponse::default() })
            }
            _ => denied(401, Vec::new(), "who?"),
        }
    });
    let mesh = Mesh::new().await;
    publish(&mesh, program(judge).await).await;
    let web = mesh.service(AppProtocol::Http11, &[]).await;
    let mut other = mesh.unpublished_service(AppProtocol::Http11);
    other.id = Service::new("default", "other", "other.default.svc.cluster.local").id;
    other.addresses.clear();
    other.ports = vec![Port { app_protocol: AppProtocol::Http11, ..Port::tcp(8080, 8080) }];
    mesh.control.publish_service(&other);
    mesh.endpoint(&other, 7, mirror().await, TunnelProtocol::None);
    let inner = Rewrite { hostname: None, path: Some(PathChange::Full("/asked/inner".into())) };
    let target = BackendTarget::Service { service: other.id.clone(), port: 8080 };
    mesh.control.publish_route(&Route {
        id: RouteName { kind: RouteKind::Http, namespace: "default".into(), name: "route".into() },
        created: 1,
        parents: vec![Parent { service: web.id.clone(), port: None, consumer: None }],
        hostnames: Vec::new(),
        rules: vec![Rule {
            filters: vec![Filter::Rewrite(inner)],
            backends: vec![Backend { weight: 1, target, filters: Vec::new() }],
            ..Rule::default()
        }],
        not_understood: None,
    });
    mesh.control.publish_request_policy(&custom(&other, provider()));
    mesh.control.synced(1).await;
    let answer = ask(&mesh, "/outer", "x-pass: yes\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\nx-user=ann\n"), "{answer}");
    let answer = ask(&mesh, "/outer", "").await;
    assert!(answer.starts_with("HTTP/1.1 401 ") && answer.ends_with("\r\n\r\nwho?"), "{answer}");
    mesh.log.line(&["response_code=401", "denied by the authoriser", "default/custom"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_passes_unread_can_not_be_asked_about() {
    let mesh = Mesh::new().await;
    publish(&mesh, program(says(|_| allowed(OkHttpResponse::default()))).await).await;
    let web = mesh.service(AppProtocol::Tcp, &[mirror().await]).await;
    mesh.control.publish_request_policy(&custom(&web, provider()));
    mesh.control.synced(1).await;
    assert_eq!(ask(&mesh, "/asked", "").await, "");
    mesh.log.line(&["policy default/custom has the authoriser", "asked about requests, and this is none"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_circle_of_authorisers_comes_to_an_end() {
    let (mesh, _) = guarded(says(|_| allowed(OkHttpResponse::default())), provider()).await;
    assert!(ask(&mesh, "/asked", "x-leno-authorizer-depth: 3\r\n").await.starts_with("HTTP/1.1 200 "));
    for depth in ["4", "4294967295", "many"] {
        let answer = ask(&mesh, "/asked", &format!("x-leno-authorizer-depth: {depth}\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 508 ") && answer.contains("ask in a circle"), "{depth}: {answer}");
    }
    mesh.log.line(&["response_code=508", "UAEX", "policy default/custom"]).await;
    assert!(
        ask(&mesh, "/other", "x-leno-authorizer-depth: 4\r\n").await.starts_with("HTTP/1.1 200 "),
        "nobody is asked"
    );
    // One whose question was refused for that, by whoever: not even `failOpen` lets such a request pass.
    let open = Authorizer { fail_open: true, ..provider() };
    let (mesh, _) = guarded(says(|_| Reply::Circle), open).await;
    let answer = ask(&mesh, "/asked", "").await;
    assert!(answer.starts_with("HTTP/1.1 508 ") && answer.contains("ask in a circle"), "{answer}");
    assert!(answer.contains("\r\nx-leno-authorizer-depth: exceeded\r\n"), "{answer}");
}
