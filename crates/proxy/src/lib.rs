//! What every proxy is made of, whatever it carries.
//!
//! Here is what a node's proxy and a waypoint have in common. It never knows L4 from L7: what a
//! connection or a request is, where it comes from and where it goes is the business of the crate
//! that is built on this one.

pub mod config;
mod error;
pub mod mesh;
pub mod peers;
pub mod streams;
pub mod threads;

pub use config::Config;
pub use error::Error;
