//! The stage of the demonstration, and the ways to look at it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use leno_capture::NetworkNamespace;
use leno_capture::sniff::Sniffer;
use leno_local::addresses::NODE_LINK;
use leno_local::client::{Client, NodePort};
use leno_local::names::StageName;
use leno_local::{Stage, StageOptions};
use tokio::sync::mpsc;

use super::load::interval;
use super::metrics::Metrics;
use super::processes;
use crate::sample::Interval;
use crate::{metrics, proxy_page};

/// Namespace of the sample application.
pub(super) const NAMESPACE: &str = "emojivoto";

const NODES: [&str; 2] = ["node-1", "node-2"];
/// Longest that the sample may take to be ready; it takes a second or two.
const READY: Duration = Duration::from_secs(30);
/// How often a log is looked at. The clients write once per second.
const LOOK: Duration = Duration::from_millis(20);

/// A running stage with the sample application.
pub(super) struct Scene {
    stage: Stage,
    name: StageName,
}

impl Scene {
    /// Starts the stage and waits until everything is ready.
    pub(super) async fn start(name: StageName, manifests: &Path) -> anyhow::Result<Self> {
        let mut options = StageOptions::new(name.clone());
        options.manifests = vec![manifests.to_owned()];
        let stage = Stage::start(options).await?;
        let scene = Self { stage, name };
        if let Err(error) = scene.stage.wait_ready(READY).await {
            scene.stop().await;
            return Err(error).context("the sample application did not come up");
        }
        Ok(scene)
    }

    /// Ends everything, and tells what is there nevertheless.
    pub(super) async fn stop(self) -> Vec<String> {
        let namespaces: Vec<_> = self.namespaces().into_iter().flatten().collect();
        let run_dir = self.stage.run_dir().to_owned();
        self.stage.shutdown().await;
        let mut left = Vec::new();
        for (owner, namespace) in namespaces {
            let processes = processes::of(namespace.id());
            if !processes.is_empty() {
                left.push(format!("processes of {owner}: {processes}"));
            }
        }
        let names = NetworkNamespace::list(Path::new(leno_capture::NAMED_DIR)).unwrap_or_default();
        left.extend(names.into_iter().filter(|name| self.name.owns(name)));
        if run_dir.exists() {
            left.push(run_dir.display().to_string());
        }
        left
    }

    /// Completes when somebody says `leno down`.
    pub(super) async fn down_requested(&self) {
        self.stage.down_requested().await;
    }

    /// The lines that a client prints from now on.
    pub(super) async fn follow(&self, deployment: &str) -> anyhow::Result<mpsc::Receiver<Interval>> {
        let files = Client::connect(&self.name).await?.logs(NAMESPACE, deployment, None).await?;
        let log = files.into_iter().next().with_context(|| format!("{deployment} has no container"))?;
        let (sender, receiver) = mpsc::channel(64);
        tokio::spawn(follow(log.current, sender));
        Ok(receiver)
    }

    /// Looks for `text` on the link between the nodes: there are two, so all between them passes the first's.
    pub(super) fn watch_link(&self, text: &str) -> anyhow::Result<Sniffer> {
        let node = self.node(NODES[0])?;
        Ok(Sniffer::start(&node, Some(NODE_LINK), text.as_bytes())?)
    }

    fn node(&self, node: &str) -> anyhow::Result<NetworkNamespace> {
        self.stage.node_namespace(node).with_context(|| format!("the stage has no {node}"))
    }

    /// The counters of all node proxies together.
    pub(super) async fn metrics(&self) -> anyhow::Result<Metrics> {
        let mut all = Metrics::default();
        for node in NODES {
            let proxy = self.stage.dial(node, NodePort::Metrics).await?;
            let text = proxy_page::get(proxy, metrics::PATH).await?;
            all.add(Metrics::parse(&text));
        }
        Ok(all)
    }

    /// Whether every pod is in the mesh.
    pub(super) fn all_in_mesh(&self) -> bool {
        self.stage.listing().pods.iter().all(|pod| pod.in_mesh)
    }

    /// The namespaces of all pods.
    fn namespaces(&self) -> anyhow::Result<Vec<(String, NetworkNamespace)>> {
        self.stage
            .listing()
            .pods
            .iter()
            .map(|pod| {
                let name = format!("{}/{}", pod.namespace, pod.name);
                let pid = pod.pid.with_context(|| format!("{name} has no process"))?;
                let namespace = NetworkNamespace::from_path(Path::new(&format!("/proc/{pid}/ns/net")))?;
                Ok((name, namespace))
            })
            .collect()
    }

    /// The processes of every pod.
    pub(super) fn processes(&self) -> anyhow::Result<BTreeMap<String, String>> {
        Ok(self.namespaces()?.into_iter().map(|(pod, namespace)| (pod, processes::of(namespace.id()))).collect())
    }

    /// Why a connection would be denied, if it would, in the words of the policy that decides.
    pub(super) fn explain_denial(&self, source: &str, destination: &str) -> anyhow::Result<Option<String>> {
        let (source, destination) = (format!("{NAMESPACE}/{source}"), format!("{NAMESPACE}/{destination}"));
        let explained = self.stage.explain(&source, &destination, None)?;
        let verdicts = explained.json.as_array().into_iter().flatten().flat_map(|explanation| {
            explanation["endpoints"].as_array().into_iter().flatten().map(|endpoint| &endpoint["arrival"])
        });
        let denial = verdicts.into_iter().find(|arrival| arrival["allowed"] == false);
        Ok(denial.and_then(|arrival| arrival["verdict"].as_str()).map(str::to_owned))
    }

    /// The log of a node's proxy.
    pub(super) async fn proxy_log(&self, node: &str) -> anyhow::Result<String> {
        let path = self.stage.run_dir().join(node).join("proxy.log");
        tokio::fs::read_to_string(&path).await.with_context(|| format!("reading {}", path.display()))
    }
}

/// Passes on the intervals that are appended to a log, until nobody wants them. Logs of this
/// length are never begun anew.
async fn follow(log: PathBuf, lines: mpsc::Sender<Interval>) {
    // The stage made the file before it said that the pod is ready.
    let Ok(file) = File::open(log) else { return };
    let mut reader = BufReader::new(file);
    let mut line = String::new();
    loop {
        match reader.read_line(&mut line) {
            Err(_) => return,
            // The end for now, maybe in the middle of a line.
            Ok(_) if !line.ends_with('\n') => tokio::time::sleep(LOOK).await,
            Ok(_) => {
                if let Some(interval) = interval(&line)
                    && lines.send(interval).await.is_err()
                {
                    return;
                }
                line.clear();
            }
        }
    }
}
