use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use http::{HeaderMap, Method, Request, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::test_support::settle;

const LIMIT: Duration = Duration::from_secs(20);

/// The library's own client, and a server that hands out requests.
async fn start() -> (SendRequest<Bytes>, Requests, JoinHandle<Served>) {
    let (near, far) = duplex(64 << 10);
    let (given, taken) = tokio::sync::oneshot::channel();
    let server = tokio::spawn(async move {
        let settings = Settings::default();
        let (requests, connection) = requests(far, &settings, std::future::pending());
        assert!(given.send(requests).is_ok());
        connection.await
    });
    let (client, connection) = h2::client::handshake(near).await.unwrap();
    tokio::spawn(connection);
    (client, taken.await.unwrap(), server)
}

async fn ask(client: &SendRequest<Bytes>, method: Method, uri: &str) -> (ResponseFuture, SendStream<Bytes>) {
    let request = Request::builder().method(method).uri(uri).body(()).unwrap();
    client.clone().ready().await.unwrap().send_request(request, false).unwrap()
}

fn authority(request: &InboundConnect) -> &str {
    request.authority().unwrap()
}

#[tokio::test]
async fn the_next_is_accepted_when_it_is_asked_for_and_all_else_goes_on() {
    let (client, mut requests, _server) = start().await;
    let (answer, mut up) = ask(&client, Method::CONNECT, "one:1").await;
    let one = timeout(LIMIT, requests.next()).await.unwrap().unwrap();
    assert_eq!(authority(&one), "one:1");
    let (_second, mut early) = ask(&client, Method::CONNECT, "two:2").await;
    let _third = ask(&client, Method::CONNECT, "three:3").await;
    early.send_data(Bytes::from_static(b"early"), false).unwrap();
    settle().await;
    assert!(requests.0.lock().request.is_none(), "nobody has asked for it");

    // The first request goes on meanwhile.
    let mut one = one.accept(HeaderMap::new()).unwrap();
    up.send_data(Bytes::from_static(b"question"), false).unwrap();
    let mut got = [0; 8];
    timeout(LIMIT, one.read_exact(&mut got)).await.unwrap().unwrap();
    one.write_all(&got).await.unwrap();
    let mut down = timeout(LIMIT, answer).await.unwrap().unwrap().into_body();
    assert_eq!(timeout(LIMIT, down.data()).await.unwrap().unwrap().unwrap(), "question");

    // A receiver that gave up waiting misses no request.
    assert!(ask_once(&mut requests).await.is_none());
    settle().await;
    let two = timeout(LIMIT, requests.next()).await.unwrap().unwrap();
    assert_eq!(authority(&two), "two:2");
    let mut two = two.accept(HeaderMap::new()).unwrap();
    let mut got = [0; 5];
    timeout(LIMIT, two.read_exact(&mut got)).await.unwrap().unwrap();
    assert_eq!(&got, b"early");
    settle().await;
    assert!(requests.0.lock().request.is_none(), "one was asked for");
    assert_eq!(authority(&timeout(LIMIT, requests.next()).await.unwrap().unwrap()), "three:3");
}

/// Asks for a request, and gives up if there is none at once.
async fn ask_once(requests: &mut Requests) -> Option<InboundConnect> {
    let mut next = pin!(requests.next());
    poll_fn(|cx| match next.as_mut().poll(cx) {
        Poll::Ready(request) => Poll::Ready(request),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[tokio::test]
async fn requests_that_are_no_tunnels_are_answered_as_they_deserve() {
    let (client, mut requests, _server) = start().await;
    let (answer, mut up) = ask(&client, Method::PUT, "http://shop.test/cart?item=7").await;
    up.send_data(Bytes::from_static(b"body"), true).unwrap();
    let request = timeout(LIMIT, requests.next()).await.unwrap().unwrap();
    assert_eq!(
        (request.method(), request.uri().path(), request.uri().query()),
        (&Method::PUT, "/cart", Some("item=7"))
    );
    let mut stream = request.answer(StatusCode::CREATED, HeaderMap::new()).unwrap();
    let mut body = Vec::new();
    timeout(LIMIT, stream.read_to_end(&mut body)).await.unwrap().unwrap();
    assert_eq!(body, b"body");
    stream.write_all(b"made").await.unwrap();
    stream.shutdown().await.unwrap();
    let (head, mut down) = timeout(LIMIT, answer).await.unwrap().unwrap().into_parts();
    assert_eq!(head.status, StatusCode::CREATED);
    assert_eq!(timeout(LIMIT, down.data()).await.unwrap().unwrap().unwrap(), "made");
}

#[tokio::test]
async fn whoever_takes_no_more_turns_requests_away() {
    let (client, mut requests, server) = start().await;
    let (answered, _up) = ask(&client, Method::CONNECT, "one:1").await;
    let one = timeout(LIMIT, requests.next()).await.unwrap().unwrap();
    let (waiting, _up) = ask(&client, Method::CONNECT, "two:2").await;
    settle().await;
    drop(requests);
    let (late, _up) = ask(&client, Method::CONNECT, "three:3").await;
    for refused in [waiting, late] {
        let error = timeout(LIMIT, refused).await.unwrap().unwrap_err();
        assert_eq!(error.reason(), Some(Reason::REFUSED_STREAM));
    }
    // A request taken before is not affected.
    let _one = one.accept(HeaderMap::new()).unwrap();
    assert_eq!(timeout(LIMIT, answered).await.unwrap().unwrap().status(), StatusCode::OK);
    assert!(!server.is_finished());
}

#[tokio::test]
async fn the_connections_end_is_the_last_requests() {
    let (client, mut requests, server) = start().await;
    let asking = tokio::spawn(async move { requests.next().await.is_none() });
    settle().await;
    drop(client);
    assert!(timeout(LIMIT, asking).await.unwrap().unwrap());
    let served = timeout(LIMIT, server).await.unwrap().unwrap();
    assert_eq!(served.requests, 0);
    assert!(served.end.is_ok(), "{:?}", served.end);
}
