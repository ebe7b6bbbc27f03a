//! The machine that plays a cluster: put together, kept running, taken apart without a trace.
//!
//! `core` is its one decision maker; a `pod` actor carries one pod from its network to its last process; `proxy` keeps a node's
//! proxy running; `plane` is the control plane inside the supervisor.

mod assemble;
mod context;
mod core;
pub(crate) mod dial;
mod exec;
mod explained;
mod give_up;
mod handle;
mod killed;
mod network;
mod node;
mod options;
pub(crate) mod proxy;
mod request;
mod server;
mod spawn;
mod tasks;

pub(crate) mod api;
pub(crate) mod journal;
pub(crate) mod listing;
pub(crate) mod logs;
pub(crate) mod plane;
pub(crate) mod pod;
pub(crate) mod publish;
pub(crate) mod sweep;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leno_capture::NetworkNamespace;
use tokio::sync::{oneshot, watch};

use crate::Error;
use crate::cluster::addresses::MAX_NODES;
use crate::cluster::admission;
use crate::files;
use crate::names::StageName;
use crate::run_dir::lock::Lock;
use crate::run_dir::record::Record;
use crate::run_dir::{self, make_dir};
use crate::stage::assemble::{Parts, Places, assemble, netns_dir, remove_netns_dir};
use crate::stage::give_up::GiveUp;
use crate::stage::journal::Journal;
use crate::stage::request::Request;

pub use handle::StageHandle;
pub use options::StageOptions;
pub use proxy::{ProxyState, Upgraded};
pub use request::StageEvent;

/// Time for processes in a node's namespace to end by themselves when the stage ends: a packet capture is written to
/// its end.
const GUESTS_GRACE: Duration = Duration::from_millis(500);

/// Runs what may block where that keeps nobody else waiting.
async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    let ended = |reason: tokio::task::JoinError| Error::io("cannot prepare the stage")(std::io::Error::other(reason));
    tokio::task::spawn_blocking(work).await.map_err(ended)?
}

/// A running stage. Call [`Stage::shutdown`] to end it; if the process ends without, the kernel
/// ends all of its processes and `leno down` removes the rest.
pub struct Stage {
    parts: Parts,
    run_dir: PathBuf,
    // Last: as long as it is held nobody else takes the directory.
    _lock: Lock,
}

impl Stage {
    /// Makes the nodes, starts control plane and proxies, and begins to play the manifests.
    /// Leftovers of a stage of this name that was killed are removed first.
    ///
    /// # Errors
    /// Manifests that can't be used, a stage of this name that runs already, missing privileges,
    /// or whatever the kernel refuses. Nothing is left behind then.
    pub async fn start(options: StageOptions) -> Result<Self, Error> {
        let (_nobody_asks, stop) = watch::channel(false);
        Self::start_unless(options, stop).await
    }

    /// As [`Self::start`], and gives up soon after `stop` holds `true`. Not to be dropped before it is done: what is half
    /// made can't be taken apart by anybody else.
    ///
    /// # Errors
    /// As [`Self::start`], and [`Error::Interrupted`] if it gave up. Nothing is left behind then.
    pub async fn start_unless(options: StageOptions, stop: watch::Receiver<bool>) -> Result<Self, Error> {
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
        let stop = GiveUp::when(stop);
        let paths = options.manifests.clone();
        // On a thread: standard input may keep silent for ever.
        let files = tokio::select! {
            files = on_thread(move || files::read(&paths)) => files?,
            () = stop.asked() => return Err(Error::Interrupted),
        };
        // Refuse what can't be played before anything is made.
        let mut trial = files.clone();
        admission::complete(&mut trial, &names, true)?;
        for published in &options.published {
            published.wanted().check(&trial)?;
        }

        // A pod costs the supervisor about ten.
        if let Some(reason) = leno_telemetry::raise_descriptor_limit(0).refused {
            tracing::debug!(%reason, "the limit of open files stays as it is");
        }
        let run_dir = run_dir::make(&options.name)?;
        let (dir, name) = (run_dir.clone(), options.name.clone());
        let lock = on_thread(move || Lock::take(&dir, &name)).await;
        // What could not be made here is told, and not what of it can't be removed.
        let lock = lock.inspect_err(|_| drop(sweep::finish_unheld(&options.name, &run_dir)))?;
        let assembled = match netns_dir(&run_dir) {
            Ok(netns_dir) => {
                let left = sweep::sweep(&run_dir).left;
                let assembling = async {
                    let journal = Journal::begin(&run_dir)?;
                    journal.note(format_args!(
                        "stage {} starts: leno {}, pid {}, {} nodes, {} objects in the files",
                        options.name.as_str(),
                        env!("CARGO_PKG_VERSION"),
                        std::process::id(),
                        names.len(),
                        files.objects.len(),
                    ));
                    stop.check().await?;
                    let record = Arc::new(Record::begin(&run_dir, &netns_dir, left)?);
                    let places = Places { run_dir: &run_dir, netns_dir: &netns_dir, record, journal };
                    assemble(&options, names, files, places, &stop).await
                };
                let assembled = assembling.await;
                if assembled.is_err() {
                    sweep::sweep(&run_dir);
                    remove_netns_dir(&netns_dir);
                }
                assembled
            }
            Err(reason) => Err(reason),
        };
        match assembled {
            Ok(parts) => Ok(Self { parts, run_dir, _lock: lock }),
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
        let run_dir = run_dir::make(name)?;
        // Released at once: `start` takes it again, and refuses a second supervisor.
        drop(Lock::take(&run_dir, name)?);
        let dir = run_dir.join("manifests");
        let _ = std::fs::remove_dir_all(&dir);
        make_dir(&dir)
    }

    /// A way to talk to it.
    pub fn handle(&self) -> StageHandle {
        self.parts.handle.clone()
    }

    /// The network namespace of a node, for instance to watch its link
    /// ([`crate::cluster::addresses::NODE_LINK`]).
    pub fn node_namespace(&self, node: &str) -> Option<NetworkNamespace> {
        self.parts.nodes.iter().find(|known| known.name == node).map(|node| node.network.namespace.clone())
    }

    /// Directory of the stage's sockets, logs and state.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Ends every process and removes everything the stage made.
    pub async fn shutdown(self) {
        let Self { parts, run_dir, _lock } = self;
        let Parts { handle, nodes, fabric, core, proxies, stop_proxies, tasks } = parts;
        handle.ctx.journal.note("the stage ends");
        let (done, finished) = oneshot::channel();
        if handle.requests.send(Request::Shutdown(done)).await.is_ok() {
            let _ = finished.await;
        }
        let _ = core.await;
        stop_proxies.send_replace(true);
        for proxy in proxies {
            let _ = proxy.await;
        }
        tasks.end().await;
        // A proxy that made itself a daemon, or a program that watches a node's link. Nobody could find them later.
        let namespaces = nodes.iter().map(|node| node.network.namespace.id()).collect();
        let _ = tokio::task::spawn_blocking(move || sweep::end_inside(&namespaces, GUESTS_GRACE)).await;
        let networks = &handle.ctx.networks;
        for node in &nodes {
            networks.remove(&node.network);
        }
        networks.remove(&fabric);
        // What a stage before this one left and could not be removed when this one started.
        let swept = run_dir.clone();
        let _ = tokio::task::spawn_blocking(move || sweep::sweep(&swept)).await;
        remove_netns_dir(networks.dir());
        if let Err(reason) = networks.names.remove_run_dir() {
            tracing::warn!(%reason, "cannot remove {}", run_dir.display());
        }
    }
}

impl std::ops::Deref for Stage {
    type Target = StageHandle;

    fn deref(&self) -> &StageHandle {
        &self.parts.handle
    }
}
