//! The agent's end: knows the node's pods and tells every proxy that connects.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leno_telemetry::accepting;
use parking_lot::Mutex;
use socket2::Socket;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::wire::{self, Channel, Request};
use super::{Error, PodInfo, ProtocolError};
use crate::netns::NetworkNamespace;

/// The agent's end of the protocol. Clones share one socket, which is removed with the last of them.
#[derive(Debug, Clone)]
pub struct Agent {
    state: Arc<State>,
    listening: Arc<Listening>,
}

#[derive(Debug)]
struct Listening {
    path: PathBuf,
    task: AbortHandle,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

#[derive(Debug)]
struct State {
    shared: Mutex<Shared>,
    /// How many proxies have taken over all pods.
    synced: watch::Sender<usize>,
    /// How many proxies are there at all.
    connected: watch::Sender<usize>,
    /// How many have hung up.
    departed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Shared {
    pods: BTreeMap<String, Pod>,
    /// In order of arrival.
    proxies: Vec<Proxy>,
    next_proxy: u64,
}

#[derive(Debug, Clone)]
enum Pod {
    /// Known in full.
    Known(PodInfo, NetworkNamespace),
    /// Known to exist, but its namespace hasn't been found yet.
    Expected,
}

#[derive(Debug)]
struct Proxy {
    id: u64,
    commands: mpsc::UnboundedSender<Command>,
}

/// A request for one proxy. The sender of an answer that can't come any more is dropped.
#[derive(Debug)]
struct Command {
    request: Request,
    namespace: Option<NetworkNamespace>,
    answer: oneshot::Sender<Result<(), String>>,
}

impl Agent {
    /// Listens for proxies at `path`. A socket file that a dead agent left there is replaced. Only processes of the same user
    /// (and root) may connect, because they are handed all pods' namespaces.
    ///
    /// # Errors
    /// When another agent is listening there or the path can't be used.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn bind(path: impl Into<PathBuf>) -> Result<Self, Error> {
        Self::bind_knowing(path, [], [])
    }

    /// As [`Self::bind`], and knows these pods before a proxy can ask: a proxy stops serving those that it is not told of.
    /// `expected` are the uids of pods whose namespaces are yet to be found ([`Self::expect`]).
    ///
    /// # Errors
    /// As [`Self::bind`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn bind_knowing(
        path: impl Into<PathBuf>,
        known: impl IntoIterator<Item = (PodInfo, NetworkNamespace)>,
        expected: impl IntoIterator<Item = String>,
    ) -> Result<Self, Error> {
        let path = path.into();
        let listener = wire::listen(&path).map_err(|source| Error::Listen { path: path.clone(), source })?;
        let mut pods: BTreeMap<_, _> = expected.into_iter().map(|uid| (uid, Pod::Expected)).collect();
        pods.extend(known.into_iter().map(|(pod, namespace)| (pod.uid.clone(), Pod::Known(pod, namespace))));
        let state = Arc::new(State {
            shared: Mutex::new(Shared { pods, ..Shared::default() }),
            synced: watch::Sender::new(0),
            connected: watch::Sender::new(0),
            departed: watch::Sender::new(0),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&state))).abort_handle();
        Ok(Self { state, listening: Arc::new(Listening { path, task }) })
    }

    /// The address where proxies connect.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.listening.path
    }

    /// Hands a pod over to the proxy that connected last, waits until it serves the pod, and remembers it for every proxy
    /// that connects later. Adding a pod again with the same namespace is harmless. `wait` bounds how long a proxy is waited
    /// for; after it has connected, its answer is bounded by the protocol.
    ///
    /// # Errors
    /// [`Error::Refused`] with the proxy's words, or [`Error::NoProxy`]. The pod stays known and is offered again to the next
    /// proxy; [`Self::remove`] ends that.
    pub async fn add(&self, pod: PodInfo, namespace: NetworkNamespace, wait: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + wait;
        self.state.shared.lock().pods.insert(pod.uid.clone(), Pod::Known(pod.clone(), namespace.clone()));
        let mut connected = self.state.connected.subscribe();
        loop {
            let newest = self.state.shared.lock().proxies.last().map(|proxy| proxy.commands.clone());
            if let Some(commands) = newest {
                let request = Request::Add(pod.clone());
                if let Some(outcome) = ask(&commands, request, Some(namespace.clone())).await {
                    return outcome.map_err(|reason| Error::Refused { uid: pod.uid, reason });
                }
                // It hung up before it answered.
            }
            let another = async { connected.wait_for(|count| *count > 0).await.is_ok() };
            let found = tokio::time::timeout_at(deadline, another).await.unwrap_or(false);
            if !found || Instant::now() >= deadline {
                return Err(Error::NoProxy { waited: wait });
            }
            // The proxy that hung up may still be listed for a moment; let its task take it off the list.
            tokio::task::yield_now().await;
        }
    }

    /// Says that a pod exists whose namespace isn't known yet, as after a restart of the agent: a proxy that already serves
    /// it goes on doing so. Does nothing for a pod that was added.
    pub fn expect(&self, uid: impl Into<String>) {
        self.state.shared.lock().pods.entry(uid.into()).or_insert(Pod::Expected);
    }

    /// Tells every proxy to stop serving a pod, and waits for their answers. A pod that isn't known is not an error.
    pub async fn remove(&self, uid: &str) {
        let proxies: Vec<_> = {
            let mut shared = self.state.shared.lock();
            shared.pods.remove(uid);
            shared.proxies.iter().map(|proxy| proxy.commands.clone()).collect()
        };
        // All are told before any is waited for.
        let answers: Vec<_> =
            proxies.iter().filter_map(|commands| send(commands, Request::Delete(uid.into()), None)).collect();
        for answer in answers {
            if let Ok(Err(reason)) = answer.await {
                tracing::warn!(uid, reason, "a node proxy failed to stop serving a pod");
            }
        }
    }

    /// The pods that were added, ordered by uid.
    #[must_use]
    pub fn pods(&self) -> Vec<PodInfo> {
        let shared = self.state.shared.lock();
        shared
            .pods
            .values()
            .filter_map(|pod| match pod {
                Pod::Known(info, _) => Some(info.clone()),
                Pod::Expected => None,
            })
            .collect()
    }

    /// How many proxies have taken over all pods. Zero means that new pods can't join the mesh now.
    #[must_use]
    pub fn proxies(&self) -> watch::Receiver<usize> {
        self.state.synced.subscribe()
    }

    /// How many proxies have hung up so far, as one does that begins to drain, or has died. Those that were dropped because
    /// they did not answer don't count.
    #[must_use]
    pub fn departures(&self) -> watch::Receiver<u64> {
        self.state.departed.subscribe()
    }
}

/// Queues a request; `None` when the proxy is gone.
fn send(
    commands: &mpsc::UnboundedSender<Command>,
    request: Request,
    namespace: Option<NetworkNamespace>,
) -> Option<oneshot::Receiver<Result<(), String>>> {
    let (answer, answered) = oneshot::channel();
    commands.send(Command { request, namespace, answer }).ok().map(|()| answered)
}

/// Asks and waits; `None` when the proxy is gone.
async fn ask(
    commands: &mpsc::UnboundedSender<Command>,
    request: Request,
    namespace: Option<NetworkNamespace>,
) -> Option<Result<(), String>> {
    send(commands, request, namespace)?.await.ok()
}

async fn accept(listener: AsyncFd<Socket>, state: Arc<State>) {
    let mut proxies = JoinSet::new();
    loop {
        tokio::select! {
            accepted = wire::accept(&listener) => match accepted {
                Ok(channel) => {
                    proxies.spawn(serve(channel, Arc::clone(&state)));
                }
                Err(error) => {
                    if let Some(pause) = accepting::pause_after(&error) {
                        tokio::time::sleep(pause).await;
                    }
                }
            },
            Some(_) = proxies.join_next() => {}
        }
    }
}

/// Talks to one proxy until it goes away.
async fn serve(channel: Channel, state: Arc<State>) {
    if let Err(error) = greet(&channel).await {
        tracing::warn!(%error, "a node proxy connected but didn't say hello");
        return;
    }
    let (mut listed, commands, pods) = Listed::new(&state);
    tracing::info!(proxy = listed.id, pods = pods.len(), "node proxy connected");
    let ended = converse(&channel, &mut listed, commands, pods).await;
    let id = listed.id;
    drop(listed);
    if matches!(ended, Ok(()) | Err(Error::Closed | Error::Io(_))) {
        state.departed.send_modify(|count| *count += 1);
    }
    match ended {
        Ok(()) => tracing::info!(proxy = id, "node proxy disconnected"),
        Err(error) => tracing::warn!(proxy = id, %error, "node proxy dropped; it will reconnect"),
    }
}

async fn greet(channel: &Channel) -> Result<(), Error> {
    let packet = channel.receive_soon().await?;
    Ok(wire::decode_hello(&packet.bytes)?)
}

async fn converse(
    channel: &Channel,
    listed: &mut Listed,
    mut commands: mpsc::UnboundedReceiver<Command>,
    pods: BTreeMap<String, Pod>,
) -> Result<(), Error> {
    for (uid, pod) in pods {
        let (request, namespace) = match pod {
            Pod::Known(info, namespace) => (Request::Add(info), Some(namespace)),
            Pod::Expected => (Request::Keep(uid.clone()), None),
        };
        // One pod that can't be served must not keep the others from being served.
        match exchange(channel, request, namespace.as_ref()).await {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => tracing::warn!(uid, reason, "a node proxy refused a pod; it will retry"),
            Err(error @ Error::Protocol(ProtocolError::TooLong(_))) => {
                tracing::error!(uid, %error, "cannot announce a pod")
            }
            Err(error) => return Err(error),
        }
    }
    if let Err(reason) = exchange(channel, Request::SnapshotSent, None).await? {
        tracing::warn!(reason, "a node proxy failed to reconcile its pods");
    }
    listed.set_synced();
    loop {
        tokio::select! {
            // A proxy never speaks unprompted, so anything that arrives is its end or a fault.
            unprompted = channel.receive() => {
                return match unprompted? {
                    None => Ok(()),
                    Some(_) => Err(ProtocolError::Unexpected("an unprompted message of the proxy").into()),
                };
            }
            command = commands.recv() => {
                let Some(Command { request, namespace, answer }) = command else { return Ok(()) };
                match exchange(channel, request, namespace.as_ref()).await {
                    // The caller may have given up waiting.
                    Ok(outcome) => drop(answer.send(outcome)),
                    Err(error @ Error::Protocol(ProtocolError::TooLong(_))) => drop(answer.send(Err(error.to_string()))),
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// Sends a request and waits for the answer.
async fn exchange(
    channel: &Channel,
    request: Request,
    namespace: Option<&NetworkNamespace>,
) -> Result<Result<(), String>, Error> {
    channel.send(&wire::request(request), namespace.map(AsFd::as_fd)).await?;
    let packet = channel.receive_soon().await?;
    Ok(wire::decode_response(&packet.bytes)?)
}

/// A proxy's entry in the list, which goes away with it.
struct Listed {
    state: Arc<State>,
    id: u64,
    synced: bool,
}

impl Listed {
    /// Enters a proxy and takes the pods that it must be told about. Both happen under one lock: a pod added or removed later
    /// reaches the proxy as a command.
    fn new(state: &Arc<State>) -> (Self, mpsc::UnboundedReceiver<Command>, BTreeMap<String, Pod>) {
        let (sender, commands) = mpsc::unbounded_channel();
        let (id, pods) = {
            let mut shared = state.shared.lock();
            let id = shared.next_proxy;
            shared.next_proxy += 1;
            shared.proxies.push(Proxy { id, commands: sender });
            (id, shared.pods.clone())
        };
        state.connected.send_modify(|count| *count += 1);
        (Self { state: Arc::clone(state), id, synced: false }, commands, pods)
    }

    fn set_synced(&mut self) {
        self.synced = true;
        self.state.synced.send_modify(|count| *count += 1);
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.state.shared.lock().proxies.retain(|proxy| proxy.id != self.id);
        self.state.connected.send_modify(|count| *count -= 1);
        if self.synced {
            self.state.synced.send_modify(|count| *count -= 1);
        }
    }
}
