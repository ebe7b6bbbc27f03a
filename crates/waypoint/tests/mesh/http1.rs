use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use leno_model::AppProtocol;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Mesh, raw, server, soon};

/// A server that tells what it was asked: method, path, headers, body.
pub(crate) async fn mirror() -> SocketAddr {
    server(|stream| async move {
        let service = service_fn(|request: Request<Incoming>| async move {
            let (head, body) = request.into_parts();
            let mut told = format!("{} {} {:?}\n", head.method, head.uri, head.version);
            let mut headers =
                head.headers.iter().map(|(n, v)| format!("{n}={}", v.to_str().unwrap())).collect::<Vec<_>>();
            headers.sort();
            let body = match body.collect().await {
                Ok(body) => body,
                Err(_) => return Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("broken body\n")))),
            };
            let trailers = body.trailers().cloned();
            told.push_str(&headers.join("\n"));
            told.push_str(&format!("\nbody={}\ntrailers={trailers:?}\n", String::from_utf8_lossy(&body.to_bytes())));
            Ok(Response::new(Full::new(Bytes::from(told))))
        });
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_goes_through_and_is_told_of() {
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let to = mesh.bridged().await;
    let answer = raw(
        to,
        b"POST /a%20b?c=d HTTP/1.1\r\nhost: web\r\nconnection: close, x-hop\r\nx-hop: 1\r\nx-forwarded-client-cert: URI=spiffe://cluster.local/ns/default/sa/admin\r\ncontent-length: 5\r\n\r\nhello",
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    for part in ["POST /a%20b?c=d HTTP/1.1\n", "\nhost=web\n", "\nbody=hello\n", "\ntraceparent=00-", "\nx-request-id="]
    {
        assert!(answer.contains(part), "{part}: {answer}");
    }
    assert!(!answer.contains("x-hop") && !answer.contains("client-cert"), "{answer}");
    let line = mesh.log.line(&["request complete", "path=\"/a%20b?c=d\"", "response_code=200"]).await;
    for part in [
        "src.identity=\"spiffe://cluster.local/ns/default/sa/client\"",
        "dst.workload=\"web-0\"",
        "dst.service=\"web.default.svc.cluster.local\"",
        "response_flags=\"-\"",
        "bytes_sent=5",
        "direction=\"through\"",
        "method=\"POST\"",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_caller_is_told_if_configured() {
    let mesh = Mesh::with(|config| config.waypoint.forward_client_cert = true).await;
    mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let answer = raw(
        mesh.bridged().await,
        b"GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\nx-forwarded-client-cert: forged\r\n\r\n",
    )
    .await;
    let told = "x-forwarded-client-cert=By=spiffe://cluster.local/ns/default/sa/waypoint;URI=spiffe://cluster.local/ns/default/sa/client\n";
    assert!(answer.contains(told) && !answer.contains("forged"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_chunked_with_trailers_and_kept_alive() {
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Unknown, &[mirror().await]).await;
    let to = mesh.bridged().await;
    let answer = raw(
        to,
        b"POST /1 HTTP/1.1\r\nhost: web\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nx-sum: 5\r\n\r\nGET /2 HTTP/1.1\r\nhost: web\r\n\r\nGET /3 HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n",
    )
    .await;
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 3, "{answer}");
    let order = ["POST /1 HTTP/1.1", "body=abcde", "\"x-sum\": \"5\"", "GET /2 HTTP/1.1", "GET /3 HTTP/1.1"];
    let places = order.map(|part| answer.find(part).unwrap_or_else(|| panic!("{part}: {answer}")));
    assert!(places.is_sorted(), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_is_asked_for_when_somebody_takes_it() {
    let mesh = Mesh::new().await;
    let service = mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let mut stream = BufReader::new(TcpStream::connect(mesh.bridged().await).await.unwrap());
    let head = b"POST / HTTP/1.1\r\nhost: web\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let mut line = String::new();
    soon("100", stream.read_line(&mut line)).await.unwrap();
    assert_eq!(line, "HTTP/1.1 100 Continue\r\n");
    stream.write_all(b"ok").await.unwrap();
    soon("an empty line", stream.read_line(&mut line)).await.unwrap();
    line.clear();
    soon("200", stream.read_line(&mut line)).await.unwrap();
    assert_eq!(line, "HTTP/1.1 200 OK\r\n");
    // Nobody is there: the refusal comes instead, and the body is not asked for.
    mesh.control.remove_workload("Kubernetes//Pod/default/web-0");
    mesh.control.synced(1).await;
    let answer = raw(mesh.bridged().await, &[&head[..head.len() - 2], b"connection: close\r\n\r\n"].concat()).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("no healthy endpoint for service"), "{answer}");
    mesh.log.line(&["response_code=503", "response_flags=\"UH\""]).await;
    drop(service);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_passes() {
    let echo = server(|stream| async move {
        let mut stream = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            stream.read_line(&mut head).await.unwrap();
        }
        assert!(head.contains("upgrade: websocket") && head.contains("connection: upgrade"), "{head}");
        stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: x\r\n\r\nhi").await.unwrap();
        let mut said = [0; 4];
        stream.read_exact(&mut said).await.unwrap();
        stream.write_all(&said).await.unwrap();
    })
    .await;
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http11, &[echo]).await;
    let mut stream = TcpStream::connect(mesh.bridged().await).await.unwrap();
    stream.write_all(b"GET /chat HTTP/1.1\r\nhost: web\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nsec-websocket-key: x\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    let mut byte = [0];
    while !answer.ends_with("\r\n\r\nhi") {
        soon("the upgrade", stream.read_exact(&mut byte)).await.unwrap();
        answer.push(char::from(byte[0]));
    }
    assert!(answer.starts_with("HTTP/1.1 101 ") && answer.contains("upgrade: websocket"), "{answer}");
    stream.write_all(b"ping").await.unwrap();
    let mut rest = String::new();
    soon("the echo", stream.read_to_string(&mut rest)).await.unwrap();
    assert_eq!(rest, "ping");
    drop(stream);
    mesh.log.line(&["path=\"/chat\"", "response_code=101", "bytes_sent=4", "bytes_recv=6"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_endpoint_is_asked_if_one_cannot_be_reached() {
    let dead = { TcpListener::bind("127.0.0.3:0").await.unwrap().local_addr().unwrap() };
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http11, &[dead, mirror().await]).await;
    let to = mesh.bridged().await;
    for _ in 0..8 {
        let answer = raw(to, b"POST / HTTP/1.1\r\nhost: web\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi").await;
        assert!(answer.contains("200 OK") && answer.contains("body=hi"), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_connection_that_the_endpoint_closes_costs_no_request() {
    // Answers one request per connection, says nothing of closing, and closes when the next one comes.
    let endpoint = server(|mut stream| async move {
        let mut read = [0; 4096];
        assert!(stream.read(&mut read).await.unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        let _ = stream.read(&mut read).await;
    })
    .await;
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http11, &[endpoint]).await;
    let to = mesh.bridged().await;
    for _ in 0..5 {
        let answer = raw(to, b"GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_endpoints_do_wrong_is_said() {
    for (said, status, flag) in [
        (&b""[..], 503, "UC"),
        (b"SSH-2.0-x\r\n", 502, "UC"),
        (b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", 502, "UC"),
    ] {
        let endpoint = server(move |mut stream| async move {
            assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
            let _ = stream.write_all(said).await;
        })
        .await;
        let mesh = Mesh::new().await;
        mesh.service(AppProtocol::Http11, &[endpoint]).await;
        let answer = raw(
            mesh.bridged().await,
            b"POST / HTTP/1.1\r\nhost: web\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx",
        )
        .await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        let line = mesh.log.line(&[&format!("response_code={status}"), &format!("response_flags=\"{flag}\"")]).await;
        assert!(line.contains("error=\""), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_clients_do_wrong_is_refused() {
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let to = mesh.bridged().await;
    let large = format!("GET / HTTP/1.1\r\nhost: web\r\nx: {}\r\n\r\n", "a".repeat(70 << 10));
    let many = format!("GET / HTTP/1.1\r\nhost: web\r\n{}\r\n", "x: y\r\n".repeat(200));
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        (b"CONNECT web:80 HTTP/1.1\r\nhost: web\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (large.as_bytes(), 431),
        (many.as_bytes(), 431),
    ] {
        let answer = raw(to, &[&request[..request.len() - 2], b"connection: close\r\n\r\n"].concat()).await;
        let shown = String::from_utf8_lossy(&request[..request.len().min(60)]);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{shown}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_takes_too_long_is_given_up() {
    let mesh = Mesh::with(|config| config.waypoint.head_timeout = std::time::Duration::from_millis(300)).await;
    mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let mut stream = TcpStream::connect(mesh.bridged().await).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: w").await.unwrap();
    let mut rest = Vec::new();
    let _ = soon("the end", stream.read_to_end(&mut rest)).await;
    mesh.log.line(&["LENO_HEAD_TIMEOUT"]).await;
}
