//! What there is of a stage.

use std::time::SystemTime;

use anyhow::Context as _;
use leno_local::client::{CONTROL_PLANE, Client, NodePort};
use leno_local::logs::{Source as LogSource, Wanted, find_logs, print_logs};
use leno_local::names::StageName;

use super::archive::Archive;
use crate::args::CollectArgs;
use crate::target::{Source, StageNodes, chosen};
use crate::{config, metrics};

/// The pages of a node's proxy, and how they are called in the archive.
pub(super) const PAGES: [(NodePort, &str, &str); 4] = [
    (NodePort::Admin, "/status", "status.json"),
    (NodePort::Admin, config::PATH, "config_dump.json"),
    (NodePort::Admin, "/connections", "connections.jsonl"),
    (NodePort::Metrics, metrics::PATH, "metrics.txt"),
];

/// Adds what a stage knows to the archive.
pub(super) async fn collect(archive: &mut Archive, stage: &StageName, args: &CollectArgs) -> anyhow::Result<()> {
    let listing = async { anyhow::Ok(Client::connect(stage).await?.ps().await?) }.await;
    let source = StageNodes(stage.clone());
    let mut nodes = Vec::new();
    match listing {
        Ok(listing) => {
            archive.json("status.json", &listing)?;
            nodes = chosen(&source, &args.node).await?;
        }
        Err(error) => archive.failed("status.json", &error),
    }
    for node in &nodes {
        pages(archive, &source, node).await?;
        let log = log(stage, &LogSource::Node(node.clone()), args).await;
        archive.read(&format!("nodes/{node}/proxy.log"), log)?;
    }
    if !nodes.is_empty() {
        let page = source.page(CONTROL_PLANE, NodePort::Metrics, metrics::PATH).await;
        archive.read("control/metrics.txt", page)?;
    }
    let log = log(stage, &LogSource::Stage, args).await;
    archive.read("stage.log", log)
}

/// Adds what a node's proxy tells.
pub(super) async fn pages<S: Source>(archive: &mut Archive, source: &S, node: &str) -> anyhow::Result<()> {
    for (port, path, name) in PAGES {
        let page = source.page(node, port, path).await;
        archive.read(&format!("nodes/{node}/{name}"), page)?;
    }
    Ok(())
}

async fn log(stage: &StageName, source: &LogSource, args: &CollectArgs) -> anyhow::Result<String> {
    let found = find_logs(stage, source).await?;
    let since = SystemTime::now().checked_sub(args.since);
    let wanted = Wanted { follow: false, tail: None, since };
    let mut text = Vec::new();
    print_logs(stage, &found.files, wanted, &mut text).await.context("reading it")?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
