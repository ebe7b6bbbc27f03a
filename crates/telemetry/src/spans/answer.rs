//! What a collector answers that has taken a message: which part of it it refused all the same.

use prost::Message;
use serde_json::Value as Json;

/// Spans that were refused for what they are. They would be refused again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) count: u64,
    pub(super) why: String,
}

#[derive(Message)]
struct ExportTraceServiceResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<ExportTracePartialSuccess>,
}

#[derive(Message)]
struct ExportTracePartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_spans: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

/// An `ExportTraceServiceResponse` in protobuf. One that can't be read says nothing.
pub(super) fn of_protobuf(bytes: &[u8]) -> Option<Refused> {
    let partial = ExportTraceServiceResponse::decode(bytes).ok()?.partial_success?;
    refused(partial.rejected_spans, partial.error_message)
}

/// The same in JSON.
pub(super) fn of_json(bytes: &[u8]) -> Option<Refused> {
    let answer: Json = serde_json::from_slice(bytes).ok()?;
    let partial = answer.get("partialSuccess")?;
    // A 64-bit number is a text in JSON; some write a number.
    let count = partial.get("rejectedSpans")?;
    let count = count.as_i64().or_else(|| count.as_str()?.parse().ok())?;
    refused(count, partial.get("errorMessage").and_then(Json::as_str).unwrap_or_default().to_owned())
}

/// The same as gRPC's one message.
pub(super) fn of_grpc(bytes: &[u8]) -> Option<Refused> {
    let (head, message) = bytes.split_first_chunk::<5>()?;
    let [compressed, length @ ..] = *head;
    let message = message.get(..usize::try_from(u32::from_be_bytes(length)).ok()?)?;
    if compressed == 0 { of_protobuf(message) } else { None }
}

fn refused(count: i64, why: String) -> Option<Refused> {
    // None refused and a text is a warning, which nobody reads here.
    u64::try_from(count).ok().filter(|count| *count > 0).map(|count| Refused { count, why })
}
