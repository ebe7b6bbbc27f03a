//! Questions to external authorisers and their answers, in Envoy's protocol (`envoy.service.auth.v3.Authorization/Check`).

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use leno_model::http::{AllowedBy, AnswerHeader, AuthorizerAnswer, DeniedBy, HeaderMeets};
use prost::Message as _;

use crate::generated::envoy::service::auth::v3 as wire;

/// What is called.
pub const CHECK_PATH: &str = "/envoy.service.auth.v3.Authorization/Check";

/// An answer has at most this many bytes.
pub const LONGEST_ANSWER: usize = 256 << 10;

/// A request that an authoriser is asked about.
#[derive(Debug, Clone)]
pub struct CheckedRequest<'a> {
    /// Who calls, as a SPIFFE URI, and from where.
    pub source: (String, SocketAddr),
    /// What was asked for.
    pub destination: SocketAddr,
    /// When it came.
    pub time: SystemTime,
    /// Its id.
    pub id: &'a str,
    /// Its method.
    pub method: &'a str,
    /// Its path, with the query.
    pub path: &'a str,
    /// Its host, with the port if it names one.
    pub host: &'a str,
    /// The HTTP version, such as `HTTP/1.1`.
    pub protocol: &'a str,
    /// The length of its body, if it says that.
    pub size: Option<i64>,
    /// Its headers in order. Several of one name are joined by commas.
    pub headers: Vec<(&'a str, &'a [u8])>,
    /// What is told of its body, if anything is.
    pub body: Option<ToldBody<'a>>,
}

/// What an authoriser is told of a request's body.
#[derive(Debug, Clone, Copy)]
pub struct ToldBody<'a> {
    /// The body, or its beginning.
    pub bytes: &'a [u8],
    /// Whether it may go on.
    pub is_partial: bool,
    /// Whether it is told as bytes, and not as a text.
    pub raw: bool,
}

/// The header of a question that says whether its body is only a beginning.
pub const PARTIAL_BODY: &str = "x-envoy-auth-partial-body";

impl ToldBody<'_> {
    /// The value of [`PARTIAL_BODY`].
    pub fn partial(&self) -> &'static str {
        if self.is_partial { "true" } else { "false" }
    }
}

/// Why something is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// It can't be decoded.
    #[error("its answer can't be read: {0}")]
    Garbage(#[from] prost::DecodeError),
    /// It does not say whether the request may pass.
    #[error("its answer has no status, so it does not say whether the request may pass")]
    NoStatus,
    /// It says two things.
    #[error("its answer allows and denies the request")]
    Contradiction,
    /// A header is to be added in a way that this version does not know.
    #[error("its answer has the append_action {0}, which this version does not know")]
    AppendAction(i32),
}

impl CheckError {
    /// Whether the same question may have a better answer. It may: nothing is known of this authoriser's state.
    pub fn is_retryable(&self) -> bool {
        true
    }
}

/// Writes the question.
pub fn check_request(asked: &CheckedRequest<'_>) -> Vec<u8> {
    let address = |at: SocketAddr| {
        let socket_address = wire::SocketAddress { address: at.ip().to_string(), port_value: at.port().into() };
        Some(wire::Address { socket_address: Some(socket_address) })
    };
    let mut headers = std::collections::BTreeMap::<String, String>::new();
    // Rules of authorisers look for these among the headers, too, where Envoy puts them.
    let pseudo = [(":authority", asked.host), (":method", asked.method), (":path", asked.path), (":scheme", "http")];
    headers.extend(pseudo.map(|(name, value)| (name.to_owned(), value.to_owned())));
    if let Some(body) = &asked.body {
        headers.insert(PARTIAL_BODY.to_owned(), body.partial().to_owned());
    }
    // What a client says of that means nothing.
    for (name, value) in asked.headers.iter().filter(|(name, _)| *name != PARTIAL_BODY) {
        let value = String::from_utf8_lossy(value);
        match headers.get_mut(*name) {
            Some(known) => {
                known.push(',');
                known.push_str(&value);
            }
            None => drop(headers.insert((*name).to_owned(), value.into_owned())),
        }
    }
    let since = asked.time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = prost_types::Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since.subsec_nanos()).unwrap_or_default(),
    };
    let http = wire::attribute_context::HttpRequest {
        id: asked.id.to_owned(),
        method: asked.method.to_owned(),
        headers,
        path: asked.path.to_owned(),
        host: asked.host.to_owned(),
        scheme: "http".to_owned(),
        size: asked.size.unwrap_or(-1),
        protocol: asked.protocol.to_owned(),
        body: asked.body.filter(|body| !body.raw).map(|body| text(body.bytes)).unwrap_or_default(),
        raw_body: asked.body.filter(|body| body.raw).map(|body| Bytes::copy_from_slice(body.bytes)).unwrap_or_default(),
    };
    let (principal, from) = &asked.source;
    let source = wire::attribute_context::Peer { address: address(*from), principal: principal.clone() };
    let destination = wire::attribute_context::Peer { address: address(asked.destination), principal: String::new() };
    let attributes = wire::AttributeContext {
        source: Some(source),
        destination: Some(destination),
        request: Some(wire::attribute_context::Request { time: Some(time), http: Some(http) }),
    };
    wire::CheckRequest { attributes: Some(attributes) }.encode_to_vec()
}

/// Bytes as a text. What is no UTF-8 becomes `!`, as Envoy has it: a protobuf text can't hold it, and it grows no longer so.
fn text(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|_| '!'));
    }
    out
}

/// Reads the answer. Whatever can be read as a denial is one.
///
/// # Errors
/// If it can't be read, or does not say whether the request may pass.
pub fn check_answer(bytes: &[u8]) -> Result<AuthorizerAnswer, CheckError> {
    use wire::check_response::HttpResponse;
    let wire::CheckResponse { status, http_response } = wire::CheckResponse::decode(bytes)?;
    let Some(status) = status else {
        return match http_response {
            Some(HttpResponse::DeniedResponse(denied)) => Ok(denied_by(UNKNOWN, String::new(), denied)),
            // An empty message would let everything pass.
            _ => Err(CheckError::NoStatus),
        };
    };
    if status.code != 0 {
        let denied = match http_response {
            Some(HttpResponse::DeniedResponse(denied)) => denied,
            _ => wire::DeniedHttpResponse::default(),
        };
        return Ok(denied_by(status.code, status.message, denied));
    }
    match http_response {
        None => Ok(AuthorizerAnswer::Allowed(AllowedBy::default())),
        Some(HttpResponse::DeniedResponse(_)) => Err(CheckError::Contradiction),
        Some(HttpResponse::OkResponse(ok)) => Ok(AuthorizerAnswer::Allowed(AllowedBy {
            headers: ok.headers.into_iter().map(header).collect::<Result<_, _>>()?,
            remove: ok.headers_to_remove,
            response_headers: ok.response_headers_to_add.into_iter().map(header).collect::<Result<_, _>>()?,
            changes_query: !ok.query_parameters_to_set.is_empty() || !ok.query_parameters_to_remove.is_empty(),
        })),
    }
}

/// gRPC's number for what has no better one.
const UNKNOWN: i32 = 2;

fn denied_by(code: i32, message: String, denied: wire::DeniedHttpResponse) -> AuthorizerAnswer {
    AuthorizerAnswer::Denied(DeniedBy {
        code,
        message,
        status: denied.status.map(|status| status.code).filter(|code| *code != 0),
        // One that this version does not know how to add changes nothing about the denial.
        headers: denied.headers.into_iter().filter_map(|one| header(one).ok()).collect(),
        body: denied.body.into_bytes(),
    })
}

fn header(option: wire::HeaderValueOption) -> Result<AnswerHeader, CheckError> {
    let wire::HeaderValue { key, value, raw_value } = option.header.unwrap_or_default();
    let how = match (option.append, option.append_action) {
        (Some(true), _) => HeaderMeets::Append,
        // In this message, what is not said to be appended takes the place of what is there.
        (_, 0 | 2) => HeaderMeets::Overwrite,
        (_, 1) => HeaderMeets::OnlyIfAbsent,
        (_, 3) => HeaderMeets::OnlyIfPresent,
        (_, other) => return Err(CheckError::AppendAction(other)),
    };
    let value = if raw_value.is_empty() { value.into_bytes() } else { raw_value.to_vec() };
    Ok(AnswerHeader { name: key, value, how })
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
