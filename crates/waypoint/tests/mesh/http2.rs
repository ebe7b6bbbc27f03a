use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leno_model::AppProtocol;
use leno_testkit::frames::{Frames, GET, POST, kind};
use leno_tunnel::TunnelStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::support::{Mesh, VIP, server, soon};

type Sender = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

pub(crate) async fn connect<B>(to: SocketAddr) -> hyper::client::conn::http2::SendRequest<B>
where
    B: Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + Unpin + 'static,
{
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

/// What an endpoint tells of a request that it does not answer.
#[derive(Debug, PartialEq, Eq)]
enum Unanswered {
    Came,
    /// Its client has given it up.
    Left,
}

/// Tells that a request was given up when it is dropped.
struct Leaves(mpsc::UnboundedSender<Unanswered>);

impl Drop for Leaves {
    fn drop(&mut self) {
        let _ = self.0.send(Unanswered::Left);
    }
}

/// Answers `/`, and tells of any other request instead. Bears `most` requests at a time on a connection. Counts connections.
async fn answering_root(connections: Arc<AtomicU32>, most: u32, tell: mpsc::UnboundedSender<Unanswered>) -> SocketAddr {
    server(move |stream| {
        connections.fetch_add(1, Ordering::Relaxed);
        let tell = tell.clone();
        async move {
            let service = service_fn(|request: Request<Incoming>| {
                let tell = tell.clone();
                async move {
                    if request.uri().path() != "/" {
                        let _ = tell.send(Unanswered::Came);
                        let _leaves = Leaves(tell);
                        std::future::pending::<()>().await;
                    }
                    Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("ok")))
                }
            });
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.max_concurrent_streams(most);
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        }
    })
    .await
}

/// Sends requests with a small body on one connection, each in a task of its own.
fn asking(sender: Sender) -> impl Fn(&'static str) -> JoinHandle<StatusCode> {
    move |path| {
        let mut sender = sender.clone();
        tokio::spawn(async move { sender.send_request(post(path, "x")).await.unwrap().status() })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_given_up_do_not_wear_out_what_others_share() {
    let (connections, (tell, mut come)) = (Arc::<AtomicU32>::default(), mpsc::unbounded_channel());
    let endpoint = answering_root(connections.clone(), 200, tell).await;
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http2, &[endpoint]).await;
    let ask = asking(connect(mesh.bridged().await).await);
    for _ in 0..150 {
        assert_eq!(soon("an answer", ask("/")).await.unwrap(), 200);
    }
    assert_eq!(connections.load(Ordering::Relaxed), 1, "requests that are answered share one");
    for _ in 0..300 {
        let asking = ask("/never");
        assert_eq!(soon("the request", come.recv()).await.unwrap(), Unanswered::Came);
        asking.abort();
        // The waypoint has counted it by then.
        assert_eq!(soon("its end", come.recv()).await.unwrap(), Unanswered::Left);
    }
    assert_eq!(soon("an answer", ask("/")).await.unwrap(), 200);
    // The first ends when more than half of its requests were given up: 151, after the 150. The second has no others, and
    // ends after a hundred. The third has the rest.
    assert_eq!(connections.load(Ordering::Relaxed), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_an_endpoints_connection_does_not_bear_go_on_another() {
    let connections = Arc::<AtomicU32>::default();
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http2, &[answering_root(connections.clone(), 2, mpsc::unbounded_channel().0).await])
        .await;
    let ask = asking(connect(mesh.bridged().await).await);
    let waiting: Vec<_> = (0..5).map(|_| ask("/never")).collect();
    assert_eq!(soon("an answer", ask("/")).await.unwrap(), 200);
    assert_eq!(connections.load(Ordering::Relaxed), 3);
    waiting.iter().for_each(JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_may_give_up_a_hundred_requests_at_once() {
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http2, &[answering_root(Arc::default(), 2, mpsc::unbounded_channel().0).await]).await;
    let tunnel = mesh.client().open(&format!("{VIP}:80")).await.unwrap();
    let mut frames = Frames::start(tunnel).await.unwrap();
    for stream in (1..200).step_by(2) {
        frames.queue_request(stream, POST, 0);
        frames.queue_reset(stream);
    }
    frames.queue_request(201, GET, 1);
    frames.flush().await.unwrap();
    answered(&mut frames, 201).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_does_not_speak_http_2_is_told_of() {
    for (answer, status, words) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"[..],
            502,
            "is not HTTP/2; a request in HTTP/2 goes on",
        ),
        (b"", 503, "closed it before HTTP/2 began"),
    ] {
        let endpoint = server(move |mut stream| async move {
            stream.read_u8().await.unwrap();
            let _ = stream.write_all(answer).await;
        });
        let mesh = Mesh::new().await;
        mesh.service(AppProtocol::Http11, &[endpoint.await]).await;
        let mut sender = connect(mesh.bridged().await).await;
        let request = Request::get("http://web/").body(Full::default()).unwrap();
        let response = soon("an answer", sender.send_request(request)).await.unwrap();
        assert_eq!(response.status(), status);
        let said = soon("the body", response.into_body().collect()).await.unwrap().to_bytes();
        assert!(String::from_utf8_lossy(&said).contains(words), "{said:?}");
    }
}

/// Reads what comes next until a stream is answered.
async fn answered(frames: &mut Frames<TunnelStream>, stream: u32) {
    let answer = async {
        loop {
            let frame = frames.next().await.expect("the connection goes on");
            assert_ne!(frame.kind, kind::GOAWAY);
            if frame.kind == kind::HEADERS && frame.stream == stream {
                return;
            }
        }
    };
    soon("an answer", answer).await;
}

/// How many requests the first turn of a connection reads at most, each of which is reset at once: eight frames' worth
/// each, its fields one and its reset one, of 64 (`frames`). Only these are not in doubt: after them, the waypoint knows
/// that the client gives up. All come in one record of TLS, so no turn ends between a request and its reset.
const GIVEN_UP_IN_A_TURN: u32 = 7;

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_given_up_at_once_reach_no_endpoint() {
    let asked = Arc::<AtomicU32>::default();
    let count = asked.clone();
    let endpoint = server(move |stream| {
        let count = count.clone();
        let service = service_fn(move |_: Request<Incoming>| {
            count.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("ok"))) }
        });
        async move {
            let serving = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
            let _ = serving.await;
        }
    });
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http2, &[endpoint.await]).await;
    let tunnel = mesh.client().open(&format!("{VIP}:80")).await.unwrap();
    let mut frames = Frames::start(tunnel).await.unwrap();
    // The endpoint's connection stands, so that nothing else holds a request back.
    frames.queue_request(1, GET, 1);
    frames.flush().await.unwrap();
    answered(&mut frames, 1).await;
    let last = 803;
    for stream in (3..last).step_by(2) {
        frames.queue_request(stream, GET, 1);
        frames.queue_reset(stream);
    }
    frames.queue_request(last, GET, 1);
    frames.flush().await.unwrap();
    answered(&mut frames, last).await;
    let asked = asked.load(Ordering::Relaxed);
    assert!((2..=2 + GIVEN_UP_IN_A_TURN).contains(&asked), "{asked} of 402");
}

/// Answers the first requests of its first connection, and says of the others there that it has not looked at them, as
/// servers do that serve a connection so many requests.
async fn leaving(first: u32) -> SocketAddr {
    let connections = Arc::new(AtomicU32::new(0));
    server(move |mut stream| {
        let is_first = connections.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            let mut preface = [0; 24];
            stream.read_exact(&mut preface).await?;
            stream.write_all(&frame(kind::SETTINGS, 0, 0, &[])).await?;
            let mut asked = 0;
            loop {
                let mut head = [0; 9];
                stream.read_exact(&mut head).await?;
                let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
                stream.read_exact(&mut payload).await?;
                if head[3] != kind::HEADERS {
                    continue;
                }
                let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
                asked += 1;
                if !is_first || asked <= first {
                    // `:status: 200` (RFC 7541, Appendix A), the end of the head and of the stream.
                    stream.write_all(&frame(kind::HEADERS, 0x5, id, &[0x88])).await?;
                } else if asked == first + 5 {
                    let last = (first * 2 - 1).to_be_bytes();
                    stream.write_all(&frame(kind::GOAWAY, 0, 0, &[&last[..], &[0; 4]].concat())).await?;
                }
            }
        }
        .map(|_: io::Result<()>| ())
    })
    .await
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_a_leaving_endpoint_has_not_looked_at_go_to_its_next_connection() {
    let mesh = Mesh::new().await;
    mesh.service(AppProtocol::Http2, &[leaving(3).await]).await;
    let sender = connect(mesh.bridged().await).await;
    let ask = |number: usize| {
        let mut sender = sender.clone();
        async move {
            // What changes something, too: nothing has been done with it.
            let request =
                if number.is_multiple_of(2) { Request::get("http://web/x") } else { Request::post("http://web/x") };
            let response = sender.send_request(request.body(Full::default()).unwrap()).await.unwrap();
            let status = response.status();
            (status, response.into_body().collect().await.unwrap().to_bytes())
        }
    };
    // Those that are answered before the end, so that the numbers of the others are known.
    for number in 0..3 {
        assert_eq!(soon("an answer", ask(number)).await.0, 200);
    }
    let answers = soon("all answers", futures_util::future::join_all((0..20).map(ask))).await;
    for answer in answers {
        assert_eq!(answer.0, 200, "{answer:?}");
    }
}
