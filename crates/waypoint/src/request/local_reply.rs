//! What the waypoint answers itself: a status, and one line that says why.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use leno_policy::http::authorizer::DEPTH;

use crate::request::refusal::{Flag, Refusal};
use crate::request::response_body::Body;

impl Refusal {
    /// The answer to a client; a gRPC client gets it as a gRPC status.
    pub(crate) fn response(&self, grpc: bool) -> Response<Body> {
        let mut response = if grpc || self.grpc.is_some() { self.grpc_response() } else { self.plain_response() };
        if let Some(wait) = self.after {
            // At least the time that it says, in whole seconds (RFC 9110 §10.2.3).
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        // Of an authoriser's own making, it says nothing.
        if self.status == StatusCode::LOOP_DETECTED && self.by.is_none() {
            response.headers_mut().insert(DEPTH, HeaderValue::from_static("exceeded"));
        }
        if self.flag == Flag::RateLimited {
            response.headers_mut().insert(RATE_LIMITED, HeaderValue::from_static("true"));
        }
        if self.flag == Flag::Overflow {
            response.headers_mut().insert(OVERLOADED, HeaderValue::from_static("true"));
        }
        response
    }

    fn plain_response(&self) -> Response<Body> {
        if let Some(by) = &self.by {
            let body = by.body.as_slice();
            let mut response = Response::new(match body {
                b"" => Body::Empty,
                _ => Body::Text(Some(Bytes::copy_from_slice(body))),
            });
            *response.status_mut() = self.status;
            *response.headers_mut() = by.headers.clone();
            if !body.is_empty() {
                let text = HeaderValue::from_static("text/plain; charset=utf-8");
                response.headers_mut().entry(CONTENT_TYPE).or_insert(text);
            }
            return response;
        }
        let mut response = Response::new(Body::Text(Some(self.text())));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        if self.status == StatusCode::UNAUTHORIZED {
            // RFC 6750 §3.1.
            let challenge = HeaderValue::from_static("Bearer error=\"invalid_token\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        response
    }

    fn text(&self) -> Bytes {
        match self.told {
            // As it stands, because programs compare it.
            Some(told) => Bytes::from_static(told.as_bytes()),
            None => Bytes::from(format!("{}\n", self.reason)),
        }
    }

    /// What a gRPC client is told.
    fn message(&self) -> Cow<'_, str> {
        match &self.by {
            Some(by) => String::from_utf8_lossy(&by.body).chars().take(MESSAGE_MOST).collect::<String>().into(),
            None => self.told.unwrap_or(&self.reason).into(),
        }
    }

    /// A response of nothing but a head (gRPC over HTTP/2, "Trailers-Only").
    fn grpc_response(&self) -> Response<Body> {
        let mut response = Response::new(Body::Empty);
        let headers = response.headers_mut();
        if let Some(by) = &self.by {
            headers.clone_from(&by.headers);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(
            GRPC_STATUS,
            HeaderValue::from(match (self.grpc, self.flag) {
                (Some(status), _) => status,
                (None, Flag::Timeout) => DEADLINE_EXCEEDED,
                // The Gateway API has it so for a backend that can't be used, which is status 500 for others.
                (None, Flag::NoRoute | Flag::Routes(_)) if self.status == StatusCode::INTERNAL_SERVER_ERROR => {
                    UNAVAILABLE
                }
                (None, _) => grpc_status(self.status),
            }),
        );
        if let Ok(message) = HeaderValue::from_str(&percent_encoded(&self.message())) {
            headers.insert(GRPC_MESSAGE, message);
        }
        response
    }
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// What clients of Istio look for, to tell this 503 from others.
const OVERLOADED: HeaderName = HeaderName::from_static("x-envoy-overloaded");

/// What clients of Istio look for, to tell this 429 from a program's own.
const RATE_LIMITED: HeaderName = HeaderName::from_static("x-envoy-ratelimited");

const DEADLINE_EXCEEDED: u16 = 4;
const UNAVAILABLE: u16 = 14;

/// Characters of an authoriser's body that a gRPC client is told: they are a header there.
const MESSAGE_MOST: usize = 1024;

/// The gRPC status for an HTTP status (gRPC: "HTTP to gRPC Status Code Mapping").
fn grpc_status(status: StatusCode) -> u16 {
    match status.as_u16() {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502 | 503 | 504 => UNAVAILABLE,
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
        for (flag, expected) in [(Flag::Routes("NC"), "14"), (Flag::NoRoute, "14"), (Flag::Fault, "2")] {
            let refusal = Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, flag, "no backend");
            assert_eq!(refusal.response(true).headers()["grpc-status"], expected, "{flag:?}");
        }
    }
}
