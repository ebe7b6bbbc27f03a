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
//!  accept      peers' tunnels: who may open them (tunnels), and how long they live
//!  gate        what all connections share; lane: what those of one thread share
//!  clear       connections in the clear, for tests and measurements
//!  own         the workload that this process is
//!  connection  one connection in a tunnel: whom it is for, and which protocol it speaks (detect)
//!  pass        bytes passed on unread; by_route: where a route sends them
//!  http        requests: what they ask for, where they go, what is answered
//!  rates       how many requests follow a route with a limit
//!  routes      the routes of services, compiled; guards: their policies; guard: what those are asked
//!  balance     endpoints of services: what is known of each, and which takes the next request
//!  upstream    how endpoints are reached
//!  http_pool   HTTP connections to endpoints, over what was reached (stream); streams: how many requests one takes
//!  client_body  bodies as clients send them; request_body: on their way to endpoints, and copies of them
//!  wire        a tunnel or a TCP connection as the HTTP library sees it; timer: its time and tasks
//!  framing     requests in HTTP/1.1 that may be read in two ways; frames: floods in HTTP/2, and
//!              how fast they are taken (pace), and header_fields: how many fields a head has
//!  report      what is told of a connection; failure: why it was not carried; open: those that are open
//!  pressure    how much memory there is for all of this
//!  series      the metrics of requests; messages: what is counted of their bodies
//! ```
//!
//! It knows neither Kubernetes nor the node proxy: its world is a [`leno_model::Mesh`].

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests run on runtimes that keep time"))]

mod accept;
mod asked;
mod authorizers;
mod balance;
mod by_route;
mod clear;
mod client_body;
mod config;
mod connection;
mod cork;
mod detect;
mod failure;
mod frames;
mod framing;
mod gate;
mod guard;
mod guards;
mod header_fields;
mod http;
mod http_pool;
mod keys;
mod lane;
mod messages;
mod open;
mod own;
mod pace;
mod pass;
mod pressure;
mod rates;
mod report;
mod request_body;
mod routes;
mod series;
mod stream;
mod streams;
#[cfg(test)]
mod test_support;
mod timer;
mod tunnels;
mod upstream;
mod waypoint;
mod wire;

pub use config::{ClearListener, Config, WaypointConfig};
pub use waypoint::{run, start};
