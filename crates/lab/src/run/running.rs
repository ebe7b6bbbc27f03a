//! What carries the traffic of a step that measures a hop.

use std::net::SocketAddr;

use leno_local::Stage;

use super::carrier::Carrier;
use super::waypoints::waypoints;
use crate::hop::Proxies;

/// A running hop.
pub(super) struct Running {
    /// Where the client connects.
    pub address: SocketAddr,
    /// What was started for it. `None` if it is the stage's waypoint.
    pub proxies: Option<Proxies>,
}

impl Running {
    /// Its processes, the client's first.
    pub(super) fn carriers(&self, stage: &Stage) -> Vec<Carrier> {
        match &self.proxies {
            Some(proxies) => {
                let each = proxies.processes().into_iter();
                each.map(|(node, pid)| Carrier { node, pid, restarts: 0 }).collect()
            }
            None => waypoints(stage),
        }
    }

    /// Ends what was started.
    pub(super) async fn stop(self) {
        if let Some(proxies) = self.proxies {
            proxies.stop().await;
        }
    }
}
