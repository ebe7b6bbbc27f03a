//! The waypoints of a stage.

use leno_local::Stage;

use super::carrier::Carrier;

/// Their processes. Their pods have their Gateways' names.
pub(super) fn waypoints(stage: &Stage) -> Vec<Carrier> {
    let pods = stage.listing().pods.into_iter().filter(|pod| pod.name.starts_with("waypoint"));
    pods.filter_map(|pod| Some(Carrier { node: "waypoint".to_owned(), pid: pod.pid?, restarts: pod.restarts }))
        .collect()
}
