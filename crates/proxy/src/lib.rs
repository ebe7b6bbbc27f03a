//! What every proxy is made of, whatever it carries.
//!
//! Here is what a node's proxy and a waypoint have in common. It never knows L4 from L7: what a
//! connection or a request is, where it comes from and where it goes is the business of the crate
//! that is built on this one.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests run on runtimes that keep time"))]

pub mod admin;
mod carrier;
pub mod config;
mod control_plane;
mod core;
mod error;
mod log;
pub mod mesh;
pub mod peers;
mod proxy;
mod run;
pub mod streams;
mod takeover;
pub mod threads;

pub use self::core::Core;
pub use admin::Endpoints;
pub use carrier::{Carried, Carrier};
pub use config::Config;
pub use error::Error;
pub use log::init_log;
pub use proxy::Proxy;
pub use run::{Host, run};
pub use takeover::{Listeners, Looked};
