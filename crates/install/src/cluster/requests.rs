//! What the parts of this module ask the API server for in the same way.

use std::collections::BTreeSet;

use leno_kubernetes::Client;
use serde_json::Value;

use super::ClusterError;
use super::error::doing;
use super::resource::Resource;

/// Who is said to keep an object.
pub(super) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// This program, as the keeper of objects and as the API server's field manager.
pub(super) const MANAGER: &str = "leno";

/// The query of an apply. What is named by an installation is its business, so it takes fields from other managers.
pub(super) const AS_MANAGER: &str = "fieldManager=leno&force=true";

/// Selects everything that an installation has made.
pub(super) const OURS: &str = "labelSelector=app.kubernetes.io/part-of%3Dleno%2Capp.kubernetes.io/managed-by%3Dleno";

/// Selects what the control plane made for Gateways.
pub(super) const WAYPOINTS: &str = "labelSelector=gateway.istio.io/managed%3Dleno.mesh-waypoint-controller";

/// The objects of a collection; none if the API server does not have that kind.
pub(super) async fn list(client: &Client, path: &str) -> Result<Vec<Value>, ClusterError> {
    let found = client.find::<Value>(path).await.map_err(doing("listing what is installed"))?;
    match found.map(|mut list| list["items"].take()) {
        Some(Value::Array(items)) => Ok(items),
        _ => Ok(Vec::new()),
    }
}

/// Deletes an object, and all that belongs to it before it. That it is gone already is fine.
pub(super) async fn delete(client: &Client, path: &str, name: &str) -> Result<(), ClusterError> {
    delete_by("Foreground", client, path, name).await
}

/// Deletes an object to which nothing belongs. It is gone when this returns; by [`delete`], one whose kind was defined lately
/// stays until the garbage collector has heard of that kind, half a minute after an installation.
pub(super) async fn delete_alone(client: &Client, path: &str, name: &str) -> Result<(), ClusterError> {
    delete_by("Background", client, path, name).await
}

async fn delete_by(propagation: &str, client: &Client, path: &str, name: &str) -> Result<(), ClusterError> {
    match client.delete(&format!("{path}?propagationPolicy={propagation}")).await {
        Err(error) if !error.is_not_found() => Err(doing(format!("deleting {name}"))(error)),
        _ => Ok(()),
    }
}

/// Deletes the objects of a kind that installations have made, but for those at the paths to `keep`. Returns their names.
pub(super) async fn delete_ours(
    client: &Client,
    resource: &Resource,
    namespace: &str,
    keep: &BTreeSet<String>,
) -> Result<Vec<String>, ClusterError> {
    let mut deleted = Vec::new();
    for object in list(client, &format!("{}?{OURS}", resource.all(Some(namespace)))).await? {
        let path = resource.path(&object);
        if !keep.contains(&path) {
            let name = format!("{} {}", resource.kind, object["metadata"]["name"].as_str().unwrap_or_default());
            delete(client, &path, &name).await?;
            deleted.push(name);
        }
    }
    Ok(deleted)
}

/// Whether there is an object at this path.
pub(super) async fn exists(client: &Client, path: &str) -> Result<bool, ClusterError> {
    let found = client.find::<Value>(path).await.map_err(doing("looking for what is left"))?;
    Ok(found.is_some())
}
