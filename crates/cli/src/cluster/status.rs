//! `leno status`.

use std::collections::BTreeMap;

use anyhow::Context as _;
use leno_install::cluster::{ClusterError, Rollout, installer, rollouts};
use leno_kubernetes::Client;
use leno_objects::{REDIRECTION_ANNOTATION, REDIRECTION_ENABLED};
use serde::Serialize;
use serde_json::Value;

use super::{client, rollout};
use crate::args::{Format, StatusArgs};
use crate::output;

/// What runs, and how many pods are in the mesh, by node.
#[derive(Debug, Serialize)]
pub(crate) struct Status {
    server: String,
    namespace: String,
    components: Vec<Rollout>,
    nodes: BTreeMap<String, Node>,
}

/// Pods of one node that can be in the mesh.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Node {
    in_mesh: usize,
    outside: usize,
    pending: usize,
    /// Proxies that have been replaced and end once their last connections do, or at the drain deadline.
    draining: usize,
}

/// Prints it; with --wait, once everything runs.
pub(super) async fn run(args: StatusArgs) -> anyhow::Result<()> {
    let client = client(&args.cluster).await?;
    let namespace = args.cluster.namespace.clone();
    match installer(&client).await? {
        Some((there, _)) if there == namespace => {}
        Some((there, _)) => return Err(ClusterError::Elsewhere { there }.into()),
        None => return Err(ClusterError::NotInstalled { namespace }.into()),
    }
    let components = if args.wait.wait {
        rollout::settled(&client, &namespace, args.wait.timeout).await?
    } else {
        rollouts(&client, &namespace).await?
    };
    let status = told(&client, namespace, components).await?;
    match args.output.output {
        Format::Json => output::json(&status),
        Format::Text => output::line(&text(&status)),
    }
}

/// What runs now.
pub(crate) async fn gather(client: &Client, namespace: &str) -> anyhow::Result<Status> {
    let components = rollouts(client, namespace).await?;
    told(client, namespace.to_owned(), components).await
}

async fn told(client: &Client, namespace: String, components: Vec<Rollout>) -> anyhow::Result<Status> {
    let nodes = nodes(client, &namespace).await?;
    Ok(Status { server: client.server().to_owned(), namespace, components, nodes })
}

async fn nodes(client: &Client, namespace: &str) -> anyhow::Result<BTreeMap<String, Node>> {
    let pods =
        client.get::<Value>("/api/v1/pods?fieldSelector=status.phase%3DRunning").await.context("listing pods")?;
    Ok(by_node(&pods, namespace))
}

fn by_node(pods: &Value, namespace: &str) -> BTreeMap<String, Node> {
    let mut nodes = BTreeMap::<String, Node>::new();
    for pod in pods["items"].as_array().into_iter().flatten() {
        let Some(name) = pod["spec"]["nodeName"].as_str() else { continue };
        let node = nodes.entry(name.to_owned()).or_default();
        node.draining += usize::from(is_draining(pod, namespace));
        match pod["metadata"]["annotations"][REDIRECTION_ANNOTATION].as_str() {
            _ if pod["spec"]["hostNetwork"] == true => {}
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

fn text(status: &Status) -> String {
    let rows = status.components.iter().map(|component| {
        let because = component.because.clone().unwrap_or_default();
        vec![
            component.name.clone(),
            format!("{}/{}", component.ready, component.wanted),
            component.version.clone(),
            because,
        ]
    });
    let components = output::table(&["COMPONENT", "READY", "VERSION", ""], &rows.collect::<Vec<Vec<_>>>());
    let rows = status.nodes.iter().map(|(name, node)| {
        let counts = [node.in_mesh, node.pending, node.outside, node.draining].map(|count| count.to_string());
        std::iter::once(name.clone()).chain(counts).collect()
    });
    let nodes = output::table(
        &["NODE", "PODS IN MESH", "PENDING", "OUTSIDE", "PROXIES DRAINING"],
        &rows.collect::<Vec<Vec<_>>>(),
    );
    format!("cluster {}, namespace {}\n\n{components}\n\n{nodes}", status.server, status.namespace)
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
            ("n1".to_owned(), Node { in_mesh: 1, outside: 1, pending: 1, draining: 1 }),
            ("n2".to_owned(), Node::default()),
        ];
        assert_eq!(by_node(&pods, "leno-system"), BTreeMap::from(expected));
    }
}
