//! `leno status` of a cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use leno_control::Followers;
use leno_install::cluster::{ClusterError, Rollout, installer, rollouts};
use leno_model::ports;
use leno_objects::{REDIRECTION_ANNOTATION, REDIRECTION_ENABLED};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::proxies::{PAGE, Proxy};
use super::{Node, Status, waypoints};
use crate::cluster::settled;
use crate::target::{ClusterNodes, Part, Target, best};

/// How many are asked at a time.
const AT_ONCE: usize = 16;

/// What runs in an installation; if it is to be waited, once all of it does.
pub(super) async fn gather_when(nodes: &ClusterNodes, wait: Option<Duration>) -> anyhow::Result<Status> {
    let (client, namespace) = (nodes.client(), nodes.namespace());
    match installer(client).await {
        Ok(Some((there, _))) if there == namespace => {}
        Ok(Some((there, _))) => return Err(ClusterError::NotHere { namespace: namespace.to_owned(), there }.into()),
        Ok(None) => return Err(ClusterError::NotInstalled { namespace: namespace.to_owned() }.into()),
        // Whoever may look into this namespace need not be let see the whole cluster.
        Err(ClusterError::Forbidden { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    match wait {
        Some(most) => told(nodes, settled(client, namespace, most).await?).await,
        None => gather(nodes).await,
    }
}

/// What runs now.
pub(crate) async fn gather(nodes: &ClusterNodes) -> anyhow::Result<Status> {
    told(nodes, rollouts(nodes.client(), nodes.namespace()).await?).await
}

async fn told(nodes: &ClusterNodes, components: Vec<Rollout>) -> anyhow::Result<Status> {
    let running = "/api/v1/pods?fieldSelector=status.phase%3DRunning";
    let pods = nodes.client().get::<Value>(running).await.context("listing pods")?;
    let mut by_node = by_node(&pods, nodes.namespace());
    let parts = nodes.parts().await?;
    let planes = followers(nodes, &parts).await;
    for (part, proxy) in proxies(nodes, parts).await {
        let mut proxy = proxy;
        proxy.judge(&part.node, &part.pod, &planes);
        by_node.entry(part.node).or_default().proxy = proxy;
    }
    for node in by_node.values_mut().filter(|node| node.proxy == Proxy::default()) {
        node.proxy.problem = Some("no proxy runs here; `leno check` says why".to_owned());
    }
    let of = Target::Cluster(nodes.clone()).json();
    let waypoints = Some(waypoints::gather(nodes, &pods, &planes).await?);
    Ok(Status { of, components: Some(components), nodes: by_node, troubles: Vec::new(), waypoints })
}

/// What all replicas of the control plane say of the proxies.
async fn followers(nodes: &ClusterNodes, parts: &[Part]) -> Result<Vec<Followers>, String> {
    let mut planes = Vec::new();
    for part in parts.iter().filter(|part| part.role == "leno-control" && part.serves()) {
        let page = page(nodes, part, ports::METRICS, leno_control::endpoints::PROXIES).await;
        let read = page.and_then(|page| Ok(serde_json::from_str(&page)?));
        planes.push(read.map_err(|error| format!("{} can't be asked ({error:#})", part.label()))?);
    }
    if planes.is_empty() { Err("no control plane of Leno's runs".to_owned()) } else { Ok(planes) }
}

/// What the proxy of each node says.
async fn proxies(nodes: &ClusterNodes, parts: Vec<Part>) -> Vec<(Part, Proxy)> {
    let mut of_nodes = BTreeMap::<String, Vec<Part>>::new();
    for part in parts.into_iter().filter(|part| part.role == "leno-node") {
        of_nodes.entry(part.node.clone()).or_default().push(part);
    }
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut asking = JoinSet::new();
    for part in of_nodes.into_values().filter_map(best) {
        let (nodes, places) = (nodes.clone(), places.clone());
        asking.spawn(async move {
            // It is never closed.
            let _place = places.acquire().await;
            let proxy = Proxy::of(page(&nodes, &part, ports::ADMIN, PAGE).await);
            (part, proxy)
        });
    }
    asking.join_all().await
}

async fn page(nodes: &ClusterNodes, part: &Part, port: u16, path: &str) -> anyhow::Result<String> {
    let page = nodes.client().page(nodes.namespace(), &part.pod, port, path).await?;
    anyhow::ensure!(page.status == 200, "{path} answers with HTTP status {}: not a proxy of this version", page.status);
    Ok(page.body)
}

fn by_node(pods: &Value, namespace: &str) -> BTreeMap<String, Node> {
    let mut nodes = BTreeMap::<String, Node>::new();
    for pod in pods["items"].as_array().into_iter().flatten() {
        let Some(name) = pod["spec"]["nodeName"].as_str() else { continue };
        let node = nodes.entry(name.to_owned()).or_default();
        node.draining += usize::from(is_draining(pod, namespace));
        match pod["metadata"]["annotations"][REDIRECTION_ANNOTATION].as_str() {
            _ if pod["spec"]["hostNetwork"] == true || waypoints::is_waypoint(pod) => {}
            Some(REDIRECTION_ENABLED) => node.in_mesh += 1,
            Some("pending") => node.pending += 1,
            _ => node.outside += 1,
        }
    }
    nodes
}

/// Whether a pod is a proxy that was told to end.
fn is_draining(pod: &Value, namespace: &str) -> bool {
    let metadata = &pod["metadata"];
    metadata["namespace"] == namespace
        && metadata["labels"]["app.kubernetes.io/name"] == "leno-node"
        && metadata["deletionTimestamp"].is_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_and_proxies_that_drain_are_counted_by_node() {
        let pod = |node: &str, redirection: Option<&str>, host: bool| {
            let annotations = json!({"ambient.istio.io/redirection": redirection});
            json!({"metadata": {"annotations": annotations}, "spec": {"nodeName": node, "hostNetwork": host}})
        };
        let proxy = |node: &str, namespace: &str, ends: Value| {
            let labels = json!({"app.kubernetes.io/name": "leno-node"});
            let metadata = json!({"namespace": namespace, "labels": labels, "deletionTimestamp": ends});
            json!({"metadata": metadata, "spec": {"nodeName": node, "hostNetwork": true}})
        };
        let pods = json!({"items": [
            pod("n1", Some("enabled"), false),
            pod("n1", Some("pending"), false),
            pod("n1", None, false),
            pod("n2", None, true),
            proxy("n1", "leno-system", Value::Null),
            proxy("n1", "leno-system", "2026-11-25T12:00:00Z".into()),
            proxy("n2", "another", "2026-11-25T12:00:00Z".into()),
        ]});
        let expected = [
            ("n1".to_owned(), Node { in_mesh: 1, outside: 1, pending: 1, draining: 1, ..Node::default() }),
            ("n2".to_owned(), Node::default()),
        ];
        assert_eq!(by_node(&pods, "leno-system"), BTreeMap::from(expected));
    }
}
