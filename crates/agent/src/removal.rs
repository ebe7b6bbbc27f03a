//! Takes from the node all that agents put there.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leno_capture::{Gate, NetworkNamespace, pod_hold, pod_rules, probe_rules};
use tokio::time::{Instant, timeout_at};

use crate::install::Installer;
use crate::processes::Finder;
use crate::registry::Registry;
use crate::{Error, files, node_path};

/// How long pods may take to leave the mesh in order. A kubelet waits for thirty seconds.
const PATIENCE: Duration = Duration::from_secs(15);

/// What is to be removed.
pub(crate) struct Removal {
    pub(crate) registry: Registry,
    pub(crate) finder: Finder,
    pub(crate) gate: Gate,
    pub(crate) node: NetworkNamespace,
    pub(crate) files: Vec<PathBuf>,
    /// Removed from the node if they are empty then.
    pub(crate) directories: Vec<PathBuf>,
    /// The node's processes.
    pub(crate) proc: PathBuf,
    /// Where the node's proxy goes, too.
    pub(crate) of_proxies: Option<OfProxies>,
}

/// What a node proxy has mounted. While it runs, it looks for the next agent in there, and never sees a directory that another
/// one makes in the place of one that was removed.
pub(crate) struct OfProxies {
    /// The directory of the socket by which it is handed pods.
    pub(crate) socket: Option<PathBuf>,
    /// What it has saved for the next one, in a directory of its own.
    pub(crate) state: PathBuf,
}

impl Removal {
    /// Removes the plugin first, so that pods start outside the mesh. Then running pods leave the mesh, and rules and files
    /// go.
    ///
    /// # Errors
    /// If the plugin can't be removed: then it stays, with the files that it needs, and everything else is removed.
    pub(crate) async fn run(self, installer: &mut Installer) -> Result<(), Error> {
        let removed = installer.remove();
        let deadline = Instant::now() + PATIENCE;
        for mut standing in self.registry.remove_all() {
            let out = standing.wait_for(|standing| standing.settled && !standing.enrolled);
            if timeout_at(deadline, out).await.is_err() {
                tracing::warn!("a pod did not leave the mesh in time; its connections through the proxy are cut");
            }
        }
        for namespace in self.finder.namespaces().await {
            let work = move || pod_rules::remove(&namespace).and_then(|()| pod_hold::remove(&namespace));
            if let Ok(Err(error)) = self.gate.run(work).await {
                tracing::warn!(%error, "rules stay in a pod; they go with the pod");
            }
        }
        let node = self.node.clone();
        if let Ok(Err(error)) = self.gate.run(move || probe_rules::remove(&node)).await {
            tracing::warn!(%error, "the node's rules for health checks stay; remove the table leno-probes with nft");
        }
        removed?;
        for file in self.files {
            if let Err(error) = files::remove(&file) {
                tracing::warn!(%error, "{} stays", file.display());
            }
        }
        let mut directories = self.directories;
        if let Some(OfProxies { socket, state }) = self.of_proxies {
            // Without the file in which a proxy says whose state it is, it is somebody else's, and goes only if it is empty.
            if state.join("owner").exists()
                && let Err(error) = fs::remove_dir_all(&state)
            {
                tracing::warn!(%error, "{} stays, with the keys of the node's pods", state.display());
            }
            // Those that are in others first.
            directories.splice(0..0, state.ancestors().take(2).map(Path::to_owned).chain(socket));
        }
        for directory in directories {
            // Where the directory is this process's own, as by hand on the node.
            let _ = fs::remove_dir(&directory);
            if let Err(error) = node_path::remove_if_empty(&self.proc, &directory) {
                tracing::warn!(%error, "the node's {} stays", directory.display());
            }
        }
        Ok(())
    }
}
