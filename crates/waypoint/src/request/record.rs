//! What is told of a request and its response.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};
use leno_model::{Identity, Name, Service, Workload};
use leno_policy::{Route, WaypointTarget};
use leno_telemetry::access_log::{Level, Record, Request};
use leno_telemetry::metrics::{Outcome, RequestProtocol};
use leno_telemetry::spans::{Span, Value};

use crate::balance::endpoint_id;
use crate::body::grpc_messages::{Flow, Messages};
use crate::connection::record::endpoint;
use crate::request::client::{Client, View};
use crate::request::consent::Consent;
use crate::request::head::Asks;
use crate::request::open_requests::{Pending, protocol};
use crate::request::refusal::{Flag, Refusal};
use crate::request::trace_context::Trace;
use crate::state::request_metrics::Ends;
use crate::state::shared::Gate;

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
    /// Whether the endpoint is reached in a tunnel.
    proven: bool,
    /// The service that is asked, if it is not the one that the connection was asked for.
    elsewhere: Option<Arc<Service>>,
    attempts: u32,
    route: Option<Name>,
    pub(crate) request_id: Option<HeaderValue>,
    trace: Option<Trace>,
    /// What the request's body has carried, if it has one.
    received: Option<Arc<Flow>>,
    bytes_sent: u64,
    /// gRPC messages in the response.
    messages: (Messages, u64),
    /// Among the open requests of the connection.
    place: usize,
    pub(crate) status: StatusCode,
    grpc_status: Option<u16>,
    flag: Flag,
    error: Option<String>,
    /// What policies say that are only logged.
    notes: Vec<String>,
    /// The authorisers that were asked, if any were.
    asked: Option<Box<Consent>>,
    told: bool,
}

impl Exchange {
    pub(crate) fn new(client: &Arc<Client>, view: &Arc<View>, head: &Parts) -> Self {
        let started = Instant::now();
        let place = client.pending.begin(Pending {
            started,
            method: head.method.clone(),
            path: head.uri.path_and_query().cloned(),
            version: head.version,
            endpoint: (None, None),
            trace: None,
            span: 0,
        });
        Self {
            client: client.clone(),
            view: view.clone(),
            started,
            method: head.method.clone(),
            version: head.version,
            path: head.uri.path_and_query().cloned(),
            authority: None,
            grpc: false,
            endpoint: (None, None),
            proven: false,
            elsewhere: None,
            attempts: 0,
            route: None,
            request_id: None,
            trace: None,
            received: None,
            bytes_sent: 0,
            messages: (Messages::default(), 0),
            place,
            // Istio writes 0 for a request that was never answered.
            status: StatusCode::OK,
            grpc_status: None,
            flag: Flag::None,
            error: None,
            notes: Vec::new(),
            asked: None,
            told: false,
        }
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.client.gate
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.version == Version::HTTP_2
    }

    /// Who calls.
    pub(crate) fn identity(&self) -> &Identity {
        self.client.identity()
    }

    pub(crate) fn asks(&mut self, asks: &Asks) {
        self.authority = Some(asks.authority.clone());
        self.grpc = asks.grpc;
    }

    /// Its query holds a secret, and is told to nobody.
    pub(crate) fn hide_query(&mut self) {
        self.path = self.path.take().and_then(|path| path.path().parse().ok());
        let path = self.path.clone();
        self.client.pending.learn(self.place, |pending| pending.path = path);
    }

    /// Its place in a trace.
    pub(crate) fn traced(&mut self, trace: Trace) {
        self.trace = Some(trace);
        self.client.pending.learn(self.place, |pending| (pending.trace, pending.span) = (Some(trace.id), trace.span));
    }

    /// It has a body. Returns what counts it.
    pub(crate) fn receives(&mut self) -> (Arc<Flow>, Option<Messages>) {
        let flow = self.received.get_or_insert_default().clone();
        (flow, self.grpc.then(Messages::default))
    }

    /// The rule that it follows.
    pub(crate) fn routed(&mut self, rule: &Name) {
        self.route = Some(rule.clone());
    }

    /// Where a route sends it.
    pub(crate) fn aimed(&mut self, target: &WaypointTarget) {
        if let WaypointTarget::Service { service, .. } = target {
            self.elsewhere = Some(service.clone());
        }
    }

    /// What a policy says that is only logged.
    pub(crate) fn note(&mut self, note: String) {
        // Policies are asked twice about a request that waits on purpose.
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Authorisers have let it pass.
    pub(crate) fn authorized(&mut self, asked: Consent) {
        if asked.matters_later() {
            self.asked.get_or_insert_default().join(asked);
        }
    }

    /// What authorisers want of its response.
    pub(crate) fn change_response(&self, headers: &mut HeaderMap) {
        if let Some(asked) = &self.asked {
            asked.change_response(headers);
        }
    }

    /// The endpoint that is asked.
    pub(crate) fn attempt(&mut self, route: &Route) {
        self.endpoint = endpoint(route);
        self.proven = matches!(route, Route::Hbone { .. });
        self.attempts += 1;
        self.client.pending.learn(self.place, |pending| pending.endpoint = self.endpoint.clone());
    }

    /// The number of the endpoint that was asked last.
    pub(crate) fn endpoint_id(&self) -> Option<u64> {
        self.endpoint.1.as_ref().map(|workload| endpoint_id(&workload.uid))
    }

    /// The head of a response has come.
    pub(crate) fn responded(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.status = status;
        self.trailers(headers);
    }

    /// Bytes of the response were passed on.
    pub(crate) fn sent(&mut self, data: &Bytes) {
        self.bytes_sent += data.len() as u64;
        if self.grpc {
            self.messages.1 += self.messages.0.begun(data);
        }
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
        self.received.get_or_insert_default().bytes.fetch_add(received, Relaxed);
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

    /// The client has not waited for its end.
    pub(crate) fn given_up(&mut self, how: &str) {
        self.client.requests.given_up();
        self.broken(Flag::Downstream, how.to_owned());
    }

    /// The response has been passed on, or was given up.
    pub(crate) fn finished(mut self) {
        self.tell();
    }

    fn tell(&mut self) {
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        self.client.pending.end(self.place);
        let core = &self.client.gate.core;
        let took = self.started.elapsed();
        let (bytes, messages) = self.received();
        let protocol = if self.grpc { RequestProtocol::Grpc } else { RequestProtocol::Http };
        let outcome =
            Outcome { status: self.status.as_u16(), grpc_status: self.grpc_status, flags: self.flag.as_str() };
        let ends = Ends {
            source: self.view.source.as_ref(),
            identity: self.client.identity(),
            destination: self.endpoint.1.as_ref(),
            proven: self.proven,
            service: self.elsewhere.as_ref().or_else(|| self.view.service()),
        };
        let metrics = self.client.lane().series.of(&core.metrics, &ends, protocol, outcome);
        metrics.ended(took, bytes, self.bytes_sent);
        if self.grpc {
            metrics.messages(messages, self.messages.1);
        }
        if let (Some(spans), Some(trace)) = (&self.client.gate.spans, self.trace.filter(|trace| trace.told)) {
            spans.tell(self.span(trace, took));
        }
        let level = if self.error.is_some() { Level::Error } else { Level::Info };
        if core.access_log.enabled(level) {
            core.access_log.completed(self.record());
        }
    }

    /// By the names of OpenTelemetry's semantic conventions for HTTP. The query stays out: it may hold secrets.
    fn span(&self, trace: Trace, took: Duration) -> Span {
        let text = |value: &str| Value::Text(value.to_owned());
        let mut attributes = vec![
            ("http.request.method", text(self.method.as_str())),
            ("http.response.status_code", Value::Number(self.status.as_u16().into())),
            ("url.path", text(self.path.as_ref().map_or("", |path| path.path()))),
            ("url.scheme", text("http")),
            ("network.protocol.version", text(protocol(self.version).trim_start_matches("HTTP/"))),
            ("network.peer.address", Value::Text(self.client.address().ip().to_string())),
            ("source.principal", Value::Text(self.client.identity().to_string())),
            ("response_flags", text(self.flag.as_str())),
        ];
        if let Some(authority) = &self.authority {
            attributes.push(("server.address", text(authority.host())));
        }
        if let Some(route) = &self.route {
            attributes.push(("http.route", text(route)));
        }
        if let Some(status) = self.grpc_status {
            attributes.push(("rpc.grpc.status_code", Value::Number(status.into())));
        }
        if let Some(id) = self.request_id.as_ref().and_then(|id| id.to_str().ok()) {
            attributes.push(("guid:x-request-id", text(id)));
        }
        if let Some(workload) = &self.endpoint.1 {
            attributes.push(("upstream.pod", Value::Text(format!("{}/{}", workload.namespace, workload.name))));
        }
        let failed = self.error.clone().or_else(|| self.status.is_server_error().then(|| self.status.to_string()));
        Span {
            trace: trace.id,
            span: trace.span,
            parent: trace.parent,
            began: SystemTime::now() - took,
            took,
            name: match &self.route {
                Some(route) => format!("{} {route}", self.method),
                None => self.method.to_string(),
            },
            attributes,
            error: failed,
        }
    }

    /// Bytes and messages of the request's body.
    fn received(&self) -> (u64, u64) {
        self.received.as_ref().map_or((0, 0), |flow| (flow.bytes.load(Relaxed), flow.messages.load(Relaxed)))
    }

    fn record(&self) -> Record {
        let mut record = self.client.record(&self.view);
        (record.destination.address, record.destination.workload) = self.endpoint.clone();
        if let Some(elsewhere) = &self.elsewhere {
            record.service = Some(elsewhere.id.hostname.clone());
        }
        record.bytes_sent = self.received().0;
        record.bytes_received = self.bytes_sent;
        record.duration = self.started.elapsed();
        record.trace_id = self.trace.map(|trace| trace.id);
        record.error.clone_from(&self.error);
        record.denied = matches!(self.flag, Flag::Denied | Flag::External);
        record.dry_run.clone_from(&self.notes);
        if let Some(asked) = &self.asked {
            record.fail_open.clone_from(&asked.unanswered);
        }
        record.request = Some(Box::new(Request {
            method: self.method.as_str().into(),
            authority: self.authority.as_ref().map_or("", |authority| authority.as_str()).into(),
            path: self.path.as_ref().map_or("", |path| path.as_str()).into(),
            protocol: protocol(self.version),
            span: self.trace.map_or(0, |trace| trace.span),
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
            self.given_up("the client went away before it had a response");
            self.tell();
        }
    }
}
