//! The parts that all of a proxy's traffic shares.

use std::sync::Arc;

use leno_model::Workload;
use leno_telemetry::{AccessLog, Metrics, Readiness};
use leno_tls::{CertificateManager, MeshIdentity};
use leno_tunnel::timers;

use crate::config::Config;
use crate::mesh::MeshState;
use crate::peers::{AllUnproven, Failure};
use crate::threads::Worker;

/// The parts that every proxy has, whatever it carries.
pub struct Core {
    /// Its settings.
    pub config: Config,
    /// The mesh as discovery describes it.
    pub state: Arc<MeshState>,
    /// The certificates of its workloads.
    pub certificates: Arc<CertificateManager>,
    /// Its metrics.
    pub metrics: Metrics,
    /// The log of connections or requests.
    pub access_log: AccessLog,
    /// The tasks it waits for before it reports ready.
    pub readiness: Readiness,
    /// Parameters of its tunnels.
    pub tunnel: leno_tunnel::Settings,
    /// Peers that have proved nothing yet.
    pub unproven: AllUnproven,
    /// The threads that carry traffic.
    pub workers: Vec<Worker>,
    /// See [`crate::Host::trim`].
    pub trim: fn(),
}

impl Core {
    /// The certificate of `workload`. Waits for the first one. For use on a worker.
    ///
    /// # Errors
    /// If the workload can't have a certificate, or does not get one in time.
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
