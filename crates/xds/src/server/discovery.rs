//! Delta ADS on gRPC: one [`Subscription`] per stream.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use leno_proto::discovery::aggregated_discovery_service_server::AggregatedDiscoveryService;
use leno_proto::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Node};
use parking_lot::Mutex;
use prost_types::value::Kind;
use serde::Serialize;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::auth::{Authenticator, Caller, authenticate};
use super::listener::{PeerAddress, Shutdown};
use super::subscription::{Subscription, TypeProgress};
use crate::Resources;

/// How far one proxy is with one type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TypeStatus {
    /// The type.
    pub type_url: String,
    /// Resources the proxy holds.
    pub resources: usize,
    /// Responses sent to it.
    pub sent: u64,
    /// Responses it accepted.
    pub acked: u64,
    /// Responses of which it refused at least one resource.
    pub nacked: u64,
    /// Its words on the last refusal, unless it has accepted a later response.
    pub last_nack: Option<String>,
    /// Whether it has everything there is, as far as it accepted it.
    pub in_sync: bool,
}

/// One connected proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProxyStatus {
    /// Its node id, `ztunnel~<ip>~<pod>.<namespace>~…`.
    pub id: String,
    /// The node it serves, if it said so.
    pub node: Option<String>,
    /// Namespace and service account of its token.
    pub account: String,
    /// Where it connected from.
    pub address: Option<SocketAddr>,
    /// Since when.
    pub connected_since: SystemTime,
    /// The latest snapshot it has answered in full, by the publisher's number.
    pub generation: Option<u64>,
    /// Per type.
    pub types: Vec<TypeStatus>,
}

/// The gRPC service. Cheap to clone; clones are one service.
#[derive(Clone)]
pub struct Service {
    resources: watch::Receiver<Arc<Resources>>,
    authenticator: Arc<dyn Authenticator>,
    registry: Arc<Registry>,
}

#[derive(Default)]
struct Registry {
    next: AtomicU64,
    proxies: Mutex<BTreeMap<u64, ProxyStatus>>,
    /// Counts changes of `proxies`.
    changed: watch::Sender<u64>,
}

impl Service {
    /// A service that hands out the latest of `resources` to whom `authenticator` lets in.
    pub fn new(resources: watch::Receiver<Arc<Resources>>, authenticator: Arc<dyn Authenticator>) -> Self {
        Self { resources, authenticator, registry: Arc::default() }
    }

    /// All connected proxies, in the order they came.
    pub fn sync_status(&self) -> Vec<ProxyStatus> {
        self.registry.proxies.lock().values().cloned().collect()
    }

    /// Wakes whenever [`Self::sync_status`] changes.
    pub fn sync_changes(&self) -> watch::Receiver<u64> {
        self.registry.changed.subscribe()
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("proxies", &self.registry.proxies.lock().len()).finish_non_exhaustive()
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Service {
    type StreamAggregatedResourcesStream = ReceiverStream<Result<DiscoveryResponse, Status>>;
    type DeltaAggregatedResourcesStream = ReceiverStream<Result<DeltaDiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        _: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("this control plane speaks delta discovery only (DeltaAggregatedResources)"))
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let caller = authenticate(&self.authenticator, &request).await?;
        let address = request.extensions().get::<PeerAddress>().map(|peer| peer.0);
        let shutdown = request.extensions().get::<Shutdown>().cloned().unwrap_or_default();
        // One response in the queue: the next is made when this one is taken, from what is
        // latest then.
        let (responses, queue) = mpsc::channel(1);
        let session = Session {
            resources: self.resources.clone(),
            requests: request.into_inner(),
            responses,
            caller,
            address,
            entry: None,
            registry: self.registry.clone(),
        };
        tokio::spawn(session.run(shutdown));
        Ok(Response::new(ReceiverStream::new(queue)))
    }
}

struct Session {
    resources: watch::Receiver<Arc<Resources>>,
    requests: Streaming<DeltaDiscoveryRequest>,
    responses: mpsc::Sender<Result<DeltaDiscoveryResponse, Status>>,
    caller: Caller,
    address: Option<SocketAddr>,
    entry: Option<Entry>,
    registry: Arc<Registry>,
}

impl Session {
    async fn run(mut self, shutdown: Shutdown) {
        let outcome = tokio::select! {
            outcome = self.converse() => outcome,
            () = shutdown.wait() => Ok(()),
        };
        let proxy = self.entry.as_ref().map_or("(unnamed)", |entry| &entry.status.id);
        match outcome {
            Ok(()) => tracing::debug!(proxy, "discovery stream ended"),
            Err(status) => {
                tracing::info!(proxy, code = ?status.code(), reason = %status.message(), "discovery stream ended");
                // If nobody listens any more, nobody needs to know.
                let _ = self.responses.try_send(Err(status));
            }
        }
    }

    async fn converse(&mut self) -> Result<(), Status> {
        let mut subscription = Subscription::new();
        let responses = self.responses.clone();
        loop {
            let snapshot = self.resources.borrow_and_update().clone();
            let full = match responses.try_reserve() {
                Ok(slot) => match subscription.next(&snapshot, Instant::now()) {
                    Some(response) => {
                        slot.send(Ok(response));
                        self.report(&subscription, &snapshot);
                        continue;
                    }
                    None => false,
                },
                Err(TrySendError::Full(_)) => true,
                Err(TrySendError::Closed(_)) => return Ok(()),
            };
            self.report(&subscription, &snapshot);
            let wake_at = subscription.wake_at(Instant::now());
            tokio::select! {
                request = self.requests.message() => match request {
                    Ok(Some(request)) => {
                        self.admit(&request)?;
                        subscription
                            .request(request, Instant::now())
                            .map_err(|error| Status::invalid_argument(error.to_string()))?;
                    }
                    Ok(None) => return Ok(()),
                    // The client went away; what it could not be told is no error of ours.
                    Err(status) if responses.is_closed() => {
                        tracing::debug!(%status, "discovery client left");
                        return Ok(());
                    }
                    Err(status) => return Err(status),
                },
                changed = self.resources.changed() => if changed.is_err() {
                    return Err(Status::unavailable("the control plane is shutting down"));
                },
                _ = responses.reserve(), if full => {}
                () = responses.closed() => return Ok(()),
                () = sleep_until(wake_at) => {}
            }
        }
    }

    /// Takes the first request's node as who this is, after checking that against the token.
    fn admit(&mut self, request: &DeltaDiscoveryRequest) -> Result<(), Status> {
        if self.entry.is_some() {
            return Ok(());
        }
        let Some(node) = &request.node else {
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
        let status = ProxyStatus {
            id: node.id.clone(),
            node: metadata(node, "NODE_NAME").map(str::to_owned).or_else(|| self.caller.node.clone()),
            account: format!("{}/{}", self.caller.namespace, self.caller.service_account),
            address: self.address,
            connected_since: SystemTime::now(),
            generation: None,
            types: Vec::new(),
        };
        tracing::info!(proxy = %status.id, node = status.node.as_deref(), "discovery stream opened");
        self.entry = Some(Entry::new(self.registry.clone(), status));
        Ok(())
    }

    fn report(&mut self, subscription: &Subscription, snapshot: &Resources) {
        let Some(entry) = &mut self.entry else { return };
        let generation = if subscription.in_sync() { Some(snapshot.generation()) } else { entry.status.generation };
        let types = subscription.progress().into_iter().map(TypeStatus::from).collect();
        entry.update(generation, types);
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

/// A proxy's place in the registry, for as long as its stream lives.
struct Entry {
    registry: Arc<Registry>,
    key: u64,
    status: ProxyStatus,
}

impl Entry {
    fn new(registry: Arc<Registry>, status: ProxyStatus) -> Self {
        let key = registry.next.fetch_add(1, Ordering::Relaxed);
        registry.proxies.lock().insert(key, status.clone());
        registry.changed.send_modify(|count| *count += 1);
        Self { registry, key, status }
    }

    fn update(&mut self, generation: Option<u64>, types: Vec<TypeStatus>) {
        if self.status.generation == generation && self.status.types == types {
            return;
        }
        self.status.generation = generation;
        self.status.types = types;
        self.registry.proxies.lock().insert(self.key, self.status.clone());
        self.registry.changed.send_modify(|count| *count += 1);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.registry.proxies.lock().remove(&self.key);
        self.registry.changed.send_modify(|count| *count += 1);
    }
}

impl From<TypeProgress> for TypeStatus {
    fn from(progress: TypeProgress) -> Self {
        Self {
            type_url: progress.type_url.to_string(),
            resources: progress.resources,
            sent: progress.sent,
            acked: progress.acked,
            nacked: progress.nacked,
            last_nack: progress.last_nack,
            in_sync: progress.in_sync,
        }
    }
}
