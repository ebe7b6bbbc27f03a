//! State shared by all parts of a stage.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leno_capture::Gate;
use leno_model::Mesh;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::cluster::config::Config;
use crate::stage::journal::Journal;
use crate::stage::network::Networks;
use crate::stage::plane::Plane;

/// Longest to wait for proxies to confirm a change before going on: a proxy that hangs must not
/// keep pods from ending.
pub(crate) const SETTLE: Duration = Duration::from_secs(1);

/// State shared by all parts of a stage.
pub(crate) struct Context {
    pub networks: Networks,
    pub journal: Journal,
    pub plane: Plane,
    pub executable: PathBuf,
    /// Directory searched first for programs: that of the executable.
    pub programs: PathBuf,
    pub started_in: PathBuf,
    pub run_dir: PathBuf,
    pub cluster_domain: Arc<str>,
    /// Replacement of `/etc/nsswitch.conf`, where the machine's would bypass the cluster's DNS.
    pub nsswitch: Option<PathBuf>,
    pub gate: Gate,
    pub in_force: Vec<watch::Receiver<Arc<Mesh>>>,
    /// ConfigMaps and Secrets as they are now.
    pub config: Mutex<Arc<Config>>,
}

impl Context {
    /// ConfigMaps and Secrets as they are now.
    pub(crate) fn config(&self) -> Arc<Config> {
        self.config.lock().clone()
    }

    /// Waits until everything published has reached the nodes' rules and the proxies.
    pub(crate) async fn settled(&self) {
        let mut mesh = self.plane.mesh();
        let mut in_force = self.in_force.clone();
        let all = async {
            self.plane.settled().await;
            for rules in &mut in_force {
                while !Arc::ptr_eq(&rules.borrow_and_update(), &mesh.borrow_and_update()) {
                    tokio::select! {
                        changed = rules.changed() => if changed.is_err() { break },
                        changed = mesh.changed() => if changed.is_err() { break },
                    }
                }
            }
        };
        if tokio::time::timeout(SETTLE, all).await.is_err() {
            tracing::debug!("going on before every proxy confirmed the last change");
        }
    }
}
