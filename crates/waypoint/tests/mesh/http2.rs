use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_model::AppProtocol;
use tokio::net::TcpStream;

use crate::support::{Mesh, server, soon};

type Sender = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

pub(crate) async fn connect(to: SocketAddr) -> Sender {
    let stream = TcpStream::connect(to).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// A gRPC-like server: streams back what comes, and ends with trailers.
pub(crate) async fn echo() -> SocketAddr {
    server(|stream| async move {
        let service = service_fn(|request: Request<Incoming>| async move {
            let body = request.into_body();
            let frames = futures(body);
            let mut response = Response::new(StreamBody::new(frames));
            response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
            Ok::<_, Infallible>(response)
        });
        let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
    })
    .await
}

fn futures(body: Incoming) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, hyper::Error>> {
    let trailers = [("grpc-status", "0")].map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
    let trailers = HeaderMap::from_iter(trailers);
    futures_util::stream::unfold((body, Some(trailers)), |(mut body, mut trailers)| async move {
        match body.frame().await {
            Some(frame) => Some((frame, (body, trailers))),
            None => trailers.take().map(|last| (Ok(Frame::trailers(last)), (body, trailers))),
        }
    })
}

pub(crate) fn post(path: &str, body: &'static str) -> Request<Full<Bytes>> {
    let request =
        Request::post(format!("http://web{path}")).header("content-type", "application/grpc").header("te", "trailers");
    request.body(Full::from(body)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_with_trailers_and_many_at_once() {
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Grpc, &[echo().await]).await;
    let sender = connect(mesh.bridged().await).await;
    let all = (0..50).map(|_| {
        let mut sender = sender.clone();
        tokio::spawn(async move {
            let response = sender.send_request(post("/pkg.Service/Method", "hello")).await.unwrap();
            assert_eq!(response.status(), 200);
            let body = response.into_body().collect().await.unwrap();
            assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
            assert_eq!(body.to_bytes(), "hello");
        })
    });
    for one in all.collect::<Vec<_>>() {
        soon("an answer", one).await.unwrap();
    }
    mesh.log.line(&["path=\"/pkg.Service/Method\"", "protocol=\"HTTP/2\"", "grpc_status=0", "response_code=200"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grpc_client_is_refused_in_its_own_words() {
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Grpc, &[]).await;
    let mut sender = connect(mesh.bridged().await).await;
    let response = soon("an answer", sender.send_request(post("/pkg.Service/Method", ""))).await.unwrap();
    assert_eq!((response.status().as_u16(), response.headers()["grpc-status"].to_str().unwrap()), (200, "14"));
    let message = response.headers()["grpc-message"].to_str().unwrap();
    assert!(message.contains("no healthy endpoint"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn http1_client_of_an_http2_port_and_the_other_way_round() {
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http2, &[echo().await]).await;
    let request = b"POST / HTTP/1.1\r\nhost: web\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi";
    let answer = crate::support::raw(mesh.bridged().await, request).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("hi"), "{answer}");
    drop(mesh);

    // What the client speaks, where nothing else is declared.
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Unknown, &[echo().await]).await;
    let mut sender = connect(mesh.bridged().await).await;
    let response = soon("an answer", sender.send_request(post("/x", "hi"))).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hi");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_pass_both_ways() {
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http2, &[echo().await]).await;
    let mut sender = connect(mesh.bridged().await).await;
    let body = Bytes::from((0..3_000_000_u32).map(|n| n as u8).collect::<Vec<_>>());
    let request = Request::post("http://web/").body(Full::new(body.clone())).unwrap();
    let response = soon("an answer", sender.send_request(request)).await.unwrap();
    let back = soon("the body", response.into_body().collect()).await.unwrap().to_bytes();
    assert!(back == body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grpc_clients_deadline_holds_at_the_waypoint() {
    let mesh = Mesh::new().await;
    let silent = server(|stream| async move {
        std::future::pending::<()>().await;
        drop(stream);
    });
    mesh.service(AppProtocol::Grpc, &[silent.await]).await;
    let mut sender = connect(mesh.bridged().await).await;
    let mut request = post("/pkg.Service/Method", "");
    request.headers_mut().insert("grpc-timeout", HeaderValue::from_static("200m"));
    let response = soon("an answer", sender.send_request(request)).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "4", "DEADLINE_EXCEEDED: {response:?}");
    mesh.log.line(&["response_flags=\"UT\""]).await;
}
