//! Puts objects into a cluster, by server-side apply: what others have changed in fields that an installation does not name
//! stays as it is.

use std::collections::BTreeSet;

use leno_kubernetes::{Client, Patch};
use serde_json::Value;

use super::error::doing;
use super::requests::{AS_MANAGER, MANAGED_BY, MANAGER, delete_ours};
use super::resource::{RESOURCES, Resource};
use super::{ClusterError, Installer, Record, installer, is_ending, meshes};
use crate::{Manifest, Release};

/// What was done.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Applied {
    /// How many objects were applied.
    pub objects: usize,
    /// Definitions that somebody else brought, and that were left alone.
    pub foreign: Vec<String>,
    /// What an earlier version or profile had, and is not needed any more.
    pub removed: Vec<String>,
}

/// Makes a cluster have the objects of `release`, and no others of an earlier installation.
///
/// # Errors
///
/// If the installation is Helm's, or is in another namespace, or if the API server refuses. What has been applied by then stays:
/// the same call goes on from there.
pub async fn apply(client: &Client, release: &Release, record: &Record) -> Result<Applied, ClusterError> {
    let manifests = release.render()?;
    match installer(client).await? {
        Some((there, _)) if there != release.namespace => return Err(ClusterError::Elsewhere { there }),
        Some((namespace, Installer::Helm)) => return Err(ClusterError::Helms { namespace }),
        _ => {}
    }
    // What agents have taken from the nodes already, proxies that still run would miss.
    if is_ending(client, &release.namespace).await? {
        return Err(ClusterError::HalfRemoved { namespace: release.namespace.clone() });
    }
    meshes::refuse(client, release.values.checked()?).await?;
    let mut applied = Applied::default();
    let mut kept = BTreeSet::new();
    for manifest in &manifests {
        if manifest.kind() == "CustomResourceDefinition" && is_foreign(client, manifest).await? {
            applied.foreign.push(manifest.name().to_owned());
            continue;
        }
        kept.insert(apply_one(client, manifest).await?);
        applied.objects += 1;
    }
    record.write(client, &release.namespace).await?;
    kept.insert(super::record::path(&release.namespace));
    for resource in &RESOURCES {
        // Definitions have users' objects, and go only when a person says so; the namespace has the record.
        if ["CustomResourceDefinition", "Namespace"].contains(&resource.kind) {
            continue;
        }
        applied.removed.extend(delete_ours(client, resource, &release.namespace, &kept).await?);
    }
    Ok(applied)
}

/// Returns the object's path.
async fn apply_one(client: &Client, manifest: &Manifest) -> Result<String, ClusterError> {
    let mut object = manifest.object.clone();
    if !is_somebodys_namespace(client, manifest).await? {
        object["metadata"]["labels"][MANAGED_BY] = MANAGER.into();
    }
    let name = format!("{} {}", manifest.kind(), manifest.name());
    let resource = Resource::of(manifest.kind()).ok_or_else(|| crate::Error::Chart {
        file: "a template",
        reason: format!("nothing is known about the kind of {name}"),
    })?;
    let path = resource.path(&object);
    let asked = format!("{path}?{AS_MANAGER}");
    client.patch(&asked, Patch::Apply, &object).await.map_err(doing(format!("applying {name}")))?;
    Ok(path)
}

/// Whether this is a namespace that was there before. It gets the labels that it needs, and outlives the installation.
async fn is_somebodys_namespace(client: &Client, manifest: &Manifest) -> Result<bool, ClusterError> {
    let Some(resource) = Resource::of(manifest.kind()).filter(|resource| resource.kind == "Namespace") else {
        return Ok(false);
    };
    let found = client.find::<Value>(&resource.path(&manifest.object)).await;
    let found = found.map_err(doing(format!("looking for the namespace {}", manifest.name())))?;
    Ok(found.is_some_and(|there| there["metadata"]["labels"][MANAGED_BY] != MANAGER))
}

/// Whether there is a definition already that this program did not bring. Istio's is as good.
async fn is_foreign(client: &Client, manifest: &Manifest) -> Result<bool, ClusterError> {
    let Some(resource) = Resource::of(manifest.kind()) else { return Ok(false) };
    let found = client.find::<Value>(&resource.path(&manifest.object)).await;
    let found = found.map_err(doing(format!("looking for the definition {}", manifest.name())))?;
    let Some(there) = found.filter(|there| there["metadata"]["labels"]["app.kubernetes.io/part-of"] != "leno") else {
        return Ok(false);
    };
    match missing_version(&there, &manifest.object) {
        Some(version) => Err(ClusterError::OldDefinition { name: manifest.name().to_owned(), version }),
        None => Ok(true),
    }
}

/// The newest version of our definition, if theirs serves none that will do.
pub(crate) fn missing_version(theirs: &Value, ours: &Value) -> Option<String> {
    let versions = |definition: &Value| definition["spec"]["versions"].as_array().cloned().unwrap_or_default();
    let wanted = versions(ours).into_iter().find(|version| version["storage"] == true)?["name"].clone();
    // Istio had these long before it called them v1, and the control plane reads all of their versions.
    let any = ours["spec"]["group"] == "networking.istio.io";
    let ours = versions(ours);
    let will_do = |name: &Value| *name == wanted || any && ours.iter().any(|version| version["name"] == *name);
    let served = versions(theirs).iter().any(|version| version["served"] == true && will_do(&version["name"]));
    if served { None } else { wanted.as_str().map(str::to_owned) }
}
