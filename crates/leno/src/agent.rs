//! `leno agent`: keeps the pods of a cluster's node in the mesh.

mod cluster;

use std::sync::Arc;

use anyhow::Context as _;
use leno_agent::{Config, Parts, sysctls};
use leno_capture::NetworkNamespace;
use leno_kubernetes::{Client, Cluster, NodeFeed};
use leno_telemetry::metrics::Page;
use leno_telemetry::{Readiness, admin, logging};
use tokio::sync::mpsc;

use crate::signals::Signals;
use cluster::{Forward, NodeCluster};

/// Runs until told to stop.
pub(crate) fn run(config: Config) -> anyhow::Result<()> {
    let format = config.log_format.parse().map_err(|error: String| anyhow::anyhow!("LOG_FORMAT: {error}"))?;
    let log = logging::init(format, logging::Target::Stdout, "info")?;
    // Before there are threads.
    if let Err(error) = sysctls::make_writable() {
        tracing::warn!(
            "kernel settings of pods can't be changed ({error}); connections may be lost when one node proxy follows another. \
             The agent needs the capability SYS_ADMIN and no AppArmor profile"
        );
    }
    leno_telemetry::raise_descriptor_limit(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(wire(config, log))
}

/// The parts of an agent.
async fn wire(config: Config, log: logging::LogHandle) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let readiness = Readiness::default();
    let page = Page::new("agent", env!("CARGO_PKG_VERSION"));

    // Readiness and metrics.
    let listener = admin::listen(config.port).await.with_context(|| {
        let port = config.port;
        format!("can't listen on port {port}; is another agent running on this node? Choose another port with --port")
    })?;
    let port = listener.local_addr()?.port();
    let routes = admin::readiness(&readiness).merge(admin::metrics(&page)).merge(admin::logging(&log));
    tokio::spawn(admin::serve(listener, routes, std::future::pending()));

    // The cluster: what it tells, and what it is told.
    let named = Cluster { kubeconfig: config.kubeconfig.clone(), context: config.context.clone() };
    let client = Client::new(&named).await?;
    tracing::info!(node = config.node, server = client.server(), port, "agent started");
    let (sender, news) = mpsc::unbounded_channel();
    let feed = NodeFeed::new(client.clone(), &config.node, &readiness);
    tokio::spawn(async move { feed.run(&Forward(sender)).await });
    let cluster =
        Arc::new(NodeCluster::new(client, &config.namespace, &config.daemonset, config.node_daemonset.as_deref()));
    let looking = cluster.clone();
    tokio::spawn(async move { looking.look_for_daemonset().await });

    let parts = Parts {
        cluster,
        news,
        readiness,
        page,
        program: std::env::current_exe().context("can't find this program's own file")?,
        node: NetworkNamespace::current()?,
    };
    leno_agent::run(config, parts, async move { signals.come().await }).await?;
    Ok(())
}
