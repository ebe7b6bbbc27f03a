//! What is told of a request and its response.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};
use leno_model::{Name, Workload};
use leno_policy::{Route, WaypointTarget};
use leno_telemetry::access_log::{Direction, Endpoint, Level, Record, Request};

use super::client::{Client, View};
use super::head::Asks;
use super::refusal::{Flag, Refusal};
use crate::gate::Gate;
use crate::report::endpoint;

/// One request and its response, as far as they are known. Dropping it tells that the client went away.
pub(crate) struct Exchange {
    client: Arc<Client>,
    view: Arc<View>,
    started: Instant,
    method: Method,
    version: Version,
    path: Option<http::uri::PathAndQuery>,
    authority: Option<http::uri::Authority>,
    grpc: bool,
    endpoint: (Option<SocketAddr>, Option<Arc<Workload>>),
    attempts: u32,
    route: Option<Name>,
    pub(crate) request_id: Option<HeaderValue>,
    pub(crate) trace: Option<u128>,
    pub(crate) bytes_received: Arc<AtomicU64>,
    bytes_sent: u64,
    pub(crate) status: StatusCode,
    grpc_status: Option<u16>,
    flag: Flag,
    error: Option<String>,
    told: bool,
}

impl Exchange {
    pub(crate) fn new(client: &Arc<Client>, view: &Arc<View>, head: &Parts) -> Self {
        Self {
            client: client.clone(),
            view: view.clone(),
            started: Instant::now(),
            method: head.method.clone(),
            version: head.version,
            path: head.uri.path_and_query().cloned(),
            authority: None,
            grpc: false,
            endpoint: (None, None),
            attempts: 0,
            route: None,
            request_id: None,
            trace: None,
            bytes_received: Arc::default(),
            bytes_sent: 0,
            // Istio writes 0 for a request that was never answered.
            status: StatusCode::OK,
            grpc_status: None,
            flag: Flag::None,
            error: None,
            told: false,
        }
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.client.gate
    }

    pub(crate) fn asks(&mut self, asks: &Asks) {
        self.authority = Some(asks.authority.clone());
        self.grpc = asks.grpc;
    }

    /// The rule that it follows, if there are routes.
    pub(crate) fn routed(&mut self, rule: Option<&str>) {
        self.route = rule.map(Name::from);
    }

    /// The endpoint that is asked.
    pub(crate) fn attempt(&mut self, route: &Route) {
        self.endpoint = endpoint(route);
        self.attempts += 1;
    }

    /// The head of a response has come.
    pub(crate) fn responded(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.status = status;
        self.trailers(headers);
    }

    /// Bytes of the response were passed on.
    pub(crate) fn sent(&mut self, data: &Bytes) {
        self.bytes_sent += data.len() as u64;
    }

    /// What a gRPC server says at the end.
    pub(crate) fn trailers(&mut self, trailers: &HeaderMap) {
        if self.grpc
            && let Some(status) = trailers.get("grpc-status")
        {
            self.grpc_status = status.to_str().ok().and_then(|text| text.parse().ok());
        }
    }

    /// Bytes that were carried after a change of protocol.
    pub(crate) fn carried(&mut self, received: u64, sent: u64) {
        self.bytes_received.fetch_add(received, Relaxed);
        self.bytes_sent += sent;
    }

    /// The waypoint answers itself.
    pub(crate) fn refused(&mut self, refusal: &Refusal) {
        self.broken(refusal.flag, refusal.reason.to_string());
    }

    /// It went wrong.
    pub(crate) fn broken(&mut self, flag: Flag, error: String) {
        self.flag = flag;
        self.error = Some(error);
    }

    /// The response has been passed on, or was given up.
    pub(crate) fn finished(mut self) {
        self.tell();
    }

    fn tell(&mut self) {
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        let log = &self.client.gate.core.access_log;
        let level = if self.error.is_some() { Level::Error } else { Level::Info };
        if log.enabled(level) {
            log.completed(self.record());
        }
    }

    fn record(&self) -> Record {
        let mut record = Record::new(Direction::Through);
        record.source = Endpoint {
            workload: self.view.source.clone(),
            address: Some(self.client.address()),
            identity: Some(self.client.identity().clone()),
        };
        record.destination = Endpoint { workload: self.endpoint.1.clone(), address: self.endpoint.0, identity: None };
        record.service = match &self.view.target {
            WaypointTarget::Service { service, .. } => Some(service.id.hostname.clone()),
            WaypointTarget::Pod { service, .. } => service.as_ref().map(|service| service.id.hostname.clone()),
        };
        record.bytes_sent = self.bytes_received.load(Relaxed);
        record.bytes_received = self.bytes_sent;
        record.duration = self.started.elapsed();
        record.trace_id = self.trace;
        record.error.clone_from(&self.error);
        record.mutual_tls = true;
        record.request = Some(Box::new(Request {
            method: self.method.as_str().into(),
            authority: self.authority.as_ref().map_or("", |authority| authority.as_str()).into(),
            path: self.path.as_ref().map_or("", |path| path.as_str()).into(),
            protocol: match self.version {
                Version::HTTP_2 => "HTTP/2",
                Version::HTTP_10 => "HTTP/1.0",
                _ => "HTTP/1.1",
            },
            status: self.status.as_u16(),
            grpc_status: self.grpc_status,
            flags: self.flag.as_str(),
            id: self.request_id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default().into(),
            attempts: self.attempts,
            route: self.route.clone(),
        }));
        record
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if !self.told {
            self.status = StatusCode::from_u16(499).unwrap_or_default();
            self.broken(Flag::Downstream, "the client went away before it had a response".to_owned());
            self.tell();
        }
    }
}
