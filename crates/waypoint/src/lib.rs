//! The L7 proxy of the mesh: connections of peers come in tunnels, and go on to the endpoints of services, request by request
//! where they speak HTTP.
//!
//! ```text
//!  peer's node ══ HBONE/mTLS ══▶ 15008 waypoint ══ HBONE/mTLS ══▶ 15008 node of an endpoint ─▶ its program
//! ```
//!
//! It is an ordinary process with an identity of its own. Threads, discovery and the other parts of every proxy come from
//! [`leno_proxy`], for which this is a [`leno_proxy::Carrier`].
//!
//! ```text
//!  waypoint    the carrier, and how it starts and ends
//!  gate        peers' tunnels: who may open them, and how long they live
//!  own         the workload that this process is
//!  connection  one connection in a tunnel: whom it is for, and which protocol it speaks (detect)
//!  pass        bytes passed on unread
//!  http        requests: what they ask for, where they go, what is answered
//!  upstream    endpoints: how they are reached, and the HTTP connections to them
//!  wire        a tunnel or a TCP connection as the HTTP library sees it
//!  report      what is told of a request or a connection; failure: why it was not carried
//! ```
//!
//! It knows neither Kubernetes nor the node proxy: its world is a [`leno_model::Mesh`].

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests run on runtimes that keep time"))]

mod config;
mod connection;
mod detect;
mod failure;
mod gate;
mod http;
mod lane;
mod own;
mod pass;
mod report;
mod timer;
mod tunnels;
mod upstream;
mod waypoint;
mod wire;

pub use config::{Config, WaypointConfig};
pub use waypoint::{run, start};
