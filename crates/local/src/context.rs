//! What every part of a stage shares.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leno_model::Mesh;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::Error;
use crate::network::Networks;
use crate::plane::Plane;

/// Longest to wait for proxies to confirm a change before going on: a proxy that hangs must not
/// keep pods from ending.
pub(crate) const SETTLE: Duration = Duration::from_secs(1);

/// What every part of the stage shares.
pub(crate) struct Context {
    pub networks: Networks,
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
}

impl Context {
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

/// Bounds how many threads talk to the kernel's network configuration at a time. It serves one
/// after the other anyway; a hundred pods that start together would be a hundred idle threads.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Semaphore>);

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(4)))
    }

    /// Runs `work` where it may block.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
        let stopping = || Error::Refused("the stage is shutting down".to_owned());
        let _place = self.0.acquire().await.map_err(|_| stopping())?;
        tokio::task::spawn_blocking(work).await.map_err(|_| stopping())
    }
}

/// Background tasks that end with their owner.
#[derive(Default)]
pub(crate) struct Tasks(Vec<JoinHandle<()>>);

impl Tasks {
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.push(tokio::spawn(task));
    }

    /// Ends them and waits until what they hold is released.
    pub(crate) async fn end(mut self) {
        for task in std::mem::take(&mut self.0) {
            task.abort();
            let _ = task.await;
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}
