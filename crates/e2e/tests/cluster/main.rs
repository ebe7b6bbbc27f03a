//! Tests on a real Kubernetes cluster: `LENO_KUBECONFIG`, else the one that `cargo xtask cluster up` started. Without one, each
//! says on a line that starts with `SKIP` which command would help; the project's CI starts one and accepts no such line.

#![allow(clippy::unwrap_used, reason = "a test that can't go on must panic")]
#![allow(clippy::print_stderr, reason = "how long things took and what was lost is for whoever runs the tests")]

mod addresses;
mod away;
mod bare;
mod churn;
mod clear;
mod day_two;
mod enrolling;
mod interop;
mod istio_cni;
mod kinds;
mod lab;
mod losses;
mod matrix;
mod mesh;
mod outage;
mod policies;
mod probes;
mod quickstart;
mod reboot;
mod second_mesh;
mod skew;
mod stand;
mod starting;
mod surviving;
mod traffic;
mod upgrading;
mod waypoint_features;
mod waypoints;
mod without_agents;
