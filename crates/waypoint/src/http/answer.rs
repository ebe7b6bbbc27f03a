//! What the waypoint answers itself: a status, and one line that says why.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};

use super::body::Body;
use crate::failure::Failure;

/// What went wrong with a request, in the two letters that Istio's access log and metrics have for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Flag {
    /// Nothing did.
    None,
    /// No route.
    NoRoute,
    /// No healthy endpoint.
    NoHealthyUpstream,
    /// The endpoint could not be connected to.
    UpstreamFailure,
    /// The endpoint closed the connection before it had answered.
    UpstreamTermination,
    /// The client went away.
    Downstream,
    /// The client broke the protocol.
    ProtocolError,
    /// The waypoint is ending.
    Stopped,
}

impl Flag {
    /// Istio's letters.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::None => "-",
            Self::NoRoute => "NR",
            Self::NoHealthyUpstream => "UH",
            Self::UpstreamFailure => "UF",
            Self::UpstreamTermination => "UC",
            Self::Downstream => "DC",
            Self::ProtocolError => "DPE",
            Self::Stopped => "LR",
        }
    }
}

/// An answer that is the waypoint's own.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) flag: Flag,
    pub(crate) reason: Cow<'static, str>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, flag: Flag, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { status, flag, reason: reason.into() }
    }

    /// For a request that breaks the rules of HTTP.
    pub(crate) fn malformed(reason: &'static str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Flag::ProtocolError, reason)
    }

    /// The answer to a client; a gRPC client gets it as a gRPC status.
    pub(crate) fn response(&self, grpc: bool) -> Response<Body> {
        if grpc {
            return self.grpc_response();
        }
        let mut response = Response::new(Body::Text(Some(Bytes::from(format!("{}\n", self.reason)))));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    }

    /// A response of nothing but a head (gRPC over HTTP/2, "Trailers-Only").
    fn grpc_response(&self) -> Response<Body> {
        let mut response = Response::new(Body::Empty);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(GRPC_STATUS, HeaderValue::from(grpc_status(self.status)));
        if let Ok(message) = HeaderValue::from_str(&percent_encoded(&self.reason)) {
            headers.insert(GRPC_MESSAGE, message);
        }
        response
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        use leno_policy::RouteError;
        let (status, flag) = match &failure {
            Failure::Route(error) => match **error {
                RouteError::NoHealthyEndpoint { .. } => (StatusCode::SERVICE_UNAVAILABLE, Flag::NoHealthyUpstream),
                RouteError::NoSuchPort { .. } => (StatusCode::NOT_FOUND, Flag::NoRoute),
                _ => (StatusCode::SERVICE_UNAVAILABLE, Flag::NoRoute),
            },
            Failure::NoRoute | Failure::Outside(_) => (StatusCode::SERVICE_UNAVAILABLE, Flag::NoRoute),
            Failure::Stopped => (StatusCode::SERVICE_UNAVAILABLE, Flag::Stopped),
            _ => (StatusCode::SERVICE_UNAVAILABLE, Flag::UpstreamFailure),
        };
        Self::new(status, flag, failure.to_string())
    }
}

pub(crate) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The gRPC status for an HTTP status (gRPC: "HTTP to gRPC Status Code Mapping").
fn grpc_status(status: StatusCode) -> u16 {
    match status.as_u16() {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502 | 503 | 504 => 14,
        _ => 2,
    }
}

/// As `grpc-message` wants it.
fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => {
                use std::fmt::Write;
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grpc_client_gets_a_grpc_status() {
        let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, Flag::UpstreamFailure, "100 % gone\n");
        let plain = refusal.response(false);
        assert_eq!(
            (plain.status(), plain.headers()["content-type"].as_bytes()),
            (refusal.status, &b"text/plain; charset=utf-8"[..])
        );
        let grpc = refusal.response(true);
        assert_eq!(grpc.status(), StatusCode::OK);
        assert_eq!(
            (grpc.headers()["grpc-status"].as_bytes(), grpc.headers()["grpc-message"].as_bytes()),
            (&b"14"[..], &b"100 %25 gone%0A"[..])
        );
    }
}
