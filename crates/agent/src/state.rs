//! What the agent writes down: for the plugin, which must decide alone while no agent answers, and for the next agent, which
//! may start while the API server is away.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use leno_capture::zds::PodInfo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::files;

/// The name of the plugin's file, in the agent's directory.
pub(crate) const FILE: &str = "cni-state.json";
/// The name of the next agent's file.
pub(crate) const PODS_FILE: &str = "pods.json";
/// Nobody but root reads them.
const MODE: u32 = 0o600;

/// Which pods may have to be captured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// Namespaces in which pods can be in the mesh: their label says so, or that of a pod of this node.
    pub(crate) namespaces: BTreeSet<String>,
}

/// A pod that is in the mesh.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Remembered {
    pub(crate) uid: String,
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) service_account: String,
    pub(crate) addresses: Vec<IpAddr>,
    /// The uid by which kubelet and runtime know it, if that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) runtime_uid: Option<String>,
}

impl Remembered {
    pub(crate) fn new(info: &PodInfo, addresses: &[IpAddr], runtime_uid: &str) -> Self {
        let PodInfo { uid, name, namespace, service_account } = info.clone();
        let runtime_uid = Some(runtime_uid.to_owned()).filter(|other| *other != uid);
        Self { uid, name, namespace, service_account, addresses: addresses.to_vec(), runtime_uid }
    }

    pub(crate) fn info(&self) -> PodInfo {
        let Self { uid, name, namespace, service_account, .. } = self.clone();
        PodInfo { uid, name, namespace, service_account }
    }
}

/// What was written last; `None` if there is nothing.
///
/// # Errors
/// If the file can't be read or understood.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces the file; it is never seen half-written.
///
/// # Errors
/// If the directory can't be written.
pub(crate) fn write<T: Serialize + ?Sized>(path: &Path, value: &T) -> io::Result<()> {
    let text = serde_json::to_vec(value).map_err(io::Error::other)?;
    files::replace(path, &text, MODE)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_is_written_is_read_by_its_owner_and_nothing_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep").join(FILE);
        assert_eq!(read::<State>(&path).unwrap(), None);
        let state = State { namespaces: ["shop".to_owned()].into() };
        write(&path, &state).unwrap();
        assert_eq!(read(&path).unwrap(), Some(state));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "{\"namesp").unwrap();
        read::<State>(&path).unwrap_err();
    }
}
