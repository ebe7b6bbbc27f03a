//! The waypoints of a stage.

use leno_local::{PodListing, Stage};

use super::carrier::Carrier;

/// The processes of those on the ways through the mesh, whose Gateways have that name.
pub(super) fn waypoints(stage: &Stage) -> Vec<Carrier> {
    carriers(stage, |pod| pod.name.starts_with("waypoint"))
}

/// The processes of one Gateway's.
pub(super) fn of_gateway(stage: &Stage, gateway: &str) -> Vec<Carrier> {
    carriers(stage, |pod| pod.gateway == gateway)
}

fn carriers(stage: &Stage, is_one: impl Fn(&PodListing) -> bool) -> Vec<Carrier> {
    let pods = stage.listing().pods.into_iter().filter(|pod| is_one(pod));
    pods.filter_map(|pod| Some(Carrier { node: "waypoint".to_owned(), pid: pod.pid?, restarts: pod.restarts }))
        .collect()
}
