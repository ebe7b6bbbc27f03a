//! One machine as feed and stage: manifests from a directory, pods as processes in network namespaces.
//!
//! A [`Stage`] reads Kubernetes manifests ([`files`]), checks them as a whole, and plays them: each
//! node and each pod is a network namespace, each container a local process, each node has a
//! proxy process, a DNS server and rules for services. `core` is its one decision maker; a `pod`
//! actor carries one pod from its network to its last process; `proxy` keeps a node's proxy
//! running; `plane` is the control plane inside the supervisor. Commands reach a running stage
//! through [`client`]; [`down`] also ends one whose supervisor was killed.
//!
//! Whatever happens to the supervisor, no process outlives it (`spawn`), and everything else it
//! makes is written down before it is made (`record`), and found again by that. It restarts what dies, and that is all the
//! orchestration it does.

mod api;
mod assemble;
pub mod client;
mod cluster;
mod confine;
mod container;
mod context;
mod core;
mod descriptors;
pub mod down;
mod enroll;
mod environment;
mod error;
pub mod files;
pub mod init;
mod init_protocol;
mod listing;
mod logs;
pub mod names;
mod network;
mod node;
mod plane;
mod pod;
mod print_logs;
pub mod privilege;
mod probes;
mod proxy;
mod run_dir;
mod sandbox;
mod server;
mod spawn;
mod stable_hash;
mod stage;
pub mod up;

pub use cluster::addresses;
pub use descriptors::raise_descriptor_limit;
pub use error::Error;
pub use listing::{Listing, NodeListing, PodListing};
pub use proxy::ProxyState;
pub use stage::{Stage, StageEvent, StageHandle, StageOptions};
