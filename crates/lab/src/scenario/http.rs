//! HTTP: what a proxy costs by itself, and the whole path of a request through a mesh with a waypoint.

use std::net::{Ipv4Addr, SocketAddr};

use super::pods::{CLIENT, HOP_CLIENT, HOP_SERVER};
use super::size::Size;
use super::step::{Hop, Placed, RULE_HEADER, Step, Via, route_prefix};
use crate::load::{HttpLoad, Load, Pace, Protocol, Reuse, ServerSpec, Stop, Walk};

/// Connections of HTTP/1.1.
const CONNECTIONS: usize = 64;
/// The same number of requests at a time over HTTP/2: connections, and requests on each.
const MULTIPLEXED: (usize, usize) = (8, 8);
const SMALL: usize = 1 << 10;
const LARGE: usize = 1 << 20;
/// Routes among many to which requests go.
const ASKED_ROUTES: usize = 20;

/// The rates of the Shulyak/Savenko study.
const RATES: [f64; 3] = [50.0, 450.0, 3500.0];

fn load(protocol: Protocol, bytes: usize, pace: Pace) -> HttpLoad {
    let ports = ServerSpec::default();
    let (port, connections, streams) = match protocol {
        Protocol::Http1 => (ports.http, CONNECTIONS, 1),
        Protocol::Http2 | Protocol::Grpc => (ports.http2, MULTIPLEXED.0, MULTIPLEXED.1),
    };
    let target = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    HttpLoad { protocol, streams, ..HttpLoad::new(target, &format!("/bytes/{bytes}"), connections, pace, Reuse::Kept) }
}

fn name(pace: Pace) -> String {
    match pace {
        Pace::Closed => "closed-loop".to_owned(),
        Pace::Open { per_second } => format!("{per_second}-per-second"),
    }
}

fn paces() -> impl Iterator<Item = Pace> {
    RATES.into_iter().map(|per_second| Pace::Open { per_second }).chain([Pace::Closed])
}

fn hop_step(kind: &str, hop: Hop, about: &'static str, load: HttpLoad) -> Step {
    let placed = Placed {
        from: HOP_CLIENT.to_owned(),
        to: HOP_SERVER.to_owned(),
        measured: true,
        load: Load::Http(load.clone()),
    };
    let name = format!("{kind}/{}", name(load.pace));
    Step { name, about, loads: vec![placed], via: Via::Hop(hop), published: None }
}

fn hops() -> Vec<Step> {
    let small = |protocol, pace| load(protocol, SMALL, pace);
    let top = |per_second| Pace::Open { per_second };
    let mut steps = Vec::new();
    let plain = "client, proxy, server: HTTP/1.1 with bodies of 1 KiB over 64 kept connections";
    steps.extend(paces().map(|pace| hop_step("hop/plain", Hop::default(), plain, small(Protocol::Http1, pace))));
    let rule = Hop { rule: true, ..Hop::default() };
    let (field, value) = RULE_HEADER;
    let headers = vec![(field.to_owned(), value.to_owned())];
    for pace in [top(3500.0), Pace::Closed] {
        let load = HttpLoad { headers: headers.clone(), ..small(Protocol::Http1, pace) };
        steps.push(hop_step(
            "hop/rule-and-filter",
            rule,
            "the same with one rule of authorisation and one header added",
            load,
        ));
    }
    for routes in [100, 5000] {
        for pace in [top(3500.0), Pace::Closed] {
            let hop = Hop { routes, ..Hop::default() };
            let about = "the same with many routes by path; requests go to twenty of them in turn";
            let load = HttpLoad { walk: Some(over_routes(routes)), ..small(Protocol::Http1, pace) };
            steps.push(hop_step(&format!("hop/{routes}-routes"), hop, about, load));
        }
    }
    for (protocol, kind) in [(Protocol::Http2, "hop/http2"), (Protocol::Grpc, "hop/grpc")] {
        for pace in [top(3500.0), Pace::Closed] {
            let about = "8 connections with 8 requests at a time on each, bodies of 1 KiB, HTTP/2 on both sides";
            steps.push(hop_step(kind, Hop::default(), about, small(protocol, pace)));
        }
    }
    for (protocol, kind) in [(Protocol::Http1, "hop/1-MiB"), (Protocol::Http2, "hop/1-MiB-http2")] {
        let load = load(protocol, LARGE, Pace::Closed);
        steps.push(hop_step(kind, Hop::default(), "bodies of 1 MiB: bytes per second, cost and memory", load));
    }
    let pair = Hop { pair: true, ..Hop::default() };
    let about =
        "client, two proxies of a kind, server: HTTP/2 over mutual TLS between the two, HTTP/1.1 outside of them";
    steps.extend(paces().map(|pace| hop_step("pair", pair, about, small(Protocol::Http1, pace))));
    steps
}

/// Requests to routes that are evenly spread over all, so that neither the first nor the last one is favoured.
fn over_routes(routes: usize) -> Walk {
    let target = SocketAddr::from((Ipv4Addr::UNSPECIFIED, ServerSpec::default().http));
    let stops = (0..ASKED_ROUTES).map(|number| {
        let path = format!("{}bytes/{SMALL}", route_prefix(number * routes / ASKED_ROUTES + routes / ASKED_ROUTES / 2));
        Stop { target, host: HOP_SERVER.to_owned(), path }
    });
    Walk { stops: stops.collect(), lockstep: false }
}

/// Services of the whole path: without a waypoint, and with one.
pub(super) const DIRECT: &str = "direct.lab";
pub(super) const WAYPOINTED: &str = "waypointed.lab";

fn paths() -> Vec<Step> {
    let mut steps = Vec::new();
    for (kind, service, via) in [("path/l4", DIRECT, Via::Nodes), ("path/waypoint", WAYPOINTED, Via::Waypoint)] {
        let about = if via == Via::Nodes {
            "client, node, node, server, to a service without a waypoint"
        } else {
            "client, node, waypoint, node, server, to a service with a waypoint"
        };
        let mut step = |kind: String, load: HttpLoad| {
            let name = format!("{kind}/{}", name(load.pace));
            let load = Load::Http(load);
            let placed = Placed { from: CLIENT.to_owned(), to: service.to_owned(), measured: true, load };
            steps.push(Step { name, about, loads: vec![placed], via, published: None });
        };
        for pace in paces() {
            step(kind.to_owned(), load(Protocol::Http1, SMALL, pace));
        }
        step(format!("{kind}-grpc"), load(Protocol::Grpc, SMALL, Pace::Open { per_second: 3500.0 }));
        step(format!("{kind}-1-MiB"), load(Protocol::Http1, LARGE, Pace::Closed));
    }
    steps
}

/// What it is about.
pub(super) const ABOUT: &str = "HTTP proxies by themselves, in equal configurations that the lab writes: plain, with a rule and a filter, with \
    many routes, as a pair over mutual TLS; and the whole path of a request, with a waypoint and without.";

pub(super) fn steps(size: Size) -> Vec<Step> {
    let mut steps = hops();
    steps.extend(paths());
    if size == Size::Quick {
        // One of each kind: three configurations of a proxy, three protocols, and both ways through the mesh.
        let kept = [
            "hop/plain/3500",
            "hop/rule-and-filter/3500",
            "hop/100-routes/3500",
            "hop/grpc/3500",
            "hop/1-MiB-http2",
            "pair/450",
            "path/l4/450",
            "path/waypoint/450",
        ];
        steps.retain(|step| kept.iter().any(|name| step.is_called(name)));
    }
    steps
}
