//! How do bytes travel? HBONE (HTTP/2 CONNECT over mutual TLS, as Istio ambient speaks it): the client's [`Pool`], the
//! [`server`], the stream of one tunnelled connection, and the [`relay`] between a stream and a TCP socket.
//!
//! The caller provides the transport, already encrypted and authenticated. Nothing here knows certificates, policy or
//! configuration.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests run on runtimes that keep time"))]

pub mod calm;
mod carrier;
mod client;
mod connection;
mod driver;
mod early;
mod error;
pub mod frame;
mod keepalive;
mod meter;
mod pool;
mod rarely;
pub mod relay;
pub mod server;
mod settings;
mod sockets;
mod stream;
pub mod timers;
mod transport;
mod waking;
mod window;

#[cfg(test)]
mod test_support;

pub use carrier::thread_sleeps;
pub use client::{ConnectRequest, ResponseHead};
pub use early::FirstBytes;
pub use error::{Error, OpenError, RelayError};
pub use h2::Reason;
pub use meter::{Counters, Meter};
pub use pool::{Pool, PoolStats};
pub use rarely::{Rarely, rarely};
pub use relay::RelayOptions;
pub use server::{InboundConnect, Served};
pub use settings::Settings;
pub use stream::TunnelStream;
pub use transport::{Acknowledged, Transport};
pub use window::WindowBudget;
