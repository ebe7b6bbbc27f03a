//! One enrolled pod: what its connections share, and the listeners in its namespace.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::HeaderValue;
use leno_capture::sockets::{self, DnsSockets, ListenOptions, Probes};
use leno_capture::zds::PodInfo;
use leno_capture::{NetworkNamespace, ShortPath};
use leno_model::{HBONE_PORT, Mesh, Workload, WorkloadUid};
use leno_policy::NotUnderstood;
use leno_proxy::peers::Unproven;
use leno_proxy::{Core, Listeners};
use leno_tls::MeshIdentity;
use leno_tunnel::{Pool, timers};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::{CongestionControl, OriginalSource, PodConfig};
use crate::connections::Connections;
use crate::dial::TunnelKey;
use crate::failure::Failure;
use crate::places::Places;
use crate::shares::Shares;
use crate::silent::Silent;
use crate::{dns, inbound, inbound_plaintext, outbound, request_headers};

/// Ports opened in each pod's namespace.
pub(crate) const OUTBOUND_PORT: u16 = 15001;
pub(crate) const PLAINTEXT_PORT: u16 = 15006;
pub(crate) const DNS_PORT: u16 = 15053;

/// How long closing and resetting may take, once there is nothing more to wait for.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);

/// How long a pod that left takes what the rules led here, though they are gone: a handshake may
/// have begun before, and end on the far side of the world. Its peers have been told earlier.
const STRAGGLERS: Duration = Duration::from_secs(1);

/// How long tunnels of a pod that left the mesh may go on: longer than any drain.
const UNHURRIED: Duration = Duration::from_secs(30 * 24 * 3600);

/// What all pods of the node share.
pub(crate) struct Context {
    /// What every proxy has.
    pub(crate) core: Arc<Core>,
    pub(crate) config: PodConfig,
    pub(crate) relay: leno_tunnel::RelayOptions,
    /// Where DNS questions about anything but the mesh go.
    pub(crate) resolvers: Vec<SocketAddr>,
    pub(crate) shares: Arc<Shares>,
}

/// One data-path thread as a pod sees it.
#[derive(Clone)]
pub(crate) struct Worker {
    pub(crate) handle: Handle,
    /// Whether it takes connections that programs open.
    pub(crate) outbound: bool,
    /// The tunnels opened on this thread, for all pods: the key tells them apart.
    pub(crate) tunnels: Pool<TunnelKey, Failure>,
    /// How many of peers' tunnels it serves, of all pods.
    pub(crate) served: Arc<AtomicUsize>,
    /// How many connections it carries that were spread over all workers, of all pods.
    pub(crate) bulk: Arc<AtomicUsize>,
}

/// The threads of `handles`. All of them take connections in; every second one, rounded up, also
/// those that programs open. That costs less (no policy, no connect to a program), and the more of
/// it goes by one tunnel, the more leaves in one record (lab/results/experiments.md). Bulk is spread
/// ([`Places`]).
pub(crate) fn workers(handles: &[Handle], tunnel: &leno_tunnel::Settings) -> Vec<Worker> {
    let of = |(index, handle): (usize, &Handle)| Worker {
        handle: handle.clone(),
        outbound: index % 2 == 0,
        tunnels: Pool::new(tunnel.clone()),
        served: Arc::default(),
        bulk: Arc::default(),
    };
    handles.iter().enumerate().map(of).collect()
}

/// One enrolled pod.
pub(crate) struct Pod {
    info: PodInfo,
    netns: NetworkNamespace,
    context: Arc<Context>,
    connections: Arc<Connections>,
    /// No new tunnels; live ones go on.
    draining: CancellationToken,
    /// No new connections by the rules either.
    closing: CancellationToken,
    /// The pod left the mesh, the proxy stays: live connections may take as long as they like.
    left: AtomicBool,
    unproven: Arc<Unproven>,
    /// Endpoints that don't answer it.
    silent: Silent,
    /// Live connections end too.
    stop: CancellationToken,
    /// Whether the kernel lets us use the caller's address towards the program.
    spoofs_source: bool,
    short_path: ShortPath,
    /// Where it takes connections.
    listeners: Listeners,
    /// The workload this pod turned out to be, to find it again without a search.
    uid: Mutex<Option<WorkloadUid>>,
    /// What peers are told of it, as put together last.
    baggage: Mutex<Option<(Arc<Workload>, Option<HeaderValue>)>>,
}

impl Pod {
    /// Opens the pod's listeners on every worker and starts accepting.
    ///
    /// # Errors
    /// If a port is taken in the pod's namespace or the kernel refuses the socket; nothing is
    /// left open then.
    pub(crate) fn start(
        info: PodInfo,
        netns: NetworkNamespace,
        context: Arc<Context>,
        workers: &[Worker],
    ) -> Result<Arc<Self>, String> {
        let short_path = short_path(&netns, context.config.congestion_control);
        let listen = |port: u16| {
            let mut options =
                if port == OUTBOUND_PORT { ListenOptions::for_programs() } else { ListenOptions::default() };
            if port == HBONE_PORT {
                options.probes = Probes::Tunnel;
            }
            // Callers of the third may be anywhere, and there are many of them: the system decides.
            if port != PLAINTEXT_PORT {
                options.path = short_path.clone();
            }
            let listener = if context.core.config.ipv6 {
                sockets::listen_wildcard(&netns, port, &options)
            } else {
                sockets::listen(&netns, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), &options)
            };
            listener.map_err(|e| e.to_string())
        };
        let mut listeners = Vec::new();
        let mut transparent = true;
        for worker in workers {
            let outbound = if worker.outbound { Some(listen(OUTBOUND_PORT)?.socket) } else { None };
            let plaintext = listen(PLAINTEXT_PORT)?;
            transparent &= plaintext.transparent;
            listeners.push((outbound, plaintext.socket));
        }
        let hbone = listen(HBONE_PORT)?;
        transparent &= hbone.transparent;
        let spoofs_source = match context.config.original_source {
            OriginalSource::False => false,
            OriginalSource::Auto => transparent,
            OriginalSource::True if transparent => true,
            OriginalSource::True => {
                return Err("ENABLE_ORIG_SRC=true, but the kernel refuses IP_TRANSPARENT in the pod's namespace \
                            (needs CAP_NET_ADMIN there)"
                    .to_owned());
            }
        };
        let dns = if context.config.dns { open_dns(&netns) } else { None };
        let name = format!("{}/{}", info.namespace, info.name);
        let connections = Connections::new(context.shares.join(name, context.config.max_sockets_per_pod));
        let noted = note(&netns, &listeners, &hbone.socket, dns.as_ref());
        let noted = noted.map_err(|e| format!("can't examine a listener: {e}"))?;
        let pod = Arc::new(Self {
            info,
            netns,
            unproven: Unproven::new(context.core.config.max_unproven),
            connections,
            silent: Silent::default(),
            context,
            draining: CancellationToken::new(),
            closing: CancellationToken::new(),
            left: AtomicBool::new(false),
            stop: CancellationToken::new(),
            spoofs_source,
            short_path,
            listeners: noted,
            uid: Mutex::new(None),
            baggage: Mutex::new(None),
        });
        // Those already accepting must not go on without the others: the next attempt would share
        // their ports, and nobody would watch over what they accept.
        pod.accept_on(workers, listeners, hbone.socket, dns).inspect_err(|_| pod.stop())?;
        Ok(pod)
    }

    fn accept_on(
        self: &Arc<Self>,
        workers: &[Worker],
        listeners: Vec<(Option<std::net::TcpListener>, std::net::TcpListener)>,
        hbone: std::net::TcpListener,
        dns: Option<DnsSockets>,
    ) -> Result<(), String> {
        let pod = self;
        // Who accepts counts as a connection does: one who waits for the last is not to miss those in the queue.
        // `from_std` registers with the reactor of the runtime it runs in.
        let register = |l| TcpListener::from_std(l).map_err(|e| format!("can't register a listener: {e}"));
        let places = Places::new(workers);
        for (index, (worker, (outbound, plaintext))) in workers.iter().zip(listeners).enumerate() {
            let _on_worker = worker.handle.enter();
            if let Some(outbound) = outbound {
                let counted = pod.connections.count();
                tokio::spawn(outbound::accept(pod.clone(), counted, places.clone(), index, register(outbound)?));
            }
            tokio::spawn(inbound_plaintext::accept(pod.clone(), pod.connections.count(), register(plaintext)?));
        }
        // Where programs of this node keep no peer waiting, but for bulk.
        if let Some(worker) = workers.iter().min_by_key(|worker| worker.outbound) {
            let _on_worker = worker.handle.enter();
            let counted = pod.connections.accept_tunnels();
            tokio::spawn(inbound::accept(pod.clone(), counted, workers.to_vec(), register(hbone)?));
        }
        if let (Some(worker), Some(dns)) = (workers.first(), dns) {
            let _on_worker = worker.handle.enter();
            for socket in dns.udp {
                let socket = UdpSocket::from_std(socket).map_err(|e| format!("can't register a socket: {e}"))?;
                tokio::spawn(dns::serve_udp(pod.clone(), pod.connections.count(), socket));
            }
            for listener in dns.tcp {
                let listener = register(listener.socket)?;
                tokio::spawn(dns::serve_tcp(pod.clone(), pod.connections.count(), listener));
            }
        }
        Ok(())
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

    /// Where it takes connections.
    pub(crate) fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    /// Whether the pod left the mesh.
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// What connections from and to this pod use where the path is short.
    pub(crate) fn short_path(&self) -> &ShortPath {
        &self.short_path
    }

    /// Has a tunnel that was taken for a short one do as its path demands.
    pub(crate) fn verify_short_path(&self, stream: &TcpStream) {
        if let Err(error) = self.short_path.verify(stream) {
            tracing::debug!(%error, "a tunnel's congestion control stays as it is");
        }
    }

    pub(crate) fn spoofs_source(&self) -> bool {
        self.spoofs_source
    }

    /// The current mesh and this pod's workload in it. Waits for discovery to deliver it, for a
    /// pod may open connections before the control plane has told of it.
    pub(crate) async fn workload(&self) -> Result<(Arc<Mesh>, Arc<Workload>), Failure> {
        let found = match self.workload_now() {
            Some(found) => found,
            None => self.workload_soon().await?,
        };
        // What holds for such a pod is not known, so it neither takes nor makes connections.
        NotUnderstood::workload(&found.1).map_err(|error| Failure::NotUnderstood(Arc::new(error)))?;
        Ok(found)
    }

    async fn workload_soon(&self) -> Result<(Arc<Mesh>, Arc<Workload>), Failure> {
        let wait = self.context.core.config.workload_timeout;
        let mut changes = self.context.core.state.subscribe();
        let found = timers::timeout(wait, async {
            loop {
                if let Some(found) = self.workload_now() {
                    return Some(found);
                }
                changes.changed().await.ok()?;
            }
        });
        found.await.ok().flatten().ok_or_else(|| Failure::UnknownWorkload { pod: self.name(), waited: wait })
    }

    /// The current mesh and this pod's workload in it, if it is known, understood or not.
    pub(crate) fn workload_now(&self) -> Option<(Arc<Mesh>, Arc<Workload>)> {
        // After the mesh was loaded: completeness never goes away again.
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
        Some((mesh, workload))
    }

    /// What peers are told of this pod's workload.
    pub(crate) fn baggage(&self, workload: &Arc<Workload>) -> Option<HeaderValue> {
        let mut last = self.baggage.lock();
        if let Some((of, baggage)) = &*last
            && Arc::ptr_eq(of, workload)
        {
            return baggage.clone();
        }
        let baggage = request_headers::baggage(workload);
        *last = Some((workload.clone(), baggage.clone()));
        baggage
    }

    /// The certificate the pod speaks with.
    pub(crate) async fn identity(&self, workload: &Workload) -> Result<Arc<MeshIdentity>, Failure> {
        let identity = workload.identity().ok_or_else(|| Failure::NoIdentity(workload.uid.to_string()))?;
        self.context.core.identity(&identity).await.map_err(|e| Failure::Certificate(Arc::new(e)))
    }

    /// Stops accepting and tells peers; live connections go on.
    pub(crate) fn drain(&self) {
        self.draining.cancel();
        self.closing.cancel();
    }

    /// When live tunnels must have ended, once the pod takes no new connections.
    pub(crate) async fn draining(&self) -> Instant {
        self.draining.cancelled().await;
        let left = self.left.load(Ordering::Relaxed);
        Instant::now() + if left { UNHURRIED } else { self.context.core.config.drain_deadline }
    }

    /// The pod has left the mesh: no new connections but [`STRAGGLERS`], peers are told, live ones go
    /// on until they end by themselves. Returns when they have.
    pub(crate) async fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
        self.draining.cancel();
        let _ = tokio::time::timeout(STRAGGLERS, self.closing()).await;
        self.closing.cancel();
        self.connections.drained().await;
        self.connections.tunnels_closed().await;
    }

    /// Endpoints that don't answer the pod.
    pub(crate) fn silent(&self) -> &Silent {
        &self.silent
    }

    pub(crate) fn unproven(&self) -> &Arc<Unproven> {
        &self.unproven
    }

    /// Drains: waits for live connections, until the deadline at most, and ends what is left then.
    /// Says whether nothing was.
    pub(crate) async fn wind_down(&self, deadline: Instant) -> bool {
        self.drain();
        let ended = async {
            self.connections.drained().await;
            // What the last ones sent may still wait in a tunnel for a peer that reads slowly.
            self.connections.tunnels_closed().await;
        };
        let drained = tokio::time::timeout_at(deadline, ended).await.is_ok();
        self.stop();
        // A connection that is cut must look so: its task has to get at resetting it.
        let _ = tokio::time::timeout(FAREWELL, self.connections.drained()).await;
        drained
    }

    /// Ends everything.
    pub(crate) fn stop(&self) {
        self.drain();
        self.stop.cancel();
    }

    /// Resolves when the pod takes no new tunnels of peers.
    pub(crate) async fn stopping(&self) {
        self.draining.cancelled().await;
    }

    /// Resolves when the pod takes no new connections that the rules lead here.
    pub(crate) async fn closing(&self) {
        self.closing.cancelled().await;
    }

    /// Resolves when live connections must end.
    pub(crate) async fn stopped(&self) {
        self.stop.cancelled().await;
    }
}

fn note(
    netns: &NetworkNamespace,
    listeners: &[(Option<std::net::TcpListener>, std::net::TcpListener)],
    hbone: &std::net::TcpListener,
    dns: Option<&DnsSockets>,
) -> io::Result<Listeners> {
    let mut noted = Listeners::new(netns.clone());
    noted.note(HBONE_PORT, hbone)?;
    for (outbound, plaintext) in listeners {
        noted.note(PLAINTEXT_PORT, plaintext)?;
        if let Some(outbound) = outbound {
            noted.note(OUTBOUND_PORT, outbound)?;
        }
    }
    for listener in dns.iter().flat_map(|dns| &dns.tcp) {
        noted.note(DNS_PORT, &listener.socket)?;
    }
    Ok(noted)
}

/// Opens the pod's DNS sockets. A port in use is told and left at that: DNS must not cost a pod
/// its mesh.
fn open_dns(netns: &NetworkNamespace) -> Option<DnsSockets> {
    let opened = sockets::listen_dns(netns, DNS_PORT, &ListenOptions::default());
    opened.inspect_err(|error| tracing::warn!(%error, "the pod's DNS can't be answered; its queries will fail")).ok()
}

/// What a pod's connections use on short paths. Not knowing costs processor time, not a pod its mesh.
fn short_path(netns: &NetworkNamespace, chosen: CongestionControl) -> ShortPath {
    match chosen {
        CongestionControl::System => ShortPath::default(),
        CongestionControl::Auto => ShortPath::of(netns).unwrap_or_else(|error| {
            tracing::debug!(%error, "the pod's congestion control can't be told; leaving it alone");
            ShortPath::default()
        }),
    }
}
