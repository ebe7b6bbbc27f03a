//! One collector, and the connection to it.

use std::time::Duration;

use http::header::{CONTENT_TYPE, HOST, TE};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::answer::{self, Refused};
use super::{Collector, Protocol, Span, json, protobuf};

/// How long the collector may take for one message.
const LIMIT: Duration = Duration::from_secs(10);

/// As much of its answer as is read.
const ANSWER: usize = 64 << 10;

/// Before a message of gRPC: whether it is compressed, and its length.
const FRAME_HEAD: usize = 5;

/// Why spans were not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{address}: {source}; does a collector listen there (OTEL_EXPORTER_OTLP_ENDPOINT)?")]
    Connect { address: String, source: std::io::Error },
    #[error(
        "it does not speak {protocol}: {source}; is it the port for that (mostly {}), and OTEL_EXPORTER_OTLP_PROTOCOL as it is meant?",
        .protocol.port()
    )]
    Http { protocol: Protocol, source: hyper::Error },
    #[error("a message can't be made: {0}")]
    Message(#[from] http::Error),
    #[error("it answered {status}; does it take {protocol} (OTEL_EXPORTER_OTLP_PROTOCOL)?")]
    Status { protocol: Protocol, status: StatusCode },
    #[error("it answered with gRPC's status {code}: {message:?}")]
    Grpc { code: String, message: String },
    #[error("its answer can't be read: {0}")]
    Answer(Box<dyn std::error::Error + Send + Sync>),
    #[error("it took longer than {LIMIT:?}")]
    Slow,
}

pub(super) struct Export {
    collector: Collector,
    protocol: Protocol,
    service: String,
    sender: Option<Sender>,
}

impl Export {
    pub(super) fn new(collector: Collector, protocol: Protocol, service: String) -> Self {
        Self { collector, protocol, service, sender: None }
    }

    /// Sends spans. Returns those that the collector refused, if it took the others.
    pub(super) async fn send(&mut self, spans: &[Span]) -> Result<Option<Refused>, Error> {
        let body = self.body(spans);
        let sent = match tokio::time::timeout(LIMIT, self.post(body)).await {
            Ok(sent) => sent,
            Err(_) => Err(Error::Slow),
        };
        if sent.is_err() {
            self.sender = None;
        }
        sent
    }

    fn body(&self, spans: &[Span]) -> Bytes {
        match self.protocol {
            Protocol::HttpJson => json::message(&self.service, spans).to_string().into(),
            Protocol::HttpProtobuf => protobuf::message(&self.service, spans, 0).into(),
            Protocol::Grpc => {
                let mut framed = protobuf::message(&self.service, spans, FRAME_HEAD);
                // A batch has far less than 4 GiB.
                let length = u32::try_from(framed.len() - FRAME_HEAD).unwrap_or(u32::MAX);
                framed[1..FRAME_HEAD].copy_from_slice(&length.to_be_bytes());
                framed.into()
            }
        }
    }

    async fn post(&mut self, body: Bytes) -> Result<Option<Refused>, Error> {
        let protocol = self.protocol;
        let http = |source| Error::Http { protocol, source };
        let kept = self.sender.take().filter(|sender| !sender.is_closed());
        let mut sender = match kept {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        let (head, body) = sender.send(self.request(body)?).await.map_err(http)?.into_parts();
        let body = Limited::new(body, ANSWER).collect().await.map_err(Error::Answer)?;
        if !head.status.is_success() {
            return Err(Error::Status { protocol, status: head.status });
        }
        if protocol == Protocol::Grpc {
            // Without a body, the status is in the head.
            grpc_status(body.trailers().unwrap_or(&head.headers))?;
        }
        self.sender = Some(sender);
        let body = body.to_bytes();
        Ok(match protocol {
            Protocol::HttpProtobuf => answer::of_protobuf(&body),
            Protocol::HttpJson => answer::of_json(&body),
            Protocol::Grpc => answer::of_grpc(&body),
        })
    }

    async fn connect(&self) -> Result<Sender, Error> {
        let (host, port) = (self.collector.host.as_str(), self.collector.port(self.protocol));
        let stream = TcpStream::connect((host, port)).await;
        let fail = |source| Error::Connect { address: self.collector.authority(self.protocol), source };
        let stream = TokioIo::new(stream.map_err(fail)?);
        let http = |source| Error::Http { protocol: self.protocol, source };
        // A connection's end shows when something is sent.
        if self.protocol == Protocol::Grpc {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.map_err(http)?;
            tokio::spawn(async move { drop(connection.await) });
            return Ok(Sender::Http2(sender));
        }
        let (sender, connection) = http1::handshake(stream).await.map_err(http)?;
        tokio::spawn(async move { drop(connection.await) });
        Ok(Sender::Http1(sender))
    }

    fn request(&self, body: Bytes) -> Result<Request<Full<Bytes>>, Error> {
        let (authority, path) = (self.collector.authority(self.protocol), self.collector.path(self.protocol));
        let request = match self.protocol {
            Protocol::HttpProtobuf => {
                Request::post(path).header(HOST, authority).header(CONTENT_TYPE, "application/x-protobuf")
            }
            Protocol::HttpJson => Request::post(path).header(HOST, authority).header(CONTENT_TYPE, "application/json"),
            // HTTP/2 takes the host from the URL.
            Protocol::Grpc => Request::post(format!("http://{authority}{path}"))
                .header(CONTENT_TYPE, "application/grpc")
                .header(TE, "trailers"),
        };
        Ok(request.body(Full::new(body))?)
    }
}

/// One connection.
enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Sender {
    fn is_closed(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_closed(),
            Self::Http2(sender) => sender.is_closed(),
        }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, hyper::Error> {
        match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}

fn grpc_status(headers: &HeaderMap) -> Result<(), Error> {
    let field = |name: &str| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    match field("grpc-status") {
        Some(code) if code == "0" => Ok(()),
        code => Err(Error::Grpc {
            code: code.unwrap_or_else(|| "(none)".to_owned()),
            message: field("grpc-message").unwrap_or_default(),
        }),
    }
}
