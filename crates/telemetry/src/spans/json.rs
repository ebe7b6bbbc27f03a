//! Spans in JSON (OTLP: "JSON Protobuf Encoding").

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value as Json, json};

use super::{Span, Value};

/// SPAN_KIND_SERVER.
const SERVER: u8 = 2;
/// STATUS_CODE_ERROR.
const ERROR: u8 = 2;

/// An `ExportTraceServiceRequest`.
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
