//! One request, or connection, at an endpoint.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use http::{HeaderMap, StatusCode};
use leno_policy::balance::UNREACHABLE;
use parking_lot::Mutex;

use super::ejection::{Ejected, Ended};
use super::endpoint::Endpoint;
use super::shared::{Counted, Limit, Overflow};
use super::vital::ticks;

/// One request, or connection, at an endpoint, which counts it until this is dropped.
pub(crate) struct InFlight {
    endpoint: Arc<Endpoint>,
    began: Instant,
    limit: Limit,
    told: bool,
}

/// Where a request waits for its answer: who gives it up knows whom it was at.
#[derive(Default)]
pub(crate) struct Seat {
    now: Mutex<Option<InFlight>>,
    /// An endpoint that it was at, if the request may be sent again.
    been_at: OnceLock<Arc<Endpoint>>,
}

impl InFlight {
    /// A request or a connection, as `limit` says.
    pub(super) fn new(endpoint: &Arc<Endpoint>, limit: Limit) -> Result<Self, Overflow> {
        let of = &endpoint.of;
        let most = if limit == Limit::Requests { of.rules.max_requests } else { of.rules.max_connections };
        if !of.shared.begin(limit, most) {
            return Err(of.shared.overflow(&of.service.id, limit, most));
        }
        endpoint.vital.begin();
        Ok(Self { endpoint: endpoint.clone(), began: Instant::now(), limit, told: false })
    }

    /// The head of an answer has come.
    pub(crate) fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.told = true;
        let now = Instant::now();
        let (at, vital) = (ticks(now), &self.endpoint.vital);
        let failed = failure(status, headers);
        if failed.is_some() {
            vital.learn(|estimate| estimate.failed(at));
        } else {
            let took = now.duration_since(self.began);
            vital.learn(|estimate| estimate.answered(took, at));
        }
        self.ended(failed.map_or(Ended::Well, Ended::Status));
    }

    /// A connection stands, which says nothing about how long answers take.
    pub(crate) fn connected(&mut self) {
        self.told = true;
        self.ended(Ended::Well);
    }

    /// It can't be reached.
    pub(crate) fn unreachable(&mut self) {
        self.told = true;
        let at = ticks(Instant::now());
        self.endpoint.vital.learn(|estimate| estimate.at_least(UNREACHABLE, at));
        self.ended(Ended::Locally);
    }

    /// The connection broke before there was an answer.
    pub(crate) fn broken(&mut self) {
        self.told = true;
        let at = ticks(Instant::now());
        self.endpoint.vital.learn(|estimate| estimate.failed(at));
        self.ended(Ended::Locally);
    }

    /// There was no answer in time.
    fn late(self) {
        self.ended(Ended::Locally);
    }

    fn ended(&self, ended: Ended) {
        let of = &self.endpoint.of;
        let Some(ejection) = &of.rules.ejection else { return };
        if let Some(cause) = self.endpoint.vital.ended(ended, ejection) {
            let endpoint = self.endpoint.uid().unwrap_or_default();
            let ejected = Ejected { rules: &of.rules, service: &of.service.id, endpoint, cause };
            of.shared.eject(&self.endpoint.vital, &ejected);
        }
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
        self.endpoint.of.shared.end(self.limit);
    }
}

impl Seat {
    pub(crate) fn sit(&self, request: Option<InFlight>) {
        *self.now.lock() = request;
    }

    pub(crate) fn leave(&self) -> Option<InFlight> {
        self.now.lock().take()
    }

    /// Nobody waits for the answer any longer: it took too long.
    pub(crate) fn gave_up(&self) {
        if let Some(request) = self.leave() {
            request.late();
        }
    }

    /// The request may be sent again.
    pub(crate) fn remember(&self, request: Option<&InFlight>) {
        if let Some(request) = request {
            let _ = self.been_at.set(request.endpoint.clone());
        }
    }

    /// Counts that the request is sent again; `None` if too many are.
    pub(crate) fn again(&self) -> Option<Option<Counted>> {
        let Some(endpoint) = self.been_at.get() else { return Some(None) };
        endpoint.of.shared.retry(&endpoint.of.rules).map(Some)
    }
}

/// The status of an answer that says that the endpoint failed, and not that the request was wrong.
fn failure(status: StatusCode, headers: &HeaderMap) -> Option<u16> {
    if status.is_server_error() {
        return Some(status.as_u16());
    }
    // Of a response of nothing but a head.
    match headers.get("grpc-status")?.as_bytes() {
        // UNKNOWN, INTERNAL, DATA_LOSS.
        b"2" | b"13" | b"15" => Some(500),
        // UNAVAILABLE.
        b"14" => Some(503),
        // DEADLINE_EXCEEDED.
        b"4" => Some(504),
        _ => None,
    }
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
            failure(StatusCode::from_u16(status).unwrap(), &headers)
        };
        assert_eq!([of(500, None), of(503, None), of(200, Some("14"))], [Some(500), Some(503), Some(503)]);
        assert_eq!([of(200, None), of(404, None), of(429, None), of(200, Some("0")), of(200, Some("5"))], [None; 5]);
    }
}
