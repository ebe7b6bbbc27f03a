//! The mesh's own configuration: a ConfigMap of the installation. A control plane has it as a file in its pod, so it needs no
//! right to read ConfigMaps.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use leno_control::translate::{MESH_CONFIG_ENTRY, mesh_config_entry};
use leno_control::{Controller, Feed};
use leno_objects::{Change, Kind, Mode, Object, ObjectKey, decode};
use serde_json::{Value, json};
use tokio::time::sleep;

/// Its name, in the control plane's namespace.
const NAME: &str = "leno-mesh-config";

/// How often the file is looked at. A kubelet takes up to a minute to bring a change, so this adds little.
const LOOK: Duration = Duration::from_secs(3);

/// The ConfigMap of an installation in `namespace`.
pub fn key(namespace: &str) -> ObjectKey {
    ObjectKey::new(Kind::ConfigMap, namespace, NAME)
}

/// The ConfigMap of an installation in `namespace` as a control plane reads it. `entry` is YAML, or why there is none. `None` if
/// the namespace's name can't be one.
pub fn object(namespace: &str, entry: Result<&str, String>) -> Option<Object> {
    let read = entry.and_then(|text| serde_saphyr::from_str::<Value>(text).map_err(|error| error.to_string()));
    let object = json!({
        "apiVersion": Kind::ConfigMap.api_version(), "kind": Kind::ConfigMap.as_str(),
        "metadata": {"name": NAME, "namespace": namespace}, "data": {MESH_CONFIG_ENTRY: mesh_config_entry(read)},
    });
    decode(Kind::ConfigMap, Mode::Lenient, object).ok().map(|decoded| decoded.object)
}

/// Brings the mesh's configuration from a file to a control plane.
#[derive(Debug)]
pub struct MeshConfigFile {
    file: PathBuf,
    namespace: String,
    feed: Feed,
    /// What was read last, or why nothing was.
    read: Option<Result<String, String>>,
}

impl MeshConfigFile {
    /// Reads the file once. Other feeds are announced before. What can't be read keeps nothing waiting: it is told as a finding,
    /// and what was read before stays in force.
    pub fn announce(file: PathBuf, namespace: &str, controller: Controller) -> Self {
        let feed = Feed::announce(controller, &[Kind::ConfigMap]);
        let mut out = Self { file, namespace: namespace.to_owned(), feed, read: None };
        out.look();
        out.feed.complete(&[Kind::ConfigMap]);
        out
    }

    /// Follows the file. Never returns.
    pub async fn run(mut self) {
        loop {
            sleep(LOOK).await;
            self.look();
        }
    }

    /// By name each time: a kubelet replaces what the name leads to.
    fn look(&mut self) {
        let read = fs::read_to_string(&self.file).map_err(|error| format!("{}: {error}", self.file.display()));
        if self.read.as_ref() == Some(&read) {
            return;
        }
        if read.is_ok() {
            tracing::info!(file = %self.file.display(), "mesh configuration read");
        }
        let entry = read.as_ref().map(String::as_str).map_err(Clone::clone);
        self.feed.apply(object(&self.namespace, entry).map(Change::upsert));
        self.read = Some(read);
    }
}

#[cfg(test)]
#[path = "mesh_config_tests.rs"]
mod tests;
