//! Spans in protobuf: of OTLP's messages (opentelemetry/proto), the fields that are used.

use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

use super::{Span, Value};

/// SPAN_KIND_SERVER.
const SERVER: i32 = 2;
/// STATUS_CODE_ERROR.
const ERROR: i32 = 2;

#[derive(Message)]
struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<SpanMessage>,
}

#[derive(Message)]
struct InstrumentationScope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Message)]
struct SpanMessage {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
}

#[derive(Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Message)]
struct AnyValue {
    #[prost(oneof = "AnyOf", tags = "1, 3")]
    value: Option<AnyOf>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum AnyOf {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}

/// An `ExportTraceServiceRequest`, encoded. `before` bytes of it are left free.
pub(super) fn message(service: &str, spans: &[Span], before: usize) -> Vec<u8> {
    let request = ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource { attributes: vec![attribute("service.name", &Value::Text(service.to_owned()))] }),
            scope_spans: vec![ScopeSpans {
                scope: Some(InstrumentationScope {
                    name: "leno".to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                }),
                spans: spans.iter().map(span).collect(),
            }],
        }],
    };
    let mut out = Vec::with_capacity(before + request.encoded_len());
    out.resize(before, 0);
    // A vector grows.
    let _ = request.encode(&mut out);
    out
}

fn span(span: &Span) -> SpanMessage {
    let nanoseconds = |time: SystemTime| {
        // 64 bits last until the year 2554.
        u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
    };
    SpanMessage {
        trace_id: span.trace.to_be_bytes().to_vec(),
        span_id: span.span.to_be_bytes().to_vec(),
        parent_span_id: span.parent.map(|parent| parent.to_be_bytes().to_vec()).unwrap_or_default(),
        name: span.name.clone(),
        kind: SERVER,
        start_time_unix_nano: nanoseconds(span.began),
        end_time_unix_nano: nanoseconds(span.began + span.took),
        attributes: span.attributes.iter().map(|(name, value)| attribute(name, value)).collect(),
        status: span.error.as_ref().map(|error| Status { message: error.clone(), code: ERROR }),
    }
}

fn attribute(name: &str, value: &Value) -> KeyValue {
    let value = match value {
        Value::Text(text) => AnyOf::Text(text.clone()),
        Value::Number(number) => AnyOf::Number(*number),
    };
    KeyValue { key: name.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}
