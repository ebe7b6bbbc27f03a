//! A question to an external authoriser over HTTP, and its answer.

use std::pin::Pin;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Request, Response};
use http_body::Body as _;
use hyper::body::Incoming;
use leno_model::http::{AuthorizerAnswer, HttpCheck};
use leno_policy::http::over_http;
use leno_proto::check::{LONGEST_ANSWER, PARTIAL_BODY, ToldBody};

use crate::body::upstream::RequestBody;
use crate::pool::Kind;
use crate::request::head::{self, Asks};

/// What is asked about a request in its one form: its method, its path behind the prefix, its host, and what of its headers and
/// of its body the provider wants told.
pub(crate) fn question(
    how: &HttpCheck,
    (head, asks): (&Parts, &Asks),
    body: Option<ToldBody<'_>>,
) -> Result<(Request<RequestBody>, Asks), String> {
    let malformed = |error: &dyn std::fmt::Display| format!("the request can't be asked about: {error}");
    let mut headers = over_http::question_headers(how, &head.headers);
    let partial = HeaderName::from_static(PARTIAL_BODY);
    // What a client says of that means nothing.
    headers.remove(&partial);
    if let Some(body) = body {
        headers.insert(partial, HeaderValue::from_static(body.partial()));
    }
    let bytes = body.map(|body| Bytes::copy_from_slice(body.bytes)).filter(|bytes| !bytes.is_empty());
    headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.as_ref().map_or(0, Bytes::len)));
    let path = match &*how.path_prefix {
        "" => asks.path.clone(),
        prefix => PathAndQuery::try_from(format!("{prefix}{}", asks.path)).map_err(|error| malformed(&error))?,
    };
    let asked = Asks { authority: asks.authority.clone(), path, upgrade: false, extended: false, grpc: false };
    let mut request = Request::new(match bytes {
        Some(bytes) => RequestBody::Whole(Some(Box::new(bytes))),
        None => RequestBody::Empty,
    });
    *request.method_mut() = head.method.clone();
    *request.headers_mut() = headers;
    Ok((request, asked))
}

/// The question as the authoriser's port wants it.
pub(crate) fn aimed((question, asks): (Request<RequestBody>, Asks), kind: Kind) -> Request<RequestBody> {
    let (mut head, body) = question.into_parts();
    head::aim(&mut head, &asks, kind);
    Request::from_parts(head, body)
}

/// What a response means, once it is whole.
pub(crate) async fn answer(how: &HttpCheck, response: Response<Incoming>) -> Result<AuthorizerAnswer, String> {
    let (mut head, mut body) = response.into_parts();
    let mut text = Vec::new();
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|error| format!("its answer breaks off: {error}"))?;
        match frame.into_data() {
            Ok(data) if text.len() + data.len() <= LONGEST_ANSWER => text.extend_from_slice(&data),
            Ok(_) => return Err(format!("its answer is longer than {LONGEST_ANSWER} bytes")),
            Err(_) => {}
        }
    }
    head::strip(&mut head.headers, false);
    let status = head.status.as_u16();
    over_http::answer(how, status, &head.headers, text).ok_or_else(|| format!("it answers with HTTP status {status}"))
}
