//! The server's HTTP/2 and gRPC, both on one port.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use tokio::net::TcpStream;

use super::asked::{BODY_MAX, size_in, usable};
use super::grpc::{self, FetchRequest, FetchResponse};

/// The longest request of a gRPC call.
const MESSAGE_MAX: usize = 1 << 20;
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Requests at a time on a connection.
const STREAMS: u32 = 1000;

/// What is answered, made once.
pub(super) struct Bodies {
    usual: Bytes,
    /// The last body of another length, and its gRPC frame.
    last: RefCell<(Bytes, Bytes)>,
    usual_frame: Bytes,
}

impl Bodies {
    pub(super) fn new(usual: usize) -> Self {
        let usual = Bytes::from(vec![b'x'; usual]);
        let usual_frame = grpc::frame(&FetchResponse { body: usual.clone() });
        Self { usual, last: RefCell::default(), usual_frame }
    }

    /// A body and its frame.
    fn get(&self, size: Option<usize>) -> (Bytes, Bytes) {
        let Some(size) = size else { return (self.usual.clone(), self.usual_frame.clone()) };
        let mut last = self.last.borrow_mut();
        if last.0.len() != size || last.1.is_empty() {
            let body = Bytes::from(vec![b'x'; size]);
            *last = (body.clone(), grpc::frame(&FetchResponse { body }));
        }
        last.clone()
    }
}

/// Serves a connection until the client ends it.
pub(super) async fn respond(stream: TcpStream, bodies: Rc<Bodies>) -> Result<(), h2::Error> {
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS);
    let mut connection = builder.handshake(stream).await?;
    while let Some(request) = connection.accept().await {
        let (request, answer) = request?;
        let bodies = bodies.clone();
        // A client that resets a stream is no failure.
        tokio::task::spawn_local(async move { drop(serve(request, answer, &bodies).await) });
    }
    Ok(())
}

async fn serve(
    request: Request<RecvStream>,
    mut answer: SendResponse<Bytes>,
    bodies: &Bodies,
) -> Result<(), h2::Error> {
    let (head, body) = request.into_parts();
    let kind = head.headers.get("content-type").map(HeaderValue::as_bytes);
    if kind.is_some_and(|kind| kind.starts_with(grpc::CONTENT_TYPE.as_bytes())) {
        return call(head.uri.path(), body, answer, bodies).await;
    }
    read(body, 0).await?;
    let size = size_in(head.uri.path());
    let mut response = Response::new(());
    if size.is_some_and(|size| size > BODY_MAX) {
        *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
        return answer.send_response(response, true).map(drop);
    }
    let (body, _) = bodies.get(size);
    response.headers_mut().insert("content-type", HeaderValue::from_static("text/plain"));
    response.headers_mut().insert("content-length", HeaderValue::from(body.len()));
    answer.send_response(response, false)?.send_data(body, true)
}

async fn call(path: &str, body: RecvStream, mut answer: SendResponse<Bytes>, bodies: &Bodies) -> Result<(), h2::Error> {
    let message = read(body, MESSAGE_MAX).await?;
    let asked = grpc::unframe::<FetchRequest>(message).ok();
    let size = asked.map(|asked| usize::try_from(asked.size).unwrap_or(usize::MAX));
    let mut response = Response::new(());
    response.headers_mut().insert("content-type", HeaderValue::from_static(grpc::CONTENT_TYPE));
    let refusal = match size {
        // Codes of gRPC: INVALID_ARGUMENT, UNIMPLEMENTED.
        None => Some("3"),
        Some(size) if size > BODY_MAX => Some("3"),
        _ if path != grpc::PATH => Some("12"),
        _ => None,
    };
    if let Some(status) = refusal {
        response.headers_mut().insert(grpc::STATUS, HeaderValue::from_static(status));
        return answer.send_response(response, true).map(drop);
    }
    let (_, frame) = bodies.get(size.filter(|size| *size > 0));
    let mut stream = answer.send_response(response, false)?;
    stream.send_data(frame, false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert(grpc::STATUS, HeaderValue::from_static("0"));
    stream.send_trailers(trailers)
}

/// Reads a body to its end. What is longer than `most` is read and dropped.
async fn read(mut body: RecvStream, most: usize) -> Result<Bytes, h2::Error> {
    let mut gathered = BytesMut::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        if gathered.len() + chunk.len() <= most {
            gathered.extend_from_slice(&chunk);
        }
        body.flow_control().release_capacity(chunk.len())?;
    }
    Ok(gathered.freeze())
}

/// Accepts connections on a port until that fails.
pub(super) async fn accept(listener: tokio::net::TcpListener, bodies: Rc<Bodies>) -> io::Result<()> {
    loop {
        if let Some(stream) = usable(listener.accept().await).await? {
            let bodies = bodies.clone();
            tokio::task::spawn_local(async move { drop(respond(stream, bodies).await) });
        }
    }
}
