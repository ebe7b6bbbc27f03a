//! The proxy's end: learns from the agent which pods to serve.

use std::collections::{BTreeMap, HashSet};
use std::convert::Infallible;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::wire::{self, Channel, Packet, Request};
use super::{Error, PodInfo, ProtocolError};
use crate::netns::NetworkNamespace;

/// Pause before the first attempt to reconnect, and the longest one; it doubles in between. ztunnel's values.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(15));
/// How often pods that couldn't be served are tried again. ztunnel's value.
const RETRY: Duration = Duration::from_secs(5);
/// Time for starting to serve a pod, and for trying one again. Both together stay below the 5 s that the agent waits for an
/// answer, so that even behind a retry that hangs it hears a reason instead of nothing.
const HANDLER_TIMEOUT: Duration = Duration::from_millis(3500);
const RETRY_TIMEOUT: Duration = Duration::from_secs(1);

/// Handles a proxy's pods. Calls come one at a time, in the agent's order.
pub trait PodHandler: Send + Sync + 'static {
    /// Starts serving a pod; the error's text goes to the agent, and the pod is tried again every 5 s.
    ///
    /// It may be called for a pod that is served already. With the same [`NetworkNamespace::id`] that is a success;
    /// with another one, the old pod must be replaced. The future is dropped if it takes more than 3.5 s (1 s for a
    /// retry), which counts as an error.
    fn add(&self, pod: PodInfo, namespace: NetworkNamespace) -> impl Future<Output = Result<(), String>> + Send;

    /// Stops serving a pod, if it is served.
    fn remove(&self, uid: &str) -> impl Future<Output = ()> + Send;

    /// Stops serving all pods but these. Called once per connection to the agent, when it has named every pod.
    fn retain(&self, uids: HashSet<String>) -> impl Future<Output = ()> + Send;
}

/// How things stand with the agent. Pods are served in any case; only news about them needs the agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientStatus {
    /// Whether the agent has named every pod on the present connection.
    pub synced: bool,
    /// Why there is no connection, while there is none.
    pub error: Option<String>,
    /// Pods that couldn't be served so far, by uid, and why.
    pub pending: BTreeMap<String, String>,
}

/// The proxy's end of the protocol.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    retry: Duration,
    status: watch::Sender<ClientStatus>,
}

impl Client {
    /// A client for the agent's socket at `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), retry: RETRY, status: watch::Sender::default() }
    }

    /// Changes how often a pod that couldn't be served is tried again; 5 s otherwise.
    #[must_use]
    pub fn retry_every(mut self, period: Duration) -> Self {
        self.retry = period;
        self
    }

    /// How things stand. One pod's trouble shows in `pending` and is no reason to call the whole proxy unready.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<ClientStatus> {
        self.status.subscribe()
    }

    /// Stays connected to the agent for ever, or until the future is dropped, and passes its requests on to `handler`.
    pub async fn run(&self, handler: &impl PodHandler) -> Infallible {
        let mut session = Session { client: self, handler, snapshot: None, pending: BTreeMap::new() };
        let mut pause = BACKOFF.0;
        loop {
            session.snapshot = Some(HashSet::new());
            let error = match session.converse().await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            // The agent was fine for a while; this is a new trouble.
            if session.snapshot.is_none() {
                pause = BACKOFF.0;
            }
            tracing::warn!(path = %self.path.display(), %error, ?pause, "no node agent; pods known so far are served");
            self.status.send_modify(|status| {
                status.synced = false;
                status.error = Some(error.to_string());
            });
            let over = Instant::now() + pause;
            while Instant::now() < over {
                tokio::select! {
                    () = sleep_until(over) => {}
                    () = session.retry_due() => session.retry().await,
                }
            }
            pause = (pause * 2).min(BACKOFF.1);
        }
    }
}

/// A pod that couldn't be served yet.
struct Pending {
    pod: PodInfo,
    namespace: NetworkNamespace,
    reason: String,
    due: Instant,
}

/// The state received from the agent.
struct Session<'a, H> {
    client: &'a Client,
    handler: &'a H,
    /// The pods named so far on this connection; `None` once all have been.
    snapshot: Option<HashSet<String>>,
    /// Outlives connections: a pod must not wait for the agent's return to be tried again.
    pending: BTreeMap<String, Pending>,
}

impl<H: PodHandler> Session<'_, H> {
    /// Talks to the agent until something goes wrong.
    async fn converse(&mut self) -> Result<Infallible, Error> {
        let channel = Channel::connect(&self.client.path)?;
        channel.send(&wire::hello(), None).await?;
        self.client.status.send_modify(|status| status.error = None);
        loop {
            let packet = tokio::select! {
                packet = channel.receive() => packet,
                () = self.retry_due() => {
                    self.retry().await;
                    continue;
                }
            };
            let outcome = match packet {
                Ok(Some(packet)) => self.handle(packet).await,
                Ok(None) => return Err(Error::Closed),
                Err(error) => Err(error),
            };
            match outcome {
                Ok(answer) => channel.send(&wire::response(answer), None).await?,
                Err(error) => {
                    // The agent should learn why it is being left.
                    let _ = channel.send(&wire::response(Err(error.to_string())), None).await;
                    return Err(error);
                }
            }
        }
    }

    /// Does what a packet asks. The outer error ends the connection; the inner one is the answer.
    async fn handle(&mut self, packet: Packet) -> Result<Result<(), String>, Error> {
        let Packet { bytes, descriptors } = packet;
        match wire::decode_request(&bytes, descriptors.len())? {
            Request::Add(pod) => {
                let [descriptor] = <[_; 1]>::try_from(descriptors)
                    .map_err(|_| ProtocolError::Missing { message: "AddWorkload", field: "descriptor" })?;
                if let Some(uids) = &mut self.snapshot {
                    uids.insert(pod.uid.clone());
                }
                match NetworkNamespace::from_fd(descriptor) {
                    Ok(namespace) => Ok(self.add(pod, namespace, HANDLER_TIMEOUT).await),
                    Err(error) => Ok(Err(error.to_string())),
                }
            }
            Request::Keep(uid) => {
                let uids =
                    self.snapshot.as_mut().ok_or(ProtocolError::Unexpected("KeepWorkload after the snapshot"))?;
                uids.insert(uid);
                Ok(Ok(()))
            }
            Request::Delete(uid) => {
                if let Some(uids) = &mut self.snapshot {
                    uids.remove(&uid);
                }
                self.pending.remove(&uid);
                self.publish();
                self.handler.remove(&uid).await;
                Ok(Ok(()))
            }
            Request::SnapshotSent => {
                let uids = self.snapshot.take().ok_or(ProtocolError::Unexpected("a second SnapshotSent"))?;
                self.pending.retain(|uid, _| uids.contains(uid));
                self.handler.retain(uids).await;
                self.publish();
                Ok(Ok(()))
            }
        }
    }

    async fn add(&mut self, pod: PodInfo, namespace: NetworkNamespace, patience: Duration) -> Result<(), String> {
        let started = timeout(patience, self.handler.add(pod.clone(), namespace.clone())).await;
        let outcome = started.unwrap_or_else(|_| Err(format!("the proxy took more than {patience:?} to start")));
        match &outcome {
            Ok(()) => drop(self.pending.remove(&pod.uid)),
            Err(reason) => {
                let PodInfo { uid, name, namespace: pod_namespace, .. } = &pod;
                tracing::warn!(uid, name, namespace = pod_namespace, reason, "cannot serve a pod yet; will retry");
                let due = Instant::now() + self.client.retry;
                self.pending.insert(uid.clone(), Pending { reason: reason.clone(), pod, namespace, due });
            }
        }
        self.publish();
        outcome
    }

    /// Waits until a pod must be tried again; for ever if there is none.
    async fn retry_due(&self) {
        match self.pending.values().map(|pending| pending.due).min() {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Tries the one pod that has waited longest.
    async fn retry(&mut self) {
        let Some(uid) = self.pending.iter().min_by_key(|(_, pending)| pending.due).map(|(uid, _)| uid.clone()) else {
            return;
        };
        if let Some(Pending { pod, namespace, .. }) = self.pending.remove(&uid) {
            // The outcome is in the status; the agent has had its answer.
            let _ = self.add(pod, namespace, RETRY_TIMEOUT).await;
        }
    }

    fn publish(&self) {
        self.client.status.send_modify(|status| {
            status.synced = self.snapshot.is_none();
            status.pending = self.pending.iter().map(|(uid, pending)| (uid.clone(), pending.reason.clone())).collect();
        });
    }
}
