//! Steps of scenarios: loads, and what their traffic goes through.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::pods::{HOP_SERVER, NEAR};
use crate::load::{HttpLoad, IdleLoad, Load, StreamLoad};

/// The path of requests that a hop's rule lets through, and the field that they must have.
pub(crate) const RULE_PATH: &str = "/bytes/";
pub(crate) const RULE_HEADER: (&str, &str) = ("x-team", "lab");

/// The paths of a hop's route.
pub(crate) fn route_prefix(number: usize) -> String {
    format!("/r/{number}/")
}

/// One step of a scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Its name in reports.
    pub name: String,
    /// What it shows.
    pub about: &'static str,
    /// Loads that run at the same time.
    pub loads: Vec<Placed>,
    /// What carries its traffic.
    pub via: Via,
    /// Published measurements that can stand beside it: the key in `data/published.csv`.
    pub published: Option<&'static str>,
}

/// What carries a step's traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// The nodes' proxies.
    Nodes,
    /// The nodes' proxies, and a waypoint between them.
    Waypoint,
    /// One proxy, or a pair, and nothing else.
    Hop(Hop),
}

/// What a hop does with a request besides passing it on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hop {
    /// One rule of authorisation by method, path and header, and one header that is added.
    pub rule: bool,
    /// Routes by path, of which a request has to be given one. 0 for one that takes everything.
    pub routes: usize,
    /// Two proxies, with HTTP/2 over mutual TLS between them.
    pub pair: bool,
}

impl Step {
    /// Whether all its traffic crosses nodes.
    #[must_use]
    pub fn crosses_nodes(&self) -> bool {
        self.loads.iter().all(|placed| placed.to != NEAR)
    }

    /// Whether some of its traffic is addressed to services, whose names have a namespace, and not to pods.
    #[must_use]
    pub fn is_to_services(&self) -> bool {
        let walks = |load: &Load| matches!(load, Load::Http(load) if load.walk.is_some());
        self.loads.iter().any(|placed| placed.to.contains('.') || walks(&placed.load))
    }

    /// What it asks of the hop that it measures.
    #[must_use]
    pub fn hop(&self) -> Option<Hop> {
        if let Via::Hop(hop) = self.via { Some(hop) } else { None }
    }

    /// Whether `text` names it: some consecutive whole words of its name. `/` and `-` separate words, so that
    /// `slow-reader/with` does not select `slow-reader/without`.
    #[must_use]
    pub fn is_called(&self, text: &str) -> bool {
        let name = self.name.as_str();
        let ends = |before: Option<char>, after: Option<char>| {
            let separates = |letter| matches!(letter, None | Some('/' | '-'));
            separates(before) || separates(after)
        };
        name.match_indices(text).any(|(start, _)| {
            let (before, rest) = name.split_at(start);
            let after = &rest[text.len()..];
            ends(before.chars().next_back(), text.chars().next())
                && ends(text.chars().next_back(), after.chars().next())
        })
    }

    /// The number of idle connections that it holds open.
    #[must_use]
    pub fn idle_connections(&self) -> u64 {
        let idle = |placed: &Placed| if let Load::Idle(load) = &placed.load { load.connections as u64 } else { 0 };
        self.loads.iter().map(idle).sum()
    }
}

/// A load between two pods.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    /// Pod that it runs in.
    pub from: String,
    /// Pod or service that serves it.
    pub to: String,
    /// Whether its results are the step's figures. Other loads are there to disturb.
    pub measured: bool,
    /// The load. Its target's address is set once the pods have addresses.
    pub load: Load,
}

impl Placed {
    /// The load with its real target. The requests of a walk name their services by themselves: `address` knows them.
    ///
    /// # Errors
    /// The name of a service that has no address.
    pub fn aimed_at(&self, server: IpAddr, address: impl Fn(&str) -> Option<IpAddr>) -> Result<Load, String> {
        let mut load = self.load.clone();
        match &mut load {
            Load::Http(HttpLoad { target, walk, .. }) => {
                target.set_ip(server);
                for stop in walk.iter_mut().flat_map(|walk| &mut walk.stops) {
                    let name = stop.host.split(':').next().unwrap_or_default();
                    let found = if name == HOP_SERVER { Some(server) } else { address(name) };
                    stop.target.set_ip(found.ok_or_else(|| name.to_owned())?);
                }
            }
            Load::Stream(StreamLoad { target, .. }) | Load::Idle(IdleLoad { target, .. }) => target.set_ip(server),
        }
        Ok(load)
    }

    /// The load with its target at a hop's proxy.
    #[must_use]
    pub fn aimed_at_hop(&self, proxy: SocketAddr) -> Load {
        let mut load = self.load.clone();
        if let Load::Http(HttpLoad { target, walk, .. }) = &mut load {
            *target = proxy;
            walk.iter_mut().flat_map(|walk| &mut walk.stops).for_each(|stop| stop.target = proxy);
        }
        load
    }
}
