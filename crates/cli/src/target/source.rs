//! Where the proxies are: on a stage or in a cluster. Whoever asks them does not know the difference.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use leno_local::client::{Client, NodePort};
use leno_local::names::StageName;
use tokio::io::{AsyncRead, AsyncWrite};

use super::Target;
use crate::proxy_page;

/// For a page of a proxy. One that is stopped takes connections and says nothing.
const PATIENCE: Duration = Duration::from_secs(5);

/// Proxies of nodes, and ways to their own ports.
pub(crate) trait Source: Clone + Send + Sync + 'static {
    /// A connection to a port of a proxy.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The nodes there are, in order.
    fn nodes(&self) -> impl Future<Output = anyhow::Result<Vec<String>>> + Send;

    /// The waypoints there are, each as `NAMESPACE/POD`, which stands for a node where one is asked for.
    fn waypoints(&self) -> impl Future<Output = anyhow::Result<Vec<String>>> + Send;

    /// Why the proxies are gone for good; `None` if they may come again.
    fn gone(&self) -> impl Future<Output = Option<anyhow::Error>> + Send;

    /// Connects to a port of the proxy of `node`.
    fn dial(&self, node: &str, port: NodePort) -> impl Future<Output = anyhow::Result<Self::Stream>> + Send;

    /// The whole page at `path` of a port of the proxy of `node`.
    fn page(&self, node: &str, port: NodePort, path: &str) -> impl Future<Output = anyhow::Result<String>> + Send {
        async move {
            let page = async { proxy_page::get(self.dial(node, port).await?, path).await };
            let page = tokio::time::timeout(PATIENCE, page).await;
            page.unwrap_or_else(|_| Err(anyhow::anyhow!("it has not answered within {} s", PATIENCE.as_secs())))
        }
    }
}

/// The nodes of a stage.
#[derive(Debug, Clone)]
pub(crate) struct StageNodes(pub(crate) StageName);

impl Source for StageNodes {
    type Stream = tokio::io::BufReader<tokio::net::UnixStream>;

    async fn nodes(&self) -> anyhow::Result<Vec<String>> {
        let listing = Client::connect(&self.0).await?.ps().await?;
        Ok(listing.nodes.into_iter().map(|node| node.name).collect())
    }

    async fn waypoints(&self) -> anyhow::Result<Vec<String>> {
        let listing = Client::connect(&self.0).await?.ps().await?;
        let pods = listing.pods.into_iter().filter(|pod| pod.waypoint && pod.pid.is_some());
        Ok(pods.map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect())
    }

    /// With the stage, all proxies are gone.
    async fn gone(&self) -> Option<anyhow::Error> {
        self.nodes().await.err()
    }

    async fn dial(&self, node: &str, port: NodePort) -> anyhow::Result<Self::Stream> {
        Ok(Client::connect(&self.0).await?.dial(node, port).await?)
    }
}

/// Where the proxies are is known when the program runs.
impl Source for Target {
    type Stream = Pin<Box<dyn Stream>>;

    async fn nodes(&self) -> anyhow::Result<Vec<String>> {
        match self {
            Self::Stage(name) => StageNodes(name.clone()).nodes().await,
            Self::Cluster(nodes) => nodes.nodes().await,
        }
    }

    async fn waypoints(&self) -> anyhow::Result<Vec<String>> {
        match self {
            Self::Stage(name) => StageNodes(name.clone()).waypoints().await,
            Self::Cluster(nodes) => nodes.waypoints().await,
        }
    }

    async fn gone(&self) -> Option<anyhow::Error> {
        match self {
            Self::Stage(name) => StageNodes(name.clone()).gone().await,
            Self::Cluster(nodes) => nodes.gone().await,
        }
    }

    async fn dial(&self, node: &str, port: NodePort) -> anyhow::Result<Self::Stream> {
        Ok(match self {
            Self::Stage(name) => Box::pin(StageNodes(name.clone()).dial(node, port).await?),
            Self::Cluster(nodes) => Box::pin(nodes.dial(node, port).await?),
        })
    }

    async fn page(&self, node: &str, port: NodePort, path: &str) -> anyhow::Result<String> {
        match self {
            Self::Stage(name) => StageNodes(name.clone()).page(node, port, path).await,
            Self::Cluster(nodes) => nodes.page(node, port, path).await,
        }
    }
}

/// A connection of either.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send {}
impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}

/// Those of the nodes that are asked for; all where none is.
///
/// # Errors
/// If one is asked for that does not exist.
pub(crate) async fn chosen<S: Source>(source: &S, wanted: &[String]) -> anyhow::Result<Vec<String>> {
    let nodes = source.nodes().await?;
    if let Some(other) = wanted.iter().find(|wanted| wanted.contains('/') && !nodes.contains(wanted)) {
        anyhow::bail!(
            "{other} is no node; the nodes are {}. Of a waypoint, `leno status` shows whether it is in sync, and `leno explain` \
             what becomes of a request there",
            nodes.join(", ")
        );
    }
    among(nodes, wanted)
}

/// As [`chosen`], among nodes and waypoints. Whoever may not list those is told of the nodes.
///
/// # Errors
/// As [`chosen`].
pub(crate) async fn chosen_proxies<S: Source>(source: &S, wanted: &[String]) -> anyhow::Result<Vec<String>> {
    let mut all = source.nodes().await?;
    match source.waypoints().await {
        Ok(waypoints) => all.extend(waypoints),
        Err(error) => eprintln!("waypoints are left out: {error:#}"),
    }
    among(all, wanted)
}

fn among(nodes: Vec<String>, wanted: &[String]) -> anyhow::Result<Vec<String>> {
    if let Some(unknown) = wanted.iter().find(|wanted| !nodes.contains(wanted)) {
        anyhow::bail!("there is no node {unknown}; the nodes are {}", nodes.join(", "));
    }
    Ok(nodes.into_iter().filter(|node| wanted.is_empty() || wanted.contains(node)).collect())
}
