//! The proxy's end: learns from the agent which pods to serve.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::wire::{self, Channel, Packet, Request};
use super::{Error, PodInfo, ProtocolError};
use crate::netns::NetworkNamespace;

/// Pause before the first attempt to reconnect, and the longest one; it doubles in between. ztunnel's values.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(15));
/// How often pods that couldn't be served are tried again. ztunnel's value.
const RETRY: Duration = Duration::from_secs(5);
/// Time for starting to serve a pod: less than the agent waits, so that it hears a reason instead of nothing.
const HANDLER_TIMEOUT: Duration = Duration::from_secs(4);

/// What a proxy does about pods. Calls come one at a time, in the agent's order.
pub trait PodHandler: Send + Sync + 'static {
    /// Starts serving a pod; the error's text goes to the agent, and the pod is tried again every 5 s.
    ///
    /// It may be asked for a pod that it already serves: with the same [`NetworkNamespace::id`] that is a success, with another
    /// one the old pod is to be replaced. The future is dropped when it takes more than 4 s, which counts as an error.
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
    pub pending: HashMap<String, String>,
}

/// The proxy's end of the protocol.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    status: watch::Sender<ClientStatus>,
}

impl Client {
    /// A client for the agent's socket at `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), status: watch::Sender::default() }
    }

    /// How things stand. One pod's trouble shows in `pending` and is no reason to call the whole proxy unready.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<ClientStatus> {
        self.status.subscribe()
    }

    /// Stays connected to the agent for ever, or until the future is dropped, and passes its requests on to `handler`.
    pub async fn run(&self, handler: &impl PodHandler) -> Infallible {
        let mut pause = BACKOFF.0;
        loop {
            let mut session = Session { client: self, handler, snapshot: Some(HashSet::new()), pending: HashMap::new() };
            let error = match session.run().await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            // The agent was fine for a while; this is a new trouble.
            if session.snapshot.is_none() {
                pause = BACKOFF.0;
            }
            tracing::warn!(path = %self.path.display(), %error, ?pause, "lost the node agent; pods are still served");
            self.status.send_modify(|status| {
                status.synced = false;
                status.error = Some(error.to_string());
            });
            sleep(pause).await;
            pause = (pause * 2).min(BACKOFF.1);
        }
    }
}

/// One connection to the agent.
struct Session<'a, H> {
    client: &'a Client,
    handler: &'a H,
    /// The pods named so far; `None` once all have been.
    snapshot: Option<HashSet<String>>,
    pending: HashMap<String, (PodInfo, NetworkNamespace, String)>,
}

impl<H: PodHandler> Session<'_, H> {
    async fn run(&mut self) -> Result<Infallible, Error> {
        let channel = Channel::connect(&self.client.path)?;
        channel.send(&wire::hello(), None).await?;
        self.client.status.send_modify(|status| status.error = None);
        let mut retry = interval(RETRY);
        retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                packet = channel.receive() => {
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
                _ = retry.tick(), if !self.pending.is_empty() => self.retry().await,
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
                    Ok(namespace) => Ok(self.add(pod, namespace).await),
                    Err(error) => Ok(Err(error.to_string())),
                }
            }
            Request::Keep(uid) => {
                let uids = self.snapshot.as_mut().ok_or(ProtocolError::Unexpected("KeepWorkload after the snapshot"))?;
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
                self.handler.retain(uids).await;
                self.publish();
                Ok(Ok(()))
            }
        }
    }

    async fn add(&mut self, pod: PodInfo, namespace: NetworkNamespace) -> Result<(), String> {
        let started = timeout(HANDLER_TIMEOUT, self.handler.add(pod.clone(), namespace.clone())).await;
        let outcome = started.unwrap_or_else(|_| Err(format!("the proxy took more than {HANDLER_TIMEOUT:?} to start")));
        match &outcome {
            Ok(()) => drop(self.pending.remove(&pod.uid)),
            Err(reason) => {
                tracing::warn!(uid = pod.uid, pod = pod.name, namespace = pod.namespace, reason, "cannot serve a pod yet");
                self.pending.insert(pod.uid.clone(), (pod, namespace, reason.clone()));
            }
        }
        self.publish();
        outcome
    }

    async fn retry(&mut self) {
        for (pod, namespace, _) in self.pending.values().cloned().collect::<Vec<_>>() {
            // The outcome is in the status; the agent has had its answer.
            let _ = self.add(pod, namespace).await;
        }
    }

    fn publish(&self) {
        self.client.status.send_modify(|status| {
            status.synced = self.snapshot.is_none();
            status.pending =
                self.pending.iter().map(|(uid, (_, _, reason))| (uid.clone(), reason.clone())).collect();
        });
    }
}
