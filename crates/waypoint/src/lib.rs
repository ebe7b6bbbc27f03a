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
//!  waypoint       the carrier, and how it starts and ends; config
//!  downstream     clients: their tunnels, their connections, the protocol that each speaks
//!  connection     a connection's target, policies and record; failure: why one was not carried
//!  passthrough    connections that are not read
//!  pipeline       what happens to a request, phase by phase; phases: ext_authz, jwt, route, retry and so on
//!  request, body  a request and its response: heads, bodies, records
//!  balance        endpoints of services: what is known of each, and which takes the next request
//!  upstream       how endpoints are reached; pool: HTTP connections to them, kept
//!  transport      bytes as the HTTP library sees them, and protection from floods and smuggling
//!  memory_pressure  how much memory there is for all of this
//!  state          what all connections share: compiled policies and routes, keys, limits, metrics
//! ```
//!
//! It knows neither Kubernetes nor the node proxy: its world is a [`leno_model::Mesh`].

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests run on runtimes that keep time"))]

mod balance;
mod body;
mod config;
mod connection;
mod downstream;
mod failure;
mod memory_pressure;
mod passthrough;
mod phases;
mod pipeline;
mod pool;
mod request;
mod state;
#[cfg(test)]
mod test_support;
mod transport;
mod upstream;
mod waypoint;

pub use config::{ClearListener, Config, WaypointConfig};
pub use waypoint::{run, start};
