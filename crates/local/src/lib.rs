//! One machine as feed and stage: manifests from a directory, pods as processes in network namespaces.

pub mod addresses;
mod check;
mod deployments;
mod dns;
mod dns_server;
mod environment;
mod error;
pub mod feed;
pub mod init;
mod init_protocol;
mod logs;
pub mod names;
mod network;
pub mod privilege;
mod probes;
mod sandbox;
mod services;
mod spawn;
mod watch;

pub use error::Error;
