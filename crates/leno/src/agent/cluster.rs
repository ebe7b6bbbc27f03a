//! The API server, as the agent of a node sees it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use leno_agent::{Cluster, Farewell, News, PodName};
use leno_kubernetes::{Client, Error, Listener, Patch};
use leno_objects::{
    Change, Kind, Labels, Mode, Object, Pod, REDIRECTION_ANNOTATION, REDIRECTION_ENABLED, UNINSTALLED_ANNOTATION,
    decode,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep;

/// Between two questions about the DaemonSet.
const AGAIN: Duration = Duration::from_secs(1);
/// An API server that has just started may refuse what it will allow in a moment.
const REFUSALS: u32 = 3;

/// Hands on what the API server tells.
pub(super) struct Forward(pub(super) mpsc::UnboundedSender<News>);

impl Listener for Forward {
    fn all(&self, kind: Kind, objects: Vec<Arc<Object>>) {
        // The agent ends.
        let _ = self.0.send(News::All(kind, objects));
    }

    fn changed(&self, changes: Vec<Change>) {
        let _ = self.0.send(News::Changed(changes));
    }
}

/// The cluster of an agent.
pub(super) struct NodeCluster {
    client: Client,
    /// The path of the agent's own DaemonSet.
    daemonset: String,
    /// That of the node proxies, if they are Leno's.
    proxies: Option<String>,
    /// Whether the agent's own was there: an agent that somebody starts by hand has none that could be removed.
    has_daemonset: AtomicBool,
}

#[derive(Deserialize)]
struct Head {
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    deletion_timestamp: Option<String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl NodeCluster {
    pub(super) fn new(client: Client, namespace: &str, daemonset: &str, proxies: Option<&str>) -> Self {
        let path = |name: &str| format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}");
        let (daemonset, proxies) = (path(daemonset), proxies.map(path));
        Self { client, daemonset, proxies, has_daemonset: AtomicBool::new(false) }
    }

    /// Finds out whether the agent has a DaemonSet; asks until there is an answer.
    pub(super) async fn look_for_daemonset(&self) {
        loop {
            match self.client.find::<Head>(&self.daemonset).await {
                Ok(found) => return self.has_daemonset.store(found.is_some(), Ordering::Relaxed),
                Err(error) => tracing::debug!(%error, "can't tell whether the agent belongs to a DaemonSet"),
            }
            sleep(AGAIN).await;
        }
    }

    async fn object(&self, kind: Kind, path: &str) -> Result<Option<Object>, String> {
        let found = self.client.find::<Value>(path).await.map_err(|error| error.to_string())?;
        let Some(value) = found else { return Ok(None) };
        let decoded = decode(kind, Mode::Lenient, &value).map_err(|error| format!("{path} can't be read: {error}"))?;
        Ok(Some(decoded.object))
    }

    async fn why_it_ends(&self) -> Farewell {
        if !self.has_daemonset.load(Ordering::Relaxed) {
            return Farewell::Restart;
        }
        let own = match self.removed(&self.daemonset).await {
            Ok(Some(own)) => own,
            Ok(None) => return Farewell::Restart,
            Err(error) => {
                tracing::warn!("can't ask whether the agent is being removed, so it leaves all as it is: {error}");
                return Farewell::Restart;
            }
        };
        let Some(proxies) = &self.proxies else { return Farewell::Agent };
        if own.annotations.contains_key(UNINSTALLED_ANNOTATION) {
            return Farewell::AgentAndProxy;
        }
        match self.removed(proxies).await {
            Ok(Some(_)) => Farewell::AgentAndProxy,
            Ok(None) => Farewell::Agent,
            Err(error) => {
                tracing::warn!("can't ask whether the proxies stay, so what they have mounted stays: {error}");
                Farewell::Agent
            }
        }
    }

    /// What is known of a DaemonSet that is going or gone; `None` if it stays.
    async fn removed(&self, daemonset: &str) -> Result<Option<Metadata>, Error> {
        for _ in 0..REFUSALS {
            match self.client.find::<Head>(daemonset).await {
                Ok(None) => break,
                Ok(Some(Head { metadata })) => return Ok(metadata.deletion_timestamp.is_some().then_some(metadata)),
                // Its permissions may have been removed before it.
                Err(Error::Refused { status, .. }) if matches!(status.as_u16(), 401 | 403) => sleep(AGAIN).await,
                Err(error) => return Err(error),
            }
        }
        Ok(Some(Metadata::default()))
    }
}

impl Cluster for NodeCluster {
    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Option<Pod>, String>> {
        async move {
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
            match self.object(Kind::Pod, &path).await? {
                Some(Object::Pod(pod)) => Ok(Some(pod)),
                _ => Ok(None),
            }
        }
        .boxed()
    }

    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Labels>, String>> {
        async move {
            let object = self.object(Kind::Namespace, &format!("/api/v1/namespaces/{name}")).await?;
            Ok(object.map(|object| object.metadata().labels.clone()))
        }
        .boxed()
    }

    fn tell<'a>(&'a self, pod: &'a PodName, captured: bool) -> BoxFuture<'a, Result<(), String>> {
        async move {
            let path = format!("/api/v1/namespaces/{}/pods/{}/status", pod.namespace, pod.name);
            let value = if captured { json!(REDIRECTION_ENABLED) } else { Value::Null };
            // With the uid, the API server refuses to write on another pod of the same name.
            let patch = json!({"metadata": {"uid": pod.uid, "annotations": {REDIRECTION_ANNOTATION: value}}});
            match self.client.patch(&path, Patch::Merge, &patch).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error.to_string()),
                _ => Ok(()),
            }
        }
        .boxed()
    }

    fn farewell(&self) -> BoxFuture<'_, Farewell> {
        self.why_it_ends().boxed()
    }
}
