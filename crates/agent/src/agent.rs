//! The agent's life: what it does first, what it goes on doing, and how it ends.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leno_capture::pod_rules::PodRules;
use leno_capture::probe_rules::ProbeRules;
use leno_capture::zds::{self, PodInfo};
use leno_capture::{Gate, NetworkNamespace, pod_rules};
use leno_telemetry::metrics::Page;
use leno_telemetry::{Readiness, ReadyTask};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::cluster::{Cluster, Farewell, News};
use crate::directory::{Directory, Wish};
use crate::install::{Installer, Paths};
use crate::metrics::AgentMetrics;
use crate::pod::Shared;
use crate::probes::Probes;
use crate::processes::Finder;
use crate::registry::Registry;
use crate::removal::{OfProxies, Removal};
use crate::server::Desk;
use crate::state::{self, Remembered};
use crate::{Config, Error};

/// How long an API server that is away keeps the agent from going on with what it wrote down before.
const LISTS: Duration = Duration::from_secs(5);
/// Pods that come together are written down together.
const CALM: Duration = Duration::from_millis(200);
/// How often the CNI configuration is looked at while something is in the way, or where it can't be watched. Whoever brings the
/// network may write it anew at any time.
const CONFIGURATION: Duration = Duration::from_millis(500);
/// How often it is looked at although nothing has changed. Not every file system tells of changes.
const UNCHANGED: Duration = Duration::from_secs(30);
/// How long the API server is asked at the end whether the agent is being removed.
const FAREWELL: Duration = Duration::from_secs(5);

/// What the agent is made with, beside its settings.
pub struct Parts {
    /// The cluster.
    pub cluster: Arc<dyn Cluster>,
    /// What the cluster tells.
    pub news: mpsc::UnboundedReceiver<News>,
    /// What is not ready.
    pub readiness: Readiness,
    /// Where metrics are shown.
    pub page: Page,
    /// The program that is installed as the plugin.
    pub program: PathBuf,
    /// The node's own network namespace.
    pub node: NetworkNamespace,
}

/// How the agent ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The next one goes on where it was: all pods stay captured.
    Left,
    /// It was removed, and took with it all that agents put on the node.
    Removed,
}

/// Runs until `shutdown` completes.
///
/// # Errors
/// If the agent can't start, or can't remove what it should.
pub async fn run(config: Config, parts: Parts, shutdown: impl Future<Output = ()>) -> Result<Ended, Error> {
    let Parts { cluster, mut news, readiness, page, program, node } = parts;
    let mut shutdown = std::pin::pin!(shutdown);
    directory(&config.state_dir, 0o700)?;
    for socket in [&config.cni_socket, &config.zds_socket] {
        directory(socket.parent().unwrap_or(Path::new("/")), 0o755)?;
    }
    // All of them before the first is ready, so that nobody takes the agent for ready in between.
    let [probes_ready, plugin_ready] = ["rules for health checks", "CNI plugin"].map(|name| readiness.task(name));
    let metrics = AgentMetrics::register(&page);
    let gate = Gate::default();
    let finder = Finder::new(config.proc_dir.clone(), node.id(), gate.clone());
    let probes = Probes::new();
    let rules = PodRules {
        dns_capture: config.dns_capture,
        ipv6: config.ipv6,
        probe_source_v4: config.probe_source_v4,
        probe_source_v6: config.probe_source_v6,
        ..PodRules::default()
    };

    // What is there already, by the API server's word or, if it is away, by what was written down.
    let pods_file = config.state_dir.join(state::PODS_FILE);
    let state_file = config.state_dir.join(state::FILE);
    let remembered: Vec<Remembered> = state::read(&pods_file)
        .unwrap_or_else(|error| {
            tracing::warn!("can't read {}: {error}; pods are found by the API server's word", pods_file.display());
            None
        })
        .unwrap_or_default();
    let mut known = Directory::new(config.namespace.clone(), rules, remembered);
    if !config.remove {
        tokio::select! {
            () = lists(&mut known, &mut news, LISTS) => {}
            () = &mut shutdown => return Ok(Ended::Left),
        }
    }
    let wishes: Vec<Wish> = known.wishes().into_values().collect();
    let (found, lost) = find(&finder, &gate, &wishes).await;
    let infos: HashMap<&str, &PodInfo> = wishes.iter().map(|wish| (&*wish.info.uid, &wish.info)).collect();
    let pods = found.iter().filter_map(|(uid, namespace)| Some(((*infos.get(&**uid)?).clone(), namespace.clone())));
    let pods: Vec<_> = pods.collect();
    tracing::info!(
        found = pods.len(),
        not_found = lost.len(),
        complete = known.is_complete(),
        "pods that are captured"
    );

    let proxies = zds::Agent::bind_knowing(&config.zds_socket, pods, lost)?;
    let (moved, moves) = watch::channel(0);
    let shared = Shared {
        proxies,
        finder: finder.clone(),
        probes: probes.clone(),
        gate: gate.clone(),
        cluster: cluster.clone(),
        metrics: metrics.clone(),
        moved,
    };
    let registry = Registry::new(Arc::new(shared), known, state_file.clone());
    registry.act(found);

    let paths = Paths {
        socket: config.cni_socket.clone(),
        state_file: state_file.clone(),
        agent_namespace: config.namespace.clone(),
    };
    let mut installer = Installer::new(config.cni_net_dir.clone(), config.cni_bin_dir.clone(), program, &paths);
    // The chart's `LENO_STATE_DIR`.
    let of_proxies = config.cni_socket.with_file_name("node").join("state");
    let parent = |path: &Path| path.parent().map(Path::to_owned);
    let mut removal = Removal {
        registry: registry.clone(),
        finder,
        gate: gate.clone(),
        node: node.clone(),
        files: vec![pods_file.clone(), state_file, config.cni_socket.clone(), config.zds_socket.clone()],
        directories: parent(&config.cni_socket).into_iter().chain([config.state_dir.clone()]).collect(),
        proc: config.proc_dir.clone(),
        of_proxies: None,
    };
    let of_proxies = OfProxies { socket: parent(&config.zds_socket), state: of_proxies };
    if config.remove {
        removal.of_proxies = Some(of_proxies);
        removal.run(&mut installer).await?;
        return Ok(Ended::Removed);
    }

    let mut work = JoinSet::new();
    let probe_rules = ProbeRules {
        kubelet_uid: config.kubelet_uid,
        source_v4: config.probe_source_v4,
        source_v6: config.probe_source_v6,
    };
    let (kept, counted) = (probes.clone(), metrics.clone());
    let keeping_probes = tokio::spawn(async move { kept.keep(node, probe_rules, gate, counted, probes_ready).await });
    let listener = listen(&config.cni_socket).await?;
    let desk =
        Desk { registry: registry.clone(), cluster: cluster.clone(), metrics: metrics.clone(), proc: config.proc_dir };
    work.spawn(desk.serve(listener));
    work.spawn(keep_installed(installer, registry.clone(), metrics.clone(), plugin_ready));
    work.spawn(keep_saved(registry.clone(), metrics, moves, pods_file));

    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(first) = news.recv() => registry.take(std::iter::once(first).chain(waiting(&mut news))),
        }
    }
    match timeout(FAREWELL, cluster.farewell()).await.unwrap_or(Farewell::Restart) {
        Farewell::Restart => {
            tracing::info!("ended; pods stay captured until the next agent comes");
            return Ok(Ended::Left);
        }
        Farewell::Agent => {}
        Farewell::AgentAndProxy => removal.of_proxies = Some(of_proxies),
    }
    tracing::info!("the agent is being removed from the cluster, so it removes what it put on this node");
    // Nobody must put back what is removed.
    work.shutdown().await;
    probes.stop();
    let _ = keeping_probes.await;
    registry.take(waiting(&mut news));
    let mut installer = Installer::new(config.cni_net_dir, config.cni_bin_dir, PathBuf::new(), &paths);
    removal.run(&mut installer).await?;
    Ok(Ended::Removed)
}

/// The news that have come already.
fn waiting(news: &mut mpsc::UnboundedReceiver<News>) -> impl Iterator<Item = News> {
    std::iter::from_fn(|| news.try_recv().ok())
}

/// Waits for both lists, for `patience` at most.
async fn lists(known: &mut Directory, news: &mut mpsc::UnboundedReceiver<News>, patience: Duration) {
    let deadline = Instant::now() + patience;
    while !known.is_complete() {
        match timeout_at(deadline, news.recv()).await {
            Ok(Some(news)) => known.take(news),
            Ok(None) => return,
            Err(_) => {
                tracing::warn!("the API server has not told all; going on with what the last agent wrote down");
                return;
            }
        }
    }
}

/// The namespaces of those pods that are captured already, and the uids of those that should be and are not found.
async fn find(finder: &Finder, gate: &Gate, wishes: &[Wish]) -> (HashMap<String, NetworkNamespace>, BTreeSet<String>) {
    let (mut found, mut lost) = (HashMap::new(), BTreeSet::new());
    // One look at all processes, which the others share.
    let running = finder.pods().await;
    for wish in wishes.iter().filter(|wish| wish.in_mesh || wish.annotated) {
        let uid = &wish.info.uid;
        let namespace = match running.contains(&wish.runtime_uid) {
            true => finder.find_again(&wish.runtime_uid, &wish.addresses).await,
            false => None,
        };
        match namespace {
            Some(namespace) => {
                let looked = namespace.clone();
                let captured = gate.run(move || pod_rules::redirects(&looked).unwrap_or(false)).await.unwrap_or(false);
                // Others are handed to a proxy in their turn.
                if captured || wish.annotated {
                    found.insert(uid.clone(), namespace);
                }
            }
            None if wish.annotated => drop(lost.insert(uid.clone())),
            None => {}
        }
    }
    (found, lost)
}

/// Keeps the plugin in place. Never returns.
async fn keep_installed(mut installer: Installer, registry: Registry, metrics: AgentMetrics, mut ready: ReadyTask) {
    let mut trouble = None;
    let mut first = true;
    let mut watch = installer.watch();
    loop {
        // Before, the plugin would have to keep all pods waiting when no agent answers.
        if !registry.is_written() {
            ready.not_ready("the namespaces are not known yet");
            sleep(CONFIGURATION).await;
            continue;
        }
        match installer.look() {
            Ok(looked) => {
                if looked.changed {
                    tracing::info!(config = %looked.config.display(), "the CNI plugin is in place");
                    if !first {
                        metrics.repaired("plugin");
                    }
                }
                (first, trouble) = (false, None);
                ready.ready();
            }
            Err(error) => {
                // A directory may have come that was not there, or another have taken its place.
                watch = installer.watch();
                let text = error.to_string();
                if trouble.as_ref() != Some(&text) {
                    tracing::warn!("pods can't be captured when they start: {text}");
                }
                ready.not_ready(&*text);
                trouble = Some(text);
            }
        }
        match &watch {
            // What is in the way may go without a change in these directories.
            Some(watch) if trouble.is_none() => drop(timeout(UNCHANGED, watch.changed()).await),
            _ => sleep(CONFIGURATION).await,
        }
    }
}

/// Writes down which pods are in the mesh. Never returns.
async fn keep_saved(registry: Registry, metrics: AgentMetrics, mut moves: watch::Receiver<u64>, path: PathBuf) {
    let mut saved = None;
    while moves.changed().await.is_ok() {
        sleep(CALM).await;
        moves.mark_unchanged();
        let pods = registry.enrolled();
        metrics.captured.set(i64::try_from(pods.len()).unwrap_or(i64::MAX));
        if saved.as_ref() == Some(&pods) {
            continue;
        }
        match state::write(&path, &pods) {
            Ok(()) => saved = Some(pods),
            Err(error) => tracing::warn!("can't write {}: {error}", path.display()),
        }
    }
}

fn directory(path: &Path, mode: u32) -> Result<(), Error> {
    let made = DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(|source| Error::Directory { path: path.to_owned(), source })
}

/// The plugin's socket, in place of one that a dead agent left.
async fn listen(path: &Path) -> Result<UnixListener, Error> {
    let fail = |source| Error::Socket { path: path.to_owned(), source };
    if UnixStream::connect(path).await.is_ok() {
        return Err(fail(io::ErrorKind::AddrInUse.into()));
    }
    crate::files::remove(path).map_err(fail)?;
    let listener = UnixListener::bind(path).map_err(fail)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(fail)?;
    Ok(listener)
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
