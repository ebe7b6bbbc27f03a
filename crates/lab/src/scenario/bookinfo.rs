//! LiveWyer's study (2024): Bookinfo at 32, 64 and 128 connections, a new one for each request.

use std::net::{Ipv4Addr, SocketAddr};

use super::pods::CLIENT;
use super::size::Size;
use super::step::{Placed, Step, Via};
use crate::load::{HttpLoad, Load, Pace, Reuse};

/// The port of productpage's Service.
const PORT: u16 = 9080;
const PATH: &str = "/productpage?u=normal";

/// Namespaces of the application: two applications, each without a waypoint and with one.
pub(super) fn namespace(is_slow: bool, via: Via) -> String {
    let speed = if is_slow { "slow" } else { "fast" };
    let kind = if via == Via::Waypoint { "waypoint" } else { "l4" };
    format!("bookinfo-{speed}-{kind}")
}

/// Both speeds and both ways, as far as a size has them.
pub(super) fn applications(size: Size) -> impl Iterator<Item = (bool, Via)> {
    let all = [(true, Via::Nodes), (true, Via::Waypoint), (false, Via::Nodes), (false, Via::Waypoint)];
    all.into_iter().filter(move |(is_slow, _)| size == Size::Full || !is_slow)
}

/// What it is about.
pub(super) const ABOUT: &str = "The LiveWyer study: Bookinfo (productpage, details, reviews, ratings) at 32, 64 and 128 connections, a new one \
    for each request; with an application as slow as theirs and a fast one, L4 only and with one rule by path at a \
    waypoint. Closed loop: latency is the number of connections divided by the rate.";

pub(super) fn steps(size: Size) -> Vec<Step> {
    let mut steps = Vec::new();
    let counts: &[(usize, &str)] = if size == Size::Full {
        &[(32, "livewyer-c32"), (64, "livewyer-c64"), (128, "livewyer-c128")]
    } else {
        &[(32, "livewyer-c32")]
    };
    for (is_slow, via) in applications(size) {
        for &(connections, published) in counts {
            let target = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
            let load = HttpLoad::new(target, PATH, connections, Pace::Closed, Reuse::PerRequest);
            let about = match (is_slow, via) {
                (true, Via::Waypoint) => {
                    "an application that ends at about 157 requests/s; one rule by path, at a waypoint"
                }
                (true, _) => "an application that ends at about 157 requests/s, as the study's does; L4 only",
                (false, Via::Waypoint) => "an application that costs little; one rule by path, at a waypoint",
                (false, _) => "an application that costs little, so that the mesh is what is measured; L4 only",
            };
            let to = format!("productpage.{}", namespace(is_slow, via));
            steps.push(Step {
                name: format!("{}/{connections}-connections", namespace(is_slow, via).replace('-', "/")),
                about,
                loads: vec![Placed { from: CLIENT.to_owned(), to, measured: true, load: Load::Http(load) }],
                via,
                published: is_slow.then_some(published),
            });
        }
    }
    steps
}
