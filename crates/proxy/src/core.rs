//! What all that a proxy carries has in common.

use std::sync::Arc;

use leno_model::Identity;
use leno_telemetry::{AccessLog, Metrics, Readiness};
use leno_tls::{CertificateError, CertificateManager, MeshIdentity};
use leno_tunnel::timers;

use crate::config::Config;
use crate::mesh::MeshState;
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
    /// The threads that it carries on.
    pub workers: Vec<Worker>,
    /// As [`crate::Host`] says.
    pub trim: fn(),
}

impl Core {
    /// The certificate for `identity`; waits for the first one. For a worker.
    ///
    /// # Errors
    /// If there is none in time.
    pub async fn identity(&self, identity: &Identity) -> Result<Arc<MeshIdentity>, CertificateError> {
        match self.certificates.current(identity) {
            Some(current) => Ok(current),
            None => timers::entered(self.certificates.identity(identity)).await,
        }
    }
}
