//! Whether there is an installation, where, and whose it is.

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
    // It is there from the first to the last moment, and has no namespace of its own.
    let binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/leno-control";
    let found = client.find::<Value>(binding).await.map_err(doing("looking for an installation"))?;
    let Some(object) = found else { return Ok(None) };
    let namespace = object["subjects"][0]["namespace"].as_str().unwrap_or(crate::NAMESPACE).to_owned();
    let installer = match object["metadata"]["labels"][MANAGED_BY].as_str() {
        Some(MANAGER) => Installer::Leno,
        Some("Helm") => Installer::Helm,
        _ => Installer::Other,
    };
    Ok(Some((namespace, installer)))
}
