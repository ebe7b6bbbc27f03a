//! The study of Shulyak and Savenko (2022), with Kinvolk's harness: Emojivoto at 50, 450 and 3500 requests a second.
//!
//! What the harness does is kept, odd or not: every connection walks the same list of requests from its beginning, all send
//! at the same moments, 20 requests go to one instance of the application and the next 20 to the next one over a new
//! connection, and there are as many connections as wrk2 has threads.

use std::net::{Ipv4Addr, SocketAddr};

use super::pods::CLIENT;
use super::size::Size;
use super::step::{Placed, Step, Via};
use crate::load::{HttpLoad, Load, Pace, Reuse, Stop, Walk};

/// The port of web's Service.
const PORT: u16 = 80;
/// Connections, and threads of wrk2.
const CONNECTIONS: usize = 96;
/// Requests to an instance before the next one's: half of them for the page without a call behind it.
const REQUESTS: usize = 20;

/// Instances of the application.
pub(super) fn instances(size: Size) -> usize {
    if size == Size::Full { 10 } else { 2 }
}

/// Namespace of an instance. Those behind a waypoint are others than those without.
pub(super) fn namespace(number: usize, via: Via) -> String {
    let kind = if via == Via::Waypoint { "waypoint" } else { "l4" };
    format!("emojivoto-{kind}-{number}")
}

fn walk(instances: usize, via: Via) -> Walk {
    let stops = (0..instances).flat_map(|instance| {
        (0..REQUESTS).map(move |number| {
            let path = match number % 4 {
                1 => "/api/vote?choice=:nerd_face:",
                3 => "/api/vote?choice=:see_no_evil:",
                _ => "/leaderboard",
            };
            Stop {
                target: SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)),
                host: format!("web-svc.{}:{PORT}", namespace(instance, via)),
                path: path.to_owned(),
            }
        })
    });
    Walk { stops: stops.collect(), lockstep: true }
}

/// What it is about.
pub(super) const ABOUT: &str = "The Shulyak/Savenko study with Kinvolk's harness: ten instances of Emojivoto, 96 connections in lockstep, a new \
    connection every 20 requests, 50, 450 and 3500 requests a second; L4 only, and with a waypoint.";

pub(super) fn steps(size: Size) -> Vec<Step> {
    let (instances, connections) = (instances(size), if size == Size::Full { CONNECTIONS } else { 8 });
    let mut steps = Vec::new();
    for (kind, via) in [("emojivoto/l4", Via::Nodes), ("emojivoto/waypoint", Via::Waypoint)] {
        for (rate, published) in [(50.0, "shulyak-50"), (450.0, "shulyak-450"), (3500.0, "shulyak-3500")] {
            if size == Size::Quick && rate != 450.0 {
                continue;
            }
            let walk = walk(instances, via);
            let first = &walk.stops[0];
            let load =
                HttpLoad::new(first.target, &first.path, connections, Pace::Open { per_second: rate }, Reuse::Kept);
            let to = format!("web-svc.{}", namespace(0, via));
            let load = Load::Http(HttpLoad { walk: Some(walk), ..load });
            let about = if via == Via::Nodes {
                "half the requests for a page, half a vote with two gRPC calls behind it; L4 only"
            } else {
                "the same with a waypoint before web, emoji and voting"
            };
            steps.push(Step {
                name: format!("{kind}/{rate}-per-second"),
                about,
                loads: vec![Placed { from: CLIENT.to_owned(), to, measured: true, load }],
                via,
                published: Some(published),
            });
        }
    }
    steps
}
