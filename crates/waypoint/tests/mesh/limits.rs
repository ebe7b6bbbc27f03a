//! What a client may cost: heads, slow senders, idle connections.

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::poll_fn;
use http::Request;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use leno_model::AppProtocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

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
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversize_head_in_http2_is_refused_and_its_neighbours_do_not_feel_it() {
    let mesh = Mesh::with(|config| config.waypoint.max_head = 16 << 10).await;
    mesh.service(AppProtocol::Http2, &[echo().await]).await;
    let mut sender = connect(mesh.bridged().await).await;
    // A neighbour on the connection, whose body has not ended.
    let (body, mut more) = mpsc::channel::<Bytes>(1);
    let more = poll_fn(move |cx| more.poll_recv(cx).map(|more| Some(Ok::<_, Infallible>(Frame::data(more?)))));
    let open = Request::post("http://web/open").body(StreamBody::new(more).boxed_unsync()).unwrap();
    let mut answer = soon("the head of an answer", sender.send_request(open)).await.unwrap();
    assert_eq!(answer.status(), 200);

    let large =
        Request::get("http://web/large").header("x", "a".repeat(20_000)).body(UnsyncBoxBody::default()).unwrap();
    let refused = soon("a refusal", sender.send_request(large)).await.unwrap();
    assert_eq!(refused.status(), 431);

    body.send(Bytes::from_static(b"on it goes")).await.unwrap();
    let frame = soon("the neighbour's bytes", answer.body_mut().frame()).await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "on it goes");
    let next = Request::get("http://web/next").body(UnsyncBoxBody::default()).unwrap();
    assert_eq!(soon("the next answer", sender.send_request(next)).await.unwrap().status(), 200);
    mesh.log.line(&["path=\"/next\""]).await;
    assert_eq!(
        mesh.log.count(&["path=\"/large\""]),
        0,
        "nothing was asked of the endpoint, which has limits of its own"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_in_http2_that_does_not_end_ends_its_connection() {
    let mesh = Mesh::with(|config| config.waypoint.max_head = 16 << 10).await;
    mesh.service(AppProtocol::Http2, &[echo().await]).await;
    let mut sender = connect(mesh.bridged().await).await;
    let huge = Request::get("http://web/").header("x", "a".repeat(1_000_000)).body(Full::<Bytes>::default()).unwrap();
    let error = soon("the end", sender.send_request(huge)).await.unwrap_err();
    assert!(is_calmed_down(&error), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cookies_in_crumbs_count_by_all_their_bytes() {
    let mesh = Mesh::with(|config| config.waypoint.max_head = 16 << 10).await;
    mesh.service(AppProtocol::Http2, &[echo().await]).await;
    let to = mesh.bridged().await;
    let crumbs = |count: usize| {
        let mut request = Request::get(format!("http://web/{count}"));
        for _ in 0..count {
            request = request.header("cookie", "a=b");
        }
        request.body(Full::<Bytes>::default()).unwrap()
    };
    let mut sender = connect(to).await;
    let response = soon("an answer", sender.send_request(crumbs(3))).await.unwrap();
    assert_eq!(response.status(), 200);
    // Each crumb is small, and one byte on the wire. All of them are more than a head may have.
    let refused = soon("a refusal", sender.send_request(crumbs(600))).await.unwrap();
    assert_eq!(refused.status(), 431);
    assert_eq!(
        soon("an answer", sender.send_request(crumbs(3))).await.unwrap().status(),
        200,
        "the connection goes on"
    );
    mesh.log.line(&["path=\"/3\""]).await;
    assert_eq!(mesh.log.count(&["path=\"/600\""]), 0, "nothing was asked of the endpoint, which has limits of its own");
    // Far more than it may have.
    let error = soon("the end", sender.send_request(crumbs(5_000))).await.unwrap_err();
    assert!(is_calmed_down(&error), "{error:?}");
}

/// Whether the waypoint has ended the connection for a flood.
fn is_calmed_down(error: &hyper::Error) -> bool {
    let told = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    told.is_some_and(|told| {
        told.is_go_away() && told.is_remote() && told.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM)
    })
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
