//! Delta ADS on gRPC: one [`Subscription`] per stream.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use hyper::body::Incoming;
use leno_proto::discovery::Node;
use leno_telemetry::metrics::control::ControlMetrics;
use prost_types::value::Kind;
use tokio::sync::watch;
use tonic::{Code, Status};

use super::auth::authenticate;
use super::caller::{Authenticator, Caller};
use super::connection::{PeerAddress, Shutdown};
use super::delta::Deltas;
use super::grpc::{self, Messages, Outbox, Spoken, Turns};
use super::places::{Place, Stream};
use super::push::Subscription;
use super::registry::{Entry, ProxyStatus, Registry, Who};
use super::request::Request;
use crate::Resources;

/// The gRPC names of the service and of its one method.
pub(super) const NAME: &str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
const DELTA: &str = "DeltaAggregatedResources";

/// Largest request that is accepted, before it is parsed, bytes. A proxy that holds more leaves the versions out.
const MAX_REQUEST: usize = 4 << 20;

/// The gRPC service. Cheap to clone; clones share the state.
#[derive(Clone)]
pub struct Service {
    resources: watch::Receiver<Arc<Resources>>,
    authenticator: Arc<dyn Authenticator>,
    deltas: Arc<Deltas>,
    turns: Turns,
    registry: Arc<Registry>,
    metrics: ControlMetrics,
}

impl Service {
    /// A service that sends the latest of `resources` to callers that `authenticator` accepts.
    pub fn new(resources: watch::Receiver<Arc<Resources>>, authenticator: Arc<dyn Authenticator>) -> Self {
        Self {
            resources,
            authenticator,
            deltas: Arc::default(),
            turns: Turns::default(),
            registry: Arc::default(),
            metrics: ControlMetrics::default(),
        }
    }

    /// Counts in `metrics` what happens.
    #[must_use]
    pub fn counted_in(self, metrics: ControlMetrics) -> Self {
        Self { registry: Arc::new(Registry::counting(metrics.clone())), metrics, ..self }
    }

    pub(super) fn metrics(&self) -> &ControlMetrics {
        &self.metrics
    }

    /// How many proxies are connected.
    pub fn proxies(&self) -> usize {
        self.registry.count()
    }

    /// How many connected proxies have not answered the snapshot `generation`.
    pub fn behind(&self, generation: u64) -> usize {
        self.registry.behind(generation)
    }

    /// All connected proxies, in order of arrival.
    pub fn sync_status(&self) -> Vec<ProxyStatus> {
        self.registry.status()
    }

    /// Waits until every proxy that is connected now has answered the snapshot `generation`, or is gone.
    pub async fn answered(&self, generation: u64) {
        self.registry.answered(generation).await;
    }

    /// Whether there are proxies, and all of them have answered the snapshot `generation` and accepted all there is of
    /// a type.
    pub fn all_accepted(&self, type_url: &str, generation: u64) -> bool {
        self.registry.all_accepted(type_url, generation)
    }

    /// The bytes of long requests so far. In these, proxies list what they hold. The lists are freed at once, so a while
    /// after them there is memory to give back ([`super::Memory`]).
    pub fn heard(&self) -> watch::Receiver<u64> {
        self.turns.heard()
    }

    /// Wakes whenever [`Self::sync_status`] changes.
    pub fn sync_changes(&self) -> watch::Receiver<u64> {
        self.registry.changes()
    }

    /// Answers a call of the service's method with this name.
    pub(super) async fn call(&self, request: http::Request<Incoming>) -> http::Response<tonic::body::Body> {
        let (_, method) = request.uri().path().rsplit_once('/').unwrap_or_default();
        let answered = match method {
            DELTA => self.delta(request).await,
            _ => {
                Err(Status::unimplemented("this control plane speaks delta discovery only (DeltaAggregatedResources)"))
            }
        };
        answered.unwrap_or_else(Status::into_http)
    }

    async fn delta(&self, request: http::Request<Incoming>) -> Result<http::Response<tonic::body::Body>, Status> {
        let (head, body) = request.into_parts();
        grpc::check(&head.headers)?;
        let caller =
            authenticate(&self.authenticator, &head.headers, &head.extensions).await.inspect_err(|status| {
                if status.code() == Code::Unauthenticated {
                    self.metrics.discovery_denied();
                }
            })?;
        let stream = match head.extensions.get::<Arc<Place>>() {
            Some(place) => Some(place.begin_stream().ok_or_else(too_many_streams)?),
            None => None,
        };
        let answers = Outbox::default();
        let session = Session {
            resources: self.resources.clone(),
            requests: Messages::new(body, MAX_REQUEST, self.turns.clone()),
            answers: answers.clone(),
            deltas: self.deltas.clone(),
            caller,
            address: head.extensions.get::<PeerAddress>().map(|peer| peer.0),
            entry: None,
            registry: self.registry.clone(),
            metrics: self.metrics.clone(),
            _stream: stream,
        };
        let shutdown = head.extensions.get::<Shutdown>().cloned().unwrap_or_default();
        Ok(grpc::response(Spoken::new(session.run(shutdown), answers)))
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("proxies", &self.registry.count()).finish_non_exhaustive()
    }
}

/// One proxy's stream.
struct Session {
    resources: watch::Receiver<Arc<Resources>>,
    requests: Messages<Incoming>,
    answers: Outbox,
    deltas: Arc<Deltas>,
    caller: Caller,
    address: Option<SocketAddr>,
    entry: Option<Entry>,
    registry: Arc<Registry>,
    metrics: ControlMetrics,
    /// Keeps it counted.
    _stream: Option<Stream>,
}

fn too_many_streams() -> Status {
    Status::resource_exhausted("this connection has as many discovery streams as it may have; a proxy needs one")
}

impl Session {
    async fn run(mut self, shutdown: Shutdown) -> Result<(), Status> {
        let outcome = tokio::select! {
            outcome = self.converse() => outcome,
            () = shutdown.wait() => Ok(()),
        };
        let proxy = self.entry.as_ref().map_or("(unnamed)", |entry| &entry.who().id);
        match &outcome {
            Ok(()) => tracing::debug!(proxy, "discovery stream ended"),
            Err(status) => {
                tracing::info!(proxy, code = ?status.code(), reason = %status.message(), "discovery stream ended");
            }
        }
        outcome
    }

    async fn converse(&mut self) -> Result<(), Status> {
        let reader = format!("{}/{}", self.caller.namespace, self.caller.service_account).into();
        let mut subscription = Subscription::sharing(self.deltas.clone(), reader);
        loop {
            let snapshot = self.resources.borrow_and_update().clone();
            while let Some(answer) = subscription.next(&snapshot, Instant::now()) {
                self.metrics.pushed(answer.type_url(), answer.length());
                self.answers.put(answer);
                self.report(&subscription, &snapshot);
                // The next answer is made when this one is taken, from what is latest then.
                self.answers.sent().await;
                if self.resources.has_changed().unwrap_or(true) {
                    break;
                }
            }
            self.report(&subscription, &snapshot);
            let wake_at = subscription.wake_at(Instant::now());
            tokio::select! {
                request = self.requests.next() => match request? {
                    Some(message) => {
                        let request = Request::decode(message)
                            .map_err(|error| Status::internal(error.to_string()))?;
                        self.admit(&request)?;
                        let refused = subscription.nacked(request.type_url());
                        subscription
                            .request(&request, Instant::now())
                            .map_err(|error| Status::invalid_argument(error.to_string()))?;
                        if subscription.nacked(request.type_url()) > refused {
                            self.metrics.rejected(request.type_url());
                        }
                    }
                    None => return Ok(()),
                },
                changed = self.resources.changed() => if changed.is_err() {
                    return Err(Status::unavailable("the control plane is shutting down"));
                },
                () = sleep_until(wake_at) => {}
            }
        }
    }

    /// Takes the identity of the proxy from the node of its first request, after checking it against the token.
    fn admit(&mut self, request: &Request) -> Result<(), Status> {
        if self.entry.is_some() {
            return Ok(());
        }
        let Some(node) = request.node() else {
            return Err(Status::invalid_argument("the first request of a discovery stream must say who asks (node)"));
        };
        let claimed = metadata(node, "NAMESPACE").or_else(|| namespace_of(&node.id));
        if claimed.is_some_and(|claimed| claimed != self.caller.namespace) {
            return Err(Status::permission_denied(format!(
                "the proxy says it is of namespace {:?}, but its token is of {:?}; check POD_NAMESPACE and the \
                 token's service account",
                claimed.unwrap_or_default(),
                self.caller.namespace
            )));
        }
        let who = Who {
            id: node.id.clone(),
            node: metadata(node, "NODE_NAME").map(str::to_owned).or_else(|| self.caller.node.clone()),
            account: format!("{}/{}", self.caller.namespace, self.caller.service_account),
            address: self.address,
        };
        tracing::info!(proxy = %who.id, node = who.node.as_deref(), "discovery stream opened");
        self.entry = Some(self.registry.enter(who));
        Ok(())
    }

    fn report(&self, subscription: &Subscription, snapshot: &Resources) {
        if let Some(entry) = &self.entry {
            entry.update(subscription, snapshot);
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

fn metadata<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    match &node.metadata.as_ref()?.fields.get(key)?.kind {
        Some(Kind::StringValue(text)) if !text.is_empty() => Some(text),
        _ => None,
    }
}

/// `<role>~<ip>~<pod>.<namespace>~<domain>`.
fn namespace_of(id: &str) -> Option<&str> {
    id.split('~').nth(2)?.rsplit_once('.').map(|(_, namespace)| namespace)
}
