//! What all that a proxy carries has in common.

use std::sync::Arc;

use leno_model::Workload;
use leno_telemetry::{AccessLog, Metrics, Readiness};
use leno_tls::{CertificateManager, MeshIdentity};
use leno_tunnel::timers;

use crate::config::Config;
use crate::mesh::MeshState;
use crate::peers::{AllUnproven, Failure};
use crate::threads::Worker;

/// What every proxy has, whatever it carries.
pub struct Core {
    /// Its settings.
    pub config: Config,
    /// The mesh as discovery tells it.
    pub state: Arc<MeshState>,
    /// The certificates it speaks with.
    pub certificates: Arc<CertificateManager>,
    /// What it counts.
    pub metrics: Metrics,
    /// What it tells of each connection or request.
    pub access_log: AccessLog,
    /// What it waits for before it may be given work.
    pub readiness: Readiness,
    /// How its tunnels behave.
    pub tunnel: leno_tunnel::Settings,
    /// Peers that have proved nothing yet.
    pub unproven: AllUnproven,
    /// The threads that it carries on.
    pub workers: Vec<Worker>,
    /// As [`crate::Host`] says.
    pub trim: fn(),
}

impl Core {
    /// The certificate that `workload` speaks with; waits for the first one. For a worker.
    ///
    /// # Errors
    /// If it can have none, or there is none in time.
    pub async fn identity(&self, workload: &Workload) -> Result<Arc<MeshIdentity>, Failure> {
        let identity = workload.identity().ok_or_else(|| Failure::NoIdentity(workload.uid.to_string()))?;
        if let Some(current) = self.certificates.current(&identity) {
            return Ok(current);
        }
        #[expect(clippy::disallowed_methods, reason = "entered as it must be")]
        let held = timers::entered(self.certificates.identity(&identity)).await;
        held.map_err(|error| Failure::Certificate(Arc::new(error)))
    }
}
