//! Keeps a node proxy's copy of the mesh up to date, over delta ADS
//! (`envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources`).
//!
//! The client remembers which version of each resource the handler holds, and tells the server when it reconnects. So
//! unchanged resources are not sent again, and resources that vanished meanwhile are removed. While it is disconnected,
//! the last state stays in use.

mod handler;
mod kept;
mod node;
mod response;
mod status;
mod stream;
mod trust;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use leno_proto::discovery::{DeltaDiscoveryRequest, Node};
use leno_proto::{
    ADDRESS_TYPE, AUTHORIZATION_TYPE, ENDPOINT_POLICY_TYPE, REQUEST_DEFAULTS_TYPE, REQUEST_POLICY_TYPE, ROUTE_TYPE,
    TRUST_BUNDLE_TYPE,
};
use prost::Message;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use crate::{ChannelConfig, Error};

pub use handler::{Handler, Rejection, Update};
pub use node::NodeInfo;
pub(crate) use response::Response;
use response::name_of;
pub use status::{ConnectionState, Observer, Status, Termination};
pub(crate) use stream::Subscribed;

use kept::{Kept, Saved};
use stream::refuse_unknown;
use trust::Trust;

const METHOD: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
/// Largest response taken, as ztunnel: a mesh of several hundred thousand workloads.
const MAX_RESPONSE: usize = 200 << 20;
/// How long to wait for a first response. A server answers the first requests even if it has nothing to send. One that
/// hangs may still answer PINGs; this limit finds that.
const FIRST_RESPONSE: Duration = Duration::from_secs(60);
/// How long a control plane may take to send everything before a saved state counts. A proxy that starts waits no
/// longer.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_secs(15);

/// The types, in the order in which they are requested. It is ztunnel's, so that a server sees nothing new.
const TYPES: [&str; 2] = [ADDRESS_TYPE, AUTHORIZATION_TYPE];

/// The discovery client of a node proxy.
pub struct Client {
    config: ChannelConfig,
    node: Node,
    types: Vec<Subscribed>,
    status: watch::Sender<Status>,
    observer: Option<Arc<dyn Observer>>,
    trust: Option<Trust>,
    kept: Option<Kept>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The way a connection ended.
enum End {
    /// The server ended the connection in good order.
    Complete,
    Failed(Error),
}

impl Client {
    /// A client for workloads, services and policies.
    pub fn new(config: ChannelConfig, node: NodeInfo) -> Self {
        Self {
            config,
            node: node.to_node(),
            types: TYPES.map(Subscribed::new).into(),
            status: watch::Sender::new(Status { awaited: TYPES.to_vec(), ..Status::default() }),
            observer: None,
            trust: None,
            kept: None,
        }
    }

    /// Also subscribes to what a waypoint is told of HTTP. The client is not in sync before a control plane has answered.
    #[must_use]
    pub fn for_waypoint(mut self) -> Self {
        // Before everything else: a service must not be known before what is to happen to its requests.
        for type_url in [ROUTE_TYPE, REQUEST_DEFAULTS_TYPE, ENDPOINT_POLICY_TYPE, REQUEST_POLICY_TYPE] {
            self.types.insert(0, Subscribed::new(type_url));
            self.status.send_modify(|status| status.awaited.push(type_url));
        }
        self
    }

    /// Also subscribes to the mesh's root certificates, and passes them to `trust` whenever they change, as an encoded
    /// [`TrustBundle`](leno_proto::TrustBundle). If `trust` returns a reason to refuse them, the control plane is told.
    /// Otherwise they are acknowledged as trusted, so they must be in force when `trust` returns. A control plane that
    /// has no roots to send is fine as well.
    #[must_use]
    pub fn trusting(mut self, trust: impl FnMut(Bytes) -> Result<(), String> + Send + 'static) -> Self {
        self.trust = Some(Box::new(trust));
        self
    }

    /// Keeps the state in a file, and begins with what is there if the first attempt finds no control plane, or one that
    /// does not answer. One that refuses this proxy is there. The directory must exist, and nobody but this user may write to it.
    #[must_use]
    pub fn kept_in(mut self, path: PathBuf) -> Self {
        self.kept = Some(Kept::new(path));
        self
    }

    /// Reports events to `observer`.
    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// The state, as it changes.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Connects, applies what comes, and reconnects, for ever. Drop the future to stop it.
    pub async fn run(mut self, mut handler: impl Handler) {
        let mut failures = 0u32;
        let mut saved = self.kept.as_ref().and_then(Kept::saved);
        loop {
            let mut answered = false;
            let silent = saved.is_some().then(|| unanswered(self.status.subscribe()));
            let end = tokio::select! {
                end = self.connection(&mut handler, &mut answered) => end,
                Some(end) = async { Some(silent?.await) } => end,
            };
            if let Some(kept) = &self.kept {
                kept.connected(false);
            }
            if let Some(saved) = saved.take().filter(|_| !self.status.borrow().is_synced()) {
                match away(&end) {
                    Ok(reason) => self.begin_with(&saved, &reason, &mut handler),
                    Err(reason) => tracing::warn!(
                        %reason,
                        "the saved state of the mesh is not used, because this is no absence of the control plane: nothing is \
                         carried until the cause is mended and a control plane answers"
                    ),
                }
            }
            if answered {
                failures = 0;
            }
            failures = failures.saturating_add(1);
            let reason = reason(&end);
            let (termination, gentle, retryable) = match &end {
                End::Complete => (Termination::Complete, true, true),
                End::Failed(error) => {
                    let (termination, gentle) = classify(error);
                    (termination, gentle, error.is_retryable())
                }
            };
            if let Some(observer) = &self.observer {
                observer.terminated(termination);
            }
            // A control plane that restarts, or ends streams to shed load, is reconnected at once. One that never
            // answers is not.
            let pause = if answered && gentle { BACKOFF_MIN } else { backoff(failures) };
            if answered && gentle {
                tracing::info!(%reason, "discovery: connecting again");
            } else {
                tracing::warn!(%reason, attempts = failures, retry_in = ?pause, "discovery: not connected; the last known mesh stays in force");
            }
            self.status.send_modify(|status| {
                status.connection = ConnectionState::Disconnected { reason, retryable, attempts: failures };
            });
            let jitter = rand::random_range(0.5..1.0);
            tokio::time::sleep(pause.mul_f64(jitter)).await;
            self.status.send_modify(|status| status.connection = ConnectionState::Connecting);
        }
    }

    /// Begins with what the process before has left. What a control plane has sent so far, if it has not sent
    /// everything, makes way: a mixture of the two would be a mesh that never was.
    fn begin_with(&mut self, saved: &Saved, reason: &str, handler: &mut impl Handler) {
        if let Err(error) = self.replay(saved, handler) {
            for subscribed in &mut self.types {
                let all = subscribed.names();
                subscribed.remove(all, handler);
                *subscribed = Subscribed::new(subscribed.type_url());
            }
            self.status.send_modify(|status| status.synced.clear());
            tracing::warn!(%error, "the saved state of the mesh can't be read: until a control plane answers, nothing is carried");
            return;
        }
        for subscribed in &self.types {
            handler.synced(subscribed.type_url());
            self.status.send_modify(|status| {
                status.synced.insert(subscribed.type_url(), subscribed.held());
            });
        }
        if let Some(kept) = &mut self.kept {
            kept.go_on_from(saved.clone());
        }
        tracing::warn!(
            %reason,
            "no control plane answers: until one does, the mesh is taken to be as it was {} s ago, when it was saved",
            saved.written.elapsed().unwrap_or_default().as_secs()
        );
    }

    fn replay(&mut self, saved: &Saved, handler: &mut impl Handler) -> io::Result<()> {
        let mut sent = self.types.iter().map(Subscribed::names).collect::<Vec<_>>();
        for entry in saved.entries()? {
            let entry = entry?;
            if let Some(index) = self.types.iter().position(|known| known.type_url() == entry.type_url) {
                for resource in &entry.resources {
                    sent[index].remove(name_of(resource));
                }
                self.types[index].answer(entry, handler);
            } else if let Some(trust) = self.trust.as_mut().filter(|_| entry.type_url == TRUST_BUNDLE_TYPE) {
                trust::answer(entry, trust);
            }
        }
        for (subscribed, unknown) in self.types.iter_mut().zip(sent) {
            subscribed.remove(unknown, handler);
        }
        Ok(())
    }

    async fn connection(&mut self, handler: &mut dyn Handler, answered: &mut bool) -> End {
        match self.stream(handler, answered).await {
            Ok(()) => End::Complete,
            Err(error) => End::Failed(error),
        }
    }

    async fn stream(&mut self, handler: &mut dyn Handler, answered: &mut bool) -> Result<(), Error> {
        let channel = self.config.connect().await?;
        let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(MAX_RESPONSE);
        // One answer per response is all that is ever queued, and it is sent before the next
        // response is read.
        let (requests, queue) = mpsc::channel(self.types.len() + 2);
        for subscribed in &mut self.types {
            let first = subscribed.first_request(self.node.clone());
            send(&requests, first).await?;
        }
        if self.trust.is_some() {
            let (node, type_url) = (Some(self.node.clone()), TRUST_BUNDLE_TYPE.to_owned());
            send(&requests, DeltaDiscoveryRequest { node, type_url, ..Default::default() }).await?;
        }
        let mut request = tonic::Request::new(ReceiverStream::new(queue));
        self.config.identify(request.metadata_mut())?;
        let config = &self.config;
        let failed = |status: tonic::Status| config.status_error(&status);
        let first = async {
            let not_ready = |error| tonic::Status::unknown(format!("Service was not ready: {error}"));
            client.ready().await.map_err(not_ready)?;
            // The generated client would decode all of a response at once.
            let codec = tonic_prost::ProstCodec::<DeltaDiscoveryRequest, Response>::default();
            let path = http::uri::PathAndQuery::from_static(METHOD);
            let mut responses = client.streaming(request, path, codec).await?.into_inner();
            let first = responses.message().await?;
            Ok((responses, first))
        };
        let (mut responses, mut next) = match tokio::time::timeout(FIRST_RESPONSE, first).await {
            Err(_) => {
                return Err(Error::Status {
                    code: Code::DeadlineExceeded,
                    message: format!("it did not answer within {} s", FIRST_RESPONSE.as_secs()),
                });
            }
            Ok(first) => first.map_err(failed)?,
        };
        while let Some(response) = next {
            if !std::mem::replace(answered, true) {
                self.status.send_modify(|status| {
                    status.connection = ConnectionState::Connected { since: SystemTime::now() };
                });
                if let Some(kept) = &self.kept {
                    kept.connected(true);
                }
            }
            if let Some(observer) = &self.observer {
                observer.message(&response.type_url, response.encoded_len(), response.resources.len());
            }
            if response.type_url == TRUST_BUNDLE_TYPE
                && let Some(trust) = &mut self.trust
            {
                let entry = self.kept.is_some().then(|| response.clone());
                let answer = trust::answer(response, trust);
                if let (Some(kept), Some(entry), None) = (&mut self.kept, entry, &answer.error_detail) {
                    kept.applied(entry);
                }
                send(&requests, answer).await?;
                next = responses.message().await.map_err(failed)?;
                continue;
            }
            let Some(subscribed) = self.types.iter_mut().find(|known| known.type_url() == response.type_url) else {
                tracing::warn!(type_url = %response.type_url, "discovery: a response for a type nobody asked for");
                send(&requests, refuse_unknown(response)).await?;
                next = responses.message().await.map_err(failed)?;
                continue;
            };
            let entry = self.kept.is_some().then(|| response.clone());
            let (answer, outcome) = subscribed.answer(response, handler);
            if let (Some(kept), Some(mut entry)) = (&mut self.kept, entry) {
                entry.removed_resources.extend(outcome.vanished.iter().map(ToString::to_string));
                kept.applied(entry);
            }
            let (type_url, held) = (subscribed.type_url(), subscribed.held());
            if let Some(refused) = &answer.error_detail {
                tracing::warn!(type_url, rejected = outcome.rejected, reason = %refused.message, "discovery: refused resources");
            } else {
                tracing::debug!(
                    type_url,
                    resources = outcome.resources,
                    removed = outcome.removed,
                    "discovery: applied"
                );
            }
            let refused = answer.error_detail.is_some();
            send(&requests, answer).await?;
            if outcome.first {
                handler.synced(type_url);
            }
            self.status.send_modify(|status| {
                status.synced.insert(type_url, held);
                status.nacks += u64::from(refused);
            });
            if let Some(kept) = &mut self.kept
                && self.status.borrow().is_synced()
            {
                kept.complete();
            }
            next = responses.message().await.map_err(failed)?;
        }
        Ok(())
    }
}

/// Returns when no control plane has sent everything within [`FIRST_ANSWER`].
async fn unanswered(mut status: watch::Receiver<Status>) -> End {
    if tokio::time::timeout(FIRST_ANSWER, status.wait_for(Status::is_synced)).await.is_ok() {
        std::future::pending::<()>().await;
    }
    End::Failed(Error::Status {
        code: Code::DeadlineExceeded,
        message: format!("it did not send everything within {} s", FIRST_ANSWER.as_secs()),
    })
}

/// Whether a connection ended as one does to a control plane that is away: then a saved state counts. The reason, in words.
///
/// A control plane that refuses is not away: it may have good cause to tell this proxy nothing. Neither is one that can't be
/// asked because a setting or this proxy's own token is wrong.
fn away(end: &End) -> Result<String, String> {
    match end {
        End::Complete => Ok("the control plane closed the stream before it had sent everything".to_owned()),
        End::Failed(Error::Address { .. } | Error::Header { .. } | Error::Token { .. }) => Err(reason(end)),
        End::Failed(error @ Error::Status { .. }) if !error.is_retryable() => Err(reason(end)),
        End::Failed(_) => Ok(reason(end)),
    }
}

fn reason(end: &End) -> String {
    match end {
        End::Complete => "the control plane closed the stream".to_owned(),
        End::Failed(error) => error.to_string(),
    }
}

/// Queues a request. If the stream is gone, the next read returns the reason. This error is used only if it doesn't.
async fn send(requests: &mpsc::Sender<DeltaDiscoveryRequest>, request: DeltaDiscoveryRequest) -> Result<(), Error> {
    requests.send(request).await.map_err(|_| Error::Status {
        code: Code::Cancelled,
        message: "the stream ended while an answer was due".to_owned(),
    })
}

/// The metric's reason for an error, and whether the error looks like a control plane that restarts.
fn classify(error: &Error) -> (Termination, bool) {
    match error {
        Error::Connect { .. } | Error::ConnectTimeout { .. } | Error::Tls { .. } => {
            (Termination::ConnectionError, false)
        }
        Error::Transport { .. } => (Termination::Reconnect, true),
        Error::Status {
            code: Code::Unknown | Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable, ..
        } => (Termination::Reconnect, true),
        _ => (Termination::GrpcError, false),
    }
}

fn backoff(failures: u32) -> Duration {
    BACKOFF_MIN.saturating_mul(1u32 << failures.saturating_sub(1).min(16)).min(BACKOFF_MAX)
}
