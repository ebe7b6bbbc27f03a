//! What a client may cost: heads, slow senders, idle connections.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use leno_model::AppProtocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::http1::mirror;
use crate::http2::{connect, echo};
use crate::support::{Mesh, raw, soon};

#[tokio::test(flavor = "multi_thread")]
async fn an_oversize_head_is_refused() {
    let mesh = Mesh::with(|config| config.waypoint.max_head = 16 << 10).await;
    mesh.service(AppProtocol::Unknown, &[mirror().await]).await;
    let to = mesh.bridged().await;
    let large = "a".repeat(100_000);
    let header = format!("GET / HTTP/1.1\r\nhost: web\r\nx: {large}\r\n\r\n");
    assert!(raw(to, header.as_bytes()).await.starts_with("HTTP/1.1 431 "));
    let target = raw(to, format!("GET /{large} HTTP/1.1\r\nhost: web\r\n\r\n").as_bytes()).await;
    assert!(target.starts_with("HTTP/1.1 4"), "{target}");
    let many: String = (0..5_000).map(|number| format!("x-{number}: y\r\n")).collect();
    let many = raw(to, format!("GET / HTTP/1.1\r\nhost: web\r\n{many}\r\n").as_bytes()).await;
    assert!(many.starts_with("HTTP/1.1 431 "), "{many}");
    // In HTTP/2, and what one request did, its neighbours on the connection do not feel.
    let mut sender = connect(to).await;
    let request = Request::get("http://web/").header("x", &large).body(Full::<Bytes>::default()).unwrap();
    match soon("an answer", sender.send_request(request)).await {
        Ok(response) => assert_eq!(response.status(), 431),
        Err(error) => assert!(error.is_user() || !error.is_canceled(), "{error:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cookies_in_crumbs_count_by_all_their_bytes() {
    let mesh = Mesh::with(|config| config.waypoint.max_head = 16 << 10).await;
    mesh.service(AppProtocol::Http2, &[echo().await]).await;
    let to = mesh.bridged().await;
    let crumbs = |count: usize| {
        let mut request = Request::get("http://web/");
        for _ in 0..count {
            request = request.header("cookie", "a=b");
        }
        request.body(Full::<Bytes>::default()).unwrap()
    };
    let mut sender = connect(to).await;
    let response = soon("an answer", sender.send_request(crumbs(3))).await.unwrap();
    assert_eq!(response.status(), 200);
    // Each crumb is small, and one byte on the wire. All of them are more than a head may have.
    let mut sender = connect(to).await;
    match soon("an answer", sender.send_request(crumbs(5_000))).await {
        Ok(response) => assert_eq!(response.status(), 431),
        Err(error) => assert!(!error.is_canceled(), "{error:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_sends_a_head_byte_by_byte_is_cut_off() {
    let mesh = Mesh::with(|config| config.waypoint.head_timeout = Duration::from_millis(300)).await;
    mesh.service(AppProtocol::Http11, &[mirror().await]).await;
    let mut stream = TcpStream::connect(mesh.bridged().await).await.unwrap();
    let slow = async {
        for byte in b"GET / HTTP/1.1\r\nhost: web\r\nx: ".iter().chain(std::iter::repeat(&b'a')) {
            if stream.write_all(&[*byte]).await.is_err() {
                return;
            }
            let mut read = [0; 64];
            let heard = tokio::time::timeout(Duration::from_millis(20), stream.read(&mut read)).await;
            if let Ok(Ok(0) | Err(_)) = heard {
                return;
            }
        }
    };
    soon("the end of a slow client", slow).await;
    mesh.log.line(&["LENO_HEAD_TIMEOUT"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_clients_are_let_go() {
    for protocol in [AppProtocol::Http11, AppProtocol::Http2] {
        let mesh = Mesh::with(|config| config.waypoint.client_idle_timeout = Duration::from_millis(300)).await;
        mesh.service(protocol, &[mirror().await]).await;
        let mut stream = TcpStream::connect(mesh.bridged().await).await.unwrap();
        let hello: &[u8] = match protocol {
            AppProtocol::Http2 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
            _ => b"GET / HTTP/1.1\r\nhost: web\r\n\r\n",
        };
        stream.write_all(hello).await.unwrap();
        let mut all = Vec::new();
        soon("the end", stream.read_to_end(&mut all)).await.unwrap();
        assert!(!all.is_empty(), "{protocol:?}");
    }
}
