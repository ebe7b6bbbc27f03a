//! The API server, as the agent of a node sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use leno_agent::{Cluster, News, PodName};
use leno_kubernetes::{Client, Error, Listener, Patch};
use leno_objects::{Change, Kind, Labels, Mode, Object, Pod, REDIRECTION_ANNOTATION, REDIRECTION_ENABLED, decode};
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
    /// Whether it was there: an agent that somebody starts by hand has none that could be removed.
    has_daemonset: AtomicBool,
}

#[derive(Deserialize)]
struct Head {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    deletion_timestamp: Option<String>,
}

impl NodeCluster {
    pub(super) fn new(client: Client, namespace: &str, daemonset: &str) -> Self {
        let daemonset = format!("/apis/apps/v1/namespaces/{namespace}/daemonsets/{daemonset}");
        Self { client, daemonset, has_daemonset: AtomicBool::new(false) }
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

    async fn is_daemonset_removed(&self) -> bool {
        if !self.has_daemonset.load(Ordering::Relaxed) {
            return false;
        }
        for _ in 0..REFUSALS {
            match self.client.find::<Head>(&self.daemonset).await {
                Ok(found) => return found.is_none_or(|head| head.metadata.deletion_timestamp.is_some()),
                // Its permissions may have been removed before it.
                Err(Error::Refused { status, .. }) if matches!(status.as_u16(), 401 | 403) => sleep(AGAIN).await,
                Err(error) => {
                    tracing::warn!("can't ask whether the agent is being removed, so it leaves all as it is: {error}");
                    return false;
                }
            }
        }
        true
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

    fn is_being_removed(&self) -> BoxFuture<'_, bool> {
        self.is_daemonset_removed().boxed()
    }
}
