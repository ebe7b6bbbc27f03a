//! The stage as a whole: put together, kept running, taken apart without a trace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leno_capture::NetworkNamespace;
use leno_control::objects::{Object, ObjectKey};
use leno_model::Mesh;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::Error;
use crate::cluster::addresses::MAX_NODES;
use crate::api::Explained;
use crate::assemble::{assemble, netns_dir, remove_netns_dir};
use crate::context::{Context, Tasks};
use crate::core::Request;
use crate::descriptors::raise_descriptor_limit;
use crate::run_dir::make_dir;
use crate::files::{self, Manifests};
use crate::listing::Listing;
use crate::names::StageName;
use crate::network::Named;
use crate::node::Node;
use crate::pod::{PodPlan, Report};
use crate::run_dir::record::Record;
use crate::run_dir::lock::Lock;

/// What processes get to end by themselves that are still in a node's namespace when the stage goes: a capture is written to its
/// end.
const GUESTS_GRACE: Duration = Duration::from_millis(500);

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

/// A running stage. Call [`Stage::shutdown`] to end it; if the process ends without, the kernel
/// ends all of its processes and `leno down` removes the rest.
pub struct Stage {
    pub(crate) handle: StageHandle,
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) fabric: Named,
    pub(crate) core: JoinHandle<()>,
    pub(crate) proxies: Vec<JoinHandle<()>>,
    pub(crate) stop_proxies: watch::Sender<bool>,
    pub(crate) tasks: Tasks,
    pub(crate) run_dir: PathBuf,
    // Last: as long as it is held nobody else takes the directory.
    pub(crate) _lock: Lock,
}

/// A way to talk to a running stage. Cheap to clone.
#[derive(Clone)]
pub struct StageHandle {
    pub(crate) requests: mpsc::Sender<Request>,
    pub(crate) listing: watch::Receiver<Listing>,
    pub(crate) news: broadcast::Sender<StageEvent>,
    pub(crate) down: Arc<watch::Sender<bool>>,
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
            return Err(Error::Usage(format!("--nodes must be from 1 to {MAX_NODES}, not {}", options.nodes)));
        }
        let names: Vec<String> = (1..=options.nodes).map(|number| format!("node-{number}")).collect();
        for node in options.proxies.keys() {
            if !names.contains(node) {
                let known = names.join(", ");
                return Err(Error::Usage(format!("--node-proxy: there is no node {node}; the nodes are {known}")));
            }
        }
        let files = files::read(&options.manifests)?;
        // Refuse what can't be played before anything is made.
        let mut trial = files.clone();
        crate::cluster::admission::complete(&mut trial, &names, true)?;

        raise_descriptor_limit();
        let run_dir = crate::run_dir::make(&options.name)?;
        let lock = Lock::take(&run_dir, &options.name)?;
        let assembled = match netns_dir(&run_dir) {
            Ok(netns_dir) => {
                crate::down::sweep(&run_dir);
                let assembling = async {
                    let record = Arc::new(Record::begin(&run_dir, &netns_dir)?);
                    assemble(&options, names, files, &run_dir, &netns_dir, record).await
                };
                let assembled = assembling.await;
                if assembled.is_err() {
                    crate::down::sweep(&run_dir);
                    remove_netns_dir(&netns_dir);
                }
                assembled
            }
            Err(reason) => Err(reason),
        };
        match assembled {
            Ok(parts) => Ok(parts.into_stage(lock, run_dir)),
            Err(reason) => {
                let _ = options.name.remove_run_dir();
                Err(reason)
            }
        }
    }

    /// An empty directory for manifests that a program writes for a stage it will start next. It
    /// goes when the stage does; after a crash, with the next stage of this name or `leno down`.
    ///
    /// # Errors
    /// [`Error::AlreadyRunning`], or what the file system refuses.
    pub fn manifest_dir(name: &StageName) -> Result<PathBuf, Error> {
        let run_dir = crate::run_dir::make(name)?;
        // Given back at once: `start` takes it again, and refuses whoever came second.
        drop(Lock::take(&run_dir, name)?);
        let dir = run_dir.join("manifests");
        let _ = std::fs::remove_dir_all(&dir);
        make_dir(&dir)
    }

    /// A way to talk to it.
    pub fn handle(&self) -> StageHandle {
        self.handle.clone()
    }

    /// The network namespace of a node, for instance to watch its link
    /// ([`crate::cluster::addresses::NODE_LINK`]).
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
        self.tasks.end().await;
        // A proxy that made itself a daemon, and whoever watches a node's link: nobody could find them any more.
        let namespaces = self.nodes.iter().map(|node| node.network.namespace.id()).collect();
        let _ = tokio::task::spawn_blocking(move || crate::down::end_inside(&namespaces, GUESTS_GRACE)).await;
        for node in &self.nodes {
            self.handle.ctx.networks.remove(&node.network);
        }
        self.handle.ctx.networks.remove(&self.fabric);
        remove_netns_dir(self.handle.ctx.networks.dir());
        if let Err(reason) = self.handle.ctx.networks.names.remove_run_dir() {
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
                let missing =
                    if missing.is_empty() { "the expected state was not reached".to_owned() } else { missing };
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
        let Manifests { objects, warnings } = files::parse(name, text)?;
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
