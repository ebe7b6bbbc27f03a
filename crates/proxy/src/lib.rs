//! What every proxy is made of, whatever it carries.
//!
//! Here is what a node's proxy and a waypoint have in common. It never knows L4 from L7: what a
//! connection or a request is, where it comes from and where it goes is the business of the crate
//! that is built on this one. That crate implements [`Carrier`] and is handed a [`Core`]; [`run`], or
//! [`Proxy::start`] inside another program, does the rest:
//!
//! ```text
//!  config         settings, each declared once
//!  control_plane  the link to discovery and to who signs certificates
//!  mesh           what discovery has told: the snapshot that every decision takes
//!  peers          who they are: handshakes, places of those who have proved nothing, tunnels' keys and
//!                 headers, who does not answer, what can go wrong
//!  threads        workers, which carry, and what each of them has
//!  streams        how a connection comes to a worker, and how it leaves in a hurry
//!  tunnels        how peers' tunnels come in
//!  admin          the own endpoints: admin with the configuration dump, metrics, readiness
//!  takeover       making way for the next proxy
//!  draining       telling it how many connections are still waited for
//! ```
//!
//! One control thread does what is not carrying. Workers carry and nothing else: a metrics scrape or a
//! burst of configuration must not move a connection's tail latency.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests run on runtimes that keep time"))]

pub mod admin;
mod carrier;
pub mod config;
mod control_plane;
mod core;
mod draining;
mod error;
mod log;
pub mod mesh;
pub mod peers;
mod proxy;
mod run;
mod saved;
pub mod streams;
mod takeover;
pub mod threads;
pub mod tunnels;

pub use self::core::Core;
pub use admin::Endpoints;
pub use carrier::{Carried, Carrier, Volume};
pub use config::Config;
pub use error::Error;
pub use log::init_log;
pub use proxy::Proxy;
pub use run::{Host, run};
pub use takeover::{Listeners, Looked};
