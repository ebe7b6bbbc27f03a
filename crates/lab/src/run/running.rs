//! What carries the traffic of a step that measures a hop.

use std::net::SocketAddr;
use std::time::Duration;

use leno_local::Stage;

use super::carrier::Carrier;
use super::waypoints::of_gateway;
use crate::hop::Proxies;
use crate::scenario::NAMESPACE;

/// For a waypoint to end. It has no connections any more.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running hop.
pub(super) struct Running {
    /// Where the client connects.
    pub address: SocketAddr,
    /// What runs for it.
    pub runs: Runs,
}

/// What was started for a hop.
pub(super) enum Runs {
    Proxies(Proxies),
    /// The waypoint of a Gateway, in the lab's namespace.
    Waypoint(String),
}

impl Running {
    /// Its processes, the client's first.
    pub(super) fn carriers(&self, stage: &Stage) -> Vec<Carrier> {
        match &self.runs {
            Runs::Proxies(proxies) => {
                let each = proxies.processes().into_iter();
                each.map(|(node, pid)| Carrier { node, pid, restarts: 0 }).collect()
            }
            Runs::Waypoint(gateway) => of_gateway(stage, gateway),
        }
    }

    /// Ends what was started.
    ///
    /// # Errors
    /// If it does not end, as a text for people.
    pub(super) async fn stop(self, stage: &Stage) -> Result<(), String> {
        match self.runs {
            Runs::Proxies(proxies) => proxies.stop().await,
            Runs::Waypoint(gateway) => {
                stage.scale(NAMESPACE, &gateway, 0).await.map_err(|error| error.to_string())?;
                let gone = stage.wait_for(PATIENCE, |now| now.pods.iter().all(|pod| pod.gateway != gateway));
                gone.await.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }
}
