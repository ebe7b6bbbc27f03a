//! One enrolled pod: the state that its connections share.

pub(crate) mod connections;
mod phase;
#[cfg(test)]
mod policy_order_tests;
mod untold;

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use leno_capture::zds::PodInfo;
use leno_capture::{NetworkNamespace, ShortPath};
use leno_model::{Mesh, Workload, WorkloadUid};
use leno_policy::NotUnderstood;
use leno_proxy::Listeners;
use leno_proxy::peers::headers;
use leno_proxy::peers::{Silent, Unproven};
use leno_tunnel::timers;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::Instant;

use self::connections::Connections;
use self::phase::{Event, Phases};
use crate::context::Context;
use crate::failure::Failure;

/// Time for closing and resetting connections, when there is nothing more to wait for.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);

/// How long a pod that left still accepts what the rules led here before they went: a handshake may have begun before
/// and end on the far side of the world. Its peers were told earlier.
const STRAGGLERS: Duration = Duration::from_secs(1);

/// How long tunnels of a pod that left the mesh may live. Longer than any drain.
const UNHURRIED: Duration = Duration::from_secs(30 * 24 * 3600);

/// Properties of a pod's namespace.
pub(crate) struct Footing {
    /// Whether the kernel lets us use the caller's address towards the program.
    pub(crate) spoofs_source: bool,
    /// Congestion control of the pod's connections on short paths.
    pub(crate) short_path: ShortPath,
    /// Where the pod's connections are accepted.
    pub(crate) listeners: Listeners,
}

/// What a pod lacks that nobody has told of.
#[derive(Clone, Copy)]
enum Lack {
    /// What guards it, for those who come to it.
    Policies,
    /// What proves who it is, for what it opens.
    Certificate,
}

/// One enrolled pod.
pub(crate) struct Pod {
    info: PodInfo,
    netns: NetworkNamespace,
    context: Arc<Context>,
    connections: Arc<Connections>,
    phases: Phases,
    unproven: Unproven,
    /// Endpoints that don't answer this pod.
    silent: Silent,
    footing: Footing,
    /// The UID of this pod's workload, so that it need not be searched again.
    uid: Mutex<Option<WorkloadUid>>,
    /// What stands for its workload towards others while nobody can tell of it.
    stand_in: Mutex<Option<Arc<Workload>>>,
    /// The latest description for peers, with the workload it was made from.
    baggage: Mutex<Option<(Arc<Workload>, Option<HeaderValue>)>>,
}

impl Pod {
    /// A pod without listeners yet.
    pub(crate) fn new(info: PodInfo, netns: NetworkNamespace, context: Arc<Context>, footing: Footing) -> Arc<Self> {
        let name = format!("{}/{}", info.namespace, info.name);
        Arc::new(Self {
            info,
            netns,
            connections: Connections::new(context.shares.join(name, context.config.max_sockets_per_pod)),
            phases: Phases::default(),
            unproven: Unproven::new(context.core.config.max_unproven_peers, &context.core.unproven),
            silent: Silent::default(),
            footing,
            uid: Mutex::new(None),
            stand_in: Mutex::new(None),
            baggage: Mutex::new(None),
            context,
        })
    }

    pub(crate) fn info(&self) -> &PodInfo {
        &self.info
    }

    /// `namespace/name`, for logs.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.info.namespace, self.info.name)
    }

    pub(crate) fn netns(&self) -> &NetworkNamespace {
        &self.netns
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// Where it accepts connections.
    pub(crate) fn listeners(&self) -> &Listeners {
        &self.footing.listeners
    }

    /// Whether the pod left the mesh.
    pub(crate) fn has_left(&self) -> bool {
        self.phases.now().has_left()
    }

    /// Congestion control of this pod's connections on short paths.
    pub(crate) fn short_path(&self) -> &ShortPath {
        &self.footing.short_path
    }

    /// Corrects the congestion control of a tunnel whose path turned out to be long.
    pub(crate) fn verify_short_path(&self, stream: &TcpStream) {
        if let Err(error) = self.footing.short_path.verify(stream) {
            tracing::debug!(%error, "a tunnel's congestion control stays as it is");
        }
    }

    pub(crate) fn spoofs_source(&self) -> bool {
        self.footing.spoofs_source
    }

    /// The current mesh and this pod's workload in it. Waits for discovery to deliver the workload, because a pod may
    /// open connections before that.
    pub(crate) async fn workload(&self) -> Result<(Arc<Mesh>, Arc<Workload>), Failure> {
        self.known(|| self.workload_now(), Lack::Policies).await
    }

    /// As [`Self::workload`], for what the pod itself opens and asks for: while no control plane can be reached that could
    /// tell of it, it goes by its service account, if the node has another pod of that.
    pub(crate) async fn caller(&self) -> Result<(Arc<Mesh>, Arc<Workload>), Failure> {
        self.known(|| self.workload_now().or_else(|| self.stand_in_now()), Lack::Certificate).await
    }

    async fn known(
        &self,
        now: impl Fn() -> Option<(Arc<Mesh>, Arc<Workload>)>,
        lack: Lack,
    ) -> Result<(Arc<Mesh>, Arc<Workload>), Failure> {
        let found = match now() {
            Some(found) => found,
            None => self.known_soon(now, lack).await?,
        };
        // It is unknown what applies to such a pod, so it can't make or accept connections.
        NotUnderstood::workload(&found.1).map_err(|error| Failure::NotUnderstood(Arc::new(error)))?;
        Ok(found)
    }

    async fn known_soon(
        &self,
        now: impl Fn() -> Option<(Arc<Mesh>, Arc<Workload>)>,
        lack: Lack,
    ) -> Result<(Arc<Mesh>, Arc<Workload>), Failure> {
        let state = &self.context.core.state;
        let wait = self.context.core.config.workload_timeout;
        let mut changes = state.subscribe();
        let found = timers::timeout(wait, async {
            loop {
                if let Some(found) = now() {
                    return Some(found);
                }
                changes.changed().await.ok()?;
            }
        });
        found.await.ok().flatten().ok_or_else(|| match (state.is_away() && state.is_complete(), lack) {
            (false, _) => Failure::UnknownWorkload { pod: self.name(), waited: wait },
            (true, Lack::Policies) => Failure::UntoldPolicies { pod: self.name() },
            (true, Lack::Certificate) => {
                Failure::UntoldAccount { pod: self.name(), account: self.info.service_account.clone() }
            }
        })
    }

    fn stand_in_now(&self) -> Option<(Arc<Mesh>, Arc<Workload>)> {
        let state = &self.context.core.state;
        let mesh = state.load();
        if !state.is_away() || !state.is_complete() {
            return None;
        }
        if let Some(stand_in) = self.stand_in.lock().clone() {
            return Some((mesh, stand_in));
        }
        let stand_in = Arc::new(untold::stand_in(&mesh, &self.info, &self.context.core.config.node)?);
        tracing::warn!(
            pod = %self.name(),
            account = %self.info.service_account,
            "no control plane can tell of this pod: what it opens is carried with the certificate of its service account, and nobody is \
             let in"
        );
        *self.stand_in.lock() = Some(stand_in.clone());
        Some((mesh, stand_in))
    }

    /// Whether the control plane has told of everything, but not of this pod.
    pub(crate) fn is_untold(&self) -> bool {
        self.context.core.state.is_complete() && self.workload_now().is_none()
    }

    /// The current mesh and this pod's workload in it, if the workload is known, understood or not.
    pub(crate) fn workload_now(&self) -> Option<(Arc<Mesh>, Arc<Workload>)> {
        // Checked after the mesh was loaded: once complete, the mesh stays complete.
        let mesh = self.context.core.state.load();
        if !self.context.core.state.is_complete() {
            return None;
        }
        let is_ours = |w: &Workload| {
            *w.name == *self.info.name
                && *w.namespace == *self.info.namespace
                && *w.service_account == *self.info.service_account
                && *w.node == *self.context.core.config.node
        };
        let known = self.uid.lock().clone();
        if let Some(workload) = known.and_then(|uid| mesh.workload(&uid)).filter(|w| is_ours(w)) {
            let workload = workload.clone();
            return Some((mesh, workload));
        }
        let workload = mesh
            .workload_on_node(
                &self.context.core.config.node,
                &self.info.namespace,
                &self.info.name,
                &self.info.service_account,
            )?
            .clone();
        *self.uid.lock() = Some(workload.uid.clone());
        *self.stand_in.lock() = None;
        Some((mesh, workload))
    }

    /// The description of this pod's workload for peers.
    pub(crate) fn baggage(&self, workload: &Arc<Workload>) -> Option<HeaderValue> {
        let mut last = self.baggage.lock();
        if let Some((of, baggage)) = &*last
            && Arc::ptr_eq(of, workload)
        {
            return baggage.clone();
        }
        let baggage = headers::baggage(workload);
        *last = Some((workload.clone(), baggage.clone()));
        baggage
    }

    /// Stops accepting and informs peers. Live connections go on.
    pub(crate) fn drain(&self) {
        self.phases.on(Event::Drain);
    }

    /// The time by which live tunnels must have ended. Resolves when the pod takes no new connections.
    pub(crate) async fn draining(&self) -> Instant {
        let phase = self.phases.until(|phase| !phase.takes_tunnels()).await;
        Instant::now() + if phase.has_left() { UNHURRIED } else { self.context.core.config.drain_deadline }
    }

    /// The pod has left the mesh: it takes no new connections after [`STRAGGLERS`], peers are told, and live
    /// connections go on until they end by themselves. Returns when they have.
    #[expect(clippy::disallowed_methods, reason = "the control thread keeps its timers")]
    pub(crate) async fn leave(&self) {
        self.phases.on(Event::Leave);
        let _ = tokio::time::timeout(STRAGGLERS, self.closing()).await;
        self.phases.on(Event::Drain);
        self.connections.drained().await;
        self.connections.tunnels_closed().await;
    }

    /// Endpoints that don't answer the pod.
    pub(crate) fn silent(&self) -> &Silent {
        &self.silent
    }

    pub(crate) fn unproven(&self) -> &Unproven {
        &self.unproven
    }

    /// Drains: waits for live connections, at most until the deadline, and ends the rest. Returns whether nothing was
    /// left.
    #[expect(clippy::disallowed_methods, reason = "the control thread keeps its timers")]
    pub(crate) async fn wind_down(&self, deadline: Instant) -> bool {
        self.drain();
        let ended = async {
            self.connections.drained().await;
            // The last bytes may still wait in a tunnel for a peer that reads slowly.
            self.connections.tunnels_closed().await;
        };
        let drained = tokio::time::timeout_at(deadline, ended).await.is_ok();
        self.stop();
        // A connection that is cut must look cut, so its task needs time to reset it.
        let _ = tokio::time::timeout(FAREWELL, self.connections.drained()).await;
        drained
    }

    /// Ends everything.
    pub(crate) fn stop(&self) {
        self.phases.on(Event::Stop);
    }

    /// Resolves when the pod takes no new tunnels of peers.
    pub(crate) async fn stopping(&self) {
        self.phases.until(|phase| !phase.takes_tunnels()).await;
    }

    /// Resolves when the pod takes no new redirected connections.
    pub(crate) async fn closing(&self) {
        self.phases.until(|phase| !phase.takes_captured()).await;
    }

    /// Resolves when live connections must end.
    pub(crate) async fn stopped(&self) {
        self.phases.stopped().await;
    }
}
