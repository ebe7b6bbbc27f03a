//! Whether there is an installation, where, and whose it is.

use http::StatusCode;
use leno_kubernetes::Client;
use serde_json::Value;

use super::ClusterError;
use super::error::doing;
use super::requests::{MANAGED_BY, MANAGER};

/// What keeps an installation's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Installer {
    /// This program.
    Leno,
    /// Helm, with the same chart.
    Helm,
    /// Something else, such as `kubectl apply`.
    Other,
}

/// The namespace of the cluster's installation and what keeps it; `None` if there is none.
///
/// # Errors
///
/// If the API server can't tell.
pub async fn installer(client: &Client) -> Result<Option<(String, Installer)>, ClusterError> {
    // It is there from the first to the last moment, and has no namespace of its own. A person may have removed it.
    let binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/leno-control";
    let found = client.find::<Value>(binding).await.map_err(doing("looking for an installation"))?;
    let Some(object) = found else { return parts(client).await };
    let namespace = object["subjects"][0]["namespace"].as_str().unwrap_or(crate::NAMESPACE).to_owned();
    Ok(Some((namespace, by(&object))))
}

/// By its parts, where somebody has removed the binding. Whoever may not look for them in all namespaces finds none.
async fn parts(client: &Client) -> Result<Option<(String, Installer)>, ClusterError> {
    for (plural, name) in [("deployments", "leno-control"), ("daemonsets", "leno-agent"), ("daemonsets", "leno-node")] {
        let path = format!(
            "/apis/apps/v1/{plural}?labelSelector=app.kubernetes.io/part-of%3Dleno%2Capp.kubernetes.io/name%3D{name}"
        );
        let list = match client.find::<Value>(&path).await {
            Err(error) if error.status() == Some(StatusCode::FORBIDDEN) => return Ok(None),
            list => list.map_err(doing("looking for an installation"))?.unwrap_or_default(),
        };
        let found = list["items"].as_array().into_iter().flatten().find(|it| it["metadata"]["name"] == name);
        if let Some(object) = found {
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or(crate::NAMESPACE).to_owned();
            return Ok(Some((namespace, by(object))));
        }
    }
    Ok(None)
}

fn by(object: &Value) -> Installer {
    match object["metadata"]["labels"][MANAGED_BY].as_str() {
        Some(MANAGER) => Installer::Leno,
        Some("Helm") => Installer::Helm,
        _ => Installer::Other,
    }
}
