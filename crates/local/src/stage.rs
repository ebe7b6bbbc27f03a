//! The stage as a whole: put together, kept running, taken apart without a trace.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leno_capture::zds::Agent;
use leno_capture::{NAMED_DIR, NetworkNamespace};
use leno_control::objects::{Object, ObjectKey};
use leno_model::Mesh;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::Error;
use crate::api::Explained;
use crate::addresses::{MAX_NODES, NodeAddresses, control_plane};
use crate::core::{Core, Request};
use crate::error::{make_dir, write_file};
use crate::feed::{self, Manifests};
use crate::listing::Listing;
use crate::names::StageName;
use crate::network::{Named, Networks};
use crate::node::{Node, keep_services, serve_dns};
use crate::plane::Plane;
use crate::pod::{PodPlan, Report};
use crate::proxy::{ProxySettings, ProxyState, is_inherited, supervise};
use crate::state::{Lock, State};
use crate::watch::Watcher;

/// Longest to wait for proxies to confirm a change before going on: a proxy that hangs must not
/// keep pods from ending.
const SETTLE: Duration = Duration::from_secs(1);

/// How to set a stage up.
#[derive(Debug, Clone)]
pub struct StageOptions {
    /// Name; several stages can run side by side.
    pub name: StageName,
    /// Number of nodes, called `node-1`, `node-2`, ...
    pub nodes: usize,
    /// Files and directories with manifests; `-` is standard input. May be empty.
    pub manifests: Vec<PathBuf>,
    /// Whether edits of the files take effect.
    pub watch: bool,
    /// Programs to start as the proxy of single nodes.
    pub proxies: BTreeMap<String, PathBuf>,
    /// Program to start as the proxy of all other nodes; this one if `None`.
    pub default_proxy: Option<PathBuf>,
    /// Program that becomes a pod's first process when started with `LENO_ROLE=pod-init`; this
    /// one if `None`.
    pub executable: Option<PathBuf>,
    /// Trust domain of the mesh.
    pub trust_domain: String,
    /// DNS domain of services.
    pub cluster_domain: String,
}

impl StageOptions {
    /// Two nodes, no manifests, everything else as Istio's defaults.
    pub fn new(name: StageName) -> Self {
        Self {
            name,
            nodes: 2,
            manifests: Vec::new(),
            watch: true,
            proxies: BTreeMap::new(),
            default_proxy: None,
            executable: None,
            trust_domain: leno_model::DEFAULT_TRUST_DOMAIN.to_owned(),
            cluster_domain: "cluster.local".to_owned(),
        }
    }
}

/// News of the stage, for whoever shows progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StageEvent {
    /// Something the operator should know but need not act on at once.
    Warning(String),
    /// An edit of the manifests was refused; the last good state stays. Each line has a place.
    Refused(String),
    /// Manifests took effect.
    Loaded {
        /// How many objects there are in the files.
        objects: usize,
    },
    /// A pod is gone.
    PodGone {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
}

/// What every part of the stage shares.
pub(crate) struct Context {
    pub networks: Networks,
    pub plane: Plane,
    pub executable: PathBuf,
    /// Directory searched first for programs: that of the executable.
    pub programs: PathBuf,
    pub started_in: PathBuf,
    pub run_dir: PathBuf,
    pub cluster_domain: Arc<str>,
    /// Replacement of `/etc/nsswitch.conf`, where the machine's would bypass the cluster's DNS.
    pub nsswitch: Option<PathBuf>,
    in_force: Vec<watch::Receiver<Arc<Mesh>>>,
}

impl Context {
    /// Waits until everything published has reached the nodes' rules and the proxies.
    pub(crate) async fn settled(&self) {
        let mut mesh = self.plane.mesh();
        let mut in_force = self.in_force.clone();
        let all = async {
            self.plane.settled().await;
            for rules in &mut in_force {
                while !Arc::ptr_eq(&rules.borrow_and_update(), &mesh.borrow_and_update()) {
                    tokio::select! {
                        changed = rules.changed() => if changed.is_err() { break },
                        changed = mesh.changed() => if changed.is_err() { break },
                    }
                }
            }
        };
        if tokio::time::timeout(SETTLE, all).await.is_err() {
            tracing::debug!("going on before every proxy confirmed the last change");
        }
    }
}

/// A running stage. Call [`Stage::shutdown`] to end it; if the process ends without, the kernel
/// ends all of its processes and `leno down` removes the rest.
pub struct Stage {
    handle: StageHandle,
    nodes: Vec<Arc<Node>>,
    fabric: Named,
    core: JoinHandle<()>,
    proxies: Vec<JoinHandle<()>>,
    stop_proxies: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    run_dir: PathBuf,
    // Last: as long as it is held nobody else takes the directory.
    _lock: Lock,
}

/// A way to talk to a running stage. Cheap to clone.
#[derive(Clone)]
pub struct StageHandle {
    requests: mpsc::Sender<Request>,
    listing: watch::Receiver<Listing>,
    news: broadcast::Sender<StageEvent>,
    down: Arc<watch::Sender<bool>>,
    pub(crate) ctx: Arc<Context>,
}

impl Stage {
    /// Makes the nodes, starts control plane and proxies, and begins to play the manifests.
    /// Leftovers of a stage of this name that was killed are removed first.
    ///
    /// # Errors
    /// Manifests that can't be used, a stage of this name that runs already, missing privileges,
    /// or whatever the kernel refuses. Nothing is left behind then.
    pub async fn start(options: StageOptions) -> Result<Self, Error> {
        if options.nodes == 0 || options.nodes > MAX_NODES {
            return Err(Error::NotFound(format!("--nodes must be from 1 to {MAX_NODES}, not {}", options.nodes)));
        }
        let names: Vec<String> = (1..=options.nodes).map(|number| format!("node-{number}")).collect();
        for node in options.proxies.keys() {
            if !names.contains(node) {
                let known = names.join(", ");
                return Err(Error::NotFound(format!("--node-proxy: there is no node {node}; the nodes are {known}")));
            }
        }
        let files = feed::read(&options.manifests)?;
        // Refuse what can't be played before anything is made.
        let mut trial = files.clone();
        crate::check::complete(&mut trial, &names, true)?;

        let run_dir = make_dir(&options.name.run_dir())?;
        let lock = Lock::take(&run_dir, &options.name)?;
        let netns_dir = netns_dir(&run_dir)?;
        crate::down::sweep(&options.name, &run_dir, &netns_dir);
        State { netns_dir: netns_dir.clone() }.write(&run_dir)?;
        let assembled = assemble(&options, names, files, &run_dir, &netns_dir).await;
        match assembled {
            Ok(parts) => Ok(parts.into_stage(lock, run_dir)),
            Err(reason) => {
                crate::down::sweep(&options.name, &run_dir, &netns_dir);
                let _ = std::fs::remove_dir_all(&run_dir);
                Err(reason)
            }
        }
    }

    /// A way to talk to it.
    pub fn handle(&self) -> StageHandle {
        self.handle.clone()
    }

    /// The network namespace of a node, for instance to watch its link
    /// ([`crate::addresses::NODE_LINK`]).
    pub fn node_namespace(&self, node: &str) -> Option<NetworkNamespace> {
        self.nodes.iter().find(|known| known.name == node).map(|node| node.network.namespace.clone())
    }

    /// Directory of the stage's sockets, logs and state.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Ends every process and removes everything the stage made.
    pub async fn shutdown(self) {
        let (done, finished) = oneshot::channel();
        if self.handle.requests.send(Request::Shutdown(done)).await.is_ok() {
            let _ = finished.await;
        }
        let _ = self.core.await;
        self.stop_proxies.send_replace(true);
        for proxy in self.proxies {
            let _ = proxy.await;
        }
        for task in &self.tasks {
            task.abort();
        }
        for task in self.tasks {
            let _ = task.await;
        }
        for node in &self.nodes {
            self.handle.ctx.networks.remove(&node.network.name);
        }
        self.handle.ctx.networks.remove(&self.fabric.name);
        remove_netns_dir(self.handle.ctx.networks.dir());
        if let Err(reason) = std::fs::remove_dir_all(&self.run_dir) {
            tracing::warn!(%reason, "cannot remove {}", self.run_dir.display());
        }
    }
}

impl std::ops::Deref for Stage {
    type Target = StageHandle;

    fn deref(&self) -> &StageHandle {
        &self.handle
    }
}

impl StageHandle {
    /// The stage as it is now.
    pub fn listing(&self) -> Listing {
        self.listing.borrow().clone()
    }

    /// Sees every change of the listing.
    pub fn watch_listing(&self) -> watch::Receiver<Listing> {
        self.listing.clone()
    }

    /// News from now on.
    pub fn events(&self) -> broadcast::Receiver<StageEvent> {
        self.news.subscribe()
    }

    /// The mesh as the control plane publishes it.
    pub fn mesh(&self) -> Arc<Mesh> {
        self.ctx.plane.mesh().borrow().clone()
    }

    /// Waits until every proxy and every pod is ready.
    ///
    /// # Errors
    /// [`Error::Timeout`] that says what is missing.
    pub async fn wait_ready(&self, limit: Duration) -> Result<(), Error> {
        self.wait_for(limit, Listing::is_ready).await
    }

    /// Waits until the listing is as described.
    ///
    /// # Errors
    /// [`Error::Timeout`] that says what is missing.
    pub async fn wait_for(&self, limit: Duration, mut enough: impl FnMut(&Listing) -> bool) -> Result<(), Error> {
        let mut listing = self.listing.clone();
        let waited = tokio::time::timeout(limit, listing.wait_for(|now| enough(now))).await;
        match waited {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(gone()),
            Err(_) => {
                let missing = self.listing.borrow().missing();
                let missing = if missing.is_empty() { "the expected state was not reached".to_owned() } else { missing };
                Err(Error::Timeout(format!("not ready after {limit:?}: {missing}")))
            }
        }
    }

    /// Adds objects to those of the files, or replaces objects added before; of two with one key
    /// these win.
    ///
    /// # Errors
    /// [`Error::Manifest`] if the whole would not be sound; then nothing changes.
    pub async fn apply(&self, objects: Vec<Object>) -> Result<(), Error> {
        self.ask(|done| Request::Apply(objects, done)).await?
    }

    /// Adds the objects of a YAML text; its warnings are returned.
    ///
    /// # Errors
    /// As [`Self::apply`], and for text that can't be read.
    pub async fn apply_yaml(&self, name: &str, text: &str) -> Result<Vec<String>, Error> {
        let Manifests { objects, warnings } = feed::parse(name, text)?;
        self.apply(objects.into_values().map(|sourced| (*sourced.object).clone()).collect()).await?;
        Ok(warnings)
    }

    /// Takes back an object that was added by [`Self::apply`].
    ///
    /// # Errors
    /// [`Error::NotFound`] if it was not.
    pub async fn withdraw(&self, key: ObjectKey) -> Result<(), Error> {
        self.ask(|done| Request::Withdraw(key, done)).await?
    }

    /// Sets a label of a namespace, or removes it with `None`.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such namespace.
    pub async fn set_label(&self, namespace: &str, key: &str, value: Option<&str>) -> Result<(), Error> {
        let (namespace, key, value) = (namespace.to_owned(), key.to_owned(), value.map(str::to_owned));
        self.ask(|done| Request::Label { namespace, key, value, done }).await?
    }

    /// Changes a Deployment's number of pods until its file says another one.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such Deployment.
    pub async fn scale(&self, namespace: &str, name: &str, replicas: u32) -> Result<(), Error> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.ask(|done| Request::Scale { namespace, name, replicas, done }).await?
    }

    /// Runs a program in a pod without input; its exit code and what it printed on standard output
    /// and error together.
    ///
    /// # Errors
    /// If there is no such pod, it doesn't run, or the program can't be started.
    pub async fn output(&self, namespace: &str, name: &str, argv: Vec<String>) -> Result<(i32, String), Error> {
        let what = "cannot run a program in a pod";
        let (writer, mut reader) = tokio::net::unix::pipe::pipe().map_err(Error::io(what))?;
        let stdio = || -> std::io::Result<[std::os::fd::OwnedFd; 3]> {
            let output = writer.into_blocking_fd()?;
            Ok([std::fs::File::open("/dev/null")?.into(), output.try_clone()?, output])
        };
        let stdio = stdio().map_err(Error::io(what))?;
        let mut process = crate::server::exec(self, namespace, name, None, argv, Vec::new(), stdio.into()).await?;
        let mut text = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut reader, &mut text).await.map_err(Error::io(what))?;
        Ok((process.ended().await, String::from_utf8_lossy(&text).into_owned()))
    }

    /// Resolves when somebody asked for the end with `leno down`.
    pub fn down_requested(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut asked = self.down.subscribe();
        async move {
            if asked.wait_for(|asked| *asked).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    pub(crate) fn request_down(&self) {
        self.down.send_replace(true);
    }

    /// What would happen to a connection from `source` (`NS/POD`) to `destination`
    /// (`NS/NAME:PORT`).
    ///
    /// # Errors
    /// If either is unknown.
    pub fn explain(&self, source: &str, destination: &str) -> Result<Explained, Error> {
        self.ctx.plane.explain(source, destination)
    }

    pub(crate) async fn find(&self, namespace: &str, name: &str) -> Result<(Arc<PodPlan>, Report), Error> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.ask(|found| Request::Find { namespace, name, found }).await?
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, Error> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(request(answer)).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())
    }
}

fn gone() -> Error {
    Error::Refused("the stage is shutting down".to_owned())
}

/// What `assemble` made, before it is known to be whole.
struct Parts {
    handle: StageHandle,
    nodes: Vec<Arc<Node>>,
    fabric: Named,
    core: JoinHandle<()>,
    proxies: Vec<JoinHandle<()>>,
    stop_proxies: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Parts {
    fn into_stage(self, lock: Lock, run_dir: PathBuf) -> Stage {
        let Self { handle, nodes, fabric, core, proxies, stop_proxies, tasks } = self;
        Stage { handle, nodes, fabric, core, proxies, stop_proxies, tasks, run_dir, _lock: lock }
    }
}

async fn assemble(
    options: &StageOptions,
    names: Vec<String>,
    files: Manifests,
    run_dir: &Path,
    netns_dir: &Path,
) -> Result<Parts, Error> {
    let this = std::env::current_exe().map_err(Error::io("cannot find this program's own file"))?;
    let executable = options.executable.clone().unwrap_or_else(|| this.clone());
    let cluster_domain: Arc<str> = options.cluster_domain.as_str().into();
    let mut networks = Networks::new(netns_dir, options.name.clone());
    let fabric = networks.create_fabric()?;
    let (udp, udp_ports) = watch::channel(Arc::default());
    let (stop_proxies, stopped) = watch::channel(false);
    let mut nodes: Vec<Arc<Node>> = Vec::new();
    let (mut tasks, mut proxies, mut in_force) = (Vec::new(), Vec::new(), Vec::new());
    let plane = Plane::start(options, &fabric, run_dir, networks.ipv6, &mut tasks)?;

    for (index, name) in names.iter().enumerate() {
        let addresses = NodeAddresses::new(index + 1)
            .ok_or_else(|| Error::NotFound(format!("--nodes must be from 1 to {MAX_NODES}")))?;
        let network = networks.create_node(&fabric, name, addresses)?;
        tasks.push(tokio::spawn(serve_dns(&network, plane.mesh(), cluster_domain.clone())?));
        let (force, forced) = watch::channel(Arc::default());
        in_force.push(forced);
        let rules = keep_services(name.clone(), network.clone(), addresses, plane.mesh(), udp_ports.clone(), force);
        tasks.push(tokio::spawn(rules));

        let dir = make_dir(&run_dir.join(name))?;
        let socket = dir.join("ztunnel.sock");
        let agent = Agent::bind(&socket).map_err(Error::network(format!("cannot announce pods to the proxy of {name}")))?;
        let domain = &options.cluster_domain;
        let resolv = format!(
            "nameserver {}\nsearch svc.{domain} {domain}\noptions ndots:5\n",
            crate::addresses::CLUSTER_DNS
        );
        write_file(&dir.join("resolv.conf"), resolv.as_bytes(), 0o644)?;
        let token = dir.join("token");
        write_file(&token, plane.token(name)?.as_bytes(), 0o600)?;
        let program = options.proxies.get(name).cloned().or_else(|| options.default_proxy.clone());
        let settings = ProxySettings {
            program: program.unwrap_or_else(|| this.clone()),
            node: name.clone(),
            namespace: network.namespace.clone(),
            node_ip: IpAddr::from(addresses.fabric_v4()),
            control: SocketAddr::new(control_plane().0.into(), crate::addresses::CONTROL_PORT),
            root_cert: run_dir.join(crate::plane::ROOT_CERT),
            token,
            zds_socket: socket,
            resolv_conf: dir.join("resolv.conf"),
            log: dir.join("proxy.log"),
            trust_domain: options.trust_domain.clone(),
            cluster_domain: options.cluster_domain.clone(),
            ipv6: networks.ipv6,
            inherited: std::env::vars().filter(|(name, _)| is_inherited(name)).collect(),
        };
        let (state, proxy) = watch::channel(ProxyState::default());
        proxies.push(tokio::spawn(supervise(settings, state, stopped.clone())));
        nodes.push(Arc::new(Node { name: name.clone(), addresses, network, agent, proxy }));
    }
    for node in &nodes {
        for other in nodes.iter().filter(|other| other.name != node.name) {
            networks.connect_nodes(&node.network, other.addresses)?;
        }
    }

    let (news, _) = broadcast::channel(1024);
    if !networks.ipv6 {
        tracing::warn!("this kernel has no IPv6; the stage is IPv4 only");
    }
    let programs = executable.parent().unwrap_or(Path::new("/")).to_owned();
    let started_in = std::env::current_dir().unwrap_or_else(|_| "/".into());
    let nsswitch = nsswitch(run_dir)?;
    let ctx = Arc::new(Context {
        networks,
        plane,
        executable,
        programs,
        started_in,
        run_dir: run_dir.to_owned(),
        cluster_domain,
        nsswitch,
        in_force,
    });
    let listing = Listing {
        stage: options.name.as_str().to_owned(),
        supervisor: std::process::id(),
        ..Listing::default()
    };
    let (show, listing) = watch::channel(listing);
    let (requests, asked) = mpsc::channel(64);
    let (events, happened) = mpsc::unbounded_channel();
    let core = Core::new(ctx.clone(), nodes.clone(), events, udp, show, news.clone());
    let core = tokio::spawn(core.run(asked, happened));
    let down = Arc::new(watch::channel(false).0);
    let handle = StageHandle { requests: requests.clone(), listing, news, down, ctx };
    let _ = requests.send(Request::Reload(Ok(files))).await;

    let watched: Vec<_> = options.manifests.iter().filter(|path| *path != Path::new("-")).cloned().collect();
    if options.watch && watched.len() == options.manifests.len() && !watched.is_empty() {
        let watcher = Watcher::new()?;
        watcher.cover(&watched)?;
        tasks.push(tokio::spawn(follow(watcher, watched, requests)));
    }
    tasks.push(tokio::spawn(crate::server::serve(crate::server::bind(run_dir)?, handle.clone())));
    Ok(Parts { handle, nodes, fabric, core, proxies, stop_proxies, tasks })
}

/// Reads the files again after each change.
async fn follow(watcher: Watcher, paths: Vec<PathBuf>, requests: mpsc::Sender<Request>) {
    loop {
        if let Err(reason) = watcher.changed().await {
            tracing::error!(%reason, "edits of the manifests are no longer noticed");
            return;
        }
        if let Err(reason) = watcher.cover(&paths) {
            tracing::warn!(%reason, "some edits may go unnoticed");
        }
        let paths = paths.clone();
        let Ok(read) = tokio::task::spawn_blocking(move || feed::read(&paths)).await else { return };
        if requests.send(Request::Reload(read)).await.is_err() {
            return;
        }
    }
}

/// Where network namespaces get their names: for root where `ip netns` sees them, else in a
/// directory that exists in our own mount namespace only.
fn netns_dir(run_dir: &Path) -> Result<PathBuf, Error> {
    if crate::privilege::is_machine_root() {
        return Ok(PathBuf::from(NAMED_DIR));
    }
    let dir = make_dir(&run_dir.join("netns"))?;
    let none = None::<&str>;
    nix::mount::mount(Some("tmpfs"), &dir, Some("tmpfs"), nix::mount::MsFlags::empty(), none)
        .map_err(Error::errno(format!("cannot mount a private directory at {}", dir.display())))?;
    Ok(dir)
}

fn remove_netns_dir(dir: &Path) {
    if !crate::privilege::is_machine_root() {
        let _ = nix::mount::umount2(dir, nix::mount::MntFlags::MNT_DETACH);
    }
}

/// A copy of the machine's `/etc/nsswitch.conf` that looks names up in files and DNS only: other
/// sources, such as systemd-resolved, would answer with the machine's names.
fn nsswitch(run_dir: &Path) -> Result<Option<PathBuf>, Error> {
    let Ok(text) = std::fs::read_to_string("/etc/nsswitch.conf") else { return Ok(None) };
    let lines = text.lines().map(|line| if line.trim_start().starts_with("hosts:") { "hosts: files dns" } else { line });
    let path = run_dir.join("nsswitch.conf");
    write_file(&path, (lines.collect::<Vec<_>>().join("\n") + "\n").as_bytes(), 0o644)?;
    Ok(Some(path))
}
