//! One request, or connection, at an endpoint.

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, StatusCode};
use leno_policy::balance::UNREACHABLE;
use parking_lot::Mutex;

use super::cluster::Endpoint;
use super::vital::ticks;

/// One request, or connection, at an endpoint, which counts it until this is dropped.
pub(crate) struct InFlight {
    endpoint: Arc<Endpoint>,
    began: Instant,
    told: bool,
}

/// Where a request waits for its answer: who gives it up knows whom it was at.
#[derive(Default)]
pub(crate) struct Seat(Mutex<Option<InFlight>>);

impl InFlight {
    pub(super) fn new(endpoint: &Arc<Endpoint>) -> Self {
        endpoint.vital.begin();
        Self { endpoint: endpoint.clone(), began: Instant::now(), told: false }
    }

    /// The head of an answer has come.
    pub(crate) fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.told = true;
        let now = Instant::now();
        let (at, vital) = (ticks(now), &self.endpoint.vital);
        if failed(status, headers) {
            vital.learn(|estimate| estimate.failed(at));
        } else {
            let took = now.duration_since(self.began);
            vital.learn(|estimate| estimate.answered(took, at));
        }
    }

    /// A connection stands, which says nothing about how long answers take.
    pub(crate) fn connected(&mut self) {
        self.told = true;
    }

    /// It can't be reached.
    pub(crate) fn unreachable(&mut self) {
        self.told = true;
        let at = ticks(Instant::now());
        self.endpoint.vital.learn(|estimate| estimate.at_least(UNREACHABLE, at));
    }

    /// The connection broke before there was an answer.
    pub(crate) fn broken(&mut self) {
        self.told = true;
        let at = ticks(Instant::now());
        self.endpoint.vital.learn(|estimate| estimate.failed(at));
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.told {
            // Given up by somebody. It would have taken longer still.
            let now = Instant::now();
            let (took, at) = (now.duration_since(self.began), ticks(now));
            self.endpoint.vital.learn(|estimate| estimate.at_least(took, at));
        }
        self.endpoint.vital.end();
    }
}

impl Seat {
    pub(crate) fn sit(&self, request: Option<InFlight>) {
        *self.0.lock() = request;
    }

    pub(crate) fn leave(&self) -> Option<InFlight> {
        self.0.lock().take()
    }
}

/// Whether an answer says that the endpoint failed, and not that the request was wrong.
fn failed(status: StatusCode, headers: &HeaderMap) -> bool {
    if status.is_server_error() {
        return true;
    }
    // Of a response of nothing but a head. UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE, DATA_LOSS.
    headers.get("grpc-status").is_some_and(|status| matches!(status.as_bytes(), b"2" | b"4" | b"13" | b"14" | b"15"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_the_endpoint_is_told_from_one_of_the_request() {
        let of = |status: u16, grpc: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            if let Some(grpc) = grpc {
                headers.insert("grpc-status", http::HeaderValue::from_static(grpc));
            }
            failed(StatusCode::from_u16(status).unwrap(), &headers)
        };
        assert!(of(500, None) && of(503, None) && of(200, Some("14")) && of(200, Some("13")));
        assert!(!of(200, None) && !of(404, None) && !of(429, None) && !of(200, Some("0")) && !of(200, Some("5")));
    }
}
