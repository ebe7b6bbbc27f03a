//! State shared by all parts of a stage.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leno_capture::Gate;
use leno_model::{Mesh, ports};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::Error;
use crate::cluster::addresses::control_plane;
use crate::cluster::config::Config;
use crate::cluster::waypoints::{Surroundings, inherited};
use crate::stage::journal::Journal;
use crate::stage::network::Networks;
use crate::stage::plane::{Plane, ROOT_CERT};

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

    /// What waypoints need to know of the stage.
    pub(crate) fn around_waypoints(&self) -> Result<Surroundings, Error> {
        let roots = self.run_dir.join(ROOT_CERT);
        let roots = std::fs::read_to_string(&roots).map_err(Error::io(format!("cannot read {}", roots.display())))?;
        Ok(Surroundings {
            program: self.executable.clone(),
            control: SocketAddr::new(control_plane().0.into(), ports::CONTROL),
            roots,
            cluster_domain: self.cluster_domain.clone(),
            ipv6: self.networks.ipv6,
            inherited: inherited(std::env::vars()),
        })
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
