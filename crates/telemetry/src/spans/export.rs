//! One collector, and the connection to it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{CONTENT_TYPE, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::{Value as Json, json};
use tokio::net::TcpStream;

use super::{Collector, Span, Value};

/// How long the collector may take for one message.
const LIMIT: Duration = Duration::from_secs(10);

/// As much of its answer as is read.
const ANSWER: usize = 64 << 10;

/// Why spans were not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{address}: {source}; does a collector listen there (OTEL_EXPORTER_OTLP_ENDPOINT)?")]
    Connect { address: String, source: std::io::Error },
    #[error("it speaks no HTTP: {0}; is it the port for OTLP over HTTP (4318)?")]
    Http(#[from] hyper::Error),
    #[error("a message can't be made: {0}")]
    Message(#[from] http::Error),
    #[error("it answered {0}; does it take JSON?")]
    Status(StatusCode),
    #[error("its answer can't be read: {0}")]
    Answer(Box<dyn std::error::Error + Send + Sync>),
    #[error("it took longer than {LIMIT:?}")]
    Slow,
}

pub(super) struct Export {
    collector: Collector,
    service: String,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Export {
    pub(super) fn new(collector: Collector, service: String) -> Self {
        Self { collector, service, sender: None }
    }

    pub(super) async fn send(&mut self, spans: &[Span]) -> Result<(), Error> {
        let body = Bytes::from(message(&self.service, spans).to_string());
        let sent = match tokio::time::timeout(LIMIT, self.post(body)).await {
            Ok(sent) => sent,
            Err(_) => Err(Error::Slow),
        };
        if sent.is_err() {
            self.sender = None;
        }
        sent
    }

    async fn post(&mut self, body: Bytes) -> Result<(), Error> {
        let Collector { host, port, path } = &self.collector;
        let kept = self.sender.take().filter(|sender| !sender.is_closed());
        let mut sender = match kept {
            Some(sender) => sender,
            None => {
                let address = format!("{host}:{port}");
                let stream = TcpStream::connect((host.as_str(), *port)).await;
                let stream = stream.map_err(|source| Error::Connect { address, source })?;
                let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
                // Its end shows when something is sent.
                tokio::spawn(async move { drop(connection.await) });
                sender
            }
        };
        sender.ready().await?;
        let request = Request::post(path).header(HOST, format!("{host}:{port}"));
        let request = request.header(CONTENT_TYPE, "application/json").body(Full::new(body))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        Limited::new(response.into_body(), ANSWER).collect().await.map_err(Error::Answer)?;
        if !status.is_success() {
            return Err(Error::Status(status));
        }
        self.sender = Some(sender);
        Ok(())
    }
}

/// An `ExportTraceServiceRequest` (OTLP: "JSON Protobuf Encoding").
pub(super) fn message(service: &str, spans: &[Span]) -> Json {
    json!({
        "resourceSpans": [{
            "resource": {"attributes": [attribute("service.name", &Value::Text(service.to_owned()))]},
            "scopeSpans": [{
                "scope": {"name": "leno", "version": env!("CARGO_PKG_VERSION")},
                "spans": spans.iter().map(span).collect::<Vec<_>>(),
            }],
        }],
    })
}

/// SPAN_KIND_SERVER.
const SERVER: u8 = 2;
/// STATUS_CODE_ERROR.
const ERROR: u8 = 2;

fn span(span: &Span) -> Json {
    let nanoseconds = |time: SystemTime| {
        // A 64-bit number is a text in JSON.
        time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
    };
    let mut out = json!({
        "traceId": format!("{:032x}", span.trace),
        "spanId": format!("{:016x}", span.span),
        "name": span.name,
        "kind": SERVER,
        "startTimeUnixNano": nanoseconds(span.began),
        "endTimeUnixNano": nanoseconds(span.began + span.took),
        "attributes": span.attributes.iter().map(|(name, value)| attribute(name, value)).collect::<Vec<_>>(),
    });
    if let Some(parent) = span.parent {
        out["parentSpanId"] = format!("{parent:016x}").into();
    }
    if let Some(error) = &span.error {
        out["status"] = json!({"code": ERROR, "message": error});
    }
    out
}

fn attribute(name: &str, value: &Value) -> Json {
    let value = match value {
        Value::Text(text) => json!({"stringValue": text}),
        Value::Number(number) => json!({"intValue": number.to_string()}),
    };
    json!({"key": name, "value": value})
}
