//! Other meshes in the same cluster, by the labels that their own charts set.

use leno_kubernetes::Client;
use serde_json::Value;

use super::ClusterError;
use super::requests::list;

/// Another mesh's part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Other {
    /// What it is and where, as in "istiod runs in istio-system".
    pub(crate) text: String,
    /// The part of this installation that would do the same for the same pods.
    pub(crate) part: Option<&'static str>,
}

/// What it is, where it is listed, and which part of this installation does the same.
const PARTS: [(&str, &str, Option<&str>); 4] = [
    ("Istio's ztunnel", "/apis/apps/v1/daemonsets?labelSelector=app%3Dztunnel", Some("node")),
    ("Istio's CNI agent", "/apis/apps/v1/daemonsets?labelSelector=k8s-app%3Distio-cni-node", Some("agent")),
    ("istiod", "/apis/apps/v1/deployments?labelSelector=app%3Distiod", None),
    ("Linkerd", "/apis/apps/v1/deployments?labelSelector=linkerd.io/control-plane-component%3Ddestination", None),
];

/// Those that there are.
pub(crate) async fn others(client: &Client) -> Result<Vec<Other>, ClusterError> {
    let mut others = Vec::new();
    for (name, path, part) in PARTS {
        for object in list(client, path).await? {
            // With `app: ztunnel` on our own proxies, Kiali finds them.
            if object["metadata"]["labels"]["app.kubernetes.io/part-of"] == "leno" {
                continue;
            }
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
            others.push(Other { text: format!("{name} runs in {namespace}"), part });
        }
    }
    Ok(others)
}

/// Refuses to do what another mesh does already.
pub(super) async fn refuse(client: &Client, values: &Value) -> Result<(), ClusterError> {
    for other in others(client).await? {
        if let Some(part) = other.part.filter(|part| values[part]["enabled"] == true) {
            return Err(ClusterError::SecondMesh { other: other.text, part });
        }
    }
    Ok(())
}
