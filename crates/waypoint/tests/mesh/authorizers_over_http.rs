//! External authorisers that speak HTTP: what they are asked, and what becomes of what they answer.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_model::http::{Authorizer, CheckedBody, HttpCheck};
use leno_model::{AppProtocol, Name, Service};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::authorizers::{custom, provider, publish_as};
use crate::http1::mirror;
use crate::support::{Mesh, raw, server};

type Judge = Arc<dyn Fn(&Parts, &Bytes) -> Response<Full<Bytes>> + Send + Sync>;

/// The program of an authoriser, in HTTP/1.1.
async fn program(judge: impl Fn(&Parts, &Bytes) -> Response<Full<Bytes>> + Send + Sync + 'static) -> SocketAddr {
    program_in(AppProtocol::Http11, judge).await
}

async fn program_in(
    protocol: AppProtocol,
    judge: impl Fn(&Parts, &Bytes) -> Response<Full<Bytes>> + Send + Sync + 'static,
) -> SocketAddr {
    let judge: Judge = Arc::new(judge);
    server(move |stream| {
        let judge = judge.clone();
        async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let judge = judge.clone();
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                    Ok::<_, Infallible>(judge(&head, &body))
                }
            });
            let stream = TokioIo::new(stream);
            let _ = match protocol {
                AppProtocol::Http2 => http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await,
                _ => http1::Builder::new().serve_connection(stream, service).await,
            };
        }
    })
    .await
}

fn says(status: u16, headers: &[(&str, &str)], body: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(Full::from(body)).unwrap()
}

fn names(of: &[&str]) -> Vec<Name> {
    of.iter().map(|name| Name::from(*name)).collect()
}

fn over_http(how: HttpCheck) -> Authorizer {
    Authorizer { http: Some(Box::new(how)), ..provider() }
}

async fn guarded(program: SocketAddr, protocol: AppProtocol, by: Authorizer) -> (Mesh, Service) {
    let mesh = Mesh::new().await;
    publish_as(&mesh, program, protocol).await;
    let web = mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    mesh.control.publish_request_policy(&custom(&web, by));
    mesh.control.synced(1).await;
    (mesh, web)
}

async fn ask(mesh: &Mesh, method: &str, path: &str, rest: &str) -> String {
    let request = format!("{method} {path} HTTP/1.1\r\nhost: web\r\nconnection: close, x-hop\r\n{rest}");
    raw(mesh.bridged().await, request.as_bytes()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_asked_as_the_provider_says_and_changes_what_it_may() {
    for (protocol, version) in [(AppProtocol::Http11, Version::HTTP_11), (AppProtocol::Http2, Version::HTTP_2)] {
        let (sender, mut asked) = mpsc::unbounded_channel();
        let program = program_in(protocol, move |head, body| {
            let host = head.uri.authority().map(ToString::to_string);
            let host = host.or_else(|| Some(head.headers.get("host")?.to_str().ok()?.to_owned()));
            let told = (head.method.to_string(), head.uri.path_and_query().unwrap().to_string(), host.unwrap());
            let _ = sender.send((told, head.version, head.headers.clone(), body.clone()));
            let said = [
                ("x-user", "ann"),
                ("x-other", "1"),
                ("set-cookie", "seen=1"),
                ("x-envoy-auth-headers-to-remove", "x-pass"),
            ];
            // The library's server would send a body in HTTP/2, which no answer to HEAD has.
            says(200, &said, if head.method == "HEAD" { "" } else { "whatever" })
        })
        .await;
        let how = HttpCheck {
            path_prefix: "/check".into(),
            request_headers: names(&["x-*", "cookie", "te", "connection"]),
            added: vec![("x-from".into(), "mesh".into())],
            to_upstream: names(&["x-us*", "content-length"]),
            to_client_allowed: names(&["*-cookie", "content-length"]),
            ..HttpCheck::default()
        };
        let (mesh, _) = guarded(program, protocol, over_http(how)).await;
        let headers = "x-pass: 1\r\nx-user: root\r\nx-from: me\r\nx-hop: 1\r\ncookie: a=1\r\nsecret: s\r\nauthorization: b\r\n\
                       te: trailers\r\nx-envoy-auth-partial-body: lie\r\ncontent-length: 2\r\n\r\nhi";
        let answer = ask(&mesh, "PUT", "/asked/x/../a?b=c", headers).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\r\nset-cookie: seen=1\r\n"), "{answer}");
        assert!(!answer.contains("x-other: 1"), "{answer}");
        assert!(answer.contains("\nx-user=ann\n") && answer.contains("\nsecret=s\n"), "{answer}");
        assert!(answer.contains("\nbody=hi\n") && answer.contains("\ncontent-length=2\n"), "{answer}");
        assert!(!answer.contains("x-pass") && !answer.contains("x-other=") && !answer.contains("root"), "{answer}");
        let ((method, path, host), spoken, headers, body) = asked.recv().await.unwrap();
        let expected = ("PUT", "/check/asked/a?b=c", "web", version);
        assert_eq!((&*method, &*path, &*host, spoken), expected, "the path that policies see");
        assert!(body.is_empty());
        let of = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        assert_eq!(of("x-leno-authorizer-depth"), Some("1"));
        let given = [of("x-from"), of("x-pass"), of("cookie"), of("authorization"), of("content-length")];
        assert_eq!(given, [Some("mesh"), Some("1"), Some("a=1"), Some("b"), Some("0")]);
        for never in ["x-hop", "secret", "te", "connection", "x-envoy-auth-partial-body", "transfer-encoding"] {
            assert_eq!(of(never), None, "{never}");
        }
        assert!(ask(&mesh, "GET", "/other", "\r\n").await.starts_with("HTTP/1.1 200 "));
        assert!(asked.try_recv().is_err(), "it is not asked about that");
        let head = ask(&mesh, "HEAD", "/asked", "\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert_eq!(asked.recv().await.unwrap().0.0, "HEAD");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_200_is_its_clients_answer() {
    let program = program(|head, _| match head.uri.path() {
        "/asked/login" => {
            let headers = [
                ("location", "/login"),
                ("set-cookie", "a=1"),
                ("set-cookie", "b=2"),
                ("x-why", "1"),
                ("connection", "x-hop"),
                ("x-hop", "1"),
            ];
            says(302, &headers, "go there")
        }
        "/asked/created" => says(201, &[], "made"),
        _ => says(401, &[("www-authenticate", "Basic")], "log in"),
    })
    .await;
    let (mesh, web) =
        guarded(program, AppProtocol::Http11, Authorizer { fail_open: true, ..over_http(HttpCheck::default()) }).await;
    let answer = ask(&mesh, "GET", "/asked/login", "\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 302 Found\r\n") && answer.ends_with("\r\n\r\ngo there"), "{answer}");
    for part in ["location: /login", "set-cookie: a=1", "set-cookie: b=2", "x-why: 1", "content-length: 8"] {
        assert!(answer.contains(&format!("\r\n{part}\r\n")), "{part}: {answer}");
    }
    assert!(!answer.contains("x-hop"), "{answer}");
    let line = mesh.log.line(&["response_code=302", "denied by the authoriser", "(status 302)"]).await;
    assert!(line.contains("response_flags=\"UAEX\"") && line.contains("default/custom"), "{line}");
    let created = ask(&mesh, "GET", "/asked/created", "\r\n").await;
    assert!(created.starts_with("HTTP/1.1 201 ") && created.ends_with("\r\n\r\nmade"), "200 alone allows: {created}");
    let grpc = ask(&mesh, "POST", "/asked", "content-type: application/grpc\r\n\r\n").await;
    assert!(grpc.contains("grpc-status: 16\r\n") && grpc.contains("grpc-message: log in\r\n"), "{grpc}");

    let some = HttpCheck { to_client_denied: names(&["set-*"]), ..HttpCheck::default() };
    mesh.control.publish_request_policy(&custom(&web, over_http(some)));
    mesh.control.synced(1).await;
    let answer = ask(&mesh, "GET", "/asked/login", "\r\n").await;
    assert!(answer.contains("set-cookie: b=2") && answer.contains("location: /login"), "{answer}");
    assert!(!answer.contains("x-why") && answer.ends_with("go there"), "{answer}");
    let answer = ask(&mesh, "GET", "/asked", "\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("www-authenticate: Basic\r\n"), "{answer}");
}

/// The program of an authoriser that sends these bytes whatever it is asked, and then nothing.
async fn liar(bytes: Vec<u8>) -> SocketAddr {
    server(move |mut stream| {
        let bytes = bytes.clone();
        async move {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(&bytes).await;
            std::future::pending::<()>().await;
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_answer_lets_nothing_through() {
    let long = [b"HTTP/1.1 401 No\r\ncontent-length: 300000\r\n\r\n".as_slice(), &[b'x'; 300_000]].concat();
    let remove = b"HTTP/1.1 200 OK\r\nx-envoy-auth-headers-to-remove: host\r\ncontent-length: 0\r\n\r\n";
    for (program, why) in [
        (program(|_, _| says(503, &[], "")).await, "it answers with HTTP status 503"),
        (program(|_, _| says(500, &[], "")).await, "it answers with HTTP status 500"),
        (liar(b"SSH-2.0-x\r\n\r\n".to_vec()).await, "is not HTTP"),
        (liar(Vec::new()).await, "has not answered within"),
        (liar(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhal".to_vec()).await, "has not answered within"),
        (liar(long).await, "longer than"),
        (liar(remove.to_vec()).await, "not an authoriser's to change"),
        (liar(b"HTTP/1.1 101 Go\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n".to_vec()).await, "101"),
        (TcpListener::bind("127.0.0.2:0").await.unwrap().local_addr().unwrap(), "gave no answer"),
    ] {
        let short = Duration::from_secs(1);
        let closed = Authorizer { timeout: short, status_on_error: 502, ..over_http(HttpCheck::default()) };
        let (mesh, web) = guarded(program, AppProtocol::Http11, closed).await;
        let (refused, other) = tokio::join!(ask(&mesh, "GET", "/asked", "\r\n"), ask(&mesh, "GET", "/other", "\r\n"));
        assert!(other.starts_with("HTTP/1.1 200 "), "{why}");
        assert!(!refused.starts_with("HTTP/1.1 200 ") && !refused.contains("body="), "{why}: {refused}");
        if why == "101" {
            // That is an answer, and not one that allows.
            assert!(refused.starts_with("HTTP/1.1 403 ") || refused.starts_with("HTTP/1.1 502 "), "{refused}");
            continue;
        }
        assert!(refused.starts_with("HTTP/1.1 502 ") && !refused.contains(why), "{why}: {refused}");
        mesh.log.line(&["response_code=502", "response_flags=\"UAEX\"", "gave no answer", why]).await;
        let open = Authorizer { timeout: short, fail_open: true, ..over_http(HttpCheck::default()) };
        mesh.control.publish_request_policy(&custom(&web, open));
        mesh.control.synced(1).await;
        assert!(ask(&mesh, "GET", "/asked", "\r\n").await.starts_with("HTTP/1.1 200 "), "failOpen: {why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_told_of_bodies() {
    let (sender, mut asked) = mpsc::unbounded_channel::<(HeaderMap, Bytes)>();
    let program = program(move |head, body| {
        let _ = sender.send((head.headers.clone(), body.clone()));
        says(200, &[], "")
    })
    .await;
    let by = |partial| Authorizer {
        body: Some(CheckedBody { most: 4, partial, raw: false }),
        ..over_http(HttpCheck { request_headers: names(&["*"]), ..HttpCheck::default() })
    };
    let (mesh, web) = guarded(program, AppProtocol::Http11, by(false)).await;
    let chunked = "transfer-encoding: chunked\r\n\r\n2\r\n\u{e9}\r\n1\r\nx\r\n0\r\n\r\n";
    let answer = ask(&mesh, "POST", "/asked", chunked).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\nbody=\u{e9}x\n"), "{answer}");
    let (headers, body) = asked.recv().await.unwrap();
    assert_eq!((&*body, headers["content-length"].as_bytes()), ("\u{e9}x".as_bytes(), &b"3"[..]));
    assert_eq!(headers["x-envoy-auth-partial-body"], "false");
    assert!(!headers.contains_key("transfer-encoding"), "{headers:?}");
    let long = "content-length: 5\r\n\r\n12345";
    assert!(ask(&mesh, "POST", "/asked", long).await.starts_with("HTTP/1.1 413 "));
    mesh.control.publish_request_policy(&custom(&web, by(true)));
    mesh.control.synced(1).await;
    let answer = ask(&mesh, "POST", "/asked", long).await;
    assert!(answer.contains("\nbody=12345\n") && answer.contains("\ncontent-length=5\n"), "{answer}");
    let (headers, body) = asked.recv().await.unwrap();
    assert_eq!((&*body, &headers["content-length"]), (&b"1234"[..], &"4".parse().unwrap()));
    assert_eq!(headers["x-envoy-auth-partial-body"], "true");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_finds_its_connection_closed_is_asked_again() {
    // It says that it keeps the connection, and closes it when it has been asked once more.
    let program = server(|mut stream| async move {
        let mut asked = [0; 4096];
        let _ = stream.read(&mut asked).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        let _ = stream.read(&mut asked).await;
    })
    .await;
    let told = Some(CheckedBody { most: 16, partial: false, raw: false });
    for body in [None, told] {
        let by = Authorizer { body, ..over_http(HttpCheck::default()) };
        let (mesh, _) = guarded(program, AppProtocol::Http11, by).await;
        for _ in 0..6 {
            let answer = ask(&mesh, "POST", "/asked", "content-length: 2\r\n\r\nhi").await;
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\nbody=hi\n"), "{answer}");
        }
    }
    // Whatever it lets pass without an answer, that a question went in a circle is none.
    let circle = b"HTTP/1.1 508 Loop Detected\r\nx-leno-authorizer-depth: exceeded\r\ncontent-length: 0\r\n\r\n";
    let open = Authorizer { fail_open: true, ..over_http(HttpCheck::default()) };
    let (mesh, _) = guarded(liar(circle.to_vec()).await, AppProtocol::Http11, open).await;
    let answer = ask(&mesh, "GET", "/asked", "\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 508 ") && answer.contains("ask in a circle"), "{answer}");
}
