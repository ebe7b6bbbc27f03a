//! What a change costs the control plane, from objects to what is published, by the size of the mesh:
//! `cargo run --profile dist -p leno-control --example change_cost`.

#![allow(clippy::print_stdout, reason = "this is what it is for")]

#[path = "../tests/generated/mod.rs"]
mod generated;

use std::time::{Duration, Instant};

use generated::{OF_NAMESPACE, mesh, pod};
use leno_control::translate::Options;
use leno_control::{Controller, Feed};
use leno_objects::{Change, Kind};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Resident memory in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.trim().split(' ').next()?.parse::<usize>().ok()).unwrap_or_default() * 1024
}

/// The median of how long it takes to take in and publish what `changes` makes of each turn's number, per
/// change. On one thread, so this is processor time unless somebody else takes it.
fn median(controller: &Controller, feed: &Feed, turns: usize, changes: impl Fn(usize) -> Vec<Change>) -> Duration {
    let mut times: Vec<Duration> = (0..turns)
        .map(|turn| {
            let changes = changes(turn);
            let count = u32::try_from(changes.len()).unwrap_or(u32::MAX);
            // A proxy that is being sent something holds what was published before.
            let read = (controller.mesh().borrow().clone(), controller.resources().borrow().clone());
            let started = Instant::now();
            feed.apply(changes);
            controller.publish();
            let took = started.elapsed();
            drop(read);
            took / count
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

fn main() {
    println!("workloads  first state  per workload  changed pod  one of 100  one of a namespace's 1 000");
    for pods in [5_000, 50_000] {
        let before = resident();
        let controller = Controller::new(Options::default());
        let feed = Feed::announce(controller.clone(), Kind::ALL);
        let objects = mesh(pods);
        let started = Instant::now();
        feed.apply(objects);
        feed.complete(Kind::ALL);
        controller.publish();
        let first = started.elapsed();
        let kept = resident().saturating_sub(before) / pods;
        let one = median(&controller, &feed, 501, |turn| vec![pod(turn * 97 % pods, turn + 1)]);
        let hundred = median(&controller, &feed, 21, |turn| (0..100).map(|n| pod(n, 1000 + turn)).collect());
        let namespace = median(&controller, &feed, 11, |turn| (0..OF_NAMESPACE).map(|n| pod(n, 2000 + turn)).collect());
        println!("{pods:>9}  {first:>11.1?}  {kept:>7} bytes  {one:>11.1?}  {hundred:>10.1?}  {namespace:>27.1?}");
    }
}
