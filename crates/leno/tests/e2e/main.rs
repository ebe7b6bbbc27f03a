//! The whole product in real network namespaces: the `leno` binary as a user runs it, with unmodified programs. Needs root
//! (or user namespaces) and the programs. What is missing is reported on a line that starts with `SKIP`, and the project's CI
//! fails on such a line.
//!
//! With `LENO_ZTUNNEL=PATH` the same tests run with Istio's node proxy on one node and on both.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that can't go on must panic, and tells what it measured"
)]

mod bad_input;
mod clear;
mod cni_plugin;
mod comfort;
mod control;
mod control_cluster;
mod control_groups;
mod crowd;
mod day_two;
mod demo;
mod dialogue;
mod ended;
mod explain;
mod fail_closed;
mod footprint;
mod full_disk;
mod impaired;
mod journal;
mod lab;
mod lifecycle;
mod manifests;
mod many_svc;
mod observe;
mod ownership;
mod pages;
mod policy;
mod processes;
mod programs;
mod shop;
mod stage;
mod starved;
mod starved_waypoint;
mod steady;
mod studies;
mod takeover;
mod topology;
mod waiting;
mod waypoint;
mod waypoint_authorizers;
mod waypoint_browser;
mod waypoint_chain;
mod waypoint_connections;
mod waypoint_grpcurl;
mod waypoint_policy;
mod waypoint_programs;
mod waypoint_tokens;
mod waypoint_traffic;
