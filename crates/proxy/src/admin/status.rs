//! `/status`: how this proxy is, in a few lines. [`super::config_dump`] has everything.

use std::path::PathBuf;
use std::sync::Arc;

use leno_tls::{CertificateState, CertificateStatus};
use leno_xds::client::{ConnectionState, Status};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::carrier::{Carrier, Volume};
use crate::core::Core;
use crate::draining::{self, rfc3339};

/// Everything that the page tells, as of one moment.
pub(crate) struct StatusPage {
    node: String,
    discovery: Status,
    certificates: Vec<CertificateStatus>,
    volume: Volume,
    untold: Vec<String>,
    draining: Option<PathBuf>,
}

impl StatusPage {
    pub(crate) fn new(core: &Arc<Core>, carrier: &impl Carrier, discovery: &watch::Receiver<Status>) -> Self {
        Self {
            node: core.config.node.clone(),
            discovery: discovery.borrow().clone(),
            certificates: core.certificates.statuses(),
            volume: carrier.volume(),
            untold: carrier.untold(),
            draining: core.config.draining_dir().map(PathBuf::from),
        }
    }

    /// Reads files; for a thread that may wait.
    pub(crate) fn told(&self) -> Value {
        let draining = self.draining.as_deref().map(draining::others).unwrap_or_default();
        json!({
            "node": self.node,
            "version": env!("CARGO_PKG_VERSION"),
            "controlPlane": connection(&self.discovery),
            "certificates": certificates(&self.certificates),
            "pods": self.volume.workloads,
            "pendingPods": self.volume.pending,
            "untoldPods": self.untold,
            "connections": self.volume.connections,
            "draining": draining,
        })
    }
}

/// The link to the control plane. `hasMesh` also holds for a mesh that was kept from before.
fn connection(status: &Status) -> Value {
    let mut told = match &status.connection {
        ConnectionState::Connected { since } => json!({"connected": true, "since": rfc3339(*since)}),
        ConnectionState::Connecting => json!({"connected": false, "reason": "connecting"}),
        ConnectionState::Disconnected { reason, .. } => json!({"connected": false, "reason": reason}),
    };
    told["hasMesh"] = status.is_synced().into();
    told["refusedResponses"] = status.nacks.into();
    told
}

/// When the first and the last one end, and of how many there is none that is valid.
fn certificates(all: &[CertificateStatus]) -> Value {
    let ends = all.iter().filter_map(|status| Some(status.certificate.as_ref()?.chain().first()?.not_after));
    let mut ends: Vec<_> = ends.collect();
    ends.sort_unstable();
    let missing = all.iter().filter(|status| status.state != CertificateState::Available).count();
    json!({
        "held": ends.len(),
        "missing": missing,
        "firstEnds": ends.first().copied().and_then(rfc3339),
        "lastEnds": ends.last().copied().and_then(rfc3339),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_a_proxy_from_its_control_plane_is_told() {
        let reason = "the control plane refuses this proxy's token".to_owned();
        let connection_state = ConnectionState::Disconnected { reason: reason.clone(), retryable: false, attempts: 3 };
        let told = connection(&Status { connection: connection_state, nacks: 2, ..Status::default() });
        let expected = json!({"connected": false, "reason": reason, "hasMesh": false, "refusedResponses": 2});
        assert_eq!(told, expected);
    }
}
