//! The pods of this node, started and stopped by the node agent.

pub(crate) mod dump;
mod listen;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use futures_util::future::join_all;
use leno_capture::NetworkNamespace;
use leno_capture::zds::{ClientStatus, PodHandler, PodInfo};
use leno_model::{Mesh, Workload};
use leno_proxy::Looked;
use leno_proxy::mesh::Changed;
use leno_proxy::peers::TunnelKey;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::context::Context;
use crate::lanes::Lane;
use crate::pod::{FAREWELL, Pod};
use crate::traffic::Traffic;

/// The pods of this node by their Kubernetes UID.
pub(crate) struct Pods {
    context: Arc<Context>,
    lanes: Vec<Lane>,
    running: Mutex<HashMap<String, Arc<Pod>>>,
    /// Pods that left the mesh and still have connections, to which policies still apply.
    leaving: Arc<Mutex<Vec<Arc<Pod>>>>,
}

impl Pods {
    pub(crate) fn new(context: Arc<Context>, lanes: Vec<Lane>) -> Arc<Self> {
        Arc::new(Self { context, lanes, running: Mutex::default(), leaving: Arc::default() })
    }

    /// All running pods and their UIDs.
    pub(crate) fn running(&self) -> Vec<(String, Arc<Pod>)> {
        self.running.lock().iter().map(|(uid, pod)| (uid.clone(), pod.clone())).collect()
    }

    /// All pods with connections: those running and those leaving.
    fn all(&self) -> Vec<Arc<Pod>> {
        let running = self.running.lock().values().cloned().collect::<Vec<_>>();
        running.into_iter().chain(self.leaving.lock().iter().cloned()).collect()
    }

    /// The connections that stand now, of pods that leave too.
    pub(crate) fn open(&self) -> Vec<Weak<Traffic>> {
        self.all().iter().flat_map(|pod| pod.connections().open()).collect()
    }

    /// A removed pod's peers are told at once, and its live connections go on until they end: the pod may have left the
    /// mesh without being deleted. A deleted pod's connections end by themselves, because its programs are gone.
    fn take_out(&self, uid: &str) {
        let Some(pod) = self.running.lock().remove(uid) else { return };
        self.context.core.metrics.proxies_stopped().inc();
        self.context.core.metrics.active_proxies().dec();
        tracing::info!(pod = %pod.name(), "no longer carrying traffic of pod");
        self.forget_tunnels(&pod);
        self.leaving.lock().push(pod.clone());
        let leaving = self.leaving.clone();
        let lanes = self.lanes.clone();
        tokio::spawn(async move {
            pod.leave().await;
            pod.stop();
            // A connection that is never idle could keep the namespace for just as long.
            for lane in lanes {
                lane.worker.spawn(async { NetworkNamespace::go_home() });
            }
            leaving.lock().retain(|other| !Arc::ptr_eq(other, &pod));
        });
    }

    fn forget_tunnels(&self, pod: &Pod) {
        for lane in &self.lanes {
            lane.tunnels.evict(|key| key.from == pod.netns().id());
        }
    }

    /// Drains all pods, each when another proxy listens there, and closes all tunnels. Connections that are left at the
    /// drain deadline are cut.
    #[expect(clippy::disallowed_methods, reason = "the control thread keeps its timers")]
    pub(crate) async fn wind_down(&self) {
        let config = &self.context.core.config;
        let begun = Instant::now();
        let deadline = begun + config.drain_deadline;
        // New connections that nobody else takes are better carried until the deadline than refused.
        let alone_until = begun + config.takeover_timeout.min(config.drain_deadline / 2);
        let pods = self.all();
        let looked = Looked::default();
        let each = async |pod: &Arc<Pod>| {
            pod.listeners().taken_over(&pod.name(), alone_until, &looked, || pod.has_left()).await;
            pod.wind_down(deadline).await
        };
        let outlived = join_all(pods.iter().map(each)).await.iter().filter(|drained| !**drained).count();
        if outlived > 0 {
            tracing::warn!(
                pods = outlived,
                deadline = ?config.drain_deadline,
                "connections outlived the drain deadline and were cut (CONNECTION_TERMINATION_DEADLINE)"
            );
        }
        let closed = join_all(self.lanes.iter().map(|lane| lane.tunnels.close()));
        let _ = tokio::time::timeout_at(deadline.max(Instant::now() + FAREWELL), closed).await;
    }

    /// Cuts all connections.
    #[expect(clippy::disallowed_methods, reason = "the control thread keeps its timers")]
    pub(crate) async fn cut(&self) {
        let pods = self.all();
        pods.iter().for_each(|pod| pod.stop());
        let reset = join_all(pods.iter().map(|pod| pod.connections().drained()));
        let _ = tokio::time::timeout(FAREWELL, reset).await;
    }

    /// Stops using tunnels to peers that are gone or have changed since the tunnel was made. Open streams go on.
    fn forget_peers(&self, mesh: &Mesh, changed: &Changed) {
        let gone = |key: &TunnelKey| changed.concerns(&key.peer) && key.is_obsolete(mesh);
        self.lanes.iter().for_each(|lane| lane.tunnels.evict(gone));
    }

    /// Judges live connections again whenever discovery changed something that concerns them, and drops tunnels to
    /// peers that changed. Never returns.
    pub(crate) async fn reevaluate(self: Arc<Self>) {
        let mut changes = self.context.core.state.subscribe();
        let mut generation = 0;
        let mut seen: HashMap<_, Arc<Workload>> = HashMap::new();
        while changes.changed().await.is_ok() {
            let now = changes.borrow_and_update().generation;
            let changed = self.context.core.state.changed_since(generation);
            generation = now;
            self.forget_peers(&self.context.core.state.load(), &changed);
            let mut still = HashMap::new();
            for pod in self.all() {
                let id = pod.netns().id();
                let before = seen.get(&id).filter(|before| !changed.concerns_access_to(before));
                let now = match before {
                    // It has not changed. Otherwise it would be among the changes.
                    Some(before) => before.clone(),
                    None => {
                        let Some((mesh, workload)) = pod.workload_now() else { continue };
                        let cut = pod.connections().reevaluate(&mesh, &workload);
                        if cut > 0 {
                            tracing::info!(workload = %workload.uid, connections = cut, "closed connections that policy no longer allows");
                        }
                        workload
                    }
                };
                still.insert(id, now);
            }
            seen = still;
        }
    }
}

impl PodHandler for Pods {
    async fn add(&self, info: PodInfo, netns: NetworkNamespace) -> Result<(), String> {
        let uid = info.uid.clone();
        let mut running = self.running.lock();
        if let Some(pod) = running.get(&uid) {
            if pod.netns().id() == netns.id() {
                return Ok(());
            }
            // The same pod in another namespace: its sandbox was created anew.
            pod.stop();
            self.forget_tunnels(pod);
            running.remove(&uid);
            self.context.core.metrics.proxies_stopped().inc();
            self.context.core.metrics.active_proxies().dec();
        }
        // The pod is back within a moment. The rules will follow, and what they lead here is for the new listeners
        // alone. A handshake that is under way when the old ones close is lost.
        let straggling =
            self.leaving.lock().iter().filter(|pod| pod.netns().id() == netns.id()).cloned().collect::<Vec<_>>();
        straggling.iter().for_each(|pod| pod.drain());
        let pod = listen::start(info, netns, self.context.clone(), &self.lanes)
            .inspect_err(|error| tracing::error!(%uid, %error, "can't carry traffic of pod; trying again"))?;
        tracing::info!(pod = %pod.name(), "carrying traffic of pod");
        running.insert(uid, pod);
        self.context.core.metrics.proxies_started().inc();
        self.context.core.metrics.active_proxies().inc();
        Ok(())
    }

    async fn remove(&self, uid: &str) {
        self.take_out(uid);
    }

    async fn retain(&self, uids: HashSet<String>) {
        let gone: Vec<String> = self.running.lock().keys().filter(|uid| !uids.contains(*uid)).cloned().collect();
        gone.iter().for_each(|uid| self.take_out(uid));
    }
}

/// Keeps readiness and metrics up to date with the node agent. A pod that can't be served is reported there; it does
/// not make the node unready, because the others are fine. Returns when the client is gone.
pub(crate) async fn watch_agent(mut status: watch::Receiver<ClientStatus>, context: Arc<Context>) {
    let mut task = context.core.readiness.task("workload proxy manager");
    loop {
        let now = status.borrow_and_update().clone();
        context.core.metrics.pending_proxies().set(i64::try_from(now.pending.len()).unwrap_or(i64::MAX));
        if now.synced {
            task.ready();
        } else {
            task.not_ready(now.error.unwrap_or_else(|| "the node agent has not named its pods yet".to_owned()));
        }
        if status.changed().await.is_err() {
            return;
        }
    }
}
